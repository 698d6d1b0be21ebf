// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/loader.h"

#include <elf.h>

#include <algorithm>
#include <functional>
#include <set>

#include "doctor/load/hwcaps.h"
#include "doctor/load/library_store.h"
#include "doctor/load/tunables.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kMaxObjects = 5000, kMaxMissing = 50;
constexpr std::string_view kPackedMark = "GLIBC_ABI_DT_RELR";

bool loadable(const ElfFile& elf, const Environment& target) {
  return target.machine.empty() || machine_name(elf) == target.machine;
}

bool has_32_bits(const Environment& target) { return target.machine == "i686" || target.machine == "armv7l"; }

// Of 32 bits where the target has 64, or the other way round.
bool is_other_class(const ElfFile& elf, const Environment& target) {
  return !target.machine.empty() && elf.is_64 == has_32_bits(target);
}

// What glibc's loader says of a header that names another operating system, and looks at before it looks at the
// machine.
const char* header_refusal(const ElfFile& elf, const Environment& target) {
  const bool has_own_rules = target.machine == "armv7l";
  const bool is_looked_at = target.libc == "glibc" && !target.machine.empty() && !has_own_rules &&
                            !is_other_class(elf, target) && elf.little_endian == (target.machine != "s390x");
  if (!is_looked_at) return nullptr;
  return elf.osabi != ELFOSABI_SYSV && elf.osabi != ELFOSABI_GNU ? "ELF file OS ABI invalid"
         : elf.osabi == ELFOSABI_SYSV && elf.abi_version != 0    ? "ELF file ABI version invalid"
                                                                 : nullptr;
}

// What the loader says of a name under which it found files of other machines alone.
std::string not_for_here(const std::string& name, bool is_other_class, const Environment& target) {
  const char* other = has_32_bits(target) ? ": wrong ELF class: ELFCLASS64" : ": wrong ELF class: ELFCLASS32";
  return name + (is_other_class ? other : ": cannot open shared object file: No such file or directory");
}

std::string folder_of_hwcap(const std::string& name) { return name.empty() ? "" : "glibc-hwcaps/" + name + "/"; }

bool has_runpath(const LoadedObject& object) { return object.elf->has_empty_runpath || !object.elf->runpath.empty(); }

bool goes_by(const LoadedObject& object, std::string_view name) {
  return std::find(object.names.begin(), object.names.end(), name) != object.names.end() || object.elf->soname == name;
}

// A mistake in a file that glibc's loader takes for one of its own: it writes a line and ends the process.
void stop_loader(const LoadedObject& object, std::string_view library, std::string_view version, const char* line,
                 Resolution& failure) {
  failure.failure = LoadFailure::kLoaderStops;
  failure.object = object.path;
  failure.object_elf = object.elf;
  failure.library = library;
  failure.version = version;
  failure.message = std::string("Inconsistency detected by ld.so: ") + line + " failed!";
}

}  // namespace

Process::Process(const Environment& target, const std::vector<PlacedFile>& beside) : target_(target) {
  for (const PlacedFile& file : beside) beside_[file.path] = file.elf;
}

const ElfFile* Process::find(const std::string& path) {
  const auto found = beside_.find(path);
  if (found != beside_.end()) return found->second;
  if (!target_.libraries) return nullptr;
  // "$ORIGIN/../x" beside a file of a wheel: the same without "..".
  const auto real = beside_.find(target_.libraries->canonical(path));
  return real != beside_.end() ? real->second : target_.libraries->find(path);
}

std::string Process::refusal(const std::string& path) {
  if (find(path)) return {};
  if (beside_.count(path) || (target_.libraries && beside_.count(target_.libraries->canonical(path))))
    return "file too short";
  return target_.libraries ? target_.libraries->refusal(path) : "";
}

// "lib64", "lib/x86_64-linux-gnu": where the C library lies below / or /usr; empty: not known.
std::string Process::lib_folder() {
  const LoadedObject* libc = already_loaded("libc.so.6");
  std::string out = libc ? folder_name(libc->path) : "";
  for (const std::string_view above : {"/usr", "/"})
    if (out.starts_with(above)) out.erase(0, above.size());
  return out.starts_with("lib") && out.find('$') == out.npos ? out : "";
}

