// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace cli {
namespace {

mica_causal parse_causal(const std::string& word) {
  if (word == "none") return MICA_CAUSAL_NONE;
  if (word == "bottom-right") return MICA_CAUSAL_BOTTOM_RIGHT;
  if (word == "top-left") return MICA_CAUSAL_TOP_LEFT;
  throw std::runtime_error("causal is '" + word + "', want none, bottom-right or top-left");
}

std::int64_t total_rows(const ProblemSpec& s) {
  return std::accumulate(s.varlen.begin(), s.varlen.end(), std::int64_t(0));
}

// The sum of clamp(i + start, 0, keys) over i in [0, rows): zeros, a ramp, then keys.
double clamped_sum(double rows, double start, double keys) {
  const double ramp_begin = std::clamp(-start, 0.0, rows), ramp_end = std::clamp(keys - start, ramp_begin, rows);
  return (ramp_end - ramp_begin) * (ramp_begin + ramp_end - 1 + 2 * start) / 2 + (rows - ramp_end) * keys;
}

// Pairs (query, key) of one head that are visible where there are chunks, row by row.
double visible_pairs_of_chunks(const ProblemSpec& s, std::int64_t rows, std::int64_t keys) {
  const std::int64_t shift = s.causal == "top-left" ? 0 : keys - rows;
  const std::int64_t left = s.window.size() == 2 ? s.window[0] : -1;
  const std::int64_t right = s.causal != "none" ? 0 : (s.window.size() == 2 ? s.window[1] : -1);
  double pairs = 0;
  for (std::int64_t at = shift; at < rows + shift; ++at) {
    const std::int64_t first = at - (at % s.chunk + s.chunk) % s.chunk;
    const std::int64_t begin = std::max({std::int64_t(0), first, left < 0 ? first : at - left});
    const std::int64_t end = std::min({keys, first + s.chunk, right < 0 ? keys : at + right + 1});
    pairs += double(std::max<std::int64_t>(end - begin, 0));
  }
  return pairs;
}

// Pairs (query, key) of one head that causal, window and chunks leave visible.
double visible_pairs(const ProblemSpec& s, std::int64_t rows, std::int64_t keys) {
  if (rows <= 0 || keys <= 0) return 0;
  if (s.chunk > 0) return visible_pairs_of_chunks(s, rows, keys);
  const double shift = s.causal == "top-left" ? 0 : double(keys) - double(rows);
  const std::int64_t left = s.window.size() == 2 ? s.window[0] : -1;
  const std::int64_t right = s.causal != "none" ? 0 : (s.window.size() == 2 ? s.window[1] : -1);
  const double r = double(rows), k = double(keys);
  const double ends = right < 0 ? r * k : clamped_sum(r, shift + double(right) + 1, k);
  const double begins = left < 0 ? 0 : clamped_sum(r, shift - double(left), k);
  return ends - begins;
}

void want(bool is_fine, const char* field, std::int64_t got, const char* wanted) {
  if (!is_fine) throw std::runtime_error(std::string(field) + " is " + std::to_string(got) + ", want " + wanted);
}

// What would be lost or overflow on the way into a description; everything else, the library judges.
void check_numbers(const ProblemSpec& s) {
  want(s.seqlen_k >= -1, "seqlen_k", s.seqlen_k, "0 or more, or -1 (as seqlen_q)");
  want(s.heads_k >= -1, "heads_k", s.heads_k, "1 or more, or -1 (as heads_q)");
  want(s.dim_v >= -1, "dim_v", s.dim_v, "1 or more, or -1 (as dim)");
  want(s.paged >= 0, "paged", s.paged, "a page size, or 0 (contiguous)");
  want(s.append >= 0, "append", s.append, "0 or more rows");
  want(s.chunk >= 0 && s.chunk <= MICA_MAX_SEQLEN, "chunk", s.chunk, "0 (no chunks) to 2^29");
  want(s.rotary >= 0 && s.rotary % 2 == 0, "rotary", s.rotary, "an even dimension, or 0 (none)");
  want(s.splits == std::int32_t(s.splits), "splits", s.splits, "0 (choose) to 256");
  for (const std::int64_t length : s.varlen)
    want(length >= 0 && length <= MICA_MAX_SEQLEN, "varlen", length, "lengths of 0 to 2^29");
  if (!s.window.empty() && s.window.size() != 2)
    throw std::runtime_error("window has " + std::to_string(s.window.size()) + " numbers, want LEFT,RIGHT");

  const std::int64_t rows =
      std::max({s.varlen.empty() ? std::max(s.seqlen_q, s.keys()) : total_rows(s), s.paged, s.append});
  const std::int64_t heads = std::max(s.heads_q, s.key_heads()), dim = std::max(s.dim, s.value_dim());
  const auto check_product = [](std::initializer_list<std::pair<const char*, std::int64_t>> axes) {
    double elements = 1;
    std::string text;
    for (const auto& [name, size] : axes) {
      elements *= std::max(1.0, std::abs(double(size)));
      text += (text.empty() ? "" : " x ") + std::to_string(size) + " " + name;
    }
    if (elements > 0x1p48) throw std::runtime_error(text + " are more than 2^48 elements");
  };
  check_product({{"sequences", s.batch}, {"rows or keys", rows}, {"heads", heads}, {"dimensions", dim}});
  const std::int64_t longest = s.varlen.empty() ? 0 : *std::max_element(s.varlen.begin(), s.varlen.end());
  if (s.bias || s.mask)
    check_product({{"heads", heads},
                   {"rows", s.varlen.empty() ? s.seqlen_q : longest},
                   {"keys", s.varlen.empty() ? s.keys() : longest}});
}

// One list of the fields: the flags, the JSON reader and the writer all go through it. f(name, field, help).
template <class Spec, class F>
void for_each_field(Spec& s, F f) {
  f("pass", s.pass, "forward or backward");
  f("dtype", s.dtype, "fp32, fp16 or bf16");
  f("device", s.device, "cpu, cuda or cuda:N");
  f("batch", s.batch, "number of sequences");
  f("seqlen_q", s.seqlen_q, "query rows of each sequence");
  f("seqlen_k", s.seqlen_k, "keys of each sequence (-1: as queries)");
  f("heads_q", s.heads_q, "query heads");
  f("heads_k", s.heads_k, "key and value heads (-1: as query heads)");
  f("dim", s.dim, "head dimension of q and k");
  f("dim_v", s.dim_v, "head dimension of v and o (-1: as dim)");
  f("causal", s.causal, "none, bottom-right or top-left");
  f("window", s.window, "LEFT,RIGHT keys around the diagonal (-1: unlimited)");
  f("chunk", s.chunk, "positions per chunk, which a row does not see beyond (0: no chunks)");
  f("scale", s.scale, "scale of the scores (0: 1/sqrt(dim))");
  f("softcap", s.softcap, "softcap of the scores (0: none)");
  f("alibi", s.alibi, "ALiBi slopes, one per head");
  f("sinks", s.sinks, "sink logits, one per head");
  f("bias", s.bias, "additive bias (heads, rows, keys)");
  f("mask", s.mask, "boolean mask (rows, keys)");
  f("dropout", s.dropout, "dropout probability");
  f("varlen", s.varlen, "A,B,C: lengths of packed sequences (instead of batch and seqlen)");
  f("paged", s.paged, "page size of a paged cache (0: contiguous)");
  f("append", s.append, "rows appended to the cache in place");
  f("rotary", s.rotary, "rotary dimension, with --append");
  f("splits", s.splits, "key ranges worked on apart (0: choose)");
  f("deterministic", s.deterministic, "the same bits on every run");
  f("batch_invariant", s.batch_invariant, "a row's bits do not depend on the batch");
}

}  // namespace

