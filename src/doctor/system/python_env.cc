// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/python_env.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "doctor/facts/tags.h"
#include "doctor/system/kernel_spec_json.h"
#include "doctor/system/torch_env.h"
#include "support/package_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// "key = value" of pyvenv.cfg.
std::string setting(const std::string& text, const std::string& key) {
  for (const std::string& line : split(text, '\n')) {
    const std::size_t equals = line.find('=');
    if (equals != line.npos && lower(trimmed(line.substr(0, equals))) == key)
      return std::string(trimmed(line.substr(equals + 1)));
  }
  return "";
}

// 'SOABI': 'cpython-312-x86_64-linux-gnu', of _sysconfigdata: the text after the key, without quotes.
std::string build_variable(const std::string& text, const std::string& key) {
  const std::size_t at = text.find("'" + key + "':");
  if (at == text.npos) return "";
  const std::size_t begin = text.find_first_not_of(" \n'", at + key.size() + 3);
  const std::size_t end = begin == text.npos ? begin : text.find_first_of("',\n}", begin);
  return end == text.npos ? "" : text.substr(begin, end - begin);
}

// 3.12 of "python3.12" or "python3.13t"; not known for "python3".
Version version_of_name(const std::string& name) {
  return name.rfind("python3.", 0) == 0 ? parse_version(name.substr(6)) : Version{};
}

bool is_python_name(const std::string& name) {
  return name == "python" || name == "python3" || (version_of_name(name).known() && name.find('-') == name.npos);
}

struct StandardLibrary {
  std::string folder;  // /usr/lib/python3.12
  Version version;
  bool free_threaded = false;
};

// lib/python3.X of a prefix: the one of `wanted`, else the only or the newest one.
std::optional<StandardLibrary> find_library(const Files& files, const std::string& prefix, const Version& wanted) {
  std::optional<StandardLibrary> best;
  for (const char* lib : {"/lib", "/lib64"})
    for (const std::string& name : files.list(prefix + lib)) {
      const Version version = version_of_name(name);
      const bool has_files = version.known() && (files.is_file(prefix + lib + "/" + name + "/os.py") ||
                                                 files.is_folder(prefix + lib + "/" + name + "/site-packages"));
      if (!has_files || (wanted.known() && version.minor_part() != wanted.minor_part())) continue;
      if (!best || best->version < version) best = {prefix + lib + "/" + name, version, name.back() == 't'};
    }
  return best;
}

// The third number stands in no single place.
Version full_version(const Files& files, const std::string& base_prefix, const StandardLibrary& library) {
  const std::string name = base_name(library.folder);
  const auto fits = [&](const Version& v) {
    return v.parts.size() >= 3 && v.major_part() == 3 && v.minor_part() == library.version.minor_part();
  };
  const std::string header = files.read(base_prefix + "/include/" + name + "/patchlevel.h").value_or("");
  if (const std::size_t at = header.find("#define PY_VERSION "); at != header.npos)
    if (const std::size_t quote = header.find('"', at); quote != header.npos)
      if (const Version v = parse_version(header.substr(quote + 1, 20)); fits(v)) return v;
  for (const std::string& file : files.match(base_prefix + "/conda-meta/python-3*.json"))
    if (const Version v = parse_version(base_name(file).substr(7)); fits(v)) return v;
  std::string folder = base_name(base_prefix);  // pyenv: 3.12.4; uv: cpython-3.12.4-linux-x86_64-gnu
  if (folder.rfind("cpython-", 0) == 0) folder.erase(0, 8);
  if (const Version v = parse_version(folder); fits(v)) return v;
  return library.version;
}

void read_build(const Files& files, const StandardLibrary& library, const std::string& machine, PythonFacts& facts) {
  facts.free_threaded = library.free_threaded;
  for (const std::string& file : files.match(library.folder + "/_sysconfigdata_*.py")) {
    const std::string name = base_name(file);
    const bool is_own = name.rfind("_sysconfigdata__", 0) == 0 || name.rfind("_sysconfigdata_t_", 0) == 0 ||
                        name.rfind("_sysconfigdata_d_", 0) == 0 || name.rfind("_sysconfigdata_td_", 0) == 0;
    const std::string text = is_own ? files.read(file, 4 << 20).value_or("") : "";
    const std::string soabi = build_variable(text, "SOABI");
    if (soabi.empty()) continue;
    facts.soabi = soabi;
    facts.free_threaded |= build_variable(text, "Py_GIL_DISABLED") == "1";
    facts.debug |= build_variable(text, "Py_DEBUG") == "1";
    return;
  }
  if (!machine.empty())
    // Up to 3.7 the name has an m, for the allocator.
    facts.soabi = "cpython-3" + std::to_string(library.version.minor_part()) +
                  (facts.free_threaded                 ? "t-"
                   : library.version.minor_part() <= 7 ? "m-"
                                                       : "-") +
                  machine + "-linux-gnu";
}

