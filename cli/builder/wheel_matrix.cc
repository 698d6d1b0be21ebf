// SPDX-License-Identifier: Apache-2.0
// `mica matrix`: which builds work where, from the lines that publishing and verifying left.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "builder/shelf/matrix.h"
#include "builder/shelf/shelf_files.h"
#include "builder/shelf/shelf_index.h"
#include "cli/json_text.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "support/durable.h"
#include "support/package_name.h"
#include "support/text.h"

namespace cli {
namespace {

struct Options {
  std::vector<std::string> paths;
  std::string form = "table", output, package;
  bool all = false, json = false;
};

std::string as_table(const std::vector<builder::MatrixLine>& lines, bool markdown) {
  Table table(builder::matrix_headers());
  for (const builder::MatrixLine& line : lines) {
    std::vector<std::string> cells = builder::matrix_cells(line);
    if (markdown)
      for (std::string& cell : cells)
        for (std::size_t at = 0; (at = cell.find('|', at)) != cell.npos; at += 2) cell.insert(at, "\\");
    table.add(std::move(cells));
  }
  return markdown ? table.markdown() : table.text();
}

int run(const Options& options) {
  std::vector<builder::MatrixLine> lines;
  std::vector<std::string> problems;
  for (const std::string& path : options.paths)
    for (builder::MatrixLine& line : builder::read_matrix(path, &problems)) lines.push_back(std::move(line));
  if (!options.package.empty())
    std::erase_if(lines, [&](const builder::MatrixLine& line) {
      return line.package != support::normalised_package(options.package);
    });
  if (!options.all) lines = builder::latest_lines(std::move(lines));
  std::string text;
  if (options.json) {
    nlohmann::ordered_json out = {{"lines", nlohmann::ordered_json::array()}, {"problems", problems}};
    for (const builder::MatrixLine& line : lines)
      out["lines"].push_back(nlohmann::ordered_json::parse(builder::to_json_line(line)));
    text = json_text(out);
  } else if (options.form == "html") {
    text = builder::matrix_html(lines);
  } else {
    text = as_table(lines, options.form == "markdown");
  }
  if (options.output.empty())
    std::fputs(text.c_str(), stdout);
  else
    support::replace_file(options.output, text);
  for (const std::string& problem : problems)
    std::fprintf(stderr, "mica matrix: %s, left out\n", support::printable(problem, 2000).c_str());
  return problems.empty() ? kOk : kFailed;
}

}  // namespace

Verb wheel_matrix_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("matrix", "Which builds work with which PyTorch, CUDA, Python and GPU");
  verb->add_option("paths", options->paths,
                   "shared folders, what mica build --out filled, or files with one line of JSON per build")
      ->required()
      ->type_name("DIR|FILE");
  verb->add_option("--format", options->form, "what to print")
      ->one_of({"table", "markdown", "html"})
      ->capture_default_str();
  verb->add_option("--output", options->output, "write there instead of printing")->type_name("FILE");
  verb->add_option("--package", options->package, "only this one")->type_name("NAME");
  verb->add_flag("--all", options->all, "every line, not only the newest about each combination");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Examples:\n"
      "  mica matrix /shared/wheels\n"
      "  mica matrix /shared/wheels --package flash-attn --format markdown\n"
      "  mica matrix /shared/wheels --format html --output matrix.html\n"
      "Exit codes: 0 printed; 1 printed, but some lines made no sense; 2 nothing could be read or written.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
