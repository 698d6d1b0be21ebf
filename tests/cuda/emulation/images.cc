// SPDX-License-Identifier: Apache-2.0
// In place of src/cuda/images.cc: an image of every row of kernels.def that was compiled for the emulation, for the
// architectures that the row names. Its code is nothing; the driver that takes it asks for the kernel by its name.
#include "cuda/images.h"

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/registry.h"
#include "tests/cuda/emulation/emulator.h"

namespace mica {
namespace {

std::vector<KernelImage> make_images() {
  std::vector<KernelImage> images;
  for (i32 index = 0; index < kernel_table().num_rows; ++index) {
    const KernelRow& row = kernel_table().rows[index];
    if (!emulation::has_kernel(row.name)) continue;
    std::istringstream targets(row.targets);
    for (std::string target; targets >> target;) {
      const bool is_ptx = target.compare(0, 3, "ptx") == 0;
      const bool specific = std::strchr("af", target.back()) != nullptr;
      images.push_back(
          {index, std::atoi(target.c_str() + (is_ptx ? 3 : 0)), is_ptx, specific, 0, 0, 1, -1, 1, 0, 0, 0});
    }
  }
  return images;
}

}  // namespace

const ImageTable& kernel_images() {
  static const std::vector<KernelImage> images = make_images();
  static const ImageTable table = {images.data(), i32(images.size()), nullptr, 0};
  return table;
}

// As src/cuda/images.cc does it, without the search by halves.
i32 find_image(const ImageTable& table, i32 row, i32 device_arch) {
  i32 best = -1, best_rank = 0;
  for (i32 i = 0; i < table.num_images; ++i) {
    const i32 rank = table.images[i].row == row ? image_rank(table.images[i], device_arch) : 0;
    if (rank <= best_rank) continue;
    best = i;
    best_rank = rank;
  }
  return best;
}

mica_status unpack_image(const ImageTable&, i32, const char*, std::unique_ptr<unsigned char[]>* code) {
  *code = std::make_unique<unsigned char[]>(1);
  return MICA_OK;
}

}  // namespace mica
