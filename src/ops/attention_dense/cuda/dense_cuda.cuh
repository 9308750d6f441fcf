// Dense attention on CUDA: what all its kernels share.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/attention_common/attention_math.cuh"
#include "ops/attention_dense/dense_problem.h"

namespace touchstone::dense_attention {

using attention_common::kAllLanes;
using attention_common::kLn2;
using attention_common::kLog2E;
using attention_common::minus_infinity;
using attention_common::SoftmaxEpilogue;
using attention_common::tanh_of;
using attention_common::weight_of;

// Packed sequences: pieces of `rows` tokens, each of one sequence, are counted so that sequence b
// begins at piece starts[b] / rows + b. There are then a few pieces that hold nothing.
TOUCHSTONE_HOST_DEVICE inline std::int64_t first_piece(const std::int64_t* starts, std::int64_t b,
                                                       int rows) {
  return starts[b] / rows + b;
}
inline std::int64_t pieces(std::int64_t tokens, std::int64_t batch, bool packed, int rows) {
  return packed ? tokens / rows + batch : (tokens + rows - 1) / rows;
}

// The sequence a piece belongs to, if any.
__device__ inline std::int64_t sequence_of_piece(const std::int64_t* starts, std::int64_t batch,
                                                 std::int64_t piece, int rows) {
  std::int64_t low = 0;
  for (std::int64_t high = batch - 1; low < high;) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (first_piece(starts, middle, rows) <= piece) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// From the dot product of a query and a key to their score: scale, soft cap, ALiBi, bias.
class ScoreRule {
 public:
  __device__ ScoreRule(const DenseProblem& p, const SequenceSpan& span, std::int64_t sequence,
                       int head)
      : scale_(static_cast<float>(p.scale)),
        cap_(static_cast<float>(p.soft_cap)),
        per_cap_(cap_ > 0 ? fminf(1 / cap_, 3.4e38F) : 0),
        query_stride_(p.bias_query_stride),
        key_stride_(p.bias_key_stride),
        offset_(static_cast<int>(span.keys - span.queries)) {
    if (p.alibi_slopes != nullptr) slope_ = static_cast<const float*>(p.alibi_slopes)[head];
    if (p.bias != nullptr) {
      bias_ = static_cast<const float*>(p.bias) + sequence * p.bias_batch_stride +
              head * p.bias_head_stride;
    }
  }

  __device__ float capped(float dot) const {
    const float s = dot * scale_;
    return cap_ > 0 ? cap_ * tanh_of(s * per_cap_) : s;
  }
  // What is added whatever the dot product. `there`: the bias may be read.
  __device__ float added(int query, int key, bool there) const {
    float s = -slope_ * fabsf(static_cast<float>(query + offset_ - key));
    if (bias_ != nullptr && there) s += bias_[query * query_stride_ + key * key_stride_];
    return s;
  }
  // The derivative of `capped` by dot * scale.
  __device__ float cap_slope(float capped) const {
    const float t = capped * per_cap_;
    return 1 - t * t;
  }

  // The individual modifications, for kernels that apply them one by one.
  __device__ bool caps() const { return cap_ > 0; }
  __device__ float scale() const { return scale_; }
  __device__ float slope() const { return slope_; }
  __device__ int offset() const { return offset_; }
  __device__ const float* bias() const { return bias_; }
  __device__ std::int64_t query_stride() const { return query_stride_; }
  __device__ std::int64_t key_stride() const { return key_stride_; }

 private:
  float scale_, cap_, per_cap_, slope_ = 0;
  const float* bias_ = nullptr;
  std::int64_t query_stride_, key_stride_;
  int offset_;
};

// Whether scores are more than the scaled product and a mask.
inline bool has_score_mods(const DenseProblem& p) {
  return p.soft_cap > 0 || p.alibi_slopes != nullptr || p.bias != nullptr;
}

__device__ inline float score_gradient(float weight, float dweight, float delta) {
  // A weight of 0 is a masked key: its contents must not matter.
  return weight == 0 ? 0 : weight * (dweight - delta);
}

// delta[row] = dot(doutput, output) - dlog_sum_exp of every row, laid out as log_sum_exp is:
// dense_delta.cu.
void attention_delta(Context& context, const BackwardProblem& p, float* delta);
// Why there are too many rows for that, or nothing.
std::string attention_delta_refuses(const BackwardProblem& p);
// dsink_logits from that, where they are wanted.
void attention_sink_gradient(Context& context, const BackwardProblem& p, const float* delta);

}  // namespace touchstone::dense_attention
