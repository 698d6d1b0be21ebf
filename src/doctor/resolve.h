// SPDX-License-Identifier: Apache-2.0
// The dynamic loader in the head: what dlopen(path, RTLD_NOW) in a target would do, without opening anything for real.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "doctor/environment.h"
#include "doctor/wheel.h"

namespace doctor {

enum class LoadFailure { kNone, kMachine, kNeededMissing, kVersionMissing, kUndefinedSymbol, kNotShared };

struct MissingSymbol {
  std::string name, version;  // version may be empty
};

// The outcome of one dlopen. `message` is the text of dlerror(), word for word.
struct Resolution {
  LoadFailure failure = LoadFailure::kNone;
  std::string message;
  std::string object;                  // the file that asked
  std::string library, version;        // of kNeededMissing; of kVersionMissing also the version
  std::vector<std::string> searched;   // folders, for kNeededMissing
  std::vector<MissingSymbol> missing;  // kUndefinedSymbol: the first is the one in the message, then the others
  std::vector<std::pair<std::string, std::string>> loaded;  // soname, path of what was found, in load order
};

// A file as it will lie in the target: where, and its facts. Files of one wheel see each other.
struct PlacedFile {
  std::string path;  // absolute, in the target
  const ElfFile* elf = nullptr;
};

struct LoadRequest {
  PlacedFile file;
  std::vector<PlacedFile> beside;  // others that are installed with it
  bool python = true;              // loaded by the target's Python
  bool torch_first = true;         // after `import torch`
};

Resolution resolve(const LoadRequest& request, const Environment& target);

}  // namespace doctor
