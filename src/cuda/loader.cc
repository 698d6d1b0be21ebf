// SPDX-License-Identifier: Apache-2.0
#include "cuda/loader.h"

#include "cuda/registry.h"

namespace mica {

KernelLoader::KernelLoader(Driver& driver, const ImageTable& images, i32 num_rows)
    : driver_(driver),
      images_(images),
      num_rows_(num_rows),
      functions_(std::make_unique<std::atomic<cu::Function>[]>(size_t(driver.device_count()) * num_rows)),
      libraries_(std::make_unique<cu::Library[]>(images.num_images)) {}

KernelLoader& KernelLoader::instance() {
  static KernelLoader* loader = new KernelLoader(Driver::instance(), kernel_images(), kernel_table().num_rows);
  return *loader;
}

mica_status KernelLoader::load(const Wanted& wanted, cu::Function* function) {
  *function = functions_[size_t(wanted.device) * num_rows_ + wanted.row].load(std::memory_order_acquire);
  return *function ? MICA_OK : load_slowly(wanted, function);
}

mica_status KernelLoader::load_slowly(const Wanted& wanted, cu::Function* function) {
  std::atomic<cu::Function>& slot = functions_[size_t(wanted.device) * num_rows_ + wanted.row];
  const std::lock_guard lock(mutex_);
  *function = slot.load(std::memory_order_relaxed);
  if (*function) return MICA_OK;

  const cu::Api& api = driver_.api();
  const i32 index = find_image(images_, wanted.row, driver_.device(wanted.device).arch);
  if (index < 0)
    return fail(MICA_ERROR_UNSUPPORTED, "this build carries no image of %s for sm_%d", wanted.name,
                driver_.device(wanted.device).arch);
  const ScopedRelaxedCapture relaxed(driver_);
  const ScopedContext context(driver_, wanted.device);
  if (context.status() != MICA_OK) return context.status();
  mica_status status = MICA_OK;
  if (!libraries_[index]) {
    std::unique_ptr<unsigned char[]> code;
    status = unpack_image(images_, index, wanted.name, &code);
    if (status != MICA_OK) return status;
    // The driver keeps its own copy of the code.
    status = driver_.check_loading(
        api.cuLibraryLoadData(&libraries_[index], code.get(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData", wanted.name);
    if (status != MICA_OK) {
      libraries_[index] = nullptr;
      return status;
    }
  }
  cu::Kernel kernel = nullptr;
  cu::Function loaded = nullptr;
  status = driver_.check_loading(api.cuLibraryGetKernel(&kernel, libraries_[index], wanted.name), "cuLibraryGetKernel",
                                 wanted.name);
  if (status == MICA_OK)
    status = driver_.check_loading(api.cuKernelGetFunction(&loaded, kernel), "cuKernelGetFunction", wanted.name);
  if (status == MICA_OK && wanted.smem_bytes > 0)
    status = driver_.check_loading(api.cuFuncSetAttribute(loaded, cu::kMaxDynamicSharedBytes, wanted.smem_bytes),
                                   "cuFuncSetAttribute", wanted.name);
  // The driver loads lazily; a first launch inside a capture would come too late.
  if (status == MICA_OK && api.cuFuncLoad)
    status = driver_.check_loading(api.cuFuncLoad(loaded), "cuFuncLoad", wanted.name);
  if (status != MICA_OK) return status;
  slot.store(loaded, std::memory_order_release);
  *function = loaded;
  return MICA_OK;
}

}  // namespace mica
