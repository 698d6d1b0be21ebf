// SPDX-License-Identifier: Apache-2.0
// Small descriptions and their memory, for tests of the C interface.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "mica/mica.h"

namespace mica::testing_api {

constexpr float kInf = std::numeric_limits<float>::infinity();

inline mica_tensor dense(int32_t dtype, std::array<int64_t, 4> shape) {
  mica_tensor t = {};
  t.dtype = dtype;
  int64_t stride = 1;
  for (int axis = 3; axis >= 0; --axis) {
    t.shape[axis] = shape[size_t(axis)];
    t.stride[axis] = stride;
    stride *= shape[size_t(axis)] > 0 ? shape[size_t(axis)] : 1;
  }
  return t;
}

struct Sizes {
  int64_t batch = 2, len_q = 5, len_k = 7, heads_q = 4, heads_k = 2, dim = 8, dim_v = 6;
};

// fp32, dense, with LSE.
inline mica_attention describe(const Sizes& s = {}) {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = dense(MICA_FP32, {s.batch, s.len_q, s.heads_q, s.dim});
  a.k = dense(MICA_FP32, {s.batch, s.len_k, s.heads_k, s.dim});
  a.v = dense(MICA_FP32, {s.batch, s.len_k, s.heads_k, s.dim_v});
  a.o = dense(MICA_FP32, {s.batch, s.len_q, s.heads_q, s.dim_v});
  a.lse = dense(MICA_FP32, {s.batch, s.heads_q, s.len_q, 1});
  return a;
}

// The same with the gradients of q, k and v.
inline mica_attention describe_backward(const Sizes& s = {}) {
  mica_attention a = describe(s);
  a.gradients.d_o = a.o;
  a.gradients.dq = a.q;
  a.gradients.dk = a.k;
  a.gradients.dv = a.v;
  return a;
}

inline size_t count(const mica_tensor& t) { return size_t(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]); }

// Numbers that look random, in [-1, 1), the same everywhere.
inline std::vector<float> numbers(size_t how_many, uint32_t seed) {
  std::vector<float> x(how_many);
  uint32_t state = seed * 2654435761u + 1;
  for (float& value : x) {
    state = state * 1664525u + 1013904223u;
    value = float(state >> 8) / float(1 << 23) - 1.0f;
  }
  return x;
}

// A description with fp32 memory behind q, k, v, o, lse and the gradients. Options are set on `a` before call().
struct Call {
  mica_attention a;
  mica_bindings x = MICA_BINDINGS_INIT;
  std::vector<float> q, k, v, o, lse, d_o, dq, dk, dv;
  std::vector<char> workspace;

  explicit Call(const mica_attention& attention, uint32_t seed = 1) : a(attention) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    q = numbers(count(a.q), seed), k = numbers(count(a.k), seed + 1), v = numbers(count(a.v), seed + 2);
    o.assign(count(a.o), nan), lse.assign(count(a.lse), nan);
    d_o = numbers(count(a.o), seed + 3);
    dq.assign(q.size(), nan), dk.assign(k.size(), nan), dv.assign(v.size(), nan);
    bind();
  }
  void bind() {
    x.q = q.data(), x.k = k.data(), x.v = v.data(), x.o = o.data(), x.lse = lse.data();
    x.d_o = d_o.data(), x.dq = dq.data(), x.dk = dk.data(), x.dv = dv.data();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  mica_status execute(const mica_plan* plan) {
    workspace.assign(mica_plan_workspace(plan) + 64, char(0xff));
    x.workspace = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    x.workspace_bytes = mica_plan_workspace(plan);
    return mica_execute(plan, &x);
  }
  // Plans and runs one pass; "" or what went wrong. Forward leaves the gradients of the description aside.
  std::string run(mica_pass pass) {
    mica_attention description = a;
    if (pass == MICA_FORWARD) description.gradients = mica_gradients{};
    mica_plan* plan = nullptr;
    mica_status status = mica_plan_create(&description, pass, &plan);
    if (status == MICA_OK) status = execute(plan);
    const std::string message = status == MICA_OK ? "" : mica_last_error();
    mica_plan_destroy(plan);
    return message;
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace mica::testing_api
