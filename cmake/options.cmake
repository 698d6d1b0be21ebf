# SPDX-License-Identifier: Apache-2.0
# Flags that every target of this project is compiled with.
add_library(mica_options INTERFACE)
target_compile_options(mica_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers -fstack-protector-strong)
# Not one of those options: they come after a target's own, which could not choose another level then.
foreach(language IN ITEMS C CXX)
  set(CMAKE_${language}_FLAGS_RELEASE "-O2 -DNDEBUG")
endforeach()
target_include_directories(mica_options INTERFACE
  ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
# Of the files that hold inner loops.
set(MICA_KERNEL_OPTIMIZATION -O3)
# Of code that reads files, decides and reports, and of tests: the disk takes its time, and the optimiser's would be half of a
# build's. GCC compiles it at -Og in two thirds of the time that -O1 takes, into less code; clang with sanitizers at -O0 in half
# (zig takes -Og for a debug build, and turns its own checks on).
set(MICA_COLD_OPTIMIZATION "$<$<CONFIG:Release>:$<IF:$<CXX_COMPILER_ID:GNU>,-Og,-O1>>")
set(MICA_SANITIZED_OPTIMIZATION -O0 CACHE STRING "Of the same with sanitizers; `make fuzz` wants -O1, since it runs for long")
if(MICA_SANITIZE)
  set(MICA_KERNEL_OPTIMIZATION -O1)
  set(MICA_COLD_OPTIMIZATION ${MICA_SANITIZED_OPTIMIZATION})
  # A C caller can pass any number for an enumeration; validation refuses it, so loading it is no fault.
  target_compile_options(mica_options INTERFACE -fsanitize=${MICA_SANITIZE} -fno-sanitize=enum -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g1)
  # clang checks the type of a called function pointer on x86 alone, in C++ alone, and with a runtime that only a C++ link
  # brings: a C program could not link the library, and the two architectures would be held to different checks.
  target_compile_options(mica_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function>)
  target_link_options(mica_options INTERFACE -fsanitize=${MICA_SANITIZE})
  if(MICA_SANITIZE MATCHES "address")
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer,address)
    check_cxx_source_compiles(
      "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }" MICA_HAS_LIBFUZZER)
    unset(CMAKE_REQUIRED_FLAGS)
  endif()
else()
  target_compile_definitions(mica_options INTERFACE $<$<CONFIG:Release>:_FORTIFY_SOURCE=2>)
endif()

# Headers are most of what such code takes to compile: a folder's files at once take half of the time. A full run compiles
# them one by one, since a header that one of them forgets goes unnoticed otherwise.
option(MICA_UNITY "Compile code that reads files, decides and reports a folder at a time, as `make test` does" OFF)
# mica_compile_cold(<target>)
function(mica_compile_cold target)
  target_compile_options(${target} PRIVATE ${MICA_COLD_OPTIMIZATION})
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    string(REGEX MATCH "^[^/]+/" folder ${source})
    string(MAKE_C_IDENTIFIER "of_${folder}" folder)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${MICA_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()

# A second build of the same files is a copy (not for zig, which ccache does not know).
find_program(MICA_CCACHE ccache)
mark_as_advanced(MICA_CCACHE)
if(MICA_CCACHE AND NOT CMAKE_CROSSCOMPILING AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${MICA_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MICA_CCACHE})
endif()
