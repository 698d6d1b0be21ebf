// SPDX-License-Identifier: Apache-2.0
#include "cuda/images.h"

#if MICA_HAS_IMAGES
#include <zlib.h>

#include <new>
#endif

#if MICA_HAS_IMAGES
// The data goes into the object as it is; the digest makes a changed file a changed source for compiler caches.
#include "images_digest.h"
__asm__(
    ".section .rodata\n"
    "/* " MICA_IMAGES_DIGEST
    " */\n"
    ".balign 64\n"
    ".globl mica_kernel_image_data\n"
    ".hidden mica_kernel_image_data\n"
    ".type mica_kernel_image_data, %object\n"
    "mica_kernel_image_data:\n"
    ".incbin \"" MICA_IMAGES_FILE
    "\"\n"
    ".byte 0\n"
    ".size mica_kernel_image_data, . - mica_kernel_image_data\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char mica_kernel_image_data[];
#endif

namespace mica {
namespace {

// One entry of row -1 ends the table, which may be empty.
constexpr KernelImage kImages[] = {
#if MICA_HAS_IMAGES
#include "images.inc"
#endif
    {-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}};

constexpr ImageTable kTable = {kImages, i32(sizeof kImages / sizeof kImages[0]) - 1,
#if MICA_HAS_IMAGES
                               mica_kernel_image_data
#else
                               nullptr
#endif
};

}  // namespace

const ImageTable& kernel_images() { return kTable; }

i32 find_image(const ImageTable& table, i32 row, i32 device_arch) {
  // The images of a row lie together, rows in order.
  i32 low = 0, high = table.num_images;
  while (low < high) {
    const i32 middle = low + (high - low) / 2;
    if (table.images[middle].row < row)
      low = middle + 1;
    else
      high = middle;
  }
  i32 best = -1, best_rank = 0;
  for (i32 i = low; i < table.num_images && table.images[i].row == row; ++i) {
    const i32 rank = image_rank(table.images[i], device_arch);
    if (rank <= best_rank) continue;
    best = i;
    best_rank = rank;
  }
  return best;
}

#if MICA_HAS_IMAGES
std::unique_ptr<unsigned char[]> inflate_image(const ImageTable& table, const KernelImage& image) {
  std::unique_ptr<unsigned char[]> code(new (std::nothrow) unsigned char[image.bytes + 1]);
  if (!code) return nullptr;
  uLongf bytes = image.bytes;
  const int result = uncompress(code.get(), &bytes, table.data + image.offset, image.deflated_bytes);
  if (result != Z_OK || bytes != image.bytes) return nullptr;
  code[image.bytes] = 0;
  return code;
}
#else
std::unique_ptr<unsigned char[]> inflate_image(const ImageTable&, const KernelImage&) { return nullptr; }
#endif

}  // namespace mica
