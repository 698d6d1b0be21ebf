// SPDX-License-Identifier: Apache-2.0
#include "jupyter/kernels.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>

#include "doctor/judge/installed.h"
#include "support/quote.h"
#include "support/text.h"

namespace jupyter {

using namespace support;

namespace {

using doctor::make_verdict;
using doctor::Outlook;
using doctor::PythonInstall;
using support::Files;

constexpr std::size_t kMostKernels = 1000;

struct Place {
  std::string folder;  // that holds kernels/
  std::string scope;
  std::string prefix;  // of the environment whose Jupyter looks there; empty: any
};

std::vector<Place> places(const doctor::Survey& survey) {
  const Outlook& outlook = survey.outlook;
  std::vector<Place> out;
  const auto add = [&](const std::string& folder, const std::string& scope, const std::string& prefix) {
    if (folder.empty() || folder[0] != '/') return;
    for (const Place& place : out)
      if (place.folder == folder) return;
    out.push_back({folder, scope, prefix});
  };
  for (const std::string& folder : support::split(outlook.variable("JUPYTER_PATH"), ':'))
    add(folder, "JUPYTER_PATH", "");
  add(user_jupyter_folder(outlook), "user", "");
  for (const char* prefix : {"/usr/local", "/usr"}) add(std::string(prefix) + "/share/jupyter", "system", "");
  if (!outlook.home().empty()) add(outlook.home() + "/.ipython", "user", "");
  for (const PythonInstall& python : survey.pythons)
    add(python.prefix + "/share/jupyter", "environment " + python.prefix, python.prefix);
  return out;
}

std::string replaced_all(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// Jupyter starts these as the Python that it runs in itself.
bool is_jupyters_own(const std::string& word) {
  return word == "python" || word == "python3" ||
         (word.starts_with("python3.") && word.find_first_not_of("0123456789", 8) == word.npos);
}

bool looks_like_python(const Files& files, const std::string& path) {
  const auto is_name = [](std::string name) {
    if (name.size() > 8 && name.back() == 't') name.pop_back();  // python3.13t
    return is_jupyters_own(name) || name == "pypy" || name.starts_with("pypy3");
  };
  const auto resolved = files.resolve(path);
  return is_name(support::base_name(path)) || (resolved && is_name(support::base_name(*resolved)));
}

// "${HOME}/lib:$OTHER" as Jupyter fills it in from its own environment; names that are not set stay.
std::string filled_in(const std::string& text, const Outlook& outlook) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$') {
      out += text[i];
      continue;
    }
    const bool braces = i + 1 < text.size() && text[i + 1] == '{';
    const std::size_t begin = i + 1 + braces;
    std::size_t end = begin;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    const bool closed = !braces || (end < text.size() && text[end] == '}');
    const auto found = outlook.variables.find(text.substr(begin, end - begin));
    if (end == begin || !closed || found == outlook.variables.end()) {
      out += '$';
      continue;
    }
    out += found->second;
    i = end - 1 + braces;
  }
  return out;
}

class Reader {
 public:
  explicit Reader(doctor::Survey& survey) : survey_(survey), files_(survey.outlook.files) {}

  std::vector<Kernel> read_all() {
    std::vector<Kernel> out;
    for (const Place& place : places(survey_))
      for (const std::string& name : files_.list(place.folder + "/kernels"))
        if (out.size() < kMostKernels)
          if (auto kernel = read(place, name)) out.push_back(std::move(*kernel));
    note_shadowed(out);
    return out;
  }

 private:
  std::optional<Kernel> read(const Place& place, const std::string& name) {
    Kernel kernel;
    kernel.name = support::lower(name);
    kernel.folder = place.folder + "/kernels/" + name;
    kernel.scope = place.scope;
    if (!files_.resolve(kernel.folder)) {
      stale(kernel, "its folder is gone",
            "The entry is a link to " + support::printable(files_.link(kernel.folder)) + ", which is not there.",
            "rm " + shell_quoted(kernel.folder));
      return kernel;
    }
    const std::string file = kernel.folder + "/kernel.json";
    if (!files_.is_folder(kernel.folder) || (!files_.resolve(file) && files_.link(file).empty())) return std::nullopt;
    if (!is_kernel_name(name))
      kernel.verdicts.push_back(
          make_verdict({.code = "JUPYTER_KERNEL_SPEC",
                        .subject = kernel.folder,
                        .message = "Jupyter does not list this kernel",
                        .cause = "The name of its folder has characters other than letters, digits, "
                                 "dots, dashes and underscores.",
                        .fix = "give the folder another name"}));
    const auto text = files_.read(file);
    try {
      if (!text) throw std::runtime_error("it cannot be read, or is larger than 1 MiB");
      kernel.spec = doctor::parse_kernel_spec(*text);
    } catch (const std::exception& e) {
      kernel.verdicts.push_back(make_verdict(
          {.code = "JUPYTER_KERNEL_SPEC",
           .subject = file,
           .message = e.what(),
           .cause = "Jupyter cannot start a kernel from this file.",
           .fix = "rm -r " + shell_quoted(kernel.folder) + ", and register it again with mica jupyter install"}));
      return kernel;
    }
    find_interpreter(kernel, place);
    if (kernel.python) judge(kernel);
    return kernel;
  }

