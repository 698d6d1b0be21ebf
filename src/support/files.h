// SPDX-License-Identifier: Apache-2.0
// Files of a system that may be a folder: every path is looked up below a root, symbolic links are followed inside it,
// and nothing is read that is no regular file or larger than its reader expects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace support {

class Files {
 public:
  explicit Files(std::string root = "") : root_(std::move(root)) {}

  // The absolute path without links, "." and ".."; nothing if it does not exist or its links go round in circles.
  std::optional<std::string> resolve(const std::string& path) const;
  bool is_file(const std::string& path) const;
  bool is_folder(const std::string& path) const;
  bool is_executable(const std::string& path) const;
  // Of a regular file of at most `most` bytes.
  std::optional<std::string> read(const std::string& path, uint64_t most = 1 << 20) const;
  // The names in a folder, sorted; at most kMostNames of them.
  std::vector<std::string> list(const std::string& path) const;
  // The paths that a pattern stands for: '*' in any part of it.
  std::vector<std::string> match(const std::string& pattern) const;
  // What a link says, without following it; empty if it is none.
  std::string link(const std::string& path) const;
  // Where on this disk a (resolved) path lies.
  std::string on_disk(const std::string& path) const { return root_ + path; }
  const std::string& root() const { return root_; }

  static constexpr std::size_t kMostNames = 20'000;

 private:
  std::string root_;  // "": this machine
};

// "a/b" below "/x" is "/x/a/b"; an absolute path stays.
std::string join_path(const std::string& folder, const std::string& path);

}  // namespace support