// Folders of RPATH, RUNPATH: separated by colons. $ORIGIN is the folder of the path by which a library was opened, also
// where that is a link to a file elsewhere; of the program, the folder of the file itself. $LIB is what a distribution
// calls the folder of its C library.
std::vector<std::string> Process::expand(std::string_view list, const LoadedObject& object) {
  std::vector<std::string> out;
  if (list.empty()) return out;
  const bool is_program = !objects_.empty() && &object == &objects_.front() && target_.libraries;
  const std::string origin = folder_name(is_program ? target_.libraries->canonical(object.path) : object.path);
  const std::string lib = list.find("LIB") != list.npos ? lib_folder() : "";
  const std::pair<std::string, std::string> names[] = {
      {"$ORIGIN", origin}, {"${ORIGIN}", origin}, {"$LIB", lib}, {"${LIB}", lib}};
  for (std::string folder : split(list, ':')) {
    for (const auto& [name, value] : names)
      for (std::size_t at; !value.empty() && (at = folder.find(name)) != folder.npos && folder.size() < 65536;)
        folder.replace(at, name.size(), value);
    // $PLATFORM differs between processors; nobody ships wheels with it.
    if (folder.find('$') != folder.npos) continue;
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    if (!folder.empty()) out.push_back(folder);
  }
  return out;
}

LoadedObject* Process::loaded_as(const std::string& path) {
  const std::string real = target_.libraries ? target_.libraries->canonical(path) : path;
  for (LoadedObject& object : objects_)
    if (object.path == path || (target_.libraries && target_.libraries->canonical(object.path) == real)) return &object;
  return nullptr;
}

LoadedObject* Process::already_loaded(const std::string& name) {
  for (LoadedObject& object : objects_)
    if (goes_by(object, name)) return &object;
  return nullptr;
}

// Of a folder that libraries are looked for in, what is looked into, in this order: copies for newer CPUs, the folder.
std::vector<std::string> Process::subfolders() const {
  std::vector<std::string> out;
  const bool knows_none = target_.libc_version.known() && target_.libc_version < Version{{2, 33}};
  if (target_.libc == "glibc" && !knows_none)
    for (const std::string& name : target_.loader.hwcaps) out.push_back(folder_of_hwcap(name));
  out.emplace_back();
  return out;
}

Process::Search Process::search(const std::string& name, const LoadedObject& loader) {
  Search out;
  const auto try_path = [&](const std::string& path) {
    const ElfFile* elf = find(path);
    if (!elf) out.refusal = refusal(path);
    if (const char* refused = elf ? header_refusal(*elf, target_) : nullptr) out.refusal = refused;
    // A file for another machine is passed over; one that is none ends the search.
    out.is_other_class |= elf && is_other_class(*elf, target_);
    if (out.refusal.empty() && (!elf || !loadable(*elf, target_))) return false;
    out.path = path;
    out.elf = elf;
    return true;
  };
  const auto try_folders = [&](const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) {
      for (const std::string& below : subfolders())
        if (try_path(folder + (folder.ends_with("/") ? "" : "/") + below + name)) return true;
      if (std::find(out.folders.begin(), out.folders.end(), folder) == out.folders.end()) out.folders.push_back(folder);
    }
    return false;
  };
  if (name.find('/') != name.npos) {
    try_path(name);
    return out;
  }
  // RPATH of the object and of those that loaded it, unless the object has a RUNPATH.
  if (!has_runpath(loader)) {
    const LoadedObject* last = nullptr;
    for (const LoadedObject* l = &loader; l; last = l, l = l->loader)
      if (!has_runpath(*l) && try_folders(expand(l->elf->rpath, *l))) return out;
    // The program's own counts for everyone.
    if (!objects_.empty() && last != &objects_.front() && !has_runpath(objects_.front()) &&
        try_folders(expand(objects_.front().elf->rpath, objects_.front())))
      return out;
  }
  if (try_folders(target_.loader.library_path)) return out;
  if (try_folders(expand(loader.elf->runpath, loader))) return out;
  const auto& defaults = target_.loader.default_folders;
  const auto is_shunned = [&](const std::string& path) {
    return loader.elf->shuns_defaults && std::any_of(defaults.begin(), defaults.end(), [&](const std::string& folder) {
             return path.starts_with(folder + "/");
           });
  };
  for (const std::string& below : subfolders())
    for (const auto& [soname, path] : target_.loader.cache)
      if (soname == name && folder_of_hwcap(hwcap_of_path(path)) == below && !is_shunned(path) && try_path(path))
        return out;
  if (loader.elf->shuns_defaults) return out;
  // Which of these the loader has built in differs: what lies there for other machines says nothing.
  const bool was_other_class = out.is_other_class;
  try_folders(defaults);
  out.is_other_class = was_other_class;
  return out;
}

