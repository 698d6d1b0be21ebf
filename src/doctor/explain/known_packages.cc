// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/known_failures.h"

namespace doctor {

std::span<const KnownFailure> known_package_failures() {
  static const std::vector<KnownFailure> rows = {
      // xFormers.
      {"TORCH_CPU_BUILD",
       Role::kCause,
       {"xFormers was built for: PyTorch {built} with CUDA {cuda} (you have {have})"},
       {"+cpu)"},
       "xFormers has GPU code and was built for PyTorch {built}; the PyTorch here, {have}, is a build for the CPU.",
       "{pip} install --force-reinstall torch xformers --index-url https://download.pytorch.org/whl/cu126"},
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"xFormers was built for: PyTorch {built} with CUDA {cuda} (you have {have})"},
       {},
       "xFormers was built for PyTorch {built} and the one here is {have}: its compiled part does not load, and the "
       "package goes on without it. Each release of xFormers is for one release of PyTorch.",
       "{pip} uninstall -y xformers && {pip} install xformers torch=={have} (pip then takes the xFormers of that "
       "PyTorch, or says that there is none)"},
      {"TORCH_SIGNATURE",
       Role::kSummary,
       {"xFormers can't load C++/CUDA extensions", "xFormers can’t load C++/CUDA extensions"},
       {},
       "xFormers' compiled part does not load: nearly always it was built for another release of PyTorch, of CUDA or "
       "of Python than the ones here.",
       "XFORMERS_MORE_DETAILS=1 {python} -m xformers.info 2>&1 | mica explain says which; then {pip} install -U "
       "--force-reinstall xformers"},
      {"NO_OPERATOR",
       Role::kSummary,
       {"No operator found for 'memory_efficient_attention_{direction}'"},
       {"wasn't build with CUDA support", "operator wasn't built"},
       "xFormers runs without its compiled part (\"wasn't build with CUDA support\"): it was built for another "
       "PyTorch, "
       "or PyTorch is a build for the CPU.",
       "{python} -m xformers.info 2>&1 | mica explain says which; then {pip} install -U --force-reinstall xformers"},
      {"NO_OPERATOR",
       Role::kSummary,
       {"No operator found for 'memory_efficient_attention_{direction}'"},
       {},
       "None of xFormers' kernels takes these tensors; the lines below the message say why for each: a device that is "
       "the CPU, fp32 where a kernel has fp16 and bf16, a GPU that is too old, a head size that is too large.",
       "move the tensors to the GPU and to bf16 (x.to(\"cuda\", torch.bfloat16)); where the GPU is below 8.0 use "
       "torch.nn.functional.scaled_dot_product_attention; {python} -m xformers.info lists what there is"},
      {"NO_OPERATOR",
       Role::kCause,
       {"Could not run '{operator}' with arguments from the 'CUDA' backend"},
       {},
       "{operator} has no code for the GPU in the package that is installed: a build for the CPU stands beside a "
       "PyTorch with CUDA.",
       "{pip} install --force-reinstall --no-deps torchvision torchaudio --index-url "
       "https://download.pytorch.org/whl/cu126 (the folder of your PyTorch's CUDA)"},
      // torchvision, torchaudio, torchcodec, PyTorch Geometric.
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"operator torchvision::{operator} does not exist", "Couldn't load custom C++ ops",
        "Could not find the operator torchvision::{operator}", "No such operator torchvision::{operator}",
        "Unknown builtin op: torchvision::{operator}", "Could not load this library: {file*}/torchaudio",
        "Could not load library {file*}torchaudio"},
       {},
       "torchvision or torchaudio was built for another PyTorch than the one that is installed, and its compiled part "
       "could not be loaded.",
       "{pip} install -U --force-reinstall torch torchvision torchaudio in one command"},
      {"CUDA_MAJOR",
       Role::kCause,
       {"PyTorch and TorchAudio were compiled with different CUDA versions. PyTorch has CUDA version {torch} whereas "
        "TorchAudio has CUDA version {other}",
        "PyTorch and torchvision were compiled with different CUDA {rest*}PyTorch has CUDA Version={torch} and "
        "torchvision has CUDA Version={other}"},
       {},
       "PyTorch is a build for CUDA {torch}, torchaudio or torchvision one for CUDA {other}: they came from different "
       "indexes. It looks at the version itself, and stops.",
       "{pip} install --force-reinstall torch torchvision torchaudio in one command and from one index"},
      {"CUDA_MAJOR",
       Role::kCause,
       {"PyTorch and {package} were compiled with different CUDA versions. PyTorch has CUDA version {torch} and "
        "{again} "
        "has CUDA version {other}",
        "PyTorch and {package} were compiled with different CUDA versions"},
       {},
       "{package} was built with another CUDA than PyTorch. It looks at the version itself, and stops.",
       "{pip} uninstall -y {package} && {pip} install --no-index {package} -f \"https://data.pyg.org/whl/torch-$("
       "{python} -c 'import torch; print(torch.__version__)').html\""},
      {"NEEDED_MISSING",
       Role::kCause,
       {"libav{library}: cannot open shared object file", "Could not load libtorchcodec"},
       {"libtorchcodec", "torchcodec"},
       "TorchCodec needs the shared libraries of FFmpeg (4 to 8), and opens one after the other until one loads: none "
       "did. Either FFmpeg is not installed as shared libraries, or this TorchCodec was built for another PyTorch.",
       "conda install -c conda-forge 'ffmpeg<8' (or: apt-get install -y ffmpeg), then {python} -c 'import torchcodec'; "
       "if it stays: {pip} install -U torch torchcodec in one command"},
      // bitsandbytes, DGL: one file for each CUDA or torch, chosen by name.
      {"VARIANT_MISSING",
       Role::kCause,
       {"Configured CUDA binary not found at {file*}.so",
        "Could not find the bitsandbytes CUDA binary at PosixPath('{file}'",
        "Could not find the bitsandbytes CUDA binary at '{file}'", "Required library version not found: {file}",
        "Configured ROCm binary not found at {file*}.so"},
       {},
       "bitsandbytes has one library for each version of CUDA and asks for that of this PyTorch; the installed release "
       "is older than that CUDA and has none ({file}), or it is a checkout that was not compiled. BNB_CUDA_VERSION "
       "changes the name that is asked for.",
       "unset BNB_CUDA_VERSION; {pip} install -U --force-reinstall --no-deps bitsandbytes; {python} -m bitsandbytes"},
      {"VARIANT_MISSING",
       Role::kSummary,
       {"CUDA Setup failed despite GPU being available", "CUDA Setup failed despite CUDA being",
        "name 'str2optimizer32bit' is not defined", "name 'str2optimizer8bit_blockwise' is not defined",
        "NoneType' object has no attribute 'cget_managed_ptr'",
        "The installed version of bitsandbytes was compiled without GPU support",
        "NoneType' object has no attribute 'cquantize_blockwise"},
       {},
       "bitsandbytes runs without its compiled library: it was not found or did not load, and the import went on.",
       "{python} -m bitsandbytes 2>&1 | mica explain says why; most often: {pip} install -U --force-reinstall "
       "--no-deps "
       "bitsandbytes"},
      {"VARIANT_MISSING",
       Role::kCause,
       {"Cannot find DGL C++ {part} library at {file}"},
       {},
       "DGL has one library for each release of PyTorch and asks for {file}, which its wheel does not bring: this "
       "release of DGL is older than this PyTorch.",
       "{pip} install --force-reinstall torch==2.4.0 && {pip} install --force-reinstall --no-deps dgl -f "
       "https://data.dgl.ai/wheels/torch-2.4/repo.html (DGL's last release is for PyTorch 2.4)"},
      {"VARIANT_MISSING",
       Role::kSummary,
       {"Cannot load Graphbolt C++ library"},
       {},
       "DGL's GraphBolt was found and did not load: a library of CUDA that it needs is missing, or it was built for "
       "another PyTorch. DGL hides the loader's words.",
       "{python} -c 'import torch, ctypes, glob, importlib.util as u; "
       "[ctypes.CDLL(f) for f in glob.glob(u.find_spec(\"dgl\").submodule_search_locations[0] + "
       "\"/graphbolt/*.so\")]' 2>&1 | mica explain"},
      {"TORCH_SIGNATURE",
       Role::kCause,
       {"ImportError: {package} was built using PyTorch {built} But you are using PyTorch {have} to run it"},
       {},
       "{package} was built for PyTorch {built}, and the one here is {have}. It looks at the version itself, and "
       "stops.",
       "a build of {package} for PyTorch {have}: its page of wheels names them by PyTorch and CUDA, and mica build "
       "{package} makes one here; or in an environment of its own {pip} install torch=={built}"},
      // DeepSpeed, apex, AutoGPTQ, sgl_kernel, mmcv, triton.
      {"BUILD_CUDA_MAJOR_MISMATCH",
       Role::kCause,
       {"Installed CUDA version {nvcc} does not match the version torch was compiled with {torch}"},
       {},
       "DeepSpeed compiles its operators when they are first used; nvcc is of CUDA {nvcc}, PyTorch was compiled with "
       "{torch}, and the majors must agree.",
       "export CUDA_HOME=/usr/local/cuda-{torch} PATH=/usr/local/cuda-{torch}/bin:$PATH (mica doctor lists the "
       "toolkits "
       "here), or {pip} install nvidia-cuda-nvcc of that version and let mica build deepspeed"},
      {"BUILD_CUDA_MAJOR_MISMATCH",
       Role::kCause,
       {"uda extensions are being compiled with a version of Cuda that does not match the version used to compile "
        "Pytorch binaries. Pytorch binaries were compiled with Cuda {torch}",
        "uda extensions are being compiled with a version of Cuda that does not match the version used to compile"},
       {},
       "apex compares nvcc with PyTorch and wants the same CUDA, to the minor version. A toolkit of the same major "
       "works.",
       "{python} -c 'import torch; print(torch.version.cuda)' and export CUDA_HOME=/usr/local/cuda-THAT (mica doctor "
       "lists the toolkits here), then {pip} install -v --no-build-isolation ./apex"},
      {"MODULE_MISSING",
       Role::kCause,
       {"No module named 'amp_C'", "No module named 'apex_C'", "No module named 'fused_layer_norm_cuda'",
        "No module named 'fused_weight_gradient_mlp_cuda'", "No module named 'scaled_softmax_cuda'",
        "No module named 'scaled_masked_softmax_cuda'", "No module named 'scaled_upper_triang_masked_softmax_cuda'",
        "No module named 'syncbn'", "apex was installed without --cuda_ext"},
       {},
       "apex was installed as Python files only: its extensions are compiled only when they are asked for.",
       "git clone https://github.com/NVIDIA/apex && APEX_CPP_EXT=1 APEX_CUDA_EXT=1 {pip} install -v "
       "--no-build-isolation --no-cache-dir ./apex (older checkouts: --global-option=--cpp_ext "
       "--global-option=--cuda_ext)"},
      {"PACKAGE_MISSING",
       Role::kSummary,
       {"No module named 'apex'"},
       {},
       "NVIDIA's apex is not on PyPI; the package of that name there is another one.",
       "git clone https://github.com/NVIDIA/apex && APEX_CPP_EXT=1 APEX_CUDA_EXT=1 {pip} install -v "
       "--no-build-isolation ./apex"},
      {"MODULE_MISSING",
       Role::kCause,
       {"so_path = next(so_dir.glob(", "Could not find shared object file for Transformer Engine"},
       {"transformer_engine", "Transformer Engine"},
       "Transformer Engine's common part is installed, and its extension for the framework that imports it is not.",
       "{pip} uninstall -y transformer-engine transformer-engine-cu12 transformer-engine-cu13 transformer-engine-torch "
       "&& "
       "{pip} install --no-build-isolation 'transformer-engine[pytorch]'"},
      {"MODULE_MISSING",
       Role::kSummary,
       {"NameError: name '{module}' is not defined", "name '{module}' is not defined"},
       {"_ext' is not defined", "_cuda' is not defined", "_cuda_core' is not defined", "_cuda_oflex' is not defined",
        "name '_C' is not defined", "_kernels' is not defined"},
       "The compiled module was imported below `try`, that failed, and the failure was dropped: it was not built, or "
       "does not load with this PyTorch.",
       "{python} -c 'import torch, {module}' 2>&1 | mica explain says which"},
      {"MODULE_MISSING",
       Role::kCause,
       {"No module named 'mmcv._ext'"},
       {},
       "mmcv without its compiled part: mmcv-lite, or mmcv built where no compiler was found. Its wheels are for one "
       "PyTorch and one CUDA each.",
       "{pip} uninstall -y mmcv mmcv-full mmcv-lite && {pip} install -U openmim && {python} -m mim install mmcv"},
      {"MODULE_MISSING",
       Role::kCause,
       {"No module named 'triton.backends.nvidia._C'", "No module named 'triton._C.libtriton{rest}'",
        "No module named 'triton._C.libtriton'", "No module named 'triton._C'"},
       {},
       "Triton's Python files are there, its compiled part is not: a checkout of its source in the current folder, a "
       "wheel built without it, or two packages of that folder (triton, pytorch-triton) that removed each other's "
       "files.",
       "cd to another folder and try again; then {pip} uninstall -y triton pytorch-triton && {pip} install "
       "--no-cache-dir "
       "\"$({python} -c 'import importlib.metadata as m; print(next(r.split(\";\")[0] for r in m.requires(\"torch\") "
       "if "
       "r.startswith(\"triton\")))')\""},
      {"MODULE_MISSING",
       Role::kSummary,
       {"exllama_kernels not installed", "exllamav2_kernels not installed", "^CUDA extension not installed"},
       {},
       "AutoGPTQ runs without its compiled part: it was built without CUDA, or for another PyTorch.",
       "{python} -c 'import torch, exllama_kernels' 2>&1 | mica explain says which; then {pip} install "
       "--force-reinstall --no-deps --no-build-isolation --no-binary auto-gptq auto-gptq"},
      {"IMPORT_FAILED",
       Role::kSymptom,
       {"[sgl_kernel] CRITICAL: Could not load any common_ops library"},
       {},
       "sgl_kernel tried its libraries and none loaded; the loader's words, below \"Error details\", say why",
       "{python} -c 'import torch, glob, ctypes, importlib.util as u; "
       "[ctypes.CDLL(f) for f in glob.glob(u.find_spec(\"sgl_kernel\").submodule_search_locations[0] + "
       "\"/**/common_ops*.so\", recursive=True)]' 2>&1 | mica explain"},
      // Names that moved.
      {"PACKAGE_API",
       Role::kCause,
       {"No module named 'triton.ops'"},
       {},
       "triton.ops left Triton in 3.2; bitsandbytes before 0.45 (and other packages of that time) still import it.",
       "{pip} install -U bitsandbytes"},
      {"PACKAGE_API",
       Role::kCause,
       {"cannot import name 'packaging' from 'pkg_resources'"},
       {},
       "setuptools 70 took `packaging` out of pkg_resources; PyTorch before 2.2 and older setup.py files import it "
       "from "
       "there.",
       "{pip} install 'setuptools<70'"},
      {"PACKAGE_API",
       Role::kCause,
       {"No module named 'pkg_resources'", "No module named 'distutils'"},
       {},
       "pkg_resources came with setuptools until its release 82, distutils with Python until 3.12: a setup.py of "
       "before "
       "that imports it.",
       "{pip} install 'setuptools<81', then the same command with --no-build-isolation"},
      {"PACKAGE_API",
       Role::kCause,
       {"does not support Flash Attention 2"},
       {},
       "Transformers has no flash attention for this model: its class does not declare it. Nothing is wrong with the "
       "installation.",
       "ask for attn_implementation=\"eager\" (or \"sdpa\"), or update the model's own files: {python} -m "
       "huggingface_hub.cli.hf download MODEL"},
      // flash-attn, seen by others.
      {"FLASH_ATTN_NOT_SEEN",
       Role::kSummary,
       {"the package flash_attn seems to be not installed", "FlashAttention2 is not installed",
        "FlashAttention-2 is not installed", "FlashAttention is not installed", "Flash Attention 2 is not installed",
        "FlashAttention3 is not installed", "flash attention 2 is not installed", "flash_attn is not installed",
        "flash-attn is not installed", "please install it with 'pip install flash-attn",
        "Make sure flash_attn is installed", "Flash Attention 2 is not available", "Flash Attention is not available",
        "requires the following packages that were not found in your environment: flash_attn",
        "No module named 'flash_attn'", "No module named 'flash_attn.{rest}'"},
       {},
       "flash_attn was not found in this Python, or it is there and its import fails: models and libraries catch every "
       "error of `import flash_attn` and print this sentence for all of them, so that it may hide another C++ ABI or "
       "another PyTorch (an undefined symbol). Transformers looks at the package's metadata too: a copied folder does "
       "not count.",
       "{python} -c 'import flash_attn' 2>&1 | mica explain shows the error itself; if there is none of it here, {pip} "
       "install the wheel that mica pick names, or ask for attn_implementation=\"sdpa\""},
      // Compiled parts by the names that projects give them.
      {"MODULE_MISSING",
       Role::kCause,
       {"No module named '{package*}._C'", "No module named '{package*}._ext'",
        "No module named '{package*}.core_cc{rest}'", "No module named '{package*}.core_cc'",
        "No module named '{package*}._cuda'", "No module named '{package*}._kernels'",
        "No module named '{package*}._ops'", "No module named '{package*}._cpp'"},
       {},
       "The module is the compiled part of {package}, and it is not there for this Python: it was installed without "
       "its extension, for another Python, or a checkout of its source in the current folder is found first.",
       "cd to another folder and try again; then mica doctor {package} says what is there, and mica build {package} "
       "builds it for this PyTorch"},
      {"MODULE_MISSING",
       Role::kSummary,
       {"type object '{module}' has no attribute '{name*}_forward'",
        "module '{module}' has no attribute '{name*}_forward'"},
       {},
       "{name}_forward is a function of the compiled {module}, and what was imported under that name has none: the "
       "extension was not compiled, and an empty class or folder stands in its place.",
       "compile it where its setup.py lies: {pip} install --no-build-isolation . (or its make.sh), then {python} -c "
       "'import torch, {module}; print({module}.__file__)'"},
      {"PACKAGE_API",
       Role::kSummary,
       {"cannot import name '{name}' from partially initialized module '{module}'"},
       {},
       "{module} was being imported when it was asked for {name}: a file of your own is called as the package is "
       "(and is found first), or files of two releases of it are mixed.",
       "{python} -c 'import {module}; print({module}.__file__)' must lie in site-packages; if it does: {pip} install "
       "--force-reinstall --no-cache-dir its package"},
      {"PACKAGE_API",
       Role::kSummary,
       {"cannot import name '{name}' from '{module}'"},
       {},
       "The caller was written for another release of {module} than the one that is installed: that one has no {name}.",
       "{pip} install -U both in one command (the caller's requirements name the release of {module} that it wants)"},
      // A part of a package that is there.
      {"MODULE_MISSING",
       Role::kSummary,
       {"No module named '{package*}.{part}'"},
       {},
       "{package} was found and has no {part}: it is of another release than the one that its caller was written for, "
       "or "
       "a checkout of its source is found first, in which that file is made only by the build, or something else is "
       "called {package}.",
       "{python} -c 'import importlib.util as u; print(u.find_spec(\"{package}\"))' from another folder says which it "
       "is; "
       "then {pip} install -U --force-reinstall --no-cache-dir its package"},
      // Any module that is missing, last.
      {"PACKAGE_MISSING",
       Role::kSummary,
       {"No module named '{module}'"},
       {},
       "{module} is not installed in the Python that ran this. Nothing more is in it: either it was never installed, "
       "or "
       "it is in another environment (a notebook's kernel is often another one than the shell's).",
       "{python} -m pip install {module} (the package may have another name than the module)"},
  };
  return rows;
}

}  // namespace doctor
