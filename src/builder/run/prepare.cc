// SPDX-License-Identifier: Apache-2.0
// Before a build: what is to be built, with what, where.
#include "builder/run/prepare.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "builder/plan/architectures.h"
#include "builder/run/project_name.h"
#include "builder/run/state.h"
#include "builder/run/toolchain/compiler_by_packages.h"
#include "builder/run/toolchain/toolkit_by_pip.h"
#include "builder/run/workshop.h"
#include "doctor/system/environment_json.h"
#include "support/durable.h"
#include "support/sha256.h"
#include "support/temporary_folder.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Also without HOME (sbatch --export=NONE, cron), where a folder in /tmp would be whoever's made it first: what lies in
// the work folder is executed.
std::string home_folder() {
  if (const std::string home = variable("HOME"); !home.empty()) return home;
  passwd entry;
  passwd* found = nullptr;
  char buffer[4096];
  const bool known = getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found;
  return known ? entry.pw_dir : "";
}

// Same source, Python, torch and architectures: the same folder. What else changes (toolkit, flags) changes the
// commands, and ninja then compiles again what they touch.
std::string folder_name_of(const PreparedBuild& b) {
  std::string text = b.source.sha256 + "\n" + b.place.program + "\n";
  if (b.inputs.here.torch) text += b.inputs.here.torch->version + "\n" + b.inputs.here.torch->folder + "\n";
  text += b.request.architectures + "\n";
  if (b.request.architectures == "auto")
    for (const Architecture& a : b.plan.architectures) text += a.arch.capability().text() + "\n";
  support::Sha256 hash;
  hash.update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  const std::string version = b.source.version.empty() ? "" : "-" + b.source.version;
  std::string name = b.source.package + version + "-" + hex(hash.digest()).substr(0, 12);
  for (char& c : name)
    if (c == '/' || static_cast<unsigned char>(c) <= ' ') c = '_';
  return name;
}

void see_source(PreparedBuild& b, const std::string& root) {
  b.inputs.source_seen = true;
  b.inputs.cuda_files = count_cuda_files(root, b.source.work);
  const ProjectName project = read_project_name(root);
  if (b.source.package.empty()) b.source.package = project.package;
  if (b.source.version.empty()) b.source.version = project.version;
}

// A plan that is good enough for running the driver itself.
Plan bare_plan(const PreparedBuild& b) {
  Plan plan;
  plan.recipe = &recipe_of(b.inputs.package);
  return plan;
}

Workshop unpack(PreparedBuild& b, const std::string& folder) {
  const Workshop shop{folder, b.place.program, b.wheels()};
  shop.open();
  shop.bring_source(b.source, bare_plan(b));
  see_source(b, shop.source_root());
  return shop;
}

// A package's archive, from the index.
void fetch_source(PreparedBuild& b, const Listener& listener) {
  const std::string folder = b.request.work + "/downloads/" + b.source.package;
  const Workshop shop{folder, b.place.program, b.wheels()};
  shop.open();
  listener.say("fetching the source of " + b.source.requirement);
  shop.bring_tools(b.plan, *b.inputs.here.torch);
  b.source.path = fetch_package(b.source, shop, b.plan, *b.inputs.here.torch, folder + "/archives");
  b.source.sha256 = file_sha256(b.source.path);
  std::string package;
  parse_archive_name(b.source.path, &package, &b.source.version);
}

bool is_refused_for(const Plan& plan, std::initializer_list<doctor::VerdictCode> codes) {
  for (const doctor::Verdict& verdict : plan.verdicts)
    if (verdict.severity == doctor::Severity::kError)
      return std::find(codes.begin(), codes.end(), verdict.code) != codes.end();
  return false;
}

