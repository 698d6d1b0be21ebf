// SPDX-License-Identifier: Apache-2.0
// libFuzzer over archives: any bytes give a wheel with its problems or one ReadError, within the limits.
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "doctor/report/describe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  support::MemorySource source(std::span<const uint8_t>(data, size));
  try {
    doctor::Inspection inspection;
    inspection.kind = doctor::FileKind::kWheel;
    inspection.path = "pkg-1.0-cp312-cp312-manylinux_2_28_x86_64.whl";
    inspection.wheel = doctor::read_wheel(source, inspection.path, {}, {1000, 1 << 22, 200});
    doctor::describe(inspection, true);
    doctor::judge(inspection);
  } catch (const support::ReadError&) {
  }
  return 0;
}
