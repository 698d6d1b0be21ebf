// SPDX-License-Identifier: Apache-2.0
#include "support/durable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "support/bytes.h"
#include "support/sha256.h"
#include "support/text.h"

namespace support {

void (*before_step)(const char* step) = nullptr;

namespace {

constexpr unsigned kRenameNoReplace = 1;  // RENAME_NOREPLACE; older C libraries have no name for it

void step(const char* name) {
  if (before_step) before_step(name);
}

[[noreturn]] void fail(const std::string& what, int error) {
  std::string hint;
  if (error == ENOSPC || error == EDQUOT)
    hint = " (free some space there and start again: nothing half-written is left)";
  throw WriteError(what + ": " + std::strerror(error) + hint);
}

std::string folder_of(const std::string& path) {
  const std::string folder = folder_name(path);
  return folder.empty() ? (path.starts_with("/") ? "/" : ".") : folder;
}

void sync_folder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot open folder " + folder, errno);
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  // Some file systems (FUSE, a few NFS servers) do not sync folders: the name is durable as soon as it is there.
  if (error && error != EINVAL && error != ENOTSUP && error != EBADF) fail("cannot sync folder " + folder, error);
}

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter = 0;
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  const std::string name = base_name(path);
  const std::string tail = std::string(host) + "." + std::to_string(getpid()) + "." + std::to_string(counter++);
  return folder_of(path) + "/." + name.substr(0, 150) + "." + tail.substr(0, 80) + ".tmp";
}

// NOTE: another process may remove `b` meanwhile; what is gone is not the same.
bool same_bytes(const std::string& a, const std::string& b) {
  std::error_code error;
  if (std::filesystem::file_size(a, error) != std::filesystem::file_size(b, error) || error) return false;
  try {
    return file_sha256(a) == file_sha256(b);
  } catch (const ReadError&) {
    return false;
  }
}

// Both names lie in one folder. Returns 0 or an errno; EEXIST: there is another file.
int link_new(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) == 0) return 0;
  const int error = errno;
  // NOTE: an NFS server may have done it although its answer was lost; the count of names tells.
  struct stat status;
  struct stat target;
  if (stat(from.c_str(), &status) == 0 && stat(to.c_str(), &target) == 0 && status.st_nlink == 2 &&
      status.st_ino == target.st_ino && status.st_dev == target.st_dev)
    return 0;
  return error;
}

int rename_new(const std::string& from, const std::string& to) {
  return syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), kRenameNoReplace) == 0 ? 0 : errno;
}

bool no_links_here(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK || error == EINVAL;
}

// Gives `from` the name `to`; afterwards `from` is gone unless the answer is EEXIST or another error.
int give_name(const std::string& from, const std::string& to) {
  const int linked = link_new(from, to);
  if (linked == 0) {
    step("unlink");
    unlink(from.c_str());
    return 0;
  }
  return no_links_here(linked) ? rename_new(from, to) : linked;
}

}  // namespace

PendingFile::PendingFile(std::string path) : path_(std::move(path)) {
  step("create");
  // A name that is taken was left by a process that was killed: in a container the next one has its id again.
  constexpr int kMostTries = 1000;
  int error = EEXIST;
  for (int n = 0; n < kMostTries && error == EEXIST; ++n) {
    temporary_ = temporary_name(path_);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    error = descriptor_ < 0 ? errno : 0;
  }
  if (error) {
    temporary_.clear();
    fail("cannot write in " + folder_of(path_), error);
  }
}

PendingFile::~PendingFile() { remove(); }

void PendingFile::remove() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporary_.clear();
}

void PendingFile::write(std::span<const uint8_t> bytes) {
  step("write");
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write " + path_, errno);
    bytes = bytes.subspan(std::size_t(written));
  }
}

void PendingFile::write(std::string_view text) {
  write(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

void PendingFile::share(unsigned permissions) {
  constexpr mode_t kReading = 0444;
  struct stat found;
  // Where the file system keeps no permissions, there are none to lack.
  if (fstat(descriptor_, &found) == 0 && (permissions & kReading & ~found.st_mode))
    fchmod(descriptor_, (found.st_mode & 07777) | (permissions & kReading));
}

void PendingFile::close_synced() {
  step("sync");
  const int synced = fsync(descriptor_) == 0 ? 0 : errno;
  const int closed = close(descriptor_) == 0 ? 0 : errno;  // NFS tells here that the disk is full
  descriptor_ = -1;
  if (synced || closed) fail("cannot write " + path_, synced ? synced : closed);
}

Placed PendingFile::place_new() {
  if (descriptor_ >= 0) close_synced();
  step("link");
  const int error = give_name(temporary_, path_);
  if (error == EEXIST) {
    const bool same = same_bytes(temporary_, path_);
    remove();
    return same ? Placed::kSame : Placed::kDifferent;
  }
  if (error == EINVAL || error == ENOSYS)
    throw WriteError("cannot write " + path_ +
                     ": this file system has neither hard links nor a rename that never replaces, so two publishers "
                     "could overwrite each other; choose another folder");
  if (error) fail("cannot write " + path_, error);
  temporary_.clear();
  step("sync folder");
  sync_folder(folder_of(path_));
  return Placed::kNew;
}

void PendingFile::replace() {
  if (descriptor_ >= 0) close_synced();
  step("rename");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot write " + path_, errno);
  temporary_.clear();
  step("sync folder");
  sync_folder(folder_of(path_));
}

Placed write_new_file(const std::string& path, std::string_view text, unsigned shared) {
  PendingFile file(path);
  file.share(shared);
  file.write(text);
  return file.place_new();
}

void replace_file(const std::string& path, std::string_view text, unsigned shared) {
  PendingFile file(path);
  file.share(shared);
  file.write(text);
  file.replace();
}

void copy_file(const std::string& from, const std::string& to) {
  FileSource source(from);
  PendingFile copy(to);
  std::vector<uint8_t> buffer(4 << 20);
  for (uint64_t offset = 0; offset < source.size();) {
    const std::span<uint8_t> piece(buffer.data(),
                                   std::size_t(std::min<uint64_t>(buffer.size(), source.size() - offset)));
    if (!source.read(offset, piece)) throw ReadError(from + ": changed while it was read");
    copy.write(piece);
    offset += piece.size();
  }
  copy.replace();
}

void make_folders(const std::string& path) {
  step("mkdir");
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!std::filesystem::is_directory(path)) {
    const int code = error ? error.value() : ENOTDIR;
    fail("cannot make folder " + path, code);
  }
}

void move_file(const std::string& from, const std::string& to) {
  step("move");
  const int error = give_name(from, to);
  if (error) fail("cannot move " + from + " to " + to, error);
  sync_folder(folder_of(to));
  sync_folder(folder_of(from));
}

std::string file_sha256(const std::string& path) {
  FileSource file(path);
  Sha256 hash;
  std::vector<uint8_t> buffer(1 << 20);
  for (uint64_t offset = 0; offset < file.size();) {
    const std::span<uint8_t> piece(buffer.data(), std::size_t(std::min<uint64_t>(buffer.size(), file.size() - offset)));
    if (!file.read(offset, piece)) throw ReadError(path + ": changed while it was read");
    hash.update(piece);
    offset += piece.size();
  }
  return hex(hash.digest());
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string out;
  for (const uint8_t byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

bool is_temporary_name(std::string_view name) { return name.starts_with(".") && name.ends_with(".tmp"); }

}  // namespace support
