# Installs a built tree into a fresh prefix, then builds and runs programs against that prefix only:
# through find_package and pkg-config, from C++ and C, and against a shared library. Then the prefix
# is moved, and its program judges.
file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/prefix")
set(here "${CMAKE_CURRENT_LIST_DIR}")

function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}\nended with ${status}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Fails, and says `message`.
function(refused message)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(FIND "${output}" "${message}" at)
  if(status EQUAL 0 OR at EQUAL -1)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}\nended with ${status}, without '${message}'")
  endif()
endfunction()

# Parts can be installed on their own, and a part that is not built refuses before it writes.
step("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/headers" --component headers)
if(EXISTS "${WORK_DIR}/headers/lib")
  message(FATAL_ERROR "the component 'headers' installed a library")
endif()
refused("not built yet" "${CMAKE_COMMAND}" "-Dtouchstone_built_files=${WORK_DIR}/none"
  -P "${here}/../../cmake/CheckBuilt.cmake")

step("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}" --config "${BUILD_TYPE}")
step("${CMAKE_COMMAND}" -S "${here}" -B "${WORK_DIR}/build" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DWANTED_VERSION=${VERSION}"
  -DWANTED_LANGUAGE=CXX -DWANTED_SOURCE=main.cc)
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --config "${BUILD_TYPE}")
step("${WORK_DIR}/build/consumer")

# A project without C++.
step("${CMAKE_COMMAND}" -S "${here}" -B "${WORK_DIR}/build_c" -G "${GENERATOR}"
  "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}" "-DCMAKE_PREFIX_PATH=${prefix}" "-DWANTED_VERSION=${VERSION}"
  -DWANTED_LANGUAGE=C -DWANTED_SOURCE=main.c)
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/build_c" --config "${BUILD_TYPE}")
step("${WORK_DIR}/build_c/consumer")

refused("touchstone needs C++20" "${CXX_COMPILER}" -std=c++17 -fsyntax-only "-I${prefix}/include"
  "${here}/main.cc")

find_program(PKG_CONFIG NAMES pkg-config pkgconf)
if(PKG_CONFIG)
  file(GLOB_RECURSE package_file "${prefix}/touchstone.pc")
  get_filename_component(package_dir "${package_file}" DIRECTORY)
  set(query "${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${package_dir}" "${PKG_CONFIG}")
  step(${query} "--exact-version=${VERSION}" touchstone)
  step(${query} --cflags --libs touchstone)
  separate_arguments(flags UNIX_COMMAND "${output}")
  step("${CXX_COMPILER}" -std=c++20 "${here}/main.cc" -o "${WORK_DIR}/consumer_pc" ${flags})
  step("${WORK_DIR}/consumer_pc")
  # The compiler of C++ also compiles C, and libstdc++ is in the flags for those that do not.
  step("${CXX_COMPILER}" -x c -std=c11 "${here}/main.c" -x none -o "${WORK_DIR}/consumer_c" ${flags})
  step("${WORK_DIR}/consumer_c")
endif()

# A shared library from the same objects exports the public names, and they suffice.
if(EXISTS "${SHARED_LIBRARY}")
  get_filename_component(shared_dir "${SHARED_LIBRARY}" DIRECTORY)
  foreach(source main.c main.cc)
    if(source STREQUAL "main.c")
      set(language -x c -std=c11)
    else()
      set(language -std=c++20)
    endif()
    step("${CXX_COMPILER}" ${language} "-I${prefix}/include" "${here}/${source}" -x none
      -o "${WORK_DIR}/consumer_shared" "${SHARED_LIBRARY}" "-Wl,-rpath,${shared_dir}" -lm)
    step("${WORK_DIR}/consumer_shared")
  endforeach()
  find_program(NM nm)
  if(NM)
    step("${NM}" -D -C --defined-only "${SHARED_LIBRARY}")
    string(REGEX MATCHALL "[^\n]* touchstone::(v0::)?(dense_attention|paged_attention|attention_common|norm|simd|selection|c_api)::[^\n]*"
      internal "${output}")
    if(internal)
      list(GET internal 0 first)
      message(FATAL_ERROR "${SHARED_LIBRARY} exports what is internal: ${first}")
    endif()
  endif()
endif()

# The installed program finds what it judges with, and what it judges, from where it lies.
if(EXISTS "${prefix}/bin/touchstone")
  file(RENAME "${prefix}" "${WORK_DIR}/elsewhere")
  step("${WORK_DIR}/elsewhere/bin/touchstone" judge --list)
  step("${WORK_DIR}/elsewhere/bin/touchstone" judge --small --no-speed --task softmax_topk
    "${WORK_DIR}/elsewhere/share/touchstone/contenders/softmax_topk/ours")
endif()
