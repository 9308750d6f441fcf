// The functions that a shared library exports.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace touchstone::judge {

struct Symbol {
  std::string name;    // as the linker knows it
  std::string plain;   // name of the function without namespaces and arguments
  int arguments = -1;  // of a C++ name; -1 where the symbol does not tell
};

// Reads the dynamic symbol table. The file is hostile: every offset is checked. CorruptData.
std::vector<Symbol> exported_functions(const std::filesystem::path& library);

}  // namespace touchstone::judge
