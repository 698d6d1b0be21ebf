// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/imports/numpy_interface.h"

#include <algorithm>

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

NumpyVerdict of_numpy_1(const Binary& binary, const NumpyUse& use, const Version& here) {
  // Cython compares the types first: what the headers of 1.x call a dtype has 96 bytes, that of 2.x has 88.
  const bool by_size = use.checks_types;
  return {by_size ? ImportFailure::kValueError : ImportFailure::kImportError,
          make_verdict({.code = "NUMPY_ABI",
                        .subject = printable(binary.path),
                        .message = by_size ? "ValueError: numpy.dtype size changed, may indicate binary "
                                             "incompatibility. Expected 96 from C header, got 88 from PyObject"
                                           : "ImportError: numpy.core.multiarray failed to import",
                        .cause = "It was compiled with the headers of NumPy 1.x (A module that was compiled using "
                                 "NumPy 1.x cannot be run in NumPy " +
                                 here.text() + "); here is NumPy " + here.text() + ".",
                        .fix = "a newer release of the package, or python -m pip install 'numpy<2'",
                        .evidence = {"it imports numpy.core._multiarray_umath, and numpy._core nowhere"}})};
}

NumpyVerdict of_newer_numpy(const Binary& binary, const NumpyUse& use, const Version& here) {
  const std::string least = use.least.text();
  return {
      ImportFailure::kImportError,
      make_verdict(
          {.code = "NUMPY_ABI",
           .subject = printable(binary.path),
           .message = "ImportError: numpy.core.multiarray failed to import",
           .cause = "It was compiled for NumPy " + least + " or later, and here is NumPy " + here.text() + ".",
           .fix = "python -m pip install 'numpy>=" + least + "', or an older release of the package",
           .evidence = {"its text says: module was compiled against NumPy C-API version ... (NumPy " + least + ")"}})};
}

}  // namespace

NumpyUse numpy_use_of(const Binary& binary, const std::function<const Binary*(const std::string&)>& own_library) {
  const auto asks = [](const NumpyUse& use) { return use.old_only || use.least.known(); };
  if (asks(binary.numpy)) return binary.numpy;
  for (const std::string_view needed : binary.elf.needed)
    if (const Binary* library = own_library(std::string(needed)); library && asks(library->numpy))
      return library->numpy;
  return binary.numpy;
}

std::optional<NumpyVerdict> judge_numpy(const Binary& binary, const BinaryFacts& facts, const NumpyUse& use,
                                        const Environment& target) {
  if (!target.python || !target.python->numpy.known() || facts.python.init_functions.empty()) return {};
  const Version& here = target.python->numpy;
  if (use.old_only && here.major_part() >= 2 && (use.raises || use.checks_types)) {
    NumpyVerdict out = of_numpy_1(binary, use, here);
    // Modules of pybind11 and Boost.Python ask for it in code of their own: onnxruntime 1.16 and RDKit go on without,
    // onnxruntime 1.17 does not.
    const bool by_boost = std::any_of(binary.elf.needed.begin(), binary.elf.needed.end(),
                                      [](std::string_view name) { return name.find("boost_python") != name.npos; });
    if ((use.by_pybind11 || by_boost) && !use.checks_types) {
      out.failure = ImportFailure::kNone;
      out.verdict.severity = Severity::kWarning;
      out.verdict.cause +=
          " The module's own code decides whether it stops there or goes on; what takes or returns "
          "arrays fails in any case.";
    }
    return out;
  }
  const Version minor{{here.major_part(), here.minor_part()}};
  if (use.least.known() && minor < use.least && use.raises) return of_newer_numpy(binary, use, here);
  return {};
}

}  // namespace doctor
