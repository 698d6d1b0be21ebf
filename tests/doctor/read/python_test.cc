// SPDX-License-Identifier: Apache-2.0
// Python files by their text: statements, outlines, and what an import leads to.
#include <gtest/gtest.h>

#include "doctor/read/python/condition.h"
#include "doctor/read/python/import_run.h"
#include "doctor/read/python/statements.h"

namespace {

using doctor::ImportFailure;
using doctor::ImportOutcome;
using doctor::Outline;
using doctor::Truth;

std::vector<std::string> statements(std::string_view source) {
  std::vector<std::string> out;
  doctor::each_statement(source, [&](const doctor::Statement& s) {
    out.push_back(std::to_string(s.indent) + " " + s.text);
    return true;
  });
  return out;
}

TEST(PythonText, Statements) {
  EXPECT_EQ(statements("import a  # b\n\nx = '''import c\nimport d''' + f(\n    1,\n\t2)\nif y: import e; z()\n"),
            (std::vector<std::string>{"0 import a", "0 x = \"\" + f( 1, 2)", "0 if y:", "1 import e", "1 z()"}));
  EXPECT_EQ(statements("def f():\n\timport a, \\\n      b\n"),
            (std::vector<std::string>{"0 def f():", "8 import a, b"}));
  EXPECT_EQ(statements("x = \"a#b\"; y = 'it\\'s (' # c\nz = {'k': 1}\n"),
            (std::vector<std::string>{"0 x = \"\"", "0 y = \"\"", "0 z = {\"k\": 1}"}));
  EXPECT_EQ(statements("f(\n"), (std::vector<std::string>{"0 f("}));
  EXPECT_EQ(statements("'''never ends\nimport a\n"), (std::vector<std::string>{"0 \"\""}));
}

TEST(PythonText, Conditions) {
  const auto truth = [](std::string_view text) { return doctor::truth_of(text, {3, 11}); };
  for (const char* text :
       {"TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == \"__main__\"", "sys.platform == \"win32\"",
        "os.name == \"nt\"", "sys.version_info < (3, 8)", "sys.version_info[0] == 2", "sys.version_info >= (3, 12)",
        "not sys.version_info >= (3,)", "x and sys.platform == \"darwin\""})
    EXPECT_EQ(truth(text), Truth::kFalse) << text;
  for (const char* text :
       {"sys.version_info >= (3, 8)", "sys.version_info > (3,)", "sys.platform.startswith(\"linux\")",
        "sys.platform != \"win32\"", "sys.version_info.major >= 3", "True"})
    EXPECT_EQ(truth(text), Truth::kTrue) << text;
  for (const char* text : {"torch.cuda.is_available()", "not torch.cuda.is_available()", "hasattr(a, \"b\")",
                           "os.environ.get(\"PKG_CUDA\")"})
    EXPECT_EQ(truth(text), Truth::kGuard) << text;
  for (const char* text : {"USE_ROCM", "x or y", "sys.version_info", "os.environ.get(\"A\") != \"1\""})
    EXPECT_EQ(truth(text), Truth::kUnknown) << text;
}

// Python files by module, and compiled modules that cannot be loaded.
class Modules : public doctor::ModuleFinder {
 public:
  void add(const std::string& path, std::string_view source) {
    outlines_.insert_or_assign(doctor::module_of_path(path), doctor::outline_of(path, source));
  }
  std::map<std::string, ImportFailure> broken;
  std::set<std::string> absent;  // libraries of the system
  std::set<std::string> absent_packages;
  std::set<std::string> bringing;  // packages with libraries of their own
  bool brings_libraries(const std::string& package) override { return bringing.count(package) > 0; }
  bool is_absent(const std::string& package) override { return absent_packages.count(package) > 0; }
  bool has_system_library(const std::string& name) override { return !absent.count(name); }
  bool opens_by_name(const std::string& file) override { return !absent.count(file); }
  const Outline* python(const std::string& module) override {
    const auto found = outlines_.find(module);
    return found == outlines_.end() ? nullptr : &found->second;
  }
  std::optional<ImportFailure> compiled(const std::string& module) override {
    const auto found = broken.find(module);
    if (found == broken.end()) return {};
    return found->second;
  }

