// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver interface that Mica calls, declared here so that no CUDA header is needed.
// Names and numbers are those of the driver API's reference manual.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/parts/tensor_map.h"

namespace mica::cu {

using Result = int;  // CUresult
using Device = int;  // CUdevice
using DevicePointer = std::uint64_t;
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Library = struct LibraryHandle*;
using Kernel = struct KernelHandle*;
using Function = struct FunctionHandle*;

enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kUnsupportedPtxVersion = 222,
  kCooperativeLaunchTooLarge = 720,
  kSystemDriverMismatch = 803,
  kCompatNotSupported = 804,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureLast = 908,
};

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kL2CacheBytes = 38,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kMaxSharedBytesPerBlock = 97,  // opt-in
};

enum FunctionAttribute : int { kLocalBytes = 3, kNumRegisters = 4, kMaxDynamicSharedBytes = 8 };

enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum CaptureStatus : int { kCaptureNone = 0 };

enum JitOption : int { kJitErrorLog = 5, kJitErrorLogBytes = 6 };

// CUlaunchAttribute
enum LaunchAttributeId : int { kCooperative = 2, kProgrammaticStreamSerialization = 6 };
struct LaunchAttribute {
  int id;
  alignas(8) union {
    int is_allowed;
    char bytes[64];
  } value;
};

// CUlaunchConfig
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  const LaunchAttribute* attributes;
  unsigned num_attributes;
};

// cuGetProcAddress_v2, the only function looked up by name.
using GetProcAddress = Result (*)(const char* symbol, void** function, int cuda_version, std::uint64_t flags,
                                  int* status);

// MICA_DRIVER_FUNCTION(symbol, the CUDA version that brought its signature, parameters). All return a CUresult.
// Those that came after 12.0 may be null.
#define MICA_DRIVER_FUNCTIONS(MICA_DRIVER_FUNCTION)                                                                   \
  MICA_DRIVER_FUNCTION(cuInit, 2000, (unsigned flags))                                                                \
  MICA_DRIVER_FUNCTION(cuGetErrorName, 6000, (Result result, const char** text))                                      \
  MICA_DRIVER_FUNCTION(cuGetErrorString, 6000, (Result result, const char** text))                                    \
  MICA_DRIVER_FUNCTION(cuDeviceGetCount, 2000, (int* count))                                                          \
  MICA_DRIVER_FUNCTION(cuDeviceGet, 2000, (Device * device, int ordinal))                                             \
  MICA_DRIVER_FUNCTION(cuDeviceGetName, 2000, (char* name, int bytes, Device device))                                 \
  MICA_DRIVER_FUNCTION(cuDeviceGetAttribute, 2000, (int* value, int attribute, Device device))                        \
  MICA_DRIVER_FUNCTION(cuDevicePrimaryCtxRetain, 7000, (Context * context, Device device))                            \
  MICA_DRIVER_FUNCTION(cuCtxGetCurrent, 4000, (Context * context))                                                    \
  MICA_DRIVER_FUNCTION(cuCtxPushCurrent, 4000, (Context context))                                                     \
  MICA_DRIVER_FUNCTION(cuCtxPopCurrent, 4000, (Context * context))                                                    \
  MICA_DRIVER_FUNCTION(cuLibraryLoadData, 12000,                                                                      \
                       (Library * library, const void* code, int* jit_options, void** jit_values, unsigned num_jit,   \
                        int* options, void** values, unsigned num_options))                                           \
  MICA_DRIVER_FUNCTION(cuLibraryUnload, 12000, (Library library))                                                     \
  MICA_DRIVER_FUNCTION(cuLibraryGetKernel, 12000, (Kernel * kernel, Library library, const char* name))               \
  MICA_DRIVER_FUNCTION(cuKernelGetFunction, 12000, (Function * function, Kernel kernel))                              \
  MICA_DRIVER_FUNCTION(cuFuncSetAttribute, 9000, (Function function, int attribute, int value))                       \
  MICA_DRIVER_FUNCTION(cuFuncGetAttribute, 2020, (int* value, int attribute, Function function))                      \
  MICA_DRIVER_FUNCTION(cuFuncLoad, 12040, (Function function))                                                        \
  MICA_DRIVER_FUNCTION(cuLaunchKernelEx, 11060,                                                                       \
                       (const LaunchConfig* config, Function function, void** arguments, void** extra))               \
  MICA_DRIVER_FUNCTION(cuStreamIsCapturing, 10000, (Stream stream, int* status))                                      \
  MICA_DRIVER_FUNCTION(cuThreadExchangeStreamCaptureMode, 10010, (int* mode))                                         \
  MICA_DRIVER_FUNCTION(cuStreamSynchronize, 2000, (Stream stream))                                                    \
  MICA_DRIVER_FUNCTION(cuPointerGetAttribute, 4000, (void* value, int attribute, DevicePointer pointer))              \
  MICA_DRIVER_FUNCTION(cuMemcpyDtoHAsync, 3020, (void* to, DevicePointer from, size_t bytes, Stream stream))          \
  MICA_DRIVER_FUNCTION(cuMemsetD8Async, 3020, (DevicePointer to, unsigned char value, size_t bytes, Stream stream))   \
  MICA_DRIVER_FUNCTION(cuTensorMapEncodeTiled, 12000,                                                                 \
                       (TensorMap * map, int type, std::uint32_t rank, void* address, const std::uint64_t* dims,      \
                        const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_strides, \
                        int interleave, int swizzle, int l2_promotion, int fill))                                     \
  MICA_DRIVER_FUNCTION(cuTensorMapReplaceAddress, 12000, (TensorMap * map, void* address))

struct Api {
#define MICA_DECLARE(symbol, version, parameters) Result(*symbol) parameters = nullptr;
  MICA_DRIVER_FUNCTIONS(MICA_DECLARE)
#undef MICA_DECLARE
};

}  // namespace mica::cu
