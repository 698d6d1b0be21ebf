// SPDX-License-Identifier: Apache-2.0
#include "builder/run/build_json.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "builder/plan/architectures.h"
#include "doctor/facts/mangled.h"
#include "doctor/verdict/verdict_json.h"
#include "support/bytes.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json, int indent = 2) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The last line that is a JSON object: programs print what they like before it.
Json last_object(const std::string& text) {
  const std::vector<std::string> lines = support::split(text, '\n');
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (!line->starts_with("{")) continue;
    Json json = Json::parse(*line, nullptr, false);
    if (json.is_object()) return json;
  }
  return Json::object();
}

Json verdicts_json(const std::vector<doctor::Verdict>& verdicts) { return Json(doctor::as_json(verdicts)); }

const char* kind_name(SourceKind kind) {
  return kind == SourceKind::kPackage ? "package" : (kind == SourceKind::kArchive ? "archive" : "folder");
}

const char* status_name(BuildStatus status) {
  switch (status) {
    case BuildStatus::kBuilt: return "built";
    case BuildStatus::kRefused: return "refused";
    case BuildStatus::kFailed: return "failed";
    case BuildStatus::kInterrupted: return "interrupted";
  }
  return "failed";
}

Json source_json(const Source& source) {
  return {{"given", source.text},      {"kind", kind_name(source.kind)},
          {"package", source.package}, {"version", source.version},
          {"path", source.path},       {"sha256", source.sha256}};
}

Json environment_json(const PreparedBuild& b) {
  const doctor::Environment& here = b.inputs.here;
  Json out = {{"machine", here.machine}, {"libc", here.libc + " " + here.libc_version.text()}};
  if (here.python) out["python"] = {{"program", b.place.program}, {"version", here.python->version.text()}};
  if (here.torch)
    out["torch"] = {{"version", here.torch->version},
                    {"cuda", here.torch->cuda_version},
                    {"cxx_abi", doctor::cxx_abi_name(here.torch->cxx_abi)}};
  out["target"] = b.inputs.target.name;
  return out;
}

Json plan_object(const Plan& plan) {
  Json out = {{"cuda", plan.cuda}, {"jobs", plan.jobs}, {"nvcc_threads", plan.nvcc_threads}};
  if (plan.cuda) out["toolkit"] = {{"folder", plan.toolkit.folder}, {"version", plan.toolkit.version.text()}};
  out["compiler"] = {{"cxx", plan.compiler.cxx}, {"version", plan.compiler.version.text()}};
  out["cxx_abi"] = plan.cxx_abi < 0 ? Json() : Json(plan.cxx_abi);
  out["gencode"] = plan.gencode();
  out["decisions"] = Json::array();
  for (const Decision& d : plan.decisions)
    out["decisions"].push_back({{"what", d.what}, {"value", d.value}, {"why", d.why}});
  out["variables"] = Json::array();
  for (const Setting& s : plan.settings)
    out["variables"].push_back({{"name", s.name}, {"value", s.removed ? Json() : Json(s.value)}, {"why", s.why}});
  return out;
}

}  // namespace

Probe parse_probe(const std::string& text) {
  Probe out;
  try {
    const Json json = last_object(text);
    json.at("modules").get_to(out.modules);
    json.at("requires").get_to(out.requires_);
    out.understood = true;
  } catch (const nlohmann::json::exception&) {
  }
  return out;
}

std::string build_settings(const Plan& plan, const std::string& source, const std::string& wheel_folder,
                           bool refuse_downloads) {
  return dumped({{"source", source},
                 {"wheel_folder", wheel_folder},
                 {"cxx_abi", plan.cxx_abi < 0 ? Json() : Json(plan.cxx_abi)},
                 {"gencode", plan.cuda ? Json(plan.gencode()) : Json::array()},
                 {"nvcc_threads", plan.nvcc_threads},
                 {"refuse_downloads", refuse_downloads}});
}

