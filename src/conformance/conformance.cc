// SPDX-License-Identifier: Apache-2.0
// Runs one case: exact-size buffers between guards, outputs poisoned, everything compared afterwards.
#include "conformance/conformance.h"

#include <regex.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "conformance/cases.h"
#include "conformance/compare.h"
#include "conformance/inputs.h"
#include "conformance/random_cases.h"
#include "conformance/reference.h"

namespace mica::conformance {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xa5;

// A tensor's bytes in the device's memory, between two guards.
class Buffer {
 public:
  Buffer(Memory& memory, const char* name, const HostTensor& tensor, bool is_aligned)
      : memory_(memory), name_(name), initial_(tensor) {
    // Just as aligned as the description promises, no better.
    offset_ = kGuardBytes + (is_aligned ? 0 : element_bytes(tensor.description.dtype));
    all_.assign(offset_ + tensor.bytes.size() + kGuardBytes, kGuard);
    if (!tensor.bytes.empty()) std::memcpy(all_.data() + offset_, tensor.bytes.data(), tensor.bytes.size());
    base_ = static_cast<unsigned char*>(memory.allocate(all_.size()));
    if (!base_) return;
    memory.upload(base_, all_.data(), all_.size());
    fence();
  }
  ~Buffer() {
    open_fence();
    memory_.release(base_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool is_allocated() const { return base_ != nullptr; }
  const char* name() const { return name_; }
  const HostTensor& initial() const { return initial_; }
  // The tensor's element (0, 0, 0, 0); null if the tensor is empty.
  void* address() const {
    const size_t bytes = element_bytes(initial_.description.dtype);
    return initial_.bytes.empty() ? nullptr : base_ + offset_ + size_t(initial_.origin) * bytes;
  }
  // Fetches what the call left; complains about the guards.
  const unsigned char* download(Outcome& outcome) {
    open_fence();
    memory_.download(all_.data(), base_, all_.size());
    fence();
    const auto written = [](unsigned char byte) { return byte != kGuard; };
    const auto begin = all_.begin() + long(offset_), end = begin + long(initial_.bytes.size());
    if (const auto before = std::find_if(all_.begin(), begin, written); before != begin)
      add_failure(outcome,
                  std::string(name_) + ": written " + std::to_string(begin - before) + " bytes before its start");
    else if (const auto after = std::find_if(end, all_.end(), written); after != all_.end())
      add_failure(outcome, std::string(name_) + ": written " + std::to_string(after - end) + " bytes past its end");
    return all_.data() + offset_;
  }
  // What the next call must find unchanged.
  void accept() { initial_.bytes.assign(all_.begin() + long(offset_), all_.end() - long(kGuardBytes)); }

 private:
  void fence() {
    memory_.fence(base_, offset_);
    memory_.fence(base_ + all_.size() - kGuardBytes, kGuardBytes);
  }
  void open_fence() { memory_.open_fence(base_, all_.size()); }

  Memory& memory_;
  const char* name_;
  HostTensor initial_;
  size_t offset_;
  std::vector<unsigned char> all_;
  unsigned char* base_;
};

template <class T>
HostTensor as_tensor(const std::vector<T>& values) {
  HostTensor t;
  if (values.empty()) return t;
  t.description.dtype = MICA_INT32;
  t.bytes.resize(values.size() * sizeof(T));
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

// What the outputs have to be: exactly, and as a textbook would compute them in the case's precision.
struct Reference {
  Results truth, naive;
};

// One call of each pass, on one device.
class Run {
 public:
  Run(const Inputs& inputs, const std::function<const Reference&()>& expected, Memory& memory)
      : memory_(memory), inputs_(inputs), expected_(expected) {}

  Outcome run() {
    bind_all();
    if (outcome_.status == Status::kFailed) return outcome_;
    mica_attention description = inputs_.forward;
    description.device = memory_.device();
    if (!call(description, MICA_FORWARD)) return outcome_;
    check_forward(expected_());
    if (!inputs_.options.is_backward() || outcome_.status == Status::kFailed) return outcome_;
    for (const auto& buffer : buffers_) buffer->accept();
    description = inputs_.backward();
    description.device = memory_.device();
    const bool by_pieces = inputs_.options.piece_keys > 0 && description.device.backend == MICA_CUDA;
    if (by_pieces ? call(pieces_of(description), MICA_BACKWARD) : call(description, MICA_BACKWARD))
      check_backward(expected_());
    return outcome_;
  }

 private:
  // rng_state is the only vector of 64-bit words.
  Buffer* place(const char* name, const HostTensor& tensor, bool is_aligned) {
    if (!tensor.present()) return nullptr;
    buffers_.push_back(std::make_unique<Buffer>(memory_, name, tensor, is_aligned));
    if (!buffers_.back()->is_allocated()) add_failure(outcome_, std::string("no memory for ") + name);
    return buffers_.back().get();
  }
  void* bind(const char* name, const HostTensor& tensor, Buffer** keep = nullptr) {
    Buffer* buffer = place(name, tensor, inputs_.options.alignment != 0);
    if (keep) *keep = buffer;
    return buffer ? buffer->address() : nullptr;
  }
  void* column_of_k(int64_t column) const {
    const size_t bytes = element_bytes(inputs_.k.description.dtype);
    return k_ && k_->address() ? static_cast<unsigned char*>(k_->address()) + size_t(column) * bytes : nullptr;
  }
  const int32_t* bind_vector(const char* name, const std::vector<int32_t>& values) {
    return static_cast<const int32_t*>(bind(name, as_tensor(values)));
  }

  void bind_all() {
    const Inputs& i = inputs_;
    mica_bindings& x = bindings_;
    x.q = bind("q", i.q);
    x.k = bind("k", i.k, &k_);
    x.v = i.options.place_of_v == PlaceOfV::kInK ? column_of_k(i.options.v_column) : bind("v", i.v, &v_);
    x.o = bind("o", i.o, &o_);
    x.lse = static_cast<float*>(bind("lse", i.lse, &lse_));
    x.probs = static_cast<float*>(bind("probs", i.probs, &probs_));
    x.boolean_mask = bind("mask", i.mask);
    x.bias = bind("bias", i.bias);
    x.alibi = static_cast<const float*>(bind("alibi", i.alibi));
    x.sinks = bind("sinks", i.sinks);
    x.cu_seqlens_q = bind_vector("cu_seqlens_q", i.cu_seqlens_q);
    x.cu_seqlens_k = bind_vector("cu_seqlens_k", i.cu_seqlens_k);
    x.seqused_q = bind_vector("seqused_q", i.options.used_q);
    x.seqused_k = bind_vector("seqused_k", i.options.used_k);
    x.cache_batch_idx = bind_vector("cache_batch_idx", i.batch_idx);
    x.cache_leftpad = bind_vector("cache_leftpad", i.options.leftpad);
    x.block_table = static_cast<const int32_t*>(bind("block_table", i.block_table));
    x.k_new = bind("k_new", i.k_new);
    x.v_new = bind("v_new", i.v_new);
    x.rotary_cos = bind("rotary_cos", i.rotary_cos);
    x.rotary_sin = bind("rotary_sin", i.rotary_sin);
    if (i.options.rng_from_memory) {
      const Buffer* state = place("rng_state", as_tensor(i.rng_state), true);
      x.rng_state = static_cast<const int64_t*>(state->address());
    } else {
      x.dropout_seed = i.options.rng_seed;
      x.dropout_offset = i.options.rng_offset;
    }
    x.q_descale = static_cast<const float*>(bind("q_descale", i.q_descale));
    x.k_descale = static_cast<const float*>(bind("k_descale", i.k_descale));
    x.v_descale = static_cast<const float*>(bind("v_descale", i.v_descale));
    x.k_prefix = bind("k_prefix", i.k_prefix);
    x.v_prefix = bind("v_prefix", i.v_prefix);
    x.qv = bind("qv", i.qv);
    x.d_o = bind("d_o", i.d_o);
    x.d_lse = static_cast<const float*>(bind("d_lse", i.d_lse));
    x.dq = bind("dq", i.dq, &dq_);
    x.dk = bind("dk", i.dk, &dk_);
    x.dv = bind("dv", i.dv, &dv_);
    x.d_bias = bind("d_bias", i.d_bias, &d_bias_);
    x.d_sinks = bind("d_sinks", i.d_sinks, &d_sinks_);
    x.stream = memory_.stream();
  }

  // Of one pass: a description, and the first key that it is about.
  struct Part {
    mica_attention description;
    int64_t first_key;
  };
  using PlanOwner = std::unique_ptr<mica_plan, decltype(&mica_plan_destroy)>;

  static void* from_key(void* address, const mica_tensor& tensor, int64_t key) {
    if (!address) return nullptr;
    return static_cast<unsigned char*>(address) + key * tensor.stride[1] * int64_t(element_bytes(tensor.dtype));
  }

  // The keys in stretches, and dQ at the end. Rows count from the top left, and their diagonal moves with the keys.
  std::vector<Part> pieces_of(const mica_attention& whole) const {
    std::vector<Part> parts;
    const int64_t keys = whole.k.shape[1];
    for (int64_t first = 0; first < keys; first += inputs_.options.piece_keys) {
      mica_attention piece = whole;
      const bool is_beside = inputs_.options.pieces_beside && parts.size() % 2 == 0;
      piece.control.pieces = is_beside ? MICA_PIECES_BESIDE : MICA_PIECES_NEXT;
      if (first == 0 && !inputs_.options.pieces_beside) piece.control.pieces = MICA_PIECES_FIRST;
      for (mica_tensor* tensor : {&piece.k, &piece.v, &piece.gradients.dk, &piece.gradients.dv})
        tensor->shape[1] = std::min(inputs_.options.piece_keys, keys - first);
      piece.place.shift = whole.mask.causal == MICA_CAUSAL_NONE ? 0 : -first;
      parts.push_back({piece, first});
    }
    parts.push_back(parts[0]);
    parts.back().description.control.pieces = MICA_PIECES_END;
    if (inputs_.options.pieces_beside) {
      parts.insert(parts.begin(), parts[0]);
      parts[0].description.control.pieces = MICA_PIECES_BEGIN;
    }
    return parts;
  }

  // False: the outcome says why.
  bool call(const mica_attention& description, mica_pass pass) { return call({{description, 0}}, pass); }

  bool call(const std::vector<Part>& parts, mica_pass pass) {
    const char* pass_name = pass == MICA_FORWARD ? "forward: " : "backward: ";
    std::vector<PlanOwner> plans;
    size_t workspace_bytes = 0;
    for (const Part& part : parts) {
      mica_plan* plan = nullptr;
      const mica_status planned = mica_plan_create(&part.description, pass, &plan);
      if (planned == MICA_ERROR_UNSUPPORTED) {
        outcome_.status = Status::kSkipped;
        outcome_.message = std::string(pass_name) + mica_last_error();
        return false;
      }
      if (planned != MICA_OK) {
        add_failure(outcome_, std::string(pass_name) + mica_status_name(planned) + ": " + mica_last_error());
        return false;
      }
      plans.emplace_back(plan, mica_plan_destroy);
      workspace_bytes = std::max(workspace_bytes, mica_plan_workspace(plan));
      std::string& kernel = pass == MICA_FORWARD ? outcome_.forward_kernel : outcome_.backward_kernel;
      if (plans.size() > 1 && kernel != mica_plan_kernel(plan))
        add_failure(outcome_, "pieces by " + kernel + " and " + mica_plan_kernel(plan));
      kernel = mica_plan_kernel(plan);
    }
    HostTensor space;
    space.description.dtype = MICA_FP32;
    space.bytes.assign(workspace_bytes, 0xff);
    Buffer workspace(memory_, "workspace", space, true);
    const auto begin = std::chrono::steady_clock::now();
    for (size_t n = 0; n < parts.size(); ++n) {
      const mica_attention& a = parts[n].description;
      mica_bindings x = bindings_;
      x.k = from_key(x.k, a.k, parts[n].first_key);
      x.v = from_key(x.v, a.v, parts[n].first_key);
      x.dk = from_key(x.dk, a.gradients.dk, parts[n].first_key);
      x.dv = from_key(x.dv, a.gradients.dv, parts[n].first_key);
      x.workspace = workspace.address();
      x.workspace_bytes = workspace_bytes;
      const mica_status executed = mica_execute(plans[n].get(), &x);
      if (executed != MICA_OK)
        add_failure(outcome_, std::string(pass_name) + mica_status_name(executed) + ": " + mica_last_error());
    }
    const std::string trouble = memory_.synchronise();
    outcome_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!trouble.empty()) add_failure(outcome_, pass_name + trouble);
    if (outcome_.status == Status::kFailed) return false;
    workspace.download(outcome_);
    return true;
  }

  struct Output {
    const Buffer* buffer;
    const Expected& truth;
    const Expected& naive;
    int32_t tolerance_dtype;
  };
  // Compares the outputs with the reference and everything else with what it was.
  void check(const std::vector<Output>& outputs, double largest_lse) {
    for (const auto& buffer : buffers_) {
      const unsigned char* after = buffer->download(outcome_);
      const Output* found = nullptr;
      for (const Output& output : outputs)
        if (output.buffer == buffer.get() && !output.truth.want.empty()) found = &output;
      if (found)
        compare({buffer->name(), buffer->initial(), after, found->truth, found->naive, found->tolerance_dtype,
                 largest_lse, buffer.get() == probs_},
                outcome_);
      else
        compare_untouched(buffer->name(), buffer->initial(), after, outcome_);
    }
  }
  void check_forward(const Reference& expected) {
    const auto& [truth, naive] = expected;
    const int32_t dtype = inputs_.options.dtype;
    check({{o_, truth.o, naive.o, dtype},
           {lse_, truth.lse, naive.lse, inputs_.options.fp8 == Fp8::kAll ? MICA_FP16 : MICA_FP32},
           {probs_, truth.probs, naive.probs, MICA_FP32},
           {k_, truth.k, naive.k, inputs_.options.k_dtype()},
           {v_, truth.v, naive.v, inputs_.options.k_dtype()}},
          0);
  }
  void check_backward(const Reference& expected) {
    const auto& [truth, naive] = expected;
    const int32_t dtype = inputs_.options.dtype;
    const auto wider = [dtype](int32_t other) { return dtype == MICA_FP32 ? other : dtype; };
    check({{dq_, truth.dq, naive.dq, dtype},
           {dk_, truth.dk, naive.dk, dtype},
           {dv_, truth.dv, naive.dv, dtype},
           {d_bias_, truth.d_bias, naive.d_bias, wider(inputs_.options.d_bias_dtype)},
           {d_sinks_, truth.d_sinks, naive.d_sinks, wider(inputs_.options.d_sinks_dtype)}},
          truth.largest_lse);
  }

  Memory& memory_;
  const Inputs& inputs_;
  const std::function<const Reference&()>& expected_;
  mica_bindings bindings_ = MICA_BINDINGS_INIT;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  Buffer *k_ = nullptr, *v_ = nullptr, *o_ = nullptr, *lse_ = nullptr, *probs_ = nullptr;
  Buffer *dq_ = nullptr, *dk_ = nullptr, *dv_ = nullptr, *d_bias_ = nullptr, *d_sinks_ = nullptr;
  Outcome outcome_;
};

std::vector<std::string> tags_of(const Options& o) {
  std::vector<std::string> tags = {o.dtype == MICA_FP32 ? "fp32" : (o.dtype == MICA_FP16 ? "fp16" : "bf16")};
  const auto tag = [&tags](bool applies, const char* name) {
    if (applies) tags.push_back(name);
  };
  tag(o.fp8 != Fp8::kNone, "fp8");
  tag(o.is_backward(), "backward");
  tag(!o.is_backward(), "forward");
  tag(o.causal != MICA_CAUSAL_NONE, "causal");
  tag(o.window_left != MICA_UNLIMITED || o.window_right != MICA_UNLIMITED, "window");
  tag(o.chunk > 0, "chunk");
  tag(o.has_mask, "mask");
  tag(o.mask_last_keys > 0, "tree");
  tag(o.len_prefix > 0, "prefix");
  tag(o.has_qv, "qv");
  tag(o.bias_dtype != MICA_NONE, "bias");
  tag(o.has_alibi, "alibi");
  tag(o.softcap != 0, "softcap");
  tag(o.sinks_dtype != MICA_NONE, "sinks");
  tag(o.packs_q() || o.packs_k(), "varlen");
  tag(!o.used_q.empty() || !o.used_k.empty(), "seqused");
  tag(o.page_size > 0, "paged");
  tag(o.len_new > 0, "append");
  tag(o.rotary_dim > 0, "rotary");
  tag(o.dropout > 0, "dropout");
  tag(o.heads_q != o.heads_k, "gqa");
  tag(o.num_splits > 1, "split");
  return tags;
}

const std::vector<Options>& all_options() {
  static const std::vector<Options> options = [] {
    std::vector<Options> all = named_options();
    const char* wanted = std::getenv("MICA_RANDOM_CASES");
    for (Options& o : random_options(wanted ? std::atoi(wanted) : 200)) all.push_back(std::move(o));
    return all;
  }();
  return options;
}

}  // namespace

const std::vector<CaseInfo>& cases() {
  static const std::vector<CaseInfo> infos = [] {
    std::vector<CaseInfo> all;
    for (const Options& o : all_options()) {
      const double pairs = double(o.batch) * double(o.heads_q) * double(o.len_q) * double(o.len_k);
      const double forward = pairs * double(o.product_dim() + o.value_dim());
      all.push_back({o.name, tags_of(o), forward * (o.is_backward() ? 3.5 : 1.0)});
    }
    return all;
  }();
  return infos;
}

std::vector<size_t> select_cases(const std::string& regex) {
  regex_t pattern;
  if (const int error = regcomp(&pattern, regex.c_str(), REG_EXTENDED | REG_NOSUB); error != 0) {
    char reason[128];
    regerror(error, &pattern, reason, sizeof reason);
    throw std::invalid_argument("\"" + regex + "\" is no regular expression: " + reason);
  }
  const auto matches = [&pattern](const std::string& text) {
    return regexec(&pattern, text.c_str(), 0, nullptr, 0) == 0;
  };
  std::vector<size_t> selected;
  for (size_t n = 0; n < cases().size(); ++n) {
    bool is_wanted = matches(cases()[n].name);
    for (const std::string& tag : cases()[n].tags) is_wanted |= matches(tag);
    if (is_wanted) selected.push_back(n);
  }
  regfree(&pattern);
  return selected;
}

struct Case::Prepared {
  Inputs inputs;
  std::optional<Reference> expected;
};

Case::Case(size_t index) : prepared_(new Prepared{make_inputs(all_options()[index]), std::nullopt}) {}
Case::~Case() = default;

Outcome Case::run(Memory& memory) {
  // Not before a call has run: what a device does not support needs none.
  const std::function<const Reference&()> expected = [this]() -> const Reference& {
    std::optional<Reference>& made = prepared_->expected;
    if (!made) made = Reference{reference(prepared_->inputs), naive(prepared_->inputs)};
    return *made;
  };
  return Run(prepared_->inputs, expected, memory).run();
}

std::vector<Case::PlannedPass> Case::plan(mica_device device) const {
  const Inputs& inputs = prepared_->inputs;
  std::vector<PlannedPass> passes;
  const auto add = [&](mica_attention description, mica_pass pass) {
    description.device = device;
    mica_plan* plan = nullptr;
    if (mica_plan_create(&description, pass, &plan) != MICA_OK) return;
    passes.push_back({mica_plan_kernel(plan), mica_plan_splits(plan), mica_plan_workspace(plan)});
    mica_plan_destroy(plan);
  };
  add(inputs.forward, MICA_FORWARD);
  if (inputs.options.is_backward()) add(inputs.backward(), MICA_BACKWARD);
  return passes;
}

Outcome run_case(size_t index, Memory& memory) { return Case(index).run(memory); }

}  // namespace mica::conformance
