// SPDX-License-Identifier: Apache-2.0
// The compiled files of one package: which are opened, in which order, and which of them it can do without.
#include "doctor/judge/judge_parts.h"

#include <elf.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "doctor/judge/imports/numpy_interface.h"
#include "doctor/judge/imports/package_imports.h"
#include "doctor/judge/judge_load.h"
#include "doctor/judge/own_check.h"
#include "doctor/judge/torch_claim.h"
#include "doctor/load/library_store.h"
#include "doctor/read/requirement.h"
#include "support/package_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// Where a wheel's files will lie. Scripts and data folders move; what they hold is not imported.
std::string placed_path(const Inspection& inspection, const std::string& path, const Environment& target) {
  if (!inspection.wheel) {
    std::error_code error;
    const auto absolute = std::filesystem::absolute(path, error);
    return error ? path : absolute.lexically_normal().string();
  }
  const std::string folder =
      target.python && !target.python->site_packages.empty() ? target.python->site_packages[0] : "/site-packages";
  const std::string data =
      inspection.wheel->dist_info.empty()
          ? ""
          : inspection.wheel->dist_info.substr(0, inspection.wheel->dist_info.size() - 10) + ".data/";
  for (const char* scheme : {"platlib/", "purelib/"})
    if (!data.empty() && path.starts_with(data + scheme))
      return folder + "/" + path.substr(data.size() + std::string(scheme).size());
  return folder + "/" + path;
}

bool is_library(const Binary& binary) {
  // Some libraries can be started too (they print their version): they have an interpreter and a name of their own.
  const ElfFile& elf = binary.elf;
  return !binary.cubin && !binary.bare_fatbin && elf.type == ET_DYN && elf.has_dynamic && !elf.is_program &&
         (elf.interpreter.empty() || !elf.soname.empty());
}

// What Python opens by itself. Libraries that only others need are met through those.
bool is_module(const Binary& binary, const BinaryFacts& facts) {
  return is_library(binary) && (!facts.python.init_functions.empty() || facts.module.naming == ModuleNaming::kCpython ||
                                facts.module.naming == ModuleNaming::kAbi3 || facts.uses_torch);
}

// The binaries that are opened: modules; where there are none, what no other one needs (ctypes opens such).
std::vector<std::size_t> opened(const Inspection& inspection, const std::vector<BinaryFacts>& facts) {
  const std::vector<Binary>& binaries = binaries_of(inspection);
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < binaries.size(); ++i)
    if (is_module(binaries[i], facts[i]) || inspection.kind == FileKind::kElf) out.push_back(i);
  if (!out.empty()) return out;
  std::set<std::string_view> needed;
  // A program is a process of its own: what it needs may be opened by Python all the same.
  for (const Binary& binary : binaries)
    if (is_library(binary)) needed.insert(binary.elf.needed.begin(), binary.elf.needed.end());
  for (std::size_t i = 0; i < binaries.size(); ++i)
    if (is_library(binaries[i]) && !needed.count(binaries[i].elf.soname) && !needed.count(base_name(binaries[i].path)))
      out.push_back(i);
  return out;
}

// "_C" of "pkg/_C.cpython-312-x86_64-linux-gnu.so".
std::string stem_of(std::string_view path) {
  const std::string name = base_name(path);
  return name.substr(0, name.find('.'));
}

// "pkg/libpkg" of pkg/libpkg_cuda118.so, pkg/libpkg_cu12.so and pkg/libpkg_cpu.so: one library, made once for each
// CUDA, of which its package opens the one that fits. Empty for others.
std::string family_of(std::string_view path) {
  const std::string stem = stem_of(path);
  const std::size_t at = stem.rfind('_');
  if (at == stem.npos) return "";
  const std::string_view kind = std::string_view(stem).substr(at + 1);
  const std::size_t digits = std::min(kind.find_first_of("0123456789"), kind.size());
  const std::string_view name = kind.substr(0, digits);
  const bool numbered = digits < kind.size() && kind.find_first_not_of("0123456789", digits) == kind.npos;
  if (kind != "cpu" && !(numbered && (name == "cu" || name == "cuda"))) return "";
  return std::string(path.substr(0, path.size() - base_name(path).size())) + stem.substr(0, at);
}

