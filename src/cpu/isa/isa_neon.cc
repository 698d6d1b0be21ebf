// SPDX-License-Identifier: Apache-2.0
#define MICA_NS mica_neon
#define MICA_ISA_NAME "neon"
#include "cpu/isa/isa.inc"
