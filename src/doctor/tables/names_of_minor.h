// SPDX-License-Identifier: Apache-2.0
// A row of the tables that say with which minor version functions came.
#pragma once

namespace doctor {

struct NamesOfMinor {
  int minor;
  const char* names;  // a space after each
};

}  // namespace doctor
