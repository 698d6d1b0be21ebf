// SPDX-License-Identifier: Apache-2.0
// A binary, judged alone.
#pragma once

#include <string>
#include <vector>

#include "doctor/facts/facts.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

// Why its stack is taken for an executable one.
std::string stack_evidence(const ElfFile& elf);

// "FreeBSD (9)" of the header of an ELF file that is not for Linux.
std::string os_abi_name(const ElfFile& elf);

// Appends what it finds.
void judge_binary(const Binary& binary, const BinaryFacts& facts, std::vector<Verdict>& out);

}  // namespace doctor
