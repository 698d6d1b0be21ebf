// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/environment_json.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "doctor/facts/mangled.h"
#include "doctor/load/library_list.h"
#include "doctor/load/packed_text.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr uint64_t kMostFileBytes = 256 << 20;
constexpr std::size_t kMostListBytes = std::size_t(1) << 30;

json version_json(const Version& version) { return version.known() ? json(version.text()) : json(); }

// $ORIGIN is the folder of the file that names it.
std::string expanded(std::string folder, const std::string& origin) {
  for (const char* word : {"${ORIGIN}", "$ORIGIN"})
    for (std::size_t at; (at = folder.find(word)) != folder.npos && origin.find('$') == origin.npos;)
      folder.replace(at, std::string_view(word).size(), origin);
  return folder;
}

// What a program could find there: everything of ld.so.cache, and Python, torch and CUDA with all that they need.
class Collector {
 public:
  Collector(const Environment& target, const Files& files) : target_(target), files_(files) {}

  ListedLibraries run() {
    for (const auto& [soname, path] : target_.loader.cache) add(path);
    for (const std::string& path : {target_.libc_path, target_.libstdcxx_path}) add(path);
    for (const std::string& folder : target_.loader.library_path) {
      add_folder(folder);
      for (const std::string& name : target_.loader.hwcaps) add_folder(folder + "/glibc-hwcaps/" + name);
    }
    if (target_.python) {
      add(target_.python->executable);
      add_folder(folder_name(folder_name(target_.python->executable)) + "/lib");
      for (const std::string& site : target_.python->site_packages)
        for (const std::string& folder : files_.match(site + "/nvidia/*/lib")) add_folder(folder);
    }
    if (target_.torch) {
      for (const std::string& path : target_.torch->libraries) add(path);
      add_folder(target_.torch->folder + "/lib");
    }
    return std::move(out_);
  }

 private:
  static constexpr std::size_t kMostFiles = 10'000;

  void add_folder(const std::string& folder) {
    for (const std::string& name : files_.list(folder))
      if (name.find(".so") != name.npos) add(folder + "/" + name);
  }

  void add(const std::string& first) {
    std::vector<std::string> waiting = {first};
    while (!waiting.empty()) {
      const std::string path = waiting.back();
      waiting.pop_back();
      const auto resolved = path.empty() ? std::nullopt : files_.resolve(path);
      if (!resolved || out_.links.size() + out_.files.size() > 2 * kMostFiles) continue;
      if (*resolved != path) out_.links.emplace(path, *resolved);
      if (out_.files.count(*resolved)) continue;
      try {
        const auto elf = std::make_shared<ElfFile>(read_elf_file(files_.on_disk(*resolved)));
        out_.files.emplace(*resolved, elf);
        add_needs(*elf, *resolved, waiting);
        if (*resolved != path) add_needs(*elf, path, waiting);
      } catch (const ReadError&) {
        // A linker script or a broken file: the loader would not take it either.
      }
    }
  }

  // Its own search path leads to others, as in site-packages/torch.libs.
  static void add_needs(const ElfFile& elf, const std::string& path, std::vector<std::string>& waiting) {
    for (const std::string_view folders : {elf.rpath, elf.runpath})
      for (const std::string& folder : split(folders, ':'))
        for (const std::string_view name : elf.needed)
          if (!folder.empty()) waiting.push_back(expanded(folder, folder_name(path)) + "/" + std::string(name));
  }

  const Environment& target_;
  const Files& files_;
  ListedLibraries out_;
};

ListedLibraries collect(const Environment& target, const Files& files) { return Collector(target, files).run(); }

// One field of the file; the message names it.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw ReadError(where_ + " is no object");
  }
  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  std::string text(const char* key) const {
    if (!has(key)) return "";
    if (!object_[key].is_string()) throw ReadError(where_ + "." + key + " is " + shown(key) + ", want a text");
    return object_[key].get<std::string>();
  }
  Version version(const char* key) const {
    const std::string value = text(key);
    const Version version = parse_version(value);
    if (!value.empty() && !version.known())
      throw ReadError(where_ + "." + key + " is " + shown(key) + ", want a version such as 2.36");
    return version;
  }
  bool flag(const char* key) const {
    if (has(key) && !object_[key].is_boolean())
      throw ReadError(where_ + "." + key + " is " + shown(key) + ", want true or false");
    return has(key) && object_[key].get<bool>();
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> out;
    for (const json& item : list(key)) {
      if (!item.is_string())
        throw ReadError(where_ + "." + key + " holds " + item.dump().substr(0, 60) + ", want texts");
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  json list(const char* key) const {
    if (!has(key)) return json::array();
    if (!object_[key].is_array()) throw ReadError(where_ + "." + key + " is " + shown(key) + ", want a list");
    return object_[key];
  }
  Fields object(const char* key) const { return {object_[key], where_ + "." + key}; }

 private:
  std::string shown(const char* key) const {
    return printable(object_[key].dump(-1, ' ', true, json::error_handler_t::replace), 60);
  }
  const json& object_;
  std::string where_;
};

CxxAbi abi_named(const std::string& name) {
  return name == "new"     ? CxxAbi::kNew
         : name == "old"   ? CxxAbi::kOld
         : name == "mixed" ? CxxAbi::kMixed
                           : CxxAbi::kUnknown;
}

const char* name_of(CxxAbi abi) {
  return abi == CxxAbi::kNew ? "new" : abi == CxxAbi::kOld ? "old" : abi == CxxAbi::kMixed ? "mixed" : "";
}

void read_gpus(const Fields& all, const std::string& name, Environment& out) {
  out.gpus_known = all.flag("gpus_known");
  for (const json& item : all.list("gpus")) {
    const Fields gpu(item, name + ": gpus");
    const Version capability = gpu.version("compute_capability");
    out.gpus.push_back({gpu.text("name"), {capability.major_part(), capability.minor_part()}});
  }
}

void read_loader(const Fields& loader, Environment& out) {
  out.loader.library_path = loader.texts("library_path");
  out.loader.preload = loader.texts("preload");
  out.loader.tunables = loader.text("tunables");
  out.loader.default_folders = loader.texts("default_folders");
  out.loader.hwcaps = loader.texts("hwcaps");
  for (const json& pair : loader.list("cache")) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      throw ReadError("loader.cache wants pairs of name and path");
    out.loader.cache.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  }
}

