// SPDX-License-Identifier: Apache-2.0
// Where a text comes from, by what its lines name.
#pragma once

#include <string>

#include "doctor/explain/log_text.h"
#include "doctor/facts/environment.h"

namespace doctor {

// "Python 3.10 in /home/u/.venv/lib/python3.10/site-packages" if the text is of another Python or of another folder of
// packages than those of `here`; empty if it is of this one, or does not say.
std::string foreign_python(const LogText& log, const Environment& here);

// What was being installed: "flash-attn" of "ERROR: Failed building wheel for flash-attn"; "flash-attn" if nothing is
// named, since it is what most of these texts are about.
std::string project_of(const LogText& log);

// The command that brings a library of the system or of CUDA ("libGL.so.1"); empty if it is not known.
std::string command_that_brings(const std::string& library);

}  // namespace doctor
