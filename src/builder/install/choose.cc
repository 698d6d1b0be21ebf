// SPDX-License-Identifier: Apache-2.0
#include "builder/install/choose.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "doctor/judge/attention_wheel.h"
#include "doctor/judge/installed.h"
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "support/bytes.h"
#include "support/package_name.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostWheels = 2000;

// "causal-conv1d" of "causal-conv1d works"; the first word that is no filler.
std::string package_in(const std::string& wish) {
  std::istringstream words(wish);
  for (std::string word; words >> word;) {
    const std::string name = support::normalised_package(word);
    if (name != "make" && name != "the" && name != "package" && name != "import" && name != "please") return name;
  }
  return "";
}

// Why it would not load here; empty if it would.
std::string failure_of(const std::string& wheel, const doctor::Environment& here) {
  try {
    std::vector<doctor::Verdict> verdicts = doctor::judge(doctor::inspect(wheel), here);
    doctor::keep_to_the_import(verdicts);
    for (const doctor::Verdict& verdict : verdicts)
      if (verdict.severity == doctor::Severity::kError) return verdict.code.text() + ": " + verdict.message;
    return "";
  } catch (const ReadError& e) {
    return e.what();
  }
}

struct AtHand {
  std::string file;
  doctor::AttentionWheel name;
  bool is_mica() const { return name.file.find("+mica") != std::string::npos; }
};

std::vector<AtHand> wheels_in(const std::vector<std::string>& folders) {
  std::vector<AtHand> out;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; it != end && !error && out.size() < kMostWheels;
         it.increment(error)) {
      AtHand wheel{it->path().string(), {}};
      if (doctor::parse_attention_wheel(it->path().filename().string(), wheel.name)) out.push_back(std::move(wheel));
    }
  }
  std::sort(out.begin(), out.end(), [](const AtHand& a, const AtHand& b) {
    return std::pair(parse_version(a.name.version), a.file) > std::pair(parse_version(b.name.version), b.file);
  });
  return out;
}

class Chooser {
 public:
  Chooser(const std::vector<std::string>& folders, const doctor::Survey& survey, const doctor::PythonInstall& python)
      : survey_(survey), python_(python), here_(environment_of(survey, &python)), at_hand_(wheels_in(folders)) {}

  FixChoice run(const std::string& wish) {
    if (wish.ends_with(".whl") && wish.find(' ') == wish.npos) return of_file(wish);
    out_.package = package_in(wish);
    if (out_.package == "flash-attention" || out_.package == "flash-attention-2") out_.package = "flash-attn";
    if (out_.package.empty()) {
      why("the wish names no package: want a name such as flash-attn, or a wheel");
      return out_;
    }
    if (works_already() || is_served_by_mica() || is_served_by_a_wheel()) return out_;
    return of_build();
  }

 private:
  void why(const std::string& line) { out_.why.push_back(line); }
  void choose(FixChoice::Kind kind, std::vector<std::string> wheels = {}) {
    out_.kind = kind;
    out_.wheels = std::move(wheels);
  }

  FixChoice of_file(const std::string& wheel) {
    doctor::AttentionWheel name;
    if (doctor::parse_attention_wheel(fs::path(wheel).filename().string(), name)) out_.package = name.package;
    const std::string failure = access(wheel.c_str(), R_OK) == 0 ? failure_of(wheel, here_) : "it cannot be read";
    if (!failure.empty()) {
      why(wheel + " would not load: " + failure);
      if (!out_.package.empty()) why("mica fix " + out_.package + " looks for what does");
      return out_;
    }
    why(wheel + " loads here, by its symbols");
    choose(FixChoice::Kind::kWheel, {wheel});
    return out_;
  }

  bool works_already() {
    const doctor::InstalledPackage* installed = python_.package(out_.package);
    if (!installed) {
      why(out_.package + " is not installed in " + python_.program);
      return false;
    }
    for (const doctor::Verdict& verdict : doctor::judge_package(survey_, python_, *installed, here_).verdicts)
      if (verdict.severity == doctor::Severity::kError) {
        why(out_.package + " " + installed->version + " is installed and fails: " + verdict.code.text() + ", " +
            verdict.message);
        return false;
      }
    why(out_.package + " " + installed->version + " is installed and loads");
    choose(FixChoice::Kind::kNothing);
    return true;
  }

  // Mica's kernels for GPUs begin with compute capability 8.0; on a machine without a GPU it computes on the CPU.
  bool is_served_by_mica() {
    if (out_.package != "flash-attn" && out_.package != "flash-attn-3") return false;
    for (const doctor::Gpu& gpu : here_.gpus)
      if (gpu.capability.major < 8) {
        why("Mica's drop-in does not serve here: " + printable(gpu.name) + " is of compute capability " +
            gpu.capability.text() + ", its kernels begin with 8.0; attn_implementation=\"sdpa\" does");
        return false;
      }
    const AtHand* drop_in = nullptr;
    const AtHand* library = nullptr;
    for (const AtHand& wheel : at_hand_) {
      if (!drop_in && wheel.name.package == out_.package && wheel.is_mica()) drop_in = &wheel;
      if (!library && wheel.name.package == "mica-attention" && failure_of(wheel.file, here_).empty()) library = &wheel;
    }
    const bool has_library = library || python_.package("mica-attention");
    if (!drop_in || !has_library) {
      why("Mica's drop-in would serve, and its wheels (flash_attn-...+mica...whl, mica_attention-...whl) are in none "
          "of the "
          "folders: --from DIR says where they are");
      return false;
    }
    why("Mica's drop-in serves: it is compiled for no torch, and has the kernels for this machine");
    std::vector<std::string> wheels = {drop_in->file};
    if (library) wheels.push_back(library->file);
    choose(FixChoice::Kind::kDropIn, wheels);
    return true;
  }

  bool is_served_by_a_wheel() {
    std::size_t looked_at = 0;
    for (const AtHand& wheel : at_hand_) {
      if (wheel.name.package != out_.package || wheel.is_mica()) continue;
      ++looked_at;
      const std::string failure = wheel.name.pretender ? "nothing was compiled into it" : failure_of(wheel.file, here_);
      if (failure.empty()) {
        why(wheel.file + " is at hand and loads here, by its symbols");
        choose(FixChoice::Kind::kWheel, {wheel.file});
        return true;
      }
      why(wheel.file + " is at hand and would not load: " + failure);
    }
    if (looked_at == 0) why("no wheel of " + out_.package + " is at hand");
    return false;
  }

  FixChoice of_build() {
    why("so it is built for this torch: mica build " + out_.package + " --install");
    choose(FixChoice::Kind::kBuild);
    return out_;
  }

  const doctor::Survey& survey_;
  const doctor::PythonInstall& python_;
  doctor::Environment here_;
  std::vector<AtHand> at_hand_;
  FixChoice out_;
};

}  // namespace

FixChoice choose_fix(const std::string& wish, const std::vector<std::string>& folders, const doctor::Survey& survey,
                     const doctor::PythonInstall& python) {
  return Chooser(folders, survey, python).run(wish);
}

}  // namespace builder
