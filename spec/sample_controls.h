// Which sampling parameters a case of `sample` gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace touchstone::spec {

enum class Controls : std::uint8_t {
  usual,          // top_k with top_p
  top_p,          // alone, at a temperature that leaves a nucleus of some dozens
  wide_top_p,     // alone: a nucleus of thousands
  min_p,          // alone
  greedy,         // temperature 0
  none,           // the whole distribution
  penalties,      // usual, and all penalties over a history
  probabilities,  // usual, and the largest log-probabilities
  tree,           // penalties for the nodes of trees that share a history
};

// In the order of the values.
std::vector<std::string> controls_names();

// Of all but the greedy rows and those of Controls::top_p.
inline constexpr float kSampleTemperature = 0.8F;
inline constexpr float kSampleTopP = 0.95F;

}  // namespace touchstone::spec
