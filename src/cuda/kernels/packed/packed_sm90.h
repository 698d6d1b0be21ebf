// SPDX-License-Identifier: Apache-2.0
// What the host and forward_sm90 agree on about packed sequences, and when the next kernel may begin.
#pragma once

#include "core/types.h"

namespace mica {

// ForwardParams::packed_q where sequences are of about one length: query tiles are numbered as if all were as long as
// the longest is said to be, so that nobody searches for them.
constexpr i32 kPackedEvenly = 2;

// MappedRows::rows of packed sequences whose boxes end with them, past which the copy engine brings zeros and writes
// nothing. Slot s of the map are the box_rows rows from row s on: a box of n rows from row r on begins at row
// box_rows - n of slot r + n - box_rows, if there are as many rows before it.
constexpr i64 kCutRows = 0;

// Which rows of kernels.def know of that.
MICA_HD constexpr bool forward_sm90_cuts(u32 served) { return served == 0; }

// A bit of ForwardParams::features that is no Feature: the next kernel's blocks may come as soon as this one's have
// begun. Else they may when the kernel before this one is done. Otherwise the blocks of several kernels fill the SMs
// and wait, and a kernel of few blocks has them where it found room, three on some SMs and none on others.
constexpr u32 kLetsNextComeEarly = 1u << 31;

}  // namespace mica
