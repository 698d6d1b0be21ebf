// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

namespace {
__global__ void scale_kernel(int a, int b, int* out) { *out = a * b; }
}  // namespace

int scale_on_gpu(int a, int b) {
  int *device = nullptr, host = 0;
  if (cudaMalloc(&device, sizeof(int)) != cudaSuccess) return 0;
  scale_kernel<<<1, 1>>>(a, b, device);
  cudaMemcpy(&host, device, sizeof(int), cudaMemcpyDeviceToHost);
  cudaFree(device);
  return host;
}
