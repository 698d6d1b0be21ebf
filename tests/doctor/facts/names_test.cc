// SPDX-License-Identifier: Apache-2.0
// What names say: mangled ones, those of modules and wheels, the tables of torch and CPython; small parsers of text.
#include <gtest/gtest.h>

#include "doctor/facts/cpython_abi.h"
#include "doctor/facts/mangled.h"
#include "doctor/facts/release.h"
#include "doctor/facts/tags.h"
#include "doctor/read/metadata.h"
#include "doctor/read/python/imports.h"
#include "doctor/read/record.h"
#include "doctor/read/requirement.h"
#include "doctor/read/wheel.h"
#include "doctor/read/wheel_name.h"
#include "doctor/tables/stable_abi.h"
#include "doctor/tables/torch_symbols.h"
#include "support/sha256.h"
#include "support/text.h"
#include "tests/doctor/fixtures.h"

namespace {

using doctor::CxxAbi;
using doctor::StringAbi;
using support::parse_version;

TEST(Mangled, OldAndNewStrings) {
  const char* old_names[] = {"_ZN3c105ErrorC1ENS_14SourceLocationESs", "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
                             "_ZN2at3fooESt6vectorISsSaISsEE", "_ZN2at3fooESt4listIiSaIiEE",
                             "_ZN2at3fooESbIwSt11char_traitsIwESaIwEE"};
  const char* new_names[] = {"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
                             "_ZN3c103strB5cxx11Ei", "_ZNK3c108Registry4nameB5cxx11Ev",
                             "_ZN2at3fooENSt7__cxx114listIiSaIiEEE"};
  const char* neutral[] = {"_ZN3c103strEi",
                           "_ZN3c104cuda9SetDeviceEa",
                           "_ZN2at3SseEv",
                           "_ZN2at5helloE3Sse",
                           "malloc",
                           "",
                           "_Z",
                           "_ZN2at3fooESt12basic_stringstream",
                           "_ZN2at1fILj5ESsxE"};
  for (const char* name : old_names) EXPECT_EQ(doctor::string_abi_of(name), StringAbi::kOld) << name;
  for (const char* name : new_names) EXPECT_EQ(doctor::string_abi_of(name), StringAbi::kNew) << name;
  for (std::size_t i = 0; i + 1 < std::size(neutral); ++i)
    EXPECT_EQ(doctor::string_abi_of(neutral[i]), StringAbi::kNeutral) << neutral[i];
  // A literal's digits are no length: what follows it counts.
  EXPECT_EQ(doctor::string_abi_of(neutral[std::size(neutral) - 1]), StringAbi::kOld);
}

TEST(Mangled, WhatBelongsToTorch) {
  for (const char* name : {"_ZN3c105ErrorC1Ev", "_ZNK3c106SymInt6sym_neERKS0_", "_ZN2at4_ops3add4callEv",
                           "_ZN5torch8autogradE", "_ZTIN3c105ErrorE", "_ZTVN3c105ErrorE"})
    EXPECT_TRUE(doctor::is_torch_name(name)) << name;
  for (const char* name : {"_ZNSt6vectorIN3c105ErrorEE", "_ZN6vision3nmsEv", "aoti_torch_delete", "_ZN4c101fEv"})
    EXPECT_FALSE(doctor::is_torch_name(name)) << name;
  EXPECT_TRUE(doctor::is_torch_stable_name("aoti_torch_get_data_ptr"));
  EXPECT_EQ(doctor::demangled("_ZN3c105ErrorC1ENS_14SourceLocationESs"),
            "c10::Error::Error(c10::SourceLocation, std::string)");
  EXPECT_EQ(doctor::demangled("plain"), "plain");
}

// The same source by both ABIs of the compiler at hand.
TEST(Mangled, CompiledWithBothAbis) {
  fixtures::TempFolder folder;
  const std::string source =
      "#include <string>\nnamespace c10 { struct SourceLocation { const char* a; }; struct Error { "
      "Error(SourceLocation, std::string); }; int use(const std::string&); }\n"
      "int PyInit_x() { c10::Error e({\"\"}, \"long enough\"); return c10::use(\"x\"); }\n";
  for (const bool is_new : {false, true}) {
    const std::string path = folder / (is_new ? "new.so" : "old.so");
    fixtures::compile(path, source,
                      std::string("-x c++ -shared -fPIC -D_GLIBCXX_USE_CXX11_ABI=") + (is_new ? "1" : "0"));
    const auto facts = doctor::cxx_abi_of_imports(doctor::read_elf_file(path));
    EXPECT_EQ(facts.abi, is_new ? CxxAbi::kNew : CxxAbi::kOld);
    EXPECT_EQ(facts.torch_symbols, 2u);
    EXPECT_EQ((is_new ? facts.new_symbols : facts.old_symbols).size(), 2u);
    // Without torch, the strings of libstdc++ show it.
    EXPECT_EQ(doctor::cxx_abi_of_strings(doctor::read_elf_file(path)).abi, facts.abi);
  }
}

TEST(Torch, SignaturesThatCameAndWent) {
  const auto range = [](const char* symbol) {
    const doctor::TorchSignature* row = doctor::find_torch_signature(symbol);
    return row ? doctor::torch_range_text(*row) : std::string("any");
  };
  EXPECT_EQ(range("_ZN3c104cuda9SetDeviceEa"), "torch up to 2.7");
  EXPECT_EQ(range("_ZN3c104cuda9SetDeviceEab"), "torch 2.8 and later");
  EXPECT_EQ(range("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"), "torch 2.10 and later");
  EXPECT_EQ(range("_ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE"), "torch up to 2.12");
  EXPECT_EQ(range("_ZN2at4_ops5empty4callEN3c108ArrayRefINS2_6SymIntEEENS2_8optionalINS2_10ScalarTypeEEE"), "any");
  EXPECT_EQ(range("_ZN2at4_ops3pad4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEENS5_8optionalIdEE"),
            "torch up to 2.1");
  EXPECT_EQ(range("_ZN2at4_ops3pad4callERKNS_6TensorESt8optionalIdE"), "torch 2.2 and later");
  EXPECT_EQ(range("_ZN3c105Error4whatEv"), "any");
  EXPECT_EQ(doctor::stable_function_release("torch_from_blob").text(), "2.11");
  EXPECT_FALSE(doctor::stable_function_release("aoti_torch_get_data_ptr").known());
  EXPECT_FALSE(doctor::stable_function_release("torch_from").known());
}

TEST(Python, ModuleNames) {
  const auto name = doctor::parse_module_name("pkg/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so");
  EXPECT_EQ(name.module, "flash_attn_2_cuda");
  EXPECT_EQ(name.python.text(), "3.12");
  EXPECT_FALSE(name.free_threaded);
  EXPECT_TRUE(doctor::parse_module_name("x.cpython-313t-x86_64-linux-gnu.so").free_threaded);
  EXPECT_EQ(doctor::parse_module_name("lib/pkg/__init__.cpython-312-x86_64-linux-gnu.so").module, "pkg");
  EXPECT_EQ(doctor::parse_module_name("__init__.abi3.so").module, "__init__");
  EXPECT_EQ(doctor::parse_module_name("_C.abi3.so").naming, doctor::ModuleNaming::kAbi3);
  EXPECT_EQ(doctor::parse_module_name("_C.abi3t.so").naming, doctor::ModuleNaming::kAbi3);
  EXPECT_EQ(doctor::parse_module_name("_C.so").naming, doctor::ModuleNaming::kPlain);
  EXPECT_EQ(doctor::parse_module_name("libfoo.so.1").naming, doctor::ModuleNaming::kNone);
  EXPECT_EQ(doctor::parse_module_name("x.pypy39-pp73-x86_64-linux-gnu.so").naming, doctor::ModuleNaming::kNone);
  EXPECT_FALSE(doctor::parse_module_name("x.cpython-9999999999-x.so").python.known());
}

TEST(Python, StableAbi) {
  EXPECT_EQ(doctor::stable_abi_release("PyLong_FromLong").text(), "3.2");
  EXPECT_EQ(doctor::stable_abi_release("PyObject_GetBuffer").text(), "3.11");
  EXPECT_FALSE(doctor::stable_abi_release("_PyThreadState_UncheckedGet").known());
  EXPECT_FALSE(doctor::stable_abi_release("").known());
}

TEST(Tags, WheelNames) {
  const auto name =
      doctor::parse_wheel_name("/x/flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->distribution, "flash_attn");
  EXPECT_EQ(name->version, "2.8.3+cu12torch2.8cxx11abiTRUE");
  EXPECT_EQ(name->tags.at(0).text(), "cp312-cp312-linux_x86_64");
  EXPECT_EQ(doctor::parse_wheel_name("a-1-py2.py3-none-any.whl")->tags.size(), 2u);
  EXPECT_EQ(doctor::parse_wheel_name("a-1-2b-py3-none-any.whl")->build, "2b");
  EXPECT_EQ(doctor::parse_wheel_name("A-1-CP312-abi3-Linux_x86_64.whl")->tags.at(0).text(), "cp312-abi3-linux_x86_64");
  for (const char* bad : {"a-1-py3-none.whl", "a-1-py3-none-any.zip", "a-1-x-py3-none-any.whl", "a--py3-none-any.whl",
                          ".whl", "", "a-1-py3-none-any (1).whl"})
    EXPECT_FALSE(doctor::parse_wheel_name(bad)) << bad;
}

TEST(Tags, WhoAcceptsWhat) {
  doctor::Environment target;
  target.machine = "x86_64";
  target.libc_version = parse_version("2.31");
  target.python.emplace();
  target.python->version = parse_version("3.12.4");
  const auto accepts = [&](const char* tag) {
    const doctor::WheelTag parsed = doctor::parse_wheel_name(std::string("a-1-") + tag + ".whl")->tags[0];
    return doctor::python_accepts(parsed, *target.python) && doctor::platform_accepts(parsed, target);
  };
  for (const char* yes :
       {"cp312-cp312-linux_x86_64", "cp312-cp312-manylinux_2_31_x86_64", "cp38-abi3-manylinux2014_x86_64",
        "py3-none-any", "py310-none-any", "cp312-none-any", "py3-none-manylinux1_x86_64"})
    EXPECT_TRUE(accepts(yes)) << yes;
  for (const char* no :
       {"cp311-cp311-linux_x86_64", "cp313-abi3-linux_x86_64", "cp312-cp312t-linux_x86_64", "py2-none-any",
        "py313-none-any", "cp312-cp312-linux_aarch64", "cp312-cp312-manylinux_2_34_x86_64",
        "cp312-cp312-musllinux_1_2_x86_64", "cp312-cp312-win_amd64", "cp312-cp312-macosx_11_0_arm64", "cp312-cp312-any",
        "cp38-abi3-any", "cp38-abi3t-linux_x86_64", "py3-none-manylinux_2_4_x86_64"})
    EXPECT_FALSE(accepts(no)) << no;
  // As packaging.tags.sys_tags() lists them on aarch64: manylinux begins with 2014 there.
  target.machine = "aarch64";
  for (const char* no :
       {"py3-none-manylinux1_aarch64", "py3-none-manylinux2010_aarch64", "py3-none-manylinux_2_16_aarch64"})
    EXPECT_FALSE(accepts(no)) << no;
  EXPECT_TRUE(accepts("py3-none-manylinux2014_aarch64"));
  EXPECT_TRUE(accepts("py3-none-manylinux_2_17_aarch64"));
  target.machine = "x86_64";
  // Up to 3.7 the ABI's name has an m.
  target.python->version = parse_version("3.7.16");
  EXPECT_TRUE(accepts("cp37-cp37m-linux_x86_64"));
  EXPECT_FALSE(accepts("cp37-cp37-linux_x86_64"));
  EXPECT_FALSE(accepts("cp36-cp36m-linux_x86_64"));
  target.python->version = parse_version("3.12.4");
  EXPECT_FALSE(accepts("cp312-cp312m-linux_x86_64"));
  target.python->free_threaded = true;
  EXPECT_FALSE(accepts("cp38-abi3-linux_x86_64"));
  EXPECT_TRUE(accepts("cp38-abi3t-linux_x86_64"));
  EXPECT_TRUE(accepts("cp312-cp312t-linux_x86_64"));
  EXPECT_FALSE(accepts("cp312-cp312-linux_x86_64"));
}

TEST(Tags, RequiresPython) {
  const char* python = "3.10.7";
  for (const char* yes : {">=3.9", ">=3.9,<3.13", "==3.10.*", "!=3.9.*", "~=3.8", "", "== 3.10.7", ">3.10", "nonsense"})
    EXPECT_TRUE(doctor::satisfies(python, yes)) << yes;
  for (const char* no : {">=3.11", "<3.10", "!=3.10.*", "~=3.9.1", "==3.9", ">=3.9, <3.10.7", "<=3.9"})
    EXPECT_FALSE(doctor::satisfies(python, no)) << no;
}

// As packaging.specifiers.SpecifierSet(...).contains(..., prereleases=True) answers.
TEST(Tags, ANightlyComesBeforeItsRelease) {
  for (const char* nightly : {"2.9.0.dev20250801+cu128", "2.9.0a0+git1234567", "2.9.0rc1"}) {
    for (const char* yes : {">=2.8", "<=2.9", "!=2.9.0", "==2.9.*", "<3,>=2.8", "~=2.8", "<2.10"})
      EXPECT_TRUE(doctor::satisfies(nightly, yes)) << nightly << " " << yes;
    for (const char* no : {">=2.9", "<2.9", ">2.9", "==2.9.0", "~=2.9.0", "!=2.9.*"})
      EXPECT_FALSE(doctor::satisfies(nightly, no)) << nightly << " " << no;
  }
  for (const char* release : {"2.9.0", "2.9.0+cu128", "2.9.0.post1", "2.9.0+cpu.cxx11.abi"})
    EXPECT_TRUE(doctor::satisfies(release, ">=2.9")) << release;
}

// As packaging.version.Version orders them.
TEST(Tags, ReleasesInOrder) {
  const char* ordered[] = {"1.0.dev0",  "1.0a1",  "1.0b2.dev1", "1.0b2",    "1.0rc1",
                           "1.0",       "1.0+cu", "1.0+cu.1",   "1.0+1",    "1.0.post1.dev2",
                           "1.0.post1", "1.1",    "1.10",       "2024.1.5", "1!0.5"};
  for (std::size_t i = 0; i + 1 < std::size(ordered); ++i)
    EXPECT_LT(*doctor::parse_release(ordered[i]), *doctor::parse_release(ordered[i + 1])) << ordered[i];
  const std::pair<const char*, const char*> same[] = {{"1.0", "1.0.0"},          {"2024.01.05", "2024.1.5"},
                                                      {"1.0-rc.1", "1.0rc1"},    {"1.0-1", "1.0.post1"},
                                                      {"1.0_1", "1.0-1"},        {"v1.0", "1"},
                                                      {"0!1.0", "1.0"},          {"1.0.dev", "1.0.dev0"},
                                                      {"1.0alpha", "1.0a0"},     {"1.0+CU-12_a", "1.0+cu.12.a"},
                                                      {"1.0.PREVIEW2", "1.0c2"}, {"odd_one", "odd+one"}};
  for (const auto& [a, b] : same) EXPECT_TRUE(doctor::is_same_release(a, b)) << a << " " << b;
  for (const char* odd :
       {"", "v", "1.0x", "1.0+", "1.0a1b2", "1..0", "1.0-", "1.0.post1.post2", "1.0+a..b", "1.0-1-1", "!1"})
    EXPECT_FALSE(doctor::parse_release(odd)) << odd;
  EXPECT_FALSE(doctor::is_same_release("1.0", "1.0.post1"));
}

TEST(Tags, SpecifiersOfBuildsBeforeARelease) {
  const char* nightly = "2.9.0.dev20250901+cu128";
  for (const char* yes :
       {">=2.9.0.dev20250801", ">=2.9.0.dev0,<3", "~=2.9.0.dev0", "<2.9.0a1", "===2.9.0.dev20250901+cu128"})
    EXPECT_TRUE(doctor::satisfies(nightly, yes)) << yes;
  for (const char* no : {">=2.9.0.dev20251001", ">=2.9.0a0", "<2.9.0.dev1", "===2.9.0", ">2.9.0.dev20250901"})
    EXPECT_FALSE(doctor::satisfies(nightly, no)) << no;
  EXPECT_TRUE(doctor::satisfies("2.9.0a0+50eac811a6.nv25.09", ">=2.9.0a0"));
  EXPECT_FALSE(doctor::satisfies("2.8.0.post1", "<=2.8"));
  EXPECT_FALSE(doctor::satisfies("2.8.0.post1", ">2.8"));
  EXPECT_TRUE(doctor::satisfies("3.12.1", ">3.13 please"));  // pip warns, and goes on
}

TEST(Requirement, TakenApart) {
  const auto parsed = doctor::parse_requirement("torch[opt] (>=2.4, <3) ; python_version > '3.9'");
  EXPECT_EQ(parsed.name, "torch");
  EXPECT_EQ(parsed.extras, "opt");
  EXPECT_EQ(parsed.version, "<3,>=2.4");
  EXPECT_EQ(parsed.marker, "python_version > '3.9'");
  EXPECT_FALSE(parsed.is_pinned());
  EXPECT_TRUE(doctor::parse_requirement("torch==2.8.0").is_pinned());
  EXPECT_TRUE(doctor::parse_requirement("torch; extra==\"gpu\"").is_optional());
  EXPECT_FALSE(doctor::parse_requirement("torch; python_version > '3.9'").is_optional());
  const auto url = doctor::parse_requirement("torch @ https://host/a;b.whl ; extra == 'x'");
  EXPECT_EQ(url.name, "torch");
  EXPECT_EQ(url.url, "https://host/a;b.whl");
  EXPECT_EQ(url.marker, "extra == 'x'");
  for (const char* odd : {"", "[", "torch[", "@", ";", "(((", "torch;", "torch ["}) doctor::parse_requirement(odd);
}

TEST(Text, Versions) {
  EXPECT_LT(parse_version("2.9"), parse_version("2.10"));
  EXPECT_EQ(parse_version("12"), parse_version("12.0"));
  EXPECT_EQ(parse_version("2.8.0+cu128").text(), "2.8.0");
  EXPECT_FALSE(parse_version("x").known());
  EXPECT_EQ(parse_version("99999999999999999999").text(), "100000000");
  EXPECT_EQ(doctor::normal_version("2.8.3+CU12_torch"), "2.8.3+cu12.torch");
  EXPECT_EQ(doctor::normal_name("Flash--Attn.x"), "flash_attn_x");
}

TEST(Text, Printable) {
  EXPECT_EQ(support::printable("a\x1b[31mb\xff"), "a\\x1b[31mb\\xff");
  EXPECT_EQ(support::printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(support::printable("\xc2\x9b"
                               "x"),
            "\\xc2\\x9bx");
  EXPECT_EQ(support::printable(std::string(500, 'x'), 10), "xxxxxxxxxx...");
}

TEST(Text, Record) {
  std::vector<std::string> problems;
  const auto rows = doctor::parse_record("a.py,sha256=x,3\r\n\"b,\"\"c\"\"\",,\n\nbad\nd,,x\n\"open", &problems);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].size, 3u);
  EXPECT_EQ(rows[1].path, "b,\"c\"");
  EXPECT_FALSE(rows[1].size);
  EXPECT_EQ(problems.size(), 4u);
}

TEST(Text, Metadata) {
  const auto metadata =
      doctor::parse_metadata("Name: a\r\nDescription: one\n  two\nno colon here\n: empty\n\nVersion: of the body\n");
  EXPECT_EQ(metadata.first("NAME"), "a");
  EXPECT_EQ(metadata.first("Description"), "one\ntwo");
  EXPECT_EQ(metadata.first("Version"), "");
}

TEST(Text, Imports) {
  EXPECT_EQ(doctor::compiled_imports("import torch, flash_attn_2_cuda as f\n  from pkg._C import x\nimport "
                                     "numpy_cuda\nfrom . import y\nimport os\n"),
            (std::vector<std::string>{"flash_attn_2_cuda", "pkg._C"}));
}

TEST(Text, Sha256) {
  const auto hash = [](const std::string& text, std::size_t piece, bool in_words = false) {
    support::Sha256 h(in_words);
    for (std::size_t at = 0; at < text.size(); at += piece) {
      const std::string part = text.substr(at, piece);
      h.update({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
    }
    return support::url_base64(h.digest());
  };
  // FIPS 180-2, appendix B, in base64.
  EXPECT_EQ(hash("", 1), "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU");
  EXPECT_EQ(hash("abc", 3), "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0");
  EXPECT_EQ(hash(std::string(1'000'000, 'a'), 1000), "zcduXJkU-5KBocfihNc-Z_GAmkiklyAOBG05zMcRLNA");
  EXPECT_EQ(hash(std::string(119, 'a'), 7), hash(std::string(119, 'a'), 119));
  // The processor's instructions, where it has them, say what C++ says.
  EXPECT_EQ(hash("abc", 3, true), hash("abc", 3));
  std::string text;
  for (unsigned i = 0; i < 1000; ++i) text += char(i * 2654435761u >> 24);
  for (const std::size_t piece : {1u, 63u, 64u, 65u, 500u, 1000u})
    EXPECT_EQ(hash(text, piece, true), hash(text, piece)) << piece;
}

}  // namespace
