// SPDX-License-Identifier: Apache-2.0
// Pages whose rows come whole: the copy engine brings all columns of some rows of a page by one request, so that a page
// of 16 rows is asked for once, and not once for every 64 columns. In shared memory a box is then blocks of 8 rows, in
// each of which the panels of 64 columns stand beside each other (BlockTile); blocks are equally far apart, as wgmma
// wants it.
//
// The map's axes: column within a panel, row within a block, panel, block of a page, (head, page). The last one counts
// in steps of head_step for a head and slot_step for a page (MappedRows).
#pragma once

#include "core/types.h"

namespace mica {

constexpr i32 kBlockRows = 8, kPanelColumns = 64;

// Whether a row of forward_sm90 reads pages so: where there is one panel, boxes of rows are the same.
MICA_HD constexpr bool reads_page_blocks(bool has_pages, bool has_small_pages, i32 dim_qk) {
  return has_pages && !has_small_pages && dim_qk > kPanelColumns;
}

}  // namespace mica
