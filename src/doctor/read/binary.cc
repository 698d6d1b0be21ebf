// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/binary.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

bool starts_as_elf(std::span<const uint8_t> head) {
  return head.size() >= SELFMAG && std::memcmp(head.data(), ELFMAG, SELFMAG) == 0;
}
bool starts_as_fatbin(std::span<const uint8_t> head) {
  uint64_t word = 0;
  if (head.size() < sizeof word) return false;
  std::memcpy(&word, head.data(), sizeof word);
  return word == kFatbinMagic;
}

bool is_gpu_section(const ElfSection& section) {
  return section.name == ".nv_fatbin" || section.name == "__nv_relfatbin";
}

// Other sections may carry containers as plain data; code and what is not loaded cannot.
bool may_hold_containers(const ElfSection& section) {
  return section.type == SHT_PROGBITS && (section.flags & SHF_ALLOC) && !(section.flags & SHF_EXECINSTR);
}

// Where to look for containers: in the sections made for them, else in all data, else everywhere.
std::vector<ByteRange> container_ranges(const ElfFile& elf, uint64_t size) {
  std::vector<ByteRange> own, data;
  for (const ElfSection& section : elf.sections) {
    if (section.type == SHT_NOBITS || section.offset > size) continue;
    const ByteRange range{section.offset, std::min(section.size, size - section.offset)};
    if (is_gpu_section(section)) own.push_back(range);
    if (may_hold_containers(section)) data.push_back(range);
  }
  if (!own.empty()) return own;
  return elf.sections.empty() ? std::vector<ByteRange>{{0, size}} : data;
}

void add_problems(const std::string& path, VerdictCode code, const std::vector<std::string>& texts,
                  std::vector<Verdict>& problems) {
  for (const std::string& text : texts)
    problems.push_back(make_verdict({.code = code,
                                     .subject = path,
                                     .message = text,
                                     .cause = "The file was cut off or changed after it was made.",
                                     .fix = "download or build it again"}));
}

// The parts of a binary that do not depend on where its bytes come from.
std::optional<Binary> read_headers(ByteSource& source, const std::string& path, std::vector<Verdict>& problems) {
  Binary out;
  out.path = path;
  out.size = source.size();
  try {
    out.elf = read_elf(source);
    if (out.elf.machine == EM_CUDA) out.cubin = read_cubin(source);
  } catch (const ReadError& e) {
    add_problems(path, "ELF_DAMAGED", {e.what()}, problems);
    return std::nullopt;
  }
  // Relocatable objects and debug files lack what the loader wants; that is no damage.
  add_problems(path, "ELF_DAMAGED", out.elf.problems, problems);
  return out;
}

}  // namespace

bool is_extension_name(std::string_view path) {
  const std::string name = base_name(path);
  return name.ends_with(".so") &&
         (name.ends_with(".abi3.so") || name.ends_with(".abi3t.so") || name.find(".cpython-3") != name.npos);
}

Verdict no_library(const std::string& path, uint64_t size) {
  const bool is_short = size < sizeof(Elf64_Ehdr);
  return make_verdict(
      {.code = "ELF_DAMAGED",
       .subject = printable(path),
       .message = "ImportError: " + printable(path) + (is_short ? ": file too short" : ": invalid ELF header"),
       .cause =
           is_short
               ? "The file has " + counted(size, "byte") + ": a copy or a download ended before it had begun."
               : "It is named like a compiled module and holds something else: a pointer of Git LFS, an error page.",
       .fix = "install the package again: python -m pip install --force-reinstall --no-deps --no-cache-dir PACKAGE",
       .evidence = {std::to_string(size) + " bytes"}});
}

