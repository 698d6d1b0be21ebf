// SPDX-License-Identifier: Apache-2.0
// What is going to be built: a package of an index, a source archive, or a folder.
#pragma once

#include <string>
#include <string_view>

namespace builder {

enum class SourceKind { kPackage, kArchive, kFolder };

struct Source {
  SourceKind kind = SourceKind::kPackage;
  std::string text;              // as it was given
  std::string path;              // of an archive or folder, absolute
  std::string package, version;  // normalised name; empty if not known
  std::string requirement;       // of a package: "flash-attn==2.8.3"
  std::string sha256;            // of the archive, or over all files of the folder; empty: not fetched yet
  std::string work;              // where builds live, if that is inside the folder: no source; else empty
};

// `work` is where builds live. Throws std::runtime_error with one line if it is none of the three, or a folder that is
// the work folder itself.
Source parse_source(const std::string& text, const std::string& work = "");

// Over names and bytes of all files, without what builds and version control leave there, and without all of `work`.
std::string folder_sha256(const std::string& folder, const std::string& work = "");
// Copies the same files.
void copy_source_folder(const std::string& from, const std::string& to, const std::string& work = "");

// Number of .cu files among them, without those of third-party code, examples and tests.
int count_cuda_files(const std::string& folder, const std::string& work = "");

// "flash_attn-2.8.3.tar.gz" -> "flash-attn", "2.8.3". False if it is no archive's name.
bool parse_archive_name(std::string_view file_name, std::string* package, std::string* version);

}  // namespace builder
