# SPDX-License-Identifier: Apache-2.0
# What other projects' files a build takes in, by version and hash: with the same ones the same commit gives the same wheel on
# any machine. They are Debian 12's packages. `make wheel` requires them; elsewhere another version is told and taken.
set(MICA_PINNED TELL CACHE STRING "Other versions of Highway, CLI11, nlohmann-json, toml++, zlib, zstd, GoogleTest: TELL, or REQUIRE the pinned")

# name, version, SHA-256 (of a folder: of the list of its files' hashes). To pin another version: configure with
# --log-level=STATUS, which prints what is here.
set(MICA_PINS
  "hwy 1.0.3 b7e912c4d03143866ce5950cc395faf407bc84183e98523f848bbb374d54bd8d"
  "nlohmann 3.11.2 69c7a0be0523d2948e613817ee5fb4c50cd6b3bdc180efb84d7a453e7adfa6e3"
  "CLI 2.1.2 3d366979b81ea91381df1f876012ae4e6f31939e603209832dda5ecd75cc5721"
  "toml++ 3.3.0 f038c42d56353fe8eb962d50b6a975433dbbfe8745371385082f0796c1a7f116"
  "gtest 1.12.1 c2e7a16fa8b80c4204d964a060c4c72049a8db8b26d9b1284d19cdb4f8958778"
  "zlib.h 1.2.13 a980a0d104198a53cc220c51ab5856e5be901bec8a2d02e0ee79a8754219dfed"
  "zstd.h 1.5.4 68fe7e0c59f4ceee1e05d09c16107f37d0185a8d412b8a1b4aa9f06ce3ba7839"
  "libzstd.a-x86_64 1.5.4 6d831b4d3ed03e3ab45995fda09ad60df76cd11a65ffec60f54aec895ea50aca"
  "libzstd.a-aarch64 1.5.4 e9d48469e7183e93ac2a4ace54a8ca08cc53b5ef6ded3c6e9db356fe79c0fe83"
  "libz.a-x86_64 1.2.13 b5a4f0439559010349877f4100e6f704185840d0cc02cd3adaf49e4d4bf51b29"
  "libz.a-aarch64 1.2.13 6aacd22e5fc408e6e3999a7d39d0b29c61bbd6bc86c522ddc32c0db363ec9828")

# mica_check_pin(<name> <file or folder>)
function(mica_check_pin name path)
  if(IS_DIRECTORY ${path})
    file(GLOB_RECURSE files LIST_DIRECTORIES OFF RELATIVE ${path} ${path}/*)
    list(SORT files)
    set(hashes "")
    foreach(file IN LISTS files)
      file(SHA256 ${path}/${file} hash)
      string(APPEND hashes "${hash}  ${file}\n")
    endforeach()
    string(SHA256 found "${hashes}")
  else()
    file(SHA256 ${path} found)
  endif()
  foreach(pin IN LISTS MICA_PINS)
    string(REPLACE " " ";" pin "${pin}")
    list(GET pin 0 pinned)
    if(pinned STREQUAL name)
      list(GET pin 1 version)
      list(GET pin 2 wanted)
    endif()
  endforeach()
  if(found STREQUAL "${wanted}")
    return()
  endif()
  set(text "${path} (${found}) is not the pinned ${name} ${version} (${wanted}, cmake/pins.cmake)")
  if(MICA_PINNED STREQUAL "REQUIRE")
    message(FATAL_ERROR "${text}: a wheel would differ from another machine's. Install Debian 12's package, or set MICA_PINNED=TELL")
  endif()
  message(STATUS "${text}: a wheel of this build may differ from another machine's")
endfunction()
