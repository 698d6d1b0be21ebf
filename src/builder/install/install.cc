// SPDX-License-Identifier: Apache-2.0
#include "builder/install/install.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "builder/install/swap.h"
#include "doctor/read/record.h"
#include "doctor/read/wheel_name.h"
#include "doctor/system/package.h"
#include "support/durable.h"
#include "support/package_name.h"
#include "support/process.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

constexpr double kPipSeconds = 900, kImportSeconds = 600;

// Another process that undoes the swap if this one ends without saying that all is well, however it is ended.
class Watcher {
 public:
  explicit Watcher(const std::string& folder) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw WriteError("no pipe can be opened");
    child_ = fork();
    if (child_ < 0) throw WriteError("no process can be started");
    if (child_ == 0) {
      setsid();
      for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(one, SIG_IGN);
      close(ends[1]);
      char word = 0;
      const bool is_well = read(ends[0], &word, 1) == 1;
      try {
        if (!is_well) Swap::undo(folder);
      } catch (const std::exception&) {
        _exit(1);  // the next one tries again
      }
      _exit(0);
    }
    close(ends[0]);
    to_child_ = ends[1];
  }
  // The watcher has nothing to do any more: it was finished, or undone here.
  ~Watcher() {
    const char word = 1;
    (void)!write(to_child_, &word, 1);
    close(to_child_);
    waitpid(child_, nullptr, 0);
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  pid_t child_ = -1;
  int to_child_ = -1;
};

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; it != end && !error; it.increment(error))
    if (it->is_symlink() || !it->is_directory()) out.push_back(it->path().lexically_relative(folder).string());
  if (error) throw WriteError(folder + " cannot be read: " + error.message());
  std::sort(out.begin(), out.end());
  return out;
}

// Modules to be tried: the one that is called like the distribution, else all that lie at the top.
std::vector<std::string> modules_of(const std::string& stage, const std::vector<std::string>& names) {
  std::vector<std::string> all, named;
  for (const auto& entry : fs::directory_iterator(stage)) {
    const std::string file = entry.path().filename().string(), name = file.substr(0, file.find('.'));
    const bool is_module = entry.is_directory() ? fs::exists(entry.path() / "__init__.py")
                                                : file.ends_with(".py") || file.ends_with(".so");
    if (!is_module || name.starts_with("_")) continue;
    all.push_back(name);
    if (std::find(names.begin(), names.end(), support::normalised_package(name)) != names.end()) named.push_back(name);
  }
  std::sort(all.begin(), all.end());
  return named.empty() ? all : named;
}

class Installer {
 public:
  explicit Installer(const InstallRequest& request)
      : request_(request), site_(site_of(request.python)), folder_(swap_folder_of(request.python)) {}

  InstallOutcome run() {
    out_.site = site_;
    if (undo_unfinished(request_.python)) say("undone: what an interrupted installation had left");
    Swap swap(folder_);
    replace_file(folder_ + "/owner", std::to_string(getpid()));
    Watcher watcher(folder_);
    step("started");
    try {
      unpack();
      step("unpacked");
      try_import(true);
      step("tried");
      swap.commit(moves(), [&](const std::string& what) { step(what); });
      say("imported as it will be used");
      try_import(false);
      step("verified");
      swap.finish();
      out_.installed = true;
    } catch (const std::exception& e) {
      Swap::undo(folder_);
      out_.error = e.what();
      out_.imported.clear();
    }
    return out_;
  }

 private:
  void say(const std::string& line) const {
    if (request_.say) request_.say(line);
  }
  void step(const std::string& name) const {
    if (request_.step) request_.step(name);
  }
  std::string stage() const { return folder_ + "/new"; }

  void run_python(std::vector<std::string> words, const std::string& path, double seconds, const std::string& what) {
    Command command;
    words.insert(words.begin(), request_.python.program);
    command.words = std::move(words);
    command.variables = current_environment();
    command.variables.erase("PYTHONHOME");
    command.variables["PYTHONDONTWRITEBYTECODE"] = "1";
    if (!path.empty()) command.variables["PYTHONPATH"] = path;
    command.folder = folder_;
    std::string output, errors;
    const Ended ended = run_collected(command, seconds, &output, &errors);
    if (ended.ok()) return;
    out_.log = errors.empty() ? output : errors;
    throw WriteError(what + " failed (exit code " + std::to_string(ended.exit_code) + ")");
  }

  void unpack() {
    say("unpacking beside the environment");
    std::vector<std::string> words = {"-m",         "pip",          "install", "--no-deps",
                                      "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check",
                                      "--target",   stage()};
    for (const std::string& wheel : request_.wheels) {
      words.push_back(fs::absolute(wheel).string());
      if (const auto name = doctor::parse_wheel_name(wheel))
        names_.push_back(support::normalised_package(name->distribution));
    }
    run_python(words, "", kPipSeconds, "pip install --target");
  }

