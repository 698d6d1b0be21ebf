// SPDX-License-Identifier: Apache-2.0
#include "api/prefix.h"

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "api/plan.h"
#include "base/status.h"

namespace mica {
namespace {

constexpr i32 kAlignment = 256;  // of every part of the workspace

Tensor dense_rows(i32 dtype, i64 batch, i64 rows, i64 heads, i64 dim) {
  return {dtype, kAlignment, {batch, rows, heads, dim}, {rows * heads * dim, heads * dim, dim, 1}};
}
// lse of some of all_rows, head by head.
Tensor lse_rows(i64 batch, i64 heads, i64 rows, i64 all_rows) {
  return {MICA_FP32, 4, {batch, heads, rows, 1}, {rows, all_rows, 1, 0}};
}
// As a validated tensor is: axes of size 1 have stride 0.
Tensor normalised(Tensor t) {
  for (int axis = 0; axis < 4; ++axis)
    if (t.shape[axis] <= 1) t.stride[axis] = 0;
  return t;
}

// Each sequence's own keys, as if there were no others.
Problem own_problem(const Problem& whole) {
  Problem p = whole;
  p.k_prefix = p.v_prefix = {};
  p.o = normalised(dense_rows(whole.o.dtype, p.batch, p.max_len_q, p.heads_q, p.dim_v));
  p.lse = normalised(lse_rows(p.batch, p.heads_q, p.max_len_q, p.total_q));
  return p;
}

// The prefix, to which the rows of all sequences are rows of one.
Problem prefix_problem(const Problem& whole) {
  Problem p = {};
  p.pass = MICA_FORWARD;
  p.dtype = whole.dtype;
  p.batch = p.slots_k = 1;
  p.heads_q = whole.heads_q;
  p.heads_k = whole.heads_k;
  p.group = whole.group;
  p.dim_qk = whole.dim_qk;
  p.dim_v = whole.dim_v;
  p.total_q = whole.total_q;
  p.max_len_q = p.hint_len_q = i32(whole.total_q);
  p.max_len_k = p.hint_len_k = i32(whole.k_prefix.shape[1]);
  p.total_k = p.max_len_k;
  p.window_left = p.window_right = MICA_MAX_SEQLEN;
  p.scale = whole.scale;
  p.softcap = whole.softcap;
  p.deterministic = whole.deterministic;
  p.dropout_place = {0, 1, 0, 1, 0, u32(p.heads_q)};
  p.q = whole.q;
  p.q.shape[0] = 1;
  p.q.shape[1] = whole.total_q;
  p.q.stride[1] = whole.max_len_q > 1 ? whole.q.stride[1] : whole.q.stride[0];
  p.q.stride[0] = 0;
  p.k = whole.k_prefix;
  p.v = whole.v_prefix;
  p.o = dense_rows(whole.o.dtype, 1, whole.total_q, p.heads_q, p.dim_v);
  p.lse = lse_rows(1, p.heads_q, whole.total_q, whole.total_q);
  p.q = normalised(p.q);
  p.o = normalised(p.o);
  p.lse = normalised(p.lse);
  return p;
}

mica_status plan_part(const Plan& whole, const Problem& problem, Plan* part) {
  *part = {};
  part->problem = problem;
  part->backend = whole.backend;
  part->device = whole.device;
  part->num_splits = 1;
  return part->backend->plan(*part);
}

mica_status plan_parts(Plan& plan) {
  PrefixPlans& x = *plan.with_prefix;
  const Problem whole = plan.problem;
  if (const mica_status status = plan_part(plan, prefix_problem(whole), x.prefix); status != MICA_OK) return status;
  if (const mica_status status = plan_part(plan, own_problem(whole), x.own); status != MICA_OK) return status;
  size_t bytes = 0;
  const auto reserve = [&](size_t size) {
    const size_t begin = bytes;
    bytes += round_up<size_t>(size, kAlignment);
    return begin;
  };
  const size_t rows = size_t(whole.total_q) * size_t(whole.heads_q);
  for (int part = 0; part < 2; ++part) {
    x.parts.o[part] = reserve(rows * size_t(whole.dim_v) * size_t(dtype_bytes(whole.o.dtype)));
    x.parts.lse[part] = reserve(rows * sizeof(float));
  }
  x.prefix_workspace = reserve(x.prefix->workspace_bytes);
  x.own_workspace = reserve(x.own->workspace_bytes);
  if (const mica_status status = plan.backend->plan_join(plan, x.parts); status != MICA_OK) return status;
  plan.workspace_bytes = bytes;
  plan.num_splits = x.own->num_splits;
  std::snprintf(plan.kernel, sizeof plan.kernel, "%s", x.own->kernel);
  return MICA_OK;
}

}  // namespace

mica_status plan_with_prefix(Plan& plan) {
  auto* made = static_cast<PrefixPlans*>(std::calloc(1, sizeof(PrefixPlans)));
  if (!made) return fail(MICA_ERROR_OUT_OF_MEMORY, "no memory for the plans of %zu bytes", sizeof(PrefixPlans));
  plan.with_prefix = made;
  made->prefix = acquire_plan();
  made->own = acquire_plan();
  const mica_status status = made->prefix && made->own
                                 ? plan_parts(plan)
                                 : fail(MICA_ERROR_OUT_OF_MEMORY, "no memory for a plan of %zu bytes", sizeof(Plan));
  if (status != MICA_OK) release_prefix_plans(plan);
  return status;
}

mica_status execute_with_prefix(const Plan& plan, const mica_bindings& bindings) {
  const PrefixPlans& at = *plan.with_prefix;
  char* workspace = static_cast<char*>(bindings.workspace);
  mica_bindings x = bindings;
  x.o = workspace + at.parts.o[0];
  x.lse = reinterpret_cast<float*>(workspace + at.parts.lse[0]);
  x.workspace = workspace + at.prefix_workspace;
  x.workspace_bytes = at.prefix->workspace_bytes;
  x.k = const_cast<void*>(bindings.k_prefix);
  x.v = const_cast<void*>(bindings.v_prefix);
  if (const mica_status status = plan.backend->execute(*at.prefix, x); status != MICA_OK) return status;
  x.o = workspace + at.parts.o[1];
  x.lse = reinterpret_cast<float*>(workspace + at.parts.lse[1]);
  x.workspace = workspace + at.own_workspace;
  x.workspace_bytes = at.own->workspace_bytes;
  x.k = bindings.k;
  x.v = bindings.v;
  if (const mica_status status = plan.backend->execute(*at.own, x); status != MICA_OK) return status;
  return plan.backend->join(plan, bindings);
}

void release_prefix_plans(Plan& plan) {
  if (!plan.with_prefix) return;
  for (Plan* part : {plan.with_prefix->prefix, plan.with_prefix->own})
    if (part) release_plan(part);
  std::free(plan.with_prefix);
  plan.with_prefix = nullptr;
}

}  // namespace mica