// nvcc, and then the g++ that it takes, where they are not here and can be had without root. In a trial run they are
// only named.
void complete_toolchain(PreparedBuild& b, Fetch fetch, const Listener& listener) {
  if (!b.request.fetches_toolchain || fetch == Fetch::kForAnotherNode || !b.inputs.here.torch) return;
  const bool is_trial = fetch == Fetch::kNothing;
  const doctor::TorchFacts& torch = *b.inputs.here.torch;
  const Workshop shop{b.toolchains(), b.place.program, ""};
  if (is_refused_for(b.plan, {"BUILD_NVCC_MISSING", "BUILD_CUDA_MAJOR_MISMATCH", "BUILD_ARCH_UNSUPPORTED_BY_NVCC"})) {
    auto toolkit = toolkit_of_pip(torch, b.toolchains());
    if (!toolkit) return;
    if (!toolkit->fetched_by.empty() && !is_trial) {
      listener.say("no nvcc here suits; fetching one by " + toolkit->fetched_by + " into " + toolkit->folder);
      shop.open();
      toolkit = bring_toolkit(*toolkit, torch, shop);
    }
    b.inputs.toolkits.push_back(*toolkit);
    b.plan = make_plan(b.inputs);
  }
  if (is_refused_for(b.plan, {"BUILD_HOST_COMPILER"})) {
    const CompilerWish wish = {b.plan.cuda ? b.plan.toolkit.most_gcc : 0, b.toolchains(), b.request.conda_channel};
    auto compiler = compiler_of_packages(wish, !is_trial);
    if (!compiler) return;
    if (!compiler->fetched_by.empty() && !is_trial) {
      listener.say("no g++ here suits; fetching one by " + compiler->fetched_by + " into " + compiler->cxx);
      shop.open();
      compiler = bring_compiler(*compiler, wish, shop);
    }
    b.inputs.host_compilers.push_back(*compiler);
    b.plan = make_plan(b.inputs);
  }
}

void fetch_for_another_node(PreparedBuild& b, const Listener& listener) {
  if (!b.inputs.here.torch) throw std::runtime_error("this Python has no torch");
  if (b.source.kind == SourceKind::kPackage) fetch_source(b, listener);
  b.folder = b.request.work + "/" + folder_name_of(b);
  unpack(b, b.folder).keep_tools(b.plan, *b.inputs.here.torch);
}

}  // namespace

std::string default_work_folder() {
  if (const std::string folder = variable("MICA_BUILD_DIR"); !folder.empty()) return folder;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/mica/build";
  if (const std::string home = home_folder(); !home.empty()) return home + "/.cache/mica/build";
  throw std::runtime_error("HOME is not set and this user has no entry in the passwd database: give --work DIR");
}

PreparedBuild prepare(const BuildRequest& request, Fetch fetch, const Listener& listener) {
  PreparedBuild b;
  b.request = request;
  if (b.request.work.empty()) b.request.work = default_work_folder();
  b.request.work = fs::absolute(b.request.work).lexically_normal().string();
  b.request.out = fs::absolute(b.request.out).lexically_normal().string();
  if (b.request.out.size() > 1 && b.request.out.ends_with('/')) b.request.out.pop_back();
  if (request.architectures != "auto") parse_architectures(request.architectures);  // complains early
  b.source = parse_source(request.target, b.request.work);
  b.place = look_around(request.python);
  std::vector<doctor::Environment> targets;
  for (const std::string& file : request.target_files) targets.push_back(doctor::read_environment(file));
  b.inputs = gather(b.place, targets.empty() ? nullptr : &targets[0]);
  if (!targets.empty()) b.inputs.others.assign(targets.begin() + 1, targets.end());
  b.inputs.package = b.source.package;
  b.inputs.architectures = request.architectures;
  b.inputs.jobs = request.jobs;
  if (b.source.kind == SourceKind::kFolder) see_source(b, b.source.path);
  b.plan = make_plan(b.inputs);
  if (fetch == Fetch::kForAnotherNode) {
    try {
      fetch_for_another_node(b, listener);
    } catch (const std::runtime_error& error) {
      listener.say("not fetched here, so the node will try: " + std::string(error.what()));
    }
    b.plan = make_plan(b.inputs);
    return b;
  }
  if (b.source.kind != SourceKind::kArchive) complete_toolchain(b, fetch, listener);
  if (b.source.kind == SourceKind::kPackage) {
    if (fetch == Fetch::kNothing || b.plan.refused()) return b;
    fetch_source(b, listener);
  }
  b.folder = b.request.work + "/" + folder_name_of(b);
  if (b.source.kind == SourceKind::kFolder) return b;
  if (fetch == Fetch::kSource) {
    unpack(b, b.folder);
  } else {
    // A trial leaves no work folder behind.
    const TemporaryFolder peek(fs::temp_directory_path().string(), "mica-peek.");
    unpack(b, peek.path());
  }
  b.plan = make_plan(b.inputs);
  complete_toolchain(b, fetch, listener);
  return b;
}

std::string find_running(const std::string& work, const std::string& target) {
  std::error_code error;
  for (fs::directory_iterator entry(work.empty() ? default_work_folder() : work, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string folder = entry->path().string();
    const auto state = read_state(folder);
    if (state && is_running(*state, folder) && (target.empty() || state->target == target || state->package == target))
      return folder;
  }
  return "";
}

}  // namespace builder
