# Installs a built tree into a fresh prefix, then configures, builds and runs the consumer project
# against that prefix only. Then the prefix is moved, and its program judges.
file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/prefix")

function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}\nended with ${status}")
  endif()
endfunction()

step("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}" --config "${BUILD_TYPE}")
step("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK_DIR}/build" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DWANTED_VERSION=${VERSION}")
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --config "${BUILD_TYPE}")
step("${WORK_DIR}/build/consumer")

# The installed program finds what it judges with, and what it judges, from where it lies.
if(EXISTS "${prefix}/bin/touchstone")
  file(RENAME "${prefix}" "${WORK_DIR}/elsewhere")
  step("${WORK_DIR}/elsewhere/bin/touchstone" judge --list)
  step("${WORK_DIR}/elsewhere/bin/touchstone" judge --small --no-speed --task softmax_topk
    "${WORK_DIR}/elsewhere/share/touchstone/contenders/softmax_topk/ours")
endif()
