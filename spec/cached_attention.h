// What cached_attention has to compute: the oracle's values on decoded keys and values, with the
// bound of the contract (1e-5 of the magnitude sum, and one rounding of the output).
#pragma once

#include <vector>

#include "oracle/cached_attention.h"
#include "spec/bounds.h"

namespace touchstone::spec {

struct CachedAttentionValues {
  std::vector<double> query, keys, values;  // as oracle::CachedAttention has them
};

struct CachedAttentionReference {
  Expected output, log_sum_exp;
};

// `a` without its arrays of values and outputs; scale 0 = 1 / sqrt(k_dim).
CachedAttentionReference cached_attention_reference(oracle::CachedAttention<double> a,
                                                    const CachedAttentionValues& values,
                                                    DType output_dtype);

}  // namespace touchstone::spec
