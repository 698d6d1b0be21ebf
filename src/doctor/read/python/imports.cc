// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/python/imports.h"

#include <algorithm>

#include "doctor/read/python/statements.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kMostNames = 10'000, kMostModules = 50'000;

template <class Action>
void each_line(std::string_view text, Action action) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    action(text.substr(begin, end - begin));
    begin = end + 1;
  }
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
  each_line(source, [&](std::string_view whole) {
    const std::string_view line = trimmed(whole);
    if (line.starts_with("import ")) {
      for (const std::string& part : split(line.substr(7), ',')) {
        const std::string_view module = name_at(trimmed(part));
        if (looks_compiled(module)) out.emplace_back(module);
      }
    } else if (line.starts_with("from ")) {
      const std::string_view module = name_at(trimmed(line.substr(5)));
      if (looks_compiled(module)) out.emplace_back(module);
    }
  });
  return out;
}

void collect_words(std::string_view path, std::string_view source, PythonWords& out) {
  if (path.ends_with(".py") && out.outlines.size() < kMostModules)
    out.outlines.insert_or_assign(module_of_path(path), outline_of(path, source));
  out.opens_cuda_of_pip =
      out.opens_cuda_of_pip || (source.find("nvidia") != source.npos && source.find("CDLL") != source.npos);
  const auto add = [&](std::string_view module) {
    const std::string_view name = module.substr(module.rfind('.') + 1);
    if (!name.empty() && out.certain_imports.size() < kMostNames) out.certain_imports.emplace(name);
  };
  for (std::size_t at = 0; (at = source.find("lib", at)) != source.npos; at += 3) {
    const std::string_view word = name_at(source.substr(at));
    const bool begins = at == 0 || !is_name_character(source[at - 1]);
    if (begins && word.size() > 3 && out.libraries.size() < kMostNames)
      out.libraries.emplace(word.substr(0, word.find('.')));
  }
  bool in_brackets = false;  // from pkg import (a,\n    b)
  each_line(source, [&](std::string_view line) {
    std::string_view names;
    if (in_brackets) {
      names = line;
    } else if (line.starts_with("import ")) {
      names = line.substr(7);
    } else if (line.starts_with("from ")) {
      const std::size_t at = line.find(" import ");
      add(name_at(trimmed(line.substr(5))));
      if (at == line.npos) return;
      names = trimmed(line.substr(at + 8));
      if (names.starts_with("(")) in_brackets = true, names.remove_prefix(1);
    } else {
      return;
    }
    const std::size_t end = names.find_first_of(")#");
    if (end != names.npos && names[end] == ')') in_brackets = false;
    for (const std::string& part : split(names.substr(0, end), ',')) add(name_at(trimmed(part)));
  });
}

}  // namespace doctor