// "pkg/libpkg" and 2.4.0 of pkg/libpkg_pytorch_2.4.0.so: one library, made once for each release of torch.
std::pair<std::string, std::string> torch_family_of(const std::string& path) {
  constexpr std::string_view kMark = "_pytorch_";
  const std::size_t at = path.rfind(kMark), end = path.rfind(".so");
  if (at == path.npos || end == path.npos || end < at + kMark.size()) return {};
  const std::string version = path.substr(at + kMark.size(), end - at - kMark.size());
  return parse_version(version).parts.size() == 3 ? std::pair(path.substr(0, at), version)
                                                  : std::pair<std::string, std::string>{};
}

class PartsJudge {
 public:
  PartsJudge(const Inspection& inspection, const std::vector<BinaryFacts>& facts, const Environment& target,
             std::vector<Verdict>& out)
      : inspection_(inspection), binaries_(binaries_of(inspection)), facts_(facts), target_(target), out_(out) {
    // Files of a folder lie on the disk already.
    std::vector<PlacedFile> beside;
    if (inspection.wheel)
      for (const Binary& binary : binaries_)
        if (is_library(binary)) beside.push_back(placed(binary));
    if (inspection.wheel) add_too_short(beside);
    session_ = std::make_unique<LoadSession>(target, beside);
    for (std::size_t i = 0; i < binaries_.size(); ++i)
      if (is_library(binaries_[i])) {
        by_name_.emplace(binaries_[i].elf.soname, i);
        by_name_.emplace(base_name(binaries_[i].path), i);
      }
  }

  void run() {
    TorchClaim claim;
    if (const auto& wheel = inspection_.wheel)
      claim = claimed_torch(wheel->metadata, wheel->name ? wheel->name->version : "");
    std::map<std::string, bool> families;  // made for each torch: whether one is for this
    for (const std::size_t i : opened(inspection_, facts_)) {
      const auto [family, release] = torch_family_of(binaries_[i].path);
      if (!family.empty() && target_.torch) {
        const bool is_ours = target_.torch->version.substr(0, target_.torch->version.find('+')) == release;
        families[family] |= is_ours;
        if (!is_ours) continue;
      }
      judge_one(i);
      if (facts_[i].uses_torch && !facts_[i].torch_stable && !out_.empty()) doubt(claim, target_, out_.back());
    }
    for (const auto& [family, is_there] : families)
      if (!is_there) add_missing_variant(family);
    doubt_files_of_one_build();
    const bool any_loads = std::any_of(attempts_.begin(), attempts_.end(),
                                       [](const Attempt& a) { return a.failure == ImportFailure::kNone; });
    PackageImports imports = run_imports_of_package();
    if (judge_again(imports)) imports = run_imports_of_package();
    for (const Attempt& attempt : attempts_) {
      if (out_[attempt.verdict].code == Code::NUMPY_ABI && attempt.failure == ImportFailure::kNone &&
          imports.reaches(module_name(attempt.binary)))
        add_open_question(binaries_[attempt.binary]);
      if (attempt.failure == ImportFailure::kNone) continue;
      Verdict& verdict = out_[attempt.verdict];
      if (imports.stops_at_library()) {
        verdict.cause += " None of the package's compiled files can be loaded here, and its import stops without one.";
        continue;
      }
      if (makes_asked_operator(attempt, imports)) {
        verdict.cause += " `import` of the package catches this, and stops soon after: RuntimeError: operator " +
                         printable(imports.asked_operator()) + " does not exist.";
        continue;
      }
      if (is_python_module(attempt.binary) && imports.is_known()) {
        const Part part = imports.part(module_name(attempt.binary));
        if (part != Part::kStops && part != Part::kLoads) set_apart(verdict, part);
      } else if (const Binary* sibling = loading_sibling(attempt)) {
        set_aside(verdict, *sibling);
      } else if (any_loads && is_optional(attempt)) {
        soften(verdict, own_library(attempt.library, binaries_[attempt.binary]));
      } else if (is_done_without(attempt, imports)) {
        set_apart(verdict, Part::kCaught);
      } else if (is_opened_by_nobody(attempt, imports)) {
        set_apart(verdict, Part::kUnreached);
      } else if (inspection_.wheel && !imports.is_known() && (any_loads || is_driver_library(attempt.library))) {
        set_apart_from_others(verdict);
      }
    }
    for (const auto& [module, verdict] : imports.others()) {
      out_.push_back(verdict);
      out_.back().evidence.push_back("it is imported on the way: " + module);
    }
    for (const std::string& name : imports.lacking()) add_lacking(name, Code::NEEDED_MISSING);
    // One that has compiled files may bring the library with it.
    if (imports.lacking().empty() && binaries_.empty())
      for (const std::string& name : imports.perhaps_lacking()) add_lacking(name, Code::CANNOT_TELL);
  }

