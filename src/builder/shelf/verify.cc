// SPDX-License-Identifier: Apache-2.0
// Looking at everything on a shelf again.
#include "builder/shelf/verify.h"

#include <algorithm>
#include <filesystem>

#include "builder/shelf/shelf_files.h"
#include "builder/shelf/shelf_index.h"
#include "doctor/read/wheel.h"
#include "doctor/read/wheel_name.h"
#include "support/bytes.h"
#include "support/durable.h"
#include "support/package_name.h"
#include "support/quote.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

using doctor::make_verdict;

// Compares the bytes with what was recorded when they were published.
std::vector<doctor::Verdict> check_record(const std::string& shelf, const ShelfEntry& entry) {
  const std::vector<Provenance> known = provenances_of(shelf, entry.wheel);
  if (known.empty())
    return {make_verdict(
        {.code = "SHARE_UNRECORDED",
         .subject = entry.wheel,
         .message = "nothing records where this wheel comes from",
         .cause = "It was copied here by hand, or its record was removed.",
         .fix = "mica publish " + shell_quoted(entry.wheel) + " " + shell_quoted(shelf) + " from a copy you trust"})};
  for (const Provenance& provenance : known)
    if (provenance.sha256 == entry.sha256) return {};
  return {make_verdict({.code = "SHARE_ALTERED",
                        .subject = entry.wheel,
                        .message = "its bytes are not those that were published",
                        .cause = "The file was changed, cut short or replaced after it was published.",
                        .fix = "remove it and publish it again from a copy you trust",
                        .evidence = {"recorded  " + known[0].sha256 + ", " + std::to_string(known[0].size) +
                                         " bytes, by " + support::printable(known[0].published_by),
                                     "now       " + entry.sha256 + ", " + std::to_string(entry.size) + " bytes"}})};
}

bool in_index(const std::string& shelf, const ShelfEntry& entry) {
  const auto name = doctor::parse_wheel_name(entry.wheel);
  if (!name) return false;
  try {
    const std::string text = support::read_text_file(
        shelf + "/simple/" + normalised_package(name->distribution) + "/index.html", uint64_t(64) << 20);
    return text.find("#sha256=" + entry.sha256 + "\"") != text.npos;
  } catch (const support::ReadError&) {
    return false;
  }
}

ShelfEntry look_at(const std::string& shelf, const std::string& wheel, const Judge& judge) {
  ShelfEntry entry;
  entry.wheel = wheel;
  const std::string path = shelf + "/" + wheel;
  try {
    std::error_code error;
    entry.size = std::filesystem::file_size(path, error);
    entry.sha256 = file_sha256(path);
    entry.verdicts = check_record(shelf, entry);
    for (doctor::Verdict& verdict : judge(path)) {
      entry.pretender |=
          verdict.code == doctor::Code::WHEEL_NO_EXTENSION && verdict.severity == doctor::Severity::kError;
      entry.verdicts.push_back(std::move(verdict));
    }
  } catch (const support::ReadError& e) {
    entry.verdicts.push_back(make_verdict({.code = "WHEEL_ARCHIVE", .subject = wheel, .message = e.what()}));
  }
  return entry;
}

void set_aside(const std::string& shelf, ShelfEntry& entry) {
  make_shelf_folder(shelf, "quarantine");
  std::string to = shelf + "/quarantine/" + entry.wheel;
  std::error_code error;
  for (int n = 1; std::filesystem::exists(to, error); ++n)
    to = shelf + "/quarantine/" + entry.wheel + "." + std::to_string(n);
  move_file(shelf + "/" + entry.wheel, to);
  entry.quarantined = to;
}

}  // namespace

ShelfReport verify(const std::string& folder, const Judge& judge, bool quarantine) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) throw support::ReadError(folder + ": no folder");
  ShelfReport report;
  for (const std::string& wheel : file_names(folder, ".whl"))
    if (!is_temporary_name(wheel)) report.entries.push_back(look_at(folder, wheel, judge));
  bool moved = false;
  for (ShelfEntry& entry : report.entries) {
    if (quarantine && entry.pretender) {
      set_aside(folder, entry);
      moved = true;
    }
  }
  if (moved) rebuild_derived(folder);
  std::vector<std::string> missing;
  for (const ShelfEntry& entry : report.entries)
    if (entry.quarantined.empty() && !entry.sha256.empty() && !in_index(folder, entry)) missing.push_back(entry.wheel);
  if (!missing.empty())
    report.verdicts.push_back(
        make_verdict({.code = "SHARE_INDEX_STALE",
                      .subject = folder + "/simple",
                      .message = support::counted(missing.size(), "wheel") + " not listed as it is now",
                      .cause = "pip --index-url does not see it, or sees another hash.",
                      .fix = "mica publish --reindex " + shell_quoted(folder),
                      .evidence = missing}));
  std::vector<std::string> leftovers = file_names(folder, ".tmp");
  std::erase_if(leftovers, [](const std::string& name) { return !is_temporary_name(name); });
  if (!leftovers.empty())
    report.verdicts.push_back(make_verdict(
        {.code = "SHARE_LEFTOVER",
         .subject = folder,
         .message = support::counted(leftovers.size(), "unfinished file") + " there",
         .cause = "A publisher is at work on it now, or was interrupted; installers do not see such a file.",
         .fix = "if nobody is publishing: rm " + shell_quoted(folder) + "/.*.tmp",
         .evidence = leftovers}));
  return report;
}

}  // namespace builder
