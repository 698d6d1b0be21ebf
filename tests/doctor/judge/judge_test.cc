// SPDX-License-Identifier: Apache-2.0
// Every verdict of the readers and the judge: a file that earns it, and its near miss that does not.
#include "doctor/judge/judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "doctor/read/inspect.h"
#include "doctor/verdict/catalogue.h"
#include "support/text.h"
#include "tests/doctor/judge/judged.h"
#include "tests/verdict_notes.h"

namespace {

using namespace judged;

struct Case {
  const char* code;
  const char* part;  // of message, cause, fix or evidence
  std::function<std::vector<Verdict>()> trigger, near_miss;
  Severity severity = Severity::kError;
};

bool mentions(const Verdict& v, const std::string& part) {
  return (v.message + "|" + v.cause + "|" + v.fix + "|" + support::joined(v.evidence, "|")).find(part) !=
         std::string::npos;
}

std::vector<Verdict> alone(const Inspection& inspection) { return doctor::judge(inspection); }
std::vector<Verdict> on_node(const Inspection& inspection, const std::function<void(Node&)>& change = {}) {
  Node node;
  if (change) change(node);
  return doctor::judge(inspection, node.target);
}

fixtures::WheelParts pure() {
  fixtures::WheelParts parts;
  parts.tag = "py3-none-any";
  parts.files = {{"pkg/__init__.py", "x = 1\n"}};
  return parts;
}

std::vector<Case> wheel_cases() {
  std::vector<Case> out;
  const auto parts = [](auto change) {
    fixtures::WheelParts p = pure();
    change(p);
    return p;
  };
  out.push_back({"WHEEL_ARCHIVE", "'../x' leads outside",
                 [=] { return alone(wheel(pure(), [](auto& f) {
                         f.push_back({"../x", "x"});
                       })); },
                 [] { return alone(wheel(pure())); }});
  out.push_back({"WHEEL_NAME", "is not the name of a wheel",
                 [] {
                   Inspection i = wheel(pure());
                   i.wheel->name.reset();
                   return alone(i);
                 },
                 [] { return alone(wheel(pure())); }});
  out.push_back({"WHEEL_METADATA", "METADATA is missing",
                 [] { return alone(wheel(pure(), [](auto& f) { f.erase(f.begin() + 1); })); },
                 [] { return alone(wheel(pure())); }});
  out.push_back({"WHEEL_METADATA", "there is no .dist-info folder",
                 [] { return alone(wheel(pure(), [](auto& f) { f.clear(); })); }, [] { return alone(wheel(pure())); }});
  const auto made_by = [](const char* version) {
    return alone(wheel(pure(), [=](auto& files) {
      for (auto& file : files)
        if (file.name.ends_with("/WHEEL")) file.bytes.replace(file.bytes.find("1.0"), 3, version);
    }));
  };
  out.push_back(
      {"WHEEL_METADATA", "its format is 2.0", [=] { return made_by("2.0"); }, [=] { return made_by("1.9"); }});
  out.push_back({"WHEEL_NO_EXTENSION", "No module named 'pkg_2_cuda'",
                 [=] {
                   return alone(wheel(parts([](auto& p) { p.files = {{"pkg/a.py", "import pkg_2_cuda\n"}}; })));
                 },
                 [=] {
                   return alone(wheel(parts([](auto& p) {
                     p.files = {{"pkg/a.py", "import pkg_2_cuda\n"}, {"pkg_2_cuda.py", ""}};
                   })));
                 }});
  out.push_back({"WHEEL_NO_EXTENSION", "the tags promise compiled code",
                 [=] { return alone(wheel(parts([](auto& p) { p.tag = "cp311-cp311-linux_x86_64"; }))); },
                 [] { return alone(wheel_with({}, {})); }, Severity::kWarning});
  out.push_back({"WHEEL_TAG_PYTHON", "the Python here is 3.12.4", [] { return on_node(wheel_with({}, {})); },
                 [] { return on_node(wheel(pure())); }});
  out.push_back({"WHEEL_TAG_PLATFORM", "this is x86_64 with glibc 2.31",
                 [=] { return on_node(wheel(parts([](auto& p) { p.tag = "py3-none-manylinux_2_34_x86_64"; }))); },
                 [=] { return on_node(wheel(parts([](auto& p) { p.tag = "py3-none-manylinux_2_31_x86_64"; }))); }});
  out.push_back({"WHEEL_TAG_MISMATCH", "WHEEL promises py3-none-linux_x86_64",
                 [=] { return alone(wheel(parts([](auto& p) { p.wheel_tag = "py3-none-linux_x86_64"; }))); },
                 [=] {
                   return alone(wheel(parts(
                       [](auto& p) { p.tag = "py2.py3-none-any", p.wheel_tag = "py3-none-any\nTag: py2-none-any"; })));
                 },
                 Severity::kWarning});
  fixtures::WheelParts many;
  many.tag = "cp311-cp311-manylinux_2_17_x86_64";
  const Words new_glibc = {{"libc.so.6"}, {"arc4random@GLIBC_2.36@libc.so.6"}, {}, {}},
              old_glibc = {{"libc.so.6"}, {"malloc@GLIBC_2.17@libc.so.6"}, {}, {}};
  out.push_back({"WHEEL_TAG_VS_ELF", "GLIBC_2.36 (arc4random)", [=] { return alone(wheel_with(many, new_glibc)); },
                 [=] { return alone(wheel_with(many, old_glibc)); }});
  out.push_back({"WHEEL_TAG_VS_ELF", "for aarch64, and the tag says x86_64",
                 [=] { return alone(wheel_with(many, {}, "m.cpython-311-x86_64-linux-gnu.so", "aarch64")); },
                 [=] { return alone(wheel_with(many, {})); }});
  out.push_back({"WHEEL_TAG_VS_ELF", "a module for Python 3.12",
                 [=] { return alone(wheel_with(many, {}, "m.cpython-312-x86_64-linux-gnu.so")); },
                 [=] { return alone(wheel_with(many, {})); }});
  out.push_back({"WHEEL_TAG_VS_ELF", "at most GLIBCXX_3.4.19",
                 [=] {
                   return alone(wheel_with(many, {{"libstdc++.so.6"}, {"x@GLIBCXX_3.4.29@libstdc++.so.6"}, {}, {}}));
                 },
                 [=] {
                   return alone(wheel_with(many, {{"libstdc++.so.6"}, {"x@GLIBCXX_3.4.19@libstdc++.so.6"}, {}, {}}));
                 },
                 Severity::kWarning});
  out.push_back({"WHEEL_TAG_VS_ELF", "tagged for any platform",
                 [] { return alone(wheel_with(pure(), {}, "libplain.so")); },
                 [=] { return alone(wheel_with(many, {}, "libplain.so")); }});
  fixtures::WheelParts labelled;
  labelled.version = labelled.metadata_version = "1.0+cu12torch2.8cxx11abiTRUE";
  out.push_back({"WHEEL_LABEL", "its symbols show the old C++ ABI",
                 [=] {
                   return alone(wheel_with(labelled, {{"libc10.so"}, {kOldError}, {}, {}}));
                 },
                 [=] {
                   return alone(wheel_with(labelled, {{"libc10.so"}, {kNewError}, {}, {}}));
                 },
                 Severity::kWarning});
  out.push_back({"WHEEL_LABEL", "its symbols show torch 2.7 or before",
                 [=] {
                   return alone(wheel_with(labelled, {{"libc10.so"}, {"_ZN3c104cuda9SetDeviceEa"}, {}, {}}));
                 },
                 [=] {
                   return alone(wheel_with(labelled, {{"libc10.so"}, {"_ZN3c104cuda9SetDeviceEab"}, {}, {}}));
                 },
                 Severity::kWarning});
  out.push_back(
      {"WHEEL_VERSION_MISMATCH", "METADATA says 1.0",
       [=] { return alone(wheel(parts([](auto& p) { p.version = "1.0+cu12torch2.8", p.metadata_version = "1.0"; }))); },
       [=] { return alone(wheel(parts([](auto& p) { p.version = "1.0+CU12", p.metadata_version = "1.0+cu12"; }))); },
       Severity::kWarning});
  out.push_back({"WHEEL_VERSION_MISMATCH", "METADATA says 1.0.1",
                 [=] { return alone(wheel(parts([](auto& p) { p.metadata_version = "1.0.1"; }))); },
                 [=] { return alone(wheel(parts([](auto& p) { p.metadata_version = "v1.0.0"; }))); },
                 Severity::kWarning});
  out.push_back({"WHEEL_REQUIRES_PYTHON", "3.12.4 not in '<3.12'",
                 [=] { return on_node(wheel(parts([](auto& p) { p.more_metadata = "Requires-Python: <3.12\n"; }))); },
                 [=] { return on_node(wheel(parts([](auto& p) { p.more_metadata = "Requires-Python: >=3.9\n"; }))); }});
  const auto needs_torch = [](const char* requirement) {
    fixtures::WheelParts p;
    p.more_metadata = std::string("Requires-Dist: ") + requirement + "\n";
    return p;
  };
  const auto required = [=](const char* requirement) {
    return [=] {
      fixtures::WheelParts p = pure();
      p.more_metadata = std::string("Requires-Dist: ") + requirement + "\n";
      return on_node(wheel(p));
    };
  };
  out.push_back({"WHEEL_REQUIRES_TORCH", "pkg 1.0 has requirement torch<3,>=2.9, but you have torch 2.8.0+cu128.",
                 required("torch >=2.9, <3"), required("torch<3,>=2.2")});
  out.push_back({"WHEEL_REQUIRES_TORCH", "pkg 1.0 has requirement torch!=2.8.*, but", required("torch (!=2.8.*)"),
                 required("torch==2.7.*")});
  out.push_back({"WHEEL_REQUIRES_TORCH", "has requirement torch<2.8, but", required("torch<2.8"),
                 required("torch<2.8; extra == 'old'")});
  out.push_back({"WHEEL_REQUIRES_TORCH_UNPINNED", "Requires-Dist: torch",
                 [=] {
                   return alone(wheel_with(needs_torch("torch"), {{}, {kNewError}, {}, {}}));
                 },
                 [=] {
                   return alone(wheel_with(needs_torch("torch==2.8.0"), {{}, {kNewError}, {}, {}}));
                 },
                 Severity::kWarning});
  out.push_back({"RECORD_BAD", "another sha256",
                 [] { return alone(wheel(pure(), [](auto& f) { f[0].bytes = "x = 2\n"; })); },
                 [] { return alone(wheel(pure())); }});
  // With the padding of base64, which the format does without.
  out.push_back({"RECORD_BAD", "another sha256",
                 [] { return alone(wheel(pure(), [](auto& f) { f[0].bytes = "x = 2\n"; })); },
                 [] {
                   return alone(wheel(pure(), [](auto& f) {
                     std::string& record = f.back().bytes;
                     record.insert(record.find(',', record.find(',') + 1), "=");
                   }));
                 }});
  out.push_back({"RECORD_BAD", "is listed and not there",
                 [] { return alone(wheel(pure(), [](auto& f) { f.erase(f.begin()); })); },
                 [] { return alone(wheel(pure())); }});
  out.push_back({"RECORD_BAD", "is there and not listed",
                 [] { return alone(wheel(pure(), [](auto& f) {
                        f.push_back({"late.py", ""});
                      })); },
                 [] { return alone(wheel(pure())); }, Severity::kWarning});
  return out;
}

std::vector<Case> loader_cases() {
  std::vector<Case> out;
  const auto ok = [] { return on_node(module({{"libc10.so"}, {kNewError, "PyLong_FromLong"}, {}, {}})); };
  const auto with = [](Words words) { return [words] { return on_node(module(words)); }; };
  out.push_back({"LOADS", "loads in the node", ok, with({{"libgone.so"}, {}, {}, {}}), Severity::kNote});
  out.push_back({"ELF_DAMAGED", "cut off",
                 [] {
                   fixtures::TempFolder folder;
                   return alone(doctor::inspect(fixtures::write_file(folder / "x.so", std::string("\x7f"
                                                                                                  "ELF\x02\x01\x01",
                                                                                                  7) +
                                                                                          std::string(20, '\0'))));
                 },
                 [] { return alone(module({})); }});
  for (const auto& [bytes, words] :
       {std::pair{"", ": file too short"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789\nsize 12\n", ": invalid ELF header"}})
    out.push_back({"ELF_DAMAGED", words,
                   [content = bytes] {
                     fixtures::TempFolder folder;
                     const std::string path = folder / "m.cpython-312-x86_64-linux-gnu.so";
                     return alone(doctor::inspect(fixtures::write_file(path, content)));
                   },
                   [] { return alone(module({})); }});
  out.push_back({"ELF_MACHINE", "for aarch64", [] { return on_node(module({}, "m.so", "aarch64")); },
                 [] { return on_node(module({}, "m.so")); }});
  const auto of_32_bits = [](const char* folder) {
    return [=] {
      return on_node(module({{"libold.so.1"}, {}, {}, {}}), [&](Node& node) {
        ElfFile& old = node.libraries->files[std::string(folder) + "/libold.so.1"] = elf_of({{}, {}, {}, {}});
        old.machine = EM_386;
        old.is_64 = false;
        node.target.loader.library_path = {"/opt/lib32"};
      });
    };
  };
  out.push_back({"ELF_MACHINE", "ImportError: libold.so.1: wrong ELF class: ELFCLASS32", of_32_bits("/opt/lib32"),
                 of_32_bits("/elsewhere")});
  out.push_back({"EXECUTABLE_STACK", "RWE",
                 [] {
                   Inspection i = module({});
                   i.binaries[0].elf.executable_stack = true;
                   return alone(i);
                 },
                 [] { return alone(module({})); }, Severity::kWarning});
  // From glibc 2.41 on it stops the import, in the module itself and in what it needs, which goes by its short name.
  const auto with_stack = [](const char* needed) {
    Inspection i = module({{needed}, {}, {}, {}});
    i.binaries[0].elf.executable_stack = std::string(needed) == "libc.so.6";
    return i;
  };
  const auto glibc = [](const char* version) {
    return [=](Node& node) {
      node.target.libc_version = parse_version(version);
      node.libraries->files["/lib/libodd.so.1"].executable_stack = true;
    };
  };
  out.push_back({"EXECUTABLE_STACK",
                 "ImportError: /site/m.cpython-312-x86_64-linux-gnu.so: cannot enable executable stack",
                 [=] { return on_node(with_stack("libc.so.6"), glibc("2.41")); }, ok});
  out.push_back({"EXECUTABLE_STACK", "ImportError: libodd.so.1: cannot enable executable stack",
                 [=] { return on_node(with_stack("libodd.so.1"), glibc("2.42")); },
                 [=] { return on_node(with_stack("libodd.so.1"), glibc("2.40")); }});
  const auto tuned = [=](const char* tunables) {
    return [=](Node& node) {
      glibc("2.42")(node);
      node.target.loader.tunables = tunables;
    };
  };
  out.push_back({"EXECUTABLE_STACK", "ImportError: libodd.so.1: cannot enable executable stack",
                 [=] { return on_node(with_stack("libodd.so.1"), tuned("glibc.rtld.execstack=1")); },
                 [=] { return on_node(with_stack("libodd.so.1"), tuned("a=1:glibc.rtld.execstack=2")); }});
  out.push_back({"EXECUTABLE_STACK", "without PT_GNU_STACK, which counts as RWE on x86_64",
                 [=] {
                   Inspection i = with_stack("libc.so.6");
                   i.binaries[0].elf.says_nothing_of_stack = true;
                   return alone(i);
                 },
                 [=] { return alone(with_stack("libc.so.6")); }, Severity::kWarning});
  // What LD_PRELOAD names is there before the program begins, and gives it such a stack.
  const auto preloaded = [=](Node& node) {
    glibc("2.42")(node);
    node.target.loader.preload = {"/lib/libodd.so.1"};
  };
  out.push_back({"EXECUTABLE_STACK",
                 "ImportError: /site/m.cpython-312-x86_64-linux-gnu.so: cannot enable executable stack",
                 [=] { return on_node(with_stack("libc.so.6"), glibc("2.42")); },
                 [=] { return on_node(with_stack("libc.so.6"), preloaded); }});
  const auto not_later = [](const char* preload) {
    return [=] {
      return on_node(module({{"libodd.so.1"}, {}, {}, {}}), [&](Node& node) {
        node.libraries->files["/lib/libodd.so.1"].refuses_dlopen = true;
        if (*preload) node.target.loader.preload = {preload};
      });
    };
  };
  const auto marked = [](uint8_t os_abi) {
    Inspection i = module({});
    i.binaries[0].elf.osabi = os_abi;
    return i;
  };
  out.push_back({"ELF_MACHINE", "ImportError: /site/m.cpython-312-x86_64-linux-gnu.so: ELF file OS ABI invalid",
                 [=] { return on_node(marked(ELFOSABI_FREEBSD)); }, [=] { return on_node(marked(ELFOSABI_GNU)); }});
  out.push_back({"ELF_MACHINE", "EI_OSABI: FreeBSD (9)", [=] { return alone(marked(ELFOSABI_FREEBSD)); },
                 [=] { return alone(marked(ELFOSABI_GNU)); }, Severity::kWarning});
  const auto odd_marked = [](const char* libc) {
    return [=] {
      return on_node(module({{"libodd.so.1"}, {}, {}, {}}), [&](Node& node) {
        node.libraries->files["/lib/libodd.so.1"].osabi = ELFOSABI_FREEBSD;
        node.target.libc = libc;
      });
    };
  };
  out.push_back({"ELF_MACHINE", "ImportError: /lib/libodd.so.1: ELF file OS ABI invalid", odd_marked("glibc"),
                 odd_marked("musl")});
  const auto packed = [](const char* glibc, uint64_t bytes, bool asks_libc, const char* defined = "GLIBC_2.30") {
    return [=] {
      Inspection i = asks_libc ? module({{"libc.so.6"}, {"malloc@GLIBC_2.17@libc.so.6"}, {}, {}}) : module({});
      i.binaries[0].elf.packed_relocations = bytes;
      return on_node(i, [&](Node& node) {
        node.target.libc_version = parse_version(glibc);
        node.libraries->files["/lib/libc.so.6"].version_definitions.push_back(defined);
      });
    };
  };
  out.push_back({"PACKED_RELOCATIONS", "gnu.so: DT_RELR without GLIBC_ABI_DT_RELR dependency", packed("2.36", 8, true),
                 packed("2.36", 8, false)});
  out.push_back({"PACKED_RELOCATIONS", "glibc knows from 2.36 on; here is 2.31", packed("2.31", 8, false),
                 packed("2.31", 0, false)});
  out.push_back({"PACKED_RELOCATIONS", "stay as they are", packed("2.34", 8, false),
                 packed("2.34", 8, false, "GLIBC_ABI_DT_RELR")});
  // As qemu with a Nehalem and a Haswell shows it.
  const auto leveled = [](std::vector<std::string> hwcaps, const char* glibc) {
    return [=] {
      Inspection i = module({});
      i.binaries[0].elf.cpu_level = 3;
      return on_node(i, [&](Node& node) {
        node.target.loader.hwcaps = hwcaps;
        node.target.libc_version = parse_version(glibc);
      });
    };
  };
  out.push_back({"ELF_MACHINE", "gnu.so: CPU ISA level is lower than required", leveled({"x86-64-v2"}, "2.36"),
                 leveled({"x86-64-v3", "x86-64-v2"}, "2.36")});
  out.push_back({"ELF_MACHINE", "compiled for processors of x86-64-v3", leveled({"x86-64-v2"}, "2.33"),
                 leveled({"x86-64-v2"}, "2.32")});
  out.push_back({"NO_DLOPEN", "ImportError: libodd.so.1: shared object cannot be dlopen()ed", not_later(""),
                 not_later("/lib/libodd.so.1")});
  // Linked for pages of 4 KiB, on kernels with 64 KiB and with 4 KiB, by the words of newer and of older loaders.
  const auto paged = [](uint64_t page_bytes, const char* glibc) {
    return [=] {
      Inspection i = module({});
      i.binaries[0].elf.layout = {.alignments = 0x1000, .distances = 0x1000, .is_skewed = false};
      return on_node(i, [&](Node& node) {
        node.target.page_bytes = page_bytes;
        node.target.libc_version = parse_version(glibc);
      });
    };
  };
  out.push_back({"PAGE_SIZE", "gnu.so: ELF load command address/offset not page-aligned", paged(65536, "2.39"),
                 paged(4096, "2.39")});
  out.push_back(
      {"PAGE_SIZE", "gnu.so: ELF load command alignment not page-aligned", paged(65536, "2.28"), paged(4096, "2.28")});
  // Thread-local data that must lie in the loader's block, whose rest is small; TLSDESC can do without.
  const auto thread_data = [](doctor::ThreadData data, bool can_do_without, const char* machine = "x86_64",
                              const char* tunables = "") {
    return [=] {
      Inspection i = module({{"libc.so.6"}, {}, {}, {}}, "m.so", machine);
      i.binaries[0].elf.thread_data = data;
      i.binaries[0].elf.thread_uses = {{doctor::ThreadUse::kOwn, can_do_without}};
      return on_node(i, [&](Node& node) {
        for (auto& [path, elf] : node.libraries->files) elf.machine = i.binaries[0].elf.machine;
        node.target.machine = machine;
        node.target.libc_version = parse_version("2.36");
        node.target.loader.tunables = tunables;
      });
    };
  };
  const char* full = "ImportError: /site/m.so: cannot allocate memory in static TLS block";
  out.push_back({"STATIC_TLS", full, thread_data({1800, 8}, false), thread_data({1600, 8}, false)});
  out.push_back({"STATIC_TLS", full, thread_data({1800, 8}, false), thread_data({1800, 8}, true)});
  out.push_back({"STATIC_TLS", full, thread_data({8, 128}, false), thread_data({8, 64}, false)});
  out.push_back({"STATIC_TLS", full, thread_data({8, 64}, false, "aarch64"), thread_data({8, 32}, false, "aarch64")});
  out.push_back({"STATIC_TLS", full, thread_data({1800, 8}, false, "x86_64", "glibc.rtld.optional_static_tls=0x200"),
                 thread_data({1800, 8}, false, "x86_64", "glibc.rtld.optional_static_tls=2000")});
  out.push_back({"SO_SOABI", "looks for cpython-312",
                 [] { return on_node(module({}, "m.cpython-311-x86_64-linux-gnu.so")); }, ok});
  out.push_back(
      {"SO_SOABI", "Free-threaded",
       [] { return on_node(module({}, "m.abi3.so"), [](Node& n) { n.target.python->free_threaded = true; }); },
       [] { return on_node(module({}, "m.abi3.so")); }});
  // Free-threaded Python has a stable ABI of its own from 3.15 on, which one with the GIL takes too.
  const auto python = [](const char* version, bool free_threaded) {
    return [=](Node& n) {
      n.target.python->version = parse_version(version);
      n.target.python->free_threaded = free_threaded;
    };
  };
  out.push_back({"SO_SOABI", "(.abi3t.so) from 3.15 on",
                 [=] { return on_node(module({}, "m.abi3t.so"), python("3.14.2", true)); },
                 [=] { return on_node(module({}, "m.abi3t.so"), python("3.15.0", true)); }});
  out.push_back({"SO_SOABI", "here is Python 3.15.0t",
                 [=] { return on_node(module({}, "m.abi3.so"), python("3.15.0", true)); },
                 [=] { return on_node(module({}, "m.abi3t.so"), python("3.15.0", false)); }});
  out.push_back({"SO_NO_PYINIT", "it is the module m.",
                 [] {
                   Inspection i = module({}, "other.abi3t.so");
                   i.binaries[0].elf.symbols[0].name = "PyModExport_m";
                   return alone(i);
                 },
                 [] {
                   Inspection i = module({}, "m.abi3t.so");
                   i.binaries[0].elf.symbols[0].name = "PyModExport_m";
                   return alone(i);
                 }});
  out.push_back({"SO_NO_PYINIT", "(PyInit_other)",
                 [] { return alone(module({}, "other.cpython-312-x86_64-linux-gnu.so")); },
                 [] { return alone(module({}, "other.so")); }});
  out.push_back({"PY_ABI3_VIOLATION", "_PyObject_GetDictPtr",
                 [] {
                   return alone(module({{}, {"_PyObject_GetDictPtr"}, {}, {}}, "m.abi3.so"));
                 },
                 [] {
                   return alone(module({{}, {"PyLong_FromLong"}, {}, {}}, "m.abi3.so"));
                 }});
  out.push_back({"PY_ABI3_VIOLATION", "from Python 3.13 on",
                 [] {
                   return on_node(module({{}, {"PyDict_GetItemRef"}, {}, {}}, "m.abi3.so"));
                 },
                 [] {
                   return on_node(module({{}, {"PyLong_FromLong"}, {}, {}}, "m.abi3.so"));
                 }});
  out.push_back(
      {"PY_SYMBOL", "undefined symbol: PyUnicode_GoneIn312", with({{}, {"PyUnicode_GoneIn312"}, {}, {}}), ok});
  out.push_back({"NEEDED_MISSING", "libgone.so: cannot open shared object file: No such file or directory",
                 with({{"libgone.so"}, {}, {}, {}}), ok});
  out.push_back({"CUDA_MAJOR", "brings CUDA 12", with({{"libcudart.so.13"}, {}, {}, {}}),
                 with({{"libcudart.so.12"}, {}, {}, {}})});
  out.push_back({"GLIBC_TOO_OLD", "version `GLIBC_2.32' not found (required by /site/m",
                 with({{"libc.so.6"}, {"__libc_single_threaded@GLIBC_2.32@libc.so.6"}, {}, {}}),
                 with({{"libc.so.6"}, {"malloc@GLIBC_2.17@libc.so.6"}, {}, {}})});
  out.push_back({"GLIBCXX_TOO_OLD", "GLIBCXX_3.4.30",
                 with({{"libstdc++.so.6"}, {"x@GLIBCXX_3.4.30@libstdc++.so.6"}, {}, {}}),
                 with({{"libstdc++.so.6"}, {"_Znwm@GLIBCXX_3.4@libstdc++.so.6"}, {}, {}})});
  out.push_back({"VERSION_MISSING", "version `ODD_2' not found",
                 with({{"libodd.so.1"}, {"odd@ODD_2@libodd.so.1"}, {}, {}}),
                 with({{"libodd.so.1"}, {"odd@ODD_1@libodd.so.1"}, {}, {}})});
  // The loader ends the process: a version of a library that is not needed, or of one that has no versions at all.
  out.push_back({"VERSION_MISSING", "Assertion `needed != NULL' failed!", with({{}, {"odd@ODD_1@libodd.so.1"}, {}, {}}),
                 with({{"libodd.so.1"}, {"odd@ODD_1@libodd.so.1"}, {}, {}})});
  const auto without_versions = [](const char* glibc, bool has_table) {
    return [=] {
      return on_node(module({{"libodd.so.1"}, {"odd@ODD_1@libodd.so.1"}, {}, {}}), [&](Node& node) {
        ElfFile& odd = node.libraries->files["/lib/libodd.so.1"] = elf_of({{}, {}, {"odd"}, {}, "libodd.so.1"});
        odd.has_symbol_versions = has_table;
        node.target.libc_version = parse_version(glibc);
      });
    };
  };
  out.push_back({"VERSION_MISSING", "libodd.so.1 that is found has no versions at all", without_versions("2.40", false),
                 without_versions("2.41", false)});
  out.push_back({"VERSION_MISSING", "libodd.so.1 that is found has no versions at all", without_versions("2.31", false),
                 without_versions("2.31", true)});
  out.push_back({"UNDEFINED_SYMBOL", "undefined symbol: nowhere", with({{}, {"nowhere"}, {}, {}}), ok});
  out.push_back({"UNDEFINED_SYMBOL", "undefined symbol: cudaNew, version libcudart.so.12",
                 with({{"libcudart.so.12"}, {"cudaNew@libcudart.so.12@libcudart.so.12"}, {}, {}}),
                 with({{"libcudart.so.12"}, {"cudaMalloc@libcudart.so.12@libcudart.so.12"}, {}, {}})});
  out.push_back({"TORCH_MISSING", "this Python has none",
                 [] {
                   return on_node(module({{"libc10.so"}, {}, {}, {}}), [](Node& n) { n.target.torch.reset(); });
                 },
                 ok});
  out.push_back({"TORCH_CXX11_ABI", "made for torch 2.8", with({{"libc10.so"}, {kOldError}, {}, {}}), ok});
  // flash-attn's wheels say in their names which ABI they are for; others' do not.
  out.push_back({"TORCH_CXX11_ABI", "cxx11abiTRUE",
                 [] {
                   return on_node(module({{"libc10.so"}, {kOldError}, {}, {}}, "flash_attn_2_cuda.so"));
                 },
                 with({{"libc10.so"}, {kOldError}, {}, {}})});
  out.push_back({"TORCH_CXX11_ABI", "in both C++ ABIs",
                 [] {
                   return alone(module({{}, {kOldError, kNewError}, {}, {}}));
                 },
                 [] {
                   return alone(module({{}, {kNewError}, {}, {}}));
                 }});
  out.push_back({"TORCH_SIGNATURE", "torch up to 2.7", with({{"libc10.so"}, {"_ZN3c104cuda9SetDeviceEa"}, {}, {}}),
                 with({{"libc10.so"}, {"_ZN3c104cuda9SetDeviceEab"}, {}, {}})});
  out.push_back({"TORCH_SIGNATURE", "needs torch 2.8 or later and torch 2.7 or before",
                 [] {
                   return alone(module({{}, {"_ZN3c104cuda9SetDeviceEa", "_ZN3c104cuda9SetDeviceEab"}, {}, {}}));
                 },
                 [] {
                   return alone(module({{}, {"_ZN3c104cuda9SetDeviceEa"}, {}, {}}));
                 }});
  out.push_back({"TORCH_STABLE_MIN", "torch 2.11 or later", with({{"libc10.so"}, {"torch_from_blob"}, {}, {}}),
                 with({{"libc10.so"}, {"torch_call_dispatcher"}, {}, {}})});
  return out;
}

std::vector<Case> gpu_cases() {
  std::vector<Case> out;
  const auto code = [](std::vector<std::string> archs, uint64_t compression = 0, int abi = 7,
                       const std::function<void(Node&)>& change = {}) {
    return [=] { return on_node(gpu_module(fixtures::make_gpu_code(archs, compression, abi)), change); };
  };
  const auto ok = code({"80"});
  out.push_back(
      {"GPU_CODE_DAMAGED", "is cut off",
       [] {
         fixtures::TempFolder folder;
         const std::string whole = fixtures::make_gpu_code({"80"});
         return alone(doctor::inspect(fixtures::write_file(folder / "x.fatbin", whole.substr(0, whole.size() - 8))));
       },
       [] {
         fixtures::TempFolder folder;
         return alone(doctor::inspect(fixtures::write_file(folder / "x.fatbin", fixtures::make_gpu_code({"80"}))));
       }});
  out.push_back({"GPU_NO_CODE", "no kernel image is available", code({"90", "86"}), ok});
  out.push_back({"GPU_ARCH_SPECIFIC_A", "sm_90a", code({"80", "90a"}), ok, Severity::kNote});
  out.push_back({"GPU_FAMILY_F", "sm_120f", code({"80", "120f"}, 0, 8), ok, Severity::kNote});
  out.push_back({"PTX_TOO_NEW", "PTX 8.4", code({"ptx70"}),
                 code({"ptx70"}, 0, 7, [](Node& n) { n.target.driver = parse_version("550.90"); })});
  const auto latest_ptx = [](const char* driver) {
    return [=] {
      Inspection i = gpu_module(fixtures::make_gpu_code({"ptx70"}));
      i.binaries[0].fatbins.at(0).entries.at(0).ptx_isa = parse_version("99.0");
      return on_node(i, [&](Node& n) { n.target.driver = parse_version(driver); });
    };
  };
  out.push_back({"PTX_TOO_NEW", "needs a later CUDA", latest_ptx("580.95"), latest_ptx("9999.10")});
  out.push_back({"PTX_JIT", "only PTX",
                 code({"ptx70"}, 0, 7, [](Node& n) { n.target.driver = parse_version("550.90"); }), ok,
                 Severity::kNote});
  out.push_back({"CUBIN_TOOLKIT_TOO_NEW", "CUDA 13.0", code({"80"}, 0, 8), ok});
  out.push_back({"FATBIN_ZSTD_OLD_DRIVER", "zstd", code({"80"}, 0x8000), code({"80"}, 0x2000)});
  const auto linked = [](const char* library, const char* driver) {
    return [=] {
      return on_node(module({{library}, {}, {}, {}}), [&](Node& n) { n.target.driver = parse_version(driver); });
    };
  };
  out.push_back(
      {"DRIVER_TOO_OLD", "525 or later", linked("libcudart.so.12", "470.82"), linked("libcudart.so.12", "525.60")});
  const auto no_driver = [](Node& n) { n.target.gpus.clear(), n.target.driver = {}; };
  out.push_back({"DRIVER_MISSING", "no NVIDIA driver", code({"80"}, 0, 7, no_driver), ok, Severity::kWarning});
  return out;
}

std::vector<Case> all_cases() {
  std::vector<Case> out = wheel_cases();
  for (const auto& more : {loader_cases(), gpu_cases()}) out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST(Judge, EveryVerdictHasATriggerAndANearMiss) {
  for (const Case& c : all_cases()) {
    const auto hit = c.trigger(), miss = c.near_miss();
    const auto found =
        std::find_if(hit.begin(), hit.end(), [&](const Verdict& v) { return v.code == c.code && mentions(v, c.part); });
    std::string said;
    for (const Verdict& v : hit) said += doctor::verdict_text(v, false);
    ASSERT_TRUE(found != hit.end()) << c.code << ": " << c.part << "\n" << said;
    EXPECT_EQ(found->severity, c.severity) << c.code;
    EXPECT_FALSE(found->message.empty());
    for (const Verdict& v : miss)
      EXPECT_FALSE(v.code == c.code && mentions(v, c.part)) << "near miss: " << doctor::verdict_text(v, false);
    note_covered(c.code);
  }
}

TEST(Judge, NearMissesOfTheSameKindStayQuiet) {
  // Apart from notes, a module in good order gets nothing.
  for (const Verdict& v :
       on_node(module({{"libc10.so", "libc.so.6"}, {kNewError, "malloc@GLIBC_2.17@libc.so.6"}, {}, {}})))
    EXPECT_EQ(v.severity, Severity::kNote) << doctor::verdict_text(v, false);
  for (const Verdict& v : on_node(wheel(pure())))
    EXPECT_EQ(v.severity, Severity::kNote) << doctor::verdict_text(v, false);
}

// That every row has its test: catalogue_test.py.
TEST(Judge, TheCatalogueHasEachCodeOnce) {
  std::set<std::string> seen;
  for (const doctor::VerdictKind& kind : doctor::verdict_catalogue()) {
    EXPECT_TRUE(seen.insert(kind.code.text()).second) << kind.code << " is there twice";
    EXPECT_TRUE(kind.title[0]) << kind.code;
  }
  EXPECT_EQ(doctor::verdict_anchor("NEEDED_MISSING"), "doctor.md#needed-missing");
}

// Kernels for one architecture each, as FlashAttention-3 is built: not an error while some serve the GPU.
TEST(Judge, WhatBringsALibraryOfCuda) {
  const auto fix = [](const char* library, const char* runpath, bool has_torch) {
    Inspection file = module({{library}, {}, {}, {}});
    file.binaries[0].elf.runpath = runpath;
    for (const Verdict& verdict : on_node(file, [&](Node& n) {
           if (!has_torch) n.target.torch.reset();
         }))
      if (verdict.severity == Severity::kError) return verdict.fix;
    return std::string();
  };
  EXPECT_EQ(fix("libcudart.so.13", "", true), "take the wheel for cu12, or a torch for CUDA 13");
  EXPECT_EQ(fix("libnvJitLink.so.12", "", true), "pip install nvidia-nvjitlink-cu12");
  EXPECT_EQ(fix("libcudart.so.12", "", false),
            "install a torch for CUDA 12 and import it first, or add the folder of libcudart.so.12 to LD_LIBRARY_PATH");
  // It looks where pip puts them.
  EXPECT_EQ(fix("libcudart.so.12", "$ORIGIN/nvidia/cuda_runtime/lib", false), "pip install nvidia-cuda-runtime-cu12");
  EXPECT_EQ(fix("libcublasLt.so.13", "/site/nvidia/cu13/lib", true), "pip install nvidia-cublas");
  EXPECT_EQ(fix("libcudart.so.13", "/site/nvidia/cublas/lib", true), "take the wheel for cu12, or a torch for CUDA 13");
}

TEST(Judge, ContainersAreJudgedOneByOne) {
  const std::string some =
      fixtures::make_gpu_code({"80"}) + fixtures::make_gpu_code({"80"}) + fixtures::make_gpu_code({"90a"});
  std::vector<Verdict> found = on_node(gpu_module(some));
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const Verdict& v) {
    return v.code == "GPU_NO_CODE" && v.severity == Severity::kNote && mentions(v, "1 of 3 containers");
  }));
  EXPECT_EQ(doctor::exit_code_of(found), 0);
  EXPECT_EQ(doctor::exit_code_of(on_node(gpu_module(fixtures::make_gpu_code({"90a"})))), 1);
}

TEST(Judge, TextForPeopleAndTerminals) {
  const Verdict verdict = doctor::make_verdict({.code = "NEEDED_MISSING",
                                                .subject = "x.so",
                                                .message = "gone",
                                                .cause = "why",
                                                .fix = "do this",
                                                .evidence = {"a", "b"}});
  EXPECT_EQ(doctor::verdict_text(verdict, false),
            "error NEEDED_MISSING  x.so: gone\n  cause     why\n  fix       do this\n  evidence  a\n            b\n");
  EXPECT_NE(doctor::verdict_text(verdict, true).find("\033["), std::string::npos);
}

}  // namespace