// pybind11 compares this text with Py_GetVersion() before all else.
static std::set<int> minors_in(std::string_view text) {
  constexpr std::string_view kBegin("\0003.", 3);
  std::set<int> out;
  for (std::size_t at = text.find(kBegin); at != text.npos; at = text.find(kBegin, at + 1)) {
    int minor = 0;
    std::size_t end = at + kBegin.size();
    for (; end < text.size() && text[end] >= '0' && text[end] <= '9' && minor < 10; ++end)
      minor = minor * 10 + (text[end] - '0');
    if (end > at + kBegin.size() && end < text.size() && text[end] == '\0') out.insert(minor);
  }
  return out;
}

void NumpyProbe::look(std::string_view text) {
  const auto find = [&](std::string_view word) -> const char* {
    return static_cast<const char*>(memmem(text.data(), text.size(), word.data(), word.size()));
  };
  has_old_ = has_old_ || find("numpy.core._multiarray_umath");
  has_new_ = has_new_ || find("numpy._core");
  found_.raises = found_.raises || find("multiarray failed to import");
  has_old_words_ = has_old_words_ || find("numpy.core.multiarray failed to import");
  has_types_ = has_types_ || find(std::string_view("\0flatiter\0", 10));
  found_.by_pybind11 = found_.by_pybind11 || find("__pybind11_");
  found_.checks_types = found_.checks_types || find("size changed, may indicate binary");
  asks_for_python_ = asks_for_python_ || find("module was compiled for Python ");
  minors_.merge(minors_in(text));
  // "module was compiled against NumPy C-API version 0x%x (NumPy 1.23) but the running NumPy has ..."
  constexpr std::string_view kBut = ") but the running NumPy";
  if (const char* end = found_.least.known() ? nullptr : find(kBut)) {
    const std::string_view before = text.substr(0, std::size_t(end - text.data()));
    const std::size_t open = before.rfind('(');
    if (open != before.npos && before.substr(open).starts_with("(NumPy ") && before.size() - open < 20)
      found_.least = parse_version(before.substr(open + 7));
  }
}

void NumpyProbe::feed(std::span<const uint8_t> piece) {
  // A text may lie across two pieces.
  constexpr std::size_t kLongest = 64;
  const std::string_view text(reinterpret_cast<const char*>(piece.data()), piece.size());
  tail_ += text.substr(0, kLongest);
  look(tail_);
  look(text);
  tail_ = text.size() >= kLongest ? std::string(text.substr(text.size() - kLongest))
                                  : tail_.substr(tail_.size() > kLongest ? tail_.size() - kLongest : 0);
}

NumpyUse NumpyProbe::use() const {
  NumpyUse out = found_;
  // A module of Cython's that only names NumPy's types imports no interface; its words are those of NumPy's own files.
  out.checks_types = out.checks_types && has_types_;
  out.old_only = (has_old_ || (out.checks_types && has_old_words_)) && !has_new_;
  if (!has_old_ && !has_new_) out.least = {};
  return out;
}

Version NumpyProbe::python() const {
  return asks_for_python_ && minors_.size() == 1 ? Version{{3, *minors_.begin()}} : Version();
}

// Libraries of that size are GPU code, and have nothing to do with NumPy; modules may (catboost/_catboost.so).
static bool may_use_numpy(std::string_view path, uint64_t size) {
  constexpr uint64_t kLarge = 64 << 20;
  return size < kLarge || !base_name(path).starts_with("lib") || path.find("python") != path.npos;
}

void BinaryProbe::feed(std::span<const uint8_t> piece) {
  if (kind_ == Kind::kElf && may_use_numpy(path_, size_)) numpy_.feed(piece);
  if (kind_ == Kind::kUnknown) {
    head_.insert(head_.end(), piece.begin(), piece.end());
    if (head_.size() < 8 && head_.size() < size_) return;
    kind_ = starts_as_elf(head_) ? Kind::kElf : (starts_as_fatbin(head_) ? Kind::kFatbin : Kind::kOther);
    if (kind_ != Kind::kOther) scanner_.feed(head_);
    if (kind_ == Kind::kElf && may_use_numpy(path_, size_)) numpy_.feed(head_);
    head_ = {};
  } else if (kind_ != Kind::kOther) {
    scanner_.feed(piece);
  }
}

