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
       "mica inspect FILE.so tells which of the two it is; then {pip} install 'flash-attn==2.8.3' "
       "--no-build-isolation, "
       "or a newer driver (550 or later; 580 for CUDA 13)"},
      {"GPU_NO_CODE",
       Role::kCause,
       {"no kernel image is available for execution on the device", "cudaErrorNoKernelImageForDevice",
        "CUDA_ERROR_NO_BINARY_FOR_GPU"},
       {"flash_attn", "flash-attn", "FlashAttention"},
       "The file holds no code for this GPU: none of its binaries is for it, and it brings no PTX that could be "
       "compiled. flash-attn 2.8.3 serves compute capability 8.x, 9.0, 10.x and 12.x; its version 3 only 8.x and 9.0.",
       "mica inspect FILE.so lists what it serves; build for your GPU with FLASH_ATTN_CUDA_ARCHS set"},
      {"GPU_NO_CODE",
       Role::kCause,
       {"no kernel image is available for execution on the device", "cudaErrorNoKernelImageForDevice",
        "CUDA_ERROR_NO_BINARY_FOR_GPU"},
       {},
       "The program, PyTorch or one of its extensions, holds no code for this GPU: it was compiled for other "
       "architectures, "
       "being older than the GPU or having left it behind, and brings no PTX that could be compiled.",
       "{python} -c 'import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())' says whether "
       "it is PyTorch ({pip} install -U torch --index-url https://download.pytorch.org/whl/cu128 serves 12.0); if it "
       "is an extension: mica inspect FILE.so lists what it serves, and mica build PACKAGE builds it for this GPU"},
      {"GPU_NO_CODE",
       Role::kCause,
       {"OSError: Could not find compatible {package} extension for compute capability {capability*}."},
       {},
       "{package} has one extension for each compute capability that it was built for, and none for this GPU's "
       "({capability}): it was built on a machine with another one.",
       "export TCNN_CUDA_ARCHITECTURES={capability} TORCH_CUDA_ARCH_LIST=\"8.0;9.0\" (this GPU's), then {pip} install "
       "--force-reinstall --no-cache-dir --no-build-isolation {package} from its source"},
      {"PTX_TOO_NEW",
       Role::kCause,
       {"the provided PTX was compiled with an unsupported toolchain", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "cudaErrorUnsupportedPtxVersion"},
       {},
       "The PTX in the file is newer than this driver's compiler.",
       "mica doctor FILE.so names the driver that it needs; without one: export CUDA_HOME to a toolkit of the driver's "
       "CUDA and mica build {project}"},
      {"DRIVER_TOO_OLD",
       Role::kCause,
       {"CUDA driver version is insufficient for CUDA runtime version", "cudaErrorInsufficientDriver",
        "The NVIDIA driver on your system is too old (found version {version})",
        "requirement error: unsatisfied condition: cuda{least}, please update your driver"},
       {},
       "PyTorch's CUDA runtime needs a newer driver: CUDA 12 needs 525 or later, CUDA 13 needs 580 or later.",
       "update the driver, or install a PyTorch for an older CUDA: {pip} install torch --index-url "
       "https://download.pytorch.org/whl/cu126"},
      {"DRIVER_MISSING",
       Role::kCause,
       {"Driver/library version mismatch", "system has unsupported display driver / cuda driver combination"},
       {},
       "The driver's libraries and the part of it that runs in the kernel are of different releases: it was updated, "
       "and "
       "the old part still runs. No program sees a GPU until then.",
       "sudo reboot (cat /proc/driver/nvidia/version and ls /usr/lib/*/libcuda.so.* show the two); in a container: the "
       "driver's libraries must be the host's, not those of the image"},
      {"DRIVER_MISSING",
       Role::kCause,
       {"could not select device driver...with capabilities: [[gpu", "Unknown runtime specified nvidia"},
       {},
       "Docker does not know how to hand GPUs to a container: NVIDIA's container toolkit is not installed there, or "
       "Docker was not told of it.",
       "sudo apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker && sudo "
       "systemctl restart docker"},
      {"DRIVER_TOO_OLD",
       Role::kCause,
       {"forward compatibility was attempted on non supported HW"},
       {},
       "The driver is older than this CUDA, and the libraries that are to bridge that (cuda-compat, which NVIDIA's "
       "images "
       "bring) work on data centre GPUs only.",
       "update the driver of the host; or an image or PyTorch for an older CUDA: {pip} install torch --index-url "
       "https://download.pytorch.org/whl/cu126, with the folder cuda/compat taken out of LD_LIBRARY_PATH"},
      {"DRIVER_MISSING",
       Role::kCause,
       {"system not yet initialized"},
       {"CUDA", "cuda"},
       "The GPUs are joined by NVSwitch, and the service that sets it up is not running, or of another release than "
       "the "
       "driver.",
       "sudo systemctl start nvidia-fabricmanager (its release must be the driver's: nvidia-smi names that one)"},
      {"DRIVER_MISSING",
       Role::kCause,
       {"CUDA unknown error - this may be due to an incorrectly set up environment"},
       {},
       "The driver is there and could not be set up: the part of it for memory (nvidia_uvm) is not loaded or lost its "
       "state, often after the machine slept, or a container was not given it; or CUDA_VISIBLE_DEVICES was changed too "
       "late.",
       "sudo rmmod nvidia_uvm; sudo modprobe nvidia_uvm, or a reboot; in a container: docker run --gpus all ..."},
      {"DRIVER_MISSING",
       Role::kCause,
       {"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        "nvml error: driver not loaded"},
       {},
       "NVIDIA's programs are there, the driver is not loaded into the kernel: it was not built for this kernel (after "
       "an update of it), Secure Boot refuses it, or the machine has no GPU.",
       "sudo modprobe nvidia says why; sudo dkms autoinstall (or install the driver again), then a reboot"},
      {"DRIVER_MISSING",
       Role::kCause,
       {"Found no NVIDIA driver on your system", "no CUDA-capable device is detected", "No CUDA GPUs are available"},
       {},
       "PyTorch sees no GPU: the machine or container has none, the driver is missing, or CUDA_VISIBLE_DEVICES hides "
       "it.",
       "mica doctor shows driver, GPUs and PyTorch's CUDA; in a container: docker run --gpus all ..."},
      {"TORCH_CPU_BUILD",
       Role::kCause,
       {"Torch not compiled with CUDA enabled", "PyTorch was compiled without CUDA support"},
       {},
       "The PyTorch of this Python is a build for the CPU: it would not use a GPU that is there.",
       "{pip} uninstall -y torch torchvision torchaudio && {pip} install torch torchvision torchaudio --index-url "
       "https://download.pytorch.org/whl/cu126"},
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
       {"CUDA out of memory. Tried to allocate {amount*}.", "CUDA error: out of memory", "cudaErrorMemoryAllocation",
        "CUDA_ERROR_OUT_OF_MEMORY"},
       {},
       "The GPU's memory is full; nothing is wrong with the installation.",
       "a smaller batch or sequence; nvidia-smi shows who else uses the GPU"},
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
       "A compile step failed. Why stands in the lines above it, at the first `FAILED:` or `error:`",
       "{pip} install -v {project} --no-build-isolation 2>&1 | tee build.log; then mica explain --file build.log"},
      {"BUILD_FAILED",
       Role::kSymptom,
       {"object has no attribute 'ds_opt_adam'", "object has no attribute 'ds_opt_adagrad'"},
       {},
       "DeepSpeed compiles its optimiser for the CPU at first use; that failed before, and what failed to be built is "
       "now taken down. The compiler's words stand above it",
       "{python} -c 'from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()' 2>&1 | mica "
       "explain"},
      {"IMPORT_FAILED",
       Role::kSymptom,
       {"Failed to import {module} because of the following error",
        "Your Flash Attention 2 installation seems to be broken", "cannot be used due to the following error",
        "could not load {part} kernels extension"},
       {},
       "A package reports that importing another one failed; the first error is the one that matters",
       "{python} -c 'import torch, flash_attn' 2>&1 | mica explain"},
  };
  return rows;
}

}  // namespace doctor
