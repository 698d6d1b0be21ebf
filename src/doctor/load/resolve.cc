// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/resolve.h"

#include <algorithm>

#include "doctor/load/loader.h"
#include "support/text.h"

namespace doctor {

using namespace support;

LoadSession::LoadSession(const Environment& target, const std::vector<PlacedFile>& beside, bool torch_first)
    : process_(std::make_unique<Process>(target, beside)) {
  Process& process = *process_;
  // The program and its libraries come first and are seen by everyone.
  if (target.python && !target.python->executable.empty())
    if (const ElfFile* program = process.find(target.python->executable)) {
      auto opened = process.open(target.python->executable, program);
      process.make_global(opened.scope);
      process.relocate(opened, false);
      // The loader itself is an object too; libraries ask for it by its soname.
      const std::string loader(program->interpreter);
      if (const ElfFile* elf = loader.empty() ? nullptr : process.find(loader)) process.open(loader, elf);
      for (const std::string& name : target.loader.preload) process.first_found(name);
    }
  process.begin();
  if (torch_first && target.torch) load_torch(*target.torch);
}

void LoadSession::load_torch(const TorchFacts& torch) {
  Process& process = *process_;
  const auto open_each = [&](const std::vector<std::string>& paths) {
    for (const std::string& path : paths)
      if (const ElfFile* library = process.find(path)) process.try_open(path, library);
  };
  for (const std::string& path : torch.libraries) {
    const ElfFile* library = process.find(path);
    if (!library) continue;
    const bool is_first = base_name(path) == "libtorch_global_deps.so";
    const Process::Mark mark = process.mark();
    auto opened = process.open(path, library);
    if (is_first && opened.failure.failure == LoadFailure::kNeededMissing && !torch.preloaded_if_missing.empty()) {
      process.roll_back(mark);
      open_each(torch.preloaded_if_missing);
      opened = process.open(path, library);
    }
    // torch opens this one for everyone; the others it opens as Python does, for themselves.
    if (is_first) process.make_global(opened.scope);
    process.relocate(opened, false);
    const bool has_cuda_of_pip = std::any_of(opened.scope.begin(), opened.scope.end(), [](const LoadedObject* object) {
      return object->path.find("nvidia/cuda_runtime/lib/libcudart.so") != std::string::npos ||
             object->path.find("/nvidia/cu1") != std::string::npos;
    });
    if (is_first && has_cuda_of_pip) open_each(torch.preloaded);
  }
}

LoadSession::~LoadSession() = default;

Resolution LoadSession::open(const PlacedFile& file, const std::vector<PlacedFile>& before) {
  const Process::Mark mark = process_->mark();
  for (const PlacedFile& other : before) process_->try_open(other.path, other.elf);
  auto opened = process_->open(file.path, file.elf);
  if (opened.failure.failure == LoadFailure::kNone) process_->relocate(opened, true);
  process_->roll_back(mark);
  return std::move(opened.failure);
}

Resolution resolve(const LoadRequest& request, const Environment& target) {
  return LoadSession(target, request.beside, request.torch_first).open(request.file, request.before);
}

}  // namespace doctor
