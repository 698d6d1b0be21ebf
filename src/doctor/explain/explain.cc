// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/explain.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "doctor/explain/explain_symbol.h"
#include "doctor/explain/known_failures.h"
#include "doctor/explain/origin.h"
#include "doctor/explain/pattern.h"
#include "doctor/judge/attention_wheel.h"
#include "doctor/judge/pick.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kEvidenceColumns = 400;

struct Finding {
  const KnownFailure* failure;
  Match match;
};

bool explains(Role role) { return role == Role::kCause || role == Role::kSummary; }

std::string fill(std::string text, const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) {
    const std::string field = "{" + name + "}";
    for (std::size_t at = text.find(field); at != text.npos; at = text.find(field, at + value.size()))
      text.replace(at, field.size(), value);
  }
  return text;
}

bool in_context(const LogText& log, const KnownFailure& failure) {
  const auto stands = [&](const char* words) { return find_pattern(log, words).has_value(); };
  const auto& [context, without] = std::tie(failure.context, failure.without);
  return (context.empty() || std::any_of(context.begin(), context.end(), stands)) &&
         std::none_of(without.begin(), without.end(), stands);
}

// Where the last success stands in the text.
std::optional<std::size_t> last_success(const LogText& log) {
  std::optional<std::size_t> out;
  for (const char* words : {"Successfully installed", "Successfully built", "Requirement already satisfied"})
    for (auto match = find_pattern(log, words); match; match = find_pattern(log, words, match->begin + 1))
      out = std::max(out.value_or(0), match->begin);
  return out;
}

// Every place where a row matches; where two overlap, the one of the earlier row.
std::vector<Finding> find_failures(const LogText& log) {
  std::vector<Finding> findings;
  const std::optional<std::size_t> success = last_success(log);
  // A connection that was lost and tried again counts for nothing where the text ends well.
  const auto was_tried_again = [&](const Match& m) {
    return success && *success >= m.begin &&
           log.raw[log.line_of(m.begin)].find("Retrying (Retry(") != std::string::npos;
  };
  const auto overlaps = [&](const Match& m) {
    return std::any_of(findings.begin(), findings.end(),
                       [&](const Finding& f) { return m.begin < f.match.end && f.match.begin < m.end; });
  };
  for (const auto rows : all_known_failures())
    for (const KnownFailure& row : rows) {
      if (!in_context(log, row)) continue;
      for (const char* pattern : row.patterns) {
        // The first place is the one that counts; one that belongs to an earlier row is passed over.
        std::size_t from = 0;
        for (int tries = 0; tries < 100; ++tries) {
          auto match = find_pattern(log, pattern, from);
          if (!match) break;
          from = match->begin + 1;
          if (overlaps(*match) || was_tried_again(*match)) continue;
          findings.push_back({&row, std::move(*match)});
          break;
        }
      }
    }
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::pair(a.failure->role, a.match.begin) < std::pair(b.failure->role, b.match.begin);
  });
  return findings;
}

std::string shorten(const std::string& line, std::size_t columns) {
  return line.size() <= columns ? line : line.substr(0, columns) + " [...]";
}

// The words of the message as they stand in the text, line breaks removed.
std::string words_of(const LogText& log, const Match& match) {
  std::string words = log.text.substr(match.begin, match.end - match.begin);
  std::replace(words.begin(), words.end(), '\n', ' ');
  return shorten(words, kEvidenceColumns);
}

std::vector<std::string> evidence_of(const LogText& log, const Match& match) {
  std::vector<std::string> lines;
  const std::size_t last = log.line_of(match.end > match.begin ? match.end - 1 : match.begin);
  for (std::size_t i = log.line_of(match.begin); i <= last && lines.size() < 6; ++i)
    lines.push_back("line " + std::to_string(i + 1) + ": " + shorten(log.raw[i], kEvidenceColumns));
  return lines;
}

std::map<std::string, std::string> names_of(const LogText& log, const Environment* target) {
  const std::string python = target && target->python && !target->python->executable.empty()
                                 ? target->python->executable
                                 : std::string("python");
  return {{"python", python}, {"pip", python + " -m pip"}, {"project", project_of(log)}};
}

Verdict verdict_of(const LogText& log, const Finding& finding, const Environment* target) {
  const KnownFailure& row = *finding.failure;
  std::map<std::string, std::string> values = names_of(log, target);
  values.insert(finding.match.captures.begin(), finding.match.captures.end());
  Verdict verdict;
  verdict.code = row.code;
  verdict.severity = explains(row.role)        ? Severity::kError
                     : row.role == Role::kHint ? Severity::kNote
                                               : Severity::kWarning;
  verdict.message = words_of(log, finding.match);
  verdict.cause = fill(row.cause, values);
  verdict.fix = fill(row.fix, values);
  verdict.evidence = evidence_of(log, finding.match);
  if (verdict.code == Code::NEEDED_MISSING && values.count("library"))
    if (const std::string command = command_that_brings(values["library"]); !command.empty())
      verdict.fix = fill(command, values);
  for (const char* name : {"file", "library", "module", "package"})
    if (values.count(name) && verdict.subject.empty()) verdict.subject = values[name];
  if (verdict.code == Code::TORCH_SIGNATURE && values.count("symbol")) {
    verdict.message = "undefined symbol: " + values["symbol"];
    explain_symbol(values["symbol"], target, verdict);
    verdict.fix = fill(verdict.fix, values);
  }
  return verdict;
}

