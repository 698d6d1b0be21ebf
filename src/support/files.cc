// SPDX-License-Identifier: Apache-2.0
#include "support/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <memory>

#include "support/text.h"

namespace support {
namespace {

constexpr int kMostLinks = 40;

// '*' stands for any characters of one name.
bool name_matches(std::string_view name, std::string_view pattern) {
  std::size_t n = 0, p = 0, star = pattern.npos, mark = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

std::string join_path(const std::string& folder, const std::string& path) {
  if (path.empty()) return folder;
  if (path[0] == '/' || folder.empty()) return path;
  return folder.back() == '/' ? folder + path : folder + "/" + path;
}

std::string Files::link(const std::string& path) const {
  char target[PATH_MAX];
  const ssize_t length = readlink((root_ + path).c_str(), target, sizeof target);
  return length > 0 && length < ssize_t(sizeof target) ? std::string(target, std::size_t(length)) : "";
}

std::optional<std::string> Files::resolve(const std::string& path) const {
  if (path.size() > PATH_MAX || path.find('\0') != path.npos) return std::nullopt;
  std::vector<std::string> left = split(path, '/');
  std::reverse(left.begin(), left.end());
  std::vector<std::string> done;
  int links = 0;
  while (!left.empty()) {
    const std::string part = left.back();
    left.pop_back();
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      if (!done.empty()) done.pop_back();
      continue;
    }
    const std::string here = "/" + joined(done, "/") + (done.empty() ? "" : "/") + part;
    const std::string target = link(here);
    if (target.empty()) {
      done.push_back(part);
      continue;
    }
    if (++links > kMostLinks || left.size() > PATH_MAX) return std::nullopt;
    if (target[0] == '/') done.clear();
    std::vector<std::string> parts = split(target, '/');
    left.insert(left.end(), parts.rbegin(), parts.rend());
  }
  std::string out = "/" + joined(done, "/");
  struct stat facts;
  if (out.size() > PATH_MAX || lstat((root_ + out).c_str(), &facts) != 0) return std::nullopt;
  return out;
}

bool Files::is_file(const std::string& path) const {
  const auto resolved = resolve(path);
  struct stat facts;
  return resolved && lstat((root_ + *resolved).c_str(), &facts) == 0 && S_ISREG(facts.st_mode);
}

bool Files::is_folder(const std::string& path) const {
  const auto resolved = resolve(path);
  struct stat facts;
  return resolved && lstat((root_ + *resolved).c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

bool Files::is_executable(const std::string& path) const {
  const auto resolved = resolve(path);
  struct stat facts;
  return resolved && lstat((root_ + *resolved).c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         (facts.st_mode & 0111) != 0;
}

std::optional<std::string> Files::read(const std::string& path, uint64_t most) const {
  const auto resolved = resolve(path);
  if (!resolved) return std::nullopt;
  const int descriptor = open((root_ + *resolved).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return std::nullopt;
  std::string text;
  struct stat facts;
  bool is_good = fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode) && uint64_t(facts.st_size) <= most;
  // NOTE: files of /proc say that they have no bytes, so it is read to its end.
  char buffer[16384];
  for (ssize_t n = 1; is_good && n > 0;) {
    n = ::read(descriptor, buffer, sizeof buffer);
    if (n > 0) text.append(buffer, std::size_t(n));
    is_good = n >= 0 && text.size() <= most;
  }
  close(descriptor);
  return is_good ? std::optional(std::move(text)) : std::nullopt;
}

std::vector<std::string> Files::list(const std::string& path) const {
  std::vector<std::string> names;
  const auto resolved = resolve(path);
  if (!resolved) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir((root_ + *resolved).c_str()), closedir);
  if (!folder) return names;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    if (names.size() >= kMostNames) break;
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Files::match(const std::string& pattern) const {
  std::vector<std::string> found = {""};
  for (const std::string& part : split(pattern, '/')) {
    if (part.empty()) continue;
    std::vector<std::string> next;
    for (const std::string& folder : found) {
      if (part.find('*') == part.npos) {
        next.push_back(folder + "/" + part);
        continue;
      }
      for (const std::string& name : list(folder.empty() ? "/" : folder))
        if (name_matches(name, part) && next.size() < kMostNames) next.push_back(folder + "/" + name);
    }
    found = std::move(next);
  }
  std::erase_if(found, [&](const std::string& path) { return !resolve(path); });
  return found;
}

}  // namespace support
