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

#include "doctor/binary.h"
#include "doctor/imports.h"
#include "doctor/verdict.h"

namespace doctor {

struct WheelTag {
  std::string python, abi, platform;  // "cp312", "cp312", "linux_x86_64"
  auto operator<=>(const WheelTag&) const = default;
  std::string text() const { return python + "-" + abi + "-" + platform; }
};

struct WheelName {
  std::string distribution, version, build, python, abi, platform;  // tags as written, '.' between alternatives
  std::vector<WheelTag> tags;                                       // all combinations
};

// "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl", with or without folders before it.
std::optional<WheelName> parse_wheel_name(std::string_view file_name);

struct Metadata {  // METADATA and WHEEL are headers in the style of mail
  std::vector<std::pair<std::string, std::string>> fields;
  std::string first(std::string_view key) const;  // keys compare without case
  std::vector<std::string> all(std::string_view key) const;
};
Metadata parse_metadata(std::string_view text);

struct RecordRow {
  std::string path, hash;  // hash: "sha256=<urlsafe base64 without padding>", or empty
  std::optional<uint64_t> size;
};
std::vector<RecordRow> parse_record(std::string_view text, std::vector<std::string>* problems);

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

// Reading took longer than the limit.
class TimeError : public ReadError {
 public:
  explicit TimeError(double seconds);
};

// Throws TimeError once the time is over.
class Stopwatch {
 public:
  explicit Stopwatch(double seconds);
  void check() const;

 private:
  std::chrono::steady_clock::time_point end_;
  double seconds_;
};

// Throws ReadError if it is no zip archive at all.
Wheel read_wheel(ByteSource& source, const std::string& file_name, const Progress& progress = {},
                 const ReadLimits& limits = {});
Wheel read_wheel(const std::string& path, const Progress& progress = {}, const ReadLimits& limits = {});

}  // namespace doctor
