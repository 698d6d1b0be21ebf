// SPDX-License-Identifier: Apache-2.0
#include "builder/run/toolchain/toolkit_by_pip.h"

#include <filesystem>
#include <map>
#include <stdexcept>

#include "doctor/tables/cuda_releases.h"
#include "support/durable.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

namespace fs = std::filesystem;

constexpr int kFirstCudaWithNvcc = 13;
// nvcc, its middle part, its headers, the runtime's, and Thrust and CUB.
constexpr const char* kParts[] = {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime",
                                  "nvidia-cuda-cccl"};

std::string folder_of(const Toolkit& toolkit) { return folder_name(folder_name(toolkit.folder)); }
std::string mark_of(const Toolkit& toolkit) { return folder_of(toolkit) + "/complete"; }

std::vector<std::string> requirements(const Version& cuda) {
  std::vector<std::string> out;
  for (const char* part : kParts)
    out.push_back(std::string(part) + "==" + std::to_string(cuda.major_part()) + "." +
                  std::to_string(cuda.minor_part()) + ".*");
  return out;
}

// What `from` has and `to` lacks, as links: torch's own packages bring the headers and libraries of cuBLAS and the
// like.
void link_missing(const std::string& from, const std::string& to) {
  std::error_code error;
  for (fs::directory_iterator entry(from, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path name = fs::path(to) / entry->path().filename();
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(name, ignored))) fs::create_symlink(entry->path(), name, ignored);
  }
}

// The linker asks for libcudart.so, and the packages have libcudart.so.13.
void name_libraries(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (const std::size_t at = name.find(".so."); at != name.npos) files.emplace(name.substr(0, at + 3), name);
  }
  for (const auto& [plain, name] : files) {
    std::error_code ignored;
    if (!fs::exists(folder + "/" + plain, ignored)) fs::create_symlink(name, folder + "/" + plain, ignored);
  }
}

}  // namespace

std::optional<Toolkit> toolkit_of_pip(const doctor::TorchFacts& torch, const std::string& folder) {
  const Version cuda = parse_version(torch.cuda_version);
  if (!cuda.known() || cuda.major_part() < kFirstCudaWithNvcc) return std::nullopt;
  Toolkit out;
  out.version = cuda;
  out.most_gcc = doctor::newest_gcc_of_cuda(cuda);
  const std::string major = std::to_string(cuda.major_part());
  out.folder = folder + "/cuda-" + major + "." + std::to_string(cuda.minor_part()) + "/nvidia/cu" + major;
  std::error_code error;
  if (!fs::exists(mark_of(out), error)) out.fetched_by = "pip: " + joined(requirements(cuda), " ");
  return out;
}

Toolkit bring_toolkit(Toolkit toolkit, const doctor::TorchFacts& torch, const Workshop& shop) {
  const std::string into = folder_of(toolkit);
  fs::remove_all(into);  // of one that was interrupted
  make_folders(into);
  Command install = shop.pip({"install", "--target", into}, {}, torch);
  for (const std::string& one : requirements(toolkit.version)) install.words.push_back(one);
  run_or_throw(install, kPipFetchSeconds, "cannot fetch nvcc by pip");
  const std::string own = support::folder_name(torch.folder) + "/nvidia/" + base_name(toolkit.folder);
  link_missing(own + "/include", toolkit.folder + "/include");
  link_missing(own + "/lib", toolkit.folder + "/lib");
  name_libraries(toolkit.folder + "/lib");
  std::error_code error;
  fs::create_directory_symlink("lib", toolkit.folder + "/lib64", error);
  if (!fs::exists(toolkit.folder + "/bin/nvcc", error))
    throw std::runtime_error("pip's packages of CUDA " + toolkit.version.text() + " have no nvcc: " + toolkit.folder);
  replace_file(mark_of(toolkit), "");
  toolkit.fetched_by.clear();
  return toolkit;
}

}  // namespace builder