 private:
  static constexpr std::size_t kMostBefore = 8;

  struct Attempt {
    std::size_t binary, verdict;  // indices into the binaries and the verdicts
    ImportFailure failure;
    std::string library;  // the one that is missing
  };

  bool is_bound_to_torch(const Attempt& attempt) const {
    return facts_[attempt.binary].uses_torch && !facts_[attempt.binary].torch_stable;
  }

  // Where one file was made for another release of torch, so were the others, though the loader has no complaint:
  // FBGEMM 1.3 beside torch 2.10 ends in std::length_error.
  void doubt_files_of_one_build() {
    for (const Attempt& wrong : attempts_) {
      if (out_[wrong.verdict].code != Code::TORCH_SIGNATURE || !is_bound_to_torch(wrong)) continue;
      for (const Attempt& attempt : attempts_)
        if (is_bound_to_torch(attempt))
          doubt_beside(printable(base_name(binaries_[wrong.binary].path)), target_, out_[attempt.verdict]);
      return;
    }
  }

  // "pkg._C" of the file, wherever it lies.
  std::string module_name(std::size_t i) const {
    std::string_view path = binaries_[i].path;
    for (const char* scheme : {".data/platlib/", ".data/purelib/"})
      if (const std::size_t at = path.find(scheme); inspection_.wheel && at != path.npos)
        path.remove_prefix(at + std::string_view(scheme).size());
    if (target_.python)
      for (const std::string& site : target_.python->site_packages)
        if (path.starts_with(site + "/")) path.remove_prefix(site.size() + 1);
    return path.starts_with("/") ? "" : module_of_path(path);
  }

  // Python opens it by its name; others are opened by ctypes or torch.ops.
  bool is_python_module(std::size_t i) const {
    return !facts_[i].python.init_functions.empty() || facts_[i].module.naming == ModuleNaming::kCpython ||
           facts_[i].module.naming == ModuleNaming::kAbi3;
  }

  // Some have the same module once for each Python (nvImageCodec).
  bool has_file_for_this_python(std::size_t i) const {
    const std::string module = module_name(i);
    if (module.empty() || !target_.python) return false;
    for (std::size_t other = 0; other < binaries_.size(); ++other) {
      const ModuleName& name = facts_[other].module;
      const bool is_looked_for = name.naming == ModuleNaming::kPlain || name.naming == ModuleNaming::kAbi3 ||
                                 (!name.soabi.empty() && name.soabi == target_.python->soabi);
      if (other != i && is_looked_for && name.module == facts_[i].module.module && module_name(other) == module)
        return true;
    }
    return false;
  }

  // The library of another package, and before it what it needs of such.
  void add_before(const PackageImports& imports, std::string_view name, std::vector<PlacedFile>& before) {
    const std::string path = imports.library(std::string(name));
    const ElfFile* elf = path.empty() ? nullptr : target_.libraries->find(path);
    if (!elf || before.size() >= kMostBefore ||
        std::any_of(before.begin(), before.end(), [&](const PlacedFile& file) { return file.path == path; }))
      return;
    before.insert(before.begin(), {path, elf});
    for (const std::string_view needed : elf->needed) add_before(imports, needed, before);
  }

