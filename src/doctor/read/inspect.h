// SPDX-License-Identifier: Apache-2.0
// From a path to what is there: a wheel, a binary, a folder of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/read/wheel.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

enum class FileKind { kWheel, kElf, kCubin, kFatbin, kFolder, kPackage };

// One thing that was looked at. A folder is any tree with binaries in it; an installed package has a reader of its own
// (package.h).
struct Inspection {
  std::string path;
  FileKind kind = FileKind::kElf;
  std::optional<Wheel> wheel;     // of a wheel, and of an installed package
  std::vector<Binary> binaries;   // of anything else
  std::vector<Verdict> problems;  // met while reading
  // Of the Python files around the binaries of an installed package; asked only where it matters. A wheel has its own.
  std::function<PythonWords()> words;
};

const std::vector<Binary>& binaries_of(const Inspection& inspection);

// Throws ReadError if the path cannot be read or is nothing that the doctor knows.
Inspection inspect(const std::string& path, const Progress& progress = {}, const ReadLimits& limits = {});

}  // namespace doctor
