// SPDX-License-Identifier: Apache-2.0
#include "cli/builder/publishing.h"

#include <filesystem>

#include "builder/shelf/shelf_files.h"
#include "cli/builder/wheel_facts.h"
#include "cli/text.h"
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "mica/mica.h"
#include "support/bytes.h"
#include "support/package_name.h"
#include "support/quote.h"
#include "support/text.h"

namespace cli {
namespace {

// What `mica build` wrote beside the wheel; empty if it is not there or belongs to other bytes.
std::string build_record(const std::string& wheel, std::string* note) {
  std::string text;
  try {
    text = support::read_text_file(wheel + ".build.json");
  } catch (const support::ReadError&) {
    return "";
  }
  if (builder::sha256_of_build(text) == support::file_sha256(wheel)) return text;
  *note = wheel + ".build.json is of another wheel and is left out";
  return "";
}

}  // namespace

Publishing publish_wheel(const std::string& wheel, const std::string& folder) {
  const doctor::Inspection inspection = doctor::inspect(wheel);
  Publishing out;
  out.folder = folder;
  out.verdicts = doctor::judge(inspection);
  if (doctor::exit_code_of(out.verdicts) != 0) return out;
  builder::PublishRequest request;
  request.wheel = wheel;
  request.folder = folder;
  request.mica_version = mica_version();
  request.verdicts = out.verdicts;
  request.build = build_record(wheel, &out.note);
  request.line = builder::matrix_line_of_build(request.build);
  if (!request.line) request.line = line_of_wheel(inspection, request.verdicts);
  out.project = support::normalised_package(inspection.wheel->name->distribution);
  out.done = builder::publish(request);
  out.published = true;
  return out;
}

std::string publishing_text(const Publishing& p) {
  std::string out;
  for (const doctor::Verdict& verdict : p.verdicts)
    if (verdict.severity != doctor::Severity::kNote) out += doctor::verdict_text(verdict, false);
  if (!p.published) return out + "not published: a wheel with errors helps nobody\n";
  // A file's name may hold what a terminal obeys.
  const auto shown = [](const std::string& text) { return support::printable(text, 8000); };
  if (!p.note.empty()) out += "note        " + shown(p.note) + "\n";
  out += std::string(p.done.placed == support::Placed::kNew ? "published " : "was there ") + "  " + shown(p.done.path) +
         "\n";
  out += "sha256      " + p.done.sha256 + "\nprovenance  " + shown(p.done.provenance) + "\n";
  const std::string folder = std::filesystem::absolute(p.folder).string();  // it is read where somebody installs
  return out + "install     pip install --no-deps --no-index --find-links " + support::shell_quoted(folder) + " " +
         support::shell_quoted(p.project) + "\n";
}

}  // namespace cli
