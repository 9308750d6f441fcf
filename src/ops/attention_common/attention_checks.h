// Argument checks that both attention operators share, beside those of every operator.
#pragma once

#include <cstdint>
#include <span>

#include "core/checks.h"

namespace touchstone::attention_common {

class AttentionChecks : public Checks {
 public:
  using Checks::Checks;

  // Offsets [count + 1], ascending from 0 to `tokens`. Reads them: on the CPU only.
  void offsets(const char* name, const std::int64_t* offsets, std::int64_t count,
               std::int64_t tokens) const;

  void at_least_zero(const char* name, std::int64_t value) const;

  // Every output against every input and every later output.
  void no_overlap(std::span<const Argument> outputs, std::span<const Argument> inputs) const;
};

}  // namespace touchstone::attention_common
