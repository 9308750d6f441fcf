// One warp's part of cached_attention on the tensor cores.
//
// The warps of a block take the tokens of its list in turns, a chunk at a time. Each copies the
// chunks ahead of it into shared memory of its own and never waits for another warp; running
// maxima, sums of weights and of weighted values are merged once, at the end.
//
// Tokens, or numbers of a value, are the 16 rows of a product, 8 query vectors its columns. Both
// factors are bf16, so what rounding takes away gets products of its own: weights are two bf16 (17
// bits), queries that are not bf16 already are three (all 24 bits).
//
// Why the bits depend on so little: an element of a product depends on its own row and column only,
// and which token is in which place of which product on its number in the list only.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/attention/attention_source.cuh"

namespace touchstone::attend {

inline constexpr int kVectors = 8;
inline constexpr int kParts = 3;  // of a query

template <class Keys_, class Values_, int kDim_>
struct alignas(128) TensorShared {
  using Keys = Keys_;
  using Values = Values_;
  using Place = ShortPlace;
  static constexpr int kDim = kDim_;
  static constexpr int kMostVectors = kVectors;
  static constexpr int kRowBytes = std::max(Keys::kRowBytes, Values::kRowBytes);
  static constexpr int kScaleBytes = std::max(Keys::kScaleBytes, Values::kScaleBytes);
  static constexpr int kChunk = kRowBytes > 128 ? 16 : 32;

  // Keys or values of a chunk and their scales.
  struct alignas(16) Slot {
    std::byte rows[kChunk * kRowBytes];
    std::byte scales[kChunk * std::max(kScaleBytes, 1)];
  };
  // Four blocks shall have room on a multiprocessor.
  static constexpr int kSlots = std::clamp(12672 / static_cast<int>(sizeof(Slot)), 3, 8);

  // What a warp copies ahead: in turns keys and values.
  struct alignas(128) Ring {
    Slot slots[kSlots];
  };

  // What a warp leaves in its ring in the end.
  struct Sums {
    float values[kVectors][kDim];
    float largest[kVectors];
    float weights[kVectors];
    float factor[kVectors];  // that brings it under the largest of all warps
  };
  static_assert(sizeof(Ring) >= sizeof(Sums));
  __device__ Sums& sums(int warp) { return reinterpret_cast<Sums&>(ring[warp]); }

  // A query that is bf16 has one part.
  static constexpr std::int64_t bytes(bool exact) {
    return static_cast<std::int64_t>(exact ? offsetof(TensorShared, rest) : sizeof(TensorShared));
  }

  union {
    Ring ring[kWarps];
    float query[kVectors][kDim];  // before anything is copied
  };
  Place places[kSplit];
  int counts[kSplit / 32];
  float query_sums[kVectors][Keys::kGroups];
  float factors[kVectors];
  std::int64_t targets[kVectors];
  Known known;
  uint2 first_part[kDim / 16][32];  // of the query, as operands
  uint2 rest[kParts - 1][kDim / 16][32];
};

// Whether the query has one part.
TOUCHSTONE_HOST_DEVICE inline bool is_exact(const CachedAttention& p) {
  return p.query_dtype == DType::bf16 && !p.layers.rotate_keys;
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
__device__ inline float low_bf16(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000U);
}

// Two numbers as bf16, and what is left of them.
__device__ inline std::uint32_t take_bf16(float& low, float& high) {
  const std::uint32_t pair = pack_bf16(low, high);
  low = __fsub_rn(low, low_bf16(pair));
  high = __fsub_rn(high, high_bf16(pair));
  return pair;
}

// One warp's way through its chunks. Lane 4 * n + c has the scores of tokens n and n + 8 of every
// 16, for the query vectors 2 * c and 2 * c + 1.
template <class Block>
class WarpPass {
 public:
  using Shared = typename Block::SharedMemory;
  using Keys = typename Shared::Keys;
  using Values = typename Shared::Values;
  using Slot = typename Shared::Slot;
  static constexpr int kDim = Shared::kDim;
  static constexpr int kChunk = Shared::kChunk;
  static constexpr int kSlots = Shared::kSlots;
  static constexpr int kTokenTiles = kChunk / 16;
  static constexpr int kOutputTiles = kDim / 16;

  __device__ WarpPass(Block& block, int count)
      : block_(block),
        keys_(block, block.work.keys),
        values_(block, block.work.values),
        ring_(block.shared.ring[threadIdx.x / 32]),
        count_(count) {
    if constexpr (Keys::kScaling == Scaling::kGrouped) {
#pragma unroll
      for (int g = 0; g < Keys::kGroups; ++g) {
        query_sums_[g][0] = block.shared.query_sums[2 * column()][g];
        query_sums_[g][1] = block.shared.query_sums[2 * column() + 1][g];
      }
    }
  }

