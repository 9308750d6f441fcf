# Precompiled headers: what nearly every translation unit parses, parsed once. GCC refuses a
# precompiled header that was compiled with other position-independence or without optimization, so
# the library has one of its own, and everything outside of it shares another.
#
# GCC takes the floating point options of functions with a target attribute, which is all of SIMD code,
# from the precompiled header and not from the command line: options like -ffp-contract=off belong to
# the whole target. A source that has them alone also needs SKIP_PRECOMPILE_HEADERS.
#
# touchstone_precompile(target) makes `target` use the shared one.
set(touchstone_precompiled
  <fmt/format.h> <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <limits> <map>
  <memory> <optional> <set> <span> <string> <string_view> <utility> <vector>)

add_library(touchstone_precompiled STATIC "${CMAKE_CURRENT_LIST_DIR}/precompiled.cc")
target_link_libraries(touchstone_precompiled PRIVATE fmt::fmt touchstone_warnings)
target_precompile_headers(touchstone_precompiled PRIVATE ${touchstone_precompiled})

function(touchstone_precompile target)
  target_link_libraries(${target} PRIVATE fmt::fmt)
  target_precompile_headers(${target} REUSE_FROM touchstone_precompiled)
endfunction()

# touchstone_always_optimize(source...): code that measures the machine is optimized in every build type.
# A precompiled header that was compiled without optimization is not for it.
function(touchstone_always_optimize)
  if(NOT TOUCHSTONE_SANITIZE)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O3)
    if(CMAKE_BUILD_TYPE STREQUAL "Debug")
      set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endif()
endfunction()

# For code in which nothing is hot (command line, reports, tests): a release build optimizes it only
# a little, in half the time to compile it. A source that is hot after all sets its own
# COMPILE_OPTIONS, which come later on the command line.
add_library(touchstone_cold_code INTERFACE)
target_compile_options(touchstone_cold_code INTERFACE
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:-Og>")
