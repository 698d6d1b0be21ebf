// SPDX-License-Identifier: Apache-2.0
#define MICA_NS mica_avx2
#define MICA_ISA_NAME "avx2"
#include "cpu/isa/isa.inc"
