#include "cli/command_line.h"

#include <string_view>

namespace touchstone::cli {
namespace {

std::string& stored() {
  static std::string line = "touchstone";
  return line;
}

}  // namespace

void set_command_line(int argc, char** argv) {
  stored() = "touchstone";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool plain =
        !word.empty() && word.find_first_of(" \t\n'\"\\$`|&;<>()") == std::string_view::npos;
    stored() += plain ? " " : " '";
    stored() += word;
    stored() += plain ? "" : "'";
  }
}

const std::string& command_line() { return stored(); }

}  // namespace touchstone::cli
