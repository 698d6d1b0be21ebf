// SPDX-License-Identifier: Apache-2.0
// What the manylinux policies allow.
#pragma once

#include "support/version.h"

namespace doctor {

using namespace support;

// The highest GLIBCXX that a manylinux of this glibc may ask for; not known if there is no such policy.
Version glibcxx_of_manylinux(const Version& glibc);

}  // namespace doctor