// Lines of *.pth files that name folders. (Lines that begin with "import" are code, and are not looked at.)
void add_paths_of_pth(const Files& files, const std::string& site, std::vector<std::string>& out) {
  for (const std::string& name : files.list(site)) {
    if (name.size() < 5 || name.substr(name.size() - 4) != ".pth") continue;
    for (const std::string& line : split(files.read(site + "/" + name, 1 << 16).value_or(""), '\n')) {
      const std::string path(trimmed(line));
      if (path.empty() || path[0] == '#' || path.rfind("import", 0) == 0 || out.size() > 100) continue;
      if (const std::string folder = join_path(site, path); files.is_folder(folder)) out.push_back(folder);
    }
  }
}

void add_sites(const Outlook& outlook, const std::string& config, const std::string& name, PythonInstall& python) {
  const Files& files = outlook.files;
  std::vector<std::string> sites;
  const auto add = [&](const std::string& folder) {
    if (files.is_folder(folder) && std::find(sites.begin(), sites.end(), folder) == sites.end())
      sites.push_back(folder);
  };
  for (const std::string& folder : split(outlook.variable("PYTHONPATH"), ':'))
    if (!folder.empty()) add(join_path(outlook.folder, folder));
  const bool is_virtual = !config.empty();
  const bool sees_system = !is_virtual || lower(setting(config, "include-system-site-packages")) == "true";
  const auto add_of = [&](const std::string& prefix) {
    for (const char* lib : {"/lib/", "/lib64/"}) add(prefix + lib + name + "/site-packages");
    if (prefix == "/usr") {  // Debian
      add("/usr/local/lib/" + name + "/dist-packages");
      add("/usr/local/lib/" + name + "/site-packages");
      add("/usr/lib/python3/dist-packages");
    }
    if (prefix == "/usr/local") add("/usr/local/lib/" + name + "/dist-packages");
  };
  // Python looks into the prefix first and then into the user's folder, except where there is no virtual environment.
  if (is_virtual) add_of(python.prefix);
  const std::string user_base = outlook.variable("PYTHONUSERBASE").empty()
                                    ? (outlook.home().empty() ? "" : outlook.home() + "/.local")
                                    : join_path(outlook.folder, outlook.variable("PYTHONUSERBASE"));
  if (sees_system && !user_base.empty() && outlook.variable("PYTHONNOUSERSITE").empty())
    add(user_base + "/lib/" + name + "/site-packages");
  if (sees_system) add_of(python.base_prefix);
  const std::size_t own = sites.size();
  for (std::size_t i = 0; i < own; ++i) {
    const std::string site = sites[i];
    add_paths_of_pth(files, site, sites);
  }
  python.facts.site_packages = std::move(sites);
}

void add_packages(const Files& files, PythonInstall& python) {
  for (const std::string& site : python.facts.site_packages)
    for (const std::string& name : files.list(site)) {
      constexpr std::string_view kEnd = ".dist-info";
      if (name.size() <= kEnd.size() || name.substr(name.size() - kEnd.size()) != kEnd) continue;
      const std::string stem = name.substr(0, name.size() - kEnd.size());
      const std::size_t dash = stem.rfind('-');
      if (dash == stem.npos) continue;
      InstalledPackage package{normalised_package(stem.substr(0, dash)), stem.substr(dash + 1), site, name};
      if (!python.package(package.name)) python.packages.push_back(std::move(package));  // the first one is imported
    }
}

std::string kind_of(const Files& files, const PythonInstall& python, bool is_virtual) {
  if (is_virtual) return "virtual environment";
  if (files.is_folder(python.prefix + "/conda-meta")) return "conda";
  if (python.prefix.find("/.pyenv/versions/") != python.prefix.npos) return "pyenv";
  if (python.prefix.find("/uv/python/") != python.prefix.npos) return "uv";
  return "system";
}

