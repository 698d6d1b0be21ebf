// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/known_failures.h"

namespace doctor {

std::span<const std::span<const KnownFailure>> all_known_failures() {
  static const std::vector<std::span<const KnownFailure>> all = {
      known_loader_failures(),  known_install_failures(), known_build_failures(), known_run_failures(),
      known_package_failures(), known_symptoms(),         known_remedies()};
  return all;
}

}  // namespace doctor
