// SPDX-License-Identifier: Apache-2.0
#define MICA_NS mica_avx512
#define MICA_ISA_NAME "avx512"
#include "cpu/isa/isa.inc"
