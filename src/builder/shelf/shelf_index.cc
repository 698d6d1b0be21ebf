// SPDX-License-Identifier: Apache-2.0
// What is derived from a shelf: the simple index (PEP 503) and the file with all lines of the matrix.
#include "builder/shelf/shelf_index.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "builder/shelf/shelf_files.h"
#include "doctor/read/wheel.h"
#include "doctor/read/wheel_name.h"
#include "support/bytes.h"
#include "support/durable.h"
#include "support/html.h"
#include "support/package_name.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

std::string url_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '_' || c == '.' || c == '~';
    if (plain) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += "0123456789ABCDEF"[byte >> 4];
      out += "0123456789ABCDEF"[byte & 15];
    }
  }
  return out;
}

std::string page(const std::string& title, const std::string& links) {
  return "<!DOCTYPE html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"pypi:repository-version\" "
         "content=\"1.0\">\n<title>" +
         html_escaped(title) + "</title>\n</head>\n<body>\n" + links + "</body>\n</html>\n";
}

// From the record where there is exactly one for a file of this size; hashing gigabytes anew takes minutes.
std::string hash_of(const std::string& shelf, const std::string& wheel) {
  const std::vector<Provenance> known = provenances_of(shelf, wheel);
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(shelf + "/" + wheel, error);
  if (known.size() == 1 && known[0].size == size) return known[0].sha256;
  return file_sha256(shelf + "/" + wheel);
}

std::vector<std::string> wheels_of(const std::string& shelf) {
  std::vector<std::string> names = file_names(shelf, ".whl");
  std::erase_if(names,
                [](const std::string& name) { return is_temporary_name(name) || !doctor::parse_wheel_name(name); });
  return names;
}

void write_pages(const std::string& shelf, const std::vector<std::string>& wheels) {
  std::map<std::string, std::string> links;  // by project
  for (const std::string& wheel : wheels) {
    const std::string project = normalised_package(doctor::parse_wheel_name(wheel)->distribution);
    links[project] += "<a href=\"../../" + url_encoded(wheel) + "#sha256=" + hash_of(shelf, wheel) + "\">" +
                      html_escaped(wheel) + "</a><br>\n";
  }
  // Projects whose last wheel went keep an empty page, so that installers say "no version" and not "no such page".
  std::error_code error;
  for (std::filesystem::directory_iterator entry(shelf + "/simple", error), end; !error && entry != end;
       entry.increment(error))
    if (entry->is_directory(error)) links.try_emplace(entry->path().filename().string());
  make_shelf_folder(shelf, "simple");
  const unsigned shared = shelf_permissions(shelf);
  std::string projects;
  for (const auto& [project, text] : links) {
    make_shelf_folder(shelf, "simple/" + project);
    replace_file(shelf + "/simple/" + project + "/index.html", page("Wheels of " + project, text), shared);
    projects += "<a href=\"" + url_encoded(project) + "/\">" + html_escaped(project) + "</a><br>\n";
  }
  replace_file(shelf + "/simple/index.html", page("Simple index", projects), shared);
}

void write_matrix(const std::string& shelf, const std::vector<std::string>& names) {
  std::vector<MatrixLine> lines;
  for (const std::string& name : names) {
    try {
      const std::string path = shelf + "/matrix/" + name;
      lines.push_back(matrix_line_from_json(support::read_text_file(path), path));
    } catch (const std::exception&) {
      // Not a line: it stays out of the file made from it.
    }
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const MatrixLine& a, const MatrixLine& b) { return a.time < b.time; });
  std::string text;
  for (const MatrixLine& line : lines) text += to_json_line(line) + "\n";
  if (!text.empty()) replace_file(shelf + "/matrix.jsonl", text, shelf_permissions(shelf));
}

// What `mica build` wrote beside wheels that nobody published yet.
void add_build_records(const std::string& folder, std::vector<MatrixLine>* lines, std::vector<std::string>* problems) {
  for (const std::string& name : file_names(folder, ".whl.build.json")) {
    std::optional<MatrixLine> line;
    try {
      line = matrix_line_of_build(support::read_text_file(folder + "/" + name));
    } catch (const std::exception&) {
    }
    if (line)
      lines->push_back(*line);
    else if (problems)
      problems->push_back(folder + "/" + name + " is no record of a build");
  }
}

}  // namespace

void rebuild_derived(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) throw support::ReadError(folder + ": no folder");
  // A wheel that another publisher adds while this one writes would be lost if the other's pages came first: whoever
  // writes last looks again.
  constexpr int kMostRounds = 20;
  for (int round = 0; round < kMostRounds; ++round) {
    const auto wheels = wheels_of(folder);
    const auto lines = file_names(folder + "/matrix", ".json");
    write_pages(folder, wheels);
    write_matrix(folder, lines);
    if (wheels == wheels_of(folder) && lines == file_names(folder + "/matrix", ".json")) return;
  }
}

std::vector<MatrixLine> read_matrix(const std::string& path, std::vector<std::string>* problems) {
  std::error_code error;
  const bool is_shelf = std::filesystem::is_directory(path, error);
  const std::string file = is_shelf ? path + "/matrix.jsonl" : path;
  std::vector<MatrixLine> lines;
  if (is_shelf) add_build_records(path, &lines, problems);
  if (is_shelf && !std::filesystem::exists(file, error)) return lines;
  int number = 0;
  for (const std::string& text : support::split(support::read_text_file(file, uint64_t(64) << 20), '\n')) {
    ++number;
    if (support::trimmed(text).empty()) continue;
    try {
      lines.push_back(matrix_line_from_json(text, file + ", line " + std::to_string(number)));
    } catch (const std::exception& e) {
      if (problems) problems->push_back(e.what());
    }
  }
  return lines;
}

}  // namespace builder