// Parts can be mapped where their places in the file and in memory differ by whole pages: what was linked for pages of
// 4 KiB, or edited by a tool that thinks so, is refused by a kernel that has 64 KiB.
const char* Process::layout_refusal(const ElfFile& elf) const {
  if (target_.libc != "glibc" || target_.page_bytes == 0) return nullptr;
  const uint64_t within_page = target_.page_bytes - 1;
  if (target_.libc_version.known() && target_.libc_version < Version{{2, 35}})
    return elf.layout.alignments & within_page ? "ELF load command alignment not page-aligned"
           : elf.layout.is_skewed              ? "ELF load command address/offset not properly aligned"
                                               : nullptr;
  return elf.layout.distances & within_page ? "ELF load command address/offset not page-aligned" : nullptr;
}

// What is no shared library is refused, by its path where its header shows it, else by the name that was asked for.
bool Process::check_kind(const std::string& name, const LoadedObject& object, Resolution& failure) const {
  const ElfFile& elf = *object.elf;
  // The process itself is a program, and is there before anything is opened.
  const bool is_process = !is_running_ && &object == &objects_.front();
  const bool is_too_late = elf.refuses_dlopen && is_running_ && target_.libc == "glibc";
  const bool is_other = elf.type != ET_DYN && elf.type != ET_EXEC;
  const char* layout = layout_refusal(elf);
  const char* refusal = is_other              ? "only ET_DYN and ET_EXEC can be loaded"
                        : is_process          ? nullptr
                        : layout              ? layout
                        : !elf.has_segments   ? "object file has no loadable segments"
                        : elf.type == ET_EXEC ? "cannot dynamically load executable"
                        : !elf.has_dynamic    ? "object file has no dynamic section"
                        : elf.is_program      ? "cannot dynamically load position-independent executable"
                        : is_too_late         ? "shared object cannot be dlopen()ed"
                                              : nullptr;
  if (!refusal) return true;
  failure.failure = LoadFailure::kNotShared;
  failure.library = object.path;
  failure.message = (is_other || name == object.path ? object.path : printable(name)) + ": " + refusal;
  return false;
}

// glibc from 2.41 on makes no stack executable for what is opened later; the name is the one that was asked for.
bool Process::check_stack(const std::string& name, const LoadedObject& object, Resolution& failure) const {
  const bool gives_none = target_.libc == "glibc" && target_.libc_version >= Version{{2, 41}};
  if (!gives_none || !is_running_ || has_executable_stack_ || !object.elf->executable_stack) return true;
  failure.failure = LoadFailure::kExecutableStack;
  failure.object_elf = object.elf;
  failure.library = object.path;
  failure.message = printable(name) + ": cannot enable executable stack as shared object requires: Invalid argument";
  return false;
}

// Every version that an object asks of a library must be defined there.
bool Process::check_versions(const LoadedObject& object, Resolution& failure) {
  for (const VersionNeed& need : object.elf->version_needs) {
    const LoadedObject* library = already_loaded(std::string(need.library));
    if (!library && has_program_ && target_.libc == "glibc") {
      stop_loader(object, need.library, need.version,
                  "dl-version.c: _dl_check_map_versions: Assertion `needed != NULL'", failure);
      return false;
    }
    if (!library || need.weak) continue;
    const auto& defined = library->elf->version_definitions;
    if (std::find(defined.begin(), defined.end(), need.version) != defined.end()) continue;
    // A library without any versions may serve unversioned: check_answer.
    if (defined.empty()) continue;
    failure.failure = LoadFailure::kVersionMissing;
    failure.object = object.path;
    failure.object_elf = object.elf;
    failure.library = library->path;
    failure.version = need.version;
    failure.message =
        library->path + ": version `" + printable(need.version) + "' not found (required by " + object.path + ")";
    return false;
  }
  return true;
}

