// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/known_failures.h"

namespace doctor {

std::span<const KnownFailure> known_run_failures() {
  static const std::vector<KnownFailure> rows = {
      {"FATBIN_ZSTD_OLD_DRIVER",
       Role::kCause,
       {"device kernel image is invalid", "cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE"},
       {},
       "The driver cannot read the GPU code: it is compressed in a way that drivers before 550 do not know "
       "(flash-attn 2.8.1 was), or compiled by a CUDA of a newer major than the driver's.",
       "a newer driver (550 or later; 580 for CUDA 13), or {pip} install 'flash-attn==2.8.3'; mica inspect FILE.so "
       "tells which of the two it is"},
      {"GPU_NO_CODE",
       Role::kCause,
       {"no kernel image is available for execution on the device", "cudaErrorNoKernelImageForDevice",
        "CUDA_ERROR_NO_BINARY_FOR_GPU"},
       {},
       "The file holds no code for this GPU: none of its binaries is for it, and it brings no PTX that could be "
       "compiled. flash-attn 2.8.3 serves compute capability 8.x, 9.0, 10.x and 12.x; its version 3 only 8.x and 9.0.",
       "mica inspect FILE.so lists what it serves; build for your GPU with FLASH_ATTN_CUDA_ARCHS set"},
      {"PTX_TOO_NEW",
       Role::kCause,
       {"the provided PTX was compiled with an unsupported toolchain", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "cudaErrorUnsupportedPtxVersion"},
       {},
       "The PTX in the file is newer than this driver's compiler.",
       "a newer driver, or a build made with an older CUDA toolkit"},
      {"DRIVER_TOO_OLD",
       Role::kCause,
       {"CUDA driver version is insufficient for CUDA runtime version", "cudaErrorInsufficientDriver",
        "The NVIDIA driver on your system is too old (found version {version})"},
       {},
       "PyTorch's CUDA runtime needs a newer driver: CUDA 12 needs 525 or later, CUDA 13 needs 580 or later.",
       "update the driver, or install a PyTorch for an older CUDA: {pip} install torch --index-url "
       "https://download.pytorch.org/whl/cu126"},
      {"DRIVER_MISSING",
       Role::kCause,
       {"Found no NVIDIA driver on your system", "Torch not compiled with CUDA enabled",
        "no CUDA-capable device is detected", "No CUDA GPUs are available"},
       {},
       "PyTorch sees no GPU: the machine or container has none, the driver is missing, CUDA_VISIBLE_DEVICES hides it, "
       "or this PyTorch is a build for the CPU.",
       "mica doctor shows driver, GPUs and PyTorch's CUDA; in a container: docker run --gpus all ..."},
      {"GPU_NO_CODE",
       Role::kCause,
       {"with CUDA capability {capability} is not compatible with the current PyTorch installation"},
       {},
       "This PyTorch has no code for the GPU ({capability}).",
       "{pip} install a PyTorch of a newer CUDA: {pip} install torch --index-url "
       "https://download.pytorch.org/whl/cu128"},
      {"GPU_TOO_OLD",
       Role::kCause,
       {"FlashAttention only supports Ampere GPUs or newer"},
       {},
       "flash-attn 2 runs on compute capability 8.0 and later only (not on V100, T4 or RTX 20). An "
       "old copy inside xformers says the same of GPUs it does not know yet.",
       "use attn_implementation=\"sdpa\" in transformers; on a new GPU: {pip} install -U xformers flash-attn"},
      {"FLASH_ATTN_DTYPE",
       Role::kCause,
       {"FlashAttention only support fp16 and bf16 data type", "FlashAttention only supports fp16 and bf16 data type",
        "Flash Attention 2 only supports torch.float16 and torch.bfloat16 dtypes"},
       {},
       "The tensors that reach flash-attn are fp32 (or another type); nothing is wrong with the installation.",
       "load the model in bf16 (transformers: torch_dtype=torch.bfloat16), or run it under "
       "torch.autocast(\"cuda\", torch.bfloat16)"},
      {"GPU_OUT_OF_MEMORY",
       Role::kCause,
       {"CUDA out of memory. Tried to allocate {amount*}."},
       {},
       "The GPU's memory is full; nothing is wrong with the installation.",
       "a smaller batch or sequence; nvidia-smi shows who else uses the GPU"},
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"operator torchvision::{operator} does not exist", "Couldn't load custom C++ ops",
        "Could not load this library: {file*}/torchaudio", "Could not load library {file*}torchaudio"},
       {},
       "torchvision or torchaudio was built for another PyTorch than the one that is installed, and its compiled part "
       "could not be loaded.",
       "{pip} install -U --force-reinstall torch torchvision torchaudio in one command"},
      {"FLASH_ATTN_NOT_SEEN",
       Role::kCause,
       {"the package flash_attn seems to be not installed", "FlashAttention2 is not installed",
        "Flash Attention 2 is not installed", "FlashAttention3 is not installed", "flash attention 2 is not installed",
        "flash_attn is not installed", "flash-attn is not installed", "please install it with 'pip install flash-attn",
        "requires the following packages that were not found in your environment: flash_attn"},
       {},
       "transformers found no flash_attn in this Python, or found the folder without its installed metadata; it looks "
       "at the package's metadata, so a copied folder does not count.",
       "{pip} install the wheel that mica pick names, or ask for attn_implementation=\"sdpa\""},
  };
  return rows;
}

std::span<const KnownFailure> known_symptoms() {
  static const std::vector<KnownFailure> rows = {
      {"BUILD_FAILED",
       Role::kSymptom,
       {"ninja: build stopped: subcommand failed", "Error compiling objects for extension",
        "Command '['ninja', '-v'{more*}]' returned non-zero exit status", "command '{tool*}nvcc' failed with exit",
        "ERROR: Failed building wheel for {package}", "Failed to build {package}", "ERROR: Could not build wheels for",
        "subprocess-exited-with-error", "metadata-generation-failed", "legacy-install-failure",
        "Failed to build installable wheels", "FAILED: {object}"},
       {},
       "A compile step failed. Why stands in the lines above it, at the first `FAILED:` or `error:`, and those are not "
       "in this text.",
       "{pip} install -v flash-attn --no-build-isolation 2>&1 | tee build.log; then mica explain < build.log"},
      {"IMPORT_FAILED",
       Role::kSymptom,
       {"Failed to import {module} because of the following error",
        "Your Flash Attention 2 installation seems to be "
        "broken",
        "cannot be used due to the following error"},
       {},
       "A package reports that importing another one failed; the first error is the one that matters, and it is not in "
       "this text.",
       "{python} -c 'import torch, flash_attn' 2>&1 | mica explain"},
  };
  return rows;
}

}  // namespace doctor
