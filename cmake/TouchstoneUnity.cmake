# touchstone_unity(target): the sources of a directory are compiled as one translation unit, because
# half of the time goes into headers of this project and into instances of the same templates.
#
# The unit is the directory, so that a new file joins its neighbors and changes nothing elsewhere. Two
# files of a directory cannot use one name in their unnamed namespaces. Left alone: sources with
# options of their own, SIMD code (its files include themselves once per target), CUDA, and what the
# build generates. TOUCHSTONE_UNITY=OFF compiles file by file.
function(touchstone_unity target)
  if(TOUCHSTONE_UNITY AND NOT CMAKE_CXX_CLANG_TIDY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    # Not the file that is compiled, so its unnamed namespace looks like that of a header.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>")
    set_property(GLOBAL APPEND PROPERTY touchstone_unity_targets ${target})
  endif()
endfunction()

# touchstone_cold_directories(target directory...): nothing in the sources of `target` in these
# directories is hot (readers of files, checks of arguments), so a release build optimizes them only a
# little, in about half the time to compile them.
function(touchstone_cold_directories target)
  foreach(directory IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH directory BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    cmake_path(RELATIVE_PATH directory BASE_DIRECTORY "${touchstone_SOURCE_DIR}")
    string(REGEX REPLACE "/$" "" directory "${directory}")
    string(MAKE_C_IDENTIFIER "${directory}" group)
    set_property(GLOBAL APPEND PROPERTY touchstone_cold_groups "${target}:${group}")
  endforeach()
endfunction()

# touchstone_sanitized_simd(target source): under a sanitizer, SIMD code for AVX2 alone where this
# machine has it. Scalar code would be half of the time to compile the kernels and most of the time to
# test them, and has no vectors to read past the end with.
set(touchstone_sanitize_avx2 OFF)
if(TOUCHSTONE_SANITIZE AND EXISTS /proc/cpuinfo AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  file(STRINGS /proc/cpuinfo avx2 REGEX "^flags.* fma .* aes .* avx2 .* bmi2 " LIMIT_COUNT 1)
  if(avx2)
    set(touchstone_sanitize_avx2 ON)
  endif()
endif()
function(touchstone_sanitized_simd target source)
  if(touchstone_sanitize_avx2)
    # A precompiled header for other instructions is refused.
    set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
    set_property(SOURCE "${source}" TARGET_DIRECTORY ${target}
      APPEND PROPERTY COMPILE_OPTIONS -march=haswell -maes -ffp-contract=off)
  endif()
endfunction()

# Called once all directories have added their sources.
function(touchstone_unity_groups)
  get_property(targets GLOBAL PROPERTY touchstone_unity_targets)
  get_property(cold GLOBAL PROPERTY touchstone_cold_groups)
  foreach(target IN LISTS targets)
    get_target_property(sources ${target} SOURCES)
    get_target_property(base ${target} SOURCE_DIR)
    list(FILTER sources INCLUDE REGEX "\\.cc$")
    foreach(source IN LISTS sources)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${base}" NORMALIZE)
      cmake_path(IS_PREFIX touchstone_BINARY_DIR "${source}" generated)
      if(NOT generated)
        file(STRINGS "${source}" simd REGEX "HWY_TARGET_INCLUDE" LIMIT_COUNT 1)
      endif()
      if(simd)
        touchstone_sanitized_simd(${target} "${source}")
      endif()
      if(NOT generated AND NOT simd)
        cmake_path(GET source PARENT_PATH group)
        cmake_path(RELATIVE_PATH group BASE_DIRECTORY "${touchstone_SOURCE_DIR}")
        string(MAKE_C_IDENTIFIER "${group}" group)
        set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} PROPERTY UNITY_GROUP ${group})
        # The options of a group are those of the file that includes it.
        get_target_property(binary ${target} BINARY_DIR)
        set(unit "${binary}/CMakeFiles/${target}.dir/Unity/unity_${group}_cxx.cxx")
        if("${target}:${group}" IN_LIST cold)
          set_property(SOURCE "${unit}" TARGET_DIRECTORY ${target}
            PROPERTY COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
        endif()
        # Under a sanitizer only the operators take long.
        if(TOUCHSTONE_SANITIZE AND target STREQUAL "touchstone" AND NOT group MATCHES "^src_ops_")
          set_property(SOURCE "${unit}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_OPTIONS -Og)
        endif()
      endif()
    endforeach()
  endforeach()
endfunction()
