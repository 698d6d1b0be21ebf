// SPDX-License-Identifier: Apache-2.0
// A target written to a file and read again; installed packages; the reports.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "doctor/facts/mangled.h"
#include "doctor/judge/installed.h"
#include "doctor/load/library_list.h"
#include "doctor/load/packed_text.h"
#include "doctor/report/report.h"
#include "doctor/report/report_html.h"
#include "doctor/report/report_json.h"
#include "doctor/system/environment_json.h"
#include "tests/doctor/fake_system.h"
#include "tests/verdict_notes.h"

namespace doctor {
namespace {

constexpr const char* kNewError =
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kOldError = "_ZN3c105ErrorC2ENS_14SourceLocationESs";
const std::string kSite = "/opt/conda/lib/python3.12/site-packages";

// A Python with torch 2.8 of the new ABI, and flash-attn that asks for `symbol`.
void make_system(FakeSystem& system, const char* symbol) {
  system.add_base();
  system.add_python("/opt/conda", "3.12.4");
  system.set("CONDA_PREFIX", "/opt/conda");
  system.add_torch(kSite, "2.8.0+cu128", "12.8", true);
  system.library(kSite + "/torch/lib/libtorch_global_deps.so", {.soname = "libtorch_global_deps.so"});
  system.library(kSite + "/torch/_C.cpython-312-x86_64-linux-gnu.so",
                 {.needed = {"libc10.so"}, .runpath = "$ORIGIN/lib"});
  const std::string module = "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so";
  system.library(kSite + "/" + module,
                 {.needed = {"libc10.so"}, .exports = {"PyInit_flash_attn_2_cuda"}, .imports = {symbol}});
  system.write(kSite + "/flash_attn/__init__.py", "");
  system.write(kSite + "/flash_attn/flash_attn_interface.py", "import flash_attn_2_cuda as flash_attn_gpu\n");
  system.add_package(kSite, "flash_attn", "2.8.3", "Requires-Dist: torch\nRequires-Dist: einops\n",
                     "flash_attn/__init__.py,,\nflash_attn/flash_attn_interface.py,,\n" + module + ",,\n");
}

std::vector<std::string> codes_of(const std::vector<Judged>& judged, Severity least = Severity::kWarning) {
  std::vector<std::string> out;
  for (const Judged& item : judged)
    for (const Verdict& verdict : item.verdicts)
      if (verdict.severity >= least) out.push_back(verdict.code.text());
  return out;
}

std::vector<Judged> judge_all(FakeSystem& system) {
  const Survey found = survey(system.outlook());
  return judge_installed(found, found.pythons.at(0), environment_of(found, &found.pythons[0]));
}

TEST(Installed, LoadsOrTheFirstMessage) {
  FakeSystem good;
  make_system(good, kNewError);
  EXPECT_EQ(codes_of(judge_all(good)), std::vector<std::string>{});

  FakeSystem bad;
  make_system(bad, kOldError);
  const auto judged = judge_all(bad);
  ASSERT_EQ(codes_of(judged), std::vector<std::string>{"TORCH_CXX11_ABI"});
  for (const Judged& item : judged)
    for (const Verdict& verdict : item.verdicts)
      if (verdict.code == "TORCH_CXX11_ABI") {
        EXPECT_NE(verdict.message.find(
                      kSite + "/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: " + kOldError),
                  std::string::npos)
            << verdict.message;
        EXPECT_EQ(verdict.message.find(bad.root()), std::string::npos) << "paths are those of the target";
      }
}

TEST(Installed, ForAnotherReleaseOfTorch) {
  FakeSystem system;
  make_system(system, kNewError);
  const std::string record = "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so,,\n";
  system.add_package(kSite, "flash_attn", "2.8.3", "Requires-Dist: torch (==2.7.0)\n", record);
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{"TORCH_OTHER_RELEASE"});
  system.add_package(kSite, "flash_attn", "2.8.3", "Requires-Dist: torch==2.8.1\n", record);
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{});
  note_covered("TORCH_OTHER_RELEASE");
  system.add_package(kSite, "flash_attn", "2.8.3",
                     "Requires-Dist: torch; extra == \"test\"\nRequires-Dist: torch>=2.1\n", record);
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{});
}

TEST(Installed, WithoutItsModule) {
  FakeSystem system;
  make_system(system, kNewError);
  system.remove(kSite + "/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so");
  system.add_package(kSite, "flash_attn", "2.8.3", "Requires-Dist: torch\n", "flash_attn/flash_attn_interface.py,,\n");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{"MODULE_MISSING"});
  system.write(kSite + "/flash_attn_2_cuda.py", "");  // a drop-in in Python
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{});
}

// A package of its own: pkg/__init__.py with this text, and pkg/_C as given.
void add_pkg(FakeSystem& system, const std::string& python, const std::string& metadata = "") {
  system.write(kSite + "/pkg/__init__.py", python);
  system.add_package(kSite, "pkg", "1.0", metadata, "pkg/__init__.py,,\npkg/_C.cpython-312-x86_64-linux-gnu.so,,\n");
}
const std::string kModule = kSite + "/pkg/_C.cpython-312-x86_64-linux-gnu.so";

