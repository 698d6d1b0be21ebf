// SPDX-License-Identifier: Apache-2.0
// Fields of ELF structures in either byte order and either class, by the offsets that <elf.h> gives.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace doctor {

struct ElfFormat {
  bool is_64 = true, little_endian = true;
};

// One structure inside bytes that are known to hold it.
class ElfFields {
 public:
  ElfFields(std::span<const uint8_t> bytes, ElfFormat format) : bytes_(bytes), format_(format) {}

  uint64_t read(std::size_t offset, std::size_t size) const {
    uint64_t value = 0;
    if (offset > bytes_.size() || size > bytes_.size() - offset) return 0;
    for (std::size_t i = 0; i < size; ++i)
      value |= uint64_t(bytes_[offset + i]) << (8 * (format_.little_endian ? i : size - 1 - i));
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
  ElfFormat format_;
};

// The field of a structure that exists as Elf32_<type> and Elf64_<type>.
#define MICA_ELF_FIELD(fields, format, type, field)                                                                  \
  ((format).is_64 ? (fields).read(offsetof(Elf64_##type, field), sizeof(static_cast<Elf64_##type*>(nullptr)->field)) \
                  : (fields).read(offsetof(Elf32_##type, field), sizeof(static_cast<Elf32_##type*>(nullptr)->field)))
#define MICA_ELF_SIZE(format, type) ((format).is_64 ? sizeof(Elf64_##type) : sizeof(Elf32_##type))

}  // namespace doctor
