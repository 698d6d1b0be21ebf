// SPDX-License-Identifier: Apache-2.0
#include "cuda/images.h"

#if MICA_HAS_IMAGES
#include <zstd.h>

#include <cstring>
#include <new>
#endif

#include "base/status.h"

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

// zstd asks these two, weakly, whether somebody traces it. Ours are hidden: a program's own would be called with our
// frames.
extern "C" {
__attribute__((visibility("hidden"))) unsigned long long ZSTD_trace_decompress_begin(const ZSTD_DCtx*) { return 0; }
__attribute__((visibility("hidden"))) void ZSTD_trace_decompress_end(unsigned long long, const void*) {}
}
#endif

namespace mica {
namespace {

// One entry of row -1 ends the table, which may be empty.
constexpr KernelImage kImages[] = {
#if MICA_HAS_IMAGES
#include "images.inc"
#endif
    {-1, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0}};

constexpr ImageTable kTable = {kImages, i32(sizeof kImages / sizeof kImages[0]) - 1,
#if MICA_HAS_IMAGES
                               mica_kernel_image_data, MICA_IMAGES_BYTES
#else
                               nullptr, 0
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
namespace {

constexpr i32 kMaxBases = 3;  // as build_kernels.py chooses them

using Code = std::unique_ptr<unsigned char[]>;

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// The frame of an image, null where the table does not fit the data. Other formats than today's frames, which zstd may
// know as well, are none of ours.
const unsigned char* find_frame(const ImageTable& table, const KernelImage& image) {
  if (image.offset > table.data_bytes || image.packed_bytes > table.data_bytes - image.offset) return nullptr;
  const unsigned char* frame = table.data + image.offset;
  constexpr unsigned char kMagic[] = {0x28, 0xb5, 0x2f, 0xfd};
  if (image.packed_bytes < sizeof kMagic || std::memcmp(frame, kMagic, sizeof kMagic) != 0) return nullptr;
  if (ZSTD_getFrameContentSize(frame, image.packed_bytes) != image.bytes) return nullptr;
  return frame;
}

}  // namespace

mica_status unpack_image(const ImageTable& table, i32 index, const char* name, std::unique_ptr<unsigned char[]>* code) {
  const auto damaged = [&](const char* what) {
    return fail(MICA_ERROR_INTERNAL, "the image of %s does not unpack, %s: the library's file is damaged", name, what);
  };
  // From the image to the one that has no base, then back.
  i32 chain[kMaxBases + 1];
  i32 length = 0;
  for (i32 i = index; i != -1; i = table.images[i].base) {
    if (i < 0 || i >= table.num_images || length > kMaxBases) return damaged("its base is none");
    chain[length++] = i;
  }
  const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  if (!context) return fail(MICA_ERROR_OUT_OF_MEMORY, "no memory to unpack the image of %s", name);
  Code base;
  size_t base_bytes = 0;
  while (length > 0) {
    const KernelImage& image = table.images[chain[--length]];
    const unsigned char* frame = find_frame(table, image);
    if (!frame) return damaged("its place or size is wrong");
    Code unpacked(new (std::nothrow) unsigned char[size_t(image.bytes) + 1]);
    if (!unpacked)
      return fail(MICA_ERROR_OUT_OF_MEMORY, "no %u bytes of memory to unpack the image of %s", image.bytes, name);
    if (base && ZSTD_isError(ZSTD_DCtx_refPrefix(context.get(), base.get(), base_bytes)))
      return fail(MICA_ERROR_OUT_OF_MEMORY, "no memory to unpack the image of %s", name);
    const size_t bytes = ZSTD_decompressDCtx(context.get(), unpacked.get(), image.bytes, frame, image.packed_bytes);
    if (ZSTD_isError(bytes)) return damaged(ZSTD_getErrorName(bytes));
    if (bytes != image.bytes) return damaged("it has another size");
    unpacked[image.bytes] = 0;
    base = std::move(unpacked);
    base_bytes = image.bytes;
  }
  *code = std::move(base);
  return MICA_OK;
}
#else
mica_status unpack_image(const ImageTable&, i32, const char* name, std::unique_ptr<unsigned char[]>*) {
  return fail(MICA_ERROR_UNSUPPORTED, "this build carries no image of %s", name);
}
#endif

}  // namespace mica
