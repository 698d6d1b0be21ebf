// SPDX-License-Identifier: Apache-2.0
// The only .cu file: one row of kernels.def, its columns given as macros, becomes one kernel.
#include "device/ptx.cuh"

#if MICA_DTYPE == 2
#define MICA_ELEMENT mica::Fp16
#elif MICA_DTYPE == 3
#define MICA_ELEMENT mica::Bf16
#elif MICA_DTYPE == 6
#define MICA_ELEMENT mica::E4m3
#else
#define MICA_ELEMENT float
#endif

// Of k and v.
#if MICA_KEYS == 6
#define MICA_KEY_ELEMENT mica::E4m3
#else
#define MICA_KEY_ELEMENT MICA_ELEMENT
#endif

#include MICA_KERNEL_FILE
