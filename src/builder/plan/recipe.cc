// SPDX-License-Identifier: Apache-2.0
#include "builder/plan/recipe.h"

namespace builder {
namespace {

constexpr uint64_t kMiB = uint64_t(1) << 20;

const Recipe kGeneral = {"", "",    "",   "", "", "", 2500 * kMiB, 0, 0, {"setuptools", "wheel", "packaging", "ninja"},
                         {}, false, false};

}  // namespace

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> rows = {
      // 72 files of 240 to 370 s; measured: 4.1 GB (split) to 7.0 GB (backward, d = 256) for one architecture.
      {"flash-attn",
       "FLASH_ATTENTION_FORCE_BUILD",
       "FLASH_ATTENTION_SKIP_CUDA_BUILD",
       "FLASH_ATTENTION_FORCE_CXX11_ABI",
       "FLASH_ATTN_CUDA_ARCHS",
       "FLASH_ATTN_LOCAL_VERSION",
       7200 * kMiB,
       72,
       80,
       {"setuptools", "wheel", "packaging", "ninja", "psutil"},
       {"flash_attn_2_cuda"},
       true,
       true,
       21'500,  // 50 of 73 files took 922 s with 16 jobs
       62'153'028},
      {"causal-conv1d",
       "CAUSAL_CONV1D_FORCE_BUILD",
       "CAUSAL_CONV1D_SKIP_CUDA_BUILD",
       "CAUSAL_CONV1D_FORCE_CXX11_ABI",
       "",
       "CAUSAL_CONV1D_LOCAL_VERSION",
       4000 * kMiB,  // measured: 3.8 GiB for sm_90
       3,
       53,
       {"setuptools", "wheel", "packaging", "ninja"},
       {"causal_conv1d_cuda"},
       false,
       true,
       1188,
       25'588'605},
      {"mamba-ssm",
       "MAMBA_FORCE_BUILD",
       "MAMBA_SKIP_CUDA_BUILD",
       "MAMBA_FORCE_CXX11_ABI",
       "",
       "MAMBA_LOCAL_VERSION",
       2000 * kMiB,  // measured: 1.0 GiB for sm_90 (backward, complex, bf16)
       9,
       53,
       {"setuptools", "wheel", "packaging", "ninja"},
       {"selective_scan_cuda"},
       false,
       true},
  };
  return rows;
}

const Recipe& recipe_of(std::string_view package) {
  for (const Recipe& row : recipes())
    if (package == row.package) return row;
  return kGeneral;
}

}  // namespace builder
