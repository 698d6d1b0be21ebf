// SPDX-License-Identifier: Apache-2.0
// `mica jupyter`: the kernels that are here and what loads in them; a Python registered as one and tried.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "doctor/report/report_json.h"
#include "doctor/verdict/verdict_json.h"
#include "jupyter/install.h"
#include "jupyter/kernels.h"
#include "jupyter/notebook.h"
#include "jupyter/running.h"
#include "support/process.h"
#include "support/text.h"

namespace cli {
namespace {

struct Options {
  jupyter::KernelRequest request;
  std::vector<std::string> env;
  bool user = false, json = false;
  jupyter::NotebookRequest notebook;
  std::vector<std::int64_t> restart;
  bool restart_all = false;
  Command *list = nullptr, *install = nullptr, *run = nullptr, *running = nullptr;
};

void print_json(const nlohmann::json& out) {
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

int exit_code(const std::vector<doctor::Verdict>& verdicts) {
  if (doctor::exit_code_of(verdicts)) return kFailed;
  for (const doctor::Verdict& verdict : verdicts)
    if (verdict.code == doctor::Code::CANNOT_TELL) return kCannotTell;
  return kOk;
}

std::vector<doctor::Verdict> all_verdicts(const jupyter::Kernel& kernel) {
  std::vector<doctor::Verdict> out = kernel.verdicts;
  for (const doctor::Judged& item : kernel.judged) out.insert(out.end(), item.verdicts.begin(), item.verdicts.end());
  return out;
}

nlohmann::json kernel_json(const jupyter::Kernel& kernel) {
  nlohmann::json out = {{"name", kernel.name},
                        {"folder", kernel.folder},
                        {"scope", kernel.scope},
                        {"program", kernel.program},
                        {"stale", kernel.stale},
                        {"python", nullptr},
                        {"torch", nullptr},
                        {"judged", as_json(kernel.judged)},
                        {"verdicts", doctor::as_json(kernel.verdicts)}};
  if (kernel.spec) {
    out["display_name"] = kernel.spec->display_name;
    out["language"] = kernel.spec->language;
    out["argv"] = kernel.spec->argv;
    // Values may be secrets.
    out["env"] = nlohmann::json::array();
    for (const auto& [name, value] : kernel.spec->env) out["env"].push_back(name);
  }
  if (kernel.python) {
    out["python"] = {{"program", kernel.python->program},
                     {"version", kernel.python->facts.version.text()},
                     {"prefix", kernel.python->prefix},
                     {"kind", kernel.python->kind}};
    if (kernel.python->torch)
      out["torch"] = {{"version", kernel.python->torch->version},
                      {"cuda", kernel.python->torch->cuda_version},
                      {"cxx_abi", cxx_abi_name(kernel.python->torch->cxx_abi)}};
  }
  return out;
}

void print_row(const char* label, const std::string& text) { std::printf("  %-8s  %s\n", label, text.c_str()); }

void print_kernel(const jupyter::Kernel& kernel, bool colour) {
  using support::printable;
  const std::string title = kernel.spec ? printable(kernel.spec->display_name) : "";
  std::printf("%s%s%s%s\n", printable(kernel.name).c_str(), title.empty() ? "" : "  ", title.c_str(),
              kernel.stale ? "  (stale)" : "");
  print_row("kernel", printable(kernel.folder) + "  (" + printable(kernel.scope) + ")");
  if (kernel.python)
    print_row("python", kernel.python->facts.version.text() + "  " + printable(kernel.program) + "  (" +
                            kernel.python->kind + ")");
  else if (!kernel.program.empty())
    print_row("program", printable(kernel.program));
  if (kernel.python) {
    const auto& torch = kernel.python->torch;
    print_row("torch", !torch ? "none"
                              : printable(torch->version) + (torch->cuda_version.empty()
                                                                 ? ", for the CPU"
                                                                 : ", CUDA " + printable(torch->cuda_version)));
  }
  std::vector<std::string> good;
  for (const doctor::Judged& item : kernel.judged)
    if (exit_code(item.verdicts) == kOk) good.push_back(item.subject);
  if (!good.empty()) print_row("loads", printable(support::joined(good, ", "), 1000));
  for (const doctor::Verdict& verdict : all_verdicts(kernel))
    if (verdict.severity != doctor::Severity::kNote || verdict.code.name().starts_with("JUPYTER_"))
      std::printf("%s", doctor::verdict_text(verdict, colour).c_str());
}

int run_list(const Options& options) {
  doctor::Survey survey = doctor::survey(doctor::outlook_here());
  const std::vector<jupyter::Kernel> kernels = jupyter::list_kernels(survey);
  std::vector<doctor::Verdict> verdicts;
  std::size_t stale = 0;
  for (const jupyter::Kernel& kernel : kernels) {
    const std::vector<doctor::Verdict> own = all_verdicts(kernel);
    verdicts.insert(verdicts.end(), own.begin(), own.end());
    stale += kernel.stale;
  }
  if (options.json) {
    nlohmann::json out = {{"kernels", nlohmann::json::array()}, {"verdicts", doctor::as_json(verdicts)}};
    for (const jupyter::Kernel& kernel : kernels) out["kernels"].push_back(kernel_json(kernel));
    print_json(out);
  } else {
    const bool colour = isatty(STDOUT_FILENO);
    for (const jupyter::Kernel& kernel : kernels) {
      print_kernel(kernel, colour);
      std::printf("\n");
    }
    std::printf("%s, %zu stale\n", support::counted(kernels.size(), "kernel").c_str(), stale);
  }
  return exit_code(verdicts);
}

void print_installed(const jupyter::KernelInstalled& done, const Options& options) {
  using support::printable;
  const jupyter::KernelAnswer& answer = done.answer;
  if (!done.placed.empty()) print_row(done.placed.c_str(), printable(done.folder) + "/kernel.json");
  if (answer.started)
    print_row("started", "Python " + printable(answer.python_version) + "  " + printable(answer.executable));
  for (const jupyter::KernelImport& item : answer.imports)
    print_row(item.error.empty() ? "imported" : "FAILED", printable(item.module + " " + item.version));
  if (!answer.cuda.empty())
    print_row("cuda",
              printable(answer.cuda) + ", " +
                  (answer.gpus.empty() ? "torch sees no GPU here" : printable(support::joined(answer.gpus, ", "))));
  for (const doctor::Verdict& verdict : done.verdicts)
    std::printf("%s", doctor::verdict_text(verdict, isatty(STDOUT_FILENO)).c_str());
  if (!done.placed.empty() && !options.request.prefix.empty())
    std::printf("A Jupyter that runs in %s offers it; for another one: JUPYTER_PATH=%s/share/jupyter\n",
                options.request.prefix.c_str(), options.request.prefix.c_str());
}

int run_install(Options& options) {
  for (const std::string& setting : options.env) {
    const std::size_t equals = setting.find('=');
    if (equals == setting.npos || equals == 0)
      throw std::runtime_error("--env is \"" + support::printable(setting) + "\", want NAME=VALUE");
    options.request.env[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  support::take_stop_signals();  // Ctrl-C ends the trial, and the registration is taken back
  const jupyter::KernelInstalled done = jupyter::install_kernel(doctor::outlook_here(), options.request);
  if (options.json) {
    nlohmann::json imports = nlohmann::json::array();
    for (const jupyter::KernelImport& item : done.answer.imports)
      imports.push_back({{"module", item.module}, {"version", item.version}, {"error", item.error}});
    print_json({{"name", done.name},
                {"folder", done.folder},
                {"python", done.python},
                {"placed", done.placed},
                {"started", done.answer.started},
                {"executable", done.answer.executable},
                {"python_version", done.answer.python_version},
                {"cuda", done.answer.cuda},
                {"gpus", done.answer.gpus},
                {"imports", imports},
                {"verdicts", doctor::as_json(done.verdicts)}});
  } else {
    print_installed(done, options);
  }
  return exit_code(done.verdicts);
}

// The Python that a notebook's kernel starts; the active one where it names none.
std::string python_of_notebook(const Options& options, doctor::Survey& survey) {
  if (!options.notebook.python.empty()) {
    const doctor::PythonInstall* python = doctor::find_python(survey, options.notebook.python);
    if (!python)
      throw std::runtime_error("--python is " + support::printable(options.notebook.python) + ", which is no Python");
    return python->program;
  }
  for (const jupyter::Kernel& kernel : jupyter::list_kernels(survey))
    if (kernel.name == options.notebook.kernel && kernel.python) return kernel.python->program;
  const doctor::PythonInstall* python = doctor::default_python(survey);
  if (!python) throw std::runtime_error("no Python is here; name one: --python PATH");
  return python->program;
}

int run_notebook(Options& options) {
  doctor::Survey survey = doctor::survey(doctor::outlook_here());
  options.notebook.python = python_of_notebook(options, survey);
  support::take_stop_signals();
  const jupyter::NotebookAnswer answer = jupyter::run_notebook(options.notebook);
  const doctor::PythonInstall* python = doctor::find_python(survey, options.notebook.python);
  const auto verdicts = jupyter::judge_notebook(options.notebook, answer, environment_of(survey, python));
  if (options.json) {
    print_json({{"notebook", options.notebook.notebook},
                {"kernel", answer.kernel},
                {"python", options.notebook.python},
                {"cells", answer.cells},
                {"failed_cell", answer.failed_cell},
                {"error", answer.error},
                {"verdicts", doctor::as_json(verdicts)}});
  } else {
    for (const doctor::Verdict& verdict : verdicts)
      std::printf("%s", doctor::verdict_text(verdict, isatty(STDOUT_FILENO)).c_str());
    if (answer.failed_cell == 0)
      std::printf("%s ran in %s\n", support::counted(std::size_t(answer.cells), "code cell").c_str(),
                  support::printable(options.notebook.python).c_str());
  }
  return answer.failed_cell ? kFailed : kOk;
}

int run_running(const Options& options) {
  const auto is_asked_for = [&](const jupyter::RunningKernel& kernel) {
    const auto& wanted = options.restart;
    return std::find(wanted.begin(), wanted.end(), kernel.process) != wanted.end() ||
           (options.restart_all && !kernel.replaced.empty());
  };
  std::vector<doctor::Verdict> left;
  bool all_ended = true;
  nlohmann::json out = nlohmann::json::array();
  const std::vector<jupyter::RunningKernel> kernels = jupyter::running_kernels(support::Files());
  for (const std::int64_t process : options.restart)
    if (std::none_of(kernels.begin(), kernels.end(), [&](const auto& k) { return k.process == process; }))
      throw std::runtime_error("--restart is " + std::to_string(process) + ", which is no running kernel");
  for (const jupyter::RunningKernel& kernel : kernels) {
    const std::vector<doctor::Verdict> verdicts = jupyter::judge_running(kernel);
    jupyter::Restarted restarted;
    const bool is_asked = is_asked_for(kernel);
    if (is_asked) restarted = jupyter::restart_kernel(kernel, 30);
    all_ended &= !is_asked || restarted.ended;
    if (!restarted.ended) left.insert(left.end(), verdicts.begin(), verdicts.end());
    out.push_back({{"process", kernel.process},
                   {"connection_file", kernel.connection_file},
                   {"program", kernel.program},
                   {"replaced", kernel.replaced},
                   {"restarted_as", restarted.process},
                   {"ended", restarted.ended},
                   {"verdicts", doctor::as_json(verdicts)}});
    if (options.json) continue;
    std::printf("%d  %s\n", kernel.process, support::printable(kernel.program).c_str());
    print_row("file", support::printable(kernel.connection_file));
    if (!is_asked)
      for (const doctor::Verdict& verdict : verdicts)
        std::printf("%s", doctor::verdict_text(verdict, isatty(STDOUT_FILENO)).c_str());
    if (restarted.process)
      print_row("again", "ended, and started again by Jupyter as process " + std::to_string(restarted.process));
    else if (restarted.ended)
      print_row("ended", "nothing started it again: Kernel > Restart in the notebook does");
    else if (is_asked)
      print_row("FAILED", "it could not be ended: another user's, or it waits for a disk");
  }
  if (options.json) print_json({{"kernels", out}, {"verdicts", doctor::as_json(left)}});
  if (!options.json && kernels.empty()) std::printf("no kernel of Python's is running\n");
  return all_ended ? exit_code(left) : kFailed;
}

}  // namespace

Verb jupyter_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("jupyter", "Kernels of Jupyter: what loads in each; a Python made one and tried");
  verb->require_subcommand();
  options->list = verb->add_subcommand("list", "Every kernel, its Python, its torch, and what loads in it");
  options->list->add_flag("--json", options->json, "print JSON");
  options->list->footer(
      "Nothing that is found is started or imported. Kernels whose interpreter or folder is gone are named as stale.\n"
      "Exit codes: 0 nothing is wrong; 1 a kernel, or a package in one, will fail; 2 it cannot be told.");
  options->install =
      verb->add_subcommand("install", "Register a Python as a kernel, start it once and check it inside");
  Command* install = options->install;
  jupyter::KernelRequest& request = options->request;
  install->add_option("--python", request.python, "a program, or the folder of an environment")->required();
  install->add_option("--name", request.name, "short name: letters, digits, dots, dashes, underscores")->required();
  install->add_option("--display-name", request.display_name, "what people see")->required();
  install->add_option("--prefix", request.prefix, "into DIR/share/jupyter/kernels, for the Jupyter of that environment")
      ->type_name("DIR");
  install->add_flag("--user", options->user, "into the user's own folder (the default)")->excludes("--prefix");
  install->add_option("--env", options->env, "a variable of the kernel; may be given several times")
      ->type_name("NAME=VALUE")
      ->take_all();
  install->add_flag("--replace", request.replace, "over a different kernel of that name");
  install->add_option("--timeout", request.limit_seconds, "seconds that the start may take")
      ->capture_default_str()
      ->range(1.0, 3600.0);
  install->add_flag("--json", options->json, "print JSON");
  install->footer(
      "Asks that Python's own ipykernel for the registration, writes it in one step, starts the kernel through\n"
      "jupyter_client and imports torch and the attention packages in it. A kernel that does not start is taken back.\n"
      "Exit codes: 0 registered and it works; 1 it does not start (nothing is left), or an import fails in it;\n"
      "2 bad usage, or another kernel has the name.");
  options->run = verb->add_subcommand("run", "Run a notebook; say which cell failed, and why");
  options->run->add_option("notebook", options->notebook.notebook, "a file .ipynb")->required()->type_name("NOTEBOOK");
  options->run->add_option("--python", options->notebook.python, "a program, or the folder of an environment");
  options->run->add_option("--kernel", options->notebook.kernel, "its name (default: the one that the notebook names)");
  options->run->add_option("--timeout", options->notebook.limit_seconds, "seconds that all cells together may take")
      ->capture_default_str()
      ->range(1.0, 1e6);
  options->run->add_flag("--json", options->json, "print JSON");
  options->run->footer(
      "The notebook's file is not changed. Exit codes: 0 all cells ran; 1 one failed; 2 it could not be tried.");
  options->running = verb->add_subcommand("running", "Kernels that run now, and those that hold replaced modules");
  options->running->add_option("--restart", options->restart, "end this process; Jupyter starts it again")
      ->type_name("PROCESS");
  options->running->add_flag("--restart-old", options->restart_all,
                             "the same for every one that holds a replaced module");
  options->running->add_flag("--json", options->json, "print JSON");
  options->running->footer(
      "A kernel that imported a compiled module before it was replaced goes on with the old one; its open files tell.\n"
      "Exit codes: 0 none does; 1 one does, or could not be ended; 2 it cannot be told.");
  verb->footer(
      "Examples:\n"
      "  mica jupyter list\n"
      "  mica jupyter running --restart-old\n"
      "  mica jupyter run train.ipynb --python ~/venv\n"
      "  mica jupyter install --python ~/venv --name torch28 --display-name \"PyTorch 2.8\"\n"
      "  mica jupyter install --python ~/venv --name torch28 --display-name \"PyTorch 2.8\" \\\n"
      "      --env LD_LIBRARY_PATH=/opt/cuda/lib64 --replace");
  return {verb, [options] {
            if (options->list->is_given()) return run_list(*options);
            if (options->run->is_given()) return run_notebook(*options);
            if (options->running->is_given()) return run_running(*options);
            return run_install(*options);
          }};
}

}  // namespace cli
