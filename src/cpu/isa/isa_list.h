// SPDX-License-Identifier: Apache-2.0
// The instruction sets built into the library, best first. One that is forced (MICA_CPU_ISA) or found is backed by
// those after it, for the problems it has no kernel for.
#pragma once

#include "cpu/isa/isa.h"

namespace mica {

struct Isa {
  const IsaTable& (*table)();
  bool (*is_available)();
};

extern const Isa kIsas[];
extern const i32 kNumIsas;

// Whether tiles of AMX, where they are available, multiply fp16 too.
bool has_amx_fp16();

}  // namespace mica
