// SPDX-License-Identifier: Apache-2.0
// The shared libraries of a target.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "doctor/read/binary.h"

namespace doctor {

// The shared libraries of a target, by their path there.
class LibraryStore {
 public:
  virtual ~LibraryStore() = default;
  // The ELF file at this path, links followed; nullptr if there is none that could be read. Stays valid.
  virtual const ElfFile* find(const std::string& path) = 0;
  // Why the loader ends its search at the file there: "file too short", "invalid ELF header"; empty: it does not.
  virtual std::string refusal(const std::string&) { return {}; }
  // The path without links and "..", so that one file under two names is one library; the path itself if not known.
  virtual std::string canonical(const std::string& path) { return path; }
  // What lies around them, where the target can be read: names in a folder, a text file, a compiled file with all that
  // it holds. A target that was only described has nothing to say of these.
  virtual std::vector<std::string> names(const std::string&) { return {}; }
  virtual std::optional<std::string> text(const std::string&, uint64_t /*most*/) { return {}; }
  virtual std::optional<Binary> binary(const std::string&) { return {}; }
};

// Of this machine, or of the tree below `root`; files are read when first asked for, links stay inside the root.
std::unique_ptr<LibraryStore> disk_libraries(const std::string& root = "");

}  // namespace doctor