  template <bool kExact>
  __device__ void run() {
    const int chunks = (count_ + kChunk - 1) / kChunk;
    const int first = static_cast<int>(threadIdx.x / 32);
#pragma unroll 1
    for (int load = 0; load < kSlots; ++load) {
      ask(first + load / 2 * kWarps, load % 2 == 0, ring_.slots[load]);
    }
#pragma unroll 1
    for (int chunk = first; chunk < chunks; chunk += kWarps) {
      Slot& keys = next_slot();
      float scores[kTokenTiles][4];
      score<kExact>(chunk, keys, scores);
      refill<0>(chunk, keys);
      weigh(scores);
      Slot& values = next_slot();
      accumulate(chunk, values, scores);
      refill<1>(chunk, values);
    }
    cuda::wait_copies<0>();
    __syncwarp();
    leave_sums();
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static int row() { return lane() / 4; }
  __device__ static int column() { return lane() % 4; }

  // Nothing is asked for behind the end, but a group of copies is closed all the same.
  __device__ void ask(int chunk, bool keys, Slot& slot) {
    if (chunk * kChunk < count_) {
      if (keys) {
        keys_.ask(chunk, count_, slot);
      } else {
        values_.ask(chunk, count_, slot);
      }
    }
    cuda::commit_copies();
  }

  // The slot whose copies are the oldest, when they have arrived.
  __device__ Slot& next_slot() {
    cuda::wait_copies<kSlots - 1>();
    __syncwarp();
    Slot& slot = ring_.slots[slot_];
    slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    return slot;
  }

  // What comes kSlots loads after the keys (0) or values (1) of a chunk takes their place.
  template <int kLoad>
  __device__ void refill(int chunk, Slot& slot) {
    __syncwarp();
    constexpr int kNext = kLoad + kSlots;
    ask(chunk + kNext / 2 * kWarps, kNext % 2 == 0, slot);
  }

  // The products of 16 keys with the first part of the queries, and with what that left.
  template <bool kExact>
  struct Dots {
    float first[4] = {};
    float rest[kExact ? 1 : 4] = {};

    __device__ float of(int i) const {
      if constexpr (kExact) return first[i];
      // An infinity must not meet the zeros in the other parts.
      return fabsf(first[i]) == -minus_infinity() ? first[i] : __fadd_rn(first[i], rest[i]);
    }
  };

  template <bool kExact>
  __device__ void multiply(Dots<kExact>& dots, int m, const std::uint32_t (&a)[4]) const {
    const uint2 first = block_.shared.first_part[m][lane()];
    cuda::multiply_add_bf16(dots.first, a, first.x, first.y);
    if constexpr (!kExact) {
#pragma unroll
      for (int part = 0; part < kParts - 1; ++part) {
        const uint2 next = block_.shared.rest[part][m][lane()];
        cuda::multiply_add_bf16(dots.rest, a, next.x, next.y);
      }
    }
  }

  template <bool kExact>
  __device__ void score(int chunk, const Slot& keys, float (&scores)[kTokenTiles][4]) const {
    const std::uint32_t rows = cuda::shared_address(keys.rows);
    const int matrix = lane() / 8;
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      Dots<kExact> dots;
      float2 scales[2][Keys::kGroups];
      if constexpr (Keys::kScaling == Scaling::kGrouped) {
        keys_.group_scales(16 * t + row(), keys.scales, scales[0]);
        keys_.group_scales(16 * t + 8 + row(), keys.scales, scales[1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] = 0;
#pragma unroll
      for (int unit = 0; unit < Keys::kUnits; unit += 2) {
        std::uint32_t words[4];  // two units, each of 8 tokens and 8 more
        cuda::load_matrices(
            rows + Keys::at(16 * t + matrix % 2 * 8 + lane() % 8, unit + matrix / 2), words);
        if constexpr (Keys::kTiles == 1) {
          multiply(dots, unit / 2, words);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            multiply_unit(dots, unit + i, words[2 * i], words[2 * i + 1]);
            if constexpr (Keys::kScaling == Scaling::kGrouped) {
              constexpr int kGroupUnits = Keys::kUnits / Keys::kGroups;
              if ((unit + i + 1) % kGroupUnits == 0) {
                scale_group<kExact>(scales, (unit + i) / kGroupUnits, dots, scores[t]);
                dots = {};
              }
            }
          }
        }
      }
      if constexpr (Keys::kScaling != Scaling::kGrouped) {
        finish_dots<kExact>(chunk, keys, t, dots, scores[t]);
      }
    }
    finish_scores(chunk, scores);
  }

  template <bool kExact>
  __device__ void multiply_unit(Dots<kExact>& dots, int unit, std::uint32_t word,
                                std::uint32_t next_word) const {
    std::uint32_t x[Keys::kTiles];
    std::uint32_t next[Keys::kTiles];
    Keys::C::decode(word, keys_.asymmetric(), x);
    Keys::C::decode(next_word, keys_.asymmetric(), next);
#pragma unroll
    for (int j = 0; j < Keys::kTiles; j += 2) {
      multiply(dots, (unit * Keys::kTiles + j) / 2, {x[j], next[j], x[j + 1], next[j + 1]});
    }
  }

  template <bool kExact>
  __device__ void scale_group(const float2 (&scales)[2][Keys::kGroups], int group,
                              const Dots<kExact>& dots, float (&scores)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 scale = scales[i / 2][group];
      scores[i] = fmaf(scale.x, dots.of(i), scores[i]);
      if (keys_.asymmetric()) scores[i] = fmaf(scale.y, query_sums_[group][i % 2], scores[i]);
    }
  }

