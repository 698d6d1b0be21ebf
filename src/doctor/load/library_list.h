// SPDX-License-Identifier: Apache-2.0
// What a loader needs to know of a list of libraries, as lines of text: their names, needs, versions and exports.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "doctor/load/library_store.h"

namespace doctor {

struct ListedLibraries {
  std::map<std::string, std::shared_ptr<const ElfFile>> files;  // by path without links
  std::map<std::string, std::string> links;                     // path to path without links
};

std::string write_library_list(const ListedLibraries& libraries);
// Throws ReadError with the line's number.
ListedLibraries read_library_list(std::string_view text);
// A store of these and nothing else.
std::unique_ptr<LibraryStore> listed_libraries(ListedLibraries libraries);

}  // namespace doctor
