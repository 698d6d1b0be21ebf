// SPDX-License-Identifier: Apache-2.0
#define MICA_NS mica_bfmmla
#define MICA_ISA_NAME "bfmmla"
#define MICA_BF16_ENGINE EngineBfmmla
#include "cpu/engine/engine_bfmmla.h"
#include "cpu/isa/isa.inc"
