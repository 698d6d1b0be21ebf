// SPDX-License-Identifier: Apache-2.0
// A wheel: its name, its metadata and what is inside, read in one pass over the archive without unpacking it to disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/read/binary.h"
#include "doctor/read/metadata.h"
#include "doctor/read/python/imports.h"
#include "doctor/read/record.h"
#include "doctor/read/wheel_name.h"
#include "doctor/verdict/verdict.h"
#include "support/stopwatch.h"

namespace doctor {

using namespace support;

struct WheelEntry {
  std::string path;
  uint64_t size = 0, stored_size = 0;
  bool is_directory = false, is_link = false;
  std::string sha256;  // as in RECORD, without "sha256="; empty if it was not read
};

struct Wheel {
  std::string file_name;  // last part of the path
  uint64_t size = 0;
  std::optional<WheelName> name;
  std::string dist_info;  // folder inside; empty if there is none
  Metadata wheel, metadata;
  std::vector<RecordRow> record;
  std::vector<WheelEntry> entries;
  std::vector<Binary> binaries;
  std::vector<std::string> imports;  // compiled modules that its Python files import, by name ("flash_attn_2_cuda")
  PythonWords words;
  std::vector<Verdict> problems;  // of the archive itself; what could be read still stands above
};

// Called now and then with how much of the file is behind; may be empty.
using Progress = std::function<void(std::string_view what, uint64_t done, uint64_t total)>;

struct ReadLimits {
  uint64_t entries = 200'000;
  uint64_t plain_bytes = uint64_t(16) << 30;  // of all entries together
  uint64_t ratio = 200;                       // plain to stored of a whole archive, above a few MiB
  double seconds = 300;                       // for one wheel or folder
};

// Throws ReadError if it is no zip archive at all.
Wheel read_wheel(ByteSource& source, const std::string& file_name, const Progress& progress = {},
                 const ReadLimits& limits = {});
Wheel read_wheel(const std::string& path, const Progress& progress = {}, const ReadLimits& limits = {});

}  // namespace doctor
