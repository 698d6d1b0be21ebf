// SPDX-License-Identifier: Apache-2.0
// What a kernel that may have a second query (MICA_QV) finds in its parameters, and rows of two tensors as one.
#pragma once

#include "kernels/params.h"
#include "kernels/parts/packed_rows.cuh"

#ifndef MICA_QV
#define MICA_QV 0
#endif

namespace mica {

// Parameters of a row of kernels.def, by its .qv.
template <bool qv>
struct ParamsOfRow {
  using Plain = ForwardParams;
  using Mapped = ForwardMapsParams;
};
template <>
struct ParamsOfRow<true> {
  using Plain = QvParams;
  using Mapped = QvMapsParams;
};
template <bool qv>
using RowParams = typename ParamsOfRow<qv>::Plain;
template <bool qv>
using RowMapsParams = typename ParamsOfRow<qv>::Mapped;

template <class Params>
constexpr bool kHasQv = false;
template <>
constexpr bool kHasQv<QvParams> = true;
template <>
constexpr bool kHasQv<QvMapsParams> = true;

MICA_DEVICE const ForwardParams& forward_of(const ForwardParams& params) { return params; }
MICA_DEVICE const ForwardParams& forward_of(const ForwardMapsParams& params) { return params.forward; }
MICA_DEVICE const ForwardParams& forward_of(const QvMapsParams& params) { return params.maps.forward; }

// Columns of q and k beside qv and v.
MICA_DEVICE i32 key_columns(const ForwardParams& p) { return p.dim_qk - p.dim_v; }

// The first element of a row of qv; `rows` (PackedRows) knows the sequence.
template <class Rows>
MICA_DEVICE const typename Rows::Stored* qv_row(const Rows& rows, const RowsArg& qv, typename Rows::Row r) {
  return static_cast<const typename Rows::Stored*>(qv.data) + r.head * qv.stride_head +
         query_row_offset(rows.sequence, r.query, qv.stride_batch, qv.stride_row);
}

// A row whose columns from first_columns on are those of a second one; none is there where `first` is null.
template <class Stored>
struct JoinedRow {
  const Stored *first, *second;
  i32 first_columns, columns;

  MICA_DEVICE bool has(i32 column) const { return first && column < columns; }
  MICA_DEVICE const Stored* at(i32 column) const {
    return column < first_columns ? first + column : second + (column - first_columns);
  }
};

}  // namespace mica
