// SPDX-License-Identifier: Apache-2.0
#include "builder/shelf/matrix.h"

#include <algorithm>
#include <tuple>

#include "support/html.h"
#include "support/text.h"
#include "support/version.h"

namespace builder {

using namespace support;

namespace {

// What a row is about; versions compare as numbers, and by their text where those agree.
auto subject(const MatrixLine& l) {
  const auto version = [](const std::string& text) { return std::pair(support::parse_version(text), text); };
  return std::tuple(l.package, version(l.version), version(l.torch), version(l.cuda), version(l.python), l.abi,
                    l.machine, l.gpu, l.architectures);
}

// 0: it fails, or is not known.
std::ptrdiff_t strength(const MatrixLine& line) {
  const auto found = std::find(std::begin(kStatuses), std::end(kStatuses), line.status);
  return found == std::end(kStatuses) ? 0 : found - std::begin(kStatuses);
}

}  // namespace

std::vector<MatrixLine> latest_lines(std::vector<MatrixLine> lines) {
  std::stable_sort(lines.begin(), lines.end(), [](const MatrixLine& a, const MatrixLine& b) {
    const auto left = subject(a), right = subject(b);
    return left != right ? left < right : a.time > b.time;
  });
  std::vector<MatrixLine> out;
  bool is_open = false;  // whether older lines may still say more about out.back()
  for (MatrixLine& line : lines) {
    if (out.empty() || subject(out.back()) != subject(line)) {
      is_open = strength(line) > 0;
      out.push_back(std::move(line));
    } else if (is_open && line.sha256 == out.back().sha256) {
      is_open = strength(line) > 0;
      if (strength(line) > strength(out.back())) out.back() = std::move(line);
    }
  }
  return out;
}

std::vector<std::string> matrix_headers() {
  return {"package", "version", "PyTorch", "CUDA", "Python", "C++ ABI", "machine", "GPU", "code for", "status", "date"};
}

std::vector<std::string> matrix_cells(const MatrixLine& l) {
  const std::string status = l.status + (l.codes.empty() ? "" : ": " + support::joined(l.codes, ", "));
  std::vector<std::string> cells = {l.package,
                                    l.version,
                                    l.torch,
                                    l.cuda,
                                    l.python,
                                    l.abi,
                                    l.machine,
                                    l.gpu,
                                    support::joined(l.architectures, ", "),
                                    status,
                                    l.time.substr(0, 10)};
  for (std::string& cell : cells) cell = cell.empty() ? "-" : support::printable(cell);
  return cells;
}

std::string matrix_html(const std::vector<MatrixLine>& lines) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Wheels and where they "
      "work</title>\n<style>\nbody { font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff "
      "}\n"
      "table { border-collapse: collapse }\nth, td { text-align: left; padding: .35em .8em; border-bottom: 1px solid "
      "#ddd }\nth { border-bottom: 2px solid #888 }\n.fails { background: #fbe3e0 }\n.judged { background: #f4f4f4 }\n"
      ".imported { background: #e6f1fa }\n.compared { background: #e2f3e4 }\n@media (prefers-color-scheme: dark) { "
      "body "
      "{ color: #ddd; background: #1b1b1b } .fails { background: #512 } .judged { background: #2a2a2a } .imported { "
      "background: #123049 } .compared { background: #123a1c } }\n</style>\n</head>\n<body>\n<h1>Wheels and where they "
      "work</h1>\n<p>compared: results agree with Mica's; imported: it was loaded there; judged: the doctor sees "
      "nothing wrong; fails: with the verdict's code.</p>\n<table>\n<tr>";
  for (const std::string& header : matrix_headers()) out += "<th>" + html_escaped(header) + "</th>";
  out += "</tr>\n";
  for (const MatrixLine& line : lines) {
    const bool known = std::find(std::begin(kStatuses), std::end(kStatuses), line.status) != std::end(kStatuses);
    out += "<tr class=\"" + (known ? line.status : "") + "\" title=\"" + html_escaped(line.wheel) + "\">";
    for (const std::string& cell : matrix_cells(line)) out += "<td>" + html_escaped(cell) + "</td>";
    out += "</tr>\n";
  }
  return out + "</table>\n</body>\n</html>\n";
}

}  // namespace builder
