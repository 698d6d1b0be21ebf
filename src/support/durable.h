// SPDX-License-Identifier: Apache-2.0
// Files that are complete or not there at all, also on NFS and after a power cut: written under a temporary name in the
// same folder, synced, then given their name in one step. No locks: flock means nothing on many shared file systems.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace support {

// What could not be written, in one line.
struct WriteError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Placed {
  kNew,        // it is there now
  kSame,       // a file with these very bytes was there already
  kDifferent,  // another file has the name; it stays
};

// A file that is being written. Destroyed before it was placed, it leaves nothing.
class PendingFile {
 public:
  // Opens ".NAME.HOST.PID.N.tmp" beside `path`. Throws WriteError.
  explicit PendingFile(std::string path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(std::span<const uint8_t> bytes);
  void write(std::string_view text);
  // Lets those read it who may read a folder with these permissions, also where the umask would not.
  void share(unsigned permissions);
  // Gives it its name unless a file is there; the bytes are on disk before, and the name after.
  Placed place_new();
  // Gives it its name, over whatever is there.
  void replace();

 private:
  void close_synced();
  void remove();

  std::string path_, temporary_;
  int descriptor_ = -1;
};

// `shared`: as in PendingFile::share.
Placed write_new_file(const std::string& path, std::string_view text, unsigned shared = 0);
void replace_file(const std::string& path, std::string_view text, unsigned shared = 0);

// A copy that replaces what is there, complete or not at all. Throws WriteError or ReadError.
void copy_file(const std::string& from, const std::string& to);

// Makes the folder and those above it. Throws WriteError.
void make_folders(const std::string& path);
// Moves a file within one file system and makes that durable; never over another file. Throws WriteError.
void move_file(const std::string& from, const std::string& to);

std::string hex(std::span<const uint8_t> bytes);  // lower case
// In hex. Throws ReadError.
std::string file_sha256(const std::string& path);
bool is_temporary_name(std::string_view name);

// For tests: called before every step that changes the disk, with its name. Null: nothing.
extern void (*before_step)(const char* step);

}  // namespace support
