// SPDX-License-Identifier: Apache-2.0
// What packages compare by themselves when they are imported, and stop: their CUDA with torch's, their Python.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/facts/facts.h"
#include "doctor/read/binary.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

// torchaudio compares to the minor version (until 2.14), torchvision and those of PyTorch Geometric to the major one.
// Not asked where the library that would answer is already said (in `out`) not to load. Their CUDA is that of the label
// in their version ("2.8.0+cu126"), else the one that their GPU code was compiled by.
void judge_own_check(const std::string& package, const std::string& version, const std::vector<Binary>& binaries,
                     const TorchFacts& torch, const std::string& pip, std::vector<Verdict>& out);

// A module of pybind11 stops in a Python that it was not compiled for. Asked where its name does not say which that is.
std::optional<Verdict> judge_pybind11(const Binary& module, const BinaryFacts& facts, const Environment& target);

}  // namespace doctor
