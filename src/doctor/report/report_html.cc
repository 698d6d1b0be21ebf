// SPDX-License-Identifier: Apache-2.0
#include "doctor/report/report_html.h"

#include "support/html.h"

namespace doctor {

using namespace support;

namespace {

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 "
    "1rem;color:#222;background:#fff}"
    "h1{font-size:1.5rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}table{border-collapse:collapse;width:100%}"
    "td{padding:.15rem .8rem .15rem 0;vertical-align:top;overflow-wrap:anywhere}td:first-child{color:#666;width:9rem}"
    ".v{border-left:4px solid #888;background:#f6f6f6;padding:.5rem .8rem;margin:.5rem 0;overflow-wrap:anywhere}"
    ".error{border-color:#c62828}.warning{border-color:#ef9a00}.note{border-color:#2e7d32}"
    "code,pre{font:13px/1.45 ui-monospace,monospace;white-space:pre-wrap;margin:0}b{font-weight:600}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}.v{background:#222}td:first-child{color:#999}"
    "}";

std::string verdict_html(const Verdict& verdict) {
  std::string out = "<div class=\"v " + std::string(severity_name(verdict.severity)) + "\"><b>" +
                    html_escaped(verdict.code.text()) + "</b> " + html_escaped(verdict.subject) + "<pre>" +
                    html_escaped(verdict.message) + "</pre>";
  if (!verdict.cause.empty()) out += "<p>" + html_escaped(verdict.cause) + "</p>";
  if (!verdict.fix.empty()) out += "<p>fix</p><pre>" + html_escaped(verdict.fix) + "</pre>";
  if (!verdict.evidence.empty()) {
    out += "<details><summary>evidence</summary><pre>";
    for (const std::string& line : verdict.evidence) out += html_escaped(line) + "\n";
    out += "</pre></details>";
  }
  return out + "</div>\n";
}

}  // namespace

std::string report_html(const std::string& title, const std::vector<ReportSection>& sections,
                        const std::vector<Judged>& judged) {
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" + html_escaped(title) +
                    "</title><style>" + kStyle + "</style></head><body>\n<h1>" + html_escaped(title) + "</h1>\n";
  for (const Judged& item : judged) {
    out += "<h2>" + html_escaped(item.subject) + (item.target.empty() ? "" : " in " + html_escaped(item.target)) +
           "</h2>\n";
    for (const Verdict& verdict : item.verdicts) out += verdict_html(verdict);
    if (item.verdicts.empty()) out += "<p>nothing to complain about</p>\n";
  }
  for (const ReportSection& section : sections) {
    out += "<h2>" + html_escaped(section.title) + "</h2>\n<table>\n";
    for (const auto& [label, text] : section.rows)
      out += "<tr><td>" + html_escaped(label) + "</td><td>" + html_escaped(text) + "</td></tr>\n";
    out += "</table>\n";
  }
  return out + "</body></html>\n";
}

}  // namespace doctor
