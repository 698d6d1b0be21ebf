// SPDX-License-Identifier: Apache-2.0
// Other people's text inside HTML and SVG: none of it may become markup, between tags or in an attribute.
#pragma once

#include <string>
#include <string_view>

namespace support {

inline std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace support
