// SPDX-License-Identifier: Apache-2.0
// The compiled kernels that the library carries as data: one image per row of kernels.def and architecture,
// packed by zstd, most of them against another image.
#pragma once

#include <memory>

#include "core/types.h"

namespace mica {

struct KernelImage {
  i32 row;       // of kernels.def
  i32 arch;      // 86 for sm_86
  i32 is_ptx;    // for this architecture and all later ones, by the driver's compiler
  i32 specific;  // sm_90a: for exactly this architecture
  u32 offset, packed_bytes, bytes;
  i32 base;  // the image that it is packed against; -1: none
  i32 registers, smem_static_bytes, spilled_bytes, stack_bytes;
};

struct ImageTable {
  const KernelImage* images;
  i32 num_images;
  const unsigned char* data;
  size_t data_bytes;
};

// 0 images where the library was built without the device compiler.
const ImageTable& kernel_images();

// How well an image suits a device; 0: it does not run there. Machine code runs on its own major architecture from its
// minor on (an image of another major loads, but has no kernel: error 209); PTX of an earlier or equal one is the last
// resort.
MICA_HD i32 image_rank(const KernelImage& image, i32 device_arch) {
  const i32 distance = device_arch - image.arch;
  if (image.is_ptx) return distance >= 0 ? 1000 - distance : 0;
  if (distance == 0) return image.specific ? 2001 : 2000;
  return !image.specific && image.arch / 10 == device_arch / 10 && distance > 0 ? 2000 - distance : 0;
}

// The best image of a row for a device; -1: none.
i32 find_image(const ImageTable& table, i32 row, i32 device_arch);

// The image as the driver takes it: unpacked, one zero byte behind it (PTX is text). Fails without memory and where the
// data or the table is damaged; `name` is the kernel's, for the message.
mica_status unpack_image(const ImageTable& table, i32 index, const char* name, std::unique_ptr<unsigned char[]>* code);

}  // namespace mica
