# Every switch of the build. A project that embeds Touchstone gets the library and nothing else.
option(BUILD_SHARED_LIBS "Build libtouchstone as a shared library" OFF)
option(TOUCHSTONE_BUILD_CLI "Build the touchstone program and its benchmark harness"
  ${PROJECT_IS_TOP_LEVEL})
option(TOUCHSTONE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TOUCHSTONE_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TOUCHSTONE_FUZZ "Build the libFuzzer targets; needs Clang (preset fuzz)" OFF)
option(TOUCHSTONE_CUDA_COMPILE_CHECK
  "CUDA code that shows whether the sources compile, in half the time, and must not be run" OFF)
option(TOUCHSTONE_UNITY "Compile the sources of a directory as one translation unit" ON)
option(TOUCHSTONE_WERROR "Treat warnings as errors" OFF)

set(TOUCHSTONE_CUDA "AUTO" CACHE STRING
  "CUDA kernels: ON, OFF, or AUTO (on where both nvcc and a GPU are found)")
set_property(CACHE TOUCHSTONE_CUDA PROPERTY STRINGS AUTO ON OFF)

# Real code for Ampere and Hopper, and PTX of compute_90 for every GPU after them: code for sm_90a
# runs on Hopper only. In the PTX the kernels that need wgmma are empty, and refuse by name.
set(TOUCHSTONE_CUDA_ARCHITECTURES "80-real;90a-real;90-virtual" CACHE STRING
  "GPU architectures, in the notation of CMAKE_CUDA_ARCHITECTURES")

# x86 CPUs without AVX2 run the portable target, unless `all` adds SSE4 for them.
set(TOUCHSTONE_SIMD_TARGETS "common" CACHE STRING
  "CPU kernels: common (AVX-512, AVX2, NEON, portable), or all, which adds SSE4")
set_property(CACHE TOUCHSTONE_SIMD_TARGETS PROPERTY STRINGS common all)

set(TOUCHSTONE_SANITIZE "" CACHE STRING
  "Sanitizers for host code: empty, 'address,undefined' or 'thread'")
set_property(CACHE TOUCHSTONE_SANITIZE PROPERTY STRINGS "" "address,undefined" "thread")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
