// What one warp sums up of the values on the tensor cores.
//
// Numbers of a value are rows, query vectors columns, and products are summed over 16 tokens. The
// weights are in two parts, which are bf16 for values that are, and f16 (22 bits) for codes. Scales
// go into the weights.
#pragma once

#include "ops/attention_paged/cuda/paged_query.cuh"

namespace touchstone::paged_attention {

inline constexpr std::uint32_t k2To15 = 0x78007800;  // two f16

// Lane 4 * n + c has the output numbers n and n + 8 of every 16 for query vectors 2 * c and 2 * c +
// 1.
template <class Block>
class ValueSums {
 public:
  using Shared = typename Block::SharedMemory;
  using Values = typename Shared::Values;
  using Slot = typename Shared::Slot;
  static constexpr int kChunk = Shared::kChunk;
  static constexpr int kTokenTiles = kChunk / 8;
  static constexpr int kOwn = kChunk / 4;  // tokens of a lane
  static constexpr int kOutputTiles = Shared::kDim / 16;
  static constexpr bool kGrouped = Values::kScaling == Scaling::kGrouped;
  // Weights are scaled by 2^kLift, within the range of f16.
  static constexpr int kLift = Values::kHalf ? 6 : 0;
  using ValueSource = SectionLoader<Values, kChunk, Block>;

  __device__ ValueSums(const ValueSource& source, float* scratch)
      : source_(source), scratch_(scratch) {}

  // The values of a chunk times the weights of the lane's vector and tokens, which are lifted.
  // `list` is the list of the chunk.
  __device__ void accumulate(unsigned lane, unsigned chunk, const ListLength& list, Slot& values,
                             float (&weights)[kOwn]) {
    lane_ = lane;
    if constexpr (Values::kScaling == Scaling::kWhole) scale_weights(chunk, list, values, weights);
    WeightOperands operands;
    arrange_weights(weights, operands);
    if constexpr (kGrouped) settle_values(values, operands);
    const std::uint32_t row = row_address<Values, kChunk>(values.rows, lane / 8, lane);
#pragma unroll
    for (int unit = 0; unit < Values::kUnits; unit += kSide) {
      accumulate_units(unit, row, operands);
    }
  }

