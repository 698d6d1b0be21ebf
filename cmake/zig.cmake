# SPDX-License-Identifier: Apache-2.0
# Toolchain: zig's clang from the pip package ziglang, for MICA_ZIG_TARGET such as x86_64-linux-gnu.2.17. What it links
# needs only that glibc; libc++ is inside. The first use of a target builds its libc++ (about 40 s), zig keeps it.
set(MICA_ZIG_TARGET x86_64-linux-gnu.2.17 CACHE STRING "As zig's -target")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MICA_ZIG_TARGET MICA_ZIG_PYTHON)
string(REGEX MATCH "^[^-]+" mica_zig_processor ${MICA_ZIG_TARGET})
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${mica_zig_processor})
set(CMAKE_LIBRARY_ARCHITECTURE ${mica_zig_processor}-linux-gnu)

set(MICA_ZIG_PYTHON ${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python CACHE STRING "A Python that has ziglang")
execute_process(COMMAND ${MICA_ZIG_PYTHON} -c "import os, ziglang; print(os.path.dirname(ziglang.__file__))"
  OUTPUT_VARIABLE mica_zig_folder OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE mica_zig_missing ERROR_QUIET)
if(mica_zig_missing)
  message(FATAL_ERROR "${MICA_ZIG_PYTHON} has no ziglang: tools/build/bootstrap.sh test puts it into .venv")
endif()

# CMake wants one file per tool.
set(mica_zig_tools ${CMAKE_BINARY_DIR}/zig-tools)
foreach(tool IN ITEMS cc c++ ar ranlib)
  set(options "")
  if(tool MATCHES "^c")
    set(options "-target ${MICA_ZIG_TARGET}")
  endif()
  file(WRITE ${mica_zig_tools}/${tool} "#!/bin/sh\nexec \"${mica_zig_folder}/zig\" ${tool} ${options} \"$@\"\n")
  file(CHMOD ${mica_zig_tools}/${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
set(CMAKE_C_COMPILER ${mica_zig_tools}/cc)
set(CMAKE_CXX_COMPILER ${mica_zig_tools}/c++)
set(CMAKE_AR ${mica_zig_tools}/ar)
set(CMAKE_RANLIB ${mica_zig_tools}/ranlib)

# Tests of the other architecture run in an emulator, with that architecture's C library (libc6-amd64-cross and the
# like put it into this folder).
if(NOT mica_zig_processor STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
  find_program(MICA_EMULATOR NAMES qemu-${mica_zig_processor}-static qemu-${mica_zig_processor})
  if(MICA_EMULATOR)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${MICA_EMULATOR} -L /usr/${mica_zig_processor}-linux-gnu)
  endif()
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# What is shipped carries no symbols for a debugger.
foreach(kind IN ITEMS EXE SHARED)
  set(CMAKE_${kind}_LINKER_FLAGS_RELEASE_INIT -s)
endforeach()