  // What another package brings and has loaded when this one's module is opened (libarrow.so of pyarrow).
  bool judge_again(const PackageImports& imports) {
    bool any = false;
    for (Attempt& attempt : attempts_) {
      std::vector<PlacedFile> before;
      while (!attempt.library.empty() && before.size() < kMostBefore) {
        const std::size_t had = before.size();
        add_before(imports, attempt.library, before);
        if (before.size() == had) break;
        std::vector<Verdict> verdicts;
        const auto said = judge_load(binaries_[attempt.binary], facts_[attempt.binary], *session_,
                                     placed(binaries_[attempt.binary]), before, target_, verdicts);
        if (!said) break;
        for (const PlacedFile& library : before)
          verdicts.back().evidence.push_back("loaded before it by what it imports: " + printable(library.path));
        out_[attempt.verdict] = std::move(verdicts.back());
        attempt.library = said->failure == LoadFailure::kNeededMissing ? said->library : "";
        attempt.failure = import_failure(*said);
        any = true;
      }
    }
    return any;
  }

  // One file of a module that loads is enough: some have one for each Python.
  PackageImports run_imports_of_package() {
    std::map<std::string, ImportFailure> compiled;
    for (const Attempt& attempt : attempts_)
      if (const std::string module = module_name(attempt.binary); is_python_module(attempt.binary) && !module.empty()) {
        const auto [it, is_new] = compiled.emplace(module, attempt.failure);
        if (!is_new && attempt.failure == ImportFailure::kNone) it->second = ImportFailure::kNone;
      }
    const bool any_loads = std::any_of(attempts_.begin(), attempts_.end(),
                                       [](const Attempt& a) { return a.failure == ImportFailure::kNone; });
    std::set<std::string> lost;
    if (!any_loads)
      for (const Attempt& attempt : attempts_) lost.insert(stem_of(binaries_[attempt.binary].path));
    std::set<std::string> own_files;
    for (const auto& [name, binary] : by_name_) own_files.insert(name);
    return PackageImports(words(), std::move(compiled), std::move(lost), own_files, has_requirements(), target_);
  }

  // Is all installed that the wheel requires whatever the target is?
  bool has_requirements() const {
    if (!inspection_.wheel || !target_.python || !target_.libraries) return true;
    std::set<std::string> installed;
    for (const std::string& site : target_.python->site_packages)
      for (const std::string& name : target_.libraries->names(site))
        if (name.ends_with(".dist-info")) installed.insert(normalised_package(name.substr(0, name.find('-'))));
    for (const std::string& requirement : inspection_.wheel->metadata.all("Requires-Dist"))
      if (requirement.find(';') == requirement.npos &&
          !installed.count(normalised_package(parse_requirement(requirement).name)))
        return false;
    return true;
  }

  PlacedFile placed(const Binary& binary) const {
    return {placed_path(inspection_, binary.path, target_), &binary.elf};
  }

  // Files of the wheel that have a library's name and are too short to be one: at them the loader's search ends.
  void add_too_short(std::vector<PlacedFile>& out) const {
    for (const WheelEntry& entry : inspection_.wheel->entries) {
      const std::string name = base_name(entry.path);
      const bool is_named_so = name.ends_with(".so") || name.find(".so.") != name.npos;
      if (is_named_so && !entry.is_directory && !entry.is_link && entry.size < sizeof(Elf64_Ehdr))
        out.push_back({placed_path(inspection_, entry.path, target_), nullptr});
    }
  }

  const PythonWords& words() {
    if (!words_)
      words_ = inspection_.wheel ? inspection_.wheel->words : inspection_.words ? inspection_.words() : PythonWords{};
    return *words_;
  }

  bool any_step(bool (*is_meant)(const Step&)) {
    return std::any_of(words().outlines.begin(), words().outlines.end(), [&](const auto& module) {
      return std::any_of(module.second.steps.begin(), module.second.steps.end(), is_meant);
    });
  }

  // Does it open libraries whose names are not in the text? spglib looks through its folder.
  bool opens_by_variable() {
    return any_step([](const Step& s) { return s.kind == StepKind::kOpen && s.name.empty(); });
  }

  // Does the package's Python name this library, so as to open it by itself? "libpkg_ffmpeg" also stands for
  // libpkg_ffmpeg6.
  bool is_named(const std::string& stem) {
    return std::any_of(words().libraries.begin(), words().libraries.end(), [&](const std::string& word) {
      return stem.starts_with(word) && stem.find_first_not_of("0123456789", word.size()) == stem.npos;
    });
  }

