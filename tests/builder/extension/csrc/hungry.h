// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

std::string greeting(const std::vector<std::string>& names);

#ifdef HUNGRY_MEGABYTES
// Text that the assembler repeats in its memory, about this many megabytes of it, and that leaves nothing in the
// object.
#define HUNGRY_TEXT(x) #x
#define HUNGRY_STRING(x) HUNGRY_TEXT(x)
asm(".rept " HUNGRY_STRING(HUNGRY_MEGABYTES) "*4096\n.equ hungry, 12345678\n.endr\n");
#endif
