#include "cli/command_line.h"

#include "text/shell_quote.h"

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
    stored() += " " + shell_quoted(argv[i]);
  }
}

const std::string& command_line() { return stored(); }

}  // namespace touchstone::cli
