// SPDX-License-Identifier: Apache-2.0
// A process as the loader sees it: loaded objects, where their libraries are looked for, who sees whose symbols.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "doctor/load/resolve.h"
#include "doctor/load/static_block.h"

namespace doctor {

struct LoadedObject {
  std::string path;  // as the loader names it in messages
  const ElfFile* elf = nullptr;
  std::vector<std::string> names;  // it was asked for by
  LoadedObject* loader = nullptr;  // who asked first
  std::vector<LoadedObject*> needed;
  bool relocated = false;
  bool is_in_static_block = false;  // its thread-local data
};

class Process {
 public:
  Process(const Environment& target, const std::vector<PlacedFile>& beside);

  // Loads an object with all it needs. A scope is the object and its needs, breadth first.
  struct Opened {
    Resolution failure;  // kNone if all is there
    std::vector<LoadedObject*> scope;
    std::vector<LoadedObject*> fresh;
  };
  Opened open(const std::string& path, const ElfFile* elf);
  // The same, and what cannot be loaded leaves no trace.
  void try_open(const std::string& path, const ElfFile* elf);

  // What was opened since then is closed again.
  struct Mark {
    std::size_t objects;
    std::vector<std::size_t> names;  // of each object
    StaticBlock block;
  };
  Mark mark() const;
  void roll_back(const Mark& mark);

  // A library by its name or path, as LD_PRELOAD gives it, seen by everyone; nullptr: the loader warns and goes on.
  LoadedObject* first_found(const std::string& name);

  // From now on the program runs: what is opened comes later than its own libraries and those of LD_PRELOAD.
  void begin();

  // Symbols of these objects are seen by everyone from now on.
  void make_global(const std::vector<LoadedObject*>& scope);
  // Binds every symbol of the fresh objects, dependencies first.
  void relocate(Opened& opened, bool report);

  // The file at a path of the target: of those beside, else of its libraries.
  const ElfFile* find(const std::string& path);
  // Why the loader refuses what lies there; empty: it does not, or nothing does.
  std::string refusal(const std::string& path);

 private:
  struct Search {
    std::string path;  // empty: not found
    const ElfFile* elf = nullptr;
    std::string refusal;          // of the file at `path`, at which the search ends
    bool is_other_class = false;  // a file of that name was passed over, which has 32 bits instead of 64
    std::vector<std::string> folders;
  };
  Search search(const std::string& name, const LoadedObject& loader);
  std::vector<std::string> subfolders() const;
  std::string lib_folder();
  std::vector<std::string> expand(std::string_view list, const LoadedObject& object);
  LoadedObject* already_loaded(const std::string& name);
  LoadedObject* loaded_as(const std::string& path);
  const char* layout_refusal(const ElfFile& elf) const;
  bool check_kind(const std::string& name, const LoadedObject& object, Resolution& failure) const;
  bool check_stack(const std::string& name, const LoadedObject& object, Resolution& failure) const;
  bool check_versions(const LoadedObject& object, Resolution& failure);
  bool check_packed(const LoadedObject& object, Resolution& failure);
  bool knows_packed();
  bool check_cpu(const LoadedObject& object, Resolution& failure) const;
  bool place_thread_data(LoadedObject& object, const std::vector<LoadedObject*>& scope, Resolution& failure);
  bool defines(const LoadedObject& object, const ElfSymbol& symbol);
  LoadedObject* definer(const ElfSymbol& symbol, const std::vector<LoadedObject*>& scope);
  bool check_answer(const LoadedObject& asks, const ElfSymbol& symbol, const LoadedObject& answers,
                    Resolution& failure) const;
  const std::unordered_multimap<std::string_view, const ElfSymbol*>& exports(const ElfFile* elf);

  const Environment& target_;
  std::map<std::string, const ElfFile*> beside_;
  std::deque<LoadedObject> objects_;
  std::vector<LoadedObject*> global_;
  StaticBlock block_;
  bool is_running_ = false, has_program_ = false, has_executable_stack_ = false;
  std::unordered_map<const ElfFile*, std::unordered_multimap<std::string_view, const ElfSymbol*>> exports_;
};

}  // namespace doctor
