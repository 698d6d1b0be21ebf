// SPDX-License-Identifier: Apache-2.0
#define MICA_NS mica_amx
#define MICA_ISA_NAME "amx"
#define MICA_BF16_ENGINE EngineAmx
#define MICA_FP16_ENGINE EngineAmxSplit
#define MICA_NATIVE_FP16_ENGINE EngineAmxFp16
#include "cpu/engine/engine_amx.h"
#include "cpu/isa/isa.inc"
