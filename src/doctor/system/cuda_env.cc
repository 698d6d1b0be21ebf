// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/cuda_env.h"

#include <algorithm>
#include <cstdlib>

#include "doctor/tables/cuda_releases.h"
#include "doctor/tables/gpus.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// The first number of at least two parts in a text: "... Kernel Module  580.95.05  Tue ..." is 580.95.05.
Version version_in(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = text[i] >= '0' && text[i] <= '9' && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t');
    if (!begins) continue;
    const Version version = parse_version(text.substr(i, 40));
    if (version.parts.size() >= 2) return version;
  }
  return {};
}

// What stands after the last ".so.": libcuda.so.580.95.05.
Version version_of_library(const std::string& path) {
  const std::size_t at = path.rfind(".so.");
  return at == path.npos ? Version{} : parse_version(path.substr(at + 4));
}

std::string find_driver_library(const Outlook& outlook, const LoaderFacts& loader) {
  const Files& files = outlook.files;
  std::vector<std::string> folders = loader.library_path;
  folders.insert(folders.end(), loader.default_folders.begin(), loader.default_folders.end());
  folders.push_back("/usr/lib/wsl/lib");
  for (const std::string& folder : loader.library_path)
    if (files.is_file(folder + "/libcuda.so.1")) return folder + "/libcuda.so.1";
  for (const auto& [soname, path] : loader.cache)
    if (soname == "libcuda.so.1" && files.is_file(path)) return path;
  for (const std::string& folder : folders)
    if (files.is_file(folder + "/libcuda.so.1")) return folder + "/libcuda.so.1";
  return "";
}

int hex_in(const Files& files, const std::string& path) {
  return int(std::strtol(files.read(path, 64).value_or("0").c_str(), nullptr, 16));
}

// "Model:           NVIDIA H100 80GB HBM3"
std::string model_in(const std::string& information) {
  for (const std::string& line : split(information, '\n'))
    if (line.rfind("Model:", 0) == 0) return std::string(trimmed(line.substr(6)));
  return "";
}

Version define_in(const std::string& header) {
  const std::size_t at = header.find("#define CUDA_VERSION ");
  const long number = at == header.npos ? 0 : std::strtol(header.c_str() + at + 21, nullptr, 10);
  return number <= 0 ? Version{}
                     : parse_version(std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10));
}

// "cuda" : { "name" : "CUDA SDK", "version" : "12.8.1" }, without a reader of JSON: the first version after "cuda".
Version version_in_json(const std::string& text) {
  const std::size_t key = text.find("\"cuda\"");
  const std::size_t at = key == text.npos ? key : text.find("\"version\"", key);
  const std::size_t quote = at == text.npos ? at : text.find('"', text.find(':', at));
  return quote == text.npos ? Version{} : parse_version(text.substr(quote + 1, 40));
}

Version toolkit_version(const Files& files, const std::string& folder, const std::string& nvcc) {
  if (const auto json = files.read(folder + "/version.json"))
    if (const Version v = version_in_json(*json); v.known()) return v;
  for (const char* header :
       {"/include/cuda.h", "/targets/x86_64-linux/include/cuda.h", "/targets/sbsa-linux/include/cuda.h"})
    if (const auto text = files.read(folder + header, 8 << 20))
      if (const Version v = define_in(*text); v.known()) return v;
  if (!nvcc.empty())
    if (const auto bytes = files.read(nvcc, 128 << 20)) return nvcc_version_in(*bytes);
  return {};
}

// The program that a file on PATH stands for: a link, or a small script that starts another nvcc.
std::string real_nvcc(const Files& files, const std::string& path) {
  const auto resolved = files.resolve(path);
  const std::string file = resolved && base_name(*resolved) == "nvcc" ? *resolved : path;
  const std::string script = files.read(file, 8192).value_or("");
  if (script.rfind("#!", 0) != 0) return file;
  for (const std::string& line : split(script.substr(std::min(script.find('\n'), script.size())), '\n'))
    for (const std::string& word : split(line, ' '))
      if (word.size() > 5 && word[0] == '/' && base_name(word) == "nvcc" && files.is_executable(word) && word != file)
        return files.resolve(word).value_or(file);
  return file;
}

