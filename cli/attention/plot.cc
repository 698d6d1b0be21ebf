// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/text.h"
#include "support/html.h"

namespace cli {
namespace {

constexpr double kPanelWidth = 360, kPanelHeight = 300, kGap = 110, kLeft = 76, kTop = 104, kBottom = 78, kRight = 96;

std::string text_at(double x, double y, const char* css, const std::string& text) {
  return format("<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", css, x, y) + support::html_escaped(text) + "</text>\n";
}

// Labels at powers of 10 (seconds) or of 16 (bytes): few, round and evenly spaced.
std::string tick_label(PlotUnit unit, double value) {
  if (unit == PlotUnit::kBytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int power = 0;
    for (; value >= 1024 && power < 4; ++power) value /= 1024;
    return format("%g %s", value, units[power]);
  }
  if (value < 0.9e-3) return format("%g us", std::round(value * 1e6));
  if (value < 0.9) return format("%g ms", std::round(value * 1e3));
  return format("%g s", value);
}

std::string value_label(PlotUnit unit, double value) {
  return unit == PlotUnit::kBytes ? format_bytes(value) : format_seconds(value);
}

struct Axis {
  double low, high, begin, end;  // values, and where they lie
  double at(double value) const {
    return begin + (end - begin) * (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  }
};

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  void cover(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

std::string draw_series(const PlotSeries& series, const Axis& x, const Axis& y, const char* css) {
  std::string out;
  for (std::size_t i = 1; i < series.points.size(); ++i) {
    const PlotPoint &a = series.points[i - 1], &b = series.points[i];
    out += format("<line class=\"%s%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", css,
                  b.measured ? "" : " formula", x.at(a.x), y.at(a.y), x.at(b.x), y.at(b.y));
  }
  for (const PlotPoint& p : series.points)
    out += format("<circle class=\"%s%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", css, p.measured ? "" : " hollow",
                  x.at(p.x), y.at(p.y));
  return out;
}

std::string draw_panel(const PlotPanel& panel, double left, const Extent& x_extent,
                       const std::vector<double>& x_values) {
  Extent extent;
  for (const PlotSeries& s : panel.series)
    for (const PlotPoint& p : s.points) extent.cover(p.y);
  const double base = panel.unit == PlotUnit::kBytes ? 16 : 10;
  const auto power = [base](double value) { return std::log(value) / std::log(base); };
  const double low = std::pow(base, std::floor(power(extent.low) + 1e-9));
  const double high = std::pow(base, std::ceil(power(extent.high) - 1e-9));
  const Axis x = {x_extent.low, x_extent.high, left + 14, left + kPanelWidth - 14};
  const Axis y = {low, high, kTop + kPanelHeight, kTop};

  std::string out = text_at(left, kTop - 16, "panel", panel.title);
  for (double value = low; value <= high * 1.001; value *= base) {
    out += format("<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", left, y.at(value),
                  left + kPanelWidth, y.at(value));
    out += text_at(left - 8, y.at(value) + 4, "tick end", tick_label(panel.unit, value));
  }
  for (const double value : x_values)
    out += text_at(x.at(value), kTop + kPanelHeight + 20, "tick middle",
                   value >= 1024 && std::fmod(value, 1024) == 0 ? format("%gk", value / 1024) : format("%g", value));

  double label_y[2] = {0, 0};
  for (std::size_t s = 0; s < panel.series.size(); ++s) label_y[s] = y.at(panel.series[s].points.back().y) + 4;
  if (panel.series.size() == 2 && std::abs(label_y[0] - label_y[1]) < 34) {  // two lines of text each
    const double middle = (label_y[0] + label_y[1]) / 2, up = label_y[0] < label_y[1] ? -17 : 17;
    label_y[0] = middle + up;
    label_y[1] = middle - up;
  }
  for (std::size_t s = 0; s < panel.series.size(); ++s) {
    const char* css = s == 0 ? "a" : "b";
    const PlotPoint& last = panel.series[s].points.back();
    out += draw_series(panel.series[s], x, y, css);
    out += text_at(x.at(last.x) + 10, label_y[s] - 4, s == 0 ? "name a" : "name b", panel.series[s].name);
    out += text_at(x.at(last.x) + 10, label_y[s] + 11, "tick", value_label(panel.unit, last.y));
  }
  return out;
}

// Follows the reader's scheme; the colours keep their contrast on white and on near-black. No CSS variables: some
// viewers of SVG files do not know them, and these then show the light scheme.
constexpr const char* kStyle = R"(<style>
  text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 12px; fill: #656d76; }
  rect, circle.hollow { fill: #ffffff; }
  .title { font-size: 20px; font-weight: 600; fill: #1f2328; }
  .subtitle { font-size: 13px; }
  .panel { font-size: 14px; font-weight: 600; fill: #1f2328; }
  .name { font-size: 13px; font-weight: 600; }
  .end { text-anchor: end; }
  .middle { text-anchor: middle; }
  .grid { stroke: #d8dee4; stroke-width: 1; }
  line.a, line.b { stroke-width: 2.5; stroke-linecap: round; }
  circle { stroke-width: 2; }
  line.a, circle.a { stroke: #c2571a; }
  line.b, circle.b { stroke: #0b7285; }
  circle.a:not(.hollow), text.a { fill: #c2571a; }
  circle.b:not(.hollow), text.b { fill: #0b7285; }
  line.formula { stroke-dasharray: 2 6; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    rect, circle.hollow { fill: #0d1117; }
    .title, .panel { fill: #e6edf3; }
    .grid { stroke: #30363d; }
    line.a, circle.a { stroke: #f0883e; }
    line.b, circle.b { stroke: #4ac4d9; }
    circle.a:not(.hollow), text.a { fill: #f0883e; }
    circle.b:not(.hollow), text.b { fill: #4ac4d9; }
  }
</style>
)";

}  // namespace

std::string plot_svg(const Plot& plot) {
  Extent x_extent;
  std::vector<double> x_values;
  for (const PlotPanel& panel : plot.panels)
    for (const PlotSeries& series : panel.series)
      for (const PlotPoint& p : series.points) {
        x_extent.cover(p.x);
        if (std::find(x_values.begin(), x_values.end(), p.x) == x_values.end()) x_values.push_back(p.x);
      }
  if (x_extent.low == x_extent.high) {  // one length: room on both sides
    x_extent.low /= 2;
    x_extent.high *= 2;
  }
  const double panels = double(plot.panels.size());
  const double width = kLeft + panels * kPanelWidth + (panels - 1) * (kGap + kLeft) + kRight;
  const double height = kTop + kPanelHeight + kBottom;
  std::string out = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
      "role=\"img\">\n<title>",
      width, height, width, height);
  out += support::html_escaped(plot.title) + "</title>\n" + kStyle +
         format("<rect width=\"%.0f\" height=\"%.0f\" rx=\"8\"/>\n", width, height);
  out += text_at(24, 36, "title", plot.title) + text_at(24, 58, "subtitle", plot.subtitle);
  for (std::size_t i = 0; i < plot.panels.size(); ++i) {
    const double left = kLeft + double(i) * (kPanelWidth + kGap + kLeft);
    out += draw_panel(plot.panels[i], left, x_extent, x_values);
    out += text_at(left + kPanelWidth / 2, kTop + kPanelHeight + 42, "tick middle", plot.x_label);
  }
  out += text_at(24, height - 12, "tick", plot.footnote);
  return out + "</svg>\n";
}

}  // namespace cli
