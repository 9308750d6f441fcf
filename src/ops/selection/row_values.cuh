// The values of one row on the device: logits + bias in f32, -inf where the token mask excludes the
// token. Selection kernels are templates over any type with this interface.
#pragma once

#include "ops/selection/key.cuh"
#include "ops/selection/logit_rows.h"

namespace touchstone::selection {

template <class T>
struct RowValues {
  using Logit = T;
  const T* logits;
  const float* bias;                // null = none
  const std::uint32_t* token_mask;  // null = no mask

  __device__ float adjusted(float logit, std::int64_t token) const {
    if (bias != nullptr) logit += __ldg(bias + token);
    if (token_mask != nullptr && (__ldg(token_mask + token / 32) >> (token % 32) & 1U) == 0) {
      return -infinity();
    }
    return logit;
  }
  __device__ float operator()(std::int64_t token) const {
    return adjusted(cuda::widen(logits[token]), token);
  }

  // Applies bias and mask to kN consecutive tokens; `token` is a multiple of kN. Values past the
  // end of the row are -inf and stay -inf.
  template <int kN>
  __device__ void adjust(float (&values)[kN], int token, int vocabulary) const {
    if (bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if (token + i < vocabulary) values[i] += __ldg(bias + token + i);
      }
    }
    if (token_mask != nullptr && token < vocabulary) {
      const std::uint32_t bits = __ldg(token_mask + token / 32) >> (token % 32);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if ((bits >> i & 1U) == 0) values[i] = -infinity();
      }
    }
  }
};

template <class T>
__device__ RowValues<T> values_of(const LogitRows& rows, std::int64_t row) {
  return {static_cast<const T*>(rows.logits) + row * rows.logits_stride,
          rows.bias == nullptr ? nullptr : rows.bias + row * rows.bias_stride,
          rows.token_mask == nullptr ? nullptr : rows.token_mask + row * rows.token_mask_stride};
}

}  // namespace touchstone::selection
