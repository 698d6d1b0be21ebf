// SPDX-License-Identifier: Apache-2.0
#include "builder/shelf/records.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "doctor/verdict/catalogue.h"

namespace builder {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(std::string_view text, const std::string& origin) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw std::runtime_error(origin + ": no JSON object");
  return json;
}

// Records are read from a folder that others write to: any type but the wanted one counts as absent.
template <class T>
T field(const Json& json, const char* name, T otherwise = {}) {
  const auto found = json.find(name);
  if (found == json.end()) return otherwise;
  try {
    return found->template get<T>();
  } catch (const nlohmann::json::exception&) {
    return otherwise;
  }
}

Json verdict_json(const doctor::Verdict& v) {
  return {{"code", v.code.name()}, {"severity", doctor::severity_name(v.severity)},
          {"message", v.message},  {"cause", v.cause},
          {"fix", v.fix},          {"evidence", v.evidence}};
}

doctor::Severity severity_of(const std::string& name) {
  for (const auto severity : {doctor::Severity::kNote, doctor::Severity::kWarning})
    if (name == doctor::severity_name(severity)) return severity;
  return doctor::Severity::kError;
}

Json line_json(const MatrixLine& l) {
  Json out = {{"package", l.package}, {"version", l.version}, {"torch", l.torch},
              {"cuda", l.cuda},       {"python", l.python},   {"cxx_abi", l.abi},
              {"machine", l.machine}, {"gpu", l.gpu},         {"architectures", l.architectures},
              {"status", l.status},   {"codes", l.codes},     {"wheel", l.wheel},
              {"sha256", l.sha256},   {"host", l.host},       {"time", l.time}};
  if (l.build_seconds > 0) out["build_seconds"] = l.build_seconds;
  if (l.peak_bytes > 0) out["peak_bytes"] = l.peak_bytes;
  return out;
}

MatrixLine line_of(const Json& json) {
  const auto text = [&](const char* name) { return field<std::string>(json, name); };
  MatrixLine l;
  l.package = text("package");
  l.version = text("version");
  l.torch = text("torch");
  l.cuda = text("cuda");
  l.python = text("python");
  l.abi = text("cxx_abi");
  l.machine = text("machine");
  l.gpu = text("gpu");
  l.architectures = field<std::vector<std::string>>(json, "architectures");
  l.status = text("status");
  l.codes = field<std::vector<std::string>>(json, "codes");
  l.wheel = text("wheel");
  l.sha256 = text("sha256");
  l.host = text("host");
  l.time = text("time");
  l.build_seconds = field<double>(json, "build_seconds");
  l.peak_bytes = field<double>(json, "peak_bytes");
  return l;
}

// Never throws, whatever bytes a message holds.
std::string dumped(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string to_json(const Provenance& p) {
  Json out = {{"wheel", p.wheel},
              {"sha256", p.sha256},
              {"size", p.size},
              {"published_at", p.published_at},
              {"published_by", p.published_by},
              {"mica_version", p.mica_version},
              {"verdicts", Json::array()}};
  for (const doctor::Verdict& v : p.verdicts) out["verdicts"].push_back(verdict_json(v));
  out["build"] = p.build.empty() ? Json() : Json::parse(p.build, nullptr, false);
  if (out["build"].is_discarded()) out["build"] = Json();
  return dumped(out, 2) + "\n";
}

Provenance provenance_from_json(std::string_view text, const std::string& origin) {
  const Json json = parsed(text, origin);
  Provenance p;
  p.wheel = field<std::string>(json, "wheel");
  p.sha256 = field<std::string>(json, "sha256");
  p.size = field<uint64_t>(json, "size");
  p.published_at = field<std::string>(json, "published_at");
  p.published_by = field<std::string>(json, "published_by");
  p.mica_version = field<std::string>(json, "mica_version");
  for (const Json& v : field<Json>(json, "verdicts", Json::array())) {
    if (!v.is_object()) continue;
    const std::string code = field<std::string>(v, "code"), message = field<std::string>(v, "message");
    const doctor::VerdictKind* kind = doctor::find_verdict_kind(code);  // a later release has others
    p.verdicts.push_back({.code = kind ? kind->code : doctor::VerdictCode(doctor::Code::NOT_KNOWN),
                          .severity = severity_of(field<std::string>(v, "severity")),
                          .subject = p.wheel,
                          .message = kind ? message : code + ": " + message,
                          .cause = field<std::string>(v, "cause"),
                          .fix = field<std::string>(v, "fix"),
                          .evidence = field<std::vector<std::string>>(v, "evidence")});
  }
  if (json.contains("build") && json["build"].is_object()) p.build = dumped(json["build"], -1);
  return p;
}

std::string to_json_line(const MatrixLine& line) { return dumped(line_json(line), -1); }

MatrixLine matrix_line_from_json(std::string_view text, const std::string& origin) {
  return line_of(parsed(text, origin));
}

std::optional<MatrixLine> matrix_line_of_build(std::string_view build_json) {
  const Json json = Json::parse(build_json, nullptr, false);
  if (!json.is_object() || !json.contains("matrix") || !json["matrix"].is_object()) return std::nullopt;
  return line_of(json["matrix"]);
}

std::string sha256_of_build(std::string_view build_json) {
  const Json json = Json::parse(build_json, nullptr, false);
  return json.is_object() ? field<std::string>(json, "sha256") : "";
}

std::string utc_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts;
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string host_name() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return host;
}

std::string user_and_host() {
  passwd entry;
  passwd* found = nullptr;
  char buffer[4096];
  const bool known = getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found;
  return (known ? std::string(entry.pw_name) : std::to_string(geteuid())) + "@" + host_name();
}

}  // namespace builder