TEST(Installed, AModuleThatIsGoneEmptyOrNone) {
  FakeSystem system;
  make_system(system, kNewError);
  add_pkg(system, "from . import _C\n");
  const auto judged = judge_all(system);
  ASSERT_EQ(codes_of(judged), std::vector<std::string>{"MODULE_MISSING"});
  EXPECT_EQ(judged.back().verdicts[0].message, "ModuleNotFoundError: No module named 'pkg._C'");
  add_pkg(system, "try:\n    from . import _C\nexcept ImportError:\n    pass\n");
  EXPECT_EQ(codes_of(judge_all(system), Severity::kError), std::vector<std::string>{}) << "it is guarded";
  add_pkg(system, "from . import _C\n");
  system.write(kModule, "");
  const auto empty = judge_all(system);
  ASSERT_EQ(codes_of(empty), std::vector<std::string>{"ELF_DAMAGED"});
  EXPECT_EQ(empty.back().verdicts[0].message, "ImportError: " + kModule + ": file too short");
  system.write(kModule, "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef0123456789abcdef\n");
  EXPECT_EQ(judge_all(system).back().verdicts.at(0).message, "ImportError: " + kModule + ": invalid ELF header");
  system.library(kModule, {.exports = {"PyInit__C"}});
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{});
}

TEST(Installed, WhatAnImportDoesNotReachIsAWarning) {
  FakeSystem system;
  make_system(system, kNewError);
  system.library(kModule, {.needed = {"libgone.so.1"}, .exports = {"PyInit__C"}});
  add_pkg(system, "from pkg import _C\n", "Requires-Dist: torch\n");
  EXPECT_EQ(codes_of(judge_all(system), Severity::kError), std::vector<std::string>{"NEEDED_MISSING"});
  add_pkg(system, "def f():\n    from pkg import _C\n", "Requires-Dist: torch\n");
  const auto judged = judge_all(system);
  EXPECT_EQ(codes_of(judged, Severity::kError), std::vector<std::string>{});
  EXPECT_EQ(codes_of(judged), std::vector<std::string>{"NEEDED_MISSING"});
  EXPECT_NE(judged.back().verdicts.back().cause.find("does not reach it"), std::string::npos);
}

TEST(Installed, PackagesWithoutTorchAreJudgedToo) {
  FakeSystem system;
  make_system(system, kNewError);
  system.library(kModule, {.needed = {"libgone.so.1"}, .exports = {"PyInit__C"}});
  add_pkg(system, "import pkg._C\n");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{"NEEDED_MISSING"});
  system.library(kModule, {.exports = {"PyInit__C"}});
  const auto judged = judge_all(system);
  EXPECT_TRUE(std::none_of(judged.begin(), judged.end(), [](const Judged& j) { return j.subject == "pkg 1.0"; }))
      << "nothing is said of what loads";
}

TEST(Installed, FromACheckout) {
  FakeSystem system;
  make_system(system, kNewError);
  system.add_package(kSite, "pkg", "1.0", "", "__editable__.pkg-1.0.pth,,\n");
  system.write(kSite + "/pkg-1.0.dist-info/direct_url.json",
               "{\"dir_info\": {\"editable\": true}, \"url\": \"file:///home/user/pkg\"}");
  system.write(kSite + "/__editable__.pkg-1.0.pth", "/home/user/pkg\n");
  system.library("/home/user/pkg/pkg/_C.cpython-312-x86_64-linux-gnu.so",
                 {.needed = {"libgone.so.1"}, .exports = {"PyInit__C"}});
  system.library("/home/user/pkg/build/lib/_C.cpython-312-x86_64-linux-gnu.so", {.needed = {"libbuild.so.1"}});
  const auto judged = judge_all(system);
  ASSERT_EQ(codes_of(judged), std::vector<std::string>{"NEEDED_MISSING"});
  EXPECT_NE(judged.back().verdicts[0].message.find("libgone.so.1"), std::string::npos);
}

TEST(Installed, ThatCompareTheirCudaWithTorchs) {
  const auto codes = [](const char* name, const char* version, const std::vector<std::string>& needed = {}) {
    FakeSystem system;
    make_system(system, kNewError);
    const std::string folder = name, module = folder + "/_C.so";
    system.library(kSite + "/" + module, {.needed = needed, .exports = {"f"}});
    system.add_package(kSite, name, version, "Requires-Dist: torch\n", module + ",,\n");
    return codes_of(judge_all(system), Severity::kError);
  };
  using Codes = std::vector<std::string>;
  EXPECT_EQ(codes("torchaudio", "2.8.0+cu126"), Codes{"CUDA_MAJOR"});
  EXPECT_EQ(codes("torchaudio", "2.8.0+cu128"), Codes{});
  EXPECT_EQ(codes("torchaudio", "2.14.0+cu126"), Codes{});  // to the major version only
  EXPECT_EQ(codes("torchaudio", "2.8.0"), Codes{});
  EXPECT_EQ(codes("torchvision", "0.23.0+cu126"), Codes{});
  EXPECT_EQ(codes("torchvision", "0.23.0+cu130"), Codes{"CUDA_MAJOR"});
  EXPECT_EQ(codes("torch_scatter", "2.1.2+pt28cu118"), Codes{"CUDA_MAJOR"});
  EXPECT_EQ(codes("torch_scatter", "2.1.2+pt28cu126"), Codes{});
  // Where its library does not load, it is not asked which CUDA it was compiled by.
  EXPECT_EQ(codes("torchvision", "0.23.0+cu130", {"libgone.so.1"}), Codes{"NEEDED_MISSING"});
}

