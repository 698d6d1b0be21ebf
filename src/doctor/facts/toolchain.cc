// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts/toolchain.h"

#include "doctor/tables/cuda_releases.h"

namespace doctor {

std::string why_nvcc_cannot(const Version& nvcc, const GpuArch& arch) {
  const std::string name = arch.capability().text();
  const auto known = known_architecture(arch.sm);
  if (!known) return "no nvcc is known that has " + name;
  if (nvcc < known->first)
    return "nvcc " + nvcc.text() + " does not know " + name + " yet: " + known->first.text() + " or later does";
  if (known->dropped.known() && nvcc >= known->dropped)
    return "nvcc " + nvcc.text() + " no longer knows " + name + ": those before " + known->dropped.text() + " do";
  if (arch.suffix == 'f' && nvcc < parse_version("12.9"))
    return "nvcc " + nvcc.text() + " does not know the suffix f: 12.9 or later does";
  return "";
}

std::string why_cuda_differs(const Version& nvcc, const Version& cuda_of_torch) {
  if (!nvcc.known() || !cuda_of_torch.known() || nvcc.major_part() == cuda_of_torch.major_part()) return "";
  return "CUDA " + nvcc.text() + ", torch was built with " + cuda_of_torch.text() + ": the majors differ";
}

bool is_gcc_too_old(const Version& gcc) { return gcc.known() && gcc.major_part() < kLeastGcc; }

bool is_gcc_too_new(const Version& gcc, int most_gcc) {
  return gcc.known() && most_gcc > 0 && gcc.major_part() > most_gcc;
}

}  // namespace doctor
