# Reads the version from include/touchstone/version.h, where it is written once.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../include/touchstone/version.h" lines
  REGEX "^#define TOUCHSTONE_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
set(TOUCHSTONE_VERSION "")
foreach(part MAJOR MINOR PATCH)
  if(NOT "${lines}" MATCHES "TOUCHSTONE_VERSION_${part} ([0-9]+)")
    message(FATAL_ERROR "include/touchstone/version.h: no line '#define TOUCHSTONE_VERSION_${part} N'")
  endif()
  list(APPEND TOUCHSTONE_VERSION "${CMAKE_MATCH_1}")
endforeach()
list(JOIN TOUCHSTONE_VERSION "." TOUCHSTONE_VERSION)
# A new version must reach the package files without a manual re-configure.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${CMAKE_CURRENT_LIST_DIR}/../include/touchstone/version.h")
