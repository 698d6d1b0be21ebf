// SPDX-License-Identifier: Apache-2.0
// How a source is going to be built, and why: decided from facts alone, before anything runs.
#pragma once

#include <string>
#include <vector>

#include "builder/plan/architectures.h"
#include "builder/plan/recipe.h"
#include "doctor/facts/environment.h"
#include "doctor/verdict/verdict.h"

namespace builder {

struct Toolkit {
  std::string folder;           // "/usr/local/cuda-12.8"
  support::Version version;     // of its nvcc
  int most_gcc = 0;             // major version of the newest g++ that it accepts; 0: not known
  std::string fetched_by = {};  // "pip: nvidia-cuda-nvcc==13.2.* ..." where it is not here yet; empty: it is here
};

struct HostCompiler {
  std::string cc, cxx;          // "gcc-12", "g++-12"
  support::Version version;     // 12.2.0
  bool is_fetched = false;      // by mica build, into a folder that is on nobody's PATH
  std::string fetched_by = {};  // as above
};

struct PlanInputs {
  std::string package;                       // normalised name; empty: not known
  int cuda_files = 0;                        // counted in the source; 0 with source_seen: there are none
  bool source_seen = false;                  // false: it is still to be fetched
  doctor::Environment here;                  // with the Python that builds
  doctor::Environment target;                // where the wheel shall run
  std::vector<doctor::Environment> others;   // and where else: one wheel for all
  std::vector<Toolkit> toolkits;             // in the order in which a build would meet them
  std::string first_nvcc;                    // folder of the toolkit that comes first on PATH; empty: none
  std::vector<HostCompiler> host_compilers;  // the default first
  int cores = 1;
  uint64_t memory_bytes = 0;  // that may still be taken
  std::string memory_from;    // "the control group's limit"
  std::string architectures = "auto";
  int jobs = 0;  // 0: chosen
};

// A variable that is set (or taken away) for the build, and the reason.
struct Setting {
  std::string name, value, why;
  bool removed = false;
};

// Something that was decided.
struct Decision {
  std::string what, value, why;
};

struct Plan {
  const Recipe* recipe = nullptr;
  bool cuda = false;  // nvcc takes part
  Toolkit toolkit;    // if cuda
  HostCompiler compiler;
  std::vector<Architecture> architectures;
  int cxx_abi = -1;  // 0 or 1; -1: the default of torch's headers, since torch's libraries show none
  int jobs = 1, nvcc_threads = 1;
  uint64_t job_bytes = 0;  // memory that one job is reckoned to take
  std::vector<Setting> settings;
  std::vector<Decision> decisions;
  std::vector<doctor::Verdict> verdicts;  // an error: it cannot be built, and why
  bool refused() const { return doctor::exit_code_of(verdicts) != 0; }
  std::vector<std::string> gencode() const;  // "arch=compute_90,code=sm_90"
};

Plan make_plan(const PlanInputs& inputs);

}  // namespace builder
