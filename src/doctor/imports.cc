// SPDX-License-Identifier: Apache-2.0
#include "doctor/imports.h"

#include <algorithm>

#include "doctor/text.h"

namespace doctor {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

std::string_view word_at(std::string_view text) {
  const std::size_t end = std::size_t(std::find_if_not(text.begin(), text.end(), is_word) - text.begin());
  return text.substr(0, end);
}

// Names that extensions of the flash-attn family have; torch's and numpy's own are not meant.
bool looks_compiled(std::string_view module) {
  const std::string name(module);
  if (name.starts_with("torch") || name.starts_with("numpy") || name.starts_with(".")) return false;
  for (const char* known : {"rotary_emb", "dropout_layer_norm", "fused_softmax_lib", "ft_attention"})
    if (name == known) return true;
  return name.ends_with("_cuda") || name.ends_with("_cuda_lib") || name.ends_with("_lib_cuda") ||
         name == "fused_dense_lib" || name.ends_with("._C") || name.ends_with("_2_cuda");
}

}  // namespace

std::vector<std::string> compiled_imports(std::string_view source) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin < source.size();) {
    const std::size_t end = std::min(source.find('\n', begin), source.size());
    const std::string_view line = trimmed(source.substr(begin, end - begin));
    begin = end + 1;
    if (line.starts_with("import ")) {
      for (const std::string& part : split(line.substr(7), ',')) {
        const std::string_view module = word_at(trimmed(part));
        if (looks_compiled(module)) out.emplace_back(module);
      }
    } else if (line.starts_with("from ")) {
      const std::string_view module = word_at(trimmed(line.substr(5)));
      if (looks_compiled(module)) out.emplace_back(module);
    }
  }
  return out;
}

}  // namespace doctor