int newest_gcc_of(const Files& files, const Toolkit& toolkit) {
  for (const char* header : {"/include/crt/host_config.h", "/targets/x86_64-linux/include/crt/host_config.h",
                             "/targets/sbsa-linux/include/crt/host_config.h"}) {
    const std::string text = files.read(toolkit.folder + header).value_or("");
    constexpr std::string_view kBound = "#if __GNUC__ > ";
    if (const std::size_t at = text.find(kBound); at != text.npos)
      if (const int most = std::atoi(text.substr(at + kBound.size(), 3).c_str()); most > 0) return most;
  }
  return newest_gcc_of_cuda(toolkit.version);
}

class ToolkitList {
 public:
  explicit ToolkitList(const Outlook& outlook) : outlook_(outlook) {}

  // A folder with bin/nvcc, or one with CUDA's headers or libraries only.
  Toolkit* add(const std::string& folder, const std::string& found_by) {
    const Files& files = outlook_.files;
    const auto resolved = files.resolve(folder);
    if (!resolved || !files.is_folder(*resolved) || list_.size() >= 64) return nullptr;
    for (Toolkit& known : list_)
      if (known.folder == *resolved) return &known;
    Toolkit toolkit;
    toolkit.folder = *resolved;
    toolkit.found_by = found_by;
    if (files.is_executable(*resolved + "/bin/nvcc")) toolkit.nvcc = *resolved + "/bin/nvcc";
    const bool has_files = !toolkit.nvcc.empty() || files.is_file(*resolved + "/include/cuda.h") ||
                           files.is_file(*resolved + "/version.json");
    if (!has_files) return nullptr;
    toolkit.version = toolkit_version(files, toolkit.folder, toolkit.nvcc);
    toolkit.most_gcc = newest_gcc_of(files, toolkit);
    list_.push_back(std::move(toolkit));
    return &list_.back();
  }
  std::vector<Toolkit> take() { return std::move(list_); }

 private:
  const Outlook& outlook_;
  std::vector<Toolkit> list_;
};

}  // namespace

Version nvcc_version_in(std::string_view bytes) {
  constexpr std::string_view kWords = "Cuda compilation tools, release ";
  const std::size_t at = bytes.find(kWords);
  if (at == bytes.npos) return {};
  const std::string_view rest = bytes.substr(at + kWords.size(), 60);
  // "13.0, V13.0.88": the second number says more.
  const std::size_t v = rest.find(", V");
  const Version precise = v == rest.npos ? Version{} : parse_version(rest.substr(v + 3));
  return precise.known() ? precise : parse_version(rest);
}

DriverFacts read_driver(const Outlook& outlook, const LoaderFacts& loader) {
  DriverFacts driver;
  const Files& files = outlook.files;
  for (const char* path : {"/proc/driver/nvidia/version", "/sys/module/nvidia/version"}) {
    if (driver.version.known()) break;
    driver.version = version_in(files.read(path, 1 << 16).value_or(""));
    if (driver.version.known()) driver.found_in = path;
  }
  driver.library = find_driver_library(outlook, loader);
  if (!driver.version.known() && !driver.library.empty()) {
    const std::string target = files.resolve(driver.library).value_or("");
    if (const Version v = version_of_library(target); v.parts.size() >= 2) {
      driver.version = v;
      driver.found_in = target;
    }
  }
  if (driver.version.known()) driver.cuda = cuda_for_driver(driver.version);
  for (const std::string& path : files.match("/usr/local/cuda*/compat/libcuda.so.*"))
    if (const std::string folder = folder_name(path);
        std::find(driver.compatibility.begin(), driver.compatibility.end(), folder) == driver.compatibility.end())
      driver.compatibility.push_back(folder);
  return driver;
}

