// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/torch_env.h"

#include "doctor/facts/mangled.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// __version__ = '2.8.0+cu128', cuda: Optional[str] = '12.8': what stands in quotes after the name; empty for None.
std::string assigned(const std::string& text, const std::string& name) {
  for (const std::string& line : split(text, '\n')) {
    if (line.rfind(name, 0) != 0 || line.size() == name.size()) continue;
    const char next = line[name.size()];
    if (next != ' ' && next != ':' && next != '=') continue;
    const std::size_t equals = line.find('=');
    const std::size_t begin = equals == line.npos ? equals : line.find_first_of("'\"", equals);
    const std::size_t end = begin == line.npos ? begin : line.find(line[begin], begin + 1);
    if (end != line.npos) return line.substr(begin + 1, end - begin - 1);
  }
  return "";
}

// The library that torch's Python finds for ("cublas", "libcublas.so.*[0-9]") in a folder of packages; empty: none.
std::string cuda_of_pip(const Files& files, const PythonInstall& python, const TorchFacts& torch,
                        const std::string& folder, std::string pattern) {
  const std::size_t class_at = pattern.find('[');
  if (class_at != pattern.npos) pattern.resize(class_at);
  const std::string major = torch.cuda_version.substr(0, torch.cuda_version.find('.'));
  for (const std::string& site : python.facts.site_packages)
    for (const std::string& place : {"/nvidia/" + folder, "/nvidia/cu" + major, "/" + folder})
      for (const std::string& path : files.match(site + place + "/lib/" + pattern))
        if (path.back() >= '0' && path.back() <= '9') return path;
  return "";
}

// What torch/__init__.py opens by itself: calls that name a library, and the table of those for when one is missing.
// Since 2.10 the whole table is opened, whether one is missing or not (`_preload_cuda_deps()`).
void read_preloading(const Files& files, const PythonInstall& python, TorchFacts& torch) {
  const std::string text = files.read(torch.folder + "/__init__.py", 4 << 20).value_or("");
  const bool opens_table = text.find(" _preload_cuda_deps()") != text.npos;
  for (const std::string& line : split(text, '\n')) {
    const bool is_call =
        line.find("_preload_cuda_deps(\"") != line.npos || line.find("_preload_cuda_lib(\"") != line.npos;
    const std::string_view entry = trimmed(line);
    const bool is_row = (entry.starts_with("\"") && entry.find("\": \"lib") != entry.npos) ||
                        (entry.starts_with("(\"") && entry.find("\", \"lib") != entry.npos);
    if (!is_call && !is_row) continue;
    const std::vector<std::string> parts = split(line, '"');
    if (parts.size() < 4 || parts[1].find('/') != parts[1].npos || !parts[3].starts_with("lib") ||
        parts[3].find('/') != parts[3].npos)
      continue;
    const std::string path = cuda_of_pip(files, python, torch, parts[1], parts[3]);
    if (path.empty()) continue;
    if (is_row) torch.preloaded_if_missing.push_back(path);
    if (is_call || opens_table) torch.preloaded.push_back(path);
  }
}

}  // namespace

std::optional<TorchFacts> read_torch(const Files& files, const PythonInstall& python) {
  for (const std::string& site : python.facts.site_packages) {
    const std::string folder = site + "/torch";
    const auto text = files.read(folder + "/version.py", 1 << 16);
    if (!text) continue;
    TorchFacts torch;
    torch.folder = folder;
    torch.version = assigned(*text, "__version__");
    torch.cuda_version = assigned(*text, "cuda");
    // NOTE: the version says nothing certain about the ABI (2.6.0 exists with both); what libc10.so exports does.
    if (const auto c10 = files.resolve(folder + "/lib/libc10.so")) {
      try {
        torch.cxx_abi = cxx_abi_of_exports(read_elf_file(files.on_disk(*c10))).abi;
      } catch (const ReadError&) {
        torch.cxx_abi = CxxAbi::kUnknown;
      }
    }
    // `import torch` loads these two, and they need all the others.
    const std::string deps = folder + "/lib/libtorch_global_deps.so";
    if (files.is_file(deps)) torch.libraries.push_back(deps);
    if (!torch.cuda_version.empty()) read_preloading(files, python, torch);
    const std::string module = folder + "/_C." + python.facts.soabi + ".so";
    if (files.is_file(module)) {
      torch.libraries.push_back(module);
    } else if (files.is_file(folder + "/lib/libtorch_python.so")) {
      torch.libraries.push_back(folder + "/lib/libtorch_python.so");
    }
    return torch;
  }
  return std::nullopt;
}

}  // namespace doctor
