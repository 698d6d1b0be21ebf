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
