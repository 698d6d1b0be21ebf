// SPDX-License-Identifier: Apache-2.0
// `mica publish`: a wheel on shared storage, complete or not there at all.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "builder/shelf/shelf_index.h"
#include "cli/builder/publishing.h"
#include "cli/json_text.h"
#include "cli/verbs.h"
#include "doctor/verdict/verdict_json.h"

namespace cli {
namespace {

struct Options {
  std::string wheel, folder, reindex;
  bool json = false;
};

int reindex(const Options& options) {
  if (!options.wheel.empty())
    throw std::runtime_error("--reindex publishes nothing, so it wants no wheel: " + options.wheel +
                             " goes there by a command of its own (see mica publish --help)");
  builder::rebuild_derived(options.reindex);
  if (options.json)
    std::printf("%s", json_text(nlohmann::json({{"reindexed", options.reindex}})).c_str());
  else
    std::printf("the index of %s lists what is there\n", options.reindex.c_str());
  return kOk;
}

int run(const Options& options) {
  if (!options.reindex.empty()) return reindex(options);
  if (options.wheel.empty() || options.folder.empty())
    throw std::runtime_error("want a wheel and a folder, or --reindex DIR (see mica publish --help)");
  const Publishing publishing = publish_wheel(options.wheel, options.folder);
  if (options.json) {
    nlohmann::json out = {{"wheel", options.wheel},
                          {"verdicts", doctor::as_json(publishing.verdicts)},
                          {"published", publishing.published}};
    if (publishing.published) {
      out["new"] = publishing.done.placed == support::Placed::kNew;
      out["path"] = publishing.done.path;
      out["sha256"] = publishing.done.sha256;
      out["provenance"] = publishing.done.provenance;
      if (!publishing.note.empty()) out["note"] = publishing.note;
    }
    std::printf("%s", json_text(out).c_str());
  } else {
    std::printf("%s", publishing_text(publishing).c_str());
  }
  return publishing.published ? kOk : kFailed;
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
