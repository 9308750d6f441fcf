// Functions as a source file writes them, found without a compiler. Good enough to propose a
// binding, never the last word: the compiler and the linker have that.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace touchstone::judge {

struct Signature {
  std::string name;
  std::string returns;             // "int"; Python: empty
  std::vector<std::string> types;  // "const float*"; Python: names of the arguments
  int required = 0;                // arguments without a default
  bool plain = true;               // only C types: the ABI shim can call it
  bool is_static = false;
  std::vector<std::string> names = {};  // of the arguments; empty where one has none
  std::vector<std::string> written =
      {};                           // their types as they are written, "const std::vector<T>&"
  std::string written_return = {};  // likewise
  std::string scope = {};           // namespace, "a::b"
  bool c_linkage = false;           // extern "C"
  bool is_template = false;
  bool variadic = false;  // Python: *args
};

// Definitions at the outer level of a C, C++ or CUDA file, inside namespaces and extern "C" too.
std::vector<Signature> scan_c(std::string_view text);
// def lines at the outer level of a Python file.
std::vector<Signature> scan_python(std::string_view text);

}  // namespace touchstone::judge
