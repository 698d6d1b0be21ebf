// SPDX-License-Identifier: Apache-2.0
// A folder that goes away again, whatever happened to the programs that used it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/durable.h"

namespace support {

class TemporaryFolder {
 public:
  // Below `above`, which is made if it is not there; `name` begins the folder's own. Throws WriteError.
  TemporaryFolder(const std::string& above, const std::string& name) {
    make_folders(above);
    path_ = above + "/" + name + "XXXXXX";
    if (!mkdtemp(path_.data())) throw WriteError("cannot make a folder in " + above);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace support
