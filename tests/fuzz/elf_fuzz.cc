// SPDX-License-Identifier: Apache-2.0
// libFuzzer over the ELF reader and what is drawn from its facts: any bytes give an answer or one ReadError.
#include "doctor/judge/judge.h"
#include "doctor/read/binary.h"
#include "doctor/read/inspect.h"
#include "doctor/report/describe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  support::MemorySource source(std::span<const uint8_t>(data, size));
  doctor::Inspection inspection;
  inspection.path = "/site/m.cpython-312-x86_64-linux-gnu.so";
  try {
    if (auto binary = doctor::read_binary(source, inspection.path, inspection.problems))
      inspection.binaries.push_back(std::move(*binary));
  } catch (const support::ReadError&) {
  }
  doctor::describe(inspection, false);
  // The loader looks up what the file asks for in a target that has nothing.
  doctor::Environment target;
  target.machine = inspection.binaries.empty() ? "" : doctor::machine_name(inspection.binaries[0].elf);
  target.python.emplace();
  target.python->version = support::parse_version("3.12");
  target.gpus = {{"", {8, 0}}};
  target.driver = support::parse_version("535.54");
  doctor::judge(inspection, target);
  return 0;
}
