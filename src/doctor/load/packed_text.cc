// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/packed_text.h"

#include "support/bytes.h"

#if MICA_DOCTOR_HAS_ZLIB
#include <zlib.h>
#endif

namespace doctor {

using namespace support;

namespace {

constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) group = group << 8 | (i + j < bytes.size() ? uint8_t(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j) out += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

std::string from_base64(std::string_view text) {
  int value_of[256];
  for (int& v : value_of) v = -1;
  for (int i = 0; i < 64; ++i) value_of[uint8_t(kDigits[i])] = i;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    if (value_of[uint8_t(c)] < 0) throw ReadError("libraries: not base64");
    group = group << 6 | uint32_t(value_of[uint8_t(c)]);
    if ((bits += 6) >= 8) out += char(group >> (bits -= 8) & 255);
  }
  return out;
}

}  // namespace

#if MICA_DOCTOR_HAS_ZLIB

std::string packed(std::string_view text) {
  uLongf size = compressBound(uLong(text.size()));
  std::string bytes(size, '\0');
  const int result = compress2(reinterpret_cast<Bytef*>(bytes.data()), &size,
                               reinterpret_cast<const Bytef*>(text.data()), uLong(text.size()), 6);
  if (result != Z_OK) throw ReadError("libraries: cannot be packed");
  bytes.resize(size);
  return to_base64(bytes);
}

std::string unpacked(std::string_view text, std::size_t most) {
  std::string bytes = from_base64(text), out;
  z_stream stream = {};
  if (inflateInit(&stream) != Z_OK) throw ReadError("libraries: cannot be unpacked");
  stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_in = uInt(bytes.size());
  std::string buffer(1 << 20, '\0');
  int result = Z_OK;
  while (result == Z_OK && out.size() <= most) {
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = uInt(buffer.size());
    result = inflate(&stream, Z_NO_FLUSH);
    out.append(buffer, 0, buffer.size() - stream.avail_out);
  }
  inflateEnd(&stream);
  if (out.size() > most) throw ReadError("libraries: larger than " + std::to_string(most >> 20) + " MiB");
  if (result != Z_STREAM_END) throw ReadError("libraries: cut off or damaged");
  return out;
}

#else

std::string packed(std::string_view) { throw ReadError("this mica was built without zlib: it cannot write targets"); }
std::string unpacked(std::string_view, std::size_t) {
  throw ReadError("this mica was built without zlib: it cannot read targets");
}

#endif

}  // namespace doctor
