// SPDX-License-Identifier: Apache-2.0
#include "builder/run/build.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "builder/plan/parallel.h"
#include "builder/run/build_json.h"
#include "builder/run/failure.h"
#include "builder/run/follow.h"
#include "builder/run/owner/claim.h"
#include "builder/run/progress.h"
#include "builder/run/state.h"
#include "builder/run/verdict_of_wheel.h"
#include "builder/run/workshop.h"
#include "builder/shelf/shelf_files.h"
#include "doctor/explain/explain.h"
#include "support/bytes.h"
#include "support/durable.h"
#include "support/session.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

// The end of a file from `begin` on, at most `most` bytes of it.
std::string tail_of(const std::string& path, uint64_t begin, uint64_t most = 4 << 20) {
  support::FileSource file(path);
  begin = std::min(begin, file.size());
  begin = std::max(begin, file.size() > most ? file.size() - most : 0);
  std::string out(std::size_t(file.size() - begin), 0);
  file.read(begin, {reinterpret_cast<uint8_t*>(out.data()), out.size()});
  return out;
}

void append_line(const std::string& path, const std::string& line) {
  std::ofstream(path, std::ios::app) << "mica: " << line << "\n";
}

std::string files_so_far(const BuildState& state) {
  if (state.files_total == 0) return "before the first file was compiled";
  return "with " + std::to_string(state.files_done) + " of " + std::to_string(state.files_total) + " files compiled";
}

class Build {
 public:
  Build(PreparedBuild& prepared, const Listener& listener)
      : b_(prepared), listener_(listener), shop_{prepared.folder, prepared.place.program, prepared.wheels()} {}

  std::optional<BuildOutcome> run(std::string* who) {
    shop_.open();
    out_.log = shop_.path("build.log");
    const Claim claim(b_.folder);
    *who = claim.owner();
    if (!claim.held()) return std::nullopt;
    begin_state();
    if (built_before_) {
      listener_.say("built before: " + state_.wheel);
    } else {
      prepare_folder();
      if (!compile()) return finish();
    }
    judge_and_check();
    if (out_.status == BuildStatus::kBuilt) hand_out();
    return finish();
  }

 private:
  void begin_state() {
    if (const auto before = read_state(b_.folder)) {
      before_ = *before;
      state_.seconds = before->seconds;
      state_.peak_bytes = before->peak_bytes;
      state_.files_total = before->files_total;
      state_.files_done = before->files_done;
      state_.wheel = before->wheel;
      // Compilers whose owner died (a power cut spares none, a kill of the owner alone does).
      if (before->owner_host == host_name() && before->session > 0 && before->phase == "building")
        end_session(before->session, 5);
    }
    state_.target = b_.request.target;
    state_.python = b_.place.program;
    state_.package = b_.source.package;
    state_.owner_host = host_name();
    state_.owner = getpid();
    state_.owner_start = process_start(getpid());
    state_.jobs = b_.plan.jobs;
    if (before_.phase == "building") begin_after_death();
    built_before_ = has_wheel(before_);
    if (!built_before_) state_.wheel.clear();
    write_state(b_.folder, state_);
  }

  // A finished build of the same source for the same torch needs no second one, whatever became of a later start that
  // only judged it and handed it out: killed, stopped, or out of space.
  static bool has_wheel(const BuildState& state) {
    std::error_code error;
    return state.phase != "failed" && state.phase != "building" && !state.wheel.empty() &&
           fs::exists(state.wheel, error);
  }

  // The last start was ended without a word, as the kernel does when memory is short: begin with less.
  void begin_after_death() {
    listener_.say("the last start was ended from outside, " + files_so_far(before_) + "; going on from there");
    const bool was_short = b_.inputs.memory_bytes > 0 && before_.peak_bytes > b_.inputs.memory_bytes / 20 * 17;
    if (was_short && b_.request.jobs == 0 && before_.jobs > 1)
      state_.jobs = std::max(1, std::min(b_.plan.jobs, fewer_jobs(before_.jobs)));
  }

  void prepare_folder() {
    shop_.bring_source(b_.source, b_.plan);
    tools_ = shop_.bring_tools(b_.plan, *b_.inputs.here.torch);
    if (!tools_.missing.empty())
      listener_.say("for this build alone: " + support::joined(tools_.missing, ", ") + " in " + shop_.path("tools"));
    fs::remove_all(shop_.path("wheel"));
    replace_file(shop_.path("build_settings.json"),
                 build_settings(b_.plan, shop_.source_root(), shop_.path("wheel"), !b_.request.allow_downloads));
  }

