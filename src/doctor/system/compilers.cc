// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/compilers.h"

#include "doctor/facts/mangled.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// "g++", "g++-12", "x86_64-linux-gnu-g++-12", "clang++-14".
bool is_compiler_name(const std::string& name) {
  std::string stem = name;
  if (const std::size_t dash = stem.rfind('-');
      dash != stem.npos && stem.find_first_not_of("0123456789.", dash + 1) == stem.npos)
    stem.resize(dash);
  return stem == "g++" || stem == "c++" || stem == "clang++" ||
         (stem.size() > 4 && stem.substr(stem.size() - 4) == "-g++" && stem.find("linux") != stem.npos);
}

Version version_in_name(const std::string& name) {
  const std::size_t dash = name.rfind('-');
  return dash == name.npos ? Version{} : parse_version(name.substr(dash + 1));
}

// GCC's own folder, lib/gcc/<machine>/<version>, below the prefix that the program lies in.
Version installed_version(const Files& files, const std::string& prefix, const Version& wanted) {
  Version best;
  for (const std::string& folder : files.match(prefix + "/lib/gcc/*/*")) {
    const Version version = parse_version(base_name(folder));
    const bool fits = !wanted.known() || version.major_part() == wanted.major_part();
    if (version.known() && fits && (!best.known() || best < version)) best = version;
  }
  return best;
}

// The library's configuration says which ABI is the default: Red Hat's developer toolsets have the old one.
CxxAbi default_abi(const Files& files, const std::string& prefix, const Version& version) {
  const std::string number = version.text(), major = std::to_string(version.major_part());
  for (const std::string& v : {number, major})
    for (const std::string& pattern :
         {prefix + "/include/*/c++/" + v + "/bits/c++config.h", prefix + "/include/c++/" + v + "/*/bits/c++config.h",
          prefix + "/*/include/c++/" + v + "/*/bits/c++config.h"})
      for (const std::string& path : files.match(pattern)) {
        const std::string text = files.read(path).value_or("");
        const std::size_t at = text.find("define _GLIBCXX_USE_CXX11_ABI ");
        if (at != text.npos && at + 30 < text.size()) return text[at + 30] == '1' ? CxxAbi::kNew : CxxAbi::kOld;
      }
  return CxxAbi::kUnknown;
}

}  // namespace

std::vector<Compiler> read_compilers(const Outlook& outlook) {
  const Files& files = outlook.files;
  std::vector<Compiler> compilers;
  std::vector<std::string> seen;
  bool has_first = false;
  // The plain names first, so that one program with many names is shown by the one that people type.
  std::vector<std::pair<std::string, std::string>> candidates;
  for (const char* name : {"g++", "c++", "clang++"})
    for (const std::string& path : outlook.on_path(name)) candidates.emplace_back(folder_name(path), name);
  for (const std::string& folder : outlook.path())
    for (const std::string& name : files.list(folder)) candidates.emplace_back(folder, name);
  for (const auto& [folder, name] : candidates) {
    if (!is_compiler_name(name) || compilers.size() >= 64) continue;
    const std::string path = join_path(folder, name);
    const auto resolved = files.resolve(path);
    if (!resolved || !files.is_executable(path)) continue;
    bool is_known = false;
    for (const std::string& other : seen) is_known |= other == *resolved;
    if (is_known) continue;
    seen.push_back(*resolved);
    Compiler compiler;
    compiler.name = name;
    compiler.path = path;
    const std::string real_name = base_name(*resolved), prefix = folder_name(folder_name(*resolved));
    compiler.kind = real_name.find("clang") != real_name.npos ? "clang"
                    : real_name.find("g++") != real_name.npos ? "gcc"
                                                              : "";
    compiler.version = version_in_name(real_name);
    if (compiler.kind == "gcc") {
      if (const Version full = installed_version(files, prefix, compiler.version); full.known())
        compiler.version = full;
      if (compiler.version.known()) compiler.cxx_abi = default_abi(files, prefix, compiler.version);
    } else if (compiler.kind == "clang" && !compiler.version.known()) {
      compiler.version = parse_version(base_name(folder_name(folder_name(*resolved))).substr(0, 12));
      if (const std::string llvm = base_name(prefix); llvm.rfind("llvm-", 0) == 0)
        compiler.version = parse_version(llvm.substr(5));
    }
    // It compiles with the headers of the newest g++ of the system.
    if (compiler.kind == "clang")
      if (const Version gcc = installed_version(files, "/usr", {}); gcc.known())
        compiler.cxx_abi = default_abi(files, "/usr", gcc);
    if (!has_first && (name == "g++" || name == "c++")) compiler.is_first = has_first = true;
    compilers.push_back(std::move(compiler));
  }
  return compilers;
}

}  // namespace doctor