TEST(Installed, ForTheOtherNumPy) {
  const auto codes = [](const std::string& words, const char* numpy) {
    FakeSystem system;
    make_system(system, kNewError);
    add_pkg(system, "import pkg._C\n");
    // The loader takes no notice of names; NumPy's headers leave them among the data.
    system.library(kModule, {.exports = {"PyInit__C"}, .data = words});
    system.add_package(kSite, "numpy", numpy, "", "");
    return codes_of(judge_all(system), Severity::kError);
  };
  using Codes = std::vector<std::string>;
  const std::string words = "numpy.core.multiarray failed to import";
  const std::string old_one = "numpy.core._multiarray_umath" + words, both = old_one + "numpy._core._multiarray_umath";
  EXPECT_EQ(codes(old_one, "2.1.0"), Codes{"NUMPY_ABI"});
  EXPECT_EQ(codes(old_one, "1.26.4"), Codes{});
  EXPECT_EQ(codes(both, "2.1.0"), Codes{});
  EXPECT_EQ(codes(both, "1.26.4"), Codes{});
  EXPECT_EQ(codes("", "2.1.0"), Codes{});
  // pybind11 says so and goes on; a module of Cython's that only names the types fails all the same.
  EXPECT_EQ(codes(old_one + "__pybind11_module_local", "2.1.0"), Codes{});
  const std::string types("%s size changed, may indicate binary incompatibility\0flatiter\0", 63);
  EXPECT_EQ(codes(words + types, "2.1.0"), Codes{"NUMPY_ABI"});
  EXPECT_EQ(codes("numpy._core.multiarray failed to import" + types, "2.1.0"), Codes{});
  // Compiled for a newer one than is there.
  const std::string newer =
      both + "module was compiled against NumPy C-API version 0x%x (NumPy 1.25) but the running NumPy";
  EXPECT_EQ(codes(newer, "1.24.4"), Codes{"NUMPY_ABI"});
  EXPECT_EQ(codes(newer, "1.26.4"), Codes{});
}

// A library beside the module asks for NumPy on behalf of all modules (pyarrow's libarrow_python), be it judged by
// itself or on the way to another package.
TEST(Installed, ALibraryThatAsksForNumPy) {
  const auto codes = [](const std::string& python, const char* numpy, const std::string& folder) {
    FakeSystem system;
    make_system(system, kNewError);
    add_pkg(system, python);
    system.library(kModule, {.exports = {"PyInit__C"}});
    system.write(kSite + "/other/__init__.py", "from . import lib\n");
    system.library(kSite + "/other/lib.cpython-312-x86_64-linux-gnu.so",
                   {.needed = {"libother.so.3"}, .exports = {"PyInit_lib"}, .runpath = "$ORIGIN:" + folder});
    system.library(
        folder + "/libother.so.3",
        {.soname = "libother.so.3",
         .exports = {"Pyother_import_array"},  // it has to do with Python
         .data = "numpy.core._multiarray_umath numpy._core._multiarray_umath numpy._core.multiarray failed to "
                 "import. module was compiled against NumPy C-API version 0x%x (NumPy 2.0) but the running "
                 "NumPy has"});
    system.add_package(kSite, "numpy", numpy, "", "");
    return codes_of(judge_all(system), Severity::kError);
  };
  using Codes = std::vector<std::string>;
  const std::string beside = kSite + "/other";
  EXPECT_EQ(codes("import other\n", "1.26.4", beside), Codes{"NUMPY_ABI"});
  // The near misses: a NumPy that serves, another package's library, a package that does not import it.
  EXPECT_EQ(codes("import other\n", "2.1.0", beside), Codes{});
  EXPECT_EQ(codes("import other\n", "1.26.4", "/opt/elsewhere"), Codes{});
  EXPECT_EQ(codes("import pkg._C\n", "1.26.4", beside), Codes{});
}