void add_problem_flags(Command& verb, ProblemSpec& spec) {
  for_each_field(spec, [&verb](const std::string& name, auto& field, const char* help) {
    using Field = std::remove_reference_t<decltype(field)>;
    std::string flag = "--" + name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    if constexpr (std::is_same_v<Field, bool>) {
      verb.add_flag(flag, field, help);
    } else if constexpr (std::is_same_v<Field, std::vector<std::int64_t>>) {
      Option* option = verb.add_option(flag, field, help)->delimiter(',')->type_name("N,N");
      if (name == "window") option->expected(2);
    } else if constexpr (std::is_same_v<Field, std::string>) {
      if (name == "causal") {
        // A bare --causal means the usual alignment.
        verb.add_flag(flag + "{bottom-right}", field, std::string(help) + "; bare: bottom-right")
            ->one_of({"none", "bottom-right", "top-left"});
        return;
      }
      Option* option = verb.add_option(flag, field, help)->capture_default_str();
      if (name == "pass") option->one_of({"forward", "backward"});
      if (name == "dtype") option->one_of({"fp32", "fp16", "bf16"});
    } else {
      verb.add_option(flag, field, help)->capture_default_str();
    }
  });
}

ProblemSpec problem_from_json(const nlohmann::json& object) {
  ProblemSpec spec;
  if (!object.is_object()) throw std::runtime_error("a case is " + object.dump() + ", want an object");
  std::size_t known = 0;
  for_each_field(spec, [&](const std::string& name, auto& field, const char*) {
    const auto it = object.find(name);
    if (it == object.end()) return;
    ++known;
    using Field = std::remove_reference_t<decltype(field)>;
    // Booleans are no numbers here, and numbers no booleans.
    const bool fits = std::is_same_v<Field, bool>          ? it->is_boolean()
                      : std::is_same_v<Field, std::string> ? it->is_string()
                      : std::is_same_v<Field, double>      ? it->is_number()
                      : std::is_integral_v<Field>          ? it->is_number_integer()
                                                           : it->is_array();
    try {
      if (!fits) throw std::runtime_error("");
      field = it->template get<Field>();
    } catch (const std::exception&) {
      throw std::runtime_error("\"" + name + "\" is " + it->dump() + ", which is no value for it");
    }
  });
  if (known != object.size())
    for (const auto& item : object.items()) {
      const std::string& key = item.key();
      bool found = false;
      for_each_field(spec, [&](const std::string& name, auto&, const char*) { found |= name == key; });
      if (!found) throw std::runtime_error("\"" + key + "\" is no option of a problem (see mica plan --help)");
    }
  return spec;
}