  // Multiplies with a factor for each of the lane's query vectors.
  __device__ void multiply_by(const float (&factors)[2]) {
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) output_[n][i] = __fmul_rn(output_[n][i], factors[i % 2]);
    }
    if constexpr (kGrouped) {
#pragma unroll
      for (int x = 0; x < 2; ++x) minima_[x] = __fmul_rn(minima_[x], factors[x]);
    }
  }

  __device__ void leave(unsigned lane, typename Shared::Sums& sums) {
    lane_ = lane;
    constexpr int kPerGroup = 2 * kOutputTiles / Values::kGroups;
#pragma unroll
    for (int g = 0; g < Values::kGroups; ++g) {
      const float undo = undo_factor(g);
      const float2 minima = minima_of(g);
#pragma unroll
      for (int n = g * kPerGroup; n < (g + 1) * kPerGroup; ++n) {
        const float* const sum = output_[n / 2] + n % 2 * 2;
        const int to = value_number<typename Values::C>(n, static_cast<int>(row()));
        sums.values[2 * column()][to] = fmaf(sum[0], undo, minima.x);
        sums.values[2 * column() + 1][to] = fmaf(sum[1], undo, minima.y);
      }
    }
  }

 private:
  __device__ unsigned lane() const { return lane_; }
  __device__ unsigned row() const { return lane() / 4; }
  __device__ unsigned column() const { return lane() % 4; }

  // Numbers of the lane's tokens, from an array over the chunk.
  __device__ void load_own(const float* of_chunk, float (&x)[kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(of_chunk + kOwn * column() + i);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  }

  // The lane's weights in two parts, in pairs of tokens.
  struct WeightOperands {
    std::uint32_t first[kTokenTiles];
    std::uint32_t second[kTokenTiles];
  };

  __device__ static void arrange_weights(const float (&weights)[kOwn], WeightOperands& operands) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      float x[2] = {weights[2 * t], weights[2 * t + 1]};
      operands.first[t] = take_pair<Values::kHalf>(x[0], x[1]);
      operands.second[t] = pack_pair<Values::kHalf>(x[0], x[1]);
    }
  }

  // Products of weights and scales are f16. So scales are multiplied with a power of two that makes
  // them less than 2, one for each group, which becomes smaller when it must: that is seldom.
  __device__ void scale_weights(unsigned chunk, const ListLength& list, Slot& values,
                                float (&weights)[kOwn]) {
    const float scale = source_.whole_scale(lane(), chunk, list, values.scales);
    if (__any_sync(kAllLanes, static_cast<int>(__fmul_rn(scale, shrink_) >= 2)) != 0) {
      shrink_by(scale);
    }
    reinterpret_cast<float*>(values.scales)[lane()] = __fmul_rn(scale, shrink_);
    __syncwarp();
    float scales[kOwn];
    load_own(reinterpret_cast<const float*>(values.scales), scales);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) weights[i] = __fmul_rn(weights[i], scales[i]);
  }

  // By the largest scale of a chunk, of which every lane has one.
  __device__ void shrink_by(float scale) {
    // As bits NaN is larger than all others, and then all is lost anyway.
    const unsigned largest = __reduce_max_sync(kAllLanes, __float_as_uint(scale));
    const int exponent = static_cast<int>(largest >> 23) - 126;
    const float shrink = fminf(shrink_, power_of_two(max(-exponent, -16)));
    shrink_outputs(0, kOutputTiles, shrink / shrink_);
    shrink_ = shrink;
  }

  __device__ void shrink_outputs(int first, int end, float factor) {
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n) {
      if (n < first || n >= end) continue;
#pragma unroll
      for (float& x : output_[n]) x = __fmul_rn(x, factor);
    }
  }

  // Adds the minima, and leaves the scales of every group where scale_operands finds them.
  // Transposed, records are rows of scales (even) and minima (odd), of which lane 4 * n + c has its
  // tokens in row n.
  __device__ void settle_values(Slot& values, const WeightOperands& weights) {
    source_.settle_record(lane(), values.scales);
    __syncwarp();
    std::uint32_t rows[4];
    cuda::load_transposed(record_address<kChunk>(values.scales, lane()), rows);
    // Of tiles 0 and 2 in numbers 0 and 1, of tiles 1 and 3 in numbers 2 and 3; what else there is
    // stands for nothing.
    float sums[2][4];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      cuda::multiply_f16(sums[t], rows, weights.first[t], weights.first[t + 2]);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      cuda::multiply_add_f16(sums[t], rows, weights.second[t], weights.second[t + 2]);
    }
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      minima_[x] = __fadd_rn(minima_[x], __fadd_rn(sums[0][x], sums[1][x + 2]));
    }
    std::uint32_t scaled[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) scaled[t] = paged_attention::multiply_f16(rows[t], shrink_row_);
    // This bit is that of 2 and more. There are no scales below zero.
    constexpr std::uint32_t kTwo = 0x40004000;
    const std::uint32_t large =
        (scaled[0] | scaled[1] | scaled[2] | scaled[3]) & (row() % 2 == 0 ? kTwo : 0U);
    if (__any_sync(kAllLanes, static_cast<int>(large != 0)) != 0) {
      shrink_rows(rows);
#pragma unroll
      for (int t = 0; t < 4; ++t) scaled[t] = paged_attention::multiply_f16(rows[t], shrink_row_);
    }
    own_scales(row()) = {scaled[0], scaled[1], scaled[2], scaled[3]};
    __syncwarp();
  }

  // Those of the lane's tokens in a row.
  __device__ uint4& own_scales(unsigned row) {
    return reinterpret_cast<uint4*>(scratch_)[4 * row + column()];
  }

  __device__ void shrink_rows(const std::uint32_t (&rows)[4]) {
    __half2 largest = reinterpret_cast<const __half2&>(rows[0]);
#pragma unroll
    for (int t = 1; t < 4; ++t) {
      largest = __hmax2(largest, reinterpret_cast<const __half2&>(rows[t]));
    }
    float all = fmaxf(__low2float(largest), __high2float(largest));
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      all = fmaxf(all, __shfl_xor_sync(kAllLanes, all, offset));
    }
    // To below 1, or for NaN, and for minima, as before. f16 has powers of two up to 2^15.
    const float before = low_f16(shrink_row_);
    float now = before;
    if (row() % 2 == 0 && all > 0) {
      const int exponent = static_cast<int>(__float_as_uint(all) >> 23) - 126;
      now = fminf(before, power_of_two(max(-exponent, -16)));
    }
    shrink_row_ = pack_f16(now, now);
    const float factor = now / before;