void read_python(const Fields& all, Environment& out) {
  if (all.has("python")) {
    const Fields python = all.object("python");
    PythonFacts facts;
    facts.executable = python.text("executable");
    facts.version = python.version("version");
    facts.soabi = python.text("soabi");
    facts.free_threaded = python.flag("free_threaded");
    facts.debug = python.flag("debug");
    facts.site_packages = python.texts("site_packages");
    facts.numpy = python.version("numpy");
    out.python = facts;
  }
  if (all.has("torch")) {
    const Fields torch = all.object("torch");
    TorchFacts facts;
    facts.version = torch.text("version");
    facts.folder = torch.text("folder");
    facts.cuda_version = torch.text("cuda");
    facts.cxx_abi = abi_named(torch.text("cxx_abi"));
    facts.libraries = torch.texts("libraries");
    if (torch.has("preloaded")) facts.preloaded = torch.texts("preloaded");
    if (torch.has("preloaded_if_missing")) facts.preloaded_if_missing = torch.texts("preloaded_if_missing");
    out.torch = facts;
  }
}

}  // namespace

std::string export_environment(const Environment& target, const Files& files) {
  json out = {{"mica_target", kFormat},
              {"machine", target.machine},
              {"page_bytes", target.page_bytes ? json(std::to_string(target.page_bytes)) : json()},
              {"libc", target.libc},
              {"libc_version", version_json(target.libc_version)},
              {"libc_path", target.libc_path},
              {"libstdcxx_path", target.libstdcxx_path},
              {"glibcxx", version_json(target.glibcxx)},
              {"cxxabi", version_json(target.cxxabi)},
              {"driver", version_json(target.driver)},
              {"driver_cuda", version_json(target.driver_cuda)},
              {"gpus_known", target.gpus_known},
              {"gpus", json::array()},
              {"loader",
               {{"library_path", target.loader.library_path},
                {"preload", target.loader.preload},
                {"tunables", target.loader.tunables},
                {"default_folders", target.loader.default_folders},
                {"hwcaps", target.loader.hwcaps},
                {"cache", target.loader.cache}}}};
  for (const Gpu& gpu : target.gpus)
    out["gpus"].push_back({{"name", gpu.name}, {"compute_capability", gpu.capability.text()}});
  if (target.python)
    out["python"] = {{"executable", target.python->executable}, {"version", version_json(target.python->version)},
                     {"soabi", target.python->soabi},           {"free_threaded", target.python->free_threaded},
                     {"debug", target.python->debug},           {"site_packages", target.python->site_packages}};
  if (target.python && target.python->numpy.known()) out["python"]["numpy"] = target.python->numpy.text();
  if (target.torch)
    out["torch"] = {{"version", target.torch->version},
                    {"folder", target.torch->folder},
                    {"cuda", target.torch->cuda_version},
                    {"cxx_abi", name_of(target.torch->cxx_abi)},
                    {"libraries", target.torch->libraries},
                    {"preloaded", target.torch->preloaded},
                    {"preloaded_if_missing", target.torch->preloaded_if_missing}};
  out["libraries"] = packed(write_library_list(collect(target, files)));
  return out.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

Environment parse_environment(std::string_view text, const std::string& name) {
  // NOTE: without a limit, a file of a million opening brackets would overflow the stack of a recursive reader; this
  // one keeps its own stack, and more depth than the format has is refused.
  const json parsed = json::parse(
      text,
      [](int depth, json::parse_event_t, json&) {
        if (depth > 16) throw ReadError("nested too deeply");
        return true;
      },
      false);
  if (parsed.is_discarded()) throw ReadError(name + ": not JSON");
  const Fields all(parsed, name);
  if (!parsed.contains("mica_target") || parsed["mica_target"] != kFormat)
    throw ReadError(name + ": mica_target is not 1: want a file that `mica doctor --export` wrote");
  Environment out;
  out.name = name;
  out.machine = all.text("machine");
  out.page_bytes = uint64_t(all.version("page_bytes").major_part());
  out.libc = all.text("libc");
  out.libc_version = all.version("libc_version");
  out.libc_path = all.text("libc_path");
  out.libstdcxx_path = all.text("libstdcxx_path");
  out.glibcxx = all.version("glibcxx");
  out.cxxabi = all.version("cxxabi");
  out.driver = all.version("driver");
  out.driver_cuda = all.version("driver_cuda");
  read_gpus(all, name, out);
  if (all.has("loader")) read_loader(all.object("loader"), out);
  read_python(all, out);
  const std::string list = all.text("libraries");
  out.libraries =
      listed_libraries(list.empty() ? ListedLibraries{} : read_library_list(unpacked(list, kMostListBytes)));
  return out;
}

Environment read_environment(const std::string& path) {
  return parse_environment(read_text_file(path, kMostFileBytes), path);
}

}  // namespace doctor