// Where the cure is another wheel of flash-attn, and the target is known, the command that installs it.
void name_the_wheel(const LogText& log, const Environment& target, Verdict& verdict) {
  constexpr VerdictCode kCured[] = {"TORCH_CXX11_ABI",    "TORCH_SIGNATURE",    "CUDA_MAJOR",
                                    "MODULE_MISSING",     "WHEEL_TAG_PLATFORM", "URL_GUESS_404",
                                    "BUILD_NVCC_MISSING", "FLASH_ATTN_NOT_SEEN"};
  const bool is_cured = std::find(std::begin(kCured), std::end(kCured), verdict.code) != std::end(kCured);
  const bool is_about_it = log.text.find("flash_attn") != log.text.npos || log.text.find("flash-attn") != log.text.npos;
  if (!is_cured || !is_about_it || !target.torch) return;
  const Pick found = pick(pick_target(target), published_wheels());
  if (!found.unknown.empty() || found.candidates.empty()) return;
  if (found.fits()) {
    verdict.fix = found.verdicts[0].fix;
  } else {
    verdict.fix += "\nhere no published wheel fits; the nearest is " + found.candidates[0].wheel.file + ", which " +
                   found.verdicts[0].message;
  }
}

// "vllm" of a file .../site-packages/vllm/_C.abi3.so that the evidence names; empty: it names none, or torch itself.
std::string installed_package_of(const Verdict& verdict) {
  for (const std::string& line : verdict.evidence)
    for (const std::string_view folder : {"site-packages/", "dist-packages/"}) {
      const std::size_t at = line.find(folder);
      if (at == line.npos) continue;
      const std::string_view rest = std::string_view(line).substr(at + folder.size());
      std::string name(rest.substr(0, rest.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                             "0123456789_-")));
      // A module beside the packages need not be called as the package is.
      if (name.empty() || rest.substr(name.size(), 1) != "/" || name == "torch" || name == "nvidia") return "";
      std::replace(name.begin(), name.end(), '_', '-');
      return name;
    }
  return "";
}

// Where another build of the package is the cure, and the text names it, the one command that does it all.
void name_the_fix(const LogText& log, Verdict& verdict) {
  constexpr const char* kCured[] = {
      "TORCH_CXX11_ABI",          "TORCH_SIGNATURE",    "CUDA_MAJOR",         "MODULE_MISSING",       "GLIBC_TOO_OLD",
      "FLASH_ATTN_NOT_SEEN",      "URL_GUESS_404",      "WHEEL_TAG_PLATFORM", "WHEEL_NONE_PUBLISHED", "NETWORK",
      "BUILD_ISOLATION",          "BUILD_NVCC_MISSING", "SO_NO_PYINIT",       "BUILD_HOST_COMPILER",  "BUILD_OOM",
      "BUILD_CUDA_MAJOR_MISMATCH"};
  constexpr std::pair<const char*, const char*> kPackages[] = {
      {"flash_attn", "flash-attn"},         {"flash-attn", "flash-attn"},
      {"FlashAttention", "flash-attn"},     {"causal_conv1d", "causal-conv1d"},
      {"selective_scan_cuda", "mamba-ssm"}, {"mamba_ssm", "mamba-ssm"},
      {"torch_scatter", "torch-scatter"},   {"torch_sparse", "torch-sparse"},
      {"exllama_kernels", "auto-gptq"},     {"awq_inference_engine", "autoawq"},
      {"pytorch3d", "pytorch3d"},           {"detectron2", "detectron2"},
      {"xformers/_C", "xformers"},          {"xFormers", "xformers"}};
  if (std::find(std::begin(kCured), std::end(kCured), verdict.code) == std::end(kCured)) return;
  const auto name = [&](const std::string& package) {
    verdict.fix += "\nor in one step, undone if it does not work: mica fix " + package;
  };
  for (const auto& [word, package] : kPackages)
    if (log.text.find(word) != log.text.npos) return name(package);
  if (const std::string package = installed_package_of(verdict); !package.empty()) return name(package);
  if (const std::string project = project_of(log); project != "flash-attn") name(project);
}

// Pasted text holds what terminals obey; line breaks are ours.
std::string harmless(std::string_view text) {
  std::string out;
  for (const std::string& line : split(text, '\n')) {
    std::string plain = line;
    std::replace(plain.begin(), plain.end(), '\t', ' ');
    out += (out.empty() ? "" : "\n") + printable(plain, 4096);
  }
  return out;
}