// Whether pybind11's and Boost.Python's modules of NumPy 1 stop beside NumPy 2 is in code of their own: neither yes nor
// no is said.
TEST(Installed, CannotTellOfPybind11BesideTheOtherNumPy) {
  const auto judged = [](const std::string& python, const std::string& words, const char* numpy,
                         const std::string& needed) {
    FakeSystem system;
    make_system(system, kNewError);
    add_pkg(system, python, "Requires-Dist: torch\n");  // of others only errors are told
    std::vector<std::string> libraries;
    if (!needed.empty()) {
      libraries = {needed};
      system.library(kSite + "/pkg/" + needed, {.soname = needed});
    }
    system.library(kModule, {.needed = libraries, .exports = {"PyInit__C"}, .runpath = "$ORIGIN", .data = words});
    system.add_package(kSite, "numpy", numpy, "", "");
    return judge_all(system);
  };
  const auto warnings = [&](const std::string& python, const std::string& words, const char* numpy,
                            const std::string& needed) {
    const std::vector<Judged> all = judged(python, words, numpy, needed);
    EXPECT_EQ(codes_of(all, Severity::kError), std::vector<std::string>{});
    return codes_of(all, Severity::kWarning);
  };
  using Codes = std::vector<std::string>;
  const std::string old_one = "numpy.core._multiarray_umath numpy.core.multiarray failed to import ";
  const std::string by_pybind11 = old_one + "__pybind11_module_local";
  const Codes both = {"NUMPY_ABI", "CANNOT_TELL"};
  EXPECT_EQ(warnings("import pkg._C\n", by_pybind11, "2.1.0", ""), both);
  EXPECT_EQ(warnings("import pkg._C\n", old_one, "2.1.0", "libboost_python311.so.1"), both);
  EXPECT_EQ(warnings("import pkg._C\n", by_pybind11, "1.26.4", ""), Codes{});
  // Not asked for by the import: then it can be told.
  EXPECT_EQ(warnings("def f():\n    import pkg._C\n", by_pybind11, "2.1.0", ""), Codes{"NUMPY_ABI"});
}

// A library that another package has for this one, and opens when it is told to (RAPIDS).
TEST(Installed, ALibraryThatAnotherPackageOpens) {
  const auto codes = [](const std::string& python, const std::string& load) {
    FakeSystem system;
    make_system(system, kNewError);
    add_pkg(system, python);
    system.library(kModule, {.needed = {"libraft.so"}, .exports = {"PyInit__C"}});
    system.write(kSite + "/libraft/__init__.py", "from libraft.load import load_library\n");
    system.write(kSite + "/libraft/load.py", load);
    system.library(kSite + "/libraft/lib64/libraft.so", {.soname = "libraft.so", .needed = {"liblogger.so"}});
    system.write(kSite + "/logger/__init__.py", "");
    system.library(kSite + "/logger/lib/liblogger.so", {.soname = "liblogger.so"});
    return codes_of(judge_all(system), Severity::kError);
  };
  using Codes = std::vector<std::string>;
  const std::string load = "def load_library():\n    import logger\n    return ctypes.CDLL(path)\n";
  const std::string python = "try:\n    import libraft\nexcept ModuleNotFoundError:\n    pass\nimport pkg._C\n";
  EXPECT_EQ(codes(python, load), Codes{});
  // The near misses: not imported, or it opens nothing, or not all that it takes.
  EXPECT_EQ(codes("import pkg._C\n", load), Codes{"NEEDED_MISSING"});
  EXPECT_EQ(codes(python, "def load_library():\n    import logger\n"), Codes{"NEEDED_MISSING"});
  EXPECT_EQ(codes(python, "def load_library():\n    return ctypes.CDLL(path)\n"), Codes{"NEEDED_MISSING"});
}

// pybind11 compares the Python that a module was compiled for with the one that imports it (ScaNN 1.4.2 for 3.9).
TEST(Installed, ForTheOtherPythonByPybind11) {
  const auto codes = [](const std::string& words, const std::string& file = "core.so") {
    FakeSystem system;
    make_system(system, kNewError);
    system.library(kModule, {.exports = {"PyInit__C"}});
    add_pkg(system, "import other\n");
    system.write(kSite + "/other/__init__.py", "from . import core\n");
    system.library(kSite + "/other/" + file, {.exports = {"PyInit_core"}, .data = words});
    return codes_of(judge_all(system), Severity::kError);
  };
  using Codes = std::vector<std::string>;
  const std::string check = "Python version mismatch: module was compiled for Python %s, but the interpreter version";
  const auto version = [](const std::string& text) { return std::string(1, '\0') + text + std::string(1, '\0'); };
  EXPECT_EQ(codes(check + version("3.9")), Codes{"PY_SYMBOL"});
  EXPECT_EQ(codes(version("3.11") + check), Codes{"PY_SYMBOL"});
  // The near misses: this Python, no such check, two such texts, parts of others, a name that says which Python.
  EXPECT_EQ(codes(check + version("3.12")), Codes{});
  EXPECT_EQ(codes(version("3.9")), Codes{});
  EXPECT_EQ(codes(check + version("3.9") + version("3.12")), Codes{});
  EXPECT_EQ(codes(check + version("3.9.1")), Codes{});
  EXPECT_EQ(codes(check + version("v3.9")), Codes{});
  EXPECT_EQ(codes(check + version("3.9"), "core.cpython-312-x86_64-linux-gnu.so"), Codes{});
}

