# `cmake --install`, in three components:
#
#   headers  the public headers
#   library  libtouchstone and what find_package(touchstone) and pkg-config read
#   program  the touchstone program, the processes it judges with, the bundled contenders
#
# Included before the directories add their targets and rules, because the checks must run first.
include(CMakePackageConfigHelpers)

set(touchstone_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/touchstone")
set(touchstone_program_targets "")
if(TOUCHSTONE_BUILD_CLI)
  set(touchstone_program_targets touchstone_cli touchstone_child touchstone_child_python)
endif()

function(touchstone_install_check component)
  set(files "")
  foreach(target IN LISTS ARGN)
    list(APPEND files "$<TARGET_FILE:${target}>")
  endforeach()
  if(component STREQUAL "program" AND TOUCHSTONE_BUILD_CLI)
    set(contenders "$<TARGET_PROPERTY:touchstone_contenders,TOUCHSTONE_FILES>")
    list(APPEND files "$<TARGET_GENEX_EVAL:touchstone_contenders,${contenders}>")
  endif()
  install(CODE "set(touchstone_built_files \"${files}\")" COMPONENT ${component})
  install(SCRIPT "${touchstone_SOURCE_DIR}/cmake/CheckBuilt.cmake" COMPONENT ${component})
endfunction()
set(touchstone_installed touchstone)
if(BUILD_SHARED_LIBS)
  set(touchstone_installed touchstone_shared)
endif()
touchstone_install_check(library ${touchstone_installed})
touchstone_install_check(program ${touchstone_program_targets})

# Called once all targets exist.
function(touchstone_install)
  install(DIRECTORY "${touchstone_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
    COMPONENT headers FILES_MATCHING PATTERN "*.h")

  install(TARGETS ${touchstone_installed} EXPORT touchstoneTargets
    ARCHIVE COMPONENT library
    LIBRARY COMPONENT library NAMELINK_COMPONENT library)
  install(EXPORT touchstoneTargets NAMESPACE touchstone:: DESTINATION "${touchstone_package_dir}"
    COMPONENT library)
  configure_package_config_file("${touchstone_SOURCE_DIR}/cmake/touchstoneConfig.cmake.in"
    "${touchstone_BINARY_DIR}/touchstoneConfig.cmake"
    INSTALL_DESTINATION "${touchstone_package_dir}")
  # Before 1.0 a minor version may break callers.
  write_basic_package_version_file("${touchstone_BINARY_DIR}/touchstoneConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES
    "${touchstone_BINARY_DIR}/touchstoneConfig.cmake"
    "${touchstone_BINARY_DIR}/touchstoneConfigVersion.cmake"
    DESTINATION "${touchstone_package_dir}" COMPONENT library)

  # The prefix is found from where the file lies, so that an installed tree can be moved.
  file(RELATIVE_PATH touchstone_pc_prefix
    "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" touchstone_pc_prefix "${touchstone_pc_prefix}")
  # Public for a static library: `pkg-config --libs` has to suffice where no shared one is installed.
  set(touchstone_pc_requires "")
  set(touchstone_pc_libs "")
  if(NOT BUILD_SHARED_LIBS)
    set(touchstone_pc_requires "libhwy fmt libutf8proc libpcre2-8")
    set(touchstone_pc_libs "-lstdc++ -lm -pthread")
    if(TOUCHSTONE_WITH_CUDA)
      string(PREPEND touchstone_pc_libs "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt ")
    endif()
  endif()
  configure_file("${touchstone_SOURCE_DIR}/cmake/touchstone.pc.in"
    "${touchstone_BINARY_DIR}/touchstone.pc" @ONLY)
  install(FILES "${touchstone_BINARY_DIR}/touchstone.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT library)

  if(TARGET touchstone_cli)
    install(TARGETS touchstone_cli RUNTIME COMPONENT program)
    install(FILES "${touchstone_SOURCE_DIR}/data/model/touchstone.gguf"
      DESTINATION "${CMAKE_INSTALL_DATADIR}/touchstone/model" COMPONENT program OPTIONAL)
    install(DIRECTORY "${touchstone_SOURCE_DIR}/data/model/draft"
      DESTINATION "${CMAKE_INSTALL_DATADIR}/touchstone/model" COMPONENT program)
  endif()
endfunction()