  // A library of CUDA's that the package's Python opens in site-packages/nvidia before its own.
  PlacedFile cuda_of_pip(const std::string& library) {
    if (cuda_major_of(library) == 0 && !library.starts_with("libcu") && !library.starts_with("libnv")) return {};
    if (!words().opens_cuda_of_pip || !target_.python || !target_.libraries) return {};
    for (const std::string& site : target_.python->site_packages)
      for (const std::string& folder : target_.libraries->names(site + "/nvidia")) {
        const std::string path = site + "/nvidia/" + folder + "/lib/" + library;
        if (const ElfFile* elf = target_.libraries->find(path)) return {path, elf};
      }
    return {};
  }

  // A library of the same package that the loader's search does not reach.
  const Binary* own_library(const std::string& name, const Binary& user) const {
    const auto [begin, end] = by_name_.equal_range(name);
    for (auto it = begin; it != end; ++it)
      if (&binaries_[it->second] != &user) return &binaries_[it->second];
    return nullptr;
  }

  void judge_one(std::size_t i) {
    const std::size_t begin = out_.size();
    const PlacedFile file = placed(binaries_[i]);
    std::vector<PlacedFile> before;
    std::optional<Resolution> said = judge_load(binaries_[i], facts_[i], *session_, file, before, target_, out_);
    std::vector<Verdict> alone(out_.begin() + std::ptrdiff_t(begin), out_.end());
    std::vector<std::string> first;
    while (said && said->failure == LoadFailure::kNeededMissing && before.size() < kMostBefore) {
      const Binary* library = own_library(said->library, binaries_[i]);
      const PlacedFile of_pip = library ? PlacedFile{} : cuda_of_pip(said->library);
      if (library ? !is_named(stem_of(library->path)) && !opens_by_variable() : !of_pip.elf) break;
      before.insert(before.begin(), library ? placed(*library) : of_pip);
      first.push_back(printable(library ? library->path : of_pip.path));
      const std::string missing = said->library;
      out_.resize(begin);
      said = judge_load(binaries_[i], facts_[i], *session_, file, before, target_, out_);
      // Of no help: that library cannot be opened either.
      if (said && said->library == missing) break;
    }
    if (!said) {
      // Made for another Python, which is no matter if nothing asks for it, or if this Python finds another file.
      if (has_file_for_this_python(i)) out_.resize(begin);
      if (out_.size() > begin) attempts_.push_back({i, out_.size() - 1, ImportFailure::kModuleNotFound, ""});
      return;
    }
    if (said->failure == LoadFailure::kNeededMissing && !first.empty()) {
      out_.resize(begin);
      out_.insert(out_.end(), alone.begin(), alone.end());
    } else {
      for (const std::string& path : first) out_.back().evidence.push_back("opened before it by its package: " + path);
    }
    ImportFailure failure = import_failure(*said);
    if (failure == ImportFailure::kNone)
      if (const auto refused = refused_by_python(i)) {
        out_.resize(begin);
        attempts_.push_back({i, *refused, ImportFailure::kImportError, ""});
        return;
      }
    if (failure == ImportFailure::kNone)
      if (auto other = judge_pybind11(binaries_[i], facts_[i], target_)) {
        out_.back() = std::move(*other);
        failure = ImportFailure::kImportError;
      }
    if (failure == ImportFailure::kNone)
      if (auto numpy = judge_numpy(binaries_[i], facts_[i], numpy_use(binaries_[i]), target_)) {
        out_.back() = std::move(numpy->verdict);
        failure = numpy->failure;
      }
    attempts_.push_back(
        {i, out_.size() - 1, failure, said->failure == LoadFailure::kNeededMissing ? said->library : ""});
  }