// What stops a package may lie in another that it imports (statsmodels and the pandas beside it).
TEST(Installed, WhatItImportsIsFollowed) {
  const auto judged = [](const std::string& python, const std::string& other) {
    FakeSystem system;
    make_system(system, kNewError);
    system.library(kModule, {.exports = {"PyInit__C"}});
    add_pkg(system, python);
    system.write(kSite + "/other/__init__.py", other);
    system.library(kSite + "/other/core.cpython-312-x86_64-linux-gnu.so",
                   {.needed = {"libgone.so.1"}, .exports = {"PyInit_core"}});
    return judge_all(system);
  };
  const auto codes = [&](const std::string& python, const std::string& other) {
    return codes_of(judged(python, other), Severity::kError);
  };
  using Codes = std::vector<std::string>;
  EXPECT_EQ(codes("import pkg._C\nimport other\n", "from . import core\n"), Codes{"NEEDED_MISSING"});
  const std::vector<Judged> all = judged("import other\n", "from . import core\n");
  EXPECT_EQ(all.back().subject, "pkg 1.0");
  EXPECT_EQ(all.back().verdicts.back().evidence.back(), "it is imported on the way: other.core");
  // The near misses: not reached, caught by the one or the other, or not that part of it.
  EXPECT_EQ(codes("import pkg._C\n", "from . import core\n"), Codes{});
  EXPECT_EQ(codes("try:\n    import other\nexcept ImportError:\n    other = None\n", "from . import core\n"), Codes{});
  EXPECT_EQ(codes("import other\n", "try:\n    from . import core\nexcept ImportError:\n    pass\n"), Codes{});
  EXPECT_EQ(codes("import other\n", "x = 1\n"), Codes{});
}

// A library that another package has loaded by then serves those that are opened after it (libarrow.so of pyarrow).
TEST(Installed, ALibraryThatAnotherPackageHasLoaded) {
  const auto codes = [](const std::string& python) {
    FakeSystem system;
    make_system(system, kNewError);
    system.library(kModule, {.needed = {"libother.so.3"}, .exports = {"PyInit__C"}});
    add_pkg(system, python);
    system.write(kSite + "/other/__init__.py", "from . import lib\n");
    system.library(kSite + "/other/lib.cpython-312-x86_64-linux-gnu.so",
                   {.needed = {"libother.so.3"}, .exports = {"PyInit_lib"}, .runpath = "$ORIGIN"});
    system.library(kSite + "/other/libother.so.3", {.soname = "libother.so.3"});
    return codes_of(judge_all(system), Severity::kError);
  };
  using Codes = std::vector<std::string>;
  EXPECT_EQ(codes("import other\nimport pkg._C\n"), Codes{});
  EXPECT_EQ(codes("import pkg._C\n"), Codes{"NEEDED_MISSING"});
}

// torch 2.10 and later open the whole table, and one more that may be missing.
TEST(Installed, CudaThatIsOpenedAsATable) {
  FakeSystem system;
  make_system(system, kNewError);
  system.write(kSite + "/torch/__init__.py",
               "def _preload_cuda_deps(err=None):\n    cuda_libs = [\n        (\"cublas\", \"libcublas.so.*[0-9]\"),\n"
               "        (\"nccl\", \"libnccl.so.*[0-9]\"),\n    ]\n"
               "    _preload_cuda_lib(\"nvtx\", \"libnvToolsExt.so.*[0-9]\", required=False)\n"
               "def _load_global_deps():\n            _preload_cuda_deps()\n");
  system.library(kSite + "/nvidia/cublas/lib/libcublas.so.12", {.soname = "libcublas.so.12"});
  system.library(kSite + "/nvidia/nvtx/lib/libnvToolsExt.so.1", {.soname = "libnvToolsExt.so.1"});
  const Survey found = survey(system.outlook());
  const TorchFacts& torch = *found.pythons.at(0).torch;
  using Paths = std::vector<std::string>;
  EXPECT_EQ(torch.preloaded,
            (Paths{kSite + "/nvidia/cublas/lib/libcublas.so.12", kSite + "/nvidia/nvtx/lib/libnvToolsExt.so.1"}));
  EXPECT_EQ(torch.preloaded_if_missing, Paths{kSite + "/nvidia/cublas/lib/libcublas.so.12"});
}

// torch's Python opens CUDA's libraries from pip by their paths, and so do some packages.
TEST(Installed, CudaThatIsOpenedByItsPath) {
  const std::string table =
      "def _load_global_deps():\n    try:\n        ctypes.CDLL(path)\n        _preload_cuda_deps(\"nvjitlink\", "
      "\"libnvJitLink.so.*[0-9]\")\n    except OSError as err:\n        cuda_libs = {\n"
      "            \"cublas\": \"libcublas.so.*[0-9]\",\n            \"nccl\": \"libnccl.so.*[0-9]\",\n        }\n";
  FakeSystem system;
  make_system(system, kNewError);
  system.write(kSite + "/torch/__init__.py", table);
  system.library(kSite + "/nvidia/cublas/lib/libcublas.so.12", {.soname = "libcublas.so.12"});
  system.library(kSite + "/nvidia/cublas/lib/libcublasLt.so.12", {.soname = "libcublasLt.so.12"});
  system.library(kSite + "/nvidia/cu12/lib/libnvJitLink.so.12", {.soname = "libnvJitLink.so.12"});
  const Survey found = survey(system.outlook());
  const TorchFacts& torch = *found.pythons.at(0).torch;
  using Paths = std::vector<std::string>;
  EXPECT_EQ(torch.preloaded, Paths{kSite + "/nvidia/cu12/lib/libnvJitLink.so.12"});
  EXPECT_EQ(torch.preloaded_if_missing, Paths{kSite + "/nvidia/cublas/lib/libcublas.so.12"});
  // Where torch itself lacks them, they are there afterwards, for the others too.
  system.library(kSite + "/torch/lib/libtorch_global_deps.so",
                 {.soname = "libtorch_global_deps.so", .needed = {"libcublas.so.12"}});
  system.library(kModule, {.needed = {"libcublas.so.12"}, .exports = {"PyInit__C"}});
  add_pkg(system, "import torch\nimport pkg._C\n", "Requires-Dist: torch\n");
  EXPECT_EQ(codes_of(judge_all(system), Severity::kError), Paths{});
  system.write(kSite + "/torch/__init__.py", "");
  EXPECT_EQ(codes_of(judge_all(system), Severity::kError), Paths{"NEEDED_MISSING"});
  // A package that opens them by itself.
  add_pkg(system, "for f in glob(\"nvidia/*/lib/*.so*\"):\n    ctypes.CDLL(f)\nimport pkg._C\n",
          "Requires-Dist: torch\n");
  EXPECT_EQ(codes_of(judge_all(system), Severity::kError), Paths{});
}

