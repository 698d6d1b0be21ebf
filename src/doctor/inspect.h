// SPDX-License-Identifier: Apache-2.0
// From a path to facts (inspect), and from facts to verdicts: of the file alone, and of the file in a target.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/environment.h"
#include "doctor/verdict.h"
#include "doctor/wheel.h"

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

// Of the file alone: does it agree with itself, and with what it claims.
std::vector<Verdict> judge(const Inspection& inspection);
// In a target: everything above and the pair. A file without errors gets a LOADS note.
std::vector<Verdict> judge(const Inspection& inspection, const Environment& target);

}  // namespace doctor
