// Takes the place of onednn.cc where oneDNN is not installed.
#include "bench/onednn.h"

namespace touchstone::bench {

std::string onednn_version() { return {}; }

std::optional<OneDnnCalls> onednn_calls(Context& /*context*/,
                                        std::span<const NormOperands> /*sets*/) {
  return std::nullopt;
}

}  // namespace touchstone::bench
