// SPDX-License-Identifier: Apache-2.0
#include "support/bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace support {

bool MemorySource::read(uint64_t offset, std::span<uint8_t> out) {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset) return false;
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return true;
}

FileSource::FileSource(const std::string& path)
    // NONBLOCK: a named pipe must not make us wait.
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), size_(0) {
  if (descriptor_ < 0) throw ReadError(path + ": " + std::strerror(errno));
  struct stat found = {};
  if (fstat(descriptor_, &found) != 0 || !S_ISREG(found.st_mode)) {
    close(descriptor_);
    throw ReadError(path + ": not a regular file");
  }
  size_ = uint64_t(found.st_size);
}

FileSource::~FileSource() { close(descriptor_); }

bool FileSource::read(uint64_t offset, std::span<uint8_t> out) {
  if (offset > size_ || out.size() > size_ - offset) return false;
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = pread(descriptor_, out.data() + done, out.size() - done, off_t(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += std::size_t(got);
  }
  return true;
}

std::string read_text_file(const std::string& path, uint64_t most) {
  FileSource file(path);
  std::string out;
  // Files of /proc and /sys say that they are empty: read on until nothing comes.
  if (file.size() > most) throw ReadError(path + ": larger than " + std::to_string(most) + " bytes");
  if (file.size() > 0) {
    out.resize(file.size());
    if (!file.read(0, {reinterpret_cast<uint8_t*>(out.data()), out.size()}))
      throw ReadError(path + ": could not be read");
    return out;
  }
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw ReadError(path + ": " + std::strerror(errno));
  char buffer[4096];
  for (ssize_t got; (got = ::read(descriptor, buffer, sizeof buffer)) > 0 && out.size() <= most;)
    out.append(buffer, std::size_t(got));
  close(descriptor);
  return out;
}

std::string text_or_nothing(const std::string& path, uint64_t most) {
  try {
    return read_text_file(path, most);
  } catch (const ReadError&) {
    return "";
  }
}

}  // namespace support
