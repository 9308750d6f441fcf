# Decides whether CUDA sources are compiled, and how. Sets TOUCHSTONE_WITH_CUDA.
string(TOUPPER "${TOUCHSTONE_CUDA}" touchstone_cuda_wish)
if(NOT touchstone_cuda_wish MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TOUCHSTONE_CUDA: expected AUTO, ON or OFF, got '${TOUCHSTONE_CUDA}'")
endif()

# The toolkit's own installer does not put nvcc on PATH.
if(NOT touchstone_cuda_wish STREQUAL "OFF" AND NOT CMAKE_CUDA_COMPILER)
  find_program(TOUCHSTONE_NVCC nvcc PATHS /usr/local/cuda/bin)
  mark_as_advanced(TOUCHSTONE_NVCC)
endif()

set(TOUCHSTONE_WITH_CUDA OFF)
if(touchstone_cuda_wish STREQUAL "ON")
  if(NOT CMAKE_CUDA_COMPILER AND NOT TOUCHSTONE_NVCC AND NOT DEFINED ENV{CUDACXX})
    message(FATAL_ERROR "TOUCHSTONE_CUDA=ON, but there is no nvcc on PATH or in /usr/local/cuda/bin")
  endif()
  set(TOUCHSTONE_WITH_CUDA ON)
elseif(touchstone_cuda_wish STREQUAL "AUTO" AND (CMAKE_CUDA_COMPILER OR TOUCHSTONE_NVCC))
  # A toolkit without a GPU is a build machine; there a first build should be quick.
  if(EXISTS /dev/nvidia0)
    set(TOUCHSTONE_WITH_CUDA ON)
  else()
    execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(status STREQUAL "0")
      set(TOUCHSTONE_WITH_CUDA ON)
    endif()
  endif()
endif()

if(TOUCHSTONE_WITH_CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER "${TOUCHSTONE_NVCC}")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${TOUCHSTONE_CUDA_ARCHITECTURES}")
  enable_language(CUDA)
  # CMake before 3.26 does not know that nvcc 12 and later speak C++20: without these two lines it
  # silently compiles C++17, or refuses to configure when the standard is required.
  foreach(kind STANDARD EXTENSION)
    if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
      set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
    endif()
  endforeach()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>")
  # Lines for profilers and compute-sanitizer cost nothing at run time, but most of the library's
  # size: not in a release.
  add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<CONFIG:RelWithDebInfo,Debug>>:-lineinfo>")
  # A library of less than a third of the size (21 MB for sm_90a); a module is decompressed when its first kernel is launched.
  # Drivers that run code of CUDA 13 know the format.
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13 AND NOT TOUCHSTONE_CUDA_COMPILE_CHECK)
    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")
  endif()
  # For .ci/run, where nothing of it is run: hardly optimized (hence the assembler's notes on
  # serialized wgmma and ignored setmaxnreg), and without f16 where that is bf16 with another type.
  if(TOUCHSTONE_CUDA_COMPILE_CHECK)
    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcicc=-O1;-Xptxas=-O0;-Xcompiler=-Og;--no-compress>")
    add_compile_definitions(TOUCHSTONE_CUDA_COMPILE_CHECK)
  endif()
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "CUDA: on, nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${CMAKE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "CUDA: off")
endif()