std::string check_settings(const std::string& wheel, const std::string& folder, const std::vector<std::string>& modules,
                           bool compare) {
  return dumped({{"wheel", wheel}, {"folder", folder}, {"modules", modules}, {"compare", compare}});
}

CheckResult parse_check(const std::string& text) {
  CheckResult out;
  try {
    const Json json = last_object(text);
    json.at("imported").get_to(out.imported);
    json.at("failed").get_to(out.failed);
    if (json.at("compared").is_string()) json["compared"].get_to(out.not_compared);
    if (json["compared"].is_object()) {
      json["compared"].at("equal").get_to(out.equal);
      json["compared"].at("largest_difference").get_to(out.largest_difference);
      out.compared = true;
    }
    out.understood = true;
  } catch (const nlohmann::json::exception&) {
  }
  return out;
}

MatrixLine matrix_line(const PreparedBuild& b, const BuildOutcome& outcome) {
  MatrixLine line;
  line.package = b.source.package;
  line.version = b.source.version;
  const doctor::Environment& here = b.inputs.here;
  if (here.torch) {
    line.torch = here.torch->version;
    line.cuda = here.torch->cuda_version;
    line.abi = doctor::cxx_abi_name(here.torch->cxx_abi);
  }
  if (here.python)
    line.python = std::to_string(here.python->version.major_part()) + "." +
                  std::to_string(here.python->version.minor_part()) + (here.python->free_threaded ? "t" : "");
  line.machine = here.machine;
  if (!b.inputs.target.gpus.empty()) line.gpu = b.inputs.target.gpus[0].name;
  for (const Architecture& a : b.plan.architectures) line.architectures.push_back(dotted(a.arch));
  line.status = outcome.compared.value_or(false) ? "compared" : (outcome.imported.empty() ? "judged" : "imported");
  for (const doctor::Verdict& v : outcome.verdicts) {
    if (v.severity != doctor::Severity::kError) continue;
    line.status = "fails";
    line.codes.push_back(v.code.text());
  }
  line.wheel = support::base_name(outcome.wheel);
  line.sha256 = outcome.sha256;
  line.host = host_name();
  line.time = utc_time_now();
  line.build_seconds = outcome.seconds;
  line.peak_bytes = double(outcome.peak_bytes);
  return line;
}

std::string build_record(const PreparedBuild& b, const BuildOutcome& outcome, const MatrixLine& line,
                         const std::map<std::string, std::string>& tools) {
  return dumped({{"wheel", support::base_name(outcome.wheel)},
                 {"sha256", outcome.sha256},
                 {"mica_version", b.request.mica_version},
                 {"built_at", utc_time_now()},
                 {"built_by", user_and_host()},
                 {"source", source_json(b.source)},
                 {"environment", environment_json(b)},
                 {"plan", plan_object(b.plan)},
                 {"tools", tools},
                 {"seconds", outcome.seconds},
                 {"peak_bytes", outcome.peak_bytes},
                 {"attempts", outcome.attempts},
                 {"jobs_at_the_end", outcome.jobs},
                 {"imported", outcome.imported},
                 {"compared_with_mica", outcome.compared ? Json(*outcome.compared) : Json()},
                 {"largest_difference", outcome.compared ? Json(outcome.largest_difference) : Json()},
                 {"verdicts", verdicts_json(outcome.verdicts)},
                 {"matrix", Json::parse(to_json_line(line))}});
}

std::string judged_again(const std::string& old_record, const std::string& new_record) {
  const Json before = Json::parse(old_record, nullptr, false);
  Json out = Json::parse(new_record);
  if (!before.is_object() || before.value("sha256", "") != out.value("sha256", "none")) return new_record;
  const auto keep = [&](const char* name) {
    if (before.contains(name)) out[name] = before[name];
  };
  for (const char* name : {"mica_version", "built_at", "built_by", "plan", "tools", "seconds", "peak_bytes", "attempts",
                           "jobs_at_the_end"})
    keep(name);
  if (out["imported"].empty()) keep("imported");
  if (out["compared_with_mica"].is_null())
    for (const char* name : {"compared_with_mica", "largest_difference"}) keep(name);
  if (out["matrix"]["status"] != "fails" && !out["imported"].empty())
    out["matrix"]["status"] = out["compared_with_mica"] == true ? "compared" : "imported";
  return dumped(out);
}

