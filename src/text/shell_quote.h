// Words of a command line as a shell reads them back.
#pragma once

#include <string>
#include <string_view>

namespace touchstone::inline v0 {

// The word itself where a shell takes it literally, else in single quotes.
std::string shell_quoted(std::string_view word);

}  // namespace touchstone::inline v0
