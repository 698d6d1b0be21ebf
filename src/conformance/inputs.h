// SPDX-License-Identifier: Apache-2.0
// A case made concrete: the description, the tensors' contents and the vectors' values, in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/numbers.h"
#include "conformance/options.h"
#include "mica/mica.h"

namespace mica::conformance {

// A tensor with its bytes. Bytes that belong to no element, and elements nobody set, are 0xff (NaN).
struct HostTensor {
  mica_tensor description = {};
  std::vector<unsigned char> bytes;
  int64_t origin = 0;  // element index of (0, 0, 0, 0) in bytes; not 0 with negative strides

  bool present() const { return description.dtype != MICA_NONE; }
  int64_t size() const;  // elements by shape
  int64_t index(int64_t a, int64_t b, int64_t c, int64_t d) const;
  void* address(int64_t element) { return bytes.data() + element * int64_t(element_bytes(description.dtype)); }
  const void* address(int64_t element) const { return const_cast<HostTensor*>(this)->address(element); }
  double get(int64_t a, int64_t b, int64_t c, int64_t d) const;
  void set(int64_t a, int64_t b, int64_t c, int64_t d, double value);
};

HostTensor make_tensor(int32_t dtype, const int64_t (&shape)[4], Layout layout, int32_t alignment);

// A sequence by the reference's own arithmetic.
struct SequenceView {
  int64_t q_slot, q_first;    // q, o: row i is at (q_slot, q_first + i)
  int64_t len_q, room_q;      // rows in use; rows that belong to the sequence
  int64_t len_k;              // keys in use, appended ones included, left padding excluded
  int64_t slot_len_k;         // rows of k that belong to the sequence
  int64_t leftpad, new_from;  // key j is at slot position leftpad + j; keys from new_from on are appended
  int64_t used_k;             // slot position of the first appended key
};

struct Inputs {
  Options options;
  mica_attention forward = MICA_ATTENTION_INIT;
  HostTensor q, k, v, o, lse, probs, mask, bias, alibi, sinks, k_new, v_new, rotary_cos, rotary_sin, block_table;
  HostTensor q_descale, k_descale, v_descale;
  HostTensor k_prefix, v_prefix, qv;
  HostTensor d_o, d_lse, dq, dk, dv, d_bias, d_sinks;
  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k, batch_idx;
  std::vector<int64_t> rng_state;
  std::vector<SequenceView> sequences;

  int64_t batch() const { return options.batch; }
  // Where slot position `position` of sequence b lives in k and v.
  void locate_key(int64_t b, int64_t position, int64_t& slot, int64_t& row) const;
  // What a stored element of sequence b stands for, over itself; slot: its page.
  double descale(const HostTensor& factors, int64_t b, int64_t slot, int64_t head_k) const;
  // Backward's description: forward's, less probs, with the gradients.
  mica_attention backward() const;
};

Inputs make_inputs(const Options& options);

}  // namespace mica::conformance
