// SPDX-License-Identifier: Apache-2.0
// The dynamic loader in the head: what dlopen(path, RTLD_NOW) in a target would do, without opening anything for real.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "doctor/facts/environment.h"

namespace doctor {

class Process;  // doctor/load/loader.h

enum class LoadFailure {
  kNone,
  kMachine,
  kNotShared,
  kNeededMissing,
  kDamaged,
  kExecutableStack,
  kVersionMissing,
  kPackedUnmarked,
  kNotRelocated,
  kCpuLevel,
  kLoaderStops,
  kStaticBlock,
  kUndefinedSymbol
};

struct MissingSymbol {
  std::string name, version;  // version may be empty
};

// The outcome of one dlopen. `message` is the text of dlerror(), word for word; of kLoaderStops what the loader writes
// before it ends the process, without its line number; of kNotRelocated, which the loader does not notice, our own.
struct Resolution {
  LoadFailure failure = LoadFailure::kNone;
  std::string message;
  std::string object;                   // path of the file that asked
  const ElfFile* object_elf = nullptr;  // its contents; of kExecutableStack, the library's
  std::string library,
      version;  // kNotShared, kNeededMissing, kDamaged, kExecutableStack, kStaticBlock: the library; of a version: both
  std::vector<std::string> searched;   // kNeededMissing: where it was looked for
  std::vector<MissingSymbol> missing;  // kUndefinedSymbol: the one in the message, then others of the same file
  std::vector<std::pair<std::string, std::string>>
      loaded;  // name asked for and path found, of what is new, in load order
};

// A file as it will lie in the target.
struct PlacedFile {
  std::string path;              // absolute, in the target
  const ElfFile* elf = nullptr;  // null: too short to be one
};

struct LoadRequest {
  PlacedFile file;
  std::vector<PlacedFile> beside;  // others that are installed with it
  std::vector<PlacedFile> before;  // of those, what its package opens first
  bool torch_first = true;         // after `import torch`, where the target has it
};

// A process of the target with Python (and torch) in it, in which files are opened one after the other, each as if it
// were the only one. What all have in common is read once.
class LoadSession {
 public:
  LoadSession(const Environment& target, const std::vector<PlacedFile>& beside, bool torch_first = true);
  ~LoadSession();
  Resolution open(const PlacedFile& file, const std::vector<PlacedFile>& before = {});

 private:
  void load_torch(const TorchFacts& torch);
  std::unique_ptr<Process> process_;
};

// One file, in a session of its own.
Resolution resolve(const LoadRequest& request, const Environment& target);

}  // namespace doctor
