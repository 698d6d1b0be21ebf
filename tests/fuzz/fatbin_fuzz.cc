// SPDX-License-Identifier: Apache-2.0
// libFuzzer over fatbin containers and cubins; fed whole and in pieces, both must find the same.
#include <cstdlib>

#include "doctor/facts/facts.h"
#include "doctor/facts/gpu_rules.h"
#include "doctor/read/cubin.h"
#include "doctor/read/unpack/lz4.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  support::MemorySource source(bytes);
  std::vector<std::string> problems, other_problems;
  const auto whole = doctor::read_fatbins(source, {0, size}, &problems);
  doctor::FatbinScanner scanner;
  for (size_t at = 0; at < size; at += 37) scanner.feed(bytes.subspan(at, std::min<size_t>(37, size - at)));
  const auto pieces = scanner.finish(&other_problems);
  if (whole.size() != pieces.size() || problems != other_problems) std::abort();
  for (size_t i = 0; i < whole.size(); ++i)
    if (whole[i].offset != pieces[i].offset || whole[i].entries.size() != pieces[i].entries.size()) std::abort();
  doctor::gpu_facts(whole);
  for (const auto& container : whole) doctor::judge_container(container, {9, 0}, support::parse_version("535"));
  try {
    doctor::read_cubin(source);
  } catch (const support::ReadError&) {
  }
  if (doctor::expand_lz4(bytes, 4096).size() > 4096) std::abort();
  return 0;
}