TEST(Installed, WithTheVariablesOfTheShell) {
  const auto codes = [](const char* variable, const std::string& value) {
    FakeSystem system;
    make_system(system, kNewError);
    system.library(kModule, {.needed = {"libmore.so.1"}, .exports = {"PyInit__C"}});
    add_pkg(system, "import pkg._C\n");
    system.library("/data/more/libmore.so.1", {.soname = "libmore.so.1"});
    if (variable[0]) system.set(variable, value);
    Outlook outlook = system.outlook();
    outlook.folder = "/data/more";
    const Survey found = survey(outlook);
    return codes_of(judge_installed(found, found.pythons.at(0), environment_of(found, &found.pythons[0])));
  };
  using Codes = std::vector<std::string>;
  EXPECT_EQ(codes("", ""), Codes{"NEEDED_MISSING"});
  EXPECT_EQ(codes("LD_LIBRARY_PATH", "/data/more"), Codes{});
  EXPECT_EQ(codes("LD_LIBRARY_PATH", "../more"), Codes{}) << "a relative entry";
  EXPECT_EQ(codes("LD_LIBRARY_PATH", "/nowhere:"), Codes{}) << "an empty entry is the current folder";
  EXPECT_EQ(codes("LD_LIBRARY_PATH", ""), Codes{"NEEDED_MISSING"}) << "an empty variable is none";
  EXPECT_EQ(codes("LD_PRELOAD", "/data/more/libmore.so.1"), Codes{});
  EXPECT_EQ(codes("LD_PRELOAD", "/gone.so:/data/more/libmore.so.1"), Codes{});
  EXPECT_EQ(codes("LD_PRELOAD", "libmore.so.1"), Codes{"NEEDED_MISSING"});
}

TEST(Installed, InTheUsersOwnBase) {
  FakeSystem system;
  make_system(system, kNewError);
  system.set("PYTHONUSERBASE", "/data/base");
  const std::string site = "/data/base/lib/python3.12/site-packages";
  system.library(site + "/pkg/_C.cpython-312-x86_64-linux-gnu.so",
                 {.needed = {"libgone.so.1"}, .exports = {"PyInit__C"}});
  system.write(site + "/pkg/__init__.py", "import pkg._C\n");
  system.add_package(site, "pkg", "1.0", "", "pkg/__init__.py,,\npkg/_C.cpython-312-x86_64-linux-gnu.so,,\n");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{"NEEDED_MISSING"});
}

TEST(Installed, WithoutTorch) {
  FakeSystem system;
  make_system(system, kNewError);
  system.remove(kSite + "/torch");
  system.remove(kSite + "/torch-2.8.0+cu128.dist-info");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{"TORCH_MISSING"});
}

TEST(Installed, TwoReleasesInOneFolder) {
  FakeSystem system;
  make_system(system, kNewError);
  system.add_package(kSite, "flash_attn", "2.8.3", "Requires-Dist: torch\n",
                     "flash_attn/cute/__init__.py,,\nflash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so,,\n");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{});
  system.add_package(kSite, "flash_attn_4", "4.0.0");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{"FLASH_ATTN_STALE_CUTE"});
}

TEST(Installed, AFolderThatNobodyInstalled) {
  FakeSystem system;
  make_system(system, kNewError);
  system.remove(kSite + "/flash_attn-2.8.3.dist-info");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{"FLASH_ATTN_NOT_SEEN"});
}

TEST(Installed, TheDriver) {
  FakeSystem system;
  make_system(system, kNewError);
  EXPECT_EQ(codes_of(judge_all(system), Severity::kNote).at(0), "DRIVER_MISSING");
  system.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed\n");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{"DRIVER_TOO_OLD"});
  system.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Wed\n");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{});
}

TEST(Installed, ARecordThatLeadsOutside) {
  FakeSystem system;
  make_system(system, kNewError);
  system.library("/secret/other.so", {.imports = {"missing_everywhere"}});
  system.add_package(
      kSite, "flash_attn", "2.8.3", "Requires-Dist: torch\n",
      "../../../../../secret/other.so,,\n/secret/other.so,,\nflash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so,,\n");
  EXPECT_EQ(codes_of(judge_all(system)), std::vector<std::string>{});
}

