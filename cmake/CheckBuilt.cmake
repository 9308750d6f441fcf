# Runs before anything is installed: stops, with all that is missing, when a file that this part of
# the installation needs has not been built. The list is touchstone_built_files.
set(missing "")
foreach(file IN LISTS touchstone_built_files)
  if(NOT EXISTS "${file}")
    string(APPEND missing "\n  ${file}")
  endif()
endforeach()
if(missing)
  message(FATAL_ERROR "touchstone: nothing was installed, because these are not built yet:${missing}\n"
    "Build all (cmake --build <dir>), or install one part: cmake --install <dir> --component "
    "library|headers|program")
endif()
