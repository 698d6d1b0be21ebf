// SPDX-License-Identifier: Apache-2.0
// The release of torch that a package says it was made for. Symbols that all resolve are no proof: classes of another
// release can be laid out differently, and the module then crashes when it is loaded or used.
#pragma once

#include <string>

#include "doctor/facts/environment.h"
#include "doctor/read/metadata.h"
#include "doctor/read/wheel.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

struct TorchClaim {
  Version torch;       // not known: it says nothing
  std::string source;  // "METADATA: torch (==2.8.0)", "the file name: torch2.8"
};

// By Requires-Dist with ==, else by the local part of the version, as in 2.8.3+cu12torch2.8cxx11abiTRUE.
TorchClaim claimed_torch(const Metadata& metadata, const std::string& version);

// Turns LOADS into TORCH_OTHER_RELEASE where the target's torch is of another minor release.
void doubt(const TorchClaim& claim, const Environment& target, Verdict& verdict);

// The same, since another file of the package, of the same build, asks for what the target's torch does not have.
void doubt_beside(const std::string& other, const Environment& target, Verdict& verdict);

}  // namespace doctor
