// What cached_attention has to compute: the oracle's values on decoded keys and values, with the
// bound of the contract (1e-5 of the magnitude sum, and one rounding of the output).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oracle/cached_attention.h"
#include "spec/bounds.h"
#include "touchstone/core/quant_format.h"

namespace touchstone::spec {

struct CachedAttentionValues {
  std::vector<double> query, keys, values;  // as oracle::CachedAttention has them
  std::vector<double> sizes{};  // what the error of each value is relative to; empty: the value
};

// Whether CUDA decodes values of the format with an offset that it subtracts from the sums.
bool decoded_with_offset(const QuantFormat& format);
// Of such a vector the largest magnitude that the group of each value can hold.
void append_group_sizes(const QuantFormat& format, std::int64_t dim, const std::byte* scales,
                        std::vector<double>& sizes);

struct CachedAttentionReference {
  Expected output, log_sum_exp;
};

// `a` without its arrays of values and outputs; scale 0 = 1 / sqrt(k_dim).
CachedAttentionReference cached_attention_reference(oracle::CachedAttention<double> a,
                                                    const CachedAttentionValues& values,
                                                    DType output_dtype);

}  // namespace touchstone::spec
