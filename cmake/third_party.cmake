# SPDX-License-Identifier: Apache-2.0
# Header-only libraries of the system (Highway, CLI11, nlohmann-json, toml++), seen through links in a folder of the build tree:
# a cross build reads them without the host's own C headers in /usr/include coming along.
add_library(mica_third_party INTERFACE)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/third_party)
# mica_link_headers(<folder> <header> <package> [OPTIONAL]): without an optional one MICA_<folder>_ROOT is false.
function(mica_link_headers folder header package)
  find_path(MICA_${folder}_ROOT ${header} PATHS /usr/include /usr/local/include NO_CMAKE_FIND_ROOT_PATH)
  mark_as_advanced(MICA_${folder}_ROOT)
  if(NOT MICA_${folder}_ROOT AND "OPTIONAL" IN_LIST ARGN AND NOT MICA_PINNED STREQUAL "REQUIRE")
    return()
  endif()
  if(NOT MICA_${folder}_ROOT)
    message(FATAL_ERROR "${header} is missing: install ${package} (tools/build/bootstrap.sh build does)")
  endif()
  mica_check_pin(${folder} ${MICA_${folder}_ROOT}/${folder})
  file(CREATE_LINK ${MICA_${folder}_ROOT}/${folder} ${PROJECT_BINARY_DIR}/third_party/${folder} SYMBOLIC)
endfunction()
mica_link_headers(hwy hwy/highway.h libhwy-dev)
if(NOT MICA_DEMO_ONLY)
  mica_link_headers(nlohmann nlohmann/json.hpp nlohmann-json3-dev)
  if(MICA_BUILD_CLI)
    mica_link_headers(CLI CLI/CLI.hpp libcli11-dev)
  endif()
  mica_link_headers(toml++ toml++/toml.h libtomlplusplus-dev OPTIONAL)  # without it the builder reads no pyproject.toml
endif()
target_include_directories(mica_third_party SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/third_party)
