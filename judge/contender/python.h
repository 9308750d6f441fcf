// The Python that contenders written in NumPy run in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/sandbox/sandbox.h"

namespace touchstone::judge {

struct Python {
  std::string program;                // resolved
  std::vector<std::string> prefixes;  // where its packages lie
  std::string version;                // of NumPy
};

// The interpreter that TOUCHSTONE_PYTHON names, or else the first one that can import NumPy; looked
// for once. Nothing when there is none.
const std::optional<Python>& find_python();
const Python& require_python();  // Unsupported when there is none

void add_python(JailSpec& spec, const Python& python);

}  // namespace touchstone::judge
