# touchstone_test(NAME name SOURCES file... [LIBS target...] [DEVICES cpu cuda] [LABELS label...]
#                 [COST seconds] [TIMEOUT seconds] [SERIAL])
#
# One GoogleTest binary with the main() of tests/support. One ctest test per device: `name` on the
# CPU (the default), `name_gpu`, labeled gpu, with --device=cuda. Not discovered case by case:
# discovery runs the binary at build time, on a GPU build that means GPU code there, and it fills
# the screen of ctest.
#
# The gpu tests exist only in a build with CUDA, and report "skipped" where there is no GPU. They
# run one at a time, because tests that share a GPU disturb each other's memory.
#
# COST: about how long it takes on a quiet core, for those that take more than a few seconds. ctest
# starts the longest first, so that the last ones to run are short and no core waits for one test.
# TIMEOUT is 300 s by default. SERIAL: nothing else runs beside this test, because it measures time.
# Label `slow`: left out of short runs (ctest -LE slow), such as the sanitizer step of .ci/run.
# Label `long`: takes more than a few seconds. What has neither, is not SERIAL and keeps the default
# TIMEOUT is labeled `fast`, which is what `make check` runs.
if(TOUCHSTONE_BUILD_TESTS)
  include(CTest)
  find_package(GTest REQUIRED)
endif()

# Code of tests is left to AddressSanitizer: the checks of UBSan are half of the time to compile it,
# and what they are for is the library and the specifications, which keep them.
add_library(touchstone_test_code INTERFACE)
if(TOUCHSTONE_SANITIZE MATCHES "undefined")
  target_compile_options(touchstone_test_code INTERFACE -fno-sanitize=undefined)
endif()

function(touchstone_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "SERIAL" "NAME;COST;TIMEOUT" "SOURCES;LIBS;DEVICES;LABELS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SOURCES)
    message(FATAL_ERROR
      "touchstone_test: need NAME and SOURCES; not understood: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT arg_DEVICES)
    set(arg_DEVICES cpu)
  endif()
  # LABELS gpu is another way to say that the test is for the GPU only.
  if("gpu" IN_LIST arg_LABELS)
    list(REMOVE_ITEM arg_LABELS gpu)
    set(arg_DEVICES cuda)
  endif()
  if(NOT TOUCHSTONE_WITH_CUDA)
    list(REMOVE_ITEM arg_DEVICES cuda)
  endif()
  if(NOT TOUCHSTONE_BUILD_TESTS OR NOT arg_DEVICES)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_COST)
    set(arg_COST 1)
  endif()

  add_executable(${arg_NAME} ${arg_SOURCES})
  target_include_directories(${arg_NAME} PRIVATE "${touchstone_SOURCE_DIR}/src")
  target_link_libraries(${arg_NAME} PRIVATE
    touchstone_test_support touchstone_test_code touchstone_cold_code touchstone_spec touchstone_warnings
    ${arg_LIBS})
  target_precompile_headers(${arg_NAME} REUSE_FROM touchstone_test_support)
  touchstone_unity(${arg_NAME})
  # What computes the expected values takes most of the time of many tests.
  set(hot ${arg_SOURCES})
  list(FILTER hot INCLUDE REGEX "(_test_support|_sweep_test|_shadow_test)\\.cc$")
  set_source_files_properties(${hot} PROPERTIES
    COMPILE_OPTIONS "$<$<CONFIG:Release>:-O2>;$<$<CONFIG:RelWithDebInfo>:-O1>")
  set_target_properties(${arg_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${touchstone_BINARY_DIR}/tests")

  foreach(device IN LISTS arg_DEVICES)
    set(test ${arg_NAME})
    set(labels ${arg_LABELS})
    if(NOT arg_SERIAL AND arg_TIMEOUT LESS_EQUAL 300 AND NOT arg_LABELS MATCHES "slow|long")
      list(APPEND labels fast)
    endif()
    if(device STREQUAL "cuda")
      string(APPEND test "_gpu")
      list(APPEND labels gpu)
    endif()
    add_test(NAME ${test} COMMAND ${arg_NAME} --gtest_brief=1 --device=${device})
    set_tests_properties(${test} PROPERTIES
      COST ${arg_COST}
      TIMEOUT ${arg_TIMEOUT}
      LABELS "${labels}"
      SKIP_RETURN_CODE 77
      RUN_SERIAL ${arg_SERIAL})
    if(device STREQUAL "cuda")
      set_tests_properties(${test} PROPERTIES RESOURCE_LOCK gpu)
    endif()
  endforeach()
endfunction()
