// SPDX-License-Identifier: Apache-2.0
// CPython's stable ABI.
#pragma once

#include <string_view>

#include "support/version.h"

namespace doctor {

using namespace support;

// The Python 3 release that added a name to the stable ABI; not known if it is not in it.
Version stable_abi_release(std::string_view name);
// Whether some name of it begins so, up to its first underscore: "PyObject" of PyObject_Call.
bool is_stable_abi_family(std::string_view family);

}  // namespace doctor
