// The rows that a selection reads: logits with an optional bias and token mask.
#pragma once

#include <cstdint>

#include "touchstone/core/dtype.h"

namespace touchstone::selection {

// Row r of logits, bias and token_mask starts at r * stride. Null = absent. rows >= 1 and
// vocabulary >= 1. The value of a token is logit + bias in f32, -inf where the mask excludes it.
struct LogitRows {
  DType dtype = DType::f32;  // of logits: f32, bf16, f16
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  const void* logits = nullptr;
  std::int64_t logits_stride = 0;  // elements; 0 when all rows are one
  const float* bias = nullptr;
  std::int64_t bias_stride = 0;               // elements; 0 when shared
  const std::uint32_t* token_mask = nullptr;  // bit t % 32 of word t / 32 is token t
  std::int64_t token_mask_stride = 0;         // words; 0 when shared

  // Whether the values are the logits themselves.
  constexpr bool has_raw_logits() const { return bias == nullptr && token_mask == nullptr; }
};

}  // namespace touchstone::selection
