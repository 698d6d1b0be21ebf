// SPDX-License-Identifier: Apache-2.0
// What a conformance case cannot see: the same bits from run to run, graphs, streams, threads, tensors past 2^31
// elements. Through the C interface, on GPU 0; exit status 77 without one. MICA_GPU_TEST_RUNS: how often, else 100.
#include "tests/cuda/gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "mica/mica.h"

namespace mica::test {
namespace {

int num_runs() {
  const char* wanted = std::getenv("MICA_GPU_TEST_RUNS");
  return wanted ? std::atoi(wanted) : 100;
}

using Bytes = std::vector<unsigned char>;

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes), address_(Gpu::instance().allocate(bytes ? bytes : 1)) {}
  ~DeviceBuffer() { Gpu::instance().release(address_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* address() const { return address_; }
  size_t bytes() const { return bytes_; }
  void upload(const Bytes& from) { Gpu::instance().upload(address_, from.data(), from.size()); }
  Bytes download() const {
    Bytes bytes(bytes_);
    Gpu::instance().download(bytes.data(), address_, bytes_);
    return bytes;
  }

 private:
  size_t bytes_;
  void* address_;
};

struct Shape {
  int32_t dtype = MICA_BF16;
  int64_t batch = 2, heads_q = 4, heads_k = 2, rows = 200, keys = 264, dim = 64;
  int32_t causal = MICA_CAUSAL_BOTTOM_RIGHT;
  int32_t deterministic = 0;
  float dropout = 0, softcap = 0;
  bool uses_seqused = false;
};

int64_t element_bytes(int32_t dtype) { return dtype == MICA_FP32 ? 4 : 2; }

Bytes random_elements(int32_t dtype, int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Bytes bytes(size_t(count * element_bytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const float x = normal(engine);
    unsigned char word[4];
    std::memcpy(word, &x, 4);
    // The upper half of a float is a bf16. As an fp16 it would be another number, but a finite one below 2.
    std::memcpy(bytes.data() + i * element_bytes(dtype), dtype == MICA_FP32 ? word : word + 2,
                size_t(element_bytes(dtype)));
  }
  return bytes;
}

// One problem with its tensors on the GPU; forward and backward as often as wanted, on any stream.
class Call {
 public:
  explicit Call(const Shape& shape, unsigned seed = 1)
      : shape_(shape),
        q_(bytes(shape.rows, shape.heads_q)),
        k_(bytes(shape.keys, shape.heads_k)),
        v_(bytes(shape.keys, shape.heads_k)),
        o_(bytes(shape.rows, shape.heads_q)),
        lse_(size_t(shape.batch * shape.heads_q * shape.rows) * 4),
        d_o_(bytes(shape.rows, shape.heads_q)),
        dq_(bytes(shape.rows, shape.heads_q)),
        dk_(bytes(shape.keys, shape.heads_k)),
        dv_(bytes(shape.keys, shape.heads_k)),
        used_k_(size_t(shape.batch) * 4),
        rng_state_(16) {
    set_inputs(seed);
    set_rng(42, 0);
    set_used(int32_t(shape.keys));
    mica_attention a = MICA_ATTENTION_INIT;
    a.device = {MICA_CUDA, 0};
    a.q = a.o = tensor(shape.rows, shape.heads_q);
    a.k = a.v = tensor(shape.keys, shape.heads_k);
    a.lse = {
        MICA_FP32, 16, {shape.batch, shape.heads_q, shape.rows, 1}, {shape.heads_q * shape.rows, shape.rows, 1, 1}};
    a.mask.causal = shape.causal;
    a.control.deterministic = shape.deterministic;
    a.score.softcap = shape.softcap;
    a.dropout.probability = shape.dropout;
    a.dropout.rng_from_memory = shape.dropout > 0;
    if (shape.uses_seqused) a.sequences.vectors = MICA_SEQUSED_K;
    plan(a, MICA_FORWARD, &forward_);
    a.gradients.d_o = a.o;
    a.gradients.dq = a.q;
    a.gradients.dk = a.k;
    a.gradients.dv = a.v;
    plan(a, MICA_BACKWARD, &backward_);
    x_.q = q_.address();
    x_.k = k_.address();
    x_.v = v_.address();
    x_.o = o_.address();
    x_.lse = static_cast<float*>(lse_.address());
    x_.d_o = d_o_.address();
    x_.dq = dq_.address();
    x_.dk = dk_.address();
    x_.dv = dv_.address();
    x_.rng_state = static_cast<const int64_t*>(rng_state_.address());
    if (shape.uses_seqused) x_.seqused_k = static_cast<const int32_t*>(used_k_.address());
  }
  ~Call() {
    mica_plan_destroy(forward_);
    mica_plan_destroy(backward_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void set_inputs(unsigned seed) {
    const auto set = [&](DeviceBuffer& to, int64_t rows, int64_t heads, unsigned salt) {
      to.upload(random_elements(shape_.dtype, shape_.batch * rows * heads * shape_.dim, 4 * seed + salt));
    };
    set(q_, shape_.rows, shape_.heads_q, 0);
    set(k_, shape_.keys, shape_.heads_k, 1);
    set(v_, shape_.keys, shape_.heads_k, 2);
    set(d_o_, shape_.rows, shape_.heads_q, 3);
  }
  void set_rng(int64_t seed, int64_t offset) {
    const int64_t state[] = {seed, offset};
    Gpu::instance().upload(rng_state_.address(), state, sizeof state);
  }
  void set_used(int32_t keys) {
    const std::vector<int32_t> used(size_t(shape_.batch), keys);
    Gpu::instance().upload(used_k_.address(), used.data(), used.size() * 4);
  }

  void forward(void* stream) { execute(forward_, x_, stream); }
  void backward(void* stream) { execute(backward_, x_, stream); }
  std::string backward_kernel() const { return mica_plan_kernel(backward_); }
  // From o, which has q's shape, to q.
  void forward_back(void* stream) {
    mica_bindings x = x_;
    x.q = o_.address();
    x.o = q_.address();
    execute(forward_, x, stream);
  }

  struct Results {
    Bytes o, lse, dq, dk, dv;
    bool operator==(const Results&) const = default;
  };
  Results results() const { return {o_.download(), lse_.download(), dq_.download(), dk_.download(), dv_.download()}; }
  Results run(void* stream) {
    for (const DeviceBuffer* b : {&o_, &dq_, &dk_, &dv_}) Gpu::instance().fill(b->address(), 0xff, b->bytes());
    forward(stream);
    backward(stream);
    EXPECT_EQ(Gpu::instance().synchronise(stream), "");
    return results();
  }

 private:
  size_t bytes(int64_t rows, int64_t heads) const {
    return size_t(shape_.batch * rows * heads * shape_.dim * element_bytes(shape_.dtype));
  }
  mica_tensor tensor(int64_t rows, int64_t heads) const {
    const int64_t d = shape_.dim;
    return {shape_.dtype, 16, {shape_.batch, rows, heads, d}, {rows * heads * d, heads * d, d, 1}};
  }
  void plan(const mica_attention& a, mica_pass pass, mica_plan** plan) {
    ASSERT_EQ(mica_plan_create(&a, pass, plan), MICA_OK) << mica_last_error();
    const size_t bytes = mica_plan_workspace(*plan);
    if (!workspace_ || bytes > workspace_bytes_) workspace_ = std::make_unique<DeviceBuffer>(bytes);
    workspace_bytes_ = std::max(workspace_bytes_, bytes);
  }
  void execute(const mica_plan* plan, mica_bindings x, void* stream) {
    x.workspace = workspace_->address();
    x.workspace_bytes = workspace_bytes_;
    x.stream = stream;
    EXPECT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
  }

  Shape shape_;
  DeviceBuffer q_, k_, v_, o_, lse_, d_o_, dq_, dk_, dv_, used_k_, rng_state_;
  std::unique_ptr<DeviceBuffer> workspace_;
  size_t workspace_bytes_ = 0;
  mica_plan *forward_ = nullptr, *backward_ = nullptr;
  mica_bindings x_ = MICA_BINDINGS_INIT;
};

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { stream_ = Gpu::instance().create_stream(); }
  void TearDown() override { Gpu::instance().destroy_stream(stream_); }
  void* stream_ = nullptr;
};

// Forward always; gradients when they are asked to be deterministic.
TEST_F(GpuTest, TheSameBitsFromRunToRun) {
  for (const int32_t dtype : {MICA_BF16, MICA_FP32})
    for (const int64_t dim : {64, 128})
      for (const int32_t deterministic : {0, 1}) {
        Shape shape;
        shape.dtype = dtype;
        shape.dim = dim;
        shape.deterministic = deterministic;
        Call call(shape);
        Call::Results first = call.run(stream_);
        for (int i = 1; i < num_runs(); ++i) {
          Call::Results again = call.run(stream_);
          if (!deterministic) {
            again.dq = first.dq;
            again.dk = first.dk;
            again.dv = first.dv;
          }
          ASSERT_TRUE(again == first) << "run " << i << ", dim " << dim << ", dtype " << dtype;
        }
      }
}

// Of the only key that a row sees the probability is 1 whatever the score: no gradient reaches q and k.
TEST_F(GpuTest, OneVisibleKeyHasNoGradientOfScores) {
  for (const int64_t dim : {64, 128, 192, 256})
    for (const float softcap : {0.0f, 15.0f}) {
      Shape shape;
      shape.dim = dim;
      shape.batch = shape.heads_k = shape.keys = 1;
      shape.heads_q = 2;
      shape.rows = 40;
      shape.causal = MICA_CAUSAL_NONE;
      shape.softcap = softcap;
      Call call(shape);
      const Call::Results results = call.run(stream_);
      for (const Bytes* gradient : {&results.dq, &results.dk})
        for (size_t i = 0; i < gradient->size(); i += 2) {
          const unsigned char word[4] = {0, 0, (*gradient)[i], (*gradient)[i + 1]};
          float x;
          std::memcpy(&x, word, 4);
          ASSERT_LT(std::fabs(x), 1e-4f) << "dim " << dim << ", softcap " << softcap;
        }
    }
}

// A graph holds addresses, not values: new inputs, new lengths and a new state of the dropout give new results, the
// same as without a graph.
TEST_F(GpuTest, AGraphReplaysWithNewValues) {
  Shape shape;
  shape.deterministic = 1;
  shape.dropout = 0.2f;
  shape.uses_seqused = true;
  Call call(shape), plain(shape);
  ASSERT_TRUE(Gpu::instance().begin_capture(stream_));
  call.forward(stream_);
  call.backward(stream_);
  void* graph = Gpu::instance().end_capture(stream_);
  ASSERT_NE(graph, nullptr);
  Call::Results before = call.run(stream_);
  for (int replay = 1; replay <= 3; ++replay) {
    for (Call* c : {&call, &plain}) {
      c->set_inputs(unsigned(10 + replay));
      c->set_rng(42, replay);
      c->set_used(int32_t(shape.keys - 30 * replay));
    }
    ASSERT_TRUE(Gpu::instance().launch_graph(graph, stream_));
    ASSERT_EQ(Gpu::instance().synchronise(stream_), "");
    const Call::Results replayed = call.results();
    EXPECT_TRUE(replayed == plain.run(stream_)) << "replay " << replay;
    EXPECT_FALSE(replayed == before) << "replay " << replay;
    before = replayed;
  }
}

// A plan may be made while a stream is captured, its kernel not loaded yet.
TEST_F(GpuTest, AKernelIsLoadedDuringCapture) {
  Shape shape;
  shape.dtype = MICA_FP16;  // in no other test of this program
  shape.deterministic = 1;
  ASSERT_TRUE(Gpu::instance().begin_capture(stream_));
  mica_attention a = MICA_ATTENTION_INIT;
  a.device = {MICA_CUDA, 0};
  a.q = a.k = a.v = a.o = {MICA_FP16, 16, {1, 256, 2, 64}, {256 * 128, 128, 64, 1}};
  mica_plan* plan = nullptr;
  const mica_status status = mica_plan_create(&a, MICA_FORWARD, &plan);
  const std::string message = mica_last_error();
  mica_plan_destroy(plan);
  Gpu::instance().end_capture(stream_);
  // Drivers before CUDA 12.3 refuse, and the message says what to do.
  EXPECT_TRUE(status == MICA_OK || message.find("before the capture") != std::string::npos) << message;
  Call call(shape);
  const Call::Results first = call.run(stream_);
  EXPECT_TRUE(call.run(stream_) == first);
}

// Kernels may begin before the one before them is done: each call reads what that one wrote, and writes where it read.
TEST_F(GpuTest, ACallFollowsTheCallBefore) {
  Shape shape;
  shape.heads_q = 24;
  for (const bool uses_seqused : {false, true}) {
    shape.uses_seqused = uses_seqused;
    Call call(shape);
    const auto chain = [&](bool waits) {
      call.set_inputs(1);
      for (int i = 0; i < 8; ++i) {
        i % 2 ? call.forward_back(stream_) : call.forward(stream_);
        if (waits || i == 7) {
          EXPECT_EQ(Gpu::instance().synchronise(stream_), "");
        }
      }
      return call.results();
    };
    const Call::Results want = chain(true);
    for (int i = 0; i < num_runs(); ++i) ASSERT_TRUE(chain(false) == want) << "run " << i;
  }
}

TEST_F(GpuTest, TwoStreamsAtOnce) {
  Shape shape;
  shape.deterministic = 1;
  Call one(shape, 1), two(shape, 2);
  const Call::Results want_one = one.run(stream_), want_two = two.run(stream_);
  void* other = Gpu::instance().create_stream();
  for (int i = 0; i < num_runs(); ++i) {
    one.forward(stream_);
    two.forward(other);
    one.backward(stream_);
    two.backward(other);
  }
  EXPECT_EQ(Gpu::instance().synchronise(stream_), "");
  EXPECT_EQ(Gpu::instance().synchronise(other), "");
  EXPECT_TRUE(one.results() == want_one);
  EXPECT_TRUE(two.results() == want_two);
  Gpu::instance().destroy_stream(other);
}

// Calls in a fixed order whose blocks wait for one another on Hopper, in a row of that name: all blocks of a launch run
// at once, whatever else the GPU does.
class BlocksThatWait : public GpuTest {
 protected:
  void expect_same_bits(const Shape& shape, const char* row) {
    Call one(shape, 1), two(shape, 2);
    const std::string kernel = one.backward_kernel();
    EXPECT_TRUE(kernel.find("sm90") == kernel.npos || kernel.find(row) != kernel.npos) << kernel;
    const Call::Results want_one = one.run(stream_), want_two = two.run(stream_);
    for (int i = 1; i < num_runs(); ++i) ASSERT_TRUE(one.run(stream_) == want_one) << "run " << i;

    void* other = Gpu::instance().create_stream();
    for (int i = 0; i < num_runs(); ++i) {
      one.backward(stream_);
      two.backward(other);
    }
    EXPECT_EQ(Gpu::instance().synchronise(stream_), "");
    EXPECT_EQ(Gpu::instance().synchronise(other), "");
    EXPECT_TRUE(one.results() == want_one) << "beside another stream";
    EXPECT_TRUE(two.results() == want_two) << "beside another stream";
    Gpu::instance().destroy_stream(other);

    ASSERT_TRUE(Gpu::instance().begin_capture(stream_));
    one.forward(stream_);
    one.backward(stream_);
    void* graph = Gpu::instance().end_capture(stream_);
    ASSERT_NE(graph, nullptr);
    one.set_inputs(2);
    ASSERT_TRUE(Gpu::instance().launch_graph(graph, stream_));
    ASSERT_EQ(Gpu::instance().synchronise(stream_), "");
    EXPECT_TRUE(one.results() == want_two) << "in a graph";
  }
};

TEST_F(BlocksThatWait, KeyTilesThatGoRoundHaveTheSameBits) {
  for (const int64_t dim : {64, 128}) {
    SCOPED_TRACE(dim);
    Shape shape;
    shape.dim = dim;
    shape.batch = 1;
    const bool is_emulated = num_runs() < 10;  // by few SMs, and slowly
    shape.heads_q = shape.heads_k = is_emulated ? 4 : 8;
    shape.rows = shape.keys = is_emulated ? 700 : 2048;
    shape.causal = MICA_CAUSAL_NONE;
    shape.deterministic = 1;
    expect_same_bits(shape, "_round");
  }
}

TEST_F(BlocksThatWait, KeyTilesThatBlocksShareHaveTheSameBits) {
  for (const int64_t dim : {64, 96, 128})
    for (const int32_t causal : {int32_t(MICA_CAUSAL_NONE), int32_t(MICA_CAUSAL_BOTTOM_RIGHT)}) {
      SCOPED_TRACE(dim);
      Shape shape;
      shape.dim = dim;
      shape.batch = 1;
      shape.heads_q = 4;
      shape.heads_k = 1;
      shape.rows = shape.keys = 1100;
      shape.causal = causal;
      shape.deterministic = 1;
      expect_same_bits(shape, "_whole");
    }
}

TEST_F(GpuTest, TwoThreadsAtOnce) {
  Shape shape;
  shape.deterministic = 1;
  const Call::Results want[2] = {Call(shape, 1).run(stream_), Call(shape, 2).run(stream_)};
  bool same[2] = {true, true};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      Gpu::instance().make_current();
      void* stream = Gpu::instance().create_stream();
      for (int i = 0; i < num_runs() / 10 + 1; ++i) {
        Call call(shape, unsigned(t) + 1);  // plans are made anew each time
        same[t] = same[t] && call.run(stream) == want[t];
      }
      Gpu::instance().destroy_stream(stream);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(same[0]);
  EXPECT_TRUE(same[1]);
}

// Two sequences whose rows lie more than 2^31 elements apart, against the same two side by side.
TEST_F(GpuTest, TensorsPast2To31Elements) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64, kRows = 192, kDim = 64;
  constexpr size_t kTensorBytes = size_t(kRows * kDim) * 2;
  constexpr int kTensors = 8;  // q, k, v, o, d_o, dq, dk, dv
  const size_t bytes = size_t(kFar) * 2 + kTensors * kTensorBytes;
  if (Gpu::instance().free_bytes() < bytes + (size_t{64} << 20))
    GTEST_SKIP() << "it takes " << bytes << " bytes of GPU memory, " << Gpu::instance().free_bytes() << " are free";
  std::vector<Bytes> outputs[2];
  for (const bool is_far : {false, true}) {
    const int64_t stride_batch = is_far ? kFar : kTensors * kRows * kDim;
    DeviceBuffer all(is_far ? bytes : 2 * kTensors * kTensorBytes), lse(2 * kRows * 4);
    const auto at = [&](int tensor, int batch) {
      return static_cast<unsigned char*>(all.address()) + size_t(stride_batch) * 2 * size_t(batch) +
             size_t(tensor) * kTensorBytes;
    };
    for (int tensor = 0; tensor < kTensors; ++tensor)
      for (int batch = 0; batch < 2; ++batch) {
        const Bytes values = random_elements(MICA_BF16, kRows * kDim, unsigned(2 * tensor + batch));
        Gpu::instance().upload(at(tensor, batch), values.data(), values.size());
      }
    mica_attention a = MICA_ATTENTION_INIT;
    a.device = {MICA_CUDA, 0};
    a.q = a.k = a.v = a.o = {MICA_BF16, 16, {2, kRows, 1, kDim}, {stride_batch, kDim, kDim, 1}};
    a.lse = {MICA_FP32, 16, {2, 1, kRows, 1}, {kRows, kRows, 1, 1}};
    mica_bindings x = MICA_BINDINGS_INIT;
    x.q = at(0, 0);
    x.k = at(1, 0);
    x.v = at(2, 0);
    x.o = at(3, 0);
    x.lse = static_cast<float*>(lse.address());
    x.d_o = at(4, 0);
    x.dq = at(5, 0);
    x.dk = at(6, 0);
    x.dv = at(7, 0);
    x.stream = stream_;
    a.control.deterministic = 1;
    for (const mica_pass pass : {MICA_FORWARD, MICA_BACKWARD}) {
      if (pass == MICA_BACKWARD) a.gradients.d_o = a.gradients.dq = a.gradients.dk = a.gradients.dv = a.q;
      mica_plan* plan = nullptr;
      ASSERT_EQ(mica_plan_create(&a, pass, &plan), MICA_OK) << mica_last_error();
      DeviceBuffer workspace(mica_plan_workspace(plan));
      x.workspace = workspace.address();
      x.workspace_bytes = mica_plan_workspace(plan);
      EXPECT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
      EXPECT_EQ(Gpu::instance().synchronise(stream_), "");
      mica_plan_destroy(plan);
    }
    for (int tensor = 0; tensor < kTensors; ++tensor)
      for (int batch = 0; batch < 2; ++batch) {
        outputs[is_far].emplace_back(kTensorBytes);
        Gpu::instance().download(outputs[is_far].back().data(), at(tensor, batch), kTensorBytes);
      }
  }
  for (size_t i = 0; i < outputs[0].size(); ++i)
    EXPECT_TRUE(outputs[0][i] == outputs[1][i]) << "tensor " << i / 2 << " of sequence " << i % 2;
}

}  // namespace
}  // namespace mica::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const std::string& problem = mica::test::Gpu::instance().problem(); !problem.empty()) {
    std::printf("skipped: %s\n", problem.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
