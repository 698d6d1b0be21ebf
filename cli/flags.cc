// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include <CLI/CLI.hpp>

namespace cli {
namespace {

// A filter may be empty: all.
void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options([](CLI::Option*) { return true; }))
    if (option->get_items_expected_max() > 0 && option->get_name() != "--filter")
      option->check(
          CLI::Validator([](std::string& value) { return std::string(value.empty() ? "is empty" : ""); }, ""));
  for (CLI::App* below : app.get_subcommands([](CLI::App*) { return true; })) refuse_empty_values(*below);
}

}  // namespace

Option* Option::required() {
  option_->required();
  return this;
}
Option* Option::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}
Option* Option::capture_default_str() {
  option_->capture_default_str();
  return this;
}
Option* Option::group(const std::string& title) {
  option_->group(title);
  return this;
}
Option* Option::delimiter(char c) {
  option_->delimiter(c);
  return this;
}
Option* Option::expected(int count) {
  option_->expected(count);
  return this;
}
Option* Option::take_all() {
  option_->take_all();
  return this;
}
Option* Option::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return this;
}
Option* Option::range(int least, int most) {
  option_->check(CLI::Range(least, most));
  return this;
}
Option* Option::range(double least, double most) {
  option_->check(CLI::Range(least, most));
  return this;
}
Option* Option::excludes(const std::string& other) {
  option_->excludes(other);
  return this;
}
Option* Option::needs(const Option* other) {
  option_->needs(other->option_);
  return this;
}

Command::Command(const std::string& about, const std::string& name, const std::string& version)
    : root_(std::make_unique<CLI::App>(about, name)), app_(root_.get()) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(0, 1);
}

Command::Command(CLI::App* app) : app_(app) {}

Command::~Command() = default;

Command* Command::add_subcommand(const std::string& name, const std::string& about) {
  below_.push_back(std::unique_ptr<Command>(new Command(app_->add_subcommand(name, about))));
  return below_.back().get();
}

void Command::require_subcommand() { app_->require_subcommand(1); }
void Command::footer(const std::string& text) { app_->footer(text); }
std::string Command::name() const { return app_->get_name(); }
bool Command::is_given() const { return bool(*app_); }

Option* Command::keep(CLI::Option* option) {
  options_.emplace_back(option);
  return &options_.back();
}

Option* Command::add_option(const std::string& name, std::string& value, const std::string& help) {
  return keep(app_->add_option(name, value, help));
}
Option* Command::add_option(const std::string& name, int& value, const std::string& help) {
  return keep(app_->add_option(name, value, help));
}
Option* Command::add_option(const std::string& name, std::int64_t& value, const std::string& help) {
  return keep(app_->add_option(name, value, help));
}
Option* Command::add_option(const std::string& name, double& value, const std::string& help) {
  return keep(app_->add_option(name, value, help));
}
Option* Command::add_option(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return keep(app_->add_option(name, values, help));
}
Option* Command::add_option(const std::string& name, std::vector<std::int64_t>& values, const std::string& help) {
  return keep(app_->add_option(name, values, help));
}
Option* Command::add_flag(const std::string& name, bool& value, const std::string& help) {
  return keep(app_->add_flag(name, value, help));
}
Option* Command::add_flag(const std::string& name, std::string& value, const std::string& help) {
  return keep(app_->add_flag(name, value, help));
}

bool Command::parse(int argc, char** argv) {
  refuse_empty_values(*app_);
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != int(CLI::ExitCodes::Success)) throw UsageError(e.what());
    app_->exit(e);
    return false;
  }
  return true;
}

}  // namespace cli
