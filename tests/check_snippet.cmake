# cmake -DDOCUMENT=README.md -DSOURCE=example.cc -P check_snippet.cmake
#
# Fails unless the text between the two "// [snippet]" lines of SOURCE stands, letter for letter, in
# a cpp block of DOCUMENT.
set(mark "// [snippet]\n")
file(READ "${SOURCE}" source)
file(READ "${DOCUMENT}" document)

string(LENGTH "${mark}" mark_length)
string(FIND "${source}" "${mark}" first)
string(FIND "${source}" "${mark}" last REVERSE)
if(first EQUAL -1 OR first EQUAL last)
  message(FATAL_ERROR "${SOURCE}: expected two lines '// [snippet]'")
endif()
math(EXPR begin "${first} + ${mark_length}")
math(EXPR length "${last} - ${begin}")
string(SUBSTRING "${source}" ${begin} ${length} snippet)

string(FIND "${document}" "```cpp\n${snippet}```" position)
if(position EQUAL -1)
  message(FATAL_ERROR
    "${DOCUMENT}: no cpp block equals the snippet of ${SOURCE}; it should read:\n${snippet}")
endif()
