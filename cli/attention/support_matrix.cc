// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/support_matrix.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "cli/attention/problem.h"
#include "cli/text.h"

namespace cli {
namespace {

// A row holds only if every one of its problems has a plan; the first that has none gives the reason.
struct Row {
  const char* option;
  const char* values;
  std::vector<std::function<void(ProblemSpec&, mica_attention*)>> problems;
};

// Options that ProblemSpec has are set there (description is null); the rest in the description that it became.
template <class F>
std::function<void(ProblemSpec&, mica_attention*)> spec(F change) {
  return [change](ProblemSpec& s, mica_attention* description) {
    if (!description) change(s);
  };
}
template <class F>
std::function<void(ProblemSpec&, mica_attention*)> description(F change) {
  return [change](ProblemSpec& s, mica_attention* d) {
    if (d) change(s, *d);
  };
}

mica_attention& with_vectors(mica_attention& d, unsigned vectors) {
  d.sequences.vectors |= vectors;
  return d;
}

std::vector<Row> rows() {
  using S = ProblemSpec;
  using D = mica_attention;
  const auto dims = [](std::int64_t dim, std::int64_t dim_v) {
    return spec([=](S& s) {
      s.dim = dim;
      s.dim_v = dim_v;
    });
  };
  const auto causal = [](const char* word) { return spec([=](S& s) { s.causal = word; }); };
  const auto window = [](std::int64_t left, std::int64_t right) {
    return spec([=](S& s) { s.window = {left, right}; });
  };
  const auto chunk = [](std::int64_t positions, const char* causal) {
    return spec([=](S& s) {
      s.chunk = positions;
      s.causal = causal;
    });
  };
  const auto lengths = [](std::int64_t q, std::int64_t k) {
    return spec([=](S& s) {
      s.seqlen_q = q;
      s.seqlen_k = k;
    });
  };
  const auto vectors = [](unsigned bits) { return description([=](const S&, D& d) { with_vectors(d, bits); }); };
  const auto page = [](std::int64_t size) { return spec([=](S& s) { s.paged = size; }); };
  const auto rotary = [](int interleaved) {
    return [=](S& s, D* d) {
      s.append = 4;
      s.rotary = 32;
      if (d) d->append.rotary_interleaved = interleaved;
    };
  };
  const auto broadcast = [](int rows_axis, int keys_axis) {
    return description([=](const S& s, D& d) {
      d.score.bias = mica::layout(MICA_FP32, {1, 1, rows_axis ? s.seqlen_q : 1, keys_axis ? s.keys() : 1});
      if (s.is_backward()) d.gradients.d_bias = d.score.bias;
    });
  };
  return {
      {"element types",
       "fp32, fp16, bf16; fp32 accumulation",
       {spec([](S& s) { s.dtype = "fp32"; }), spec([](S& s) { s.dtype = "fp16"; }),
        spec([](S& s) { s.dtype = "bf16"; })}},
      {"head dimension",
       "1 to 576 for q and k, 1 to 512 for v, independent",
       {dims(1, 1), dims(576, 512), dims(1, 512), dims(576, 1), dims(96, 80)}},
      {"lengths", "any, 0 and 1 included", {lengths(0, 64), lengths(64, 0), lengths(1, 1), lengths(7, 1000)}},
      {"grouped heads", "query heads a multiple of key heads", {spec([](S& s) { s.heads_k = 2; }), spec([](S& s) {
                                                                  s.heads_k = 1;
                                                                })}},
      {"strides",
       "any, 64-bit; the last dimension dense",
       {description([](const S&, D& d) {
          d.k.stride[1] = -d.k.stride[1];
          d.v.stride[0] = 0;
        }),
        description([](const S& s, D& d) {
          // (batch, head, row, dim) in memory
          const std::int64_t dim = s.dim;
          for (mica_tensor* t : {&d.q, &d.k, &d.v, &d.o}) {
            t->stride[1] = dim;
            t->stride[2] = dim * t->shape[1];
          }
        })}},
      {"causal", "bottom-right or top-left alignment", {causal("bottom-right"), causal("top-left")}},
      {"window", "left and right, each possibly unlimited", {window(16, 16), window(-1, 3), window(16, -1)}},
      {"chunks", "attention_chunk, as Llama 4's local layers", {chunk(16, "none"), chunk(48, "bottom-right")}},
      {"boolean mask",
       "any broadcast",
       {spec([](S& s) { s.mask = true; }), description([](const S& s, D& d) {
          d.mask.boolean = mica::layout(MICA_BOOL, {s.batch, s.heads_q, s.seqlen_q, s.keys()});
        })}},
      {"tree masks", "about the last keys of each sequence; for speculation", {description([](const S& s, D& d) {
         d.mask.boolean = mica::layout(MICA_BOOL, {s.batch, 1, s.seqlen_q, 5});
         d.mask_last_keys = 5;
       })}},
      {"additive bias",
       "any broadcast; gradient",
       {spec([](S& s) { s.bias = true; }), broadcast(0, 1), broadcast(1, 0)}},
      {"softcap", "", {spec([](S& s) { s.softcap = 30; })}},
      {"ALiBi",
       "slopes per head, or per batch and head",
       {spec([](S& s) { s.alibi = true; }), description([](const S& s, D& d) {
          d.mask.diagonal = MICA_DIAGONAL_TOP_LEFT;
          d.score.alibi = mica::layout(MICA_FP32, {s.batch, s.heads_q});
        })}},
      {"sinks", "a logit per head; gradient", {spec([](S& s) { s.sinks = true; })}},
      {"packed sequences", "cu_seqlens for q and k, empty ones included", {spec([](S& s) {
         s.varlen = {64, 0, 1, 33};
       })}},
      {"used lengths", "seqused_q, seqused_k", {vectors(MICA_SEQUSED_Q), vectors(MICA_SEQUSED_K)}},
      {"left padding", "cache_leftpad", {vectors(MICA_SEQUSED_K | MICA_CACHE_LEFTPAD)}},
      {"cache slots", "cache_batch_idx", {vectors(MICA_SEQUSED_K | MICA_CACHE_BATCH_IDX)}},
      {"paged cache", "block_table, any page size", {page(1), page(16), page(256), page(7)}},
      {"shared prefixes", "k_prefix, v_prefix: keys of the whole batch, read once", {description([](const S& s, D& d) {
         d.k_prefix = mica::layout(mica_dtype(d.q.dtype), {1, 300, d.k.shape[2], s.dim});
         d.v_prefix = mica::layout(mica_dtype(d.q.dtype), {1, 300, d.v.shape[2], d.v.shape[3]});
       })}},
      {"second query", "qv: q.k + qv.v; any dimensions up to 576 in all", {description([](const S&, D& d) {
         d.qv = d.q;
         for (int axis = 0; axis < 3; ++axis) d.qv.stride[axis] = d.q.stride[axis] / d.q.shape[3] * d.v.shape[3];
         d.qv.shape[3] = d.v.shape[3];
       })}},
      {"append", "new keys and values written in place", {spec([](S& s) { s.append = 4; })}},
      {"rotary", "with append; interleaved or half", {rotary(0), rotary(1)}},
      {"dropout",
       "Philox; seed by value or from memory",
       {spec([](S& s) { s.dropout = 0.1; }), description([](const S&, D& d) {
          d.dropout = {0.1f, 1};
        })}},
      {"pieces of a larger call",
       "any diagonal; dropout's bits as in the whole",
       {description([](const S&, D& d) {
          d.mask.causal = MICA_CAUSAL_TOP_LEFT;
          d.place.shift = 100;
        }),
        description([](const S& s, D& d) {
          d.dropout = {0.1f, 0};
          d.place = {
              .row_first = 3, .row_step = 2, .key_first = 5, .key_step = 2, .head_first = 1, .heads = s.heads_q + 1};
        })}},
      {"LSE", "natural logarithm; its incoming gradient", {description([](const S& s, D& d) {
         if (s.is_backward()) d.gradients.d_lse = d.lse;
       })}},
      {"dropped probabilities", "for tests", {description([](const S& s, D& d) {
         d.probs = mica::layout(MICA_FP32, {s.batch, s.heads_q, s.seqlen_q, s.keys()});
       })}},
      {"splits", "chosen or given", {spec([](S& s) { s.splits = 4; }), spec([](S& s) {
                                       s.seqlen_q = 1;
                                       s.seqlen_k = 8192;
                                     })}},
      {"e4m3",
       "q, k and v with factors by sequence and key head, or k and v beside wider queries, by page too",
       {description([](const S& s, D& d) {
          d.q.dtype = d.k.dtype = d.v.dtype = MICA_FP8_E4M3;
          d.quantisation.q_descale = mica::layout(MICA_FP32, {s.batch, d.k.shape[2]});
          d.quantisation.k_descale = d.quantisation.v_descale = d.quantisation.q_descale;
        }),
        [](S& s, D* d) {
          s.paged = 16;
          s.append = 4;
          if (!d) return;
          d->k.dtype = d->v.dtype = MICA_FP8_E4M3;
          d->quantisation.k_descale = d->quantisation.v_descale =
              mica::layout(MICA_FP32, {d->k.shape[0], d->k.shape[2]});
          d->quantisation.per_page = 1;
        }}},
      {"deterministic", "", {spec([](S& s) { s.deterministic = true; })}},
      {"batch-invariant", "", {spec([](S& s) { s.batch_invariant = true; })}},
  };
}

// "" if every problem of the row has a plan for the pass.
std::string why_not(const Row& row, const char* pass) {
  for (const auto& change : row.problems) {
    ProblemSpec s;
    s.pass = pass;
    s.batch = 2;
    s.seqlen_q = 128;
    change(s, nullptr);
    mica_attention d = describe(s);
    change(s, &d);
    try {
      mica::Plan(d, s.pass_value());
    } catch (const mica::Error& e) {
      return e.what();
    }
  }
  return "";
}

}  // namespace

nlohmann::json support_matrix_json() {
  nlohmann::json matrix = nlohmann::json::array();
  for (const Row& row : rows())
    matrix.push_back({{"option", row.option},
                      {"values", row.values},
                      {"forward", why_not(row, "forward")},
                      {"backward", why_not(row, "backward")}});
  return matrix;
}

std::string support_matrix_markdown() {
  Table table({"option", "values", "forward", "backward"});
  std::vector<std::string> notes;
  for (const auto& row : support_matrix_json()) {
    const auto cell = [&](const char* pass) -> std::string {
      const std::string reason = row[pass];
      if (reason.empty()) return "yes";
      const auto known = std::find(notes.begin(), notes.end(), reason);
      const auto number = known - notes.begin() + 1;
      if (known == notes.end()) notes.push_back(reason);
      return format("no [%td]", number);
    };
    const std::string forward = cell("forward"), backward = cell("backward");
    table.add({row["option"], row["values"], forward, backward});
  }
  std::string out = table.markdown();
  for (std::size_t i = 0; i < notes.size(); ++i) out += format("\n[%zu] %s\n", i + 1, notes[i].c_str());
  return out;
}

}  // namespace cli
