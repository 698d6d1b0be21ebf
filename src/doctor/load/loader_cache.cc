// SPDX-License-Identifier: Apache-2.0
// /etc/ld.so.cache: the list by which the dynamic loader finds libraries, as glibc writes it since 2.2.
#include "doctor/load/loader_cache.h"

#include <cstring>

namespace doctor {
namespace {

constexpr char kMagic[] = "glibc-ld.so.cache1.1";  // 20 bytes, no terminator in the file
constexpr char kOldMagic[] = "ld.so-1.7.0";        // an older list may stand before it
constexpr uint64_t kHeaderBytes = 48, kEntryBytes = 24, kOldHeaderBytes = 16, kOldEntryBytes = 12;
// Of an entry below glibc-hwcaps, whose folder has a name; older entries for some CPUs alone have bits instead.
constexpr uint32_t kNamedHwcap = 1u << 30;
constexpr uint64_t kMostBytes = 64 << 20, kMostEntries = 1'000'000;

// The kind of library that a machine's loader takes: the low byte is ELF for libc6, the next the machine.
uint32_t flags_of(const std::string& machine) {
  if (machine == "x86_64") return 0x0303;
  if (machine == "aarch64") return 0x0a03;
  if (machine == "ppc64le") return 0x0503;
  if (machine == "s390x") return 0x0403;
  if (machine == "riscv64") return 0x1003;
  if (machine == "i686") return 0x0003;
  if (machine == "armv7l") return 0x0903;
  return 0;
}

class Bytes {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}
  bool has(uint64_t offset, uint64_t size) const { return offset <= bytes_.size() && size <= bytes_.size() - offset; }
  uint32_t u32(uint64_t offset) const {
    uint32_t value = 0;
    if (has(offset, 4)) std::memcpy(&value, bytes_.data() + offset, 4);
    return value;
  }
  bool is(uint64_t offset, const char* text) const {
    return has(offset, std::strlen(text)) && bytes_.compare(offset, std::strlen(text), text) == 0;
  }
  // A string with its terminator inside the file, of at most 4096 characters; false if it is none.
  bool string(uint64_t offset, std::string& out) const {
    if (offset >= bytes_.size()) return false;
    const std::size_t end = bytes_.find('\0', offset);
    if (end == bytes_.npos || end - offset > 4096) return false;
    out = bytes_.substr(offset, end - offset);
    return !out.empty();
  }

 private:
  std::string bytes_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> read_loader_cache(ByteSource& source, const std::string& machine,
                                                                   std::vector<std::string>* problems) {
  std::vector<std::pair<std::string, std::string>> entries;
  const auto complain = [&](const std::string& text) {
    if (problems) problems->push_back("ld.so.cache: " + text);
    return entries;
  };
  if (source.size() > kMostBytes) return complain("larger than 64 MiB");
  std::string content(source.size(), '\0');
  if (!source.read(0, {reinterpret_cast<uint8_t*>(content.data()), content.size()})) return complain("cannot be read");
  const Bytes bytes(std::move(content));
  uint64_t base = 0;  // string offsets count from here
  if (bytes.is(0, kOldMagic)) {
    base = kOldHeaderBytes + uint64_t(bytes.u32(12)) * kOldEntryBytes;
    base = (base + 7) / 8 * 8;
  }
  if (!bytes.is(base, kMagic)) return complain("not in a known format");
  const uint64_t count = bytes.u32(base + 20);
  if (count > kMostEntries || !bytes.has(base + kHeaderBytes, count * kEntryBytes))
    return complain("cut off: " + std::to_string(count) + " entries do not fit into it");
  const uint32_t wanted = flags_of(machine);
  std::vector<std::pair<std::string, std::string>> for_newer;
  std::size_t bad = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = base + kHeaderBytes + i * kEntryBytes;
    const uint32_t hwcap_low = bytes.u32(at + 16), hwcap_high = bytes.u32(at + 20);
    const bool is_by_name = (hwcap_high & kNamedHwcap) != 0;
    if ((wanted && (bytes.u32(at) & 0xffff) != wanted) || (!is_by_name && (hwcap_low || hwcap_high))) continue;
    std::string name, path;
    if (bytes.string(base + bytes.u32(at + 4), name) && bytes.string(base + bytes.u32(at + 8), path)) {
      (is_by_name ? for_newer : entries).emplace_back(std::move(name), std::move(path));
    } else {
      ++bad;
    }
  }
  entries.insert(entries.end(), for_newer.begin(), for_newer.end());
  if (bad) complain(std::to_string(bad) + " entries point outside of the file");
  return entries;
}

}  // namespace doctor
