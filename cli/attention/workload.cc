// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "cli/attention/sampled_reference.h"
#include "conformance/numbers.h"

namespace cli {
namespace {

using mica::conformance::element_bytes;
using mica::conformance::load_element;
using mica::conformance::Random;
using mica::conformance::store_element;

std::int64_t count_of(const mica_tensor& t) { return t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]; }

// Normal values from a table whose prime length no dimension divides: as good as fresh ones for timing, and quick.
void fill_normal(Buffer& buffer, Random& random) {
  constexpr std::int64_t kTable = 65521;
  const std::size_t bytes = element_bytes(buffer.layout.dtype);
  std::vector<unsigned char> table(std::size_t(kTable) * bytes);
  for (std::int64_t e = 0; e < kTable; ++e)
    store_element(buffer.layout.dtype, table.data() + std::size_t(e) * bytes, random.normal());
  const std::size_t size = buffer.host.size();
  for (std::size_t done = 0; done < size; done += table.size())
    std::memcpy(buffer.host.data() + done, table.data(), std::min(table.size(), size - done));
}

template <class Value>
void fill_by(Buffer& buffer, Value value) {
  const std::size_t bytes = element_bytes(buffer.layout.dtype);
  for (std::int64_t e = 0; e < count_of(buffer.layout); ++e)
    store_element(buffer.layout.dtype, buffer.host.data() + std::size_t(e) * bytes, double(value(e)));
}

void fill_integers(Buffer& buffer, const std::vector<std::int32_t>& values) {
  std::memcpy(buffer.host.data(), values.data(), values.size() * sizeof(std::int32_t));
}

}  // namespace

double Buffer::get(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
  const std::int64_t* s = layout.stride;
  const std::int64_t element = (layout.shape[0] > 1 ? a * s[0] : 0) + (layout.shape[1] > 1 ? b * s[1] : 0) +
                               (layout.shape[2] > 1 ? c * s[2] : 0) + (layout.shape[3] > 1 ? d * s[3] : 0);
  return load_element(layout.dtype, host.data() + std::size_t(element) * element_bytes(layout.dtype));
}

Workload::Workload(const ProblemSpec& spec, mica::conformance::Memory& memory)
    : spec_(spec), memory_(memory), description_(describe(spec)), plan_(description_, spec.pass_value()) {
  try {
    allocate(description_);
    fill();
    upload_and_bind();
    if (spec_.is_backward()) run_forward_once();
  } catch (...) {
    for (void* address : taken_) memory_.release(address);
    throw;
  }
}

Workload::~Workload() {
  for (void* address : taken_) memory_.release(address);
}

void Workload::allocate(const mica_attention& a) {
  const auto make = [this](Buffer& buffer, const mica_tensor& layout) {
    buffer.layout = layout;
    if (!buffer.present()) return;
    const std::size_t bytes = std::size_t(count_of(layout)) * element_bytes(layout.dtype);
    buffer.host.assign(bytes, 0xff);  // NaN, in every type
    buffer.device = memory_.allocate(std::max<std::size_t>(bytes, 1));
    if (!buffer.device) throw std::runtime_error("no memory for " + std::to_string(bytes) + " bytes");
    taken_.push_back(buffer.device);
  };
  make(q_, a.q), make(k_, a.k), make(v_, a.v), make(o_, a.o), make(lse_, a.lse);
  make(mask_, a.mask.boolean), make(bias_, a.score.bias), make(alibi_, a.score.alibi), make(sinks_, a.score.sinks);
  make(block_table_, a.sequences.block_table);
  make(k_new_, a.append.k_new), make(v_new_, a.append.v_new);
  make(cos_, a.append.rotary_cos), make(sin_, a.append.rotary_sin);
  make(d_o_, a.gradients.d_o), make(dq_, a.gradients.dq), make(dk_, a.gradients.dk), make(dv_, a.gradients.dv);
  make(d_bias_, a.gradients.d_bias), make(d_sinks_, a.gradients.d_sinks);
  if (!spec_.varlen.empty()) make(cu_seqlens_, mica::layout(MICA_INT32, {std::int64_t(spec_.varlen.size()) + 1}));
  if (a.sequences.vectors & MICA_SEQUSED_K) make(seqused_k_, mica::layout(MICA_INT32, {spec_.batch}));
}

