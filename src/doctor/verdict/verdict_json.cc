// SPDX-License-Identifier: Apache-2.0
#include "doctor/verdict/verdict_json.h"

#include <nlohmann/json.hpp>

#include "doctor/verdict/catalogue.h"

namespace doctor {

nlohmann::json as_json(const Verdict& verdict) {
  return {{"code", verdict.code.name()},  {"severity", severity_name(verdict.severity)},
          {"subject", verdict.subject},   {"message", verdict.message},
          {"cause", verdict.cause},       {"fix", verdict.fix},
          {"evidence", verdict.evidence}, {"doc", verdict_anchor(verdict.code)}};
}

nlohmann::json as_json(std::span<const Verdict> verdicts) {
  nlohmann::json out = nlohmann::json::array();
  for (const Verdict& verdict : verdicts) out.push_back(as_json(verdict));
  return out;
}

}  // namespace doctor