 private:
  std::map<std::string, Outline> outlines_;
};

TEST(PythonText, WhatAnImportReaches) {
  Modules modules;
  modules.add(
      "pkg/__init__.py",
      "\"\"\"Text with import hidden\nimport hidden_too\n\"\"\"\nimport torch\nfrom . import ops\n"
      "try:\n    from pkg import _fast\nexcept ImportError:\n    import pkg.instead\nelse:\n    import pkg.after\n"
      "if USE_ROCM:\n    from .triton import f\nelse:\n    import pkg_cuda as gpu\n"
      "if torch.cuda.is_available():\n    import pkg._gpu\n"
      "def later():\n    import pkg._late\n"
      "def now():\n    import pkg.soon\n    return 1\n    import pkg.never_again\nx = now()\n"
      "class Table:\n    import pkg.in_class\n    def method(self):\n        import pkg.method\n"
      "    def __init__(self):\n        import pkg.made\ntable = Table()\n"
      "mod = importlib.import_module('.by_name', __package__)\n"
      "from .names import (a,  # one\n    b,\n    c)\nfrom .two import x, \\\n    y\nimport pkg.last\n");
  modules.add("pkg/ops/__init__.py",
              "from ..core._C import f\nfrom .one import *\nfrom ..help import start\nstart()\n");
  modules.add("pkg/help.py", "def start():\n    import pkg.started\n");
  modules.add("pkg/never.py", "import pkg._never\n");
  modules.add("pkg/two.py", "import os.path as p, sys\n");
  const std::set<std::string> reached = doctor::run_imports({"pkg"}, modules).reached;
  for (const char* name : {"pkg", "torch", "pkg.ops", "pkg.core._C", "pkg.ops.one", "pkg_cuda", "pkg.triton",
                           "pkg.after", "pkg.soon", "pkg.in_class", "pkg.made", "pkg.by_name", "pkg.started",
                           "pkg.names", "pkg.two", "pkg.last", "os", "os.path", "sys"})
    EXPECT_TRUE(reached.count(name)) << name;
  for (const char* name : {"hidden", "hidden_too", "pkg._gpu", "pkg._late", "pkg.never", "pkg._never", "pkg.method",
                           "pkg.never_again", "pkg.instead"})
    EXPECT_FALSE(reached.count(name)) << name;
  EXPECT_EQ(doctor::module_of_path("pkg/ops/_C.cpython-312-x86_64-linux-gnu.so"), "pkg.ops._C");
  EXPECT_EQ(doctor::module_of_path("pkg/ops/__init__.py"), "pkg.ops");
}

// What stops an import, and what is caught on the way.
TEST(PythonText, WhatStopsAnImport) {
  const auto stops = [](const std::string& python, ImportFailure failure = ImportFailure::kImportError) {
    Modules modules;
    modules.add("pkg/__init__.py", python);
    modules.add("pkg/other.py", "from pkg import _C\n");
    modules.broken["pkg._C"] = failure;
    return doctor::run_imports({"pkg"}, modules).stopping.count("pkg._C") == 1;
  };
  const std::string attempt = "try:\n    from . import _C\nexcept ";
  EXPECT_TRUE(stops("import pkg._C\n"));
  EXPECT_TRUE(stops("from .other import f\n"));
  EXPECT_FALSE(stops("def f():\n    import pkg._C\n"));
  EXPECT_FALSE(stops(attempt + "ImportError:\n    _C = None\n"));
  EXPECT_FALSE(stops(attempt + "(ImportError, OSError):\n    pass\n"));
  EXPECT_FALSE(stops("try:\n    import pkg.other\nexcept Exception:\n    pass\n"));
  EXPECT_FALSE(stops("with contextlib.suppress(ImportError):\n    import pkg._C\n"));
  // Caught, and passed on: as it is, as another, by a function, or later on.
  EXPECT_TRUE(stops(attempt + "ImportError as e:\n    raise ImportError('no _C') from e\n"));
  EXPECT_TRUE(stops(attempt + "ImportError:\n    print('sorry')\n    raise\n"));
  EXPECT_TRUE(stops("def stop(e):\n    raise ImportError(e)\n" + attempt + "ImportError as e:\n    stop(e)\n"));
  EXPECT_TRUE(stops(attempt + "Exception as e:\n    kept = e\nif kept:\n    raise kept\n"));
  EXPECT_FALSE(stops(attempt + "Exception as e:\n    kept = e\nif kept:\n    raise other\n"));
  EXPECT_FALSE(stops(attempt + "ImportError as e:\n    if STRICT:\n        raise ImportError('no _C') from e\n"));
  // Below a condition that is not known, what is imported is taken to be, and a handler passes on what it gets.
  const std::string below =
      "if UNIVERSAL:\n    x = 1\nelse:\n    try:\n        from . import _C\n    except ImportError:\n";
  EXPECT_TRUE(stops(below + "        print('sorry')\n        raise\n"));
  EXPECT_FALSE(stops(below + "        if STRICT:\n            raise\n"));
  EXPECT_FALSE(stops(below + "        pass\n    if STRICT:\n        raise OSError\n"));
  // A handler of another kind.
  EXPECT_TRUE(stops(attempt + "ModuleNotFoundError:\n    pass\n"));
  EXPECT_FALSE(stops(attempt + "ModuleNotFoundError:\n    pass\n", ImportFailure::kModuleNotFound));
  EXPECT_TRUE(stops(attempt + "ImportError:\n    pass\n", ImportFailure::kValueError));
  EXPECT_TRUE(stops(attempt + "KeyError:\n    pass\nexcept ImportError:\n    import pkg._C\n"));
  // A function that returns, or raises only when nothing was found.
  EXPECT_TRUE(
      stops("def f():\n    for p in q:\n        if p:\n            return p\n    raise OSError\n"
            "try:\n    f()\n    import pkg._C\nexcept OSError:\n    pass\n"));
}

// Libraries of the system that ctypes.util.find_library is asked for: "stops", "perhaps", or "" where it goes on.
TEST(PythonText, LibrariesOfTheSystem) {
  const auto outcome = [](const std::string& python, bool is_there) -> std::string {
    Modules modules;
    modules.add("pkg.py", "from ctypes.util import find_library as _find\nimport ctypes.util\n" + python);
    if (!is_there) modules.absent = {"audio", "audio2"};
    const ImportOutcome out = doctor::run_imports({"pkg"}, modules);
    return out.lacking.count("audio") ? "stops" : out.perhaps_lacking.count("audio") ? "perhaps" : "";
  };
  const std::string loop =
      "for name in (\n        'audio',  # here\n        'audio2'):\n    name = _find(name)\n    if name is not None:\n"
      "        break\nelse:\n    raise OSError('none found')\n";
  const auto below = [](const std::string& head, const std::string& text) {
    std::string out = head + "    ";
    for (const char c : text.substr(0, text.size() - 1)) out += c == '\n' ? std::string("\n    ") : std::string(1, c);
    return out + "\n";
  };
  for (const std::string& text :
       {loop, std::string("path = ctypes.util.find_library('audio')\nif path is None:\n    raise ImportError('no')\n"),
        std::string("path = _find('audio')\nif not path:\n    raise ImportError('no')\n"),
        below("try:\n", loop) +
            "except OSError:\n    if platform.system() == 'Darwin':\n        p = 1\n    else:\n        raise\n",
        std::string("def load():\n    path = _find('audio')\n    if path:\n        return path\n    raise "
                    "OSError('no')\nload()\n")}) {
    EXPECT_EQ(outcome(text, false), "stops") << text;
    EXPECT_EQ(outcome(text, true), "") << text;
  }
  for (const std::string& text :
       {below("try:\n", loop) + "except OSError:\n    lib = None\n",
        std::string("path = _find('audio')\nif path:\n    lib = ctypes.CDLL(path)\n"),
        std::string("def later():\n    path = _find('audio')\n    if not path:\n        raise OSError('no')\n"),
        std::string("path = _find(name)\nif not path:\n    raise OSError('no')\n")})
    EXPECT_EQ(outcome(text, false), "") << text;
  // Others are tried after it.
  EXPECT_EQ(outcome("def names():\n    yield _find('audio')\n    yield 'libaudio.so.1'\n"
                    "def load():\n    for n in names():\n        try:\n            return ctypes.CDLL(n)\n"
                    "        except OSError:\n            pass\n    else:\n        raise ImportError('no')\nload()\n",
                    false),
            "perhaps");
  // A name that is not in the text, and the last word is `raise`: libusb1.
  Modules modules;
  modules.add("pkg/__init__.py",
              "from ctypes.util import find_library\ndef load(name):\n    path = find_library(name)\n"
              "    if path is not None:\n        return path\n    raise OSError('no')\nload(NAME)\n");
  EXPECT_EQ(doctor::run_imports({"pkg"}, modules).perhaps_lacking, (std::set<std::string>{""}));
  // In a package that is imported on the way and brings libraries, it is one of those.
  modules.add("other.py", "import pkg\n");
  modules.bringing = {"pkg"};
  EXPECT_EQ(doctor::run_imports({"other"}, modules).perhaps_lacking, (std::set<std::string>{}));
}

// Opened by its name alone: by ctypes as a file, by cffi also as find_library knows it.
TEST(PythonText, LibrariesOfTheSystemByName) {
  const auto outcome = [](const std::string& python) {
    Modules modules;
    modules.add("pkg.py", "import ctypes, cffi\n" + python);
    modules.absent = {"pulse", "libpulse.so", "libpulse.so.0"};
    const ImportOutcome out = doctor::run_imports({"pkg"}, modules);
    return out.lacking.empty() ? std::string() : *out.lacking.begin();
  };
  EXPECT_EQ(outcome("lib = ctypes.CDLL('libpulse.so.0')\n"), "libpulse.so.0");
  EXPECT_EQ(outcome("lib = ctypes.cdll.LoadLibrary(\"libpulse.so.0\")\n"), "libpulse.so.0");
  EXPECT_EQ(outcome("lib = ffi.dlopen('pulse')\n"), "pulse");
  EXPECT_EQ(outcome("try:\n    lib = ffi.dlopen('pulse')\nexcept OSError:\n    lib = ffi.dlopen('libpulse.so')\n"),
            "libpulse.so");
  // The near misses: there; caught; asked for later, or perhaps; a path, or a part of one.
  EXPECT_EQ(outcome("lib = ctypes.CDLL('libc.so.6')\n"), "");
  EXPECT_EQ(outcome("try:\n    lib = ffi.dlopen('pulse')\nexcept OSError:\n    lib = None\n"), "");
  EXPECT_EQ(outcome("def f():\n    return ctypes.CDLL('libpulse.so.0')\n"), "");
  EXPECT_EQ(outcome("if WANTED:\n    lib = ctypes.CDLL('libpulse.so.0')\n"), "");
  EXPECT_EQ(outcome("lib = ctypes.CDLL(os.path.join(folder, 'libpulse.so.0'))\n"), "");
  EXPECT_EQ(outcome("lib = ctypes.CDLL('libpulse.so.0' if linux else 'pulse.dll')\n"), "");
  EXPECT_EQ(outcome("lib = ctypes.CDLL('pulse')\n"), "");
}

// By names that variables hold, as OpenSlide and pyvips do: "stops libx.so", "perhaps libx.so", or "" where it goes on.
TEST(PythonText, LibrariesOfTheSystemByVariables) {
  const auto outcome = [](const std::string& python) -> std::string {
    Modules modules;
    modules.add("pkg.py", "import ctypes, cffi, os, sys\n" + python);
    modules.absent = {"vips", "libvips.so", "libvips.so.42"};
    modules.absent_packages = {"_libvips"};
    const ImportOutcome out = doctor::run_imports({"pkg"}, modules);
    if (!out.lacking.empty()) return "stops " + *out.lacking.begin();
    return out.perhaps_lacking.empty() ? "" : "perhaps " + *out.perhaps_lacking.begin();
  };
  const std::string by_system =
      "windows = os.name == 'nt'\nmac = sys.platform == 'darwin'\nif windows:\n    name = 'vips.dll'\nelif mac:\n"
      "    name = 'libvips.dylib'\nelse:\n    name = 'libvips.so.42'\n";
  EXPECT_EQ(outcome(by_system + "lib = ffi.dlopen(name)\n"), "stops libvips.so.42");
  EXPECT_EQ(outcome("NAME = 'libvips.so.42'\ndef load():\n    return ctypes.CDLL(NAME)\nlib = load()\n"),
            "stops libvips.so.42");
  EXPECT_EQ(outcome("def load(name):\n    return ctypes.CDLL(name)\nlib = load('libvips.so.42')\n"),
            "stops libvips.so.42");
  EXPECT_EQ(outcome("NAME = 'vips'\npath = ctypes.util.find_library(NAME)\nif not path:\n    raise OSError('no')\n"),
            "stops vips");
  // One name after the other.
  const std::string names = "('libvips.so.42', 'libvips.so')";
  const std::string loop =
      ":\n    try:\n        lib = ctypes.CDLL(n)\n        break\n    except OSError:\n        pass\n";
  EXPECT_EQ(outcome("for n in " + names + loop + "else:\n    raise ImportError('no')\n"), "stops libvips.so.42");
  EXPECT_EQ(outcome("NAMES = " + names + "\nfor n in NAMES" + loop + "else:\n    raise ImportError('no')\n"),
            "stops libvips.so.42");
  EXPECT_EQ(outcome("lib = None\nfor n in " + names + loop + "if lib is None:\n    raise ImportError('no')\n"),
            "perhaps libvips.so.42");
  EXPECT_EQ(outcome("for n in ('libvips.so.42', 'libc.so.6')" + loop + "else:\n    raise ImportError('no')\n"), "");
  EXPECT_EQ(outcome("for n in " + names + loop), "");
  const std::string recursive =
      "def load():\n    def attempt(names):\n        try:\n            return ctypes.cdll.LoadLibrary(names[0])\n"
      "        except OSError:\n            rest = names[1:]\n            if rest:\n                return "
      "attempt(rest)\n"
      "            else:\n                raise\n";
  EXPECT_EQ(outcome(recursive + "    return attempt(['libvips.so.42', 'libvips.so'])\nlib = load()\n"),
            "stops libvips.so.42");
  EXPECT_EQ(outcome(recursive + "    return attempt(['libvips.so.42', 'libc.so.6'])\nlib = load()\n"), "");
  // A package that brings the library, and is not installed.
  const std::string instead = "except Exception:\n    lib = ffi.dlopen('libvips.so.42')\n";
  EXPECT_EQ(outcome("try:\n    import _libvips\n    lib = _libvips.lib\n" + instead), "stops libvips.so.42");
  EXPECT_EQ(outcome("try:\n    import other\n    lib = other.lib\n" + instead), "");
  EXPECT_EQ(outcome("def load():\n    try:\n        import _libvips\n        return _libvips.lib\n"
                    "    except ImportError:\n        pass\n    return ffi.dlopen('libvips.so')\nload()\n"),
            "stops libvips.so");
  EXPECT_EQ(outcome("import _libvips\n"), "");
  // A name that is not in the text; one that was, and is another now; none at all.
  EXPECT_EQ(outcome("lib = ctypes.CDLL(NAME)\n"), "perhaps ");
  EXPECT_EQ(outcome("name = 'libvips.so.42'\nname = there(name)\nlib = ctypes.CDLL(name)\n"), "perhaps ");
  EXPECT_EQ(outcome("name = 'libvips.so.42'\nif OTHER:\n    name = 'libc.so.6'\nlib = ctypes.CDLL(name)\n"),
            "perhaps ");
  EXPECT_EQ(
      outcome(
          "def load():\n    for name in names():\n        try:\n            found = ctypes.CDLL(name)\n"
          "        except OSError:\n            pass\n    if found is None:\n        raise OSError('no')\nload()\n"),
      "perhaps ");
  EXPECT_EQ(
      outcome("def names():\n    yield ctypes.util.find_library('c')\ndef load():\n    for name in names():\n"
              "        if name is None:\n            continue\n        try:\n            return ctypes.CDLL(name)\n"
              "        except OSError:\n            pass\n    else:\n        raise ImportError('no')\nload()\n"),
      "");
  EXPECT_EQ(outcome("lib = ctypes.CDLL(None)\n"), "");
  EXPECT_EQ(outcome("try:\n    lib = ctypes.CDLL(NAME)\nexcept OSError:\n    lib = None\n"), "");
  EXPECT_EQ(outcome("path = ctypes.util.find_library('c')\nlib = ctypes.CDLL(path)\n"), "");
}

TEST(PythonText, ImportsThatNeverEnd) {
  Modules modules;
  modules.add("a.py", "import b\n");
  modules.add("b.py", "import a\nf()\ndef f():\n    g()\ndef g():\n    f()\nf()\n");
  EXPECT_EQ(doctor::run_imports({"a"}, modules).reached, (std::set<std::string>{"a", "b"}));
  // Deeply nested blocks, and a chain of imports longer than any real one.
  std::string deep;
  for (int i = 0; i < 2000; ++i) deep += std::string(std::size_t(i), ' ') + "if x:\n";
  EXPECT_LT(doctor::outline_of("pkg/a.py", deep).steps.size(), 100u);
  for (int i = 0; i < 5000; ++i)
    modules.add("m" + std::to_string(i) + ".py", "import m" + std::to_string(i + 1) + "\n");
  EXPECT_GT(doctor::run_imports({"m0"}, modules).reached.size(), 100u);
}

}  // namespace
