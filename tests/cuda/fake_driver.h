// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 for tests: it behaves as its state says and records what was asked of it. No GPU is involved.
#pragma once

#include <atomic>
#include <cstddef>

namespace mica::test {

struct FakeLaunch {
  const void* function;
  unsigned grid_x, block_x, shared_bytes;
  void* stream;
  const void* context;  // current at the launch
  bool overlaps;        // may begin before the launch before it is done
  bool runs_at_once;    // all blocks of it or none
  // What the first argument points to; tensor maps among it lie at multiples of 64.
  alignas(64) unsigned char params[4096];
};

struct FakeDriver {
  // How it behaves; results are CUresult numbers.
  int cuda_version;
  int init_result;
  int device_count;
  int arch[4];
  int max_smem_bytes[4];
  const char* missing_symbol;  // cuGetProcAddress does not find it
  int load_result;             // of cuLibraryLoadData
  int get_kernel_result;
  int launch_result;
  bool capturing;       // loading fails with 900 unless the thread's mode is relaxed
  size_t params_bytes;  // how much of the first argument to record
  // Does what a launch asks for; the name is the entry's. Null: nothing runs. Returns a CUresult.
  int (*run_kernel)(const char* name, const FakeLaunch& launch, const void* params);

  // What happened.
  std::atomic<int> loads, functions, retains, pushes, pops, launches, mode_exchanges, synchronisations;
  std::atomic<int> max_dynamic_smem;  // the last cuFuncSetAttribute
  FakeLaunch last_launch;
};

extern "C" {
// The one state, and how to make it an ordinary driver again: CUDA 12.8 with two GPUs, sm_90 and sm_86.
__attribute__((visibility("default"))) FakeDriver* mica_fake_driver();
__attribute__((visibility("default"))) void mica_fake_reset();

// The thread's current context, as the fake sees it.
__attribute__((visibility("default"))) void mica_fake_set_context(void* context);
__attribute__((visibility("default"))) void* mica_fake_context();
}

}  // namespace mica::test
