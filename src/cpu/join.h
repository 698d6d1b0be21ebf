// SPDX-License-Identifier: Apache-2.0
// Joins two results of the same queries over different keys by their LSE.
#pragma once

#include "base/backend.h"

namespace mica {

mica_status plan_join_on_cpu(Plan& plan, const Parts& parts);
mica_status join_on_cpu(const Plan& plan, const mica_bindings& bindings);

}  // namespace mica
