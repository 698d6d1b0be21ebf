// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper by the copy engine. A block takes what the row's course says: key tiles
// that it draws, one key tile, or whole heads.
#pragma once

#include "kernels/parts/backward_tma_drawn_sm90.cuh"
#include "kernels/parts/backward_tma_heads_sm90.cuh"

#ifndef MICA_COURSE
#define MICA_COURSE ONE_TILE
#endif
#ifndef MICA_VARIANT
#define MICA_VARIANT 0
#endif

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, int variant>
struct BackwardTmaSm90<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, Course::HEADS, serves::PLAIN, variant>
    : BackwardTmaHeads<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, variant != 0> {};

// A block for each key tile: where the registers do not suffice for one that goes on to the next.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, int variant>
struct BackwardTmaSm90<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, Course::ONE_TILE, serves::PLAIN, variant>
    : BackwardTmaLoose<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, false, serves::PLAIN, variant> {
  using Base = BackwardTmaLoose<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, false, serves::PLAIN, variant>;
  using Base::kConsumerRegisters;
  using Base::keys_full;
  using Base::kIntegers;
  using Base::kProducerRegisters;
  using Base::maps;
  using Base::p;
  using typename Base::Place;

  MICA_DEVICE void run(u8* smem) {
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) this->prefetch_maps();
    if (maps.packed_order) griddepcontrol_wait();
    if (!this->locate_item(blockIdx.x)) {
      griddepcontrol_wait();
      return;
    }
    this->place_rings(smem);
    if (threadIdx.x == 0) {
      this->init_rings();
      mbarrier_init(keys_full, 1);
      fence_for_wgmma();
      if (this->num_steps() > 0) this->ask_keys(keys_full);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      setmaxnreg_dec<kProducerRegisters>();
      produce();
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume();
    }
  }

  MICA_DEVICE void produce() {
    const i32 count = this->num_steps();
    if (threadIdx.x == 0) {
      ask_all_q(count);
      return;
    }
    griddepcontrol_wait();  // also without a step: whoever waits for this kernel relies on what it waited for
    if (threadIdx.x / 32 == 1) {
      u32 parities = 0;
      Place q_place;
      RingPlace<2> place;
      this->begin_rows();
      this->bring_stats(count, q_place, place, parities);
    } else if (threadIdx.x / 32 == 2) {
      this->clear_ahead(blockIdx.x);
      bool whole = false;
      if constexpr (kIntegers) whole = this->adds_integers();
      if (threadIdx.x != 64 || !p.dq_accumulator) return;
      u32 parity = 0;
      if (count > 0) this->await_zeros();
      this->add_dq(count, parity, whole);
      bulk_wait();
      this->count_done();
    } else if (threadIdx.x / 32 == 3) {
      RingPlace<2> place;
      if constexpr (kIntegers)
        this->ask_do_beside_scales(count, place);
      else if (threadIdx.x == 96)
        this->ask_do(count, place);
    }
  }
  MICA_DEVICE void ask_all_q(i32 count) const {
    Place place;
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) this->ask_q(query, place);
  }

  MICA_DEVICE void consume() {
    const i32 consumer = warp_max(threadIdx.x / 32) - 4, group = consumer / 4, warp = consumer % 4;
    const i32 count = this->make_uniform(this->num_steps());
    float dk[1][dim_qk / 8][4], dv[1][dim_v / 8][4];
    zero(dk);
    zero(dv);
    if (count > 0) {
      Place place;
      this->wait_for_keys(keys_full);
      if (group == 1) this->ping_pong_pass(0);
      this->template loop<false>(dk, dv, place, {}, 0, count, group, warp);
    }
    // The last dQ waits for the other consumer's dS: meanwhile dK and dV are stored. But where blocks that share a key
    // tile wait for one another, one of them may wait for this part of dQ.
    if (kIntegers && count > 0) this->finish_dq(count - 1, group, warp);
    this->template leave_keys<Base::Leave::THROUGH_V>(dk, dv, count, consumer);
    if (!kIntegers && count > 0) this->finish_dq(count - 1, group, warp);
    if (kIntegers) Base::settle_rows();
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardMapsParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::BackwardTmaSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                       MICA_STAGES, mica::Course::MICA_COURSE, MICA_SERVED, MICA_VARIANT>;
  Kernel kernel{{{{{{{params.backward}}}, params}}}};
  kernel.run(smem);
}
