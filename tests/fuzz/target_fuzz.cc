// SPDX-License-Identifier: Apache-2.0
// libFuzzer over the description of another machine (`--target`): its JSON, the list of libraries in it, and the
// packing of that list. Whatever is read is then judged for.
#include <elf.h>

#include "doctor/judge/judge.h"
#include "doctor/load/library_list.h"
#include "doctor/load/packed_text.h"
#include "doctor/read/inspect.h"
#include "doctor/report/report.h"
#include "doctor/system/environment_json.h"

namespace {

// A module that asks for what a target may or may not have.
doctor::Inspection module() {
  doctor::Inspection out;
  out.path = "/site/m.so";
  doctor::Binary& binary = out.binaries.emplace_back();
  binary.path = out.path;
  binary.elf.type = ET_DYN;
  binary.elf.machine = EM_AARCH64;
  binary.elf.has_dynamic = true;
  binary.elf.needed = {"libc.so.6", "libc10.so"};
  binary.elf.version_needs = {{"libc.so.6", "GLIBC_2.17", false}};
  doctor::ElfSymbol symbol;
  symbol.name = "malloc";
  symbol.version = "GLIBC_2.17";
  symbol.binding = STB_GLOBAL;
  binary.elf.symbols = {symbol};
  binary.elf.relocated = {0};
  return out;
}

void judge_for(doctor::Environment target) {
  target.machine = "aarch64";
  doctor::judge(module(), target);
  doctor::describe(target);
}

}  // namespace

// What begins as JSON is one; else the first byte says which part it is.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    if (text[0] == '{' || text[0] == '[') {
      judge_for(doctor::parse_environment(text, "node.json"));
    } else if (text[0] % 2) {
      doctor::unpacked(text.substr(1), 1 << 20);
    } else {
      doctor::Environment target;
      target.loader.default_folders = {"/lib", "/site"};
      target.torch.emplace();
      target.torch->libraries = {"/site/libc10.so"};
      target.libraries = doctor::listed_libraries(doctor::read_library_list(text.substr(1)));
      judge_for(std::move(target));
    }
  } catch (const support::ReadError&) {
  }
  return 0;
}