nlohmann::json problem_to_json(const ProblemSpec& spec) {
  nlohmann::json object;
  for_each_field(spec, [&](const char* name, const auto& field, const char*) { object[name] = field; });
  object["seqlen_k"] = spec.keys();
  object["heads_k"] = spec.key_heads();
  object["dim_v"] = spec.value_dim();
  return object;
}

std::string problem_name(const ProblemSpec& s) {
  const auto n = [](std::int64_t x) { return std::to_string(x); };
  std::string name = s.pass + " " + s.dtype;
  if (s.varlen.empty())
    name += " b" + n(s.batch) + " s" + n(s.seqlen_q) + (s.keys() != s.seqlen_q ? "," + n(s.keys()) : "");
  else
    name += " varlen" + n(std::int64_t(s.varlen.size())) + "x" + n(total_rows(s));
  name += " h" + n(s.heads_q) + (s.key_heads() != s.heads_q ? "," + n(s.key_heads()) : "");
  name += " d" + n(s.dim) + (s.value_dim() != s.dim ? "," + n(s.value_dim()) : "");
  if (s.causal != "none") name += s.causal == "top-left" ? " causal-top-left" : " causal";
  if (s.window.size() == 2) name += " window" + n(s.window[0]) + "," + n(s.window[1]);
  if (s.chunk) name += " chunk" + n(s.chunk);
  if (s.softcap != 0) name += " softcap";
  if (s.alibi) name += " alibi";
  if (s.bias) name += " bias";
  if (s.mask) name += " mask";
  if (s.sinks) name += " sinks";
  if (s.dropout != 0) name += " dropout";
  if (s.paged) name += " paged" + n(s.paged);
  if (s.append) name += " append" + n(s.append);
  if (s.rotary) name += " rotary" + n(s.rotary);
  if (s.splits) name += " splits" + n(s.splits);
  if (s.deterministic) name += " deterministic";
  if (s.batch_invariant) name += " batch-invariant";
  if (s.device != "cpu") name += " " + s.device;
  return name;
}

mica_device parse_device(const std::string& word) {
  if (word == "cpu") return {MICA_CPU, 0};
  if (word == "cuda") return {MICA_CUDA, 0};
  if (word.rfind("cuda:", 0) == 0) {
    const std::string digits = word.substr(5);
    if (!digits.empty() && digits.size() <= 4 && digits.find_first_not_of("0123456789") == std::string::npos)
      return {MICA_CUDA, std::stoi(digits)};
  }
  throw std::runtime_error("device is '" + word + "', want cpu, cuda or cuda:N");
}

mica_dtype parse_dtype(const std::string& word) {
  if (word == "fp32") return MICA_FP32;
  if (word == "fp16") return MICA_FP16;
  if (word == "bf16") return MICA_BF16;
  throw std::runtime_error("dtype is '" + word + "', want fp32, fp16 or bf16");
}

