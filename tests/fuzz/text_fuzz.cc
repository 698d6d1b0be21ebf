// SPDX-License-Identifier: Apache-2.0
// libFuzzer over the small parsers of text: names of symbols, modules and wheels, METADATA, RECORD, Python files.
#include <cstdlib>

#include "doctor/facts/cpython_abi.h"
#include "doctor/facts/mangled.h"
#include "doctor/facts/release.h"
#include "doctor/facts/tags.h"
#include "doctor/judge/attention_wheel.h"
#include "doctor/judge/pick.h"
#include "doctor/read/metadata.h"
#include "doctor/read/python/import_run.h"
#include "doctor/read/python/imports.h"
#include "doctor/read/record.h"
#include "doctor/read/requirement.h"
#include "doctor/read/wheel_name.h"
#include "doctor/tables/torch_symbols.h"
#include "support/text.h"

namespace {

// Modules of the file's own, all of which fail.
class OnlyThese : public doctor::ModuleFinder {
 public:
  explicit OnlyThese(const doctor::PythonWords& words) : words_(words) {}
  const doctor::Outline* python(const std::string& module) override {
    const auto found = words_.outlines.find(module);
    return found == words_.outlines.end() ? nullptr : &found->second;
  }
  std::optional<doctor::ImportFailure> compiled(const std::string& module) override {
    if (module.size() % 3 == 0) return doctor::ImportFailure::kImportError;
    return {};
  }

 private:
  const doctor::PythonWords& words_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      doctor::string_abi_of(text);
      doctor::is_torch_name(text);
      doctor::find_torch_signature(text);
      doctor::stable_function_release(text);
      break;
    case 1: doctor::parse_module_name(text); break;
    case 2:
      if (const auto name = doctor::parse_wheel_name(text)) {
        for (const auto& tag : name->tags) {
          doctor::parse_platform(tag.platform);
          doctor::python_accepts(tag, {});
        }
        doctor::normal_version(name->version);
      }
      {
        doctor::AttentionWheel wheel;
        doctor::parse_attention_wheel(std::string(text), wheel);
      }
      break;
    case 3: doctor::parse_metadata(text); break;
    case 4: {
      std::vector<std::string> problems;
      doctor::parse_record(text, &problems);
      break;
    }
    case 5: {
      doctor::PythonWords words;
      doctor::collect_words("pkg/a.py", text, words);
      OnlyThese finder(words);
      doctor::run_imports({"pkg.a"}, finder);
      doctor::compiled_imports(text);
      break;
    }
    case 6:
      doctor::satisfies(text, text);
      doctor::parse_requirement(text);
      break;
    case 7:
      for (const char c : support::printable(text))
        if (static_cast<unsigned char>(c) < 32 || c == 127) std::abort();
      break;
  }
  return 0;
}
