// The command line as it was typed, for the record that goes with a measurement.
#pragma once

#include <string>

namespace touchstone::cli {

void set_command_line(int argc, char** argv);

// "touchstone bench layer_norm --case full": the program by its name, without its folder.
const std::string& command_line();

}  // namespace touchstone::cli
