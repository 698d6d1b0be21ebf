// SPDX-License-Identifier: Apache-2.0
// `mica build`: another project's CUDA extension as a wheel for this torch.
#include "builder/run/build.h"

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "builder/plan/parallel.h"
#include "builder/run/build_json.h"
#include "builder/run/follow.h"
#include "builder/run/prepare.h"
#include "cli/builder/build_slurm.h"
#include "cli/builder/publishing.h"
#include "cli/process.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "mica/mica.h"
#include "support/durable.h"
#include "support/process.h"
#include "support/text.h"

namespace cli {
namespace {

constexpr int kInterrupted = 130;  // as shells say it

struct Options {
  builder::BuildRequest request;
  SlurmOptions slurm;
  std::string jobs = "auto";
  bool dry_run = false, attach = false, json = false, install = false, no_progress = false, no_fetch = false;
};

std::string minutes(double seconds) {
  return seconds < 90 ? format("%.0f s", seconds) : format("%.0f min", seconds / 60);
}

// One line that redraws itself on a terminal; elsewhere one for every tenth, or every minute.
class Display {
 public:
  Display(bool quiet, bool progress) : quiet_(quiet), progress_(progress), terminal_(stdout_is_terminal()) {}

  void say(const std::string& line) {
    if (quiet_) return;
    clear();
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  void show(const builder::BuildProgress& p) {
    if (quiet_ || !progress_) return;
    const int tenth = p.files_total > 0 ? p.files_done * 10 / p.files_total : 0;
    const double now = support::monotonic_seconds();
    const bool due = terminal_ ? now - shown_at_ >= 0.5 : (tenth != tenth_ || now - shown_at_ >= 60);
    if (!due) return;
    tenth_ = tenth;
    shown_at_ = now;
    std::string line = p.files_total > 0 ? format("%d of %d files", p.files_done, p.files_total) : "configuring";
    line += format(", %d job%s, %s now, %s at most, %s", p.jobs, p.jobs == 1 ? "" : "s",
                   builder::gigabytes(p.bytes).c_str(), builder::gigabytes(p.peak_bytes).c_str(),
                   minutes(p.seconds).c_str());
    if (p.seconds_left >= 0) line += ", about " + minutes(p.seconds_left) + " left";
    if (terminal_)
      std::printf("\r%-79.79s", line.c_str());
    else
      std::printf("%s\n", line.c_str());
    drawn_ = terminal_;
    std::fflush(stdout);
  }

  void clear() {
    if (drawn_) std::printf("\r%79s\r", "");
    drawn_ = false;
  }

 private:
  bool quiet_, progress_, terminal_, drawn_ = false;
  int tenth_ = -1;
  double shown_at_ = -1e9;
};

void print_plan(const builder::PreparedBuild& b) {
  const doctor::Environment& here = b.inputs.here;
  std::printf("source   %s%s%s%s\n", b.source.package.c_str(), b.source.version.empty() ? "" : " ",
              b.source.version.c_str(),
              b.source.path.empty() ? ", to be fetched from the package index" : (", from " + b.source.path).c_str());
  if (here.python) std::printf("Python   %s, %s\n", b.place.program.c_str(), here.python->version.text().c_str());
  if (here.torch)
    std::printf("torch    %s, CUDA %s, in %s\n", here.torch->version.c_str(),
                here.torch->cuda_version.empty() ? "none" : here.torch->cuda_version.c_str(),
                here.torch->folder.c_str());
  std::printf("target   %s\n", b.inputs.target.name.c_str());
  if (!b.folder.empty())
    std::printf("folder   %s\n", b.folder.c_str());
  else
    std::printf("folder   in %s, named when the source is here\n", b.request.work.c_str());
  std::printf("wheel    into %s\n", b.request.out.c_str());
  std::vector<std::string> tools(b.plan.recipe->imports.begin(), b.plan.recipe->imports.end());
  std::printf("tools    %s: those that this Python lacks come into the folder\n", support::joined(tools, ", ").c_str());
  if (!b.plan.decisions.empty()) {
    Table table({"decided", "", "why"});
    for (const builder::Decision& d : b.plan.decisions) table.add({d.what, d.value, d.why});
    std::printf("\n%s", table.text().c_str());
  }
  if (const builder::Forecast& f = b.forecast; !f.from.empty())
    std::printf("\nforecast  about %s, %s of memory, a wheel of %.0f MB (from %s)\n", minutes(f.seconds).c_str(),
                builder::gigabytes(f.peak_bytes).c_str(), double(f.wheel_bytes) / 1e6, f.from.c_str());
  else if (!b.plan.refused())
    std::printf("\nforecast  none: no build of %s is recorded\n", b.source.package.c_str());
  if (!b.plan.settings.empty()) {
    Table table({"variable", "", "why"});
    for (const builder::Setting& s : b.plan.settings) table.add({s.name, s.removed ? "(taken away)" : s.value, s.why});
    std::printf("\n%s", table.text().c_str());
    std::printf("PATH and PYTHONPATH begin with the toolkit, this build's own tools and that Python.\n");
  }
  if (!b.plan.refused()) {
    std::printf("\nflags that every command gets, whatever setup.py says:\n");
    if (b.plan.cxx_abi >= 0) std::printf("  -D_GLIBCXX_USE_CXX11_ABI=%d (host compiler and nvcc)\n", b.plan.cxx_abi);
    for (const std::string& code : b.plan.gencode())
      std::printf("  -gencode=%s (nvcc, in place of all others)\n", code.c_str());
    if (b.plan.cuda) std::printf("  --threads %d (nvcc, where setup.py gives another number)\n", b.plan.nvcc_threads);
  }
  for (const doctor::Verdict& verdict : b.plan.verdicts)
    std::printf("\n%s", doctor::verdict_text(verdict, false).c_str());
}

void print_outcome(const builder::PreparedBuild& b, const builder::BuildOutcome& out) {
  const bool built = out.status == builder::BuildStatus::kBuilt;
  if (out.status == builder::BuildStatus::kInterrupted) {
    std::printf("%s\n", out.error.c_str());
    return;
  }
  const auto& verdicts = out.status == builder::BuildStatus::kRefused ? b.plan.verdicts : out.verdicts;
  if (!built)
    std::printf("%s  %s\n", out.status == builder::BuildStatus::kRefused ? "refused" : "failed ", out.error.c_str());
  for (const doctor::Verdict& verdict : verdicts)
    if (verdict.severity != doctor::Severity::kNote) std::printf("%s", doctor::verdict_text(verdict, false).c_str());
  if (out.attempts > 0)
    std::printf("took     %s, %s of memory at most, %d job%s, %d attempt%s\n", minutes(out.seconds).c_str(),
                builder::gigabytes(out.peak_bytes).c_str(), out.jobs, out.jobs == 1 ? "" : "s", out.attempts,
                out.attempts == 1 ? "" : "s");
  if (built) {
    std::printf("judged   nothing wrong for %s\n", b.inputs.target.name.c_str());
    std::printf("import   %s\n", out.imported.empty() ? ("not tried: " + out.not_imported).c_str()
                                                      : support::joined(out.imported, ", ").c_str());
    if (out.compared)
      std::printf("compared forward and backward agree with Mica's (largest difference %.2g)\n",
                  out.largest_difference);
    else if (!out.not_compared.empty())
      std::printf("compared not with Mica: %s\n", out.not_compared.c_str());
    std::printf("wheel    %s\nsha256   %s\nrecord   %s\n", out.wheel.c_str(), out.sha256.c_str(), out.record.c_str());
  }
  if (!out.log.empty()) std::printf("log      %s\n", out.log.c_str());
}

int exit_code(builder::BuildStatus status) {
  if (status == builder::BuildStatus::kBuilt) return kOk;
  return status == builder::BuildStatus::kInterrupted ? kInterrupted : kFailed;
}

// Of a build that another process runs or ran.
int print_state(const std::string& folder, const builder::BuildState& state, const Options& options, Display& display) {
  display.clear();
  if (options.json) {
    std::printf("%s", builder::state_json(folder, state).c_str());
  } else if (state.phase == "done") {
    std::printf("wheel    %s\n", state.wheel.c_str());
  } else if (state.finished()) {
    std::printf("%s  %s\n", state.phase.c_str(), state.message.c_str());
  } else {
    std::printf("%s\n", builder::is_running(state, folder)
                            ? "it goes on without this terminal"
                            : "it was ended from outside; the same command goes on from there");
  }
  if (state.phase == "done") return kOk;
  return builder::is_running(state, folder) ? kInterrupted : kFailed;
}

// For whoever started this command and cannot read its output: a job of Slurm is followed from another machine.
void note_outcome(const std::string& json) {
  const char* file = std::getenv("MICA_BUILD_OUTCOME");
  if (file && *file) support::replace_file(file, json);
}

ChildResult install_wheel(const std::string& wheel, const std::string& python) {
  return run_self({"fix", wheel, "--yes", "--python", python});
}

int run(Options options) {
  if (options.jobs != "auto") {
    char* end = nullptr;
    const long jobs = std::strtol(options.jobs.c_str(), &end, 10);
    if (*end || jobs < 1 || jobs > 1024)
      throw std::runtime_error("--jobs is '" + support::printable(options.jobs) + "', want auto or 1 to 1024");
    options.request.jobs = int(jobs);
  }
  if (options.slurm.pythons.size() == 1) options.request.python = options.slurm.pythons[0];
  if (options.slurm.pythons.size() > 1 && !options.slurm.slurm)
    throw std::runtime_error("--python is given " + std::to_string(options.slurm.pythons.size()) +
                             " times, want one, or --slurm: an array of jobs builds for several");
  if (options.slurm.pythons.size() > 1 && options.install)
    throw std::runtime_error("--install wants one --python: each of several gets its wheel by mica fix WHEEL --python");
  options.request.mica_version = mica_version();
  options.request.fetches_toolchain = !options.no_fetch;
  Display display(options.json, !options.no_progress);
  const builder::Listener listener = {[&](const std::string& line) { display.say(line); },
                                      [&](const builder::BuildProgress& p) { display.show(p); }};
  support::take_stop_signals();
  const auto as_job = [&] {
    const SlurmEnd end = run_in_slurm(options.request, options.slurm, options.attach, options.json, listener);
    display.clear();
    if (!options.install || end.exit_code != kOk || end.wheel.empty()) return end.exit_code;
    const ChildResult installed = install_wheel(end.wheel, end.python);
    if (!options.json) std::printf("%s", installed.output.c_str());
    return installed.exit_code;
  };
  options.slurm.print |= options.dry_run;  // of a job, the script is what would be done
  if (options.slurm.slurm) return as_job();
  if (options.attach) {
    const std::string folder = builder::find_running(options.request.work, options.request.target);
    if (folder.empty() && !find_job_folder(options.request).empty()) return as_job();
    if (folder.empty())
      throw std::runtime_error(options.request.target.empty()
                                   ? "no build is running"
                                   : "no build of " + options.request.target + " is running");
    display.say("following the build in " + folder);
    return print_state(folder, builder::follow(folder, listener), options, display);
  }
  if (options.request.target.empty())
    throw std::runtime_error("want a package, a source archive or a folder (see mica build --help)");
  builder::PreparedBuild prepared =
      builder::prepare(options.request, options.dry_run ? builder::Fetch::kNothing : builder::Fetch::kSource, listener);
  if (options.dry_run) {
    if (!prepared.plan.refused())
      prepared.forecast =
          builder::forecast(prepared.plan, prepared.source.package, builder::recorded_builds(prepared.request.work));
    if (options.json)
      std::printf("%s", builder::plan_json(prepared).c_str());
    else
      print_plan(prepared);
    return prepared.plan.refused() ? kFailed : kOk;
  }
  const auto ended = builder::build_or_follow(prepared, listener);
  if (const auto* state = std::get_if<builder::BuildState>(&ended))
    return print_state(prepared.folder, *state, options, display);
  builder::BuildOutcome outcome = std::get<builder::BuildOutcome>(ended);
  display.clear();
  Publishing publishing;
  std::string why_not_published;
  const bool is_to_publish = outcome.status == builder::BuildStatus::kBuilt && !options.slurm.publish.empty();
  if (is_to_publish) {
    try {
      publishing = publish_wheel(outcome.wheel, options.slurm.publish);
      if (publishing.published) outcome.published = options.slurm.publish;
    } catch (const std::exception& e) {
      why_not_published = e.what();
    }
  }
  ChildResult installed = {0, ""};
  if (outcome.status == builder::BuildStatus::kBuilt && options.install)
    installed = install_wheel(outcome.wheel, prepared.place.program);
  note_outcome(builder::outcome_json(prepared, outcome));
  if (options.json) {
    std::printf("%s", builder::outcome_json(prepared, outcome).c_str());
  } else {
    print_outcome(prepared, outcome);
    if (is_to_publish && why_not_published.empty()) std::printf("%s", publishing_text(publishing).c_str());
    std::printf("%s", installed.output.c_str());
  }
  if (!why_not_published.empty()) throw std::runtime_error("built, but not published: " + why_not_published);
  if (installed.exit_code) return installed.exit_code;
  return is_to_publish && !publishing.published ? kFailed : exit_code(outcome.status);
}

// Ctrl-C also ends what fetches, unpacks or asks, which is then an error of theirs; for whoever pressed it, it is none.
int run_until_stopped(const Options& options) {
  try {
    return run(options);
  } catch (const std::exception& e) {
    if (!support::stop_requested()) throw;
    std::fprintf(stderr, "mica build: %s; the same command begins there again\n", support::printable(e.what()).c_str());
    return kInterrupted;
  }
}

}  // namespace

Verb build_verb(Command& app) {
  auto options = std::make_shared<Options>();
  builder::BuildRequest& request = options->request;
  Command* verb = app.add_subcommand("build", "Build another project's CUDA extension for this torch");
  verb->add_option("source", request.target, "a package (flash-attn, flash-attn==2.8.3), a source archive or a folder")
      ->type_name("TARGET");
  verb->add_option("--python", options->slurm.pythons,
                   "the Python whose torch it is for (default: the active one); several with --slurm: an array of jobs")
      ->type_name("PATH")
      ->expected(1)
      ->take_all();
  verb->add_option("--target", request.target_files,
                   "where it shall run: files that mica doctor --export wrote there; several: one wheel for all")
      ->type_name("FILE")
      ->expected(1)
      ->take_all();
  verb->add_option("--arch", request.architectures, "auto (the target's GPUs) or a list as in 8.0,9.0a,12.0+PTX")
      ->type_name("LIST")
      ->capture_default_str();
  verb->add_option("--jobs", options->jobs, "compilers at a time: auto (from memory and cores) or a number")
      ->type_name("N")
      ->capture_default_str();
  verb->add_option("--out", request.out, "where the wheel goes")->type_name("DIR")->capture_default_str();
  verb->add_option("--work", request.work, "where builds live (default: MICA_BUILD_DIR, else the cache folder)")
      ->type_name("DIR");
  verb->add_option("--publish", options->slurm.publish, "then put the wheel on this shelf (see mica publish)")
      ->type_name("DIR");
  verb->add_flag("--install", options->install,
                 "then install the wheel into that Python, as mica fix does: as a whole or not at all")
      ->excludes("--target");
  verb->add_flag("--keep", request.keep, "keep sources and objects after success");
  verb->add_flag("--allow-downloads", request.allow_downloads,
                 "let setup.py download (default: it is told that there is nothing)");
  verb->add_flag("--no-fetch", options->no_fetch, "do not fetch an nvcc or a g++ where none that suits is here");
  verb->add_option("--conda-channel", request.conda_channel,
                   "a folder with packages of conda that g++ is taken from (default: the distribution's packages)")
      ->type_name("DIR");
  verb->add_flag("--dry-run", options->dry_run, "only say what would be done, with every variable and flag, and why");
  verb->add_flag("--attach", options->attach, "follow a build that is running (that of TARGET, or any)");
  verb->add_flag("--no-progress", options->no_progress, "no lines about files and memory so far");
  verb->add_flag("--json", options->json, "print JSON");
  add_slurm_flags(*verb, options->slurm);
  verb->footer(
      "Without --install nothing is installed into that Python. A build that was stopped (Ctrl-C, a closed terminal, a "
      "killed compiler)\n"
      "goes on where it was when the same command is given again. The wheel is judged by the doctor and imported once\n"
      "before it is handed out; WHEEL.build.json beside it says how it was made.\n"
      "Examples:\n"
      "  mica build flash-attn --dry-run\n"
      "  mica build flash-attn==2.8.3 --arch 9.0 --out dist\n"
      "  mica build causal_conv1d-1.5.0.tar.gz --python /env/bin/python --target gpu-node.json\n"
      "  mica build ./my-extension --jobs 4 --keep\n"
      "  mica build flash-attn --slurm --partition cpu --time 2:00:00 --publish /shared/wheels\n"
      "  mica build flash-attn --slurm --python /envs/py311 --python /envs/py312     a wheel for each, as a job array\n"
      "Exit codes: 0 built; 1 refused or failed, with the reason; 2 bad usage, or it could not be tried; 130 stopped.");
  return {verb, [options] { return run_until_stopped(*options); }};
}

}  // namespace cli