std::optional<Binary> BinaryProbe::finish(ByteSource& source, std::vector<Verdict>& problems) {
  if (kind_ != Kind::kElf && kind_ != Kind::kFatbin) return std::nullopt;
  std::vector<std::string> damage;
  std::vector<FatbinContainer> found = scanner_.finish(&damage);
  std::optional<Binary> out;
  if (kind_ == Kind::kFatbin) {
    out.emplace();
    out->path = path_;
    out->size = size_;
    out->bare_fatbin = true;
    out->fatbins = std::move(found);
  } else {
    out = read_headers(source, path_, problems);
    if (!out || out->cubin) return out;
    out->numpy = numpy_.use();
    out->pybind11_python = numpy_.python();
    const std::vector<ByteRange> ranges = container_ranges(out->elf, size_);
    for (FatbinContainer& container : found)
      if (std::any_of(ranges.begin(), ranges.end(),
                      [&](ByteRange r) { return container.offset >= r.offset && container.offset < r.end(); }))
        out->fatbins.push_back(std::move(container));
    if (out->fatbins.empty()) damage.clear();
  }
  add_problems(path_, "GPU_CODE_DAMAGED", damage, problems);
  return out;
}

// Of a file on disk: its data is looked through, if it has to do with Python.
static NumpyProbe probed(ByteSource& source, const ElfFile& elf) {
  if (std::none_of(elf.symbols.begin(), elf.symbols.end(),
                   [](const ElfSymbol& s) { return s.name.starts_with("Py") || s.name.starts_with("_Py"); }))
    return {};
  NumpyProbe probe;
  std::vector<uint8_t> piece;
  constexpr uint64_t kPiece = 1 << 20;
  std::vector<ByteRange> ranges;
  for (const ElfSection& section : elf.sections)
    if (may_hold_containers(section) && !is_gpu_section(section) && section.offset <= source.size())
      ranges.push_back({section.offset, std::min(section.size, source.size() - section.offset)});
  if (elf.sections.empty()) ranges.push_back({0, source.size()});
  for (const ByteRange& range : ranges)
    for (uint64_t at = range.offset; at < range.end(); at += kPiece) {
      piece.resize(std::min(kPiece, range.end() - at));
      if (!source.read(at, piece)) return {};
      probe.feed(piece);
    }
  return probe;
}

std::optional<Binary> read_binary(ByteSource& source, const std::string& path, std::vector<Verdict>& problems) {
  uint8_t head[8] = {};
  const std::size_t have = std::min<uint64_t>(source.size(), sizeof head);
  if (!source.read(0, std::span(head, have))) return std::nullopt;
  std::vector<std::string> damage;
  std::optional<Binary> out;
  if (starts_as_fatbin({head, have})) {
    out.emplace();
    out->path = path;
    out->size = source.size();
    out->bare_fatbin = true;
    out->fatbins = read_fatbins(source, {0, source.size()}, &damage);
  } else if (starts_as_elf({head, have})) {
    out = read_headers(source, path, problems);
    if (!out || out->cubin) return out;
    const NumpyProbe probe = probed(source, out->elf);
    out->numpy = probe.use();
    out->pybind11_python = probe.python();
    for (const ByteRange& range : container_ranges(out->elf, source.size()))
      for (FatbinContainer& container : read_fatbins(source, range, &damage))
        out->fatbins.push_back(std::move(container));
    if (out->fatbins.empty()) damage.clear();
  }
  add_problems(path, "GPU_CODE_DAMAGED", damage, problems);
  return out;
}

std::optional<Binary> read_binary(const std::string& path, std::vector<Verdict>& problems) {
  FileSource source(path);
  return read_binary(source, path, problems);
}

}  // namespace doctor
