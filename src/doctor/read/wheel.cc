// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/wheel.h"

#include <algorithm>
#include <set>

#include "doctor/read/binary.h"
#include "doctor/read/zip/entry_source.h"
#include "doctor/read/zip/zip.h"
#include "doctor/read/zip/zip_stream.h"
#include "support/sha256.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr uint64_t kMaxTextBytes = 32 << 20;   // of RECORD, METADATA, WHEEL
constexpr uint64_t kMaxSourceBytes = 2 << 20;  // of a Python file that is searched for imports
constexpr std::size_t kMaxImports = 1000;

class WheelReader {
 public:
  WheelReader(ByteSource& source, Wheel& wheel, const Progress& progress, const ReadLimits& limits)
      : archive_(source, {limits.entries, limits.plain_bytes, limits.ratio}),
        wheel_(wheel),
        progress_(progress),
        stopwatch_(limits.seconds) {
    for (const std::string& text : archive_.problems()) problem(text);
    for (const ZipEntry& entry : archive_.entries()) total_bytes_ += entry.readable ? entry.plain : 0;
  }

  void read() {
    find_dist_info();
    for (const ZipEntry& entry : archive_.entries()) read_entry(entry);
    std::vector<std::string> problems;
    wheel_.record = parse_record(record_, &problems);
    for (const std::string& text : problems)
      wheel_.problems.push_back(make_verdict({.code = "RECORD_BAD",
                                              .subject = wheel_.file_name,
                                              .message = text,
                                              .cause = "RECORD cannot be read as a table.",
                                              .fix = "ask whoever built it to build it again"}));
    wheel_.imports.assign(imports_.begin(), imports_.end());
  }

 private:
  void problem(const std::string& text) {
    wheel_.problems.push_back(
        make_verdict({.code = "WHEEL_ARCHIVE",
                      .subject = wheel_.file_name,
                      .message = text,
                      .cause = "Installers refuse such an archive, or unpack it to something else than was meant.",
                      .fix = "download it again; if it stays so, it was made by a broken or hostile tool"}));
  }

  void find_dist_info() {
    std::set<std::string> folders;
    for (const ZipEntry& entry : archive_.entries()) {
      const std::size_t slash = entry.name.find('/');
      if (slash == entry.name.npos) continue;
      if (const std::string top = entry.name.substr(0, slash); top.ends_with(".dist-info")) folders.insert(top);
    }
    if (folders.size() > 1)
      problem("two folders of metadata: " + printable(*folders.begin()) + " and " + printable(*folders.rbegin()));
    if (!folders.empty()) wheel_.dist_info = *folders.begin();
  }

  void read_entry(const ZipEntry& entry) {
    WheelEntry out{entry.name, entry.plain, entry.stored, entry.is_directory(), entry.is_link(), ""};
    if (entry.readable && !out.is_directory && !out.is_link) {
      Sha256 hash;
      std::string text;
      const bool keep = wants_text(entry);
      EntrySource source(archive_, entry);
      BinaryProbe probe(entry.name, entry.plain);
      const std::string wrong = source.pass([&](std::span<const uint8_t> piece) {
        hash.update(piece);
        probe.feed(piece);
        if (keep) text.append(piece.begin(), piece.end());
        done_bytes_ += piece.size();
        stopwatch_.check();
        if (progress_) progress_(entry.name, done_bytes_, total_bytes_);
      });
      if (wrong.empty())
        out.sha256 = url_base64(hash.digest());
      else
        problem("'" + printable(entry.name) + "' " + wrong);
      if (keep) take_text(entry, std::move(text));
      const std::size_t before = wheel_.problems.size();
      if (auto binary = probe.finish(source, wheel_.problems))
        wheel_.binaries.push_back(std::move(*binary));
      else if (wheel_.problems.size() == before && is_extension_name(entry.name))
        wheel_.problems.push_back(no_library(entry.name, entry.plain));
    }
    wheel_.entries.push_back(std::move(out));
  }

  bool is_info(const ZipEntry& entry, const char* name) const {
    return !wheel_.dist_info.empty() && entry.name == wheel_.dist_info + "/" + name;
  }

  bool wants_text(const ZipEntry& entry) const {
    const bool info = is_info(entry, "METADATA") || is_info(entry, "WHEEL") || is_info(entry, "RECORD");
    return entry.plain <= (info ? kMaxTextBytes : kMaxSourceBytes) && (info || entry.name.ends_with(".py"));
  }

  void take_text(const ZipEntry& entry, std::string text) {
    if (is_info(entry, "METADATA"))
      wheel_.metadata = parse_metadata(text);
    else if (is_info(entry, "WHEEL"))
      wheel_.wheel = parse_metadata(text);
    else if (is_info(entry, "RECORD"))
      record_ = std::move(text);
    else {
      collect_words(entry.name, text, wheel_.words);
      if (imports_.size() < kMaxImports)
        for (std::string& name : compiled_imports(text)) imports_.insert(std::move(name));
    }
  }

  ZipArchive archive_;
  Wheel& wheel_;
  const Progress& progress_;
  Stopwatch stopwatch_;
  std::string record_;
  std::set<std::string> imports_;
  uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace

Wheel read_wheel(ByteSource& source, const std::string& file_name, const Progress& progress, const ReadLimits& limits) {
  Wheel wheel;
  wheel.file_name = base_name(file_name);
  wheel.size = source.size();
  wheel.name = parse_wheel_name(file_name);
  WheelReader(source, wheel, progress, limits).read();
  return wheel;
}

Wheel read_wheel(const std::string& path, const Progress& progress, const ReadLimits& limits) {
  FileSource source(path);
  return read_wheel(source, path, progress, limits);
}

}  // namespace doctor
