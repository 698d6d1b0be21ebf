// SPDX-License-Identifier: Apache-2.0
#include "builder/install/swap.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "support/bytes.h"
#include "support/durable.h"
#include "support/files.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

constexpr const char* kHead = "mica: moves to be undone";
constexpr std::uint64_t kMostListBytes = 256 << 20;

bool is_there(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0;
}

std::string list_of(const std::string& folder) { return folder + "/moves"; }

// Folders that are made for a move are taken away again, if they are empty, when it is undone.
void move(const std::string& from, const std::string& to) {
  make_folders(folder_name(to));
  if (is_there(to)) throw WriteError(to + " is there already");
  if (std::rename(from.c_str(), to.c_str()) != 0)
    throw WriteError(from + " cannot be moved to " + to + ": " + std::strerror(errno));
}

void remove_empty_above(std::string folder, const std::string& stop) {
  while (folder.size() > stop.size() && rmdir(folder.c_str()) == 0) folder = folder_name(folder);
}

std::vector<Move> read_list(const std::string& folder) {
  const auto text = Files().read(list_of(folder), kMostListBytes);
  std::vector<Move> out;
  if (!text) return out;
  const std::vector<std::string> lines = split(*text, '\n');
  if (lines.empty() || lines[0] != kHead) return out;
  for (std::size_t i = 1; i + 1 < lines.size(); i += 2)
    if (!lines[i].empty()) out.push_back({lines[i], lines[i + 1]});
  return out;
}

}  // namespace

Swap::Swap(std::string folder) : folder_(std::move(folder)) { make_folders(folder_); }

void Swap::commit(const std::vector<Move>& moves, const std::function<void(const std::string&)>& each) {
  std::string list = std::string(kHead) + "\n";
  for (const Move& one : moves) {
    if ((one.from + one.to).find('\n') != std::string::npos)
      throw WriteError(printable(one.to) + " has a line break in its name: it is not moved");
    list += one.from + "\n" + one.to + "\n";
  }
  replace_file(list_of(folder_), list);
  if (each) each("listed");
  try {
    for (const Move& one : moves) {
      move(one.from, one.to);
      if (each) each("moved " + one.to);
    }
  } catch (const WriteError&) {
    undo(folder_);
    throw;
  }
}

void Swap::finish() {
  std::error_code error;
  const std::vector<Move> moves = read_list(folder_);
  for (const Move& one : moves)
    if (one.to.starts_with(folder_ + "/")) remove_empty_above(folder_name(one.from), folder_name(folder_));
  fs::remove(list_of(folder_), error);  // from here on there is nothing to undo
  fs::remove_all(folder_, error);
}

bool Swap::undo(const std::string& folder) {
  if (!is_there(folder)) return false;
  const std::vector<Move> moves = read_list(folder);
  // Backwards; a move that was not made, or is undone already, has its file at the place it came from.
  for (auto it = moves.rbegin(); it != moves.rend(); ++it) {
    if (is_there(it->to) && !is_there(it->from)) {
      make_folders(folder_name(it->from));
      if (std::rename(it->to.c_str(), it->from.c_str()) != 0)
        throw WriteError(it->to + " cannot be moved back to " + it->from + ": " + std::strerror(errno));
    }
    if (!it->to.starts_with(folder + "/")) remove_empty_above(folder_name(it->to), folder_name(folder));
  }
  std::error_code error;
  fs::remove(list_of(folder), error);
  fs::remove_all(folder, error);
  return true;
}

}  // namespace builder
