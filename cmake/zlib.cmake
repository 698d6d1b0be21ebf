# SPDX-License-Identifier: Apache-2.0
# mica_zlib: zlib as a static library, for the command's doctor alone; libmica does not have it.
# MICA_ZLIB_FOUND says whether it is there. For another architecture it is taken from Debian's package of that one.
set(MICA_ZLIB_ROOT "" CACHE PATH "A folder with zlib.h and libz.a somewhere below it; empty: the system's")
set(zlib_root ${MICA_ZLIB_ROOT})
if(CMAKE_CROSSCOMPILING AND NOT zlib_root)
  set(zlib_root ${PROJECT_BINARY_DIR}/zlib)
  if(NOT EXISTS ${zlib_root}/usr/include/zstd.h)  # zstd comes with it (cmake/zstd.cmake)
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/build/fetch_zlib.sh ${CMAKE_SYSTEM_PROCESSOR} ${zlib_root}
      OUTPUT_VARIABLE fetched ERROR_VARIABLE fetched)
  endif()
endif()
mica_static_library(zlib libz.a "${zlib_root}" zlib.h zconf.h)
