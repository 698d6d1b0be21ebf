// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/own_check.h"

#include <algorithm>

#include "doctor/facts/gpu_rules.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// "12.6" of the label in "2.8.0+cu126" or "2.1.2+pt28cu126"; not known if it has none.
Version labelled_cuda(const std::string& version) {
  const std::size_t plus = version.find('+'), at = version.rfind("cu");
  if (plus == version.npos || at == version.npos || at < plus) return {};
  const std::string digits = version.substr(at + 2);
  if (digits.size() != 3 || digits.find_first_not_of("0123456789") != digits.npos) return {};
  return {{std::stoi(digits.substr(0, 2)), digits[2] - '0'}};
}

// The toolkit that compiled the GPU code, where an entry says it exactly: the version of PTX, or the cubin's own note.
Version compiled_by(const std::vector<Binary>& binaries) {
  Version out;
  for (const Binary& binary : binaries)
    for (const FatbinContainer& container : binary.fatbins)
      for (const FatbinEntry& entry : container.entries) {
        if (entry.empty || !(entry.toolkit.known() || entry.code == GpuCode::kPtx)) continue;
        const Version version = lowest_toolkit(entry);
        if (version.known() && (!out.known() || out < version)) out = version;
      }
  return out;
}

// Did the library that answers the question not load? Then it is not asked.
bool is_silent(const std::string& package, const std::vector<Verdict>& said) {
  return std::any_of(said.begin(), said.end(), [&](const Verdict& verdict) {
    const std::string name = base_name(verdict.subject), stem = name.substr(0, name.find('.'));
    return verdict.message.starts_with("ImportError: ") &&
           (stem == "_C" || stem == "lib" + package || stem.starts_with("_version"));
  });
}

}  // namespace

void judge_own_check(const std::string& package, const std::string& version, const std::vector<Binary>& binaries,
                     const TorchFacts& torch, const std::string& pip, std::vector<Verdict>& out) {
  const bool is_audio = package == "torchaudio", is_vision = package == "torchvision";
  const bool is_graph = package == "torch-scatter" || package == "torch-sparse" || package == "torch-cluster" ||
                        package == "torch-spline-conv";
  const Version ours = parse_version(torch.cuda_version);
  if (!ours.known() || !(is_audio || is_vision || is_graph) || is_silent(package, out)) return;
  const Version label = labelled_cuda(version), theirs = label.known() ? label : compiled_by(binaries);
  if (!theirs.known()) return;
  const bool to_the_minor = is_audio && parse_version(version) < Version{{2, 14}};
  if (theirs.major_part() == ours.major_part() && (!to_the_minor || theirs.minor_part() == ours.minor_part())) return;
  const std::string name = is_audio ? "TorchAudio" : printable(package);
  out.push_back(make_verdict(
      {.code = "CUDA_MAJOR",
       .subject = package + " " + printable(version),
       .message = "RuntimeError: Detected that PyTorch and " + name +
                  " were compiled with different CUDA versions. PyTorch has CUDA version " + ours.text() + " whereas " +
                  name + " has CUDA version " + theirs.text() + ".",
       .cause = "The package compares the two itself when it is imported, and stops.",
       .fix = is_graph ? pip + " install --force-reinstall --no-deps --no-index " + package +
                             " -f https://data.pyg.org/whl/torch-" + torch.version + ".html"
                       : pip + " install --force-reinstall torch torchvision torchaudio in one command, from one index",
       .evidence = {label.known() ? "its version says cu" + theirs.text()
                                  : "its GPU code was compiled by CUDA " + theirs.text()}}));
}

std::optional<Verdict> judge_pybind11(const Binary& module, const BinaryFacts& facts, const Environment& target) {
  const Version& wanted = module.pybind11_python;
  if (!wanted.known() || !target.python || !target.python->version.known() || facts.python.init_functions.empty() ||
      facts.module.naming != ModuleNaming::kPlain)
    return {};
  const Version& here = target.python->version;
  if (here.major_part() == wanted.major_part() && here.minor_part() == wanted.minor_part()) return {};
  return make_verdict(
      {.code = "PY_SYMBOL",
       .subject = printable(module.path),
       .message = "ImportError: Python version mismatch: module was compiled for Python " + wanted.text() +
                  ", but the interpreter version is incompatible: " + here.text(),
       .cause =
           "It was built for another Python: pybind11 compares the two when the module is imported, and stops. Its "
           "file name says nothing of that.",
       .fix = "another release of the package, or an environment of Python " + wanted.text(),
       .evidence = {"its text says: module was compiled for Python ... (" + wanted.text() + ")"}});
}

}  // namespace doctor