// uv can install links to its store (--link-mode symlink).
TEST(Installed, FilesThatAreLinks) {
  const auto codes = [](const tiny::Library& library) {
    FakeSystem system;
    make_system(system, kNewError);
    system.library("/home/u/.cache/store/pkg/_C.so", library);
    system.write("/home/u/.cache/store/pkg/__init__.py", "from . import _C\n");
    system.add_package(kSite, "pkg", "1.0", "", "pkg/__init__.py,,\npkg/_C.cpython-312-x86_64-linux-gnu.so,,\n");
    system.link(kSite + "/pkg/__init__.py", "/home/u/.cache/store/pkg/__init__.py");
    system.link(kModule, "/home/u/.cache/store/pkg/_C.so");
    return codes_of(judge_all(system), Severity::kError);
  };
  using Codes = std::vector<std::string>;
  EXPECT_EQ(codes({.exports = {"PyInit__C"}}), Codes{});
  EXPECT_EQ(codes({.needed = {"libgone.so.1"}, .exports = {"PyInit__C"}}), Codes{"NEEDED_MISSING"});
}

TEST(Target, IsTheSameAfterAFile) {
  FakeSystem system;
  make_system(system, kOldError);
  system.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed\n");
  // A library that only torch's own search path reaches.
  system.library(
      kSite + "/torch/lib/libtorch_global_deps.so",
      {.soname = "libtorch_global_deps.so", .needed = {"libblas-1.so"}, .runpath = "$ORIGIN/../../torch.libs"});
  system.library(kSite + "/torch.libs/libblas-1.so", {.soname = "libblas-1.so"});
  system.set("GLIBC_TUNABLES", "glibc.rtld.execstack=2");
  system.write("/proc/cpuinfo", "flags : cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3\n");
  system.set("LD_LIBRARY_PATH", "/opt/lib");
  system.library("/opt/lib/glibc-hwcaps/x86-64-v2/libnew.so.1", {.soname = "libnew.so.1"});
  const Survey found = survey(system.outlook());
  const Environment here = environment_of(found, &found.pythons.at(0));
  const std::string text = export_environment(here, found.outlook.files);
  const Environment there = parse_environment(text, "node.json");
  EXPECT_EQ(there.machine, "x86_64");
  EXPECT_EQ(there.libc_version, parse_version("2.35"));
  EXPECT_EQ(there.glibcxx, parse_version("3.4.30"));
  EXPECT_EQ(there.driver, parse_version("580.95.05"));
  EXPECT_EQ(there.loader.default_folders, here.loader.default_folders);
  EXPECT_EQ(there.loader.tunables, "glibc.rtld.execstack=2");
  EXPECT_EQ(there.loader.hwcaps, std::vector<std::string>{"x86-64-v2"});
  EXPECT_TRUE(there.libraries->find("/opt/lib/glibc-hwcaps/x86-64-v2/libnew.so.1"));
  ASSERT_TRUE(there.python && there.torch);
  EXPECT_EQ(there.python->soabi, "cpython-312-x86_64-linux-gnu");
  EXPECT_EQ(there.python->site_packages, here.python->site_packages);
  EXPECT_EQ(there.torch->version, "2.8.0+cu128");
  EXPECT_EQ(there.torch->cxx_abi, CxxAbi::kNew);
  EXPECT_EQ(there.torch->libraries, here.torch->libraries);
  const ElfFile* c10 = there.libraries->find(kSite + "/torch/lib/libc10.so");
  ASSERT_TRUE(c10);
  EXPECT_EQ(c10->soname, "libc10.so");
  EXPECT_EQ(c10->symbols.size(), 3u);
  EXPECT_TRUE(there.libraries->find(kSite + "/torch/lib/../../torch.libs/libblas-1.so"));
  EXPECT_EQ(there.libraries->find("/nowhere.so"), nullptr);
  // The verdict over the same file is the same, word for word.
  const InstalledPackage* package = found.pythons[0].package("flash-attn");
  ASSERT_TRUE(package);
  const Judged first = judge_package(found, found.pythons[0], *package, here);
  const Judged second = judge_package(found, found.pythons[0], *package, there);
  ASSERT_EQ(first.verdicts.size(), second.verdicts.size());
  for (std::size_t i = 0; i < first.verdicts.size(); ++i) {
    EXPECT_EQ(first.verdicts[i].code, second.verdicts[i].code);
    EXPECT_EQ(first.verdicts[i].message, second.verdicts[i].message);
  }
}

TEST(Target, ASystemWithoutAPython) {
  FakeSystem system;
  system.add_base();
  const Survey found = survey(system.outlook());
  const Environment there =
      parse_environment(export_environment(environment_of(found, nullptr), found.outlook.files), "node.json");
  EXPECT_EQ(there.machine, "x86_64");
  EXPECT_FALSE(there.python);
}

