# cmake -DOUTPUT=file.cc -DINPUTS=a.txt,b.txt -P embed_text.cmake
#
# Writes a C++ table of the given text files, so that the program needs no files beside it. A file is
# known by its name without folder and extension.
string(REPLACE "," ";" inputs "${INPUTS}")
set(rows "")
foreach(input IN LISTS inputs)
  get_filename_component(name "${input}" NAME_WE)
  file(READ "${input}" text)
  if(text MATCHES "\\)text\"")
    message(FATAL_ERROR "${input}: contains the mark that ends a raw string")
  endif()
  string(APPEND rows "    {\"${name}\", R\"text(${text})text\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Generated from the lists in cases/. Do not edit.
#include \"cases/cases.h\"

namespace touchstone::cases {
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

}  // namespace touchstone::cases
")
