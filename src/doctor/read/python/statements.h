// SPDX-License-Identifier: Apache-2.0
// The statements of a Python file, by its text alone: lines joined where brackets or quotes are open, without comments.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace doctor {

// One statement on one line, each blank a single one. `if x: y` is two: the head with its colon, and y one column
// deeper. Of texts in quotes only those that could be a name or a path are kept; of the others the quotes.
struct Statement {
  std::size_t indent = 0;  // columns
  std::string text;
};

// Calls `action` for each, in order, until it returns false.
void each_statement(std::string_view source, const std::function<bool(const Statement&)>& action);

bool is_name_character(char c);  // of a dotted name
// The dotted name that the text begins with.
std::string_view name_at(std::string_view text);

}  // namespace doctor