  template <bool kExact>
  __device__ void finish_dots(int chunk, const Slot& keys, int tile, const Dots<kExact>& dots,
                              float (&scores)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] = dots.of(i);
    if constexpr (Keys::kScaling == Scaling::kWhole) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale =
            keys_.whole_scale(chunk, count_, 16 * tile + 8 * half + row(), keys.scales);
        scores[2 * half] = __fmul_rn(scores[2 * half], scale);
        scores[2 * half + 1] = __fmul_rn(scores[2 * half + 1], scale);
      }
    }
  }

  // Nothing behind the end of the list.
  __device__ void finish_scores(int chunk, float (&scores)[kTokenTiles][4]) const {
    const float scale = block_.p.scale;
    const float cap = block_.p.soft_cap;
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] = __fmul_rn(scores[t][i], scale);
    }
    if (cap > 0) {
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[t][i] = __fmul_rn(cap, tanhf(scores[t][i] / cap));
      }
    }
    if ((chunk + 1) * kChunk <= count_) return;
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool there = chunk * kChunk + 16 * t + 8 * (i / 2) + row() < count_;
        if (!there) scores[t][i] = minus_infinity();
      }
    }
  }

  // Turns scores into weights under the new maxima, and brings what there is already under them.
  __device__ void weigh(float (&scores)[kTokenTiles][4]) {
    float largest[2] = {largest_[0], largest_[1]};
#pragma unroll
    for (int x = 0; x < 2; ++x) {
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        largest[x] = fmaxf(largest[x], fmaxf(scores[t][x], scores[t][x + 2]));
      }
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        largest[x] = fmaxf(largest[x], __shfl_xor_sync(kAllLanes, largest[x], offset));
      }
    }
    const bool changed = largest[0] != largest_[0] || largest[1] != largest_[1];
    if (__any_sync(kAllLanes, static_cast<int>(changed)) != 0) rescale(largest);
    float base[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      base[x] = largest[x] == minus_infinity() ? 0.0F : -__fmul_rn(largest[x], kLog2E);
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[t][i] = cuda::exp2_flushed(fmaf(scores[t][i], kLog2E, base[i % 2]));
        sums_[i % 2] = __fadd_rn(sums_[i % 2], scores[t][i]);
      }
    }
  }

  // Where a maximum has not changed the factor is exactly 1.
  __device__ void rescale(const float (&largest)[2]) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const float factor = largest[x] == largest_[x] ? 1.0F : weight_of(largest_[x], largest[x]);
      largest_[x] = largest[x];
      sums_[x] = __fmul_rn(sums_[x], factor);
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) {
        output_[n][x] = __fmul_rn(output_[n][x], factor);
        output_[n][x + 2] = __fmul_rn(output_[n][x + 2], factor);
      }
