// SHA-256 (FIPS 180-4): the commitment to a seed, and the names of sources in records.
#pragma once

#include <string>
#include <string_view>

namespace touchstone::judge {

// 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace touchstone::judge