std::vector<RecordedBuild> recorded_builds(const std::string& work) {
  std::vector<std::pair<std::string, RecordedBuild>> found;
  std::error_code error;
  for (fs::directory_iterator entry(work, error), end; !error && entry != end; entry.increment(error)) {
    try {
      const std::string folder = entry->path().string();
      const Json in = Json::parse(support::read_text_file(folder + "/record.json"));
      RecordedBuild one;
      one.package = in.at("source").at("package").get<std::string>();
      one.version = in.at("source").at("version").get<std::string>();
      one.origin = work;
      one.seconds = in.at("seconds").get<double>();
      one.jobs = in.at("jobs_at_the_end").get<int>();
      one.peak_bytes = in.at("peak_bytes").get<uint64_t>();
      int cubins = 0;
      for (const Json& code : in.at("plan").at("gencode"))
        cubins += code.get<std::string>().find("code=sm_") != std::string::npos;
      one.architectures = std::max(1, cubins);
      std::error_code missing;
      const auto bytes = fs::file_size(folder + "/wheel/" + in.at("wheel").get<std::string>(), missing);
      if (!missing) one.wheel_bytes = bytes;
      found.emplace_back(in.at("built_at").get<std::string>(), std::move(one));
    } catch (const support::ReadError&) {
    } catch (const nlohmann::json::exception&) {
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RecordedBuild> out;
  out.reserve(found.size());
  for (auto& [when, one] : found) out.push_back(std::move(one));
  return out;
}

std::string plan_json(const PreparedBuild& b) {
  const Forecast& f = b.forecast;
  const Json foretold = {
      {"seconds", f.seconds}, {"peak_bytes", f.peak_bytes}, {"wheel_bytes", f.wheel_bytes}, {"from", f.from}};
  return dumped({{"refused", b.plan.refused()},
                 {"forecast", f.from.empty() ? Json() : foretold},
                 {"source", source_json(b.source)},
                 {"environment", environment_json(b)},
                 {"plan", plan_object(b.plan)},
                 {"folder", b.folder},
                 {"out", b.request.out},
                 {"verdicts", verdicts_json(b.plan.verdicts)}});
}

std::string state_json(const std::string& folder, const BuildState& s) {
  return dumped({{"status", s.phase == "done" ? "built" : s.phase},
                 {"folder", folder},
                 {"wheel", s.wheel},
                 {"error", s.message},
                 {"files_done", s.files_done},
                 {"files_total", s.files_total},
                 {"seconds", s.seconds},
                 {"peak_bytes", s.peak_bytes},
                 {"jobs", s.jobs}});
}

std::string outcome_json(const PreparedBuild& b, const BuildOutcome& outcome) {
  return dumped(
      {{"status", status_name(outcome.status)},
       {"wheel", outcome.wheel},
       {"sha256", outcome.sha256},
       {"record", outcome.record},
       {"published", outcome.published},
       {"log", outcome.log},
       {"folder", b.folder},
       {"error", outcome.error},
       {"imported", outcome.imported},
       {"not_imported", outcome.not_imported},
       {"compared_with_mica", outcome.compared ? Json(*outcome.compared) : Json()},
       {"largest_difference", outcome.compared ? Json(outcome.largest_difference) : Json()},
       {"not_compared", outcome.not_compared},
       {"seconds", outcome.seconds},
       {"peak_bytes", outcome.peak_bytes},
       {"attempts", outcome.attempts},
       {"jobs", outcome.jobs},
       {"verdicts", verdicts_json(outcome.status == BuildStatus::kRefused ? b.plan.verdicts : outcome.verdicts)}});
}

}  // namespace builder
