// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/origin.h"

#include <algorithm>
#include <cctype>

#include "doctor/explain/pattern.h"

namespace doctor {
namespace {

constexpr int kMostPlaces = 200;

bool ends_path(char c) {
  return std::isspace(static_cast<unsigned char>(c)) ||
         std::string_view("\"'`[]()<>,;|").find(c) != std::string_view::npos;
}

// The folder that ends in `name` at text[at]: "/home/u/lib/python3.10/site-packages".
std::string folder_at(const std::string& text, std::size_t at, std::size_t length) {
  std::size_t begin = at;
  while (begin > 0 && at - begin < 1024 && !ends_path(text[begin - 1])) --begin;
  return text.substr(begin, at + length - begin);
}

// "3.10" of "cpython-310-" or "python3.10/"; empty if it names none.
std::string version_in(const std::string& words) {
  for (const auto& [mark, dotted] : {std::pair("cpython-3", false), std::pair("/python3.", true)}) {
    const std::size_t at = words.find(mark);
    if (at == words.npos) continue;
    std::size_t end = at + std::string_view(mark).size();
    const std::size_t begin = end;
    while (end < words.size() && std::isdigit(static_cast<unsigned char>(words[end]))) ++end;
    if (end > begin) return "3." + words.substr(begin, end - begin);
  }
  return "";
}

bool is_throw_away(const std::string& folder) {
  return folder.find("pip-build-env") != folder.npos || folder.find("/overlay/") != folder.npos ||
         folder.find("builds-v0") != folder.npos;
}

}  // namespace

std::string foreign_python(const LogText& log, const Environment& here) {
  if (!here.python) return "";
  const Version& version = here.python->version;
  const std::string ours =
      version.known() ? std::to_string(version.major_part()) + "." + std::to_string(version.minor_part()) : "";
  std::string other_folder, other_version;
  for (const std::string mark : {"/site-packages", "/dist-packages", "cpython-3"}) {
    std::size_t at = log.text.find(mark);
    for (int places = 0; at != log.text.npos && places < kMostPlaces; ++places, at = log.text.find(mark, at + 1)) {
      const bool is_folder = mark[0] == '/';
      const std::string folder = is_folder ? folder_at(log.text, at, mark.size()) : "";
      if (is_throw_away(folder)) continue;
      const std::vector<std::string>& folders = here.python->site_packages;
      if (is_folder && std::find(folders.begin(), folders.end(), folder) != folders.end()) return "";
      const std::string named = version_in(is_folder ? folder : log.text.substr(at, 16));
      if (is_folder && folder.size() > mark.size() && other_folder.empty()) other_folder = folder;
      if (!named.empty() && other_version.empty()) other_version = named;
    }
  }
  if (other_folder.empty() && (other_version.empty() || ours.empty() || other_version == ours)) return "";
  std::string out = "Python";
  if (!other_version.empty()) out += " " + other_version;
  if (!other_folder.empty()) out += " in " + other_folder;
  return out;
}

std::string project_of(const LogText& log) {
  for (const char* pattern :
       {"ERROR: Failed building wheel for {project}", "Failed to build '{project}==", "Failed to build '{project}'",
        "Failed to download and build '{project}==", "Building wheel for {project} (", "Failed to build {project}",
        "depends on 'torch', but {rest*}If '{project}'", "that '{project}@"})
    if (const auto match = find_pattern(log, pattern)) {
      std::string name = match->captures.at("project");
      name = name.substr(0, name.find_first_of("=@"));
      const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return std::isalnum(c) || c == '-' || c == '_' || c == '.';
      });
      if (is_name && name != "installable") return name;
    }
  return "flash-attn";
}

std::string command_that_brings(const std::string& library) {
  struct Row {
    const char* prefix;
    const char* command;
  };
  constexpr Row kRows[] = {
      {"libGL.so", "apt-get install -y libgl1"},
      {"libgthread-2", "apt-get install -y libglib2.0-0"},
      {"libglib-2", "apt-get install -y libglib2.0-0"},
      {"libSM.so", "apt-get install -y libsm6"},
      {"libICE.so", "apt-get install -y libice6"},
      {"libXext.so", "apt-get install -y libxext6"},
      {"libXrender.so", "apt-get install -y libxrender1"},
      {"libX11.so", "apt-get install -y libx11-6"},
      {"libEGL.so", "apt-get install -y libegl1"},
      {"libGLU.so", "apt-get install -y libglu1-mesa"},
      {"libOpenGL.so", "apt-get install -y libopengl0"},
      {"libcrypt.so.1", "apt-get install -y libcrypt1 (Fedora, RHEL: dnf install libxcrypt-compat)"},
      {"libtbb.so", "{pip} install tbb"},
      {"libiomp5.so", "{pip} install intel-openmp"},
      {"libmkl_", "{pip} install mkl (or: conda install 'mkl<2024.1' for conda's PyTorch)"},
      {"libnvinfer", "{pip} install tensorrt-cu12 of the same major as the number behind .so (8, 10), imported first"},
      {"libnvonnxparser", "{pip} install tensorrt-cu12 of the same major as the number behind .so, imported first"},
      {"libcudf.so", "{pip} install --force-reinstall cudf-cu12 libcudf-cu12 (cu13 for CUDA 13; both of one release)"},
      {"librmm.so", "{pip} install --force-reinstall rmm-cu12 librmm-cu12 (cu13 for CUDA 13; both of one release)"},
      {"libgomp.so", "apt-get install -y libgomp1 (or: conda install -c conda-forge libgomp)"},
      {"libnuma.so", "apt-get install -y libnuma1 (or: conda install -c conda-forge numactl)"},
      {"libsndfile.so", "apt-get install -y libsndfile1"},
      {"libaio.so", "apt-get install -y libaio1"},
      {"libibverbs.so", "apt-get install -y libibverbs1"},
      {"librdmacm.so", "apt-get install -y librdmacm1"},
      {"libopenblas.so", "apt-get install -y libopenblas0"},
      {"libmpi.so", "apt-get install -y libopenmpi3 (or: module load openmpi)"},
      {"libstdc++.so", "apt-get install -y libstdc++6 (or: conda install -c conda-forge libstdcxx-ng)"},
      {"libcudnn", "{pip} install nvidia-cudnn-cu12 (cu13 for a PyTorch of CUDA 13), then `import torch` before it"},
      {"libnccl.so", "{pip} install nvidia-nccl-cu12 (cu13 for a PyTorch of CUDA 13), then `import torch` before it"},
      {"libcusparseLt.so", "{pip} install nvidia-cusparselt-cu12 (cu13 for a PyTorch of CUDA 13)"},
      {"libcufile.so", "{pip} install nvidia-cufile-cu12"},
      {"libnvshmem", "{pip} install nvidia-nvshmem-cu12"},
      {"libav", "conda install -c conda-forge 'ffmpeg<8' (or: apt-get install -y ffmpeg)"},
  };
  const std::string name = library.substr(library.rfind('/') == library.npos ? 0 : library.rfind('/') + 1);
  for (const Row& row : kRows)
    if (name.rfind(row.prefix, 0) == 0) return row.command;
  return "";
}

}  // namespace doctor
