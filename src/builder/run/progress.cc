// SPDX-License-Identifier: Apache-2.0
#include "builder/run/progress.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace builder {

void ProgressReader::read_line(std::string_view line) {
  int done = 0, total = 0, end = 0;
  const std::string head(line.substr(0, 40));
  if (std::sscanf(head.c_str(), "[%d/%d] %n", &done, &total, &end) != 2 || end == 0) return;
  if (total <= 0 || done < 0 || done > total) return;
  run_done_ = done;
  run_total_ = total;
  total_ = std::max(total_, total);
  done_ = total_ - total + done;
}

void ProgressReader::read(std::string_view text) {
  rest_ += text;
  std::size_t begin = 0;
  for (std::size_t end; (end = rest_.find('\n', begin)) != rest_.npos; begin = end + 1)
    read_line(std::string_view(rest_).substr(begin, end - begin));
  rest_.erase(0, begin);
  constexpr std::size_t kLongestHead = 1 << 16;  // a command of many files; only its beginning counts
  if (rest_.size() > kLongestHead) rest_.resize(kLongestHead);
}

double ProgressReader::seconds_left(double seconds) const {
  if (run_done_ == 0) return -1;
  return seconds / run_done_ * (run_total_ - run_done_);
}

int count_ninja_objects(const std::string& source) {
  std::error_code error;
  int count = 0;
  for (std::filesystem::directory_iterator entry(source + "/build", error), end; !error && entry != end;
       entry.increment(error)) {
    std::ifstream file(entry->path() / "build.ninja");
    for (std::string line; std::getline(file, line);)
      count += line.starts_with("build ") && line.find(".o: ") != line.npos;
  }
  return count;
}

}  // namespace builder
