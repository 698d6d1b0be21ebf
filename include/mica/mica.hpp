// SPDX-License-Identifier: Apache-2.0
// The C++20 face of mica.h: views of tensors, a builder, plans and workspaces that free themselves, exceptions.
//
//   auto q = mica::tensor(q_data, {batch, rows, heads, dim});    // pointer, std::span or std::vector; k, v, o likewise
//   mica::Attention(q, k, v, o).causal().forward();              // plans, takes a workspace, executes on the CPU
//
// To reuse a plan, or to bring your own workspace and stream:
//
//   mica::Attention attention(q, k, v, o);
//   mica::Plan plan = attention.plan();
//   mica::Workspace workspace(plan.workspace_bytes());
//   plan.execute(attention.bindings, workspace);
#ifndef MICA_MICA_HPP
#define MICA_MICA_HPP

#if __cplusplus < 201709L
// A header that is not there ends the compilation with this one line; after #error come thirty more.
#define MICA_HPP_WANTS "mica.hpp wants C++20 (-std=c++20)"
#include MICA_HPP_WANTS
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mica/mica.h"

namespace mica {
inline namespace face {

// A call that failed. what() is mica_last_error(): it names the field, what it is and what was wanted.
class Error : public std::runtime_error {
 public:
  Error(mica_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  mica_status status() const noexcept { return status_; }

 private:
  mica_status status_;
};

inline void check(mica_status status) {
  if (status != MICA_OK) throw Error(status, mica_last_error());
}

// Elements of the narrow types as they lie in memory. They only carry bits: arithmetic is the caller's affair.
struct fp16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};
struct fp8_e4m3 {
  std::uint8_t bits;
};

template <class T>
inline constexpr mica_dtype dtype_of = MICA_NONE;
template <>
inline constexpr mica_dtype dtype_of<float> = MICA_FP32;
template <>
inline constexpr mica_dtype dtype_of<fp16> = MICA_FP16;
template <>
inline constexpr mica_dtype dtype_of<bf16> = MICA_BF16;
template <>
inline constexpr mica_dtype dtype_of<fp8_e4m3> = MICA_FP8_E4M3;
template <>
inline constexpr mica_dtype dtype_of<bool> = MICA_BOOL;
template <>
inline constexpr mica_dtype dtype_of<std::int32_t> = MICA_INT32;

// Four axes; those that a caller does not name are 1.
struct Shape {
  std::int64_t axis[4] = {1, 1, 1, 1};
  constexpr Shape(std::int64_t a, std::int64_t b = 1, std::int64_t c = 1, std::int64_t d = 1) : axis{a, b, c, d} {}
};
using Strides = std::array<std::int64_t, 4>;  // in elements

constexpr Strides dense_strides(const Shape& shape) {
  return {shape.axis[1] * shape.axis[2] * shape.axis[3], shape.axis[2] * shape.axis[3], shape.axis[3], 1};
}

// The description of a tensor alone, for a plan made before there is memory.
inline mica_tensor layout(mica_dtype dtype, const Shape& shape, const Strides& strides, std::int32_t alignment = 0) {
  mica_tensor t = {};
  t.dtype = dtype;
  t.alignment = alignment;
  for (int axis = 0; axis < 4; ++axis) {
    t.shape[axis] = shape.axis[axis];
    t.stride[axis] = strides[std::size_t(axis)];
  }
  return t;
}
inline mica_tensor layout(mica_dtype dtype, const Shape& shape, std::int32_t alignment = 0) {
  return layout(dtype, shape, dense_strides(shape), alignment);
}

// A view that may be read: an address and a description. It owns nothing.
class ConstTensor {
 public:
  ConstTensor() = default;
  ConstTensor(const void* data, const mica_tensor& layout) : data_(const_cast<void*>(data)), layout_(layout) {}
  const void* data() const noexcept { return data_; }
  const mica_tensor& layout() const noexcept { return layout_; }

 protected:
  void* data_ = nullptr;
  mica_tensor layout_ = {};  // MICA_NONE: absent
};

// A view that may be written too.
class Tensor : public ConstTensor {
 public:
  Tensor() = default;
  Tensor(void* data, const mica_tensor& layout) : ConstTensor(data, layout) {}
  void* data() const noexcept { return data_; }
};

template <class T>
using TensorOf = std::conditional_t<std::is_const_v<T>, ConstTensor, Tensor>;

// The alignment that is promised is the one the address has, up to 64 bytes.
template <class T>
TensorOf<T> tensor(T* data, const Shape& shape, const Strides& strides) {
  using Element = std::remove_cv_t<T>;
  static_assert(dtype_of<Element> != MICA_NONE, "want float, mica::fp16, mica::bf16, mica::fp8_e4m3, bool or int32_t");
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 64u;
  const auto alignment = std::int32_t(address & (~address + 1));
  return {data, layout(dtype_of<Element>, shape, strides, alignment)};
}
template <class T>
TensorOf<T> tensor(T* data, const Shape& shape) {
  return tensor(data, shape, dense_strides(shape));
}

// A dense view of a span, whose size must cover the shape.
template <class T, std::size_t Extent>
TensorOf<T> tensor(std::span<T, Extent> data, const Shape& shape) {
  const std::int64_t* n = shape.axis;
  if (std::int64_t(data.size()) < n[0] * n[1] * n[2] * n[3])
    throw Error(MICA_ERROR_INVALID, "the span has " + std::to_string(data.size()) + " elements, want " +
                                        std::to_string(n[0] * n[1] * n[2] * n[3]) + " (the shape)");
  return tensor(data.data(), shape);
}
template <class T>
Tensor tensor(std::vector<T>& data, const Shape& shape) {
  return tensor(std::span<T>(data), shape);
}
template <class T>
ConstTensor tensor(const std::vector<T>& data, const Shape& shape) {
  return tensor(std::span<const T>(data), shape);
}

// Memory on the host for a plan's scratch space; 64 bytes serve the CPU backend.
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(std::size_t bytes)
      : bytes_(bytes), data_(bytes ? ::operator new(bytes, std::align_val_t(kAlignment)) : nullptr) {}
  void* data() const noexcept { return data_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(void* data) const noexcept { ::operator delete(data, std::align_val_t(kAlignment)); }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<void, Free> data_;
};

// Move-only owner of a mica_plan. Execute it from any thread, with different bindings at the same time.
class Plan {
 public:
  Plan() = default;
  explicit Plan(const mica_attention& description, mica_pass pass = MICA_FORWARD) {
    mica_plan* made = nullptr;
    check(mica_plan_create(&description, pass, &made));
    plan_.reset(made);
  }
  std::size_t workspace_bytes() const noexcept { return mica_plan_workspace(get()); }
  const char* kernel() const noexcept { return mica_plan_kernel(get()); }
  int splits() const noexcept { return mica_plan_splits(get()); }
  const mica_plan* get() const noexcept { return plan_.get(); }

  void execute(const mica_bindings& bindings) const { check(mica_execute(get(), &bindings)); }
  void execute(mica_bindings bindings, const Workspace& workspace) const {
    bindings.workspace = workspace.data();
    bindings.workspace_bytes = workspace.bytes();
    execute(bindings);
  }

 private:
  struct Destroy {
    void operator()(mica_plan* plan) const noexcept { mica_plan_destroy(plan); }
  };
  std::unique_ptr<mica_plan, Destroy> plan_;
};

// MICA_ATTENTION_INIT and MICA_BINDINGS_INIT without the warning of -Wextra about fields that they leave at 0.
inline mica_attention empty_attention() {
  mica_attention a = {};
  a.struct_bytes = sizeof a;
  a.abi_version = MICA_ABI_VERSION;
  a.mask.window_left = a.mask.window_right = MICA_UNLIMITED;
  return a;
}
inline mica_bindings empty_bindings() {
  mica_bindings x = {};
  x.struct_bytes = sizeof x;
  x.abi_version = MICA_ABI_VERSION;
  return x;
}

// One attention call: its description and its pointers, built together. Both are plain C structs and public.
class Attention {
 public:
  mica_attention description = empty_attention();
  mica_bindings bindings = empty_bindings();

  Attention(ConstTensor q, ConstTensor k, ConstTensor v, Tensor o) {
    description.q = q.layout();
    description.k = k.layout();
    description.v = v.layout();
    description.o = o.layout();
    bindings.q = q.data();
    bindings.k = const_cast<void*>(k.data());  // written by append alone, which asks for writable views
    bindings.v = const_cast<void*>(v.data());
    bindings.o = o.data();
  }

  Attention& device(mica_backend backend, int ordinal = 0) {
    description.device = {backend, ordinal};
    return *this;
  }
  Attention& stream(void* stream) {
    bindings.stream = stream;
    return *this;
  }

  // Which pairs are visible.
  Attention& causal(mica_causal alignment = MICA_CAUSAL_BOTTOM_RIGHT) {
    description.mask.causal = alignment;
    return *this;
  }
  Attention& window(std::int64_t left, std::int64_t right, mica_diagonal diagonal = MICA_DIAGONAL_FROM_CAUSAL) {
    description.mask.window_left = left;
    description.mask.window_right = right;
    if (diagonal != MICA_DIAGONAL_FROM_CAUSAL) description.mask.diagonal = diagonal;
    return *this;
  }
  Attention& chunk(std::int64_t positions, mica_diagonal diagonal = MICA_DIAGONAL_FROM_CAUSAL) {
    description.attention_chunk = positions;
    if (diagonal != MICA_DIAGONAL_FROM_CAUSAL) description.mask.diagonal = diagonal;
    return *this;
  }
  Attention& boolean_mask(ConstTensor mask) { return bind(description.mask.boolean, bindings.boolean_mask, mask); }
  // (batch, heads or 1, rows, new): about the last `new` keys of each sequence; those before them are visible.
  Attention& tree_mask(ConstTensor mask) {
    description.mask_last_keys = mask.layout().shape[3];
    return description.mask_last_keys == 0 ? *this : boolean_mask(mask);  // of no keys: it hides none
  }
  // Keys and values that come before those of every sequence, (1, keys, key heads, dim): read once for the batch.
  Attention& prefix(ConstTensor k, ConstTensor v) {
    bind(description.k_prefix, bindings.k_prefix, k);
    return bind(description.v_prefix, bindings.v_prefix, v);
  }
  // A second query for the values, (batch, rows, heads, dim_v): its products with v are added to those of q with k.
  Attention& query_of_values(ConstTensor qv) { return bind(description.qv, bindings.qv, qv); }

  // From product to score.
  Attention& scale(float scale) {
    description.score.scale = scale;
    return *this;
  }
  Attention& softcap(float softcap) {
    description.score.softcap = softcap;
    return *this;
  }
  Attention& alibi(ConstTensor slopes, mica_diagonal diagonal = MICA_DIAGONAL_FROM_CAUSAL) {
    if (diagonal != MICA_DIAGONAL_FROM_CAUSAL) description.mask.diagonal = diagonal;
    return bind(description.score.alibi, bindings.alibi, slopes);
  }
  Attention& bias(ConstTensor bias) { return bind(description.score.bias, bindings.bias, bias); }
  Attention& sinks(ConstTensor sinks) { return bind(description.score.sinks, bindings.sinks, sinks); }

  // Sequences. q, k, v, o of packed sequences are (1, rows of all, heads, dim); spans have batch + 1 entries, those of
  // the functions after this one batch entries.
  Attention& packed(std::span<const std::int32_t> cu_seqlens_q, std::span<const std::int32_t> cu_seqlens_k) {
    if (cu_seqlens_k.size() != cu_seqlens_q.size())
      throw Error(MICA_ERROR_INVALID, "cu_seqlens_k has " + std::to_string(cu_seqlens_k.size()) + " entries, want " +
                                          std::to_string(cu_seqlens_q.size()) + " (as cu_seqlens_q has)");
    description.sequences.batch = std::int64_t(cu_seqlens_q.size()) - 1;
    vector(MICA_CU_SEQLENS_Q, bindings.cu_seqlens_q, cu_seqlens_q);
    return vector(MICA_CU_SEQLENS_K, bindings.cu_seqlens_k, cu_seqlens_k);
  }
  Attention& max_seqlens(std::int64_t q, std::int64_t k) {
    description.sequences.max_seqlen_q = q;
    description.sequences.max_seqlen_k = k;
    return *this;
  }
  Attention& seqused_q(std::span<const std::int32_t> rows) { return vector(MICA_SEQUSED_Q, bindings.seqused_q, rows); }
  Attention& seqused_k(std::span<const std::int32_t> keys) { return vector(MICA_SEQUSED_K, bindings.seqused_k, keys); }
  Attention& cache_batch_idx(std::span<const std::int32_t> slots) {
    return vector(MICA_CACHE_BATCH_IDX, bindings.cache_batch_idx, slots);
  }
  Attention& cache_leftpad(std::span<const std::int32_t> keys) {
    return vector(MICA_CACHE_LEFTPAD, bindings.cache_leftpad, keys);
  }
  // int32 (batch, blocks); k and v are then (pages, page_size, heads, dim).
  Attention& paged(ConstTensor block_table) {
    return bind(description.sequences.block_table, bindings.block_table, block_table);
  }

  // New rows, written into the cache (k and v, here as writable views) at seqused_k before attention.
  Attention& append(Tensor k, Tensor v, ConstTensor k_new, ConstTensor v_new) {
    description.k = k.layout();
    description.v = v.layout();
    bindings.k = k.data();
    bindings.v = v.data();
    bind(description.append.k_new, bindings.k_new, k_new);
    return bind(description.append.v_new, bindings.v_new, v_new);
  }
  Attention& rotary(ConstTensor cos, ConstTensor sin, bool interleaved = false) {
    description.append.rotary_interleaved = interleaved;
    bind(description.append.rotary_cos, bindings.rotary_cos, cos);
    return bind(description.append.rotary_sin, bindings.rotary_sin, sin);
  }

  Attention& dropout(float probability, std::uint64_t seed, std::uint64_t offset = 0) {
    description.dropout = {probability, 0};
    bindings.dropout_seed = seed;
    bindings.dropout_offset = offset;
    return *this;
  }
  // {seed, offset} are read from the device's memory when the plan is executed.
  Attention& dropout_from(float probability, const std::int64_t* seed_and_offset) {
    description.dropout = {probability, 1};
    bindings.rng_state = seed_and_offset;
    return *this;
  }

  // Where this call lies in a larger one that is computed piece by piece.
  Attention& place(const mica_place& place) {
    description.place = place;
    return *this;
  }

  // What an e4m3 element stands for, over itself: fp32 (batch, key heads), axes of size 1 broadcast; a default
  // ConstTensor: 1. per_page: those of k and v are (pages, key heads).
  Attention& descale(ConstTensor q, ConstTensor k, ConstTensor v, bool per_page = false) {
    description.quantisation.per_page = per_page;
    bind(description.quantisation.q_descale, bindings.q_descale, q);
    bind(description.quantisation.k_descale, bindings.k_descale, k);
    return bind(description.quantisation.v_descale, bindings.v_descale, v);
  }

  Attention& splits(int num_splits) {
    description.control.num_splits = num_splits;
    return *this;
  }
  Attention& deterministic(bool on = true) {
    description.control.deterministic = on;
    return *this;
  }
  Attention& batch_invariant(bool on = true) {
    description.control.batch_invariant = on;
    return *this;
  }

  // Further results; backward reads o and lse.
  Attention& lse(Tensor lse) { return bind(description.lse, bindings.lse, lse); }
  Attention& probs(Tensor probs) { return bind(description.probs, bindings.probs, probs); }

  // Gradients. Those that are absent (a default Tensor) are not computed.
  Attention& gradients(ConstTensor d_o, Tensor dq, Tensor dk, Tensor dv) {
    bind(description.gradients.d_o, bindings.d_o, d_o);
    bind(description.gradients.dq, bindings.dq, dq);
    bind(description.gradients.dk, bindings.dk, dk);
    return bind(description.gradients.dv, bindings.dv, dv);
  }
  Attention& d_lse(ConstTensor d_lse) { return bind(description.gradients.d_lse, bindings.d_lse, d_lse); }
  Attention& d_bias(Tensor d_bias) { return bind(description.gradients.d_bias, bindings.d_bias, d_bias); }
  Attention& d_sinks(Tensor d_sinks) { return bind(description.gradients.d_sinks, bindings.d_sinks, d_sinks); }

  // The description for one pass: what concerns only the other is left out, so that one object serves both. Throws
  // where a span has another number of entries than there are sequences.
  mica_attention description_for(mica_pass pass) const {
    check_entries();
    mica_attention d = description;
    if (pass == MICA_FORWARD) {
      d.gradients = {};
    } else {
      d.probs = {};
      d.control.num_splits = 0;
    }
    return d;
  }
  Plan plan(mica_pass pass = MICA_FORWARD) const { return Plan(description_for(pass), pass); }

  // One call, for the CPU: plans, takes a workspace and executes.
  void forward() const { run(MICA_FORWARD); }
  void backward() const { run(MICA_BACKWARD); }

 private:
  template <class Pointer, class View>
  Attention& bind(mica_tensor& layout, Pointer& pointer, const View& view) {
    layout = view.layout();
    pointer = static_cast<Pointer>(view.data());
    return *this;
  }
  Attention& vector(mica_vectors bit, const std::int32_t*& pointer, std::span<const std::int32_t> values) {
    description.sequences.vectors |= std::uint32_t(bit);
    entries_[std::size_t(std::countr_zero(std::uint32_t(bit)))] = std::int64_t(values.size());
    pointer = values.data();
    return *this;
  }
  // Not where a span is given: packed(), which says how many sequences there are, may come after it.
  void check_entries() const {
    static constexpr const char* kNames[] = {"seqused_q", "seqused_k", "cache_batch_idx", "cache_leftpad"};
    const mica_sequences& s = description.sequences;
    const std::int64_t batch = s.batch ? s.batch : description.q.shape[0];
    for (std::size_t i = 0; i < std::size(kNames); ++i) {
      const std::int64_t entries = entries_[i + std::size_t(std::countr_zero(std::uint32_t(MICA_SEQUSED_Q)))];
      if (entries >= 0 && entries != batch)
        throw Error(MICA_ERROR_INVALID, std::string(kNames[i]) + " has " + std::to_string(entries) + " entries, want " +
                                            std::to_string(batch) + " (the sequences)");
    }
  }
  void run(mica_pass pass) const {
    if (description.device.backend != MICA_CPU)
      throw Error(MICA_ERROR_INVALID, "forward() and backward() are for the CPU; make a plan and bring a workspace");
    const Plan made = plan(pass);
    made.execute(bindings, Workspace(made.workspace_bytes()));
  }

  std::array<std::int64_t, 6> entries_ = {-1, -1, -1, -1, -1, -1};  // of spans, by the bits of mica_vectors
};

// Every kernel of the device's backend, in order of preference; why_not is "" for those that could run the problem.
struct KernelAnswer {
  std::string kernel, why_not;
};
inline std::vector<KernelAnswer> list_kernels(const mica_attention& description, mica_pass pass = MICA_FORWARD) {
  std::vector<KernelAnswer> answers;
  const auto visit = [](void* context, const char* kernel, const char* why_not) {
    static_cast<std::vector<KernelAnswer>*>(context)->push_back({kernel, why_not});
  };
  check(mica_list_kernels(&description, pass, visit, &answers));
  return answers;
}

// Plans made after this call compute on the caller's threads: run(count, task) calls task(i) once for each i in
// [0, count), on any threads, and returns when all calls have returned. `run` must outlive those plans.
template <class Run>
void set_thread_pool(Run& run) {
  check(mica_set_thread_pool(
      [](void* pool, std::int64_t count, mica_task task, void* tasks) {
        (*static_cast<Run*>(pool))(count, [task, tasks](std::int64_t i) { task(tasks, i); });
      },
      &run));
}
inline void reset_thread_pool() { check(mica_set_thread_pool(nullptr, nullptr)); }

}  // namespace face
}  // namespace mica
#endif