  // One run of the project's own build. The objects of earlier ones are still there.
  Ended attempt(uint64_t* log_begin) {
    ++state_.attempt;
    state_.phase = "building";
    append_line(out_.log, "attempt " + std::to_string(state_.attempt) + ", " + std::to_string(state_.jobs) + " jobs");
    std::error_code error;
    *log_begin = fs::file_size(out_.log, error);
    Command command = shop_.driver({"build", shop_.path("build_settings.json")}, b_.plan);
    command.variables["MAX_JOBS"] = std::to_string(state_.jobs);
    ProgressReader reader(state_.files_total, state_.files_done);
    const double seconds_before = state_.seconds;
    double written = 0;
    const auto started = [&](int session) {
      state_.session = session;
      write_state(b_.folder, state_);
    };
    const auto every = [&](const Sample& sample) {
      reader.read(sample.text);
      if (reader.total() == 0) reader.expect(count_ninja_objects(shop_.source_root()));
      state_.files_done = reader.done();
      state_.files_total = reader.total();
      state_.bytes = sample.bytes;
      state_.peak_bytes = std::max(state_.peak_bytes, sample.peak_bytes);
      state_.seconds = seconds_before + sample.seconds;
      if (sample.seconds - written >= 3) {
        written = sample.seconds;
        write_state(b_.folder, state_);
      }
      if (listener_.progress)
        listener_.progress({state_.files_done, state_.files_total, state_.jobs, state_.bytes, state_.peak_bytes,
                            state_.seconds, reader.seconds_left(sample.seconds)});
    };
    const Ended ended = run_watched(command, {out_.log, started, every});
    state_.session = 0;
    state_.seconds = seconds_before + ended.seconds;
    return ended;
  }

  bool compile() {
    while (true) {
      const uint64_t kills = memory_kills();
      uint64_t log_begin = 0;
      const Ended ended = attempt(&log_begin);
      if (ended.stopped) {
        out_.status = BuildStatus::kInterrupted;
        out_.error = "stopped " + files_so_far(state_) + "; the same command goes on from there";
        return false;
      }
      if (ended.ok()) return find_wheel();
      const std::string text = without_own_lines(tail_of(out_.log, log_begin));
      const doctor::Explanation why = doctor::explain(text, &b_.inputs.here);
      const bool named = why.cause_found && why.verdicts[0].code == doctor::Code::BUILD_OOM;
      const bool killed = named || ended.signal == SIGKILL || (!why.cause_found && memory_kills() > kills);
      if (killed && fewer_jobs(state_.jobs) > 0) {
        listener_.say("memory ran out with " + std::to_string(state_.jobs) + " jobs (" + gigabytes(ended.peak_bytes) +
                      " at most); going on with " + std::to_string(fewer_jobs(state_.jobs)) + " from the " +
                      std::to_string(state_.files_done) + " files compiled so far");
        state_.jobs = fewer_jobs(state_.jobs);
        continue;
      }
      fail(why, text, killed, ended);
      return false;
    }
  }

  void fail(const doctor::Explanation& why, const std::string& text, bool killed, const Ended& ended) {
    out_.status = BuildStatus::kFailed;
    out_.verdicts = why.verdicts;
    // That a command failed is known; the log's own line says more.
    std::erase_if(out_.verdicts, [](const doctor::Verdict& v) {
      return v.code == doctor::Code::BUILD_FAILED || v.code == doctor::Code::NOT_KNOWN;
    });
    if (killed && !(why.cause_found && why.verdicts[0].code == doctor::Code::BUILD_OOM))
      out_.verdicts.insert(
          out_.verdicts.begin(),
          doctor::make_verdict(
              {.code = "BUILD_OOM",
               .subject = b_.source.package,
               .message = "a compiler was killed",
               .cause = "Memory ran out with one job: " + gigabytes(ended.peak_bytes) + " were taken at most.",
               .fix = "more memory (docker -m, sbatch --mem), then the same command again"}));
    out_.error = error_line(text);
    if (out_.error.empty() && !out_.verdicts.empty()) out_.error = out_.verdicts[0].message;
    if (out_.error.empty()) out_.error = "the build ended with exit code " + std::to_string(ended.exit_code);
    out_.error = support::printable(out_.error, 500);
  }

  bool find_wheel() {
    const std::vector<std::string> wheels = file_names(shop_.path("wheel"), ".whl");
    if (wheels.size() == 1) {
      state_.wheel = shop_.path("wheel") + "/" + wheels[0];
      return true;
    }
    out_.status = BuildStatus::kFailed;
    out_.error = "the build ended well and left " + std::to_string(wheels.size()) + " wheels, want 1";
    return false;
  }