// pyenv puts scripts on PATH that start the version chosen elsewhere.
std::string behind_shim(const Outlook& outlook, const std::string& program) {
  const std::size_t shims = program.rfind("/shims/");
  if (shims == program.npos) return program;
  const std::string root = program.substr(0, shims);
  std::string version = outlook.variable("PYENV_VERSION");
  for (std::string folder = outlook.folder; version.empty() && !folder.empty(); folder = folder_name(folder))
    version = trimmed(outlook.files.read(folder + "/.python-version", 4096).value_or(""));
  if (version.empty()) version = trimmed(outlook.files.read(root + "/version", 4096).value_or(""));
  version = version.substr(0, version.find_first_of("\n:"));
  const std::string name = base_name(program);
  for (const std::string& folder : {root + "/versions/" + version})
    if (!version.empty() && outlook.files.is_executable(folder + "/bin/" + name)) return folder + "/bin/" + name;
  return "";
}

}  // namespace

const InstalledPackage* PythonInstall::package(const std::string& name) const {
  for (const InstalledPackage& package : packages)
    if (package.name == name) return &package;
  return nullptr;
}

std::optional<PythonInstall> read_python(const Outlook& outlook, const std::string& given, const std::string& machine) {
  const Files& files = outlook.files;
  const std::string program = behind_shim(outlook, given);
  const auto resolved = program.empty() ? std::nullopt : files.resolve(program);
  const bool is_named_so = base_name(program).rfind("python", 0) == 0;
  if (!resolved || !is_named_so || !files.is_executable(program)) return std::nullopt;
  PythonInstall python;
  python.program = program;
  python.facts.executable = *resolved;
  // A virtual environment is known by a file beside the folder that its (unresolved) program lies in.
  const std::string folder = files.resolve(folder_name(program)).value_or(folder_name(program));
  std::string config_folder = folder_name(folder);
  std::string config = files.read(config_folder + "/pyvenv.cfg", 1 << 16).value_or("");
  if (config.empty()) {
    config = files.read(folder + "/pyvenv.cfg", 1 << 16).value_or("");
    if (!config.empty()) config_folder = folder;
  }
  python.base_prefix = folder_name(folder_name(*resolved));
  if (const std::string home = setting(config, "home"); !home.empty() && files.is_folder(home))
    python.base_prefix = folder_name(files.resolve(home).value_or(home));
  python.prefix = config.empty() ? python.base_prefix : config_folder;
  if (python.base_prefix.empty()) python.base_prefix = "/";
  if (python.base_prefix == "/" || python.base_prefix == "/bin") python.base_prefix = "/usr";  // /bin is /usr/bin
  if (config.empty()) python.prefix = python.base_prefix;

  Version wanted = version_of_name(base_name(*resolved));
  if (!wanted.known()) wanted = parse_version(setting(config, "version"));
  if (!wanted.known()) wanted = parse_version(setting(config, "version_info"));
  const auto library = find_library(files, python.base_prefix, wanted);
  if (!library) {
    if (!wanted.known()) return std::nullopt;
    python.problems.push_back("its standard library was not found below " + python.base_prefix);
    python.facts.version = wanted;
    return python;
  }
  python.facts.version = full_version(files, python.base_prefix, *library);
  read_build(files, *library, machine, python.facts);
  add_sites(outlook, config, base_name(library->folder), python);
  add_packages(files, python);
  python.kind = kind_of(files, python, !config.empty());
  python.torch = read_torch(files, python);
  return python;
}

namespace {

// Programs that lead to Pythons, with how each was found.
class Candidates {
 public:
  explicit Candidates(const Outlook& outlook) : outlook_(outlook), files_(outlook.files) {}

