// SPDX-License-Identifier: Apache-2.0
// Sees the plain loads and stores of kernels: they are compiled with -fsanitize=thread, which puts a call before each,
// and are linked with these functions instead of the thread sanitizer's own.
#include "tests/cuda/emulation/emulator.h"

using mica::emulation::Access;
using mica::emulation::note_plain_access;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
#define MICA_WATCH(bytes)                                                                                  \
  void __tsan_read##bytes(void* address) { note_plain_access(address, bytes, Access::kRead); }             \
  void __tsan_write##bytes(void* address) { note_plain_access(address, bytes, Access::kWrite); }           \
  void __tsan_unaligned_read##bytes(void* address) { note_plain_access(address, bytes, Access::kRead); }   \
  void __tsan_unaligned_write##bytes(void* address) { note_plain_access(address, bytes, Access::kWrite); } \
  void __tsan_read_write##bytes(void* address) { note_plain_access(address, bytes, Access::kWrite); }      \
  void __tsan_unaligned_read_write##bytes(void* address) { note_plain_access(address, bytes, Access::kWrite); }
MICA_WATCH(1)
MICA_WATCH(2)
MICA_WATCH(4)
MICA_WATCH(8)
MICA_WATCH(16)
#undef MICA_WATCH
void __tsan_read_range(void* address, unsigned long bytes) { note_plain_access(address, bytes, Access::kRead); }
void __tsan_write_range(void* address, unsigned long bytes) { note_plain_access(address, bytes, Access::kWrite); }
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  note_plain_access(from, bytes, Access::kRead);
  note_plain_access(to, bytes, Access::kWrite);
  return __builtin_memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  note_plain_access(to, bytes, Access::kWrite);
  return __builtin_memset(to, value, bytes);
}

}  // extern "C"
