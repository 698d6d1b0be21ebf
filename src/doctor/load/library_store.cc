// SPDX-License-Identifier: Apache-2.0
// The shared libraries of this machine, or of a file tree that stands for another.
#include "doctor/load/library_store.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <unordered_map>

#include "support/files.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

class DiskLibraries : public LibraryStore {
 public:
  explicit DiskLibraries(std::string root) : root_(std::move(root)) {
    while (root_.ends_with("/")) root_.pop_back();
  }

  std::vector<std::string> names(const std::string& folder) override { return Files(root_).list(folder); }
  std::optional<std::string> text(const std::string& path, uint64_t most) override {
    return Files(root_).read(path, most);
  }
  std::optional<Binary> binary(const std::string& path) override {
    std::vector<Verdict> problems;
    try {
      return read_binary(root_ + canonical(path), problems);
    } catch (const ReadError&) {
      return {};
    }
  }

  const ElfFile* find(const std::string& path) override {
    const std::string real = canonical(path);
    auto [it, is_new] = files_.try_emplace(real);
    if (is_new) {
      try {
        it->second = read_elf_file(root_ + real);
      } catch (const ReadError&) {
        // Nothing that could be loaded: as good as not there.
      }
    }
    return it->second ? &*it->second : nullptr;
  }

  std::string refusal(const std::string& path) override {
    if (find(path)) return {};
    struct stat status;
    if (stat((root_ + canonical(path)).c_str(), &status) == 0 && S_ISDIR(status.st_mode))
      return "cannot read file data: Is a directory";
    uint8_t head[sizeof(Elf64_Ehdr)] = {};
    try {
      FileSource source(root_ + canonical(path));
      if (source.size() < sizeof head) return "file too short";
      if (!source.read(0, head)) return {};
    } catch (const ReadError&) {
      return {};
    }
    return std::memcmp(head, ELFMAG, SELFMAG) == 0 ? "" : "invalid ELF header";
  }

  // Links are followed as the target would, absolute ones from its root.
  std::string canonical(const std::string& path) override {
    auto [known, is_new] = canonical_.try_emplace(path);
    if (is_new) known->second = follow(path);
    return known->second;
  }

 private:
  std::string follow(const std::string& path) const {
    constexpr int kMaxLinks = 40;
    std::vector<std::string> done, todo = split(path, '/');
    std::vector<std::string> stack(todo.rbegin(), todo.rend());
    int links = 0;
    while (!stack.empty()) {
      const std::string part = stack.back();
      stack.pop_back();
      if (part.empty() || part == ".") continue;
      if (part == "..") {
        if (!done.empty()) done.pop_back();
        continue;
      }
      const std::string here = "/" + joined(done, "/") + (done.empty() ? "" : "/") + part;
      char target[4096];
      const ssize_t length = readlink((root_ + here).c_str(), target, sizeof target);
      if (length <= 0 || length == ssize_t(sizeof target)) {
        done.push_back(part);
        continue;
      }
      if (++links > kMaxLinks) return path;
      const std::string_view link(target, std::size_t(length));
      if (link[0] == '/') done.clear();
      const std::vector<std::string> parts = split(link, '/');
      stack.insert(stack.end(), parts.rbegin(), parts.rend());
    }
    return "/" + joined(done, "/");
  }

  std::string root_;
  std::unordered_map<std::string, std::optional<ElfFile>> files_;
  std::unordered_map<std::string, std::string> canonical_;
};

}  // namespace

std::unique_ptr<LibraryStore> disk_libraries(const std::string& root) { return std::make_unique<DiskLibraries>(root); }

}  // namespace doctor
