// SPDX-License-Identifier: Apache-2.0
// The compiled files of one package together: its own libraries first, and parts that it can do without.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "doctor/judge/judge.h"
#include "doctor/judge/own_check.h"
#include "doctor/read/inspect.h"
#include "doctor/read/python/imports.h"
#include "tests/doctor/judge/judged.h"

namespace {

using namespace judged;

// A wheel for Python 3.12 of these binaries (path and contents) and this Python file.
Inspection package(const std::vector<std::pair<std::string, Words>>& binaries, const std::string& python) {
  fixtures::WheelParts parts;
  parts.tag = "cp312-cp312-linux_x86_64";
  parts.files = {{"pkg/__init__.py", python}};
  Inspection out = wheel(parts);
  for (const auto& [path, words] : binaries) {
    Binary& binary = out.wheel->binaries.emplace_back();
    binary.path = path;
    binary.elf = elf_of(words);
  }
  return out;
}

Verdict of(const Inspection& inspection, const std::string& subject) {
  for (const Verdict& verdict : doctor::judge(inspection, Node().target))
    if (verdict.subject == subject) return verdict;
  return {};
}

const Words kCore = {{"libc10.so"}, {kNewError}, {}, {}};
const Words kVideo = {{"libc10.so", "libavutil.so.56"}, {kNewError}, {}, {}};

TEST(Parts, WhatNobodyImportsForCertainMayBeAbsent) {
  const auto pair = [](const std::string& python) {
    return package({{"pkg/_core.so", kCore}, {"pkg/_video4.so", kVideo}}, python);
  };
  const char* lazy =
      "import torch\nfrom pkg import _core\ndef video():\n    import pkg._video4\ntry:\n    from . import _video4\n"
      "except ImportError:\n    pass\n";
  const Verdict absent = of(pair(lazy), "pkg/_video4.so");
  EXPECT_EQ(absent.code, "NEEDED_MISSING");
  EXPECT_EQ(absent.severity, Severity::kWarning);
  EXPECT_EQ(absent.message, "ImportError: libavutil.so.56: cannot open shared object file: No such file or directory");
  EXPECT_NE(absent.cause.find("can be absent"), std::string::npos);
  EXPECT_TRUE(absent.fix.starts_with("nothing, unless you need that part; then: install")) << absent.fix;
  for (const char* python : {"from pkg import _core, _video4\n", "import pkg._video4\n", "from pkg._video4 import f\n",
                             "from pkg import (_core,\n    _video4)\n", "x = 1\n"})
    EXPECT_EQ(of(pair(python), "pkg/_video4.so").severity, Severity::kError) << python;
  // Alone it is all there is; and what torch or CUDA bring is no matter of taste.
  EXPECT_EQ(of(package({{"pkg/_video4.so", kVideo}}, lazy), "pkg/_video4.so").severity, Severity::kError);
  const Words cuda = {{"libc10.so", "libcudart.so.13"}, {kNewError}, {}, {}};
  EXPECT_EQ(of(package({{"pkg/_core.so", kCore}, {"pkg/_video4.so", cuda}}, lazy), "pkg/_video4.so").severity,
            Severity::kError);
}

// xFormers, torchaudio and others open a library of torch's operators in words, and some go on without.
TEST(Parts, ALibraryWhoseFailureIsCaught) {
  const Words cuda = {{"libc10.so", "libcudart.so.13"}, {kNewError}, {}, {}};
  const auto severity = [&](const std::string& python) {
    return of(package({{"pkg/_C.so", cuda}}, python), "pkg/_C.so").severity;
  };
  const std::string load = "def load():\n    torch.ops.load_library(path)\n";
  EXPECT_EQ(severity(load + "try:\n    load()\nexcept OSError as e:\n    problem = e\n"), Severity::kWarning);
  EXPECT_EQ(severity(load), Severity::kWarning);  // when it is asked for
  EXPECT_EQ(severity("try:\n    torch.ops.load_library(path)\nexcept Exception:\n    pass\n"), Severity::kWarning);
  // Without an argument it is a function of another package's, which brings the library.
  EXPECT_EQ(severity("import libpkg\nlibpkg.load_library()\ndef later():\n" + load.substr(load.find("    torch"))),
            Severity::kWarning);
  // The near misses: not caught, caught for something else, caught and passed on; and no word of how it is opened.
  EXPECT_EQ(severity(load + "load()\n"), Severity::kError);
  EXPECT_EQ(severity(load + "try:\n    load()\nexcept KeyError:\n    pass\n"), Severity::kError);
  EXPECT_EQ(severity(load + "try:\n    load()\nexcept OSError as e:\n    raise ImportError('no') from e\n"),
            Severity::kError);
  EXPECT_EQ(severity("import torch\n"), Severity::kError);
}

// No handler helps where the loader ends the process.
TEST(Parts, AFailureThatEndsTheProcess) {
  const Words asks = {{}, {"odd@ODD_1@libodd.so.1"}, {"PyInit__C"}, {}};
  const Words needs = {{"libodd.so.1"}, asks.imports, asks.exports, {}};
  const auto with = [](Words words) {
    words.imports[0] = "nowhere";
    return words;
  };
  const std::string python = "try:\n    from pkg import _C\nexcept ImportError:\n    pass\n";
  EXPECT_EQ(of(package({{"pkg/_C.so", asks}}, python), "pkg/_C.so").severity, Severity::kError);
  EXPECT_EQ(of(package({{"pkg/_C.so", needs}}, python), "pkg/_C.so").severity, Severity::kNote);
  EXPECT_EQ(of(package({{"pkg/_C.so", with(needs)}}, python), "pkg/_C.so").severity, Severity::kWarning);
}

// torchvision goes on without its library, and a moment later registers something for an operator of it.
TEST(Parts, AnOperatorThatTheCaughtLibraryMakes) {
  const Words cuda = {{"libc10.so", "libcudart.so.13"}, {kNewError}, {}, {}};
  const auto severity = [&](const std::string& python, const char* file = "pkg/_C.so") {
    return of(package({{file, cuda}}, python), file).severity;
  };
  const std::string caught = "try:\n    torch.ops.load_library(path)\nexcept OSError:\n    pass\n";
  const auto fake = [](const std::string& name) {
    return "@torch.library.register_fake(\"" + name + "\")\ndef f(x):\n    return x\n";
  };
  EXPECT_EQ(severity(caught + fake("pkg::nms")), Severity::kError);
  EXPECT_NE(of(package({{"pkg/_C.so", cuda}}, caught + fake("pkg::nms")), "pkg/_C.so")
                .cause.find("operator pkg::nms does not exist"),
            std::string::npos);
  // The near misses: another's operator, another library, below a condition, in a function, caught.
  EXPECT_EQ(severity(caught + fake("other::nms")), Severity::kWarning);
  EXPECT_EQ(severity(caught + fake("pkg::nms"), "pkg/image.so"), Severity::kWarning);
  EXPECT_EQ(severity(caught + "if has_ops():\n    torch.library.register_fake(\"pkg::nms\")(f)\n"), Severity::kWarning);
  EXPECT_EQ(severity(caught + "def late():\n    torch.library.register_fake(\"pkg::nms\")(f)\n"), Severity::kWarning);
  EXPECT_EQ(
      severity(caught + "try:\n    torch.library.register_fake(\"pkg::nms\")(f)\nexcept RuntimeError:\n    pass\n"),
      Severity::kWarning);
  EXPECT_EQ(severity(caught + "try:\n    torch.library.register_fake(\"pkg::nms\")(f)\nexcept OSError:\n    pass\n"),
            Severity::kError);
}

// TorchCodec tries one library after the other, catches each failure, and raises when there is none left; FBGEMM raises
// in a function what it caught, unless it is told not to.
TEST(Parts, NoneOfTheLibrariesLoads) {
  const Words cuda = {{"libc10.so", "libcudart.so.13"}, {kNewError}, {}, {}};
  const auto severity = [&](const std::string& python, const Words& other) {
    return of(package({{"pkg/libone4.so", cuda}, {"pkg/libone5.so", other}}, python), "pkg/libone4.so").severity;
  };
  const std::string each =
      "def load():\n    for version in (5, 4):\n        try:\n            torch.ops.load_library(path(version))\n"
      "            return\n        except Exception as e:\n            problems.append(e)\n";
  EXPECT_EQ(severity(each + "    raise RuntimeError(problems)\nload()\n", cuda), Severity::kError);
  // The near misses: one that loads; nothing is raised in the end, or nobody asks.
  EXPECT_EQ(severity(each + "    raise RuntimeError(problems)\nload()\n", kCore), Severity::kWarning);
  EXPECT_EQ(severity(each + "    warn(problems)\nload()\n", cuda), Severity::kWarning);
  EXPECT_EQ(severity(each + "    raise RuntimeError(problems)\n", cuda), Severity::kWarning);
  const std::string told =
      "def load(name, no_throw=False):\n    try:\n        torch.ops.load_library(name)\n    except Exception as "
      "error:\n"
      "        log(error)\n        if not no_throw:\n            raise error\n";
  EXPECT_EQ(severity(told + "for name in names:\n    load(name)\n", cuda), Severity::kError);
  EXPECT_EQ(severity(told + "try:\n    load(name)\nexcept OSError:\n    pass\n", cuda), Severity::kWarning);
}

TEST(Parts, OneLibraryForEachCuda) {
  const Words plain = {{"libc.so.6"}, {}, {}, {}}, old_cuda = {{"libcudart.so.11.0"}, {}, {}, {}};
  const std::string python = "import ctypes\n";
  const auto old_one = [&](const char* other, const char* name = "pkg/libpkg_cuda118.so") {
    return of(package({{other, plain}, {name, old_cuda}}, python), name);
  };
  const Verdict aside = old_one("pkg/libpkg_cpu.so");
  EXPECT_EQ(aside.code, "CUDA_MAJOR");
  EXPECT_EQ(aside.severity, Severity::kWarning);
  EXPECT_EQ(aside.message, "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory");
  EXPECT_NE(aside.cause.find("opens the one that fits; libpkg_cpu.so loads here."), std::string::npos) << aside.cause;
  EXPECT_TRUE(aside.fix.starts_with("nothing, unless you need this one; then: take the wheel for cu12")) << aside.fix;
  EXPECT_EQ(old_one("pkg/libpkg_cu12.so").severity, Severity::kWarning);
  // Near misses: another name, another folder, a kind without a number, one that does not load, one that is imported.
  for (const char* other : {"pkg/libother_cpu.so", "other/libpkg_cpu.so", "pkg/libpkg_cuda.so", "pkg/libpkg.so"})
    EXPECT_EQ(old_one(other).severity, Severity::kError) << other;
  EXPECT_EQ(old_one("pkg/libpkg_cpu.so", "pkg/libpkg_cuda11x.so").severity, Severity::kError);
  const auto both = [&](const std::string& text, const Words& other) {
    return of(package({{"pkg/libpkg_cpu.so", other}, {"pkg/libpkg_cuda118.so", old_cuda}}, text),
              "pkg/libpkg_cuda118.so");
  };
  EXPECT_EQ(both(python, {{"libgone.so"}, {}, {}, {}}).severity, Severity::kError);
  EXPECT_EQ(both("from pkg import libpkg_cuda118\n", plain).severity, Severity::kError);
}

// NVIDIA's libraries from pip: no Python file, and some of them want the driver.
TEST(Parts, LibrariesForOtherPackagesToOpen) {
  const Words plain = {{"libc.so.6"}, {}, {}, {}}, driver = {{"libcuda.so.1"}, {}, {}, {}};
  const auto judged = [](std::vector<std::pair<std::string, Words>> binaries, bool has_python = false) {
    Inspection inspection = package(binaries, "import ctypes\n");
    if (!has_python) inspection.wheel->words = {};
    return of(inspection, "nvidia/engine/lib/libengine.so.9");
  };
  const Verdict apart = judged({{"nvidia/engine/lib/libengine.so.9", driver}});
  EXPECT_EQ(apart.code, "NEEDED_MISSING");
  EXPECT_EQ(apart.severity, Severity::kWarning);
  EXPECT_NE(apart.cause.find("comes with NVIDIA's driver"), std::string::npos) << apart.cause;
  EXPECT_EQ(apart.fix.find("install the package"), std::string::npos) << apart.fix;
  const Words gone = {{"libgone.so"}, {}, {}, {}};
  EXPECT_EQ(judged({{"nvidia/engine/lib/libengine.so.9", gone}, {"nvidia/engine/lib/libother.so.9", plain}}).severity,
            Severity::kWarning);
  // The near misses: nothing of it loads; Python files that do not say how it is opened.
  EXPECT_EQ(judged({{"nvidia/engine/lib/libengine.so.9", gone}}).severity, Severity::kError);
  EXPECT_EQ(judged({{"nvidia/engine/lib/libengine.so.9", driver}}, true).severity, Severity::kError);
}

// eccodeslib: an __init__.py that opens nothing, and libraries for others.
TEST(Parts, LibrariesThatTheImportNeverOpens) {
  const Words gone = {{"libgone.so"}, {}, {}, {}};
  const auto severity = [&](const std::string& python) {
    return of(package({{"pkg/lib/libpkg.so", gone}}, python), "pkg/lib/libpkg.so").severity;
  };
  EXPECT_EQ(severity("__version__ = '1.0'\n"), Severity::kWarning);
  EXPECT_EQ(severity("import os\nfrom . import other\n"), Severity::kWarning);
  // The near misses: something is there that could open it.
  EXPECT_EQ(severity("import ctypes\n"), Severity::kError);
  EXPECT_EQ(severity("from cffi import FFI\n"), Severity::kError);
}

// Named like a module, and none: it stops the import that imports it, and no other (memray's, for a debugger).
TEST(Parts, AModuleWithoutItsFunction) {
  const char* file = "pkg/_inject.cpython-312-x86_64-linux-gnu.so";
  const auto judged = [&](const std::string& python, Words words) {
    return of(package({{file, words}}, python), file);
  };
  const Words none = {{}, {"PyLong_FromLong"}, {}, {}};
  const Verdict apart = judged("def attach():\n    inject(pkg.__path__)\n", none);
  EXPECT_EQ(apart.code, "SO_NO_PYINIT");
  EXPECT_EQ(apart.severity, Severity::kWarning);
  const Verdict stops = judged("from . import _inject\n", none);
  EXPECT_EQ(stops.code, "SO_NO_PYINIT");
  EXPECT_EQ(stops.severity, Severity::kError);
  EXPECT_EQ(judged("from . import _inject\n", {{}, {"PyLong_FromLong"}, {"PyInit__inject"}, {}}).code, "LOADS");
}

// apsw: the package's own file is a compiled one.
TEST(Parts, ACompiledPackage) {
  const char* file = "apsw/__init__.cpython-312-x86_64-linux-gnu.so";
  const Words own = {{}, {"PyLong_FromLong"}, {"PyInit_apsw"}, {}};
  EXPECT_EQ(of(package({{file, own}}, "import apsw\n"), file).code, "LOADS");
  const Words broken = {{"libgone.so"}, {"PyLong_FromLong"}, {"PyInit_apsw"}, {}};
  EXPECT_EQ(of(package({{file, broken}}, "import apsw\n"), file).severity, Severity::kError);
}

TEST(Parts, OwnLibrariesThatThePackageOpensFirst) {
  const Words module = {{"libc10.so", "libpkg_video6.so"}, {kNewError, "pkg_play"}, {}, {}};
  const Words library = {{"libc10.so"}, {kNewError}, {"pkg_play"}, {}, "libpkg_video6.so"};
  const auto both = [&](const Words& own, const std::string& python) {
    return package({{"pkg/lib/_video6.so", module}, {"pkg/lib/libpkg_video6.so", own}}, python);
  };
  const char* opens = "def load(n):\n    torch.ops.load_library(folder / f\"libpkg_video{n}.so\")\n";
  const Verdict loads = of(both(library, opens), "pkg/lib/_video6.so");
  EXPECT_EQ(loads.code, "LOADS");
  ASSERT_FALSE(loads.evidence.empty());
  EXPECT_EQ(loads.evidence.back(), "opened before it by its package: pkg/lib/libpkg_video6.so");
  // spglib looks through its folder: no name is in the text.
  EXPECT_EQ(of(both(library, "cdll.LoadLibrary(os.path.join(folder, found))\n"), "pkg/lib/_video6.so").code, "LOADS");
  // Without a word about it, the loader's own search decides.
  const Verdict alone = of(both(library, "import torch\n"), "pkg/lib/_video6.so");
  EXPECT_EQ(alone.message, "ImportError: libpkg_video6.so: cannot open shared object file: No such file or directory");
  // What cannot be opened itself is of no help, and leaves nothing loaded behind.
  const Words broken = {{"libc10.so", "libavutil.so.58"}, {kNewError}, {"pkg_play"}, {}, "libpkg_video6.so"};
  EXPECT_EQ(of(both(broken, opens), "pkg/lib/_video6.so").message, alone.message);
  EXPECT_NE(of(both(broken, opens), "pkg/lib/libpkg_video6.so").message.find("libavutil.so.58"), std::string::npos);
  const Inspection three =
      package({{"pkg/_core.so", kCore}, {"pkg/lib/_video6.so", module}, {"pkg/lib/libpkg_video6.so", broken}},
              std::string("import torch\n") + opens);
  EXPECT_EQ(of(three, "pkg/lib/_video6.so").fix,
            "nothing, unless you need that part; then: what libpkg_video6.so needs (see its own verdict)");
  // Opened first, its symbols count as those of a needed library do: a missing one is named.
  const Words other = {{"libc10.so"}, {kNewError}, {"pkg_stop"}, {}, "libpkg_video6.so"};
  EXPECT_NE(of(both(other, opens), "pkg/lib/_video6.so").message.find("undefined symbol: pkg_play"), std::string::npos);
}

// Of one build: where one file is for another torch, the others are, and may crash.
TEST(Parts, FilesOfOneBuildAreForOneTorch) {
  const Words other = {{"libc10.so"}, {kNewError, "_ZN3c1012no_such_nameEv"}, {}, {}};
  const std::string python = "try:\n    from . import _new\nexcept ImportError:\n    pass\nfrom . import _core\n";
  EXPECT_EQ(of(package({{"pkg/_core.so", kCore}, {"pkg/_new.so", kCore}}, python), "pkg/_core.so").code, "LOADS");
  const Inspection mixed = package({{"pkg/_core.so", kCore}, {"pkg/_new.so", other}}, python);
  EXPECT_EQ(of(mixed, "pkg/_new.so").code, "TORCH_SIGNATURE");
  EXPECT_EQ(of(mixed, "pkg/_core.so").code, "TORCH_OTHER_RELEASE");
}

// sounddevice has no compiled file, and asks for PortAudio by ctypes.util.find_library.
TEST(Parts, ALibraryOfTheSystemThatPythonLooksFor) {
  using Names = std::vector<std::pair<std::string, std::string>>;
  const auto last_error = [](const std::string& python, const Names& cache) -> Verdict {
    fixtures::WheelParts parts;
    parts.tag = "py3-none-any";
    parts.files = {{"pkg/__init__.py", "from ctypes.util import find_library\n" + python}};
    Node node;
    node.target.loader.cache = cache;
    Verdict out;
    for (const Verdict& verdict : doctor::judge(wheel(parts), node.target))
      if (verdict.severity == Severity::kError || verdict.code == "CANNOT_TELL") out = verdict;
    return out;
  };
  const Names without = {{"libc.so.6", "/lib/libc.so.6"}}, with = {{"libaudio.so.2", "/lib/libaudio.so.2"}};
  const std::string stops =
      "path = find_library('audio')\nif path is None:\n    raise OSError('audio library not found')\n";
  const Verdict verdict = last_error(stops, without);
  EXPECT_EQ(verdict.code, "NEEDED_MISSING");
  EXPECT_EQ(verdict.message, "ctypes.util.find_library(\"audio\") is None");
  EXPECT_EQ(last_error(stops, with).message, "");
  EXPECT_EQ(last_error(stops, {}).message, "") << "a system of whose libraries nothing is known";
  EXPECT_EQ(last_error("path = find_library('audio')\nlib = path and ctypes.CDLL(path)\n", without).message, "");
  EXPECT_EQ(last_error("path = find_library('audio')\nif OTHER:\n    raise OSError('no')\n", without).code,
            "CANNOT_TELL");
  EXPECT_EQ(last_error("import ctypes\nNAME = 'libaudio.so.2'\nlib = ctypes.CDLL(NAME)\n", without).message,
            "OSError: libaudio.so.2: cannot open shared object file: No such file or directory");
  EXPECT_EQ(last_error("import ctypes\nlib = ctypes.CDLL(NAME)\n", without).code, "CANNOT_TELL");
}

TEST(Parts, AModuleOfPybind11ForAnotherPython) {
  const Words words = {{"libc.so.6"}, {"malloc@GLIBC_2.17@libc.so.6"}, {"PyInit__core"}, {}};
  const auto judged = [&](const std::string& python) {
    Inspection inspection = package({{"pkg/_core.so", words}}, python);
    inspection.wheel->binaries[0].pybind11_python = {{3, 9}};
    return of(inspection, "pkg/_core.so");
  };
  const Verdict verdict = judged("from . import _core\n");
  EXPECT_EQ(verdict.code, "PY_SYMBOL");
  EXPECT_EQ(verdict.severity, Severity::kError);
  EXPECT_TRUE(verdict.message.starts_with("ImportError: Python version mismatch: module was compiled for Python 3.9"));
  EXPECT_EQ(judged("try:\n    from . import _core\nexcept ImportError:\n    pass\n").severity, Severity::kWarning);
  // By the bare name, after its folder was added to the path.
  EXPECT_EQ(judged("sys.path.append(folder)\nimport _core\n").severity, Severity::kError);
  EXPECT_EQ(judged("sys.path.append(folder)\nimport _other\n").severity, Severity::kWarning);
}

// An empty file in the place of a library that another one needs: the loader's words.
TEST(Parts, ALibraryOfTheWheelThatIsEmpty) {
  Inspection inspection =
      package({{"pkg/_core.so", {{"libc10.so", "libown.so.1"}, {kNewError}, {}, {}}}}, "from . import _core\n");
  inspection.wheel->binaries[0].elf.runpath = "$ORIGIN/lib";
  EXPECT_EQ(of(inspection, "pkg/_core.so").code, "NEEDED_MISSING");
  inspection.wheel->entries.push_back({"pkg/lib/libown.so.1", 0, 0, false, false, ""});
  const Verdict verdict = of(inspection, "pkg/_core.so");
  EXPECT_EQ(verdict.code, "ELF_DAMAGED");
  EXPECT_EQ(verdict.message, "ImportError: /site/pkg/lib/libown.so.1: file too short");
}

TEST(Parts, ALibraryThatAProgramNeedsIsJudgedToo) {
  const Words library = {{"libc.so.6"}, {"malloc@GLIBC_2.17@libc.so.6"}, {"pkg_open"}, {}, "libpkg.so.0"};
  const Words user = {{"libpkg.so.0"}, {"pkg_open"}, {}, {}};
  Inspection both = package({{"pkg/bin/pkg", user}, {"pkg/lib/libpkg.so.0", library}}, "import ctypes\n");
  both.wheel->binaries[0].elf.interpreter = "/lib/ld-linux-x86-64.so.2";
  EXPECT_EQ(of(both, "pkg/lib/libpkg.so.0").code, "LOADS");
  // What another library needs is met through that one.
  both.wheel->binaries[0].elf.interpreter = "";
  EXPECT_EQ(of(both, "pkg/lib/libpkg.so.0").subject, "");
}

TEST(Parts, WordsOfPythonFiles) {
  doctor::PythonWords words;
  doctor::collect_words(
      "pkg/a.py",
      "import a.b, c as d  # e\nfrom .x import (y,  # z\n  w as v,\n)\nfrom q import r\n  import hidden\nimportant = "
      "1\n"
      "path = 'libone.so'\nname = f\"libtwo{n}\"\nglib = calibrate(lib)\n",
      words);
  EXPECT_EQ(words.certain_imports, (std::set<std::string>{"b", "c", "q", "r", "w", "x", "y"}));
  EXPECT_EQ(words.libraries, (std::set<std::string>{"libone", "libtwo"}));
}

TEST(Parts, ForAnotherPythonAndNeverAskedFor) {
  const char* other = "pkg/_extra.cpython-310-x86_64-linux-gnu.so";
  const auto severity = [&](const std::string& python) {
    const Words extra = {{"libc10.so"}, {kNewError}, {"PyInit__extra"}, {}};
    return of(package({{"pkg/_core.so", kCore}, {other, extra}}, python), other);
  };
  EXPECT_EQ(severity("from . import _extra\n").code, "SO_SOABI");
  EXPECT_EQ(severity("from . import _extra\n").severity, Severity::kError);
  EXPECT_EQ(severity("def f():\n    from . import _extra\n").severity, Severity::kWarning);
  // nvImageCodec has one for each Python.
  const Words extra = {{"libc10.so"}, {kNewError}, {"PyInit__extra"}, {}};
  for (const char* beside : {"pkg/_extra.cpython-312-x86_64-linux-gnu.so", "pkg/_extra.abi3.so", "pkg/_extra.so"}) {
    const Inspection both = package({{other, extra}, {beside, extra}}, "from . import _extra\n");
    EXPECT_EQ(of(both, other).subject, "") << beside;
    EXPECT_EQ(of(both, beside).code, "LOADS") << beside;
  }
  for (const char* beside : {"pkg/_extra.cpython-313-x86_64-linux-gnu.so", "pkg/sub/_extra.abi3.so"})
    EXPECT_EQ(of(package({{other, extra}, {beside, extra}}, "from . import _extra\n"), other).severity,
              Severity::kError)
        << beside;
}

// torchaudio's own comparison, by the toolkit that its GPU code shows where its version has no label.
TEST(Parts, TheCudaThatGpuCodeWasCompiledBy) {
  const auto codes = [](const char* version, int isa_major, int isa_minor, const char* torch_cuda) {
    doctor::FatbinEntry ptx;
    ptx.code = doctor::GpuCode::kPtx;
    ptx.ptx_isa = {{isa_major, isa_minor}};
    Binary binary;
    binary.fatbins.emplace_back();
    binary.fatbins[0].entries = {ptx};
    doctor::TorchFacts torch;
    torch.version = "2.11.0";
    torch.cuda_version = torch_cuda;
    std::vector<Verdict> out;
    doctor::judge_own_check("torchaudio", version, {binary}, torch, "pip", out);
    return out.size();
  };
  EXPECT_EQ(codes("2.11.0", 9, 0, "13.2"), 1u);
  EXPECT_EQ(codes("2.11.0", 9, 0, "13.0"), 0u);
  EXPECT_EQ(codes("2.11.0+cu132", 9, 0, "13.2"), 0u);  // the label goes before
  EXPECT_EQ(codes("2.14.0", 9, 0, "13.2"), 0u);
  EXPECT_EQ(codes("2.14.0", 8, 8, "13.2"), 1u);
  EXPECT_EQ(codes("2.11.0", 9, 0, ""), 0u);
}

TEST(Parts, OneLibraryForEachTorch) {
  const auto all = [](const std::vector<std::string>& releases, const char* name) {
    std::vector<std::pair<std::string, Words>> binaries;
    for (const std::string& release : releases) binaries.push_back({name + ("_pytorch_" + release + ".so"), kCore});
    return doctor::judge(package(binaries, "import torch\n"), Node().target);
  };
  const auto worst = [](const std::vector<Verdict>& verdicts) {
    Severity out = Severity::kNote;
    for (const Verdict& v : verdicts)
      if (v.code != "WHEEL_TAG_VS_ELF" && v.code != "RECORD_BAD") out = std::max(out, v.severity);
    return out;
  };
  const std::vector<Verdict> none = all({"2.0.0", "2.4.0"}, "pkg/libgraphbolt");
  EXPECT_TRUE(std::any_of(none.begin(), none.end(), [](const Verdict& v) {
    return v.code == "VARIANT_MISSING" && v.severity == Severity::kError &&
           v.message == "FileNotFoundError: Cannot find pkg/libgraphbolt_pytorch_2.8.0.so";
  }));
  EXPECT_EQ(worst(all({"2.0.0", "2.8.0"}, "pkg/libgraphbolt")), Severity::kNote);
  EXPECT_EQ(worst(all({"2.0.0"}, "pkg/libother")), Severity::kWarning);
}

// Twenty thousand modules took minutes when each had a process of its own; ten times as many take ten times as long.
TEST(Parts, TimeIsLinearInTheNumberOfFiles) {
  const auto seconds = [](std::size_t count) {
    std::vector<std::pair<std::string, Words>> binaries;
    for (std::size_t i = 0; i < count; ++i) binaries.push_back({"pkg/m" + std::to_string(i) + ".so", kCore});
    const Inspection many = package(binaries, "import torch\n");
    const std::clock_t begun = std::clock();
    EXPECT_GE(doctor::judge(many, Node().target).size(), count);
    return double(std::clock() - begun) / CLOCKS_PER_SEC;
  };
  seconds(100);  // what is read once
  const double few = seconds(400), many = seconds(4000);
  EXPECT_LT(many, 40 * std::max(few, 0.001)) << few << " s for 400, " << many << " s for 4000";
}

}  // namespace