  void add(const std::string& program, const std::string& found_by) {
    if (files_.is_executable(program) && list_.size() < 400) list_.emplace_back(program, found_by);
  }
  // A folder with bin/python in it.
  void add_prefix(const std::string& prefix, const std::string& found_by) {
    for (const char* name : {"/bin/python", "/bin/python3"})
      if (files_.is_executable(prefix + name)) return add(prefix + name, found_by);
  }
  void add_prefixes(const std::string& pattern, const std::string& found_by) {
    for (const std::string& prefix : files_.match(pattern)) add_prefix(prefix, found_by);
  }
  void add_path() {
    for (const char* name : {"python", "python3"})
      for (const std::string& program : outlook_.on_path(name)) add(program, "PATH");
    for (const std::string& folder : outlook_.path())
      for (const std::string& name : files_.list(folder))
        if (is_python_name(name)) add(join_path(folder, name), "PATH");
  }
  void add_kernels(const std::string& folder) {
    for (const std::string& file : files_.match(folder + "/kernels/*/kernel.json")) {
      try {
        const std::string program = parse_kernel_spec(files_.read(file).value_or("")).argv[0];
        if (program[0] == '/') add(program, "Jupyter kernel " + base_name(folder_name(file)));
      } catch (const std::runtime_error&) {
        // No kernel starts from it: `mica jupyter list` says why.
      }
    }
  }
  const std::vector<std::pair<std::string, std::string>>& list() const { return list_; }

 private:
  const Outlook& outlook_;
  const Files& files_;
  std::vector<std::pair<std::string, std::string>> list_;
};

}  // namespace

std::vector<PythonInstall> read_pythons(const Outlook& outlook, const std::string& machine) {
  const std::string home = outlook.home();
  Candidates candidates(outlook);
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const std::string prefix = outlook.variable(variable); !prefix.empty()) candidates.add_prefix(prefix, variable);
  candidates.add_path();
  for (const char* name : {"/.venv", "/venv", "/env"}) candidates.add_prefix(outlook.folder + name, "current folder");
  for (const char* pattern : {"/opt/venv*", "/venv", "/opt/conda", "/opt/*conda*", "/opt/mini*", "/opt/conda/envs/*",
                              "/opt/*conda*/envs/*", "/opt/python*", "/usr/local/python*"})
    candidates.add_prefixes(pattern, "usual folder");
  if (!home.empty()) {
    for (const char* pattern : {"/.venv", "/venv", "/.venvs/*", "/.virtualenvs/*", "/venvs/*", "/*conda*", "/mini*",
                                "/mamba*", "/*conda*/envs/*", "/mini*/envs/*", "/mamba*/envs/*", "/micromamba/envs/*"})
      candidates.add_prefixes(home + pattern, "home folder");
    for (const std::string& line : split(outlook.files.read(home + "/.conda/environments.txt").value_or(""), '\n'))
      if (!line.empty()) candidates.add_prefix(std::string(trimmed(line)), "conda");
    candidates.add_prefixes(home + "/.local/share/uv/python/*", "uv");
    candidates.add_kernels(home + "/.local/share/jupyter");
  }
  const std::string pyenv = outlook.variable("PYENV_ROOT");
  candidates.add_prefixes((pyenv.empty() ? home + "/.pyenv" : pyenv) + "/versions/*", "pyenv");
  for (const std::string& folder : split(outlook.variable("JUPYTER_PATH"), ':'))
    if (!folder.empty()) candidates.add_kernels(folder);
  for (const char* folder : {"/usr/share/jupyter", "/usr/local/share/jupyter"}) candidates.add_kernels(folder);

  std::vector<PythonInstall> pythons;
  const auto add_all = [&](std::size_t from) {
    for (std::size_t i = from; i < candidates.list().size(); ++i) {
      const auto& [program, found_by] = candidates.list()[i];
      auto python = read_python(outlook, program, machine);
      if (!python) continue;
      // One Python is one prefix with one version, whatever its program is called.
      PythonInstall* known = nullptr;
      for (PythonInstall& p : pythons)
        if (p.prefix == python->prefix && p.facts.version.minor_part() == python->facts.version.minor_part())
          known = &p;
      if (!known) {
        python->is_active = pythons.empty();
        pythons.push_back(std::move(*python));
        known = &pythons.back();
      }
      if (std::find(known->found_by.begin(), known->found_by.end(), found_by) == known->found_by.end())
        known->found_by.push_back(found_by);
    }
  };
  add_all(0);
  // Environments have kernels of their own.
  const std::size_t so_far = candidates.list().size();
  for (const PythonInstall& python : pythons) candidates.add_kernels(python.prefix + "/share/jupyter");
  add_all(so_far);
  return pythons;
}

}  // namespace doctor