// By its version, or by the mark itself where a distribution brought the change to an older one.
bool Process::knows_packed() {
  if (!target_.libc_version.known() || target_.libc_version >= Version{{2, 36}}) return true;
  const LoadedObject* libc = already_loaded("libc.so.6");
  return libc && std::count(libc->elf->version_definitions.begin(), libc->elf->version_definitions.end(), kPackedMark);
}

// Packed relative relocations (DT_RELR): glibc from 2.36 on wants them marked by a version of libc that is asked for;
// one before that does not know them, and leaves all addresses as they are in the file.
bool Process::check_packed(const LoadedObject& object, Resolution& failure) {
  const ElfFile& elf = *object.elf;
  if (!elf.packed_relocations || target_.libc != "glibc") return true;
  const bool is_unknown = !knows_packed();
  const bool asks_libc =
      !elf.version_needs.empty() && std::any_of(elf.needed.begin(), elf.needed.end(),
                                                [](std::string_view name) { return name.starts_with("libc.so."); });
  const bool is_marked = std::any_of(elf.version_needs.begin(), elf.version_needs.end(),
                                     [](const VersionNeed& need) { return need.version == kPackedMark; });
  if (is_unknown ? *elf.packed_relocations == 0 : !asks_libc || is_marked) return true;
  failure.failure = is_unknown ? LoadFailure::kNotRelocated : LoadFailure::kPackedUnmarked;
  failure.object = object.path;
  failure.object_elf = object.elf;
  failure.message = object.path + (is_unknown ? ": its addresses stay as they are in the file (DT_RELR)"
                                              : ": DT_RELR without GLIBC_ABI_DT_RELR dependency");
  return false;
}

// glibc from 2.33 on refuses what asks for newer processors in its header. Of one before x86-64-v2 nothing is known.
bool Process::check_cpu(const LoadedObject& object, Resolution& failure) const {
  const bool is_old = target_.libc_version.known() && target_.libc_version < Version{{2, 33}};
  if (target_.libc != "glibc" || is_old || target_.loader.hwcaps.empty() || object.elf->cpu_level < 2) return true;
  const std::string wanted = "x86-64-v" + std::to_string(object.elf->cpu_level);
  const auto& here = target_.loader.hwcaps;
  if (std::find(here.begin(), here.end(), wanted) != here.end()) return true;
  failure.failure = LoadFailure::kCpuLevel;
  failure.object = object.path;
  failure.object_elf = object.elf;
  failure.version = wanted;
  failure.message = object.path + ": CPU ISA level is lower than required";
  return false;
}

Process::Opened Process::open(const std::string& path, const ElfFile* elf) {
  Opened out;
  Resolution& failure = out.failure;
  failure.object = path;
  failure.object_elf = elf;
  if (const char* refused = elf ? header_refusal(*elf, target_) : nullptr) {
    failure.failure = LoadFailure::kDamaged;
    failure.library = path;
    failure.message = path + ": " + refused;
    return out;
  }
  if (!elf || !loadable(*elf, target_)) {
    failure.failure = LoadFailure::kMachine;
    failure.message = not_for_here(path, elf && is_other_class(*elf, target_), target_);
    return out;
  }
  LoadedObject* root = loaded_as(path);
  if (!root) {
    root = &objects_.emplace_back();
    root->path = path;
    root->elf = elf;
    out.fresh.push_back(root);
    if (!check_kind(path, *root, failure) || !check_stack(path, *root, failure)) return out;
  }
  std::set<LoadedObject*> seen = {root};
  out.scope.push_back(root);
  for (std::size_t i = 0; i < out.scope.size() && objects_.size() < kMaxObjects; ++i) {
    LoadedObject& object = *out.scope[i];
    const bool is_fresh = object.needed.empty();
    for (const std::string_view needed : object.elf->needed) {
      std::string name(needed);
      // "$ORIGIN/libdep.so" of a library that was called so when it was linked.
      if (name.find('$') != name.npos)
        if (const std::vector<std::string> expanded = expand(name, object); !expanded.empty()) name = expanded[0];
      LoadedObject* found = already_loaded(name);
      if (!found) {
        const Search where = search(name, object);
        if (!where.refusal.empty()) {
          failure.failure = LoadFailure::kDamaged;
          failure.object = object.path;
          failure.object_elf = object.elf;
          failure.library = where.path;
          failure.message = printable(where.path) + ": " + where.refusal;
          return out;
        }
        if (!where.elf) {
          failure.failure = LoadFailure::kNeededMissing;
          failure.object = object.path;
          failure.object_elf = object.elf;
          failure.library = name;
          failure.searched = where.folders;
          failure.message = not_for_here(printable(name), where.is_other_class, target_);
          // Where no folder counts, nothing was tried that could have failed for a reason.
          if (object.elf->shuns_defaults && where.folders.empty())
            failure.message = printable(name) + ": cannot open shared object file";
          return out;
        }
        found = loaded_as(where.path);
        if (!found) {
          found = &objects_.emplace_back();
          found->path = where.path;
          found->elf = where.elf;
          found->loader = &object;
          out.fresh.push_back(found);
          if (!check_kind(name, *found, failure) || !check_stack(name, *found, failure)) return out;
          failure.loaded.emplace_back(name, where.path);
        }
        found->names.push_back(name);
      }
      if (is_fresh) object.needed.push_back(found);
      if (seen.insert(found).second) out.scope.push_back(found);
    }
  }
  for (LoadedObject* object : out.fresh)
    if (!check_versions(*object, failure) || !check_packed(*object, failure)) return out;
  for (LoadedObject* object : out.fresh)
    if (!check_cpu(*object, failure)) return out;
  return out;
}

