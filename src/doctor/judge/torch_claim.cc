// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/torch_claim.h"

#include "doctor/facts/tags.h"
#include "doctor/read/requirement.h"
#include "support/text.h"

namespace doctor {

using namespace support;

TorchClaim claimed_torch(const Metadata& metadata, const std::string& version) {
  for (const std::string& requirement : metadata.all("Requires-Dist")) {
    const Requirement parsed = parse_requirement(requirement);
    const std::size_t equals = parsed.version.find("==");
    if (normal_name(parsed.name) != "torch" || equals == parsed.version.npos || !parsed.marker.empty()) continue;
    const Version torch = parse_version(std::string_view(parsed.version).substr(equals + 2));
    if (torch.parts.size() >= 2) return {torch, "METADATA: " + printable(requirement, 80)};
  }
  const std::string local = lower(version.substr(std::min(version.find('+'), version.size())));
  const std::size_t at = local.find("torch");
  const Version torch = at == local.npos ? Version{} : parse_version(std::string_view(local).substr(at + 5));
  if (torch.parts.size() >= 2) return {torch, "the version: " + printable(version, 80)};
  return {};
}

namespace {
// The verdict on what loads, but was made for another torch: `which` says what was, and for which.
void be_of_another_release(const std::string& which, const std::string& fix, const std::string& evidence,
                           Verdict& verdict) {
  verdict = make_verdict(
      {.code = "TORCH_OTHER_RELEASE",
       .subject = verdict.subject,
       .message = "all its symbols are found, but " + which,
       .cause =
           "Classes of another release can be laid out differently: it may work, or crash when it is loaded or used.",
       .fix = fix,
       .evidence = {evidence}});
}
}  // namespace

void doubt(const TorchClaim& claim, const Environment& target, Verdict& verdict) {
  if (verdict.code != Code::LOADS || !claim.torch.known() || !target.torch) return;
  const Version here = parse_version(target.torch->version);
  const bool is_same = here.major_part() == claim.torch.major_part() && here.minor_part() == claim.torch.minor_part();
  if (!here.known() || is_same) return;
  const std::string made_for =
      std::to_string(claim.torch.major_part()) + "." + std::to_string(claim.torch.minor_part());
  be_of_another_release(
      "it was made for torch " + made_for + ", and here is " + target.torch->version,
      "install the release that was made for this torch, or python -m pip install 'torch==" + made_for + ".*'",
      claim.source, verdict);
}

void doubt_beside(const std::string& other, const Environment& target, Verdict& verdict) {
  if (verdict.code != Code::LOADS || !target.torch) return;
  be_of_another_release(other + " beside it was made for another torch than " + target.torch->version,
                        "install the release of the package that was made for this torch",
                        other + " asks for a function of torch that is not there", verdict);
}

}  // namespace doctor
