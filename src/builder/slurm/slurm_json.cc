// SPDX-License-Identifier: Apache-2.0
#include "builder/slurm/slurm_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "builder/slurm/slurm_script.h"

namespace builder {
namespace {

using nlohmann::json;

// Digits, or those of an array and of its task: "123", "123_4"; empty before Slurm has answered.
bool is_id(const std::string& text) {
  const std::size_t line = text.find('_');
  const bool ends_well = line == text.npos || (line > 0 && line + 1 < text.size());
  return ends_well && text.size() <= 30 && std::count(text.begin(), text.end(), '_') <= 1 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || c == '_'; });
}

}  // namespace

std::string to_json(const Job& job) {
  const JobRequest& request = job.request;
  const json out = {{"id", job.id},
                    {"cluster", job.cluster},
                    {"submitted", job.submitted},
                    {"attempt", job.attempt},
                    {"earlier", job.earlier},
                    {"name", request.name},
                    {"words", request.words},
                    {"variables", request.variables},
                    {"work_folder", request.work_folder},
                    {"out", request.out},
                    {"publish", request.publish},
                    {"builds", request.builds},
                    {"target", request.target},
                    {"python", request.python},
                    {"cores", request.cores},
                    {"jobs", request.jobs},
                    {"job_bytes", request.job_bytes},
                    {"partition", request.wishes.partition},
                    {"memory", request.wishes.memory},
                    {"time", request.wishes.time},
                    {"gres", request.wishes.gres},
                    {"account", request.wishes.account},
                    {"qos", request.wishes.qos},
                    {"constraint", request.wishes.constraint},
                    {"reservation", request.wishes.reservation},
                    {"modules", request.wishes.modules},
                    {"sbatch", request.wishes.lines}};
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Job job_from_json(std::string_view text, const std::string& origin) {
  try {
    const json in = json::parse(text);
    Job job;
    job.id = in.at("id").get<std::string>();
    job.cluster = in.at("cluster").get<std::string>();
    job.submitted = in.at("submitted").get<double>();
    job.attempt = in.at("attempt").get<int>();
    job.earlier = in.at("earlier").get<std::vector<std::string>>();
    JobRequest& request = job.request;
    request.name = in.at("name").get<std::string>();
    request.words = in.at("words").get<std::vector<std::string>>();
    request.variables = in.at("variables").get<Variables>();
    request.work_folder = in.at("work_folder").get<std::string>();
    request.out = in.value("out", "");
    request.publish = in.value("publish", "");
    request.builds = in.at("builds").get<std::string>();
    request.target = in.at("target").get<std::string>();
    request.python = in.value("python", "");
    request.cores = in.at("cores").get<int>();
    request.jobs = in.at("jobs").get<int>();
    request.job_bytes = in.at("job_bytes").get<uint64_t>();
    request.wishes = {in.at("partition").get<std::string>(),
                      in.at("memory").get<std::string>(),
                      in.at("time").get<std::string>(),
                      in.at("gres").get<std::string>(),
                      in.at("account").get<std::string>(),
                      in.value("qos", ""),
                      in.value("constraint", ""),
                      in.value("reservation", ""),
                      in.value("modules", std::vector<std::string>{}),
                      in.value("sbatch", std::vector<std::string>{})};
    // The id becomes part of a file name and of a command line.
    if (!is_id(job.id)) throw std::runtime_error("id is no number");
    if (request.words.empty()) throw std::runtime_error("words is empty");
    check_wishes(request.wishes);
    return job;
  } catch (const std::exception& e) {
    std::string line = e.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw std::runtime_error(origin + " describes no job: " + line);
  }
}

std::optional<JobOutcome> outcome_from_json(std::string_view text) {
  try {
    const json in = json::parse(text);
    JobOutcome out{in.at("status").get<std::string>(), in.at("error").get<std::string>(), {}};
    for (const json& verdict : in.at("verdicts")) out.codes.push_back(verdict.at("code").get<std::string>());
    return out;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace builder