  // What the loader takes and Python does not: a module without its function. That stops the import where it is
  // imported; memray's is for a debugger, ddtrace's for other modules of its own. Index of what was said of it.
  std::optional<std::size_t> refused_by_python(std::size_t i) const {
    if (facts_[i].python.is_module(facts_[i].module.module)) return {};
    const std::string subject = printable(binaries_[i].path);
    for (std::size_t said = 0; said < out_.size(); ++said)
      if (out_[said].code == Code::SO_NO_PYINIT && out_[said].subject == subject &&
          out_[said].severity == Severity::kError)
        return said;
    return std::nullopt;
  }

  NumpyUse numpy_use(const Binary& binary) const {
    // NumPy's own wheel replaces the NumPy that is there.
    if (inspection_.wheel && normalised_package(inspection_.wheel->metadata.first("Name")) == "numpy") return {};
    return numpy_use_of(binary, [&](const std::string& needed) { return own_library(needed, binary); });
  }

  void add_missing_variant(const std::string& family) {
    const std::string& here = target_.torch->version;
    const std::string file = family + "_pytorch_" + here.substr(0, here.find('+')) + ".so";
    out_.push_back(make_verdict(
        {.code = "VARIANT_MISSING",
         .subject = printable(file),
         .message = "FileNotFoundError: Cannot find " + printable(file),
         .cause = "The package has this library once for each release of torch, and none for torch " + here + ".",
         .fix = "a release of the package that is for this torch, or one of the torches that it has "
                "them for, in an environment of its own"}));
    // DGL opens GraphBolt whenever it is imported, the others when they are asked for.
    if (!base_name(family).starts_with("libgraphbolt")) out_.back().severity = Severity::kWarning;
  }

  // What no file imports for certain, and what lacks something that neither torch nor CUDA brings, is a part that the
  // package opens when it is asked for, and else does without: torchaudio and its releases of FFmpeg.
  bool is_optional(const Attempt& attempt) {
    if (attempt.library.empty() || is_torch_library(attempt.library) || cuda_major_of(attempt.library) > 0)
      return false;
    return !words().certain_imports.empty() && !words().certain_imports.count(stem_of(binaries_[attempt.binary].path));
  }

  // A library that ctypes or torch.ops opens where a failure is caught, or when it is asked for. (Where no Python file
  // opens one in words that are known, it counts.)
  bool is_done_without(const Attempt& attempt, const PackageImports& imports) {
    const bool any_opens = any_step([](const Step& s) { return s.kind == StepKind::kOpen; });
    return any_opens && imports.is_known() && !imports.opens_for_certain(stem_of(binaries_[attempt.binary].path));
  }

  // A library in a package whose import never comes to what opens libraries: it is there for others (eccodeslib).
  bool is_opened_by_nobody(const Attempt& attempt, const PackageImports& imports) {
    if (is_python_module(attempt.binary) || facts_[attempt.binary].uses_torch || !imports.is_known()) return false;
    if (words().certain_imports.count(stem_of(binaries_[attempt.binary].path))) return false;
    constexpr const char* kOpeners[] = {"ctypes", "cffi", "_cffi_backend", "torch", "tensorflow"};
    return std::none_of(std::begin(kOpeners), std::end(kOpeners),
                        [&](const char* opener) { return imports.reaches(opener); });
  }

  // Is it the library of the package that makes its operators, where the import asks for one of them at once? By custom
  // it is called _C, or as the package is.
  bool makes_asked_operator(const Attempt& attempt, const PackageImports& imports) const {
    const std::string& name = imports.asked_operator();
    if (name.empty() || !facts_[attempt.binary].uses_torch) return false;
    const std::string stem = stem_of(binaries_[attempt.binary].path), space = name.substr(0, name.find("::"));
    return stem == "_C" || stem.find(space) != stem.npos;
  }

