// SPDX-License-Identifier: Apache-2.0
#include "api/overlap.h"

#include <cstdint>

#include "base/status.h"
#include "core/types.h"

namespace mica {
namespace {

// Where a bound tensor lies: bytes [begin, end), and the bytes between neighbours on each axis (0: one element).
struct Footprint {
  std::uintptr_t begin, end;
  std::uintptr_t step[4], size[4];
};

Footprint footprint(const void* pointer, const Tensor& t) {
  const std::uintptr_t element = std::uintptr_t(dtype_bytes(t.dtype));
  Footprint f = {reinterpret_cast<std::uintptr_t>(pointer), 0, {}, {}};
  f.end = f.begin + element;
  for (int axis = 0; axis < 4; ++axis) {
    const bool is_back = t.stride[axis] < 0;
    f.step[axis] = std::uintptr_t(is_back ? -t.stride[axis] : t.stride[axis]) * element;
    f.size[axis] = std::uintptr_t(t.shape[axis]);
    const std::uintptr_t reach = t.shape[axis] > 1 ? f.step[axis] * (f.size[axis] - 1) : 0;
    (is_back ? f.begin : f.end) += is_back ? std::uintptr_t(0) - reach : reach;
  }
  return f;
}

// The bytes that one period of this length holds; 0 if the steps above it are no multiples of it.
std::uintptr_t extent_within(const Footprint& f, const Tensor& t, std::uintptr_t period) {
  std::uintptr_t extent = std::uintptr_t(dtype_bytes(t.dtype));
  for (int axis = 0; axis < 4; ++axis) {
    if (f.size[axis] < 2 || f.step[axis] == 0) continue;
    if (f.step[axis] < period)
      extent += f.step[axis] * (f.size[axis] - 1);
    else if (f.step[axis] % period != 0)
      return 0;
  }
  return extent;
}

// Whether two tensors may share a byte. Slices of one packed tensor do not: within a common step each has its own part.
bool may_overlap(const void* a_pointer, const Tensor& a, const void* b_pointer, const Tensor& b) {
  const Footprint x = footprint(a_pointer, a), y = footprint(b_pointer, b);
  if (x.end <= y.begin || y.end <= x.begin) return false;
  for (int axis = 0; axis < 4; ++axis) {
    const std::uintptr_t period = x.step[axis];
    if (x.size[axis] < 2 || period == 0) continue;
    const std::uintptr_t inside_x = extent_within(x, a, period), inside_y = extent_within(y, b, period);
    if (inside_x == 0 || inside_y == 0) continue;
    const std::uintptr_t ahead = (y.begin + period - x.begin % period) % period;  // of y's part, after x's begin
    if (ahead >= inside_x && ahead + inside_y <= period) return false;
  }
  return true;
}

mica_status refuse(const BoundTensor& written, const BoundTensor& other) {
  return fail(MICA_ERROR_INVALID, "bindings.%s overlaps bindings.%s, want memory of its own", written.name, other.name);
}

bool is_result(const Problem& p, const Tensor& t) {
  if (p.pass == MICA_FORWARD) return &t == &p.o || &t == &p.lse || &t == &p.probs;
  return &t == &p.dq || &t == &p.dk || &t == &p.dv || &t == &p.d_bias || &t == &p.d_sinks;
}

// A row of o is written by who has read that row of q.
bool is_in_place(const Problem& p, const mica_bindings& x) {
  if (x.o != x.q || p.o.dtype != p.q.dtype) return false;
  for (int axis = 0; axis < 4; ++axis)
    if (p.o.shape[axis] != p.q.shape[axis] || (p.o.shape[axis] > 1 && p.o.stride[axis] != p.q.stride[axis]))
      return false;
  return true;
}

mica_status check_results(const Problem& p, const mica_bindings& x, TensorSet bound) {
  for (TensorSet from = bound; from; from = without_first(from)) {
    const BoundTensor written = first_tensor(from, p, x);
    if (!is_result(p, written.tensor)) continue;
    for (TensorSet others = bound; others; others = without_first(others)) {
      const BoundTensor other = first_tensor(others, p, x);
      const bool had_its_turn = std::countr_zero(others) <= std::countr_zero(from);
      if (had_its_turn && is_result(p, other.tensor)) continue;
      if (&other.tensor == &p.q && &written.tensor == &p.o && is_in_place(p, x)) continue;
      if (may_overlap(written.address, written.tensor, other.address, other.tensor)) return refuse(written, other);
    }
  }
  return MICA_OK;
}

// Whether two tensors of the same rows and heads go through memory in the same steps.
bool have_same_steps(const Tensor& a, const Tensor& b) {
  return a.stride[0] == b.stride[0] && a.stride[1] == b.stride[1] && a.stride[2] == b.stride[2];
}

// Values that are a part of the keys are written twice, with the same bits only if the new ones are so too, and are
// divided by the same factors.
bool is_part_of_keys(const Problem& p, const mica_bindings& x) {
  if (x.v != x.k || x.v_new != x.k_new || p.rotary_cos.dtype != MICA_NONE) return false;
  if (!have_same_steps(p.k, p.v) || !have_same_steps(p.k_new, p.v_new)) return false;
  const bool quantises = p.k.dtype != p.dtype;
  if (!quantises || (p.k_descale.dtype == MICA_NONE && p.v_descale.dtype == MICA_NONE)) return true;
  return p.k_descale.dtype == p.v_descale.dtype && x.k_descale == x.v_descale &&
         have_same_steps(p.k_descale, p.v_descale);
}

// New keys and values are written into the cache, in any order, while others read. A shared prefix may be other rows of
// it.
mica_status check_append(const Problem& p, const mica_bindings& x, TensorSet bound) {
  if (p.len_new == 0 || is_empty(p.k_new) || is_empty(p.k)) return MICA_OK;
  const BoundTensor k = {"k", x.k, p.k}, v = {"v", x.v, p.v};
  for (TensorSet from = bound; from; from = without_first(from)) {
    const BoundTensor other = first_tensor(from, p, x);
    const Tensor* const read = &other.tensor;
    if (read == &p.k || read == &p.v || read == &p.k_prefix || read == &p.v_prefix) continue;
    if (may_overlap(other.address, other.tensor, x.k, p.k)) return refuse(other, k);
    if (may_overlap(other.address, other.tensor, x.v, p.v)) return refuse(other, v);
  }
  if (!is_part_of_keys(p, x) && may_overlap(x.k, p.k, x.v, p.v))
    return fail(MICA_ERROR_INVALID,
                "bindings.v overlaps bindings.k, want memory of its own where new keys and values are written");
  return MICA_OK;
}

}  // namespace

mica_status check_overlaps(const Problem& p, const mica_bindings& x, TensorSet bound) {
  const mica_status status = check_results(p, x, bound);
  return status == MICA_OK ? check_append(p, x, bound) : status;
}

}  // namespace mica
