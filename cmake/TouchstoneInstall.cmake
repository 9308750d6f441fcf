# `cmake --install`: headers, library, program, and what find_package(touchstone) and pkg-config read.
include(CMakePackageConfigHelpers)

set(touchstone_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/touchstone")

install(TARGETS touchstone EXPORT touchstoneTargets)
install(DIRECTORY include/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
if(TOUCHSTONE_BUILD_CLI AND TARGET touchstone_cli)
  install(TARGETS touchstone_cli)
endif()

install(EXPORT touchstoneTargets NAMESPACE touchstone:: DESTINATION "${touchstone_package_dir}")
configure_package_config_file(cmake/touchstoneConfig.cmake.in
  "${CMAKE_CURRENT_BINARY_DIR}/touchstoneConfig.cmake"
  INSTALL_DESTINATION "${touchstone_package_dir}")
# Before 1.0 a minor version may break callers.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/touchstoneConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/touchstoneConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/touchstoneConfigVersion.cmake"
  DESTINATION "${touchstone_package_dir}")