  // A library of the system that Python code looks for by find_library.
  void add_lacking(const std::string& name, VerdictCode code) {
    const std::string shown = printable(name);
    const bool is_file = name.find(".so") != name.npos;
    const std::string file = is_file ? shown : "lib" + shown + ".so";
    out_.push_back(make_verdict(
        {.code = code,
         .subject = printable(inspection_.wheel ? inspection_.wheel->file_name : inspection_.path),
         .message = name.empty() ? "whether a library of the system is there that its import asks for"
                    : is_file    ? "OSError: " + shown + ": cannot open shared object file: No such file or directory"
                                 : "ctypes.util.find_library(\"" + shown + "\") is None",
         .cause = name.empty() ? "`import` of the package opens it, or asks ctypes.util.find_library for it, by a "
                                 "name that is not in the text, and its own code decides whether it stops."
                               : std::string("`import` of the package looks for this library of the system, which is "
                                             "neither in ld.so.cache nor in the loader's folders, and ") +
                                     (code == Code::NEEDED_MISSING ? "stops without it."
                                                                   : "its own code decides whether it stops."),
         .fix = name.empty() ? "try the import; its own message names the library"
                             : "apt-get install -y the package that has " + file + " (apt-file search " + file +
                                   " names it), or conda install -c conda-forge " + (is_file ? "the same" : shown)}));
  }

  // See judge_numpy: exit code 2.
  void add_open_question(const Binary& binary) {
    out_.push_back(
        make_verdict({.code = "CANNOT_TELL",
                      .subject = printable(binary.path),
                      .message = "whether its import stops at the other NumPy or goes on",
                      .cause = "Code of the module's own decides that.",
                      .fix = "as above: a newer release of the package, or python -m pip install 'numpy<2'"}));
  }

  static void set_apart(Verdict& verdict, Part part) {
    verdict.severity = Severity::kWarning;
    verdict.cause +=
        part == Part::kCaught
            ? " `import` of the package tries it and goes on without: what uses it fails."
            : " `import` of the package does not reach it: its Python files import it in a function, below "
              "a condition, or not at all. It is a part that fails when it is asked for.";
    verdict.fix = "nothing, unless you need that part; then: " + verdict.fix;
  }

  // Libraries for other packages to open (NVIDIA's, of which some want the driver): its own import opens none.
  static void set_apart_from_others(Verdict& verdict) {
    verdict.severity = Severity::kWarning;
    verdict.cause += " The package has no Python file, so that no import of its own opens it: what does, fails.";
    verdict.fix = "nothing, unless something opens it here; then: " + verdict.fix;
  }

  // The one of its family that this target opens, where it lacks what another CUDA has; null: none, or a Python file
  // imports this very one for certain.
  const Binary* loading_sibling(const Attempt& attempt) {
    const std::string& path = binaries_[attempt.binary].path;
    const std::string family = family_of(path);
    if (attempt.library.empty() || family.empty() || words().certain_imports.count(stem_of(path))) return nullptr;
    for (const Attempt& other : attempts_)
      if (other.failure == ImportFailure::kNone && family_of(binaries_[other.binary].path) == family)
        return &binaries_[other.binary];
    return nullptr;
  }

  static void set_aside(Verdict& verdict, const Binary& sibling) {
    verdict.severity = Severity::kWarning;
    verdict.cause += " The package has this library once for each CUDA and opens the one that fits; " +
                     printable(base_name(sibling.path)) + " loads here.";
    verdict.fix = "nothing, unless you need this one; then: " + verdict.fix;
  }

  // `own` is the library that it lacks, if the package has it and it could not be opened either.
  static void soften(Verdict& verdict, const Binary* own) {
    verdict.severity = Severity::kWarning;
    verdict.cause +=
        " Other compiled files of the package load, and no Python file of it imports this one for certain: it is a "
        "part "
        "that can be absent, and what uses it fails.";
    verdict.fix = "nothing, unless you need that part; then: " +
                  (own ? "what " + printable(base_name(own->path)) + " needs (see its own verdict)" : verdict.fix);
  }

  const Inspection& inspection_;
  const std::vector<Binary>& binaries_;
  const std::vector<BinaryFacts>& facts_;
  const Environment& target_;
  std::vector<Verdict>& out_;
  std::unique_ptr<LoadSession> session_;
  std::multimap<std::string, std::size_t, std::less<>> by_name_;  // soname or file name: index of the library
  std::vector<Attempt> attempts_;
  std::optional<PythonWords> words_;
};

}  // namespace

void judge_parts(const Inspection& inspection, const std::vector<BinaryFacts>& facts, const Environment& target,
                 std::vector<Verdict>& out) {
  PartsJudge(inspection, facts, target, out).run();
}

}  // namespace doctor