void make_harmless(Verdict& verdict) {
  for (std::string* text : {&verdict.subject, &verdict.message, &verdict.cause, &verdict.fix}) *text = harmless(*text);
  for (std::string& line : verdict.evidence) line = harmless(line);
}

// A symptom points at lines above it: whether they are in the text is looked up, not assumed.
void point_at_the_cause(const LogText& log, const std::vector<Finding>& findings, Verdict& verdict) {
  const auto is_known = [&](std::size_t line) {
    return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
      return log.line_of(f.match.begin) <= line && line <= log.line_of(f.match.end > 0 ? f.match.end - 1 : 0);
    });
  };
  for (const char* words : {" error: ", "error: ", " Error: ", "Error: ", "fatal: "})
    for (std::size_t from = 0;;) {
      const auto match = find_pattern(log, words, from);
      if (!match) break;
      from = match->begin + 1;
      const std::size_t line = log.line_of(match->begin);
      const std::string& raw = log.raw[line];
      constexpr const char* kOfPip[] = {"subprocess-exited-with-error", "metadata-generation-failed",
                                        "CalledProcessError",           "error: subprocess",
                                        "legacy-install-failure",       "failed-wheel-build-for-install",
                                        "error: failed-wheel",          "returned non-zero exit status"};
      const bool is_of_pip =
          std::any_of(std::begin(kOfPip), std::end(kOfPip), [&](const char* w) { return raw.find(w) != raw.npos; });
      if (is_known(line) || is_of_pip) continue;
      verdict.cause +=
          "; here the first line like it is line " + std::to_string(line + 1) + ", which mica has no entry for.";
      verdict.evidence.push_back("line " + std::to_string(line + 1) + ": " + shorten(raw, kEvidenceColumns));
      return;
    }
  verdict.cause += ", and that is not in this text.";
}

}  // namespace

Explanation explain(std::string_view text, const Environment* target) {
  const LogText log = read_log(text);
  std::vector<Finding> findings = find_failures(log);
  const LogText* used = &log;
  const auto has_cause = [&] { return !findings.empty() && explains(findings[0].failure->role); };
  // A terminal may have wrapped the message in the middle of a word.
  LogText joined;
  if (!has_cause()) {
    joined = join_lines(log);
    std::vector<Finding> more = find_failures(joined);
    if (!more.empty() && (findings.empty() || explains(more[0].failure->role))) {
      findings = std::move(more);
      used = &joined;
    }
  }
  Explanation out;
  out.cause_found = has_cause();
  std::size_t last = 0;
  for (const Finding& finding : findings) {
    const Role role = finding.failure->role;
    last = std::max(last, finding.match.begin);
    Verdict verdict = verdict_of(*used, finding, target);
    if (role == Role::kSymptom) point_at_the_cause(*used, findings, verdict);
    if (target) name_the_wheel(*used, *target, verdict);
    name_the_fix(*used, verdict);
    make_harmless(verdict);
    const auto is_same = [&](const Verdict& v) {
      return v.code == verdict.code && (v.cause == verdict.cause || role != Role::kHint);
    };
    // Where the cause stands in the text, what follows from it says nothing more.
    const bool follows = (role == Role::kSymptom && out.cause_found) ||
                         (role == Role::kSummary && findings[0].failure->role == Role::kCause);
    if (follows || std::any_of(out.verdicts.begin(), out.verdicts.end(), is_same)) continue;
    out.verdicts.push_back(std::move(verdict));
  }
  const std::optional<std::size_t> success = last_success(*used);
  out.success_seen = success && *success >= last;
  return out;
}

Explanation explain_pasted(std::string_view text, const Environment& here) {
  const std::string there = foreign_python(read_log(text), here);
  Explanation out = explain(text, there.empty() ? &here : nullptr);
  if (there.empty() || out.verdicts.empty()) return out;
  Verdict& first = out.verdicts[0];
  const Version& version = here.python->version;
  first.evidence.push_back("the text is of " + harmless(there) + "; mica runs beside Python " + version.text() +
                           (here.python->site_packages.empty() ? "" : " in " + here.python->site_packages[0]) +
                           ": the answer is for there");
  const Explanation ours = explain(text, &here);
  if (!ours.verdicts.empty() && ours.verdicts[0].cause != first.cause)
    first.evidence.push_back("the same words here would mean: " + ours.verdicts[0].cause);
  return out;
}

std::string likely_error_line(std::string_view text) {
  const LogText log = read_log(text);
  for (const char* words : {"Error: ", "error: ", "fatal: ", "fatal error", "FAILED", "ERROR", "Error", "error"})
    if (const auto match = find_pattern(log, words))
      return harmless(shorten(log.raw[log.line_of(match->begin)], kEvidenceColumns));
  return "";
}

}  // namespace doctor
