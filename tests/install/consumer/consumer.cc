// SPDX-License-Identifier: Apache-2.0
// The same through the C++ face.
#include <cstdio>
#include <mica/mica.hpp>
#include <vector>

int main() {
  std::vector<float> q(8, 1), k(8, 1), v = {1, 2, 3, 4, 5, 6, 7, 8}, o(8);
  const mica::Shape shape(1, 1, 1, 8);
  mica::Attention(mica::tensor(q, shape), mica::tensor(k, shape), mica::tensor(v, shape), mica::tensor(o, shape))
      .forward();
  std::printf("C++, mica %s: %g .. %g\n", mica_version(), o[0], o[7]);
  return o == v ? 0 : 1;
}