#pragma unroll
      for (int g = 0; g < Values::kGroups; ++g) minima_[g][x] = __fmul_rn(minima_[g][x], factor);
    }
  }

  __device__ void accumulate(int chunk, const Slot& values,
                             const float (&weights)[kTokenTiles][4]) {
    const std::uint32_t rows = cuda::shared_address(values.rows);
    const int matrix = lane() / 8;
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      WeightOperands operands[Values::kGroups];
      arrange_weights(chunk, values, t, weights[t], operands);
#pragma unroll
      for (int unit = 0; unit < Values::kUnits; unit += 2) {
        std::uint32_t words[4];  // of 8 tokens two units, then of 8 more
        cuda::load_transposed(
            rows + Values::at(16 * t + matrix / 2 * 8 + lane() % 8, unit + matrix % 2), words);
        if constexpr (Values::kTiles == 1) {
          multiply_weights(unit / 2, words, operands[0]);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            std::uint32_t x[Values::kTiles];
            std::uint32_t next[Values::kTiles];
            Values::C::decode(words[i], values_.asymmetric(), x);
            Values::C::decode(words[i + 2], values_.asymmetric(), next);
#pragma unroll
            for (int j = 0; j < Values::kTiles; j += 2) {
              multiply_weights(((unit + i) * Values::kTiles + j) / 2,
                               {x[j], x[j + 1], next[j], next[j + 1]},
                               operands[(unit + i) * Values::kGroups / Values::kUnits]);
            }
          }
        }
      }
    }
  }

  // The weights of 16 tokens in two parts.
  struct WeightOperands {
    std::uint32_t first[2];
    std::uint32_t second[2];
  };

  __device__ void multiply_weights(int tile, const std::uint32_t (&a)[4],
                                   const WeightOperands& weights) {
    cuda::multiply_add_bf16(output_[tile], a, weights.first[0], weights.first[1]);
    cuda::multiply_add_bf16(output_[tile], a, weights.second[0], weights.second[1]);
  }

  // For each group, times its scales.
  __device__ void arrange_weights(int chunk, const Slot& values, int tile,
                                  const float (&weights)[4],
                                  WeightOperands (&operands)[Values::kGroups]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = 16 * tile + 8 * half + row();
      float2 scales[Values::kGroups];
      if constexpr (Values::kScaling == Scaling::kGrouped) {
        values_.group_scales(token, values.scales, scales);
      } else if constexpr (Values::kScaling == Scaling::kWhole) {
        scales[0] = {values_.whole_scale(chunk, count_, token, values.scales), 0};
      }
#pragma unroll
      for (int g = 0; g < Values::kGroups; ++g) {
        float low = weights[2 * half];
        float high = weights[2 * half + 1];
        if constexpr (Values::kScaling != Scaling::kNone) {
          if (values_.asymmetric()) {
            minima_[g][0] = fmaf(low, scales[g].y, minima_[g][0]);
            minima_[g][1] = fmaf(high, scales[g].y, minima_[g][1]);
          }
          low = __fmul_rn(low, scales[g].x);
          high = __fmul_rn(high, scales[g].x);
        }
        operands[g].first[half] = cuda::transposed(take_bf16(low, high));
        operands[g].second[half] = cuda::transposed(pack_bf16(low, high));
      }
    }
  }

  // Over the lanes that share their vectors.
  __device__ static float sum_of_rows(float x) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, offset));
    }
    return x;
  }

  __device__ void leave_sums() {
    typename Shared::Sums& sums = block_.shared.sums(static_cast<int>(threadIdx.x / 32));
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int vector = 2 * column() + x;
      const float sum = sum_of_rows(sums_[x]);
      if (row() == 0) {
        sums.largest[vector] = largest_[x];
        sums.weights[vector] = sum;
      }
      float minima[Values::kGroups] = {};
      if constexpr (Values::kScaling != Scaling::kNone) {
        if (values_.asymmetric()) {
#pragma unroll
          for (int g = 0; g < Values::kGroups; ++g) minima[g] = sum_of_rows(minima_[g][x]);
        }
      }
#pragma unroll
      for (int n = 0; n < 2 * kOutputTiles; ++n) {
        sums.values[vector][value_number<typename Values::C>(n, row())] = __fadd_rn(
            output_[n / 2][n % 2 * 2 + x], minima[n * Values::kGroups / kOutputTiles / 2]);
      }
    }
  }

  Block& block_;
  Source<Keys, kChunk, Block> keys_;
  Source<Values, kChunk, Block> values_;
  typename Shared::Ring& ring_;
  int count_;
  int slot_ = 0;
  float largest_[2] = {minus_infinity(), minus_infinity()};
  float sums_[2] = {};
  float output_[kOutputTiles][4] = {};
  float minima_[Values::kGroups][2] = {};
  float query_sums_[Keys::kGroups][2];
};

}  // namespace touchstone::attend
