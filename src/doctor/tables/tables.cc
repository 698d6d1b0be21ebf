// SPDX-License-Identifier: Apache-2.0
#include "doctor/tables/tables.h"

namespace doctor {
namespace {

constexpr AgingTable kTables[] = {
#define MICA_TABLE(file, as_of, what, source, refresh) {file, as_of, what, source, refresh},
#include "doctor/tables/tables.def"
#undef MICA_TABLE
};

}  // namespace

std::span<const AgingTable> aging_tables() { return kTables; }

}  // namespace doctor
