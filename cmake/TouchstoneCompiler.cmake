# Language level, warnings, sanitizers, compiler cache.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(TOUCHSTONE_CCACHE ccache)
  mark_as_advanced(TOUCHSTONE_CCACHE)
  if(TOUCHSTONE_CCACHE)
    foreach(language CXX CUDA)
      if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
        # ccache requires this of builds with precompiled headers.
        set(CMAKE_${language}_COMPILER_LAUNCHER
          env CCACHE_SLOPPINESS=pch_defines,time_macros "${TOUCHSTONE_CCACHE}")
      endif()
    endforeach()
  endif()
endif()

# GCC looks for garbage each time its memory has doubled, from 128 MB on: 8 % of the time to compile.
# With half a gigabyte first, hardly any file is large enough to begin with that.
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>")
endif()

# Link it privately: these flags are ours, never those of a user of the library. nvcc splits every
# .cu into host code full of its own idioms, so CUDA sources get only the checks that survive that.
add_library(touchstone_warnings INTERFACE)
target_compile_options(touchstone_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wdouble-promotion>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter>")
# A local name may be a constant of another file that happens to be in the same translation unit.
set(shadow -Wshadow)
if(TOUCHSTONE_UNITY)
  set(shadow "$<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>")
endif()
target_compile_options(touchstone_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${shadow}>")
# What GCC 12 says of the code of std::string, std::optional and std::regex once it is inlined is false,
# and changes with every option.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(touchstone_warnings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-restrict;-Wno-stringop-overflow>")
endif()
if(TOUCHSTONE_WERROR)
  target_compile_options(touchstone_warnings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()

# For code whose rounding is part of its meaning (the oracles, error-free transformations): no
# multiply and add may be merged into one rounding behind the author's back.
add_library(touchstone_strict_fp INTERFACE)
target_compile_options(touchstone_strict_fp INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>")

if(TOUCHSTONE_SANITIZE)
  # AddressSanitizer reports a null pointer and a read past an object, too, and no pointer is cast
  # down a hierarchy: a quarter of the time to compile, for nothing new.
  set(unchecked "")
  if(TOUCHSTONE_SANITIZE MATCHES "undefined")
    set(unchecked "-fno-sanitize=null,object-size,vptr")
  endif()
  # Directory-wide, because a sanitizer must see every object that is linked together.
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TOUCHSTONE_SANITIZE}>"
    "$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>"
    "$<$<COMPILE_LANGUAGE:CXX>:${unchecked}>"
    "$<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>")
  add_link_options("-fsanitize=${TOUCHSTONE_SANITIZE}")
endif()
