// SPDX-License-Identifier: Apache-2.0
// libFuzzer over pasted text: any bytes are explained or not known, and what is said of them can be shown.
#include <cstdlib>

#include "doctor/explain/explain.h"
#include "doctor/explain/log_text.h"
#include "doctor/verdict/catalogue.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const doctor::Verdict& verdict : doctor::explain(text).verdicts) {
    if (!doctor::find_verdict_kind(verdict.code.name()) || verdict.evidence.empty()) std::abort();
    for (const char c : doctor::verdict_text(verdict, false))
      if ((static_cast<unsigned char>(c) < 32 && c != '\n') || c == 127) std::abort();
  }
  for (const char c : doctor::likely_error_line(text))
    if (static_cast<unsigned char>(c) < 32 || c == 127) std::abort();
  return 0;
}