void Process::try_open(const std::string& path, const ElfFile* elf) {
  const Mark before = mark();
  Opened opened = open(path, elf);
  if (opened.failure.failure == LoadFailure::kNone) relocate(opened, true);
  if (opened.failure.failure != LoadFailure::kNone) roll_back(before);
}

Process::Mark Process::mark() const {
  Mark out{objects_.size(), {}, block_};
  for (const LoadedObject& object : objects_) out.names.push_back(object.names.size());
  return out;
}

void Process::roll_back(const Mark& mark) {
  objects_.resize(mark.objects);
  block_ = mark.block;
  for (std::size_t i = 0; i < mark.objects; ++i) objects_[i].names.resize(mark.names[i]);
}

LoadedObject* Process::first_found(const std::string& name) {
  if (objects_.empty()) return nullptr;
  const Search where = search(name, objects_.front());
  if (!where.elf) return nullptr;
  Opened opened = open(where.path, where.elf);
  if (opened.failure.failure != LoadFailure::kNone || opened.scope.empty()) return nullptr;
  make_global(opened.scope);
  relocate(opened, false);
  return opened.scope.front();
}

void Process::begin() {
  is_running_ = true;
  has_program_ = !objects_.empty();
  for (LoadedObject& object : objects_) {
    block_.add(object.elf->thread_data);
    object.is_in_static_block = true;
  }
  block_.begin(target_);
  // Each of these can have asked for such a stack, and so can the user (since 2.42, and in later builds of 2.41).
  has_executable_stack_ =
      tunable(target_.loader.tunables, "glibc.rtld.execstack") == uint64_t(2) ||
      std::any_of(objects_.begin(), objects_.end(), [](const LoadedObject& o) { return o.elf->executable_stack; });
}

void Process::make_global(const std::vector<LoadedObject*>& scope) {
  for (LoadedObject* object : scope)
    if (std::find(global_.begin(), global_.end(), object) == global_.end()) global_.push_back(object);
}

const std::unordered_multimap<std::string_view, const ElfSymbol*>& Process::exports(const ElfFile* elf) {
  auto [it, is_new] = exports_.try_emplace(elf);
  if (is_new) {
    it->second.reserve(elf->symbols.size());
    for (const ElfSymbol& symbol : elf->symbols) {
      const bool binds = symbol.binding == STB_GLOBAL || symbol.binding == STB_WEAK || symbol.binding == STB_GNU_UNIQUE;
      const bool hidden = symbol.visibility == STV_HIDDEN || symbol.visibility == STV_INTERNAL;
      if (symbol.defined && binds && !hidden) it->second.emplace(symbol.name, &symbol);
    }
  }
  return it->second;
}

