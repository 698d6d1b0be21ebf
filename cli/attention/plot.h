// SPDX-License-Identifier: Apache-2.0
// A plot with logarithmic axes as one SVG file that is readable on light and on dark pages.
#pragma once

#include <string>
#include <vector>

namespace cli {

struct PlotPoint {
  double x, y;
  bool measured;  // false: computed from a formula; drawn hollow, its line dashed
};
struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
};
enum class PlotUnit { kSeconds, kBytes };
struct PlotPanel {
  std::string title;
  PlotUnit unit;
  std::vector<PlotSeries> series;  // at most two; the second is ours
};
struct Plot {
  std::string title, subtitle, x_label, footnote;
  std::vector<PlotPanel> panels;  // side by side, the same x in each
};

std::string plot_svg(const Plot& plot);

}  // namespace cli
