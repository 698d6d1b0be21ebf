// SPDX-License-Identifier: Apache-2.0
#include "builder/run/toolchain/compiler_by_packages.h"

#include <sys/stat.h>
#include <sys/utsname.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "builder_conda.h"
#include "doctor/facts/toolchain.h"
#include "support/durable.h"
#include "support/quote.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

constexpr double kQuestionSeconds = 120, kFetchSeconds = 1800;

std::string folder_of(const HostCompiler& compiler) { return folder_name(folder_name(compiler.cxx)); }
std::string mark_of(const HostCompiler& compiler) { return folder_of(compiler) + "/complete"; }

std::string machine() {
  utsname name = {};
  uname(&name);
  return name.machine;
}

std::string ask(std::vector<std::string> words) {
  Variables variables = current_environment();
  variables["LC_ALL"] = "C";
  std::string output, errors;
  try {
    return run_collected({std::move(words), variables, ""}, kQuestionSeconds, &output, &errors).ok() ? output : "";
  } catch (const ProcessError&) {
    return "";  // there is no such program
  }
}

// Lists of packages that nobody has fetched yet can be fetched into a folder of one's own.
std::vector<std::string> own_lists(const std::string& folder) {
  return {"-o", "Dir::State::Lists=" + folder + "/lists", "-o", "Dir::Cache=" + folder + "/cache"};
}

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The newest "g++-12" that the lists have and nvcc takes; 0: none.
int newest_of_apt(int most_gcc, const std::vector<std::string>& lists) {
  int newest = 0;
  for (const std::string& line : split(ask(with({"apt-cache", "pkgnames", "g++-"}, lists)), '\n')) {
    const std::string number = line.starts_with("g++-") ? line.substr(4) : "";
    if (number.empty() || number.size() > 2 || number.find_first_not_of("0123456789") != number.npos) continue;
    const int version = std::stoi(number);
    if (version >= doctor::kLeastGcc && (most_gcc == 0 || version <= most_gcc)) newest = std::max(newest, version);
  }
  return newest;
}

// At most; asked of the compiler itself once it is here.
int version_until_asked(const CompilerWish& wish) { return wish.most_gcc ? wish.most_gcc : doctor::kLeastGcc; }

void write_program(const std::string& path, const std::string& text) {
  replace_file(path, text);
  if (chmod(path.c_str(), 0755) != 0) throw std::runtime_error(path + " cannot be made a program");
}

// Libraries of the compiler itself, without those of the C library: the loader's own would not fit a foreign one.
void link_libraries(const std::string& root, const std::string& into) {
  constexpr const char* kOfTheSystem[] = {"libc.so",   "libm.so",      "libmvec",   "libpthread", "libdl",
                                          "librt",     "libanl",       "libresolv", "libutil",    "libnss",
                                          "ld-linux",  "libthread_db", "libnsl.so", "libBroken",  "libc_malloc",
                                          "libstdc++", "libgcc_s"};
  make_folders(into);
  for (const std::string& folder :
       {root + "/usr/lib/" + machine() + "-linux-gnu", root + "/lib/" + machine() + "-linux-gnu"}) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      const bool is_system = std::any_of(std::begin(kOfTheSystem), std::end(kOfTheSystem),
                                         [&](const char* word) { return name.starts_with(word); });
      std::error_code ignored;
      if (name.find(".so") != name.npos && !is_system && !entry->is_directory(ignored))
        fs::create_symlink(entry->path(), fs::path(into) / name, ignored);
    }
  }
}

// The compiler looks for everything below its own root, and none of it in the system.
void write_wrappers(const std::string& folder, int version) {
  make_folders(folder + "/bin");
  for (const char* name : {"gcc", "g++"})
    write_program(folder + "/bin/" + name,
                  "#!/bin/sh\n# Written by mica build: the distribution's compiler, unpacked beside this file.\n"
                  "top=" +
                      shell_quoted(folder) +
                      "\n"
                      "LD_LIBRARY_PATH=$top/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec \"$top/root/usr/bin/" +
                      name + "-" + std::to_string(version) +
                      "\" --sysroot=\"$top/root\" -B\"$top/root/usr/bin\" \"$@\"\n");
}