bool Process::defines(const LoadedObject& object, const ElfSymbol& wanted) {
  const auto [begin, end] = exports(object.elf).equal_range(wanted.name);
  const auto& versions = object.elf->version_definitions;
  const std::string_view first_version = versions.empty() ? std::string_view() : versions.front();
  for (auto it = begin; it != end; ++it) {
    const ElfSymbol& found = *it->second;
    if (wanted.version.empty()) {
      // Without a version the default one serves, and so does the library's first.
      if (!found.hidden_version || found.version.empty() || found.version == first_version) return true;
    } else if (found.version.empty() || found.version == wanted.version) {
      return true;
    }
  }
  return false;
}

LoadedObject* Process::definer(const ElfSymbol& symbol, const std::vector<LoadedObject*>& scope) {
  for (const std::vector<LoadedObject*>* list : {&std::as_const(global_), &scope})
    for (LoadedObject* object : *list)
      if (defines(*object, symbol)) return object;
  return nullptr;
}

// glibc before 2.41 holds it for impossible that the library which a version is asked of has no table of versions. One
// that defines no version and has the table, because it asks others for theirs, serves without a word.
bool Process::check_answer(const LoadedObject& asks, const ElfSymbol& symbol, const LoadedObject& answers,
                           Resolution& failure) const {
  const bool is_strict =
      target_.libc == "glibc" && target_.libc_version.known() && target_.libc_version < Version{{2, 41}};
  if (!is_strict || symbol.version.empty() || answers.elf->has_symbol_versions ||
      !goes_by(answers, symbol.version_library))
    return true;
  stop_loader(
      asks, answers.path, symbol.version,
      "dl-lookup.c: check_match: Assertion `version->filename == NULL || ! _dl_name_match_p (version->filename, "
      "map)'",
      failure);
  return false;
}

// The data of whoever defines what is asked for moves into the block, if it is not there.
bool Process::place_thread_data(LoadedObject& object, const std::vector<LoadedObject*>& scope, Resolution& failure) {
  for (const ThreadUse& use : object.elf->thread_uses) {
    LoadedObject* owner = use.symbol == ThreadUse::kOwn ? &object : definer(object.elf->symbols[use.symbol], scope);
    if (!owner || owner->is_in_static_block) continue;
    const bool is_placed = block_.take(owner->elf->thread_data, use.can_do_without);
    owner->is_in_static_block |= is_placed;
    if (is_placed || use.can_do_without) continue;
    failure.failure = LoadFailure::kStaticBlock;
    failure.object = object.path;
    failure.object_elf = object.elf;
    failure.library = owner->path;
    failure.message = owner->path + ": cannot allocate memory in static TLS block";
    return false;
  }
  return true;
}

void Process::relocate(Opened& opened, bool report) {
  // Dependencies first: from the last loaded to the first, each after what it needs.
  std::vector<LoadedObject*> order;
  std::set<LoadedObject*> seen;
  const std::function<void(LoadedObject*)> visit = [&](LoadedObject* object) {
    if (!seen.insert(object).second) return;
    for (LoadedObject* needed : object->needed) visit(needed);
    order.push_back(object);
  };
  for (auto it = opened.scope.rbegin(); it != opened.scope.rend(); ++it) visit(*it);
  for (LoadedObject* object : order) {
    if (object->relocated) continue;
    object->relocated = true;
    Resolution ignored;
    Resolution& failure = report ? opened.failure : ignored;
    // What is there from the beginning has its place: begin().
    const bool has_place = !is_running_ || place_thread_data(*object, opened.scope, failure);
    if (!report) continue;
    if (!has_place) return;
    for (const uint32_t index : object->elf->relocated) {
      const ElfSymbol& symbol = object->elf->symbols[index];
      if (symbol.binding == STB_LOCAL || symbol.defined) continue;
      const LoadedObject* answers = definer(symbol, opened.scope);
      if (answers && failure.missing.empty() && !check_answer(*object, symbol, *answers, failure)) return;
      if (answers || symbol.weak()) continue;
      if (failure.missing.size() < kMaxMissing)
        failure.missing.push_back({printable(symbol.name, 4096), printable(symbol.version)});
    }
    if (failure.missing.empty()) continue;
    failure.failure = LoadFailure::kUndefinedSymbol;
    failure.object = object->path;
    failure.object_elf = object->elf;
    const MissingSymbol& first = failure.missing[0];
    failure.message = object->path + ": undefined symbol: " + first.name +
                      (first.version.empty() ? "" : ", version " + first.version);
    return;
  }
}

}  // namespace doctor