  void try_import(bool beside) {
    const std::vector<std::string> modules = beside ? modules_of(stage(), names_) : out_.imported;
    say("importing " + joined(modules, ", ") + " in a new process");
    std::string program = "try:\n    import torch\nexcept ImportError:\n    pass\n";
    for (const std::string& module : modules) program += "import " + module + "\n";
    run_python({"-c", program}, beside ? stage() : "", kImportSeconds, "import " + joined(modules, ", "));
    out_.imported = modules;
  }

  // Out: the files of what is replaced, and of nobody that stand in the way. In: all that was unpacked.
  std::vector<Move> moves() {
    std::vector<Move> moves;
    std::set<std::string> gone;
    const auto take_out = [&](const std::string& path) {
      if (!gone.insert(path).second) return;
      moves.push_back({path, folder_ + "/old/" + std::to_string(gone.size())});
    };
    const Files files;
    for (const std::string& name : names_) {
      const doctor::InstalledPackage* old = request_.python.package(name);
      if (!old || old->site != site_) continue;
      out_.replaced.push_back(old->name + " " + old->version);
      const std::string info = site_ + "/" + old->dist_info;
      for (const doctor::RecordRow& row :
           doctor::parse_record(files.read(info + "/RECORD", 64 << 20).value_or(""), nullptr)) {
        const std::string path = fs::path(site_ + "/" + row.path).lexically_normal().string();
        const bool is_inside = path.starts_with(site_ + "/") || path.starts_with(request_.python.prefix + "/bin/");
        std::error_code error;
        if (is_inside && row.path[0] != '/' && fs::exists(fs::symlink_status(path, error))) take_out(path);
      }
      for (const std::string& file : fs::exists(info) ? files_below(info) : std::vector<std::string>{})
        take_out(info + "/" + file);
    }
    name_scripts();
    for (const std::string& file : files_below(stage())) {
      const bool is_script = file.starts_with("bin/");
      const std::string to = is_script ? request_.python.prefix + "/" + file : site_ + "/" + file;
      std::error_code error;
      if (fs::exists(fs::symlink_status(to, error))) take_out(to);
      incoming_.push_back({stage() + "/" + file, to});
    }
    moves.insert(moves.end(), incoming_.begin(), incoming_.end());
    return moves;
  }

  // With --target scripts lie in bin beside the packages; in the environment they lie in its own bin.
  void name_scripts() {
    const std::string up = fs::path(request_.python.prefix + "/bin").lexically_relative(site_).string();
    for (const auto& entry : fs::directory_iterator(stage())) {
      const std::string record = entry.path().string() + "/RECORD";
      if (!entry.path().string().ends_with(".dist-info") || !fs::exists(record)) continue;
      std::string text = Files().read(record, 64 << 20).value_or(""), out;
      for (const std::string& line : split(text, '\n')) {
        if (line.empty()) continue;
        const bool is_script = line.starts_with("bin/") || line.starts_with("../../bin/");
        out += (is_script ? up + "/" + line.substr(line.find("bin/") + 4) : line) + "\n";
      }
      replace_file(record, out);
    }
  }

  const InstallRequest& request_;
  std::string site_, folder_;
  std::vector<std::string> names_;  // of the distributions
  std::vector<Move> incoming_;
  InstallOutcome out_;
};

}  // namespace

std::string site_of(const doctor::PythonInstall& python) {
  const std::string prefix = python.prefix + "/";
  for (const std::string& site : python.facts.site_packages)
    if (site.starts_with(prefix)) return site;
  return python.facts.site_packages.empty() ? "" : python.facts.site_packages[0];
}

std::string swap_folder_of(const doctor::PythonInstall& python) { return site_of(python) + "/.mica-swap"; }

bool undo_unfinished(const doctor::PythonInstall& python) {
  const std::string folder = swap_folder_of(python);
  const long owner = std::strtol(Files().read(folder + "/owner", 64).value_or("0").c_str(), nullptr, 10);
  if (owner > 0 && owner != getpid() && kill(pid_t(owner), 0) == 0)
    throw WriteError("another installation into " + site_of(python) + " is at work (process " + std::to_string(owner) +
                     ")");
  return Swap::undo(folder);
}

InstallOutcome install_wheels(const InstallRequest& request) {
  if (site_of(request.python).empty()) throw WriteError(request.python.program + " has no folder of packages");
  for (const std::string& wheel : request.wheels)
    if (access(wheel.c_str(), R_OK) != 0) throw WriteError(wheel + " cannot be read");
  return Installer(request).run();
}

}  // namespace builder
