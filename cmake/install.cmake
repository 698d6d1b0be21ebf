# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, library, command, a CMake package (find_package(mica) gives mica::mica) and a pkg-config file.
include(CMakePackageConfigHelpers)
set(MICA_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/mica)

install(TARGETS mica EXPORT mica-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/mica DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT mica-targets NAMESPACE mica:: DESTINATION ${MICA_PACKAGE_DIR})
configure_package_config_file(cmake/mica-config.cmake.in ${PROJECT_BINARY_DIR}/mica-config.cmake
  INSTALL_DESTINATION ${MICA_PACKAGE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mica-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mica-config.cmake ${PROJECT_BINARY_DIR}/mica-config-version.cmake
  DESTINATION ${MICA_PACKAGE_DIR})

# The prefix is found from the file's own place, so that the installed tree can be moved.
file(RELATIVE_PATH MICA_PKGCONFIG_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/mica.pc.in ${PROJECT_BINARY_DIR}/mica.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mica.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The compiled part of the wheel, asked for by --component wheel: the package is a small prefix, with bin/ and lib/.
if(MICA_BUILD_CLI)
  set(scripts scripts)
  if(SKBUILD)
    set(scripts ${SKBUILD_SCRIPTS_DIR})
  endif()
  # Under its soname: wheels hold no links.
  install(FILES $<TARGET_FILE:mica> DESTINATION mica/lib RENAME $<TARGET_SONAME_FILE_NAME:mica> COMPONENT wheel
    EXCLUDE_FROM_ALL)
  install(TARGETS mica_command RUNTIME DESTINATION mica/bin COMPONENT wheel EXCLUDE_FROM_ALL)
  install(PROGRAMS $<TARGET_FILE:mica_launcher> DESTINATION ${scripts} RENAME mica COMPONENT wheel EXCLUDE_FROM_ALL)
endif()