  void judge_and_check() {
    state_.phase = "judging";
    write_state(b_.folder, state_);
    out_.status = BuildStatus::kBuilt;
    out_.sha256 = file_sha256(state_.wheel);
    const WheelVerdict verdict = judge_built_wheel(state_.wheel, b_);
    out_.verdicts = verdict.verdicts;
    if (doctor::exit_code_of(out_.verdicts)) return reject("the doctor finds the wheel wrong");
    if (!b_.request.target_files.empty()) {
      out_.not_imported = "it is for " + b_.inputs.target.name + ", not for this machine";
      return;
    }
    if (verdict.modules.empty()) {
      out_.not_imported = "there is no compiled module in it";
      return;
    }
    const std::string settings = shop_.path("check_settings.json");
    replace_file(settings, check_settings(state_.wheel, shop_.path("check"), verdict.modules, b_.plan.recipe->compare));
    std::string output, errors;
    const Ended ended = run_collected(shop_.driver({"check", settings}, b_.plan), 900, &output, &errors);
    const CheckResult result = parse_check(output);
    if (ended.stopped) {
      out_.status = BuildStatus::kInterrupted;
      out_.error = "stopped while the wheel was tried; the same command goes on from there";
    } else if (ended.ok() && result.understood && result.failed.empty()) {
      out_.imported = result.imported;
      if (result.compared) out_.compared = result.equal;
      out_.largest_difference = result.largest_difference;
      out_.not_compared = result.not_compared;
      if (result.compared && !result.equal)
        reject("its results differ from Mica's by " + std::to_string(result.largest_difference));
    } else {
      const std::string text = result.understood ? result.failed : errors + output;
      append_line(out_.log, "the import failed: " + text);
      const doctor::Explanation why = doctor::explain(text, &b_.inputs.here);
      out_.verdicts.insert(out_.verdicts.begin(), why.verdicts.begin(), why.verdicts.end());
      reject(result.understood ? result.failed : "the import ended with exit code " + std::to_string(ended.exit_code));
    }
    std::error_code ignored;
    fs::remove_all(shop_.path("check"), ignored);
  }

  void reject(const std::string& why) {
    out_.status = BuildStatus::kFailed;
    out_.error = support::printable(why, 500);
  }

  void hand_out() {
    note_cost();
    make_folders(b_.request.out);
    out_.wheel = b_.request.out + "/" + support::base_name(state_.wheel);
    out_.record = out_.wheel + ".build.json";
    const std::string record = shop_.path("record.json");
    std::string text = build_record(b_, out_, matrix_line(b_, out_), tools_.versions);
    if (std::error_code error; built_before_ && fs::exists(record, error))
      text = judged_again(support::read_text_file(record), text);
    replace_file(record, text);
    copy_file(record, out_.record);
    copy_file(state_.wheel, out_.wheel);
  }

  void note_cost() {
    out_.attempts = state_.attempt;
    out_.jobs = state_.jobs;
    out_.seconds = state_.seconds;
    out_.peak_bytes = state_.peak_bytes;
  }

  BuildOutcome finish() {
    note_cost();
    const bool built = out_.status == BuildStatus::kBuilt, stopped = out_.status == BuildStatus::kInterrupted;
    // That it does not suit another node takes nothing from a wheel that suited.
    const bool stays_built = built_before_ && !stopped && !b_.request.target_files.empty();
    state_.phase = built || stays_built ? "done" : (stopped ? "interrupted" : "failed");
    state_.message = out_.error;
    write_state(b_.folder, state_);
    if (built && !b_.request.keep) {
      std::error_code ignored;
      for (const char* name : {"source", "source.root", "tools", "pip"}) fs::remove_all(shop_.path(name), ignored);
    }
    return out_;
  }

  PreparedBuild& b_;
  const Listener& listener_;
  Workshop shop_;
  BuildState state_, before_;
  BuildOutcome out_;
  Tools tools_;
  bool built_before_ = false;
};

}  // namespace

std::optional<BuildOutcome> build(PreparedBuild& prepared, const Listener& listener, std::string* who) {
  if (prepared.plan.refused()) {
    BuildOutcome out;
    out.status = BuildStatus::kRefused;
    for (const doctor::Verdict& v : prepared.plan.verdicts)
      if (v.severity == doctor::Severity::kError && out.error.empty()) out.error = v.message;
    return out;
  }
  return Build(prepared, listener).run(who);
}

std::variant<BuildOutcome, BuildState> build_or_follow(PreparedBuild& prepared, const Listener& listener) {
  bool waits = false;
  while (true) {
    const auto state = prepared.folder.empty() ? std::nullopt : read_state(prepared.folder);
    if (state && is_running(*state, prepared.folder)) {
      listener.say("following the build in " + prepared.folder);
      BuildState end = follow(prepared.folder, listener);
      if (end.phase != "done") return end;
    }
    std::string who;
    if (auto made = build(prepared, listener, &who)) return std::move(*made);
    // It began at the same moment and has not said yet where it stands, or has ended and still tidies up.
    if (who.empty()) who = "another process";
    if (!waits) listener.say(who + " has " + prepared.folder + "; waiting for it");
    waits = true;
    if (stop_requested()) throw std::runtime_error("stopped while " + who + " had " + prepared.folder);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace builder
