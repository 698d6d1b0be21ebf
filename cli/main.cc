// SPDX-License-Identifier: Apache-2.0
// `mica`: a client of the public library.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "mica/mica.h"
#include "support/text.h"

namespace {

// One clear line, whatever was thrown; for bad usage it ends with where to read on.
int complain(const cli::Command& where, std::string message, bool is_usage) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  for (char& c : message)
    if (c == '\n') c = ' ';
  message = support::printable(message, 2000);  // it may quote a file's name
  const std::string command = where.name() == "mica" ? "mica" : "mica " + where.name();
  const std::string hint = is_usage ? " (see " + command + " --help)" : "";
  std::fprintf(stderr, "%s: %s%s\n", command.c_str(), message.c_str(), hint.c_str());
  return cli::kCannotTell;
}

}  // namespace

int main(int argc, char** argv) {
  cli::Command app("Mica: exact attention, computed in tiles.", "mica", std::string("mica ") + mica_version());
  app.footer(
      "Exit codes: 0 yes, all is well; 1 no: a case failed or no kernel runs the problem; 2 bad usage, or it could not "
      "be found out.\nEvery verb takes --json, and --help with examples.");
  const std::vector<cli::Verb> verbs = {
      cli::info_verb(app),     //
      cli::plan_verb(app),     //
      cli::check_verb(app),    //
      cli::bench_verb(app),    //
      cli::demo_verb(app),     //
      cli::inspect_verb(app),  //
      cli::doctor_verb(app),   //
      cli::explain_verb(app),  //
      cli::fix_verb(app),      //
      cli::jupyter_verb(app),  //
      cli::pick_verb(app),     //
      cli::build_verb(app),    //
      cli::publish_verb(app),  //
      cli::verify_verb(app),   //
      cli::wheel_matrix_verb(app),
  };
  const auto given = [&]() -> const cli::Verb* {
    for (const cli::Verb& verb : verbs)
      if (verb.app->is_given()) return &verb;
    return nullptr;
  };
  try {
    if (!app.parse(argc, argv)) return cli::kOk;
  } catch (const cli::UsageError& e) {
    return complain(given() ? *given()->app : app, e.what(), true);
  }
  if (!given()) {
    std::string names;
    for (const cli::Verb& verb : verbs)
      names += (names.empty() ? "" : &verb == &verbs.back() ? " or " : ", ") + verb.app->name();
    return complain(app, "want a verb: " + names, true);
  }
  try {
    const int code = given()->run();
    // A script that redirects into a full disk must not take half an answer for a whole one.
    if (std::fflush(stdout) != 0 || std::ferror(stdout))
      return complain(*given()->app, "the output could not be written", false);
    return code;
  } catch (const std::exception& e) {
    return complain(*given()->app, e.what(), false);
  }
}
