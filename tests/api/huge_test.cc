// SPDX-License-Identifier: Apache-2.0
// Tensors past 2^31 elements: strides put rows gigabytes apart in memory that is reserved and hardly touched.
#include <sys/mman.h>

#include "tests/api/description.h"

namespace mica::testing_api {
namespace {

// Address space without memory behind it until it is written.
class Reserved {
 public:
  explicit Reserved(size_t bytes) : bytes_(bytes) {
    address_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ok()) madvise(address_, bytes_, MADV_NOHUGEPAGE);  // else each row that is touched takes 2 MiB
  }
  ~Reserved() {
    if (ok()) munmap(address_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  bool ok() const { return address_ != MAP_FAILED; }
  float* floats() const { return static_cast<float*>(address_); }

 private:
  size_t bytes_;
  void* address_;
};

void spread(mica_tensor& t, int64_t stride_row, int64_t stride_batch) {
  t.stride[1] = stride_row;
  t.stride[0] = stride_batch;
}

// Copies a dense tensor of rows of `width` elements to where the strides say, or back.
void copy_rows(const mica_tensor& t, float* far, float* near, bool to_far) {
  const auto width = size_t(t.shape[2] * t.shape[3]);
  for (int64_t b = 0; b < t.shape[0]; ++b)
    for (int64_t i = 0; i < t.shape[1]; ++i) {
      float* there = far + b * t.stride[0] + i * t.stride[1];
      float* here = near + size_t(b * t.shape[1] + i) * width;
      std::memcpy(to_far ? there : here, to_far ? here : there, width * 4);
    }
}

// k, v, o and their gradients with rows 2^26 elements and sequences 2^33 apart: forward and backward as if they were
// dense.
TEST(Huge, RowsAndSequencesGigabytesApart) {
  const Sizes sizes = {.batch = 2, .len_q = 70, .len_k = 100, .heads_q = 2, .heads_k = 1, .dim = 32, .dim_v = 32};
  const int64_t row = int64_t{1} << 26, batch = int64_t{1} << 33;
  const size_t bytes = (size_t(batch) + 100 * size_t(row)) * 4;
  Reserved k(bytes), v(bytes), o(bytes), dq(bytes), dk(bytes), dv(bytes);
  for (const Reserved* r : {&k, &v, &o, &dq, &dk, &dv})
    if (!r->ok()) GTEST_SKIP() << "this machine gives no address space of " << bytes << " bytes";

  mica_attention a = describe_backward(sizes);
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  Call near(a);
  ASSERT_EQ(near.run(MICA_FORWARD), "");
  ASSERT_EQ(near.run(MICA_BACKWARD), "");

  for (mica_tensor* t : {&a.k, &a.v, &a.o, &a.gradients.dq, &a.gradients.dk, &a.gradients.dv}) spread(*t, row, batch);
  Call far(a);
  copy_rows(a.k, k.floats(), far.k.data(), true);
  copy_rows(a.v, v.floats(), far.v.data(), true);
  far.x.k = k.floats(), far.x.v = v.floats(), far.x.o = o.floats();
  far.x.dq = dq.floats(), far.x.dk = dk.floats(), far.x.dv = dv.floats();
  ASSERT_EQ(far.run(MICA_FORWARD), "");
  ASSERT_EQ(far.run(MICA_BACKWARD), "");
  copy_rows(a.o, o.floats(), far.o.data(), false);
  copy_rows(a.gradients.dq, dq.floats(), far.dq.data(), false);
  copy_rows(a.gradients.dk, dk.floats(), far.dk.data(), false);
  copy_rows(a.gradients.dv, dv.floats(), far.dv.data(), false);
  EXPECT_TRUE(same_bits(far.o, near.o));
  EXPECT_TRUE(same_bits(far.lse, near.lse));
  EXPECT_TRUE(same_bits(far.dq, near.dq));
  EXPECT_TRUE(same_bits(far.dk, near.dk));
  EXPECT_TRUE(same_bits(far.dv, near.dv));
}

// A paged cache whose last page lies beyond 2^31 rows of elements, and append into it.
TEST(Huge, PagesBeyondTwoToThe31) {
  const int64_t pages = int64_t{1} << 24, page_size = 16, dim = 32;  // 2^33 elements
  const size_t bytes = size_t(pages * page_size * dim) * 4;
  Reserved k(bytes), v(bytes);
  if (!k.ok() || !v.ok()) GTEST_SKIP() << "this machine gives no address space of " << bytes << " bytes";
  mica_attention a =
      describe({.batch = 1, .len_q = 3, .len_k = 48, .heads_q = 2, .heads_k = 1, .dim = dim, .dim_v = dim});
  a.sequences.vectors = MICA_SEQUSED_K;
  a.append.k_new = a.append.v_new = dense(MICA_FP32, {1, 2, 1, dim});
  const std::vector<float> k_new = numbers(2 * dim, 91), v_new = numbers(2 * dim, 92);
  const int32_t used[1] = {40}, table[3] = {int32_t(pages - 1), 0, int32_t(pages - 2)};
  Call near(a);
  near.x.seqused_k = used, near.x.k_new = k_new.data(), near.x.v_new = v_new.data();
  for (size_t block = 0; block < 3; ++block) {
    const size_t from = size_t(table[block]) * size_t(page_size * dim), count = size_t(page_size * dim);
    std::memcpy(k.floats() + from, &near.k[block * count], count * 4);
    std::memcpy(v.floats() + from, &near.v[block * count], count * 4);
  }
  ASSERT_EQ(near.run(MICA_FORWARD), "");

  a.k = a.v = dense(MICA_FP32, {pages, page_size, 1, dim});
  a.sequences.block_table = dense(MICA_INT32, {1, 3, 1, 1});
  Call far(describe({.batch = 1, .len_q = 3, .len_k = 48, .heads_q = 2, .heads_k = 1, .dim = dim, .dim_v = dim}));
  far.a = a;
  far.x.k = k.floats(), far.x.v = v.floats(), far.x.block_table = table;
  far.x.seqused_k = used, far.x.k_new = k_new.data(), far.x.v_new = v_new.data();
  ASSERT_EQ(far.run(MICA_FORWARD), "");
  for (size_t n = 0; n < near.o.size(); ++n) EXPECT_NEAR(far.o[n], near.o[n], 1e-6);
  const size_t appended = size_t(table[2]) * size_t(page_size * dim) + 8 * dim;
  EXPECT_EQ(std::memcmp(k.floats() + appended, k_new.data(), k_new.size() * 4), 0);
  EXPECT_EQ(std::memcmp(v.floats() + appended, v_new.data(), v_new.size() * 4), 0);
}

}  // namespace
}  // namespace mica::testing_api