void bring_by_apt(const std::string& folder, int version) {
  const std::string package = "g++-" + std::to_string(version);
  std::vector<std::string> lists;
  if (newest_of_apt(0, {}) == 0) lists = own_lists(folder_name(folder) + "/apt");
  const std::string closure =
      run_or_throw({with({"apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts",
                          "--no-breaks", "--no-replaces", "--no-enhances"},
                         with(lists, {package})),
                    current_environment(), ""},
                   kQuestionSeconds, "cannot ask apt-cache what " + package + " needs");
  std::vector<std::string> names;
  for (const std::string& line : split(closure, '\n'))
    if (!line.empty() && line[0] != ' ' && line[0] != '<' && line[0] != '|') names.push_back(line);
  make_folders(folder + "/packages");
  run_or_throw({with(with({"apt-get", "download"}, lists), names), current_environment(), folder + "/packages"},
               kFetchSeconds, "cannot fetch " + package + " from the distribution");
  for (const auto& entry : fs::directory_iterator(folder + "/packages"))
    run_or_throw({{"dpkg-deb", "-x", entry.path().string(), folder + "/root"}, current_environment(), ""},
                 kFetchSeconds, "cannot unpack " + entry.path().string());
  fs::remove_all(folder + "/packages");
  link_libraries(folder + "/root", folder + "/lib");
  write_wrappers(folder, version);
}

// A compiler of conda's has its machine in its name, and lies in bin.
void bring_by_conda(const std::string& folder, const CompilerWish& wish, const Workshop& shop) {
  const std::string place = "linux-" + std::string(machine() == "x86_64" ? "64" : machine());
  const std::string reader = folder + "/conda.py";
  replace_file(reader, kCondaSource);
  run_or_throw({{shop.python, reader, wish.conda_channel, place, "gxx_impl_" + place, std::to_string(wish.most_gcc),
                 folder + "/root"},
                current_environment(),
                ""},
               kFetchSeconds, "cannot take a compiler from the channel " + wish.conda_channel);
  make_folders(folder + "/bin");
  for (const std::string name : {"gcc", "g++"}) {
    const std::string program = folder + "/root/bin/" + machine() + "-conda-linux-gnu-" + name;
    std::error_code error;
    if (!fs::exists(program, error)) throw std::runtime_error("the channel's compiler has no " + program);
    write_program(folder + "/bin/" + name,
                  "#!/bin/sh\n# Written by mica build: the compiler of a channel of conda, unpacked beside this file.\n"
                  "exec " +
                      shell_quoted(program) + " \"$@\"\n");
  }
}

}  // namespace

std::optional<HostCompiler> compiler_of_packages(const CompilerWish& wish, bool fetches_lists) {
  HostCompiler out;
  out.is_fetched = true;
  int version = 0;
  std::string folder;
  if (!wish.conda_channel.empty()) {
    folder = wish.folder + "/gcc-conda" + (wish.most_gcc ? "-" + std::to_string(wish.most_gcc) : "");
    version = version_until_asked(wish);
    out.fetched_by = "the channel " + wish.conda_channel + ": gxx_impl_linux, unpacked without root";
  } else {
    version = newest_of_apt(wish.most_gcc, {});
    const std::string lists = wish.folder + "/apt";
    if (version == 0 && fetches_lists) {
      make_folders(lists + "/lists/partial");
      make_folders(lists + "/cache/archives/partial");
      ask(with({"apt-get", "-qq"}, with(own_lists(lists), {"update"})));
    }
    std::error_code error;
    if (version == 0 && fs::exists(lists, error)) version = newest_of_apt(wish.most_gcc, own_lists(lists));
    out.fetched_by = "apt-get download g++-" + std::to_string(version);
    if (version == 0) {
      if (fetches_lists || ask({"apt-get", "--version"}).empty()) return std::nullopt;
      version = version_until_asked(wish);
      out.fetched_by = "apt-get update into " + lists + ", and download of the newest g++ that suits";
    }
    folder = wish.folder + "/gcc-" + std::to_string(version);
    out.fetched_by += " and what it needs, unpacked without root";
  }
  out.cc = folder + "/bin/gcc";
  out.cxx = folder + "/bin/g++";
  out.version = parse_version(std::to_string(version));
  std::error_code error;
  if (fs::exists(mark_of(out), error)) out.fetched_by.clear();
  return out;
}

HostCompiler bring_compiler(HostCompiler compiler, const CompilerWish& wish, const Workshop& shop) {
  const std::string folder = folder_of(compiler);
  fs::remove_all(folder);  // of one that was interrupted
  make_folders(folder);
  if (wish.conda_channel.empty())
    bring_by_apt(folder, compiler.version.major_part());
  else
    bring_by_conda(folder, wish, shop);
  const std::string version = run_or_throw({{compiler.cxx, "-dumpversion"}, current_environment(), ""},
                                           kQuestionSeconds, "the fetched compiler does not start");
  compiler.version = parse_version(std::string(trimmed(version)));
  replace_file(mark_of(compiler), "");
  compiler.fetched_by.clear();
  return compiler;
}

}  // namespace builder