TEST(Target, BadFilesGetOneLine) {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      parse_environment(text, "x.json");
    } catch (const ReadError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(complaint("").find("not JSON"), std::string::npos);
  EXPECT_NE(complaint("{").find("not JSON"), std::string::npos);
  EXPECT_NE(complaint("[]").find("no object"), std::string::npos);
  EXPECT_NE(complaint("{}").find("mica_target"), std::string::npos);
  EXPECT_NE(complaint(std::string(100000, '[')).find("deep"), std::string::npos);
  EXPECT_NE(complaint(R"({"mica_target": 1, "machine": 5})").find("machine is 5, want a text"), std::string::npos);
  EXPECT_NE(complaint(R"({"mica_target": 1, "libc_version": "new"})").find("want a version"), std::string::npos);
  EXPECT_NE(complaint(R"({"mica_target": 1, "loader": {"cache": [[1]]}})").find("pairs"), std::string::npos);
  EXPECT_NE(complaint(R"({"mica_target": 1, "gpus_known": "yes"})").find("true or false"), std::string::npos);
  EXPECT_NE(complaint(R"({"mica_target": 1, "libraries": "!!"})").find("base64"), std::string::npos);
  EXPECT_NE(complaint(R"({"mica_target": 1, "libraries": "AAAA"})").find("libraries"), std::string::npos);
  EXPECT_NE(complaint("{\"mica_target\": 1, \"libraries\": \"" + packed("soname x\n") + "\"}").find("line 1"),
            std::string::npos);
  EXPECT_EQ(complaint(R"({"mica_target": 1})"), "");
}

TEST(Target, PackedTextIsBounded) {
  const std::string text(10 << 20, 'a');
  const std::string small = packed(text);
  EXPECT_LT(small.size(), 100'000u);
  EXPECT_EQ(unpacked(small, text.size()), text);
  EXPECT_THROW(unpacked(small, text.size() - 1), ReadError);
  EXPECT_THROW(unpacked(small.substr(0, small.size() / 2), text.size()), ReadError);
  for (const std::size_t length : {0, 1, 2, 3, 4, 5})
    EXPECT_EQ(unpacked(packed(text.substr(0, length)), 10), text.substr(0, length));
}

TEST(Report, HoldsNoMarkupOfOthers) {
  FakeSystem system;
  make_system(system, kNewError);
  system.write("/etc/os-release", "PRETTY_NAME=\"<script>alert(1)</script>\"\n");
  const Survey found = survey(system.outlook());
  const std::vector<Judged> judged = {
      {"<img alt=x>", "", {make_verdict({.code = "LOADS", .subject = "<b>", .message = "\"quoted\" & 'more'"})}}};
  const std::string page = report_html("a < b", describe(found), judged);
  for (const char* bad : {"<script", "<img", "<b>\"", "a < b"}) EXPECT_EQ(page.find(bad), std::string::npos) << bad;
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  for (const char* outside : {"http://", "https://", "src=", "@import"})
    EXPECT_EQ(page.find(outside), std::string::npos);
}

TEST(Report, SaysOnceWhatIsTheSameAndErrorsFirst) {
  const auto verdict = [](const char* file, const char* cause, Severity severity) {
    Verdict out = make_verdict({.code = "NEEDED_MISSING",
                                .subject = file,
                                .message = std::string("ImportError: ") + file,
                                .cause = cause,
                                .fix = "install it"});
    out.severity = severity;
    return out;
  };
  const Judged judged = {
      "pkg 1.0",
      "python",
      {verdict("/a/one.so", "a part", Severity::kWarning), verdict("/a/two.so", "libx", Severity::kError),
       verdict("/a/three.so", "libx", Severity::kError), verdict("/a/four.so", "liby", Severity::kError)}};
  const std::string text = report_text({}, {judged}, false);
  EXPECT_LT(text.find("/a/two.so"), text.find("/a/four.so"));
  EXPECT_LT(text.find("/a/four.so"), text.find("/a/one.so")) << text;
  EXPECT_EQ(text.find("/a/three.so"), std::string::npos) << text;
  EXPECT_NE(text.find("and the same of 1 other: three.so"), std::string::npos) << text;
}

TEST(Report, SaysTheSameInTextAndJson) {
  FakeSystem system;
  make_system(system, kOldError);
  const Survey found = survey(system.outlook());
  const auto judged = judge_installed(found, found.pythons[0], environment_of(found, &found.pythons[0]));
  const std::string text = report_text(describe(found), judged, false);
  for (const char* words : {"glibc 2.35", "Ubuntu 22.04.4 LTS", "Python 3.12.4  /opt/conda/bin/python",
                            "torch 2.8.0+cu128, CUDA 12.8, new C++ ABI", "flash-attn 2.8.3", "error TORCH_CXX11_ABI"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(report_text(describe(found), judged, true).find("\x1b[1"), std::string::npos);
  const nlohmann::json survey_json = as_json(found), judged_json = as_json(judged);
  EXPECT_EQ(survey_json["host"]["libc_version"], "2.35");
  EXPECT_EQ(survey_json["pythons"][0]["torch"]["cxx_abi"], "new");
  EXPECT_EQ(survey_json["pythons"][0]["packages"]["flash-attn"], "2.8.3");
  bool has_error = false;
  for (const auto& item : judged_json)
    for (const auto& verdict : item["verdicts"])
      has_error |= verdict["code"] == "TORCH_CXX11_ABI" && verdict["severity"] == "error";
  EXPECT_TRUE(has_error);
}

}  // namespace
}  // namespace doctor
