// SPDX-License-Identifier: Apache-2.0
// `mica publish`: a wheel on shared storage, complete or not there at all.
#include "builder/shelf/publish.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "builder/shelf/shelf_files.h"
#include "builder/shelf/shelf_index.h"
#include "cli/builder/wheel_facts.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "doctor/report/inspection_json.h"
#include "doctor/verdict/verdict_json.h"
#include "mica/mica.h"
#include "support/bytes.h"

namespace cli {
namespace {

struct Options {
  std::string wheel, folder, reindex;
  bool json = false;
};

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

int reindex(const Options& options) {
  builder::rebuild_derived(options.reindex);
  if (options.json)
    std::printf("%s\n", nlohmann::json({{"reindexed", options.reindex}}).dump(2).c_str());
  else
    std::printf("the index of %s lists what is there\n", options.reindex.c_str());
  return kOk;
}

int run(const Options& options) {
  if (!options.reindex.empty()) return reindex(options);
  if (options.wheel.empty() || options.folder.empty())
    throw std::runtime_error("want a wheel and a folder, or --reindex DIR (see mica publish --help)");
  const doctor::Inspection inspection = doctor::inspect(options.wheel);
  builder::PublishRequest request;
  request.wheel = options.wheel;
  request.folder = options.folder;
  request.mica_version = mica_version();
  request.verdicts = doctor::judge(inspection);
  std::string note;
  request.build = build_record(options.wheel, &note);
  request.line = builder::matrix_line_of_build(request.build);
  if (!request.line) request.line = line_of_wheel(inspection, request.verdicts);
  nlohmann::json out = {{"wheel", options.wheel}, {"verdicts", doctor::as_json(request.verdicts)}};
  const bool bad = doctor::exit_code_of(request.verdicts) != 0;
  if (!options.json)
    for (const doctor::Verdict& verdict : request.verdicts)
      if (verdict.severity != doctor::Severity::kNote) std::printf("%s", doctor::verdict_text(verdict, false).c_str());
  if (bad) {
    out["published"] = false;
    if (options.json)
      std::printf("%s\n", out.dump(2).c_str());
    else
      std::printf("not published: a wheel with errors helps nobody\n");
    return kFailed;
  }
  const builder::Published done = builder::publish(request);
  const bool is_new = done.placed == support::Placed::kNew;
  if (options.json) {
    out["published"] = true;
    out["new"] = is_new;
    out["path"] = done.path;
    out["sha256"] = done.sha256;
    out["provenance"] = done.provenance;
    if (!note.empty()) out["note"] = note;
    std::printf("%s\n", out.dump(2).c_str());
    return kOk;
  }
  if (!note.empty()) std::printf("note        %s\n", note.c_str());
  std::printf("%s  %s\n", is_new ? "published " : "was there ", done.path.c_str());
  std::printf("sha256      %s\nprovenance  %s\n", done.sha256.c_str(), done.provenance.c_str());
  const std::string project = builder::normalised_project(inspection.wheel->name->distribution);
  std::printf("install     pip install --no-deps --no-index --find-links %s %s\n", options.folder.c_str(),
              project.c_str());
  return kOk;
}

}  // namespace

Verb publish_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("publish", "Put a wheel on shared storage for all nodes");
  verb->add_option("wheel", options->wheel, "the wheel")->type_name("WHEEL");
  verb->add_option("folder", options->folder, "the shared folder; made if it is not there")->type_name("DIR");
  verb->add_option("--reindex", options->reindex, "only make the index of this folder anew")->type_name("DIR");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "The wheel appears under its name in one step, when it and its provenance are on disk; a different file of that\n"
      "name stays. Several nodes may publish at the same time. A wheel that the doctor finds wrong in itself is not\n"
      "taken; what `mica build` wrote beside it (WHEEL.build.json) becomes part of its provenance.\n"
      "Examples:\n"
      "  mica publish dist/flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl /shared/wheels\n"
      "  pip install --no-deps --no-index --find-links /shared/wheels flash-attn\n"
      "  pip install --index-url file:///shared/wheels/simple flash-attn\n"
      "Exit codes: 0 it is there; 1 the wheel is bad; 2 it could not be written, or another file has its name.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