mica_attention describe(const ProblemSpec& s) {
  check_numbers(s);
  const auto layout = [](mica_dtype type, const mica::Shape& shape) { return mica::layout(type, shape); };
  const mica_dtype type = parse_dtype(s.dtype);
  const bool packed = !s.varlen.empty();
  const std::int64_t batch = packed ? std::int64_t(s.varlen.size()) : s.batch;
  const std::int64_t slots = packed ? 1 : batch;
  const std::int64_t rows = packed ? total_rows(s) : s.seqlen_q;
  const std::int64_t keys = packed ? rows : s.keys();

  mica_attention a = MICA_ATTENTION_INIT;
  a.device = parse_device(s.device);
  a.q = layout(type, {slots, rows, s.heads_q, s.dim});
  a.k = layout(type, {slots, keys, s.key_heads(), s.dim});
  a.v = layout(type, {slots, keys, s.key_heads(), s.value_dim()});
  a.o = layout(type, {slots, rows, s.heads_q, s.value_dim()});
  a.lse = layout(MICA_FP32, {slots, s.heads_q, rows});

  if (packed) {
    a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
    a.sequences.batch = batch;
    a.sequences.max_seqlen_q = a.sequences.max_seqlen_k = *std::max_element(s.varlen.begin(), s.varlen.end());
  }
  if (s.paged > 0) {
    const std::int64_t blocks = (keys + s.paged - 1) / s.paged;
    a.sequences.block_table = layout(MICA_INT32, {batch, blocks});
    a.sequences.vectors |= MICA_SEQUSED_K;
    a.k = layout(type, {batch * blocks, s.paged, s.key_heads(), s.dim});
    a.v = layout(type, {batch * blocks, s.paged, s.key_heads(), s.value_dim()});
  }
  if (s.append > 0) {
    a.sequences.vectors |= MICA_SEQUSED_K;
    a.append.k_new = layout(type, {batch, s.append, s.key_heads(), s.dim});
    a.append.v_new = layout(type, {batch, s.append, s.key_heads(), s.value_dim()});
  }
  if (s.rotary > 0) {
    const std::int64_t capacity = s.paged > 0 ? (keys + s.paged - 1) / s.paged * s.paged : keys;
    a.append.rotary_cos = a.append.rotary_sin = layout(type, {capacity, s.rotary / 2});
  }

  a.mask.causal = parse_causal(s.causal);
  if (s.window.size() == 2) {
    a.mask.window_left = s.window[0];
    a.mask.window_right = s.window[1];
  }
  a.attention_chunk = s.chunk;
  if ((!s.window.empty() || s.chunk || s.alibi) && !a.mask.causal) a.mask.diagonal = MICA_DIAGONAL_BOTTOM_RIGHT;
  const std::int64_t pair_rows = packed ? a.sequences.max_seqlen_q : rows;
  const std::int64_t pair_keys = packed ? a.sequences.max_seqlen_k : keys;
  if (s.mask) a.mask.boolean = layout(MICA_BOOL, {1, 1, pair_rows, pair_keys});
  a.score.scale = float(s.scale);
  a.score.softcap = float(s.softcap);
  if (s.alibi) a.score.alibi = layout(MICA_FP32, {1, s.heads_q});
  if (s.bias) a.score.bias = layout(type, {1, s.heads_q, pair_rows, pair_keys});
  if (s.sinks) a.score.sinks = layout(MICA_FP32, {s.heads_q});
  a.dropout.probability = float(s.dropout);
  a.control.num_splits = std::int32_t(s.splits);
  a.control.deterministic = s.deterministic;
  a.control.batch_invariant = s.batch_invariant;
  if (s.is_backward()) {
    a.gradients.d_o = a.o;
    a.gradients.dq = a.q;
    a.gradients.dk = a.k;
    a.gradients.dv = a.v;
    if (s.bias) a.gradients.d_bias = a.score.bias;
    if (s.sinks) a.gradients.d_sinks = a.score.sinks;
  }
  return a;
}

double problem_flops(const ProblemSpec& s) {
  double pairs = 0;
  if (s.varlen.empty())
    pairs = double(s.batch) * visible_pairs(s, s.seqlen_q, s.keys());
  else
    for (const std::int64_t length : s.varlen) pairs += visible_pairs(s, length, length);
  // forward: QK^T and PV; backward: QK^T again, dV, dP, dQ, dK.
  const double per_pair =
      s.is_backward() ? 6.0 * double(s.dim) + 4.0 * double(s.value_dim()) : 2.0 * double(s.dim + s.value_dim());
  return double(s.heads_q) * pairs * per_pair;
}

double problem_bytes(const ProblemSpec& s) {
  const double element = s.dtype == "fp32" ? 4 : 2;
  const double rows = s.varlen.empty() ? double(s.batch * s.seqlen_q) : double(total_rows(s));
  const double keys = s.varlen.empty() ? double(s.batch * s.keys()) : double(total_rows(s));
  const double query_side = rows * double(s.heads_q * (s.dim + s.value_dim()));
  const double key_side = keys * double(s.key_heads() * (s.dim + s.value_dim()));
  return element * (s.is_backward() ? 2 * (query_side + key_side) : query_side + key_side);
}

}  // namespace cli
