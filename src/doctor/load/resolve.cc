// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/resolve.h"

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
  if (torch_first && target.torch)
    for (const std::string& path : target.torch->libraries)
      if (const ElfFile* library = process.find(path)) {
        auto opened = process.open(path, library);
        // torch opens this one for everyone; the others it opens as Python does, for themselves.
        if (base_name(path) == "libtorch_global_deps.so") process.make_global(opened.scope);
        process.relocate(opened, false);
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
