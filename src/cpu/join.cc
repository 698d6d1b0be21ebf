// SPDX-License-Identifier: Apache-2.0
#include "cpu/join.h"

#include <cmath>
#include <cstring>

#include "core/softmax.h"
#include "cpu/threads/threads.h"

namespace mica {
namespace {

struct JoinPlan {
  Threads threads;
  Parts parts;
};
static_assert(sizeof(JoinPlan) <= sizeof(Plan::backend_data));

struct ScalarMath {
  using V = float;
  static float set(float x) { return x; }
  static float add(float a, float b) { return a + b; }
  static float sub(float a, float b) { return a - b; }
  static float mul(float a, float b) { return a * b; }
  static float mul_add(float a, float b, float c) { return a * b + c; }
  static float div(float a, float b) { return a / b; }
  static float max(float a, float b) { return a > b ? a : b; }
  static float exp2(float a) { return std::exp2(a); }
  static float log2(float a) { return std::log2(a); }
  static float select_if_equal(float a, float b, float yes, float no) { return a == b ? yes : no; }
};

struct JoinCall {
  const Problem& p;
  const void* part_o[2];
  const float* part_lse[2];
  void* o;
  float* lse;

  // All heads of one row of all sequences'.
  void join_row(i64 row) const {
    const i64 b = row / p.max_len_q, i = row % p.max_len_q;
    for (i64 head = 0; head < p.heads_q; ++head) {
      SoftmaxState<ScalarMath> part[2];
      for (int n = 0; n < 2; ++n) part[n] = {part_lse[n][head * p.total_q + row] * kLog2E, 1.0f};
      const Merge<ScalarMath> both = merge<ScalarMath>(part[0], part[1]);
      const float scale = normalizer<ScalarMath>(both.state);
      const i64 from = (row * p.heads_q + head) * p.dim_v;
      const i64 to = b * p.o.stride[0] + i * p.o.stride[1] + head * p.o.stride[2];
      for (i64 c = 0; c < p.dim_v; ++c)
        store_float(o, to + c, p.o.dtype,
                    (load_as_float(part_o[0], from + c, p.o.dtype) * both.factor_a +
                     load_as_float(part_o[1], from + c, p.o.dtype) * both.factor_b) *
                        scale);
      if (p.lse.dtype)
        lse[b * p.lse.stride[0] + head * p.lse.stride[1] + i * p.lse.stride[2]] =
            lse_log2<ScalarMath>(both.state) * kLn2;
    }
  }
};

}  // namespace

mica_status plan_join_on_cpu(Plan& plan, const Parts& parts) {
  JoinPlan made = {};
  made.parts = parts;
  if (const mica_status status = choose_threads(made.threads); status != MICA_OK) return status;
  std::memcpy(plan.backend_data, &made, sizeof made);
  return MICA_OK;
}

mica_status join_on_cpu(const Plan& plan, const mica_bindings& x) {
  JoinPlan made;
  std::memcpy(&made, plan.backend_data, sizeof made);
  const char* workspace = static_cast<const char*>(x.workspace);
  JoinCall call = {plan.problem, {}, {}, x.o, x.lse};
  for (int n = 0; n < 2; ++n) {
    call.part_o[n] = workspace + made.parts.o[n];
    call.part_lse[n] = reinterpret_cast<const float*>(workspace + made.parts.lse[n]);
  }
  parallel_for(
      made.threads, plan.problem.total_q,
      [](void* context, i64 row, i32) { static_cast<const JoinCall*>(context)->join_row(row); }, &call);
  return MICA_OK;
}

}  // namespace mica
