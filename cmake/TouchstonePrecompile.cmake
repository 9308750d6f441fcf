# Precompiled headers: what nearly every translation unit parses, parsed once. GCC refuses a
# precompiled header that was compiled with other position-independence or without optimization, so
# the library has one of its own, and everything outside of it shares another.
#
# Sources compiled with -ffp-contract=off do without (SKIP_PRECOMPILE_HEADERS): GCC takes the floating
# point options of functions with a target attribute, which is all of SIMD code, from the precompiled
# header and not from the command line, and would contract products and sums after all.
#
# touchstone_precompile(target) makes `target` use the shared one.
#
# touchstone_batch(target) compiles its sources in batches, because half of what is left of the time
# goes into headers of this project and into instances of the same templates. Two files of a batch
# cannot use one name in their unnamed namespaces. Sources with options of their own stay alone, and
# so does everything under clang-tidy.
set(touchstone_precompiled
  <fmt/format.h> <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <limits> <map>
  <memory> <optional> <set> <span> <string> <string_view> <utility> <vector>)

add_library(touchstone_precompiled STATIC "${CMAKE_CURRENT_LIST_DIR}/precompiled.cc")
target_link_libraries(touchstone_precompiled PRIVATE fmt::fmt touchstone_warnings)
target_precompile_headers(touchstone_precompiled PRIVATE ${touchstone_precompiled})

function(touchstone_batch target)
  if(NOT CMAKE_CXX_CLANG_TIDY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

function(touchstone_precompile target)
  target_link_libraries(${target} PRIVATE fmt::fmt)
  target_precompile_headers(${target} REUSE_FROM touchstone_precompiled)
endfunction()

# For code in which nothing is hot (command line, reports, tests): a release build optimizes it
# only a little, which halves the time to compile it. A source that is hot after all sets its own
# COMPILE_OPTIONS, which come later on the command line.
add_library(touchstone_cold_code INTERFACE)
target_compile_options(touchstone_cold_code INTERFACE
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:-O1>")
