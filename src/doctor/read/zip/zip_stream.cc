// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/zip/zip_stream.h"

#include <algorithm>
#include <array>

#if MICA_DOCTOR_HAS_ZLIB
#include <zlib.h>
#endif

namespace doctor {

#if MICA_DOCTOR_HAS_ZLIB

struct ZipStream::Inflater {
  z_stream stream = {};
  std::array<uint8_t, 64 << 10> in;

  Inflater() {
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw ReadError("no memory to inflate with");
  }
  explicit Inflater(Inflater& other) {
    if (inflateCopy(&stream, &other.stream) != Z_OK) throw ReadError("no memory to inflate with");
    // What was read and not used yet is read again by the copy.
    stream.avail_in = 0;
  }
  ~Inflater() { inflateEnd(&stream); }
  uint64_t unused() const { return stream.avail_in; }  // bytes that were read, and not unpacked yet
  Inflater& operator=(const Inflater&) = delete;
};

namespace {
uint32_t checksum(uint32_t crc, std::span<const uint8_t> bytes) {
  return uint32_t(crc32_z(crc, bytes.data(), bytes.size()));
}
}  // namespace

std::size_t ZipStream::expand(std::span<uint8_t> out) {
  if (!inflater_) inflater_ = std::make_unique<Inflater>();
  z_stream& stream = inflater_->stream;
  stream.next_out = out.data();
  stream.avail_out = uInt(out.size());
  bool at_end = false;
  while (stream.avail_out > 0 && !at_end) {
    if (stream.avail_in == 0) {
      const std::span<uint8_t> piece(inflater_->in.data(),
                                     std::min<uint64_t>(inflater_->in.size(), entry_->stored - read_));
      if (!source_->read(entry_->data_offset + read_, piece)) return fail("could not be read"), 0;
      read_ += piece.size();
      stream.next_in = piece.data();
      stream.avail_in = uInt(piece.size());
    }
    const int status = inflate(&stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) return fail("its compressed data are damaged"), 0;
    at_end = status == Z_STREAM_END;
  }
  const std::size_t got = out.size() - stream.avail_out;
  if (at_end && given_ + got < entry_->plain)
    fail("unpacks to " + std::to_string(given_ + got) + " bytes and declares " + std::to_string(entry_->plain));
  return got;
}

#else

// Without zlib, stored entries can be read; nothing checks them.
struct ZipStream::Inflater {
  uint64_t unused() const { return 0; }
};
namespace {
uint32_t checksum(uint32_t, std::span<const uint8_t>) { return 0; }
}  // namespace
std::size_t ZipStream::expand(std::span<uint8_t>) {
  fail("is compressed, and this build of mica has no zlib");
  return 0;
}

#endif

ZipStream::ZipStream(ByteSource& source, const ZipEntry& entry)
    : source_(&source), entry_(&entry), check_(MICA_DOCTOR_HAS_ZLIB) {
  if (!entry.readable) fail("cannot be read");
}
ZipStream::~ZipStream() = default;
ZipStream::ZipStream(ZipStream&&) noexcept = default;
ZipStream& ZipStream::operator=(ZipStream&&) noexcept = default;

ZipStream::ZipStream(const ZipStream& other, int)
    : source_(other.source_),
      entry_(other.entry_),
      read_(other.read_),
      given_(other.given_),
      check_(false),
      ended_(other.ended_),
      error_(other.error_) {
  if (!other.inflater_) return;
  read_ -= other.inflater_->unused();
  inflater_ = std::make_unique<Inflater>(*other.inflater_);
}
ZipStream ZipStream::fork() const { return ZipStream(*this, 0); }

void ZipStream::fail(std::string text) {
  error_ = std::move(text);
  ended_ = true;
}

std::size_t ZipStream::copy(std::span<uint8_t> out) {
  if (!source_->read(entry_->data_offset + given_, out)) return fail("could not be read"), 0;
  return out.size();
}

std::size_t ZipStream::next(std::span<uint8_t> out) {
  if (ended_) return 0;
  out = out.first(std::min<uint64_t>(out.size(), entry_->plain - given_));
  std::size_t got = 0;
  if (!out.empty()) got = entry_->method == 0 ? copy(out) : expand(out);
  if (check_) crc_ = checksum(crc_, out.first(got));
  given_ += got;
  if (given_ < entry_->plain || ended_) return got;
  ended_ = true;
  if (entry_->method != 0) {
    // The compressed data must end here too.
    uint8_t beyond = 0;
    if (expand({&beyond, 1}) > 0)
      error_ = "unpacks to more than the " + std::to_string(entry_->plain) + " bytes it declares";
  }
  if (error_.empty() && check_ && crc_ != entry_->crc) error_ = "its checksum is wrong";
  return got;
}

}  // namespace doctor