#pragma unroll
    for (int g = 0; g < Values::kGroups; ++g) {
      constexpr int kEach = kOutputTiles / Values::kGroups;
      shrink_outputs(g * kEach, (g + 1) * kEach, of_row(factor, 2 * g));
    }
  }
  __device__ static float of_row(float x, unsigned row) {
    return __shfl_sync(kAllLanes, x, static_cast<int>(4 * row));
  }

  // Weights times scales, in two parts as before: what is lost to rounding is exact.
  __device__ void scale_operands(int group, const WeightOperands& weights, WeightOperands& scaled) {
    const uint4 four = own_scales(2 * group);
    const std::uint32_t scales[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const std::uint32_t product = paged_attention::multiply_f16(weights.first[t], scales[t]);
      scaled.first[t] = product;
      scaled.second[t] = multiply_add_f16(weights.second[t], scales[t],
                                          lost_by_f16(weights.first[t], scales[t], product));
    }
  }

  // As many units at a time as make four output tiles: a product can be added to only when the one
  // before it is there.
  static constexpr int kSide = 8 / Values::kTiles;

  __device__ void accumulate_units(int unit, std::uint32_t row, const WeightOperands& weights) {
    static_assert(kTokenTiles == 4);
    if constexpr (kGrouped) {
      constexpr int kGroupUnits = Values::kUnits / Values::kGroups;
      WeightOperands scaled[kSide / kGroupUnits];
#pragma unroll
      for (int g = 0; g < kSide / kGroupUnits; ++g) {
        scale_operands(unit / kGroupUnits + g, weights, scaled[g]);
      }
      multiply_units(unit, row, scaled, kGroupUnits);
    } else {
      multiply_units(unit, row, {weights}, kSide);
    }
  }

  template <int kSets>
  __device__ void multiply_units(int unit, std::uint32_t row,
                                 const WeightOperands (&weights)[kSets], int units_of_set) {
    std::uint32_t words[kSide][4];  // of each tile
#pragma unroll
    for (int u = 0; u < kSide; ++u) cuda::load_transposed(unit_address(row, unit + u), words[u]);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      std::uint32_t x[kSide][2][Values::kTiles];
#pragma unroll
      for (int u = 0; u < 2 * kSide; ++u) {
        Values::C::decode_value(words[u / 2][t + u % 2 * 2], source_.asymmetric(), x[u / 2][u % 2]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int u = i % 4 * 2 / Values::kTiles;
        const int j = i % 4 * 2 % Values::kTiles;
        const WeightOperands& set = weights[u / units_of_set];
        const std::uint32_t(&b)[kTokenTiles] = i < 4 ? set.first : set.second;
        multiply_add<Values::kHalf>(output_[unit * Values::kTiles / 2 + i % 4],
                                    {x[u][0][j], x[u][0][j + 1], x[u][1][j], x[u][1][j + 1]}, b[t],
                                    b[t + 2]);
      }
    }
  }

  // What brings sums of a group to what they stand for.
  __device__ float undo_factor(int group) const {
    if constexpr (!Values::kHalf) return 1;
    const float lift = power_of_two(-kLift);
    return lift / (kGrouped ? of_row(low_f16(shrink_row_), 2 * group) : shrink_);
  }
  // The sums of weighted minima, and of what was decoded too low, for query vectors 2 * column()
  // and the next.
  __device__ float2 minima_of(int group) const {
    if constexpr (!kGrouped) {
      return {0, 0};
    } else {
      const float offset = Values::C::value_offset(source_.asymmetric());
      float both[2];
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int from = static_cast<int>(8 * group + column());
        const float scales = __shfl_sync(kAllLanes, minima_[x], from);
        const float minima = __shfl_sync(kAllLanes, minima_[x], from + 4);
        both[x] = __fmul_rn(fmaf(offset, scales, minima), power_of_two(-kLift));
      }
      return {both[0], both[1]};
    }
  }

  ValueSource source_;
  float* scratch_;
  unsigned lane_ = 0;
  float output_[kOutputTiles][4] = {};
  float minima_[2] = {};               // sums of weighted scales or minima, one row of them
  float shrink_ = 0x1p26F;             // of scales: more than any can stand
  std::uint32_t shrink_row_ = k2To15;  // the same for the lane's row of them
};

}  // namespace touchstone::paged_attention
