// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "base/check_vectors.h"
#include "base/pointers.h"

namespace mica {
namespace {

constexpr int kPointerAttributeDevicePointer = 3;

mica_status check_address(const Driver& driver, const char* name, const void* address) {
  if (!address) return MICA_OK;
  cu::DevicePointer seen = 0;
  const auto pointer = reinterpret_cast<cu::DevicePointer>(address);
  if (driver.api().cuPointerGetAttribute(&seen, kPointerAttributeDevicePointer, pointer) == cu::kSuccess)
    return MICA_OK;
  return fail(MICA_ERROR_INVALID, "bindings.%s is %p, want memory that the GPU can reach", name, address);
}

mica_status check_addresses(const Driver& driver, const Problem& p, const mica_bindings& x) {
  for (TensorSet rest = tensors_of(p); rest; rest = without_first(rest)) {
    const BoundTensor b = first_tensor(rest, p, x);
    if (const mica_status status = check_address(driver, b.name, b.address); status != MICA_OK) return status;
  }
  if (p.dropout > 0 && p.rng_from_memory) return check_address(driver, "rng_state", x.rng_state);
  return MICA_OK;
}

// Host copies of the vectors that the table points to.
class HostVectors {
 public:
  HostVectors(const Driver& driver, cu::Stream stream) : driver_(driver), stream_(stream) {}

  // Starts a copy of `count` values and makes `values` point to it.
  mica_status fetch(const char* name, const i32*& values, size_t count) {
    if (!values || count == 0) return MICA_OK;
    if (const mica_status status = check_address(driver_, name, values); status != MICA_OK) return status;
    copies_.emplace_back(count);
    const auto from = reinterpret_cast<cu::DevicePointer>(values);
    values = copies_.back().data();
    return driver_.check(driver_.api().cuMemcpyDtoHAsync(copies_.back().data(), from, count * sizeof(i32), stream_),
                         "cuMemcpyDtoHAsync");
  }

 private:
  const Driver& driver_;
  cu::Stream stream_;
  std::vector<std::vector<i32>> copies_;
};

mica_status check_values(const Driver& driver, const Problem& p, const mica_bindings& x) {
  const auto stream = static_cast<cu::Stream>(x.stream);
  int capturing = cu::kCaptureNone;
  const mica_status asked = driver.check(driver.api().cuStreamIsCapturing(stream, &capturing), "cuStreamIsCapturing");
  if (asked != MICA_OK || capturing != cu::kCaptureNone) return asked;

  SequenceTable table = sequence_table(p, x);
  HostVectors copies(driver, stream);
  struct Wanted {
    const char* name;
    const i32*& values;
    size_t count;
  };
  const size_t batch = size_t(p.batch);
  // The table is read row by row; a negative stride cannot be copied as one piece.
  const i64 stride_batch = table.block_table_stride_batch, stride_page = table.block_table_stride_page;
  const bool copyable = stride_batch >= 0 && stride_page >= 0 && batch > 0 && table.max_pages > 0;
  const size_t table_count =
      copyable ? size_t((p.batch - 1) * stride_batch + (table.max_pages - 1) * stride_page + 1) : 0;
  if (!copyable) table.block_table = nullptr;
  for (const Wanted& w :
       {Wanted{"cu_seqlens_q", table.cu_seqlens_q, batch + 1}, Wanted{"cu_seqlens_k", table.cu_seqlens_k, batch + 1},
        Wanted{"seqused_q", table.seqused_q, batch}, Wanted{"seqused_k", table.seqused_k, batch},
        Wanted{"cache_batch_idx", table.cache_batch_idx, batch}, Wanted{"cache_leftpad", table.cache_leftpad, batch},
        Wanted{"block_table", table.block_table, table_count}})
    if (const mica_status status = copies.fetch(w.name, w.values, w.count); status != MICA_OK) return status;
  const mica_status arrived = driver.check(driver.api().cuStreamSynchronize(stream), "cuStreamSynchronize");
  return arrived == MICA_OK ? check_vectors(p, table) : arrived;
}

}  // namespace

bool checks_device_memory() {
  static const bool wanted = [] {
    const char* value = std::getenv("MICA_CHECK");
    return value && std::strcmp(value, "1") == 0;
  }();
  return wanted;
}

mica_status check_device_memory(const Driver& driver, const Plan& plan, const mica_bindings& bindings) {
  const mica_status status = check_addresses(driver, plan.problem, bindings);
  if (status != MICA_OK) return status;
  try {
    return check_values(driver, plan.problem, bindings);
  } catch (const std::bad_alloc&) {
    return fail(MICA_ERROR_OUT_OF_MEMORY, "no memory for host copies of the vectors");
  }
}

}  // namespace mica
