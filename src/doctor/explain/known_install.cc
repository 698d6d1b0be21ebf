// SPDX-License-Identifier: Apache-2.0
#include "doctor/explain/known_failures.h"

namespace doctor {

std::span<const KnownFailure> known_install_failures() {
  static const std::vector<KnownFailure> rows = {
      {"WHEEL_VERSION_MISMATCH",
       Role::kCause,
       {"has inconsistent version: expected '{name_version}', but metadata has '{metadata_version}'",
        "has inconsistent version: filename has '{name_version}', but metadata has '{metadata_version}'",
        "Wheel version does not match filename: {metadata_version} != {name_version}",
        "has wheel '{file}' with inconsistent version"},
       {},
       "The wheel's file name carries a version that its METADATA does not have (flash-attn's releases add "
       "+cu12torch... to the name only). pip refuses that when the version is asked for by name or comes from an "
       "index.",
       "install it by its full path or URL, and ask for the plain version: {pip} install ./FILE.whl"},
      {"WHEEL_TAG_PLATFORM",
       Role::kCause,
       {"{file}.whl is not a supported wheel on this platform",
        "A URL dependency is incompatible with the current platform: {file}",
        "A path dependency is incompatible with the current platform: {file}"},
       {},
       "The tags in the wheel's name (Python, ABI, platform: {file}) do not all fit this interpreter.",
       "mica pick names the one that fits; `{pip} debug --verbose` lists the tags that do"},
      {"WHEEL_ARCHIVE",
       Role::kCause,
       {"Wheel '{name}' located at {path} is invalid", "zipfile.BadZipFile: {what*}", "is not a valid wheel filename",
        "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE"},
       {},
       "The file is no wheel: an error page or a part of a download saved under its name, or a name that was changed.",
       "rm it and fetch it again under its own name: {pip} download --no-deps --no-cache-dir {project} (or curl -fLO "
       "URL: "
       "without -f an error page is saved)"},
      {"PYTHON_MANAGED",
       Role::kCause,
       {"externally-managed-environment", "This environment is externally managed",
        "The interpreter at {path} is externally managed"},
       {},
       "The Python belongs to the distribution (or to conda, Homebrew, uv), whose own packages are the only ones that "
       "may be installed into it: nothing is wrong with {project}.",
       "python3 -m venv ~/venv && . ~/venv/bin/activate, then {pip} install {project} (uv: uv venv && uv pip install "
       "{project}); --break-system-packages is for containers that are thrown away"},
      {"BUILD_CROSS_DEVICE_LINK",
       Role::kCause,
       {"[Errno 18] Invalid cross-device link"},
       {},
       "setup.py downloads the wheel into one folder and renames it into another, and the two lie on different file "
       "systems (a container's overlay, /tmp on its own disk).",
       "TMPDIR=$PWD/tmp {pip} install flash-attn --no-build-isolation (after mkdir tmp), or {pip} install the wheel "
       "that mica pick names"},
      {"NETWORK",
       Role::kCause,
       {"Temporary failure in name resolution", "Network is unreachable", "Failed to establish a new connection",
        "Connection timed out", "SSL: CERTIFICATE_VERIFY_FAILED", "ProxyError(",
        "Remote end closed connection without response", "Connection reset by peer", "Read timed out",
        "unable to access 'https:{rest}", "GnuTLS recv error", "failed to lookup address information",
        "error sending request for url", "HTTP 000 CONNECTION FAILED"},
       {},
       "The network could not be reached from here, or the other side hung up: a compute node without access, a proxy "
       "that is not set or that cuts large files off.",
       "on a machine with access: {pip} download --no-deps FILE-OR-URL, copy the file, then {pip} install ./FILE"},
      // setup.py of flash-attn and its kin catches this one and compiles: then it is not what stopped it.
      {"NETWORK",
       Role::kCause,
       {"<urlopen error [Errno {number}] {text*}>"},
       {},
       "A download failed, since the other side could not be reached from here: a compute node without access, or a "
       "proxy "
       "that is not set.",
       "on a machine with access: {pip} download --no-deps FILE-OR-URL, copy the file, then {pip} install ./FILE",
       {"Precompiled wheel not found. Building from source"}},
      {"URL_GUESS_404",
       Role::kHint,
       {"Precompiled wheel not found. Building from source", "urllib.error.HTTPError: HTTP Error 404: Not Found"},
       {"Guessing wheel URL", "flash", "causal", "mamba"},
       "flash-attn's setup.py guessed the address of a ready wheel from Python, PyTorch, CUDA and ABI; there is none "
       "for this combination, so it compiles from source, for an hour or more.",
       "mica pick shows the nearest published wheel and what differs"},
      {"WHEEL_REQUIRES_PYTHON",
       Role::kCause,
       {"requires a different Python: {here} not in", "the current Python version ({here}) does not satisfy Python",
        "the requested Python version ({here}) does not satisfy Python"},
       {},
       "The package's metadata leave this Python out ({here}).",
       "uv venv --python 3.12 (one that the message allows) and install it there; or an older release of the package, "
       "which takes this Python"},
      {"WHEEL_NONE_PUBLISHED",
       Role::kCause,
       {"ERROR: No matching distribution found for {package}",
        "Could not install requirement {package} because of HTTP error 404", "has no wheels with a matching",
        "have no wheels with a matching", "no wheels are available with a matching", "there is no version of {package}",
        "was not found in the package registry", "which doesn't match any versions, version solving failed",
        "Unable to find installation candidates for {package}",
        "The following packages are not available from current channels", "nothing provides requested {package}"},
       {},
       "The index has no file of that package, of that version, whose tags fit this Python and platform. PyPI has "
       "flash-attn as a source package only; a version with +cu... is never found there.",
       "ask for the plain version, or install the release's wheel by URL (mica pick names it)"},
      {"WHEEL_REQUIRES_TORCH_UNPINNED",
       Role::kHint,
       {"Attempting uninstall: torch"},
       {"flash", "xformers"},
       "The package asks for `torch` without a version, so the installer replaced the PyTorch that was here; "
       "extensions built for the old one will not load any more.",
       "install again with --no-deps after putting the wanted torch back"},
      {"FLASH_ATTN_STALE_CUTE",
       Role::kCause,
       {"AttributeError: ThrMma", "has no attribute 'ThrMma'", "No module named 'flash_attn.cute'",
        "No module named 'flash_attn.cute.{rest}'"},
       {},
       "flash-attn 2.8.3's wheel carries an old copy of flash_attn/cute (and a folder `hopper`) that stands in the way "
       "of flash-attn-4, which installs into the same place.",
       "{pip} uninstall -y flash-attn flash-attn-4 && {pip} install flash-attn-4"},
      {"MODULE_MISSING",
       Role::kCause,
       {"No module named 'flash_attn_2_cuda'", "No module named 'flash_attn_cuda'",
        "No module named 'flash_attn_3._C'"},
       {},
       "The Python files of flash-attn are there, its compiled part is not: it was installed with "
       "FLASH_ATTENTION_SKIP_CUDA_BUILD (a py3-none-any wheel), for another Python, or a checkout of its source in the "
       "current folder is found first.",
       "cd to another folder and try again; then {pip} uninstall -y flash-attn, and {pip} install the wheel that mica "
       "pick names"},
      {"MODULE_MISSING",
       Role::kCause,
       {"No module named 'flash_attn_interface'", "No module named 'flash_attn_3'"},
       {},
       "flash_attn_interface is the module of FlashAttention-3, a package of its own (flash_attn_3, for Hopper) that "
       "flash-attn does not bring.",
       "install a wheel of flash_attn_3, or Mica's drop-in of that name, which needs no compiler "
       "(docs/user/migrate.md)"},
      {"MODULE_MISSING",
       Role::kCause,
       {"No module named 'selective_scan_cuda'",
        "No module named 'causal_conv1d_cuda'",
        "No module named 'flash_attn_3_cuda'",
        "No module named 'xformers._C{rest}'",
        "No module named 'vllm._C'",
        "No module named 'detectron2._C'",
        "No module named 'pytorch3d._C'",
        "No module named 'exllama_kernels'",
        "No module named 'exllamav2_ext'",
        "No module named 'awq_ext'",
        "No module named 'awq_inference_engine'",
        "No module named 'tinycudann_bindings{rest}'",
        "No module named 'diff_gaussian_rasterization._C'",
        "No module named 'simple_knn._C'",
        "No module named 'MultiScaleDeformableAttention'",
        "No module named 'transformer_engine_torch'",
        "No module named 'dropout_layer_norm'",
        "No module named 'fused_dense_lib'",
        "No module named 'rotary_emb'",
        "No module named 'xentropy_cuda_lib'",
        "No module named 'pointops_cuda'",
        "No module named 'deep_ep_cpp'",
        "No module named 'grouped_gemm_backend'"},
       {},
       "The module is the compiled part of its package, and it is not there for this Python: it was installed without "
       "its extension, for another Python, or a checkout of its source in the current folder is found first.",
       "cd to another folder and try again; then mica doctor PACKAGE says what is there, and mica build PACKAGE builds "
       "it for this PyTorch"},
      {"FLASH_ATTN_API",
       Role::kCause,
       {"too many values to unpack (expected 4)"},
       {"unpad_input", "flash_attn"},
       "flash_attn.bert_padding.unpad_input returns five values since flash-attn 2.7.0; this caller expects four.",
       "{pip} install 'flash-attn<2.7', or a newer release of the calling package"},
      {"FLASH_ATTN_API",
       Role::kCause,
       {"cannot import name '{name}' from 'flash_attn", "module 'flash_attn{rest}' has no attribute '{name}'",
        "flash_attn_{rest}() got an unexpected keyword argument '{name}'"},
       {},
       "The caller was written for another version of flash-attn than the one that is installed.",
       "{pip} install the version of flash-attn that the calling package asks for"},
  };
  return rows;
}

}  // namespace doctor
