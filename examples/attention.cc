// SPDX-License-Identifier: Apache-2.0
#include <mica/mica.hpp>
#include <vector>

int main() {
  const mica::Shape shape{1, 1024, 8, 64};  // batch, rows, heads, head dimension
  std::vector<float> q(1024 * 8 * 64, 0.1f), k = q, v = q, o(q.size());
  const auto view = [&](std::vector<float>& data) { return mica::tensor(data, shape); };
  mica::Attention(view(q), view(k), view(v), view(o)).causal().forward();
}
