// SPDX-License-Identifier: Apache-2.0
// The words of the command line. CLI11 parses them, but takes a compiler ten seconds for each file that includes it:
// flags.cc alone does, and the verbs see the little of it that they use.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace cli {

// What was typed cannot be meant; one line.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* required();
  Option* type_name(const std::string& name);  // what the help calls its value
  Option* capture_default_str();               // the help shows the value that the variable has now
  Option* group(const std::string& title);     // the help's section; empty: not shown
  Option* delimiter(char c);                   // between the values of a list
  Option* expected(int count);                 // of values
  Option* take_all();                          // given several times, every value counts
  Option* one_of(const std::vector<std::string>& words);
  Option* range(int least, int most);
  Option* range(double least, double most);
  Option* excludes(const std::string& other);  // given before this one
  Option* needs(const Option* other);

 private:
  CLI::Option* option_;
};

// The command itself or one of its verbs. Owns its options and the commands below it.
class Command {
 public:
  Command(const std::string& about, const std::string& name, const std::string& version);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command* add_subcommand(const std::string& name, const std::string& about);
  void require_subcommand();
  void footer(const std::string& text);  // after the help's list of options
  std::string name() const;
  bool is_given() const;

  // An option without dashes is known by its place. The variable outlives the parsing, and keeps its value if the
  // option is not given.
  Option* add_option(const std::string& name, std::string& value, const std::string& help);
  Option* add_option(const std::string& name, int& value, const std::string& help);
  Option* add_option(const std::string& name, std::int64_t& value, const std::string& help);
  Option* add_option(const std::string& name, double& value, const std::string& help);
  Option* add_option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  Option* add_option(const std::string& name, std::vector<std::int64_t>& values, const std::string& help);
  Option* add_flag(const std::string& name, bool& value, const std::string& help);
  // "--causal{bottom-right}": a flag that may have a value, and has this one without.
  Option* add_flag(const std::string& name, std::string& value, const std::string& help);

  // False if there is nothing left to do: help or version were asked for, and are printed. Throws UsageError; until
  // then, is_given() says which verb it is about. An empty value is refused: `--python "$UNSET"` must not mean that
  // none was given.
  bool parse(int argc, char** argv);

 private:
  explicit Command(CLI::App* app);
  Option* keep(CLI::Option* option);

  std::unique_ptr<CLI::App> root_;  // of the command itself
  CLI::App* app_;
  std::deque<Option> options_;
  std::deque<std::unique_ptr<Command>> below_;
};

}  // namespace cli
