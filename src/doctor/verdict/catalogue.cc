// SPDX-License-Identifier: Apache-2.0
// The catalogue: one row per code. A code never changes its meaning; docs/user/doctor.md has a section for each.
#include "doctor/verdict/catalogue.h"

namespace doctor {
namespace {

constexpr Severity kError = Severity::kError, kWarning = Severity::kWarning, kNote = Severity::kNote;

constexpr VerdictKind kCatalogue[] = {
    {"LOADS", kNote, "The file loads in this target"},
    {"CANNOT_TELL", kWarning, "Something needed for the answer is not known"},
    // The archive and what it says of itself.
    {"WHEEL_ARCHIVE", kError, "The archive is damaged or unsafe to unpack"},
    {"WHEEL_NAME", kError, "The file name is not that of a wheel"},
    {"WHEEL_METADATA", kError, "METADATA or WHEEL is missing or incomplete"},
    {"WHEEL_NO_EXTENSION", kError, "The wheel claims compiled code and holds none"},
    {"WHEEL_TAG_PYTHON", kError, "The wheel is for another Python"},
    {"WHEEL_TAG_PLATFORM", kError, "The wheel is for another machine or C library"},
    {"WHEEL_TAG_MISMATCH", kWarning, "File name and WHEEL disagree about the tags"},
    {"WHEEL_TAG_VS_ELF", kError, "The tags promise what the binaries do not keep"},
    {"WHEEL_LABEL", kWarning, "The label of a wheel contradicts its symbols"},
    {"WHEEL_VERSION_MISMATCH", kWarning, "File name and METADATA disagree about name or version"},
    {"WHEEL_REQUIRES_PYTHON", kError, "Requires-Python excludes this Python"},
    {"WHEEL_REQUIRES_TORCH", kError, "Requires-Dist excludes this torch"},
    {"WHEEL_REQUIRES_TORCH_UNPINNED", kWarning, "Installing the wheel may replace torch"},
    {"RECORD_BAD", kError, "RECORD disagrees with the contents"},
    // ELF files and the loader.
    {"ELF_DAMAGED", kError, "A binary is damaged"},
    {"ELF_MACHINE", kError, "A binary is for another machine"},
    {"EXECUTABLE_STACK", kWarning, "A binary asks for an executable stack"},
    {"SO_SOABI", kError, "The module's file name is for another Python"},
    {"SO_NO_PYINIT", kError, "The module exports no PyInit function of its name"},
    {"PY_ABI3_VIOLATION", kError, "The module uses more of CPython than its abi3 tag allows"},
    {"PY_SYMBOL", kError, "The module was built for another Python"},
    {"NEEDED_MISSING", kError, "A library that it needs is not found"},
    {"CUDA_MAJOR", kError, "Built for another CUDA major version"},
    {"GLIBC_TOO_OLD", kError, "The C library here is too old"},
    {"GLIBCXX_TOO_OLD", kError, "The C++ library here is too old"},
    {"VERSION_MISSING", kError, "A library has not the version asked for"},
    {"UNDEFINED_SYMBOL", kError, "A symbol is defined nowhere"},
    // torch.
    {"TORCH_MISSING", kError, "torch is needed and not installed"},
    {"TORCH_CXX11_ABI", kError, "torch and the module use different C++ ABIs"},
    {"TORCH_SIGNATURE", kError, "Built for another version of torch"},
    {"TORCH_STABLE_MIN", kError, "The stable ABI of a later torch is needed"},
    // GPU code.
    {"GPU_CODE_DAMAGED", kError, "GPU code is damaged"},
    {"GPU_NO_CODE", kError, "No code for this GPU"},
    {"GPU_ARCH_SPECIFIC_A", kNote, "GPU code for exactly one architecture"},
    {"GPU_FAMILY_F", kNote, "GPU code for one family of architectures"},
    {"PTX_TOO_NEW", kError, "PTX newer than the driver understands"},
    {"PTX_JIT", kNote, "GPU code is compiled by the driver at first use"},
    {"CUBIN_TOOLKIT_TOO_NEW", kError, "GPU code made by a toolkit newer than the driver"},
    {"FATBIN_ZSTD_OLD_DRIVER", kError, "GPU code compressed in a way that the driver does not know"},
    {"DRIVER_TOO_OLD", kError, "The driver is too old for this CUDA runtime"},
    {"DRIVER_MISSING", kWarning, "No NVIDIA driver was found"},
    // Building from source, and finding a wheel.
    {"BUILD_NVCC_TOO_OLD", kError, "nvcc is too old"},
    {"BUILD_NVCC_MISSING", kError, "nvcc or CUDA_HOME is not found"},
    {"BUILD_ARCH_UNSUPPORTED_BY_NVCC", kError, "nvcc does not know an architecture it is asked for"},
    {"BUILD_CUDA_MAJOR_MISMATCH", kError, "nvcc and torch are of different CUDA major versions"},
    {"BUILD_ISOLATION", kError, "The build cannot see torch or packaging"},
    {"BUILD_OOM", kError, "The build runs out of memory"},
    {"BUILD_NO_NINJA", kWarning, "Without ninja the build runs one job at a time"},
    {"BUILD_HOST_COMPILER", kError, "The host compiler does not suit nvcc"},
    {"BUILD_SOURCES_MISSING", kError, "The source tree is incomplete"},
    {"BUILD_CROSS_DEVICE_LINK", kError, "A file cannot be moved between two file systems"},
    {"URL_GUESS_404", kWarning, "No published wheel has the guessed name"},
    {"URL_GUESS_WRONG_CUDA", kWarning, "The guessed wheel is for another CUDA"},
    // At run time, and in the Python around it.
    {"MODULE_MISSING", kError, "The compiled module is not installed for this Python"},
    {"FLASH_ATTN_STALE_CUTE", kError, "Files of another flash-attn release are left over"},
    {"FLASH_ATTN_API", kError, "The caller was written for another flash-attn release"},
    {"FLASH_ATTN_NOT_SEEN", kError, "transformers does not see flash-attn"},
    {"TORCH_OTHER_RELEASE", kWarning, "Made for another release of torch; it may work, or crash"},
    {"CUDA_LIBRARY_SHADOWED", kError, "An older CUDA library was loaded first"},
    {"STATIC_TLS", kError, "The block for thread-local data is full"},
    {"NUMPY_ABI", kError, "Built for another major version of NumPy"},
    {"NETWORK", kError, "The network cannot be reached"},
    {"WHEEL_NONE_PUBLISHED", kError, "The index has no file that fits"},
    {"DISK_FULL", kError, "The disk or the quota is full"},
    {"BUILD_HEADERS_MISSING", kError, "Header files are missing"},
    {"BUILD_NO_ARCH", kError, "The build does not know which GPU it is for"},
    {"BUILD_FAILED", kWarning, "A build failed; the text does not say why"},
    {"GPU_TOO_OLD", kError, "The GPU is older than the package supports"},
    {"FLASH_ATTN_DTYPE", kError, "flash-attn computes in fp16 and bf16 only"},
    {"GPU_OUT_OF_MEMORY", kError, "The memory of the GPU is full"},
    {"TORCH_CPU_BUILD", kError, "torch is a build for the CPU"},
    {"VARIANT_MISSING", kError, "The package has no file for this CUDA or this torch"},
    {"NO_OPERATOR", kError, "No compiled operator takes the call"},
    {"PACKAGE_API", kError, "The caller was written for another release of a package"},
    {"PACKAGE_MISSING", kError, "A package is not installed in this Python"},
    {"FOLK_REMEDY", kNote, "A remedy that was tried does something else"},
    {"IMPORT_FAILED", kWarning, "An import failed; the text does not say why"},
    {"PICK_MATCH", kNote, "A published wheel fits"},
    {"PICK_NEAREST", kWarning, "No published wheel fits; the nearest ones"},
    {"NOT_KNOWN", kWarning, "No known failure was found in the text"},
    // A shared folder of wheels.
    {"SHARE_ALTERED", kError, "A published wheel was changed"},
    {"SHARE_UNRECORDED", kWarning, "A wheel of unknown origin is among the published ones"},
    {"SHARE_INDEX_STALE", kWarning, "The index does not list what is there"},
    {"SHARE_LEFTOVER", kNote, "Unfinished files are left over"},
    // Kernels of Jupyter.
    {"JUPYTER_KERNEL_STALE", kError, "A kernel's interpreter or folder is gone"},
    {"JUPYTER_KERNEL_SPEC", kError, "A kernel's description is not usable"},
    {"JUPYTER_KERNEL_DEAD", kError, "A kernel was started and did not answer"},
    {"JUPYTER_NO_IPYKERNEL", kError, "A Python is no kernel, since ipykernel is not installed in it"},
    {"JUPYTER_KERNEL_SHADOWED", kNote, "Another kernel of that name is found first"},
    {"JUPYTER_PYTHON_VARIES", kNote, "A kernel is whatever Python Jupyter itself runs in"},
    // Jobs of Slurm.
    {"JOB_WAITS", kNote, "A job is not started yet"},
    {"JOB_OUT_OF_MEMORY", kError, "A job was ended for its memory"},
    {"JOB_OUT_OF_TIME", kError, "A job was ended for its time"},
    {"JOB_NODE_FAILED", kError, "A job lost its node"},
    {"JOB_CANCELLED", kError, "A job was cancelled"},
    {"JOB_FAILED", kError, "The command in a job failed"},
};

}  // namespace

std::span<const VerdictKind> verdict_catalogue() { return kCatalogue; }

const VerdictKind* find_verdict_kind(std::string_view code) {
  for (const VerdictKind& kind : verdict_catalogue())
    if (code == kind.code) return &kind;
  return nullptr;
}

std::string verdict_anchor(std::string_view code) {
  std::string out = "doctor.md#";
  for (const char c : code) out += c == '_' ? '-' : (c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c);
  return out;
}

}  // namespace doctor