  void stale(Kernel& kernel, const std::string& message, const std::string& cause, const std::string& fix) {
    kernel.stale = true;
    kernel.verdicts.push_back(make_verdict({.code = "JUPYTER_KERNEL_STALE",
                                            .subject = kernel.name,
                                            .message = message,
                                            .cause = cause,
                                            .fix = fix,
                                            .evidence = {kernel.folder}}));
  }

  void find_interpreter(Kernel& kernel, const Place& place) {
    const Outlook& outlook = survey_.outlook;
    const doctor::KernelSpec& spec = *kernel.spec;
    std::string word = replaced_all(spec.argv[0], "{resource_dir}", kernel.folder);
    if (!place.prefix.empty()) word = replaced_all(word, "{prefix}", place.prefix);
    if (is_jupyters_own(word)) {
      for (const char* name : {"/bin/python", "/bin/python3"})
        if (kernel.program.empty() && !place.prefix.empty() && files_.is_executable(place.prefix + name))
          kernel.program = place.prefix + name;
      if (kernel.program.empty()) {
        kernel.verdicts.push_back(
            make_verdict({.code = "JUPYTER_PYTHON_VARIES",
                          .subject = kernel.name,
                          .message = "argv[0] is " + word + ": the Python of whatever Jupyter starts it",
                          .cause = "Jupyter replaces this word by the Python that it runs in itself, so the kernel is "
                                   "another one in each "
                                   "environment.",
                          .fix = "mica jupyter install --python PATH --name " + shell_quoted(kernel.name) +
                                 " --display-name NAME --replace names one Python",
                          .evidence = {kernel.folder + "/kernel.json"}}));
        return;
      }
    } else if (word.find('/') == word.npos) {
      Outlook inside = outlook;
      if (const auto path = spec.env.find("PATH"); path != spec.env.end())
        inside.variables["PATH"] = filled_in(path->second, outlook);
      const auto found = inside.on_path(word);
      if (found.empty())
        return stale(kernel, support::printable(word) + " is not to be found on PATH",
                     "The program that is the kernel was removed, or lies in a folder that PATH does not name here.",
                     removal(kernel));
      kernel.program = found[0];
    } else {
      kernel.program = word;
    }
    if (!files_.is_executable(kernel.program)) return gone(kernel);
    find_python(kernel);
  }

  void gone(Kernel& kernel) {
    std::string cause = "The environment that it belonged to was removed or moved.";
    const std::string link = files_.link(kernel.program);
    if (!link.empty()) cause = "It is a link to " + support::printable(link) + ", which is not there any more.";
    const bool is_there = files_.resolve(kernel.program).has_value();
    if (is_there) cause = "There is something of that name, but no program that may be executed.";
    stale(kernel, "its interpreter " + support::printable(kernel.program) + (is_there ? " is no program" : " is gone"),
          cause, removal(kernel));
  }

  static std::string removal(const Kernel& kernel) {
    return "rm -r " + shell_quoted(kernel.folder) + ", or register it again: mica jupyter install --replace --name " +
           shell_quoted(kernel.name) + " --python PATH --display-name NAME";
  }

  // The program itself, or a Python among the words of a wrapper's command line.
  void find_python(Kernel& kernel) {
    std::vector<std::string> candidates = {kernel.program};
    const std::vector<std::string>& argv = kernel.spec->argv;
    candidates.insert(candidates.end(), argv.begin() + 1, argv.end());
    for (const std::string& candidate : candidates) {
      if (candidate.empty() || candidate[0] != '/' || !looks_like_python(files_, candidate)) continue;
      if (candidate != kernel.program && !files_.is_executable(candidate)) {
        kernel.program = candidate;
        return gone(kernel);
      }
      if (const PythonInstall* python = doctor::find_python(survey_, candidate)) {
        kernel.program = candidate;
        kernel.python = *python;
        return;
      }
    }
    if (support::lower(kernel.spec->language) == "python" || kernel.spec->language.empty())
      kernel.verdicts.push_back(
          make_verdict({.code = "CANNOT_TELL",
                        .subject = kernel.name,
                        .message = "starts through " + support::printable(kernel.program),
                        .cause = "No word of its command line is the path of a Python, so what it can load cannot be "
                                 "told from its files.",
                        .evidence = {support::printable(support::joined(kernel.spec->argv, " "))}}));
  }