void Workload::fill() {
  Random random(20);
  for (Buffer* buffer : {&q_, &k_, &v_, &bias_, &sinks_, &k_new_, &v_new_, &d_o_})
    if (buffer->present()) fill_normal(*buffer, random);
  if (mask_.present()) {
    for (unsigned char& visible : mask_.host) visible = random.chance(0.8);
  }
  if (alibi_.present())
    fill_by(alibi_, [&](std::int64_t h) { return std::exp2(-8.0 * double(h + 1) / double(spec_.heads_q)); });
  if (cos_.present()) {
    const std::int64_t half = cos_.layout.shape[1];
    const auto angle = [half](std::int64_t e) {
      const std::int64_t position = e / half;
      return double(position) * std::pow(10000.0, -double(e % half) / double(half));
    };
    fill_by(cos_, [&](std::int64_t e) { return std::cos(angle(e)); });
    fill_by(sin_, [&](std::int64_t e) { return std::sin(angle(e)); });
  }
  if (block_table_.present()) {  // pages in a shuffled order
    std::vector<std::int32_t> pages(std::size_t(count_of(block_table_.layout)));
    std::iota(pages.begin(), pages.end(), 0);
    for (std::size_t n = pages.size(); n > 1; --n)
      std::swap(pages[n - 1], pages[std::size_t(random.integer(0, std::int64_t(n)))]);
    fill_integers(block_table_, pages);
  }
  if (cu_seqlens_.present()) {
    std::vector<std::int32_t> begins = {0};
    for (const std::int64_t length : spec_.varlen) begins.push_back(begins.back() + std::int32_t(length));
    fill_integers(cu_seqlens_, begins);
  }
  if (seqused_k_.present())
    fill_integers(seqused_k_,
                  std::vector<std::int32_t>(std::size_t(spec_.batch), std::int32_t(spec_.keys() - spec_.append)));
}

void Workload::upload_and_bind() {
  for (const Buffer* b :
       {&q_,     &k_,   &v_,   &o_,   &lse_, &mask_, &bias_, &alibi_,  &sinks_,   &block_table_, &k_new_,
        &v_new_, &cos_, &sin_, &d_o_, &dq_,  &dk_,   &dv_,   &d_bias_, &d_sinks_, &cu_seqlens_,  &seqused_k_})
    if (b->present()) memory_.upload(b->device, b->host.data(), b->host.size());
  mica_bindings& x = bindings_;
  x.q = q_.device, x.k = k_.device, x.v = v_.device, x.o = o_.device, x.lse = static_cast<float*>(lse_.device);
  x.boolean_mask = mask_.device, x.bias = bias_.device, x.sinks = sinks_.device;
  x.alibi = static_cast<const float*>(alibi_.device);
  x.cu_seqlens_q = x.cu_seqlens_k = static_cast<const std::int32_t*>(cu_seqlens_.device);
  x.seqused_k = static_cast<const std::int32_t*>(seqused_k_.device);
  x.block_table = static_cast<const std::int32_t*>(block_table_.device);
  x.k_new = k_new_.device, x.v_new = v_new_.device, x.rotary_cos = cos_.device, x.rotary_sin = sin_.device;
  x.dropout_seed = SampledReference::kSeed, x.dropout_offset = SampledReference::kOffset;
  x.d_o = d_o_.device, x.dq = dq_.device, x.dk = dk_.device, x.dv = dv_.device;
  x.d_bias = d_bias_.device, x.d_sinks = d_sinks_.device;
  x.stream = memory_.stream();
  x.workspace_bytes = plan_.workspace_bytes();
  x.workspace = memory_.allocate(std::max<std::size_t>(x.workspace_bytes, 1));
  if (!x.workspace)
    throw std::runtime_error("no memory for a workspace of " + std::to_string(x.workspace_bytes) + " bytes");
  taken_.push_back(x.workspace);
}

void Workload::run_forward_once() {
  mica_attention forward = description_;
  forward.gradients = {};
  const mica::Plan plan(forward, MICA_FORWARD);
  mica_bindings x = bindings_;
  x.workspace_bytes = plan.workspace_bytes();
  x.workspace = memory_.allocate(std::max<std::size_t>(x.workspace_bytes, 1));
  if (!x.workspace) throw std::runtime_error("no memory for the workspace of forward");
  taken_.push_back(x.workspace);
  plan.execute(x);
  synchronise();
}

void Workload::synchronise() const {
  if (const char* error = memory_.synchronise(); *error) throw std::runtime_error(error);
}

std::string Workload::check() {
  execute();
  synchronise();
  for (Buffer* b : {&k_, &v_, &o_, &lse_, &dq_, &dk_, &dv_})
    if (b->present()) memory_.download(b->host.data(), b->device, b->host.size());
  return SampledReference(*this).check();
}

}  // namespace cli
