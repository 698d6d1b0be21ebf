// SPDX-License-Identifier: Apache-2.0
// Which tables age, how old each is, and how it is made anew.
#pragma once

#include <span>
#include <string_view>

namespace doctor {

struct AgingTable {
  const char *file, *as_of, *what, *source, *refresh;  // see tables.def
};

std::span<const AgingTable> aging_tables();

// The day of one of them, which must be there.
consteval const char* table_as_of(std::string_view file) {
  constexpr AgingTable kTables[] = {
#define MICA_TABLE(file, as_of, what, source, refresh) {file, as_of, what, source, refresh},
#include "doctor/tables/tables.def"
#undef MICA_TABLE
  };
  for (const AgingTable& table : kTables)
    if (file == table.file) return table.as_of;
  throw "no row of tables.def";  // the compiler stops here
}

}  // namespace doctor
