// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/resolve.h"

#include "doctor/load/loader.h"
#include "support/text.h"

namespace doctor {

using namespace support;

Resolution resolve(const LoadRequest& request, const Environment& target) {
  Process process(target, request.beside);
  // The program and its libraries come first and are seen by everyone.
  if (target.python && !target.python->executable.empty())
    if (const ElfFile* program = process.find(target.python->executable)) {
      auto opened = process.open(target.python->executable, program);
      process.make_global(opened.scope);
      process.relocate(opened, false);
      // The loader itself is an object too; libraries ask for it by its soname.
      const std::string loader(program->interpreter);
      if (const ElfFile* elf = loader.empty() ? nullptr : process.find(loader)) process.open(loader, elf);
    }
  if (request.torch_first && target.torch)
    for (const std::string& path : target.torch->libraries)
      if (const ElfFile* library = process.find(path)) {
        auto opened = process.open(path, library);
        // torch opens this one for everyone; the others it opens as Python does, for themselves.
        if (base_name(path) == "libtorch_global_deps.so") process.make_global(opened.scope);
        process.relocate(opened, false);
      }
  for (const PlacedFile& file : request.before) process.try_open(file.path, file.elf);
  auto opened = process.open(request.file.path, request.file.elf);
  if (opened.failure.failure == LoadFailure::kNone) process.relocate(opened, true);
  return std::move(opened.failure);
}

}  // namespace doctor
