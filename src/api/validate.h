// SPDX-License-Identifier: Apache-2.0
// Every argument check of the library.
#pragma once

#include "base/pointers.h"

namespace mica {

// Checks the whole description and normalises it. On failure the message names the field, what it got, what it wants.
mica_status validate(const mica_attention& attention, mica_pass pass, Problem& problem);

// The bindings as far as the program knows them; what came later is zero.
mica_status take_bindings(const mica_bindings& given, mica_bindings& taken);

// Nulls, alignment and workspace of a call. Looks at no memory behind the pointers. bound: tensors_of(problem).
mica_status validate_bindings(const Problem& problem, const mica_bindings& bindings, TensorSet bound,
                              size_t workspace_bytes, size_t workspace_alignment);

}  // namespace mica
