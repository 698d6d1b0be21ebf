// SPDX-License-Identifier: Apache-2.0
// How far a build is, from what ninja prints.
#pragma once

#include <string>
#include <string_view>

namespace builder {

// ninja counts what is left to do in this run: "[3/40] nvcc ..."; the total of the first run is remembered.
class ProgressReader {
 public:
  ProgressReader(int total_before, int done_before) : total_(total_before), done_(done_before) {}
  // The log's next piece; it may end in the middle of a line.
  void read(std::string_view text);

  // Before ninja says anything, which it does when the first file is done.
  void expect(int total) { total_ = total; }

  int done() const { return done_; }
  int total() const { return total_; }
  // At the pace of this run so far, which took `seconds`; negative while nothing is known.
  double seconds_left(double seconds) const;

 private:
  void read_line(std::string_view line);

  int total_, done_;
  int run_done_ = 0, run_total_ = 0;
  std::string rest_;
};

// How many objects the ninja file below a source folder's build/ makes; 0 while there is none.
int count_ninja_objects(const std::string& source);

}  // namespace builder
