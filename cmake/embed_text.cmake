# cmake -DOUTPUT=file.cc -DINPUTS=a.txt,b.txt -DHEADER=cases/cases.h -DNAMESPACE=touchstone::cases
#       -P embed_text.cmake
#
# Writes a C++ table of the given text files, so that the program needs no files beside it. A file is
# known by its name without folder and extension, or by its entry in NAMES where that list is given.
# HEADER declares, in NAMESPACE, the function std::string_view text(std::string_view name) that is
# defined here.
string(REPLACE "," ";" inputs "${INPUTS}")
string(REPLACE "," ";" names "${NAMES}")
set(rows "")
foreach(input IN LISTS inputs)
  if(names)
    list(POP_FRONT names name)
  else()
    get_filename_component(name "${input}" NAME_WE)
  endif()
  file(READ "${input}" text)
  if(text MATCHES "\\)text\"")
    message(FATAL_ERROR "${input}: contains the mark that ends a raw string")
  endif()
  string(APPEND rows "    {\"${name}\", R\"text(${text})text\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Generated from text files. Do not edit.
#include \"${HEADER}\"

namespace ${NAMESPACE} {
namespace {

struct Entry {
  std::string_view name;
  std::string_view text;
};

constexpr Entry kEntries[] = {
${rows}};

}  // namespace

std::string_view text(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.text;
  }
  return {};
}

}  // namespace ${NAMESPACE}
")