std::vector<FoundGpu> read_gpus(const Outlook& outlook) {
  const Files& files = outlook.files;
  std::vector<FoundGpu> gpus;
  for (const std::string& folder : files.match("/sys/bus/pci/devices/*")) {
    if (hex_in(files, folder + "/vendor") != 0x10de) continue;
    const int device_class = hex_in(files, folder + "/class") >> 8;  // 0x0300 display, 0x0302 3D
    if (device_class != 0x300 && device_class != 0x302) continue;
    FoundGpu gpu;
    gpu.place = base_name(folder);
    gpu.device_id = hex_in(files, folder + "/device");
    gpu.name = model_in(files.read("/proc/driver/nvidia/gpus/" + gpu.place + "/information", 1 << 16).value_or(""));
    gpu.capability = capability_of_device(gpu.device_id);
    if (!gpu.capability) gpu.capability = capability_of_name(gpu.name);
    gpus.push_back(std::move(gpu));
  }
  if (gpus.empty())  // a container may hide the bus
    for (const std::string& path : files.match("/proc/driver/nvidia/gpus/*/information")) {
      FoundGpu gpu;
      gpu.place = base_name(folder_name(path));
      gpu.name = model_in(files.read(path, 1 << 16).value_or(""));
      gpu.capability = capability_of_name(gpu.name);
      gpus.push_back(std::move(gpu));
    }
  // Jetson has its GPU on the chip, not on a bus.
  const std::string board = files.read("/proc/device-tree/compatible", 4096).value_or("");
  struct Chip {
    const char* part;
    const char* name;
    ComputeCapability capability;
  };
  for (const Chip& chip :
       {Chip{"tegra194", "Xavier", {7, 2}}, Chip{"tegra234", "Orin", {8, 7}}, Chip{"tegra264", "Thor", {11, 0}}})
    if (board.find(chip.part) != board.npos) gpus.push_back({chip.name, chip.part, 0, chip.capability});
  return gpus;
}

std::vector<Toolkit> read_toolkits(const Outlook& outlook, const std::vector<std::string>& prefixes,
                                   const std::vector<std::string>& site_packages) {
  const Files& files = outlook.files;
  ToolkitList list(outlook);
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string folder = outlook.variable(variable); !folder.empty())
      if (Toolkit* toolkit = list.add(folder, variable)) toolkit->is_cuda_home = true;
  bool is_first = true;
  for (const std::string& nvcc : outlook.on_path("nvcc")) {
    if (Toolkit* toolkit = list.add(folder_name(folder_name(real_nvcc(files, nvcc))), "PATH")) {
      if (is_first) toolkit->is_first = true;
      is_first = false;
    }
  }
  for (const std::string& folder : files.match("/usr/local/cuda*")) list.add(folder, "/usr/local");
  for (const std::string& folder : files.match("/opt/cuda*")) list.add(folder, "/opt");
  for (const std::string& prefix : prefixes) {
    if (files.is_executable(prefix + "/bin/nvcc")) list.add(prefix, "conda");
  }
  for (const std::string& site : site_packages)
    for (const char* folder : {"/nvidia/cuda_nvcc", "/nvidia/cu13", "/nvidia/cu12"}) list.add(site + folder, "pip");
  return list.take();
}

const Toolkit* build_toolkit(const std::vector<Toolkit>& toolkits) {
  for (const Toolkit& toolkit : toolkits)
    if (toolkit.is_cuda_home) return &toolkit;
  for (const Toolkit& toolkit : toolkits)
    if (toolkit.is_first) return &toolkit;
  for (const Toolkit& toolkit : toolkits)
    if (toolkit.found_by == "/usr/local" && !toolkit.nvcc.empty()) return &toolkit;
  return nullptr;
}

}  // namespace doctor
