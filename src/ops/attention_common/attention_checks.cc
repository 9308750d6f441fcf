#include "ops/attention_common/attention_checks.h"

#include <string>

namespace touchstone::attention_common {

void AttentionChecks::offsets(const char* name, const std::int64_t* offsets, std::int64_t count,
                              std::int64_t tokens) const {
  if (offsets[0] != 0) fail(name, "0 first", std::to_string(offsets[0]));
  for (std::int64_t i = 0; i < count; ++i) {
    if (offsets[i] <= offsets[i + 1] && offsets[i + 1] <= tokens) continue;
    fail(name, "ascending numbers up to " + std::to_string(tokens),
         std::to_string(offsets[i]) + " and then " + std::to_string(offsets[i + 1]));
  }
  if (offsets[count] != tokens) {
    fail(name, std::to_string(tokens) + " last", std::to_string(offsets[count]));
  }
}

void AttentionChecks::at_least_zero(const char* name, std::int64_t value) const {
  if (value < 0) fail(name, "at least 0", std::to_string(value));
}

void AttentionChecks::no_overlap(std::span<const Argument> outputs,
                                 std::span<const Argument> inputs) const {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const Argument& input : inputs) disjoint(outputs[i], input, false);
    for (const Argument& other : outputs.subspan(i + 1)) disjoint(outputs[i], other, false);
  }
}

}  // namespace touchstone::attention_common
