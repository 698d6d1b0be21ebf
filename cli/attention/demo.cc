// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/demo.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>

#include "cli/attention/naive.h"
#include "cli/attention/plot.h"
#include "cli/process.h"
#include "cli/text.h"
#include "mica/mica.hpp"
#include "support/process.h"

namespace cli {
namespace {

DemoMeasurement measure(const DemoOptions& options, bool tiled, std::int64_t length) {
  const NaiveProblem p = {length, options.heads, options.dim, options.causal};
  const std::size_t elements = std::size_t(p.rows * p.heads * p.dim);
  std::vector<float> q(elements), k(elements), v(elements), o(elements, NAN);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (auto* tensor : {&q, &k, &v})
    for (float& x : *tensor) x = normal(random);

  const mica::Shape shape{1, p.rows, p.heads, p.dim};
  mica::Attention attention(mica::tensor(std::as_const(q), shape), mica::tensor(std::as_const(k), shape),
                            mica::tensor(std::as_const(v), shape), mica::tensor(o, shape));
  if (p.causal) attention.causal();
  DemoMeasurement m = {};
  m.kernel = tiled ? attention.plan().kernel() : "naive";
  const int threads = mica_get_num_threads();

  // Memory is looked at once, while all that a run takes is still held; that look is not timed.
  const double resident_before = resident_bytes();
  double start = 0;
  std::vector<double> seconds;
  const auto stop = [&] {
    seconds.push_back(support::monotonic_seconds() - start);
    if (seconds.size() == 1) m.extra_bytes = std::max(0.0, resident_bytes() - resident_before);
  };
  const double begin = support::monotonic_seconds();
  do {  // the median of up to 7 runs, fewer when one takes long
    start = support::monotonic_seconds();
    if (tiled) {
      const mica::Plan plan = attention.plan();
      const mica::Workspace workspace(plan.workspace_bytes());
      plan.execute(attention.bindings, workspace);
      stop();
    } else {
      naive_attention(p, q, k, v, o, threads, stop);
    }
  } while (seconds.size() < 7 && support::monotonic_seconds() - begin < 0.5);
  std::nth_element(seconds.begin(), seconds.begin() + std::ptrdiff_t(seconds.size() / 2), seconds.end());
  m.seconds = seconds[seconds.size() / 2];

  std::vector<double> exact(std::size_t(p.dim));
  constexpr std::int64_t kSampledRows = 32;
  for (std::int64_t sample = 0; sample < std::min(kSampledRows, p.rows); ++sample) {
    const std::int64_t i = sample * (p.rows - 1) / std::max<std::int64_t>(std::min(kSampledRows, p.rows) - 1, 1);
    const std::int64_t head = sample % p.heads;
    exact_row(p, q, k, v, i, head, exact);
    for (std::int64_t c = 0; c < p.dim; ++c) {
      const double error = std::abs(double(o[std::size_t((i * p.heads + head) * p.dim + c)]) - exact[std::size_t(c)]);
      m.error = error <= m.error ? m.error : error;  // NaN stays
    }
  }
  return m;
}

// What a child process says of its measurement.
struct Answer {
  double seconds, extra_bytes, error;
  char kernel[128];
};

// In a process of its own, so that the peak of one cannot hide behind another's. Nothing if the machine had no memory
// left for it.
std::optional<DemoMeasurement> measure_in_child(const DemoOptions& options, bool tiled, std::int64_t length) {
  std::string said;
  const auto work = [&] {
    const DemoMeasurement m = measure(options, tiled, length);
    Answer answer = {m.seconds, m.extra_bytes, m.error, {}};
    m.kernel.copy(answer.kernel, sizeof answer.kernel - 1);
    return std::string(reinterpret_cast<const char*>(&answer), sizeof answer);
  };
  const support::Ended child = support::run_forked(work, &said);
  if (child.exit_code == 128 + SIGKILL) return std::nullopt;
  Answer answer;
  if (child.exit_code != 0 || said.size() != sizeof answer)
    throw std::runtime_error(format("the %s run at length %lld ended with code %d", tiled ? "tiled" : "textbook's",
                                    (long long)length, child.exit_code));
  std::memcpy(&answer, said.data(), sizeof answer);
  return DemoMeasurement{answer.seconds, answer.extra_bytes, answer.error, answer.kernel};
}

// The textbook takes no longer than this for a row.
constexpr double kMostTextbookSeconds = 10;

// Time grows with the square of the length; up to 7 runs are made in half a second, else one.
double predicted_seconds(const DemoMeasurement& last, std::int64_t last_length, std::int64_t length) {
  const double ratio = double(length) / double(last_length);
  return last.seconds * ratio * ratio + 0.5;
}

std::vector<DemoRow> measure_all(const DemoOptions& options, const std::function<void(const DemoRow&)>& show) {
  std::vector<DemoRow> rows;
  const double begin = support::monotonic_seconds();
  const auto left = [&] { return options.seconds - (support::monotonic_seconds() - begin); };
  const DemoRow* last_naive = nullptr;
  rows.reserve(options.lengths.size());  // last_naive points into it
  for (auto it = options.lengths.begin(); it != options.lengths.end(); ++it) {
    const std::int64_t length = *it;
    DemoRow row = {length, double(naive_extra_bytes({length, options.heads, options.dim, options.causal})), {}, {}, ""};
    if (!rows.empty() && predicted_seconds(*rows.back().tiled, rows.back().length, length) > left()) break;
    row.tiled = measure_in_child(options, true, length);
    if (!row.tiled) throw std::runtime_error(format("no memory for length %lld", (long long)length));
    double reserve = 0;  // for the tiled runs that follow
    for (auto next = it + 1; next != options.lengths.end(); ++next)
      reserve += predicted_seconds(*row.tiled, length, *next);
    const double wanted = last_naive ? predicted_seconds(*last_naive->naive, last_naive->length, length) : 0;
    if (row.naive_formula_bytes > 0.7 * available_bytes())
      row.naive_why_not = "would need " + format_bytes(row.naive_formula_bytes);
    else if (wanted > std::min(kMostTextbookSeconds, std::max(left() - reserve, 0.2 * left())))
      row.naive_why_not = "would take " + format_seconds(wanted);
    else if (!(row.naive = measure_in_child(options, false, length)))
      row.naive_why_not = "ran out of memory";
    rows.push_back(row);
    if (row.naive) last_naive = &rows.back();
    show(row);
  }
  return rows;
}

void write_plot(const DemoOptions& options, const std::vector<DemoRow>& rows, const std::string& machine) {
  PlotPanel time = {"Time", PlotUnit::kSeconds, {{"textbook", {}}, {"Mica, tiled", {}}}};
  PlotPanel memory = {"Memory beside the tensors", PlotUnit::kBytes, {{"textbook", {}}, {"Mica, tiled", {}}}};
  for (const DemoRow& row : rows) {
    const double x = double(row.length);
    if (row.naive) time.series[0].points.push_back({x, row.naive->seconds, true});
    time.series[1].points.push_back({x, row.tiled->seconds, true});
    memory.series[0].points.push_back(
        {x, row.naive ? row.naive->extra_bytes : row.naive_formula_bytes, bool(row.naive)});
    memory.series[1].points.push_back({x, row.tiled->extra_bytes, true});
  }
  Plot plot;
  plot.title = "The same attention, in tiles";
  plot.subtitle = format("fp32, %lld heads of %lld%s, forward; ", (long long)options.heads, (long long)options.dim,
                         options.causal ? ", causal" : "") +
                  machine;
  plot.x_label = "sequence length";
  plot.footnote = "Filled: measured. Hollow: by formula, not run. Mica " + std::string(mica_version()) + ", " +
                  rows.back().tiled->kernel + ".";
  if (!time.series[0].points.empty()) plot.panels = {time, memory};
  if (plot.panels.empty()) throw std::runtime_error("nothing was measured that could be drawn");
  std::ofstream out(options.plot);
  out << plot_svg(plot);
  if (!out.flush()) throw std::runtime_error("cannot write " + options.plot);
}

void check_options(const DemoOptions& options) {
  const auto want = [](bool is_fine, const std::string& complaint) {
    if (!is_fine) throw std::runtime_error(complaint);
  };
  want(options.heads >= 1 && options.heads <= 65535,
       format("heads is %lld, want 1 to 65535", (long long)options.heads));
  want(options.dim >= 1 && options.dim <= MICA_MAX_DIM_V,
       format("dim is %lld, want 1 to %d", (long long)options.dim, MICA_MAX_DIM_V));
  std::int64_t previous = 0;
  for (const std::int64_t length : options.lengths) {
    want(length >= 1 && length <= (1 << 22), format("a length is %lld, want 1 to 4194304", (long long)length));
    want(length > previous,
         format("length %lld follows %lld, want growing lengths", (long long)length, (long long)previous));
    previous = length;
  }
  const double tensors = 4 * 4.0 * double(previous) * double(options.heads) * double(options.dim);
  want(tensors < 0.7 * available_bytes(),
       format("q, k, v and o of length %lld with %lld heads of %lld take %s, and %s are free", (long long)previous,
              (long long)options.heads, (long long)options.dim, format_bytes(tensors).c_str(),
              format_bytes(available_bytes()).c_str()));
}

// A row of the table: the columns' heads, or what was measured.
constexpr const char* kLine = "%7s  %10s %10s %8s   %10s %10s   %9s %9s\n";

void print_heads(const DemoOptions& options, const std::string& machine) {
  std::printf("Attention, fp32, %lld heads of %lld%s, on %s.\n", (long long)options.heads, (long long)options.dim,
              options.causal ? ", causal" : "", machine.c_str());
  std::printf("Textbook: the whole matrix of scores in memory. Tiled: Mica, a tile at a time. Same threads.\n\n");
  std::printf(kLine, "", "time", "", "", "memory", "", "error", "");
  std::printf(kLine, "length", "textbook", "tiled", "faster", "textbook", "tiled", "textbook", "tiled");
  std::fflush(stdout);
}

void print_row(const DemoRow& row) {
  const bool both = bool(row.naive);
  std::printf(kLine, std::to_string(row.length).c_str(), both ? format_seconds(row.naive->seconds).c_str() : "-",
              format_seconds(row.tiled->seconds).c_str(),
              both ? format("%.1fx", row.naive->seconds / row.tiled->seconds).c_str() : "-",
              both ? format_bytes(row.naive->extra_bytes).c_str() : "-", format_bytes(row.tiled->extra_bytes).c_str(),
              both ? format("%.1e", row.naive->error).c_str() : "-", format("%.1e", row.tiled->error).c_str());
  if (!row.naive_why_not.empty()) std::printf("%7s  textbook not run: %s\n", "", row.naive_why_not.c_str());
  std::fflush(stdout);
}

// Exact to rounding: fp32 error is a few ulp of values near 1.
constexpr double kLargestError = 1e-5;

void print_end(const DemoOptions& options, const DemoOutcome& outcome) {
  const auto& rows = outcome.rows;
  const auto longest = std::find_if(rows.rbegin(), rows.rend(), [](const DemoRow& row) { return bool(row.naive); });
  std::printf("\n");
  if (longest != rows.rend())
    std::printf("At length %lld, tiles are %.1f times as fast and take %s beside the tensors instead of %s.\n",
                (long long)longest->length, longest->naive->seconds / longest->tiled->seconds,
                format_bytes(longest->tiled->extra_bytes).c_str(), format_bytes(longest->naive->extra_bytes).c_str());
  std::printf(
      "Time: median. Memory: of a process of its own at its fullest, less what it held when its tensors were filled.\n"
      "Error: largest difference from the formula in double precision, on 32 rows.\n");
  std::printf("Plot: %s\n", options.plot.c_str());
  if (!outcome.exact) std::printf("FAILED: a tiled result is further than %g from the formula.\n", kLargestError);
}

}  // namespace

DemoOutcome run_demo(const DemoOptions& options, bool is_table) {
  if (mica_set_num_threads(options.threads) != MICA_OK) throw std::runtime_error(mica_last_error());
  check_options(options);
  require_writable(options.plot);
  const char* description = mica_device_description({MICA_CPU, 0});
  DemoOutcome outcome = {description ? description : "CPU", {}, false};
  if (is_table) print_heads(options, outcome.machine);
  outcome.rows = measure_all(options, [&](const DemoRow& row) {
    if (is_table) print_row(row);
  });
  write_plot(options, outcome.rows, outcome.machine);
  outcome.exact = !outcome.rows.empty();
  for (const DemoRow& row : outcome.rows)
    outcome.exact = outcome.exact && row.tiled->error < kLargestError;  // NaN fails
  if (is_table) print_end(options, outcome);
  return outcome;
}

}  // namespace cli
