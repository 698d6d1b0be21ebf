#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every header of src/core for the device, each on its own: the mathematics must be readable by NVRTC.

Exit status: 0 all compile, 1 one does not, 77 there is no NVRTC on this machine.
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "build"))
import nvrtc  # noqa: E402

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]

# 737: using-declarations that repeat a name of their own namespace, as they do where MICA_NS is mica.
OPTIONS = ["-std=c++20", "-default-device", "--gpu-architecture=sm_80", "-diag-suppress=737"]

# Uses the templates with device arithmetic, so that more than their syntax is checked.
PROBE = """
#include "core/mask.h"
#include "core/random.h"
#include "core/schedule.h"
#include "core/score.h"
#include "core/sequence.h"
#include "core/softmax.h"

struct DeviceFloat {
  using V = float;
  static __device__ V set(float x) { return x; }
  static __device__ V add(V a, V b) { return a + b; }
  static __device__ V sub(V a, V b) { return a - b; }
  static __device__ V mul(V a, V b) { return a * b; }
  static __device__ V div(V a, V b) { return a / b; }
  static __device__ V mul_add(V a, V b, V c) { return fmaf(a, b, c); }
  static __device__ V max(V a, V b) { return fmaxf(a, b); }
  static __device__ V abs(V a) { return fabsf(a); }
  static __device__ V exp2(V a) { return exp2f(a); }
  static __device__ V log2(V a) { return log2f(a); }
  static __device__ V tanh(V a) { return tanhf(a); }
  static __device__ V select_if_equal(V a, V b, V yes, V no) { return a == b ? yes : no; }
};

extern "C" __global__ void probe(mica::Problem p, const int* cu_seqlens, const float* scores, float* out) {
  using namespace mica;
  using M = DeviceFloat;
  SequenceTable table = sequence_shapes(p);
  table.cu_seqlens_q = table.cu_seqlens_k = cu_seqlens;
  const QueryTile tile = find_packed_tile(cu_seqlens, p.batch, p.total_q, 64, blockIdx.x);
  const Sequence s = sequence_of(table, tile.batch);
  const Band band = band_of(p, s.len_q, s.len_k);
  const TileRange keys = key_tiles(transpose(transpose(band)), 64 * tile.tile, 64 * tile.tile + 1, 64);
  const Score score = score_of(p);
  SoftmaxState<M> state = empty_state<M>();
  const PhiloxKey key = philox_key(1, 2);
  for (int j = 64 * keys.begin + threadIdx.x; j < 64 * keys.end; j += blockDim.x) {
    const float product = scores[j];
    const float x = add_bias<M>(add_alibi<M>(score_of_product<M>(score, product), 0.5f, float(j)), 1.0f);
    absorb<M>(state, x);
    state.sum += exp2f(x - reference_of<M>(state.max)) + score_derivative<M>(score, product);
    if (!is_visible(band, 0, j) || !is_kept(key, 100, 0, 0, j)) state.sum += 1;
  }
  state = merge_sink<M>(merge<M>(state, state).state, 0.0f).state;
  store_float(out, threadIdx.x + key_row_offset(table, s, 0, 0, 1, 1), p.dtype,
              normalizer<M>(state) + lse_log2<M>(state) + backward_reference<M>(1.0f) +
                  load_as_float(out, query_row_offset(s, 0, 1, 1), p.dtype));
}
"""


def main():
    missing = nvrtc.available()
    if missing:
        print(f"skipped: {missing}")
        return SKIPPED
    headers = {"mica/enums.h": (ROOT / "include/mica/enums.h").read_text()}
    for path in sorted((ROOT / "src/core").glob("*.h")):
        headers[f"core/{path.name}"] = path.read_text()
    units = {f"only {name}": f'#include "{name}"\n' for name in headers}
    units["probe"] = PROBE
    failures = 0
    for name, source in units.items():
        try:
            image, log = nvrtc.compile(source, name, OPTIONS, headers)
        except nvrtc.CompileError as error:
            print(error)
            failures += 1
            continue
        if log.strip():
            print(f"{name} compiles with warnings:\n{log}")
            failures += 1
        else:
            print(f"{name}: {len(image)} bytes")
    print("NVRTC %d.%d:" % nvrtc.version(), f"{len(units) - failures} of {len(units)} units compile cleanly")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