  bool has_module(const PythonInstall& python, const std::string& module, const doctor::KernelSpec& spec) const {
    std::vector<std::string> folders = python.facts.site_packages;
    if (const auto path = spec.env.find("PYTHONPATH"); path != spec.env.end())
      for (const std::string& folder : support::split(filled_in(path->second, survey_.outlook), ':'))
        folders.push_back(folder);
    return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
      return folder.starts_with("/") &&
             (files_.is_file(folder + "/" + module + ".py") || files_.is_folder(folder + "/" + module));
    });
  }

  void judge(Kernel& kernel) {
    const doctor::KernelSpec& spec = *kernel.spec;
    const auto flag = std::find(spec.argv.begin(), spec.argv.end(), "-m");
    if (flag != spec.argv.end() && flag + 1 != spec.argv.end()) {
      const std::string module = (flag + 1)->substr(0, (flag + 1)->find('.'));
      const bool is_word = is_kernel_name(module);
      if (is_word && !has_module(*kernel.python, module, spec))
        kernel.verdicts.push_back(make_verdict(
            {.code = "JUPYTER_NO_IPYKERNEL",
             .subject = kernel.name,
             .message = kernel.program + ": No module named " + module,
             .cause = "The Python is there, and the package that makes it a kernel is not installed in it (any more).",
             .fix = ipykernel_command(survey_.outlook, *kernel.python)}));
    }
    std::string library_path;
    if (const auto found = spec.env.find("LD_LIBRARY_PATH"); found != spec.env.end())
      library_path = filled_in(found->second, survey_.outlook);
    const std::string key = kernel.python->prefix + '\n' + kernel.python->facts.version.text() + '\n' + library_path;
    auto known = judged_.find(key);
    if (known == judged_.end()) {
      doctor::Environment target = environment_of(survey_, &*kernel.python);
      if (!library_path.empty()) target.loader.library_path = support::split(library_path, ':');
      known = judged_.emplace(key, judge_installed(survey_, *kernel.python, target)).first;
    }
    kernel.judged = known->second;
  }

  // Within what every Jupyter sees, the first of a name wins.
  static void note_shadowed(std::vector<Kernel>& kernels) {
    std::map<std::string, std::string> winners;
    for (Kernel& kernel : kernels) {
      if (kernel.scope.starts_with("environment ")) continue;
      const auto [winner, is_first] = winners.emplace(kernel.name, kernel.folder);
      if (!is_first)
        kernel.verdicts.push_back(
            make_verdict({.code = "JUPYTER_KERNEL_SHADOWED",
                          .subject = kernel.name,
                          .message = "hidden by " + support::printable(winner->second),
                          .cause = "Two kernels have one name; Jupyter shows the one it finds first.",
                          .fix = "remove one of the two folders",
                          .evidence = {kernel.folder}}));
    }
  }

  doctor::Survey& survey_;
  const Files files_;
  std::map<std::string, std::vector<doctor::Judged>> judged_;
};

}  // namespace

std::string user_jupyter_folder(const Outlook& outlook) {
  if (const std::string folder = outlook.variable("JUPYTER_DATA_DIR"); !folder.empty()) return folder;
  if (const std::string folder = outlook.variable("XDG_DATA_HOME"); !folder.empty()) return folder + "/jupyter";
  return outlook.home().empty() ? "" : outlook.home() + "/.local/share/jupyter";
}

bool is_kernel_name(std::string_view name) {
  return !name.empty() && name.size() <= 100 && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return (c < 128 && std::isalnum(c)) || c == '.' || c == '-' || c == '_'; });
}

std::string ipykernel_command(const Outlook& outlook, const PythonInstall& python) {
  const std::string program = shell_quoted(python.program);
  if (python.package("pip")) return program + " -m pip install ipykernel";
  if (python.kind == "conda") return "conda install -p " + shell_quoted(python.prefix) + " ipykernel";
  if (!outlook.on_path("uv").empty()) return "uv pip install --python " + program + " ipykernel";
  return program + " -m ensurepip && " + program + " -m pip install ipykernel";
}

std::vector<Kernel> list_kernels(doctor::Survey& survey) { return Reader(survey).read_all(); }

}  // namespace jupyter
