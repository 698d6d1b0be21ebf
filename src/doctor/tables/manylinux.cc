// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/manylinux.h"

namespace doctor {

Version glibcxx_of_manylinux(const Version& glibc) {
  struct Policy {
    Version glibc, glibcxx;
  };
  static const Policy policies[] = {{{{2, 5}}, {{3, 4, 8}}},   {{{2, 12}}, {{3, 4, 13}}}, {{{2, 17}}, {{3, 4, 19}}},
                                    {{{2, 24}}, {{3, 4, 22}}}, {{{2, 28}}, {{3, 4, 25}}}, {{{2, 31}}, {{3, 4, 28}}},
                                    {{{2, 34}}, {{3, 4, 29}}}, {{{2, 35}}, {{3, 4, 30}}}, {{{2, 39}}, {{3, 4, 33}}}};
  // Between two policies, the later one's cap: no promise is held against a wheel that nobody wrote down.
  for (const Policy& policy : policies)
    if (glibc <= policy.glibc) return policy.glibcxx;
  return {};
}

}  // namespace doctor
