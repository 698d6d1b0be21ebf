# SPDX-License-Identifier: Apache-2.0
# mica_zstd: zstd as a static library, so that nothing is added to what the shared library needs. MICA_ZSTD_FOUND says whether
# it is there: without it libmica carries no GPU kernels, and the doctor does not look into GPU code that zstd packed. For
# another architecture it is taken from Debian's package of that one, which cmake/zlib.cmake fetches too.
set(MICA_ZSTD_ROOT "" CACHE PATH "A folder with zstd.h and libzstd.a somewhere below it; empty: the system's")
set(zstd_root ${MICA_ZSTD_ROOT})
if(CMAKE_CROSSCOMPILING AND NOT zstd_root)
  set(zstd_root ${zlib_root})
endif()
mica_static_library(zstd libzstd.a "${zstd_root}" zstd.h zstd_errors.h)
if(NOT MICA_ZSTD_FOUND AND MICA_PINNED STREQUAL "REQUIRE" AND NOT MICA_DEMO_ONLY)
  message(FATAL_ERROR "no static zstd for ${CMAKE_SYSTEM_PROCESSOR} (libzstd-dev has it)")
endif()
