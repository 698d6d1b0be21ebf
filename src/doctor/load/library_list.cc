// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/library_list.h"

#include <elf.h>

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// Lines: "library PATH", "link FROM TO", then for the library: "elf MACHINE TYPE", "soname", "rpath", "runpath",
// "needed", "version" with a name each, and "+KIND NAME VERSION" for an export. Names have no blanks.
constexpr std::size_t kMostLibraries = 20'000;

char kind_of(const ElfSymbol& symbol) {
  const bool hidden = symbol.hidden_version;
  if (symbol.type == STT_TLS) return hidden ? 'T' : 't';
  if (symbol.type == STT_OBJECT) return hidden ? 'O' : 'o';
  return hidden ? 'F' : 'f';
}

bool has_blank(std::string_view text) { return text.find_first_of(" \n") != text.npos; }

void write_one(const std::string& path, const ElfFile& elf, std::string& out) {
  const auto line = [&](const char* key, std::string_view value) {
    if (!value.empty() && value.find('\n') == value.npos) out.append(key).append(" ").append(value).append("\n");
  };
  line("library", path);
  line("elf", std::to_string(elf.machine) + " " + std::to_string(elf.type) + " " + (elf.is_64 ? "64" : "32"));
  line("soname", elf.soname);
  line("rpath", elf.rpath);
  line("runpath", elf.runpath);
  for (const std::string_view name : elf.needed) line("needed", name);
  for (const std::string_view name : elf.version_definitions) line("version", name);
  for (const ElfSymbol& symbol : elf.symbols) {
    const bool is_export = symbol.defined && symbol.binding != STB_LOCAL && symbol.visibility != STV_HIDDEN &&
                           symbol.visibility != STV_INTERNAL && !symbol.name.empty();
    if (!is_export || has_blank(symbol.name) || has_blank(symbol.version)) continue;
    out.append("+").append(1, kind_of(symbol)).append(" ").append(symbol.name);
    if (!symbol.version.empty()) out.append(" ").append(symbol.version);
    out.append("\n");
  }
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(std::make_shared<const std::string>(text)) {}

  ListedLibraries run() {
    std::string_view left = *text_;
    while (!left.empty()) {
      const std::size_t end = std::min(left.find('\n'), left.size());
      ++line_;
      read_line(left.substr(0, end));
      left.remove_prefix(std::min(left.size(), end + 1));
    }
    finish();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ReadError("libraries, line " + std::to_string(line_) + ": " + what);
  }

  void read_line(std::string_view line) {
    const std::size_t blank = line.find(' ');
    if (blank == line.npos) fail("want a word and a value");
    const std::string_view key = line.substr(0, blank), value = line.substr(blank + 1);
    if (key == "library") {
      finish();
      path_ = value;
      elf_ = std::make_shared<ElfFile>();
      elf_->strings = text_;
      elf_->has_dynamic = true;
      return;
    }
    if (key == "link") {
      const std::size_t middle = value.find(' ');
      if (middle == value.npos) fail("want two paths");
      out_.links.emplace(value.substr(0, middle), value.substr(middle + 1));
      return;
    }
    if (!elf_) fail("stands before the first library");
    if (key.size() == 2 && key[0] == '+') return read_symbol(key[1], value);
    if (key == "elf") {
      const std::vector<std::string> numbers = split(value, ' ');
      if (numbers.size() != 3) fail("want machine, type and 32 or 64");
      elf_->machine = uint16_t(std::atoi(numbers[0].c_str()));
      elf_->type = uint16_t(std::atoi(numbers[1].c_str()));
      elf_->is_64 = numbers[2] == "64";
    } else if (key == "soname") {
      elf_->soname = value;
    } else if (key == "rpath") {
      elf_->rpath = value;
    } else if (key == "runpath") {
      elf_->runpath = value;
    } else if (key == "needed") {
      elf_->needed.push_back(value);
    } else if (key == "version") {
      elf_->version_definitions.push_back(value);
    } else {
      fail("unknown word " + printable(key, 40));
    }
  }

  void read_symbol(char kind, std::string_view value) {
    ElfSymbol symbol;
    const std::size_t blank = value.find(' ');
    symbol.name = value.substr(0, blank);
    if (blank != value.npos) symbol.version = value.substr(blank + 1);
    symbol.defined = true;
    symbol.binding = STB_GLOBAL;
    symbol.hidden_version = kind >= 'A' && kind <= 'Z';
    symbol.type = kind == 't' || kind == 'T' ? STT_TLS : kind == 'o' || kind == 'O' ? STT_OBJECT : STT_FUNC;
    symbol.value = 1;
    elf_->symbols.push_back(symbol);
  }

  void finish() {
    if (elf_) out_.files.emplace(path_, elf_);
    if (out_.files.size() > kMostLibraries) fail("more than 20000 libraries");
    elf_.reset();
  }

  std::shared_ptr<const std::string> text_;  // the views of every ElfFile point into it
  std::size_t line_ = 0;
  std::string path_;
  std::shared_ptr<ElfFile> elf_;
  ListedLibraries out_;
};

class ListedStore : public LibraryStore {
 public:
  explicit ListedStore(ListedLibraries libraries) : libraries_(std::move(libraries)) {}
  const ElfFile* find(const std::string& path) override {
    const auto found = libraries_.files.find(canonical(path));
    return found == libraries_.files.end() ? nullptr : found->second.get();
  }
  std::string canonical(const std::string& path) override {
    const auto link = libraries_.links.find(path);
    return link == libraries_.links.end() ? path : link->second;
  }

 private:
  ListedLibraries libraries_;
};

}  // namespace

std::string write_library_list(const ListedLibraries& libraries) {
  std::string out;
  for (const auto& [from, to] : libraries.links)
    if (!has_blank(from) && !has_blank(to)) out += "link " + from + " " + to + "\n";
  for (const auto& [path, elf] : libraries.files) write_one(path, *elf, out);
  return out;
}

ListedLibraries read_library_list(std::string_view text) { return Reader(text).run(); }

std::unique_ptr<LibraryStore> listed_libraries(ListedLibraries libraries) {
  return std::make_unique<ListedStore>(std::move(libraries));
}

}  // namespace doctor
