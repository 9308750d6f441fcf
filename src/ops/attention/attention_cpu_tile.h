// The inner loops of cached_attention: scores of the tokens of a tile, and sums of their values. No
// #pragma once: read once per target.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "cpu/simd.h"
#include "ops/attention/attention_cpu_load.h"

#if defined(TOUCHSTONE_ATTENTION_CPU_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_ATTENTION_CPU_TILE_H_
#undef TOUCHSTONE_ATTENTION_CPU_TILE_H_
#else
#define TOUCHSTONE_ATTENTION_CPU_TILE_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::attend::HWY_NAMESPACE {

// ---- scores -----------------------------------------------------------------------------------

// Tokens as a kernel wants them.
struct Tile {
  std::size_t tokens = 0;
  const std::byte* const* values = nullptr;  // of the first KV head
  std::int64_t offset = 0;                   // from there to the KV head in question
  const float* scales = nullptr;             // [tokens, scale_stride]
  std::size_t scale_stride = 0;
  std::size_t dim = 0;    // a multiple of a pack
  std::size_t group = 0;  // elements that share a scale
  // What will be read after this one, to be asked for in time: pages lie anywhere, so that the
  // hardware foresees little. None: no tokens.
  struct {
    std::size_t tokens = 0;
    const std::byte* const* values = nullptr;
    std::int64_t offset = 0;
    std::size_t bytes = 0;
  } next{};
};

// Asks for tokens [first, first + count) of what comes next.
HWY_INLINE void fetch_next(const Tile& tile, std::size_t first, std::size_t count) {
  const std::size_t end = std::min(first + count, tile.next.tokens);
  for (std::size_t t = first; t < end; ++t) {
    const std::byte* const from = tile.next.values[t] + tile.next.offset;
    for (std::size_t i = 0; i < tile.next.bytes; i += 64) sd::prefetch(from + i);
  }
}

#if HWY_TARGET == HWY_SCALAR

template <std::size_t kCount>
HWY_INLINE V sums_of_lanes(const V* v) {
  static_assert(kCount == 1);
  return v[0];
}

#else

// In each block of four lanes, one sum per vector: lane i is the sum of that block of v[i].
HWY_INLINE V sums_of_blocks(const V* v) {
  const D d;
  const hn::Repartition<double, D> d64;
  const auto pair = [&](V a, V b) {
    return hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto low = pair(v[0], v[1]);
  const auto high = pair(v[2], v[3]);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, low, high)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, low, high)));
}

// Lane i of the result is the sum of the lanes of v[i], kCount = kLanes of them, in the same order
// for each.
template <std::size_t kCount>
HWY_INLINE V sums_of_lanes(const V* v) {
  const D d;
  const auto halves = [&](V a, V b) {
    return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  };
  if constexpr (kCount == 4) {
    return sums_of_blocks(v);
  } else if constexpr (kCount == 8) {
    return halves(sums_of_blocks(v), sums_of_blocks(v + 4));
  } else {
    static_assert(kCount == 16);
    // Two blocks for each four: of v[0..3] and v[8..11], of v[4..7] and v[12..15].
    const V even = halves(sums_of_blocks(v), sums_of_blocks(v + 8));
    const V odd = halves(sums_of_blocks(v + 4), sums_of_blocks(v + 12));
    return hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)),
                             hn::Add(even, hn::SwapAdjacentBlocks(even)));
  }
}

#endif

// scores[q][t] = dot(queries[q], key of token t). Writes whole vectors.
template <class Source, std::size_t kQueries>
HWY_NOINLINE void score_tile(const Tile& tile, const float* const* queries, float* const* scores) {
  const D d;
  constexpr std::size_t kTokens = kLanes / kQueries;
  const float* q[kQueries];
  for (std::size_t i = 0; i < kQueries; ++i) q[i] = queries[i];
  for (std::size_t first = 0; first < tile.tokens; first += kTokens) {
    const std::byte* key[kTokens];
    const float* scale[kTokens];
    for (std::size_t t = 0; t < kTokens; ++t) {
      const std::size_t token = std::min(first + t, tile.tokens - 1);
      key[t] = tile.values[token] + tile.offset;
      scale[t] = tile.scales + token * tile.scale_stride;
    }
    fetch_next(tile, first, kTokens);
    V sums[kLanes];
    for (V& sum : sums) sum = hn::Zero(d);
    for (std::size_t end = 0, i = 0; i < tile.dim;) {
      end += tile.group;
      for (; i < end; i += Source::kColumns) {
        V pack[kTokens][Source::kPack];
        for (std::size_t t = 0; t < kTokens; ++t) Source::load(key[t], i, scale[t], pack[t]);
        for (std::size_t k = 0; k < Source::kPack; ++k) {
          for (std::size_t j = 0; j < kQueries; ++j) {
            const V x = hn::LoadU(d, q[j] + i + k * kLanes);
            for (std::size_t t = 0; t < kTokens; ++t) {
              sums[j * kTokens + t] = hn::MulAdd(x, pack[t][k], sums[j * kTokens + t]);
            }
          }
        }
      }
      for (std::size_t t = 0; t < kTokens; ++t) scale[t] += Source::kScales;
    }
    alignas(64) float result[kLanes];
    hn::Store(sums_of_lanes<kLanes>(sums), d, result);
    for (std::size_t j = 0; j < kQueries; ++j) {
      std::memcpy(scores[j] + first, result + j * kTokens, kTokens * sizeof(float));
    }
  }
}

// ---- values -----------------------------------------------------------------------------------

// output[q][columns] += weights[q][t] * (value of token t)[columns], kVectors of columns from
// `column` on, token by token.
template <class Source, std::size_t kQueries, std::size_t kVectors>
HWY_INLINE void add_columns(const Tile& tile, std::size_t column, const float* const* weights,
                            float* const* output) {
  const D d;
  constexpr std::size_t kPacks = kVectors / Source::kPack;
  const float* w[kQueries];
  V sums[kQueries][kVectors];
  for (std::size_t j = 0; j < kQueries; ++j) {
    w[j] = weights[j];
    for (std::size_t k = 0; k < kVectors; ++k) {
      sums[j][k] = hn::LoadU(d, output[j] + column + k * kLanes);
    }
  }
  const float* scale[kPacks];
  for (std::size_t k = 0; k < kPacks; ++k) {
    const std::size_t at = column + k * Source::kColumns;
    scale[k] = tile.scales + at / tile.group * Source::kScales;
  }
  for (std::size_t t = 0; t < tile.tokens; ++t) {
    if (column == 0) fetch_next(tile, t, 1);
    const std::byte* const values = tile.values[t] + tile.offset;
    V pack[kVectors];
    for (std::size_t k = 0; k < kPacks; ++k) {
      Source::load(values, column + k * Source::kColumns, scale[k] + t * tile.scale_stride,
                   pack + k * Source::kPack);
    }
    for (std::size_t j = 0; j < kQueries; ++j) {
      const V weight = hn::Set(d, w[j][t]);
      for (std::size_t k = 0; k < kVectors; ++k) {
        sums[j][k] = hn::MulAdd(weight, pack[k], sums[j][k]);
      }
    }
  }
  for (std::size_t j = 0; j < kQueries; ++j) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      hn::StoreU(sums[j][k], d, output[j] + column + k * kLanes);
    }
  }
}

template <class Source, std::size_t kQueries>
HWY_NOINLINE void add_tile(const Tile& tile, const float* const* weights, float* const* output) {
  // As many sums as registers hold beside the values.
  constexpr bool kManyRegisters = HWY_ARCH_X86 ? HWY_TARGET <= HWY_AVX3 : HWY_ARCH_ARM_A64;
  constexpr std::size_t kMost =
      std::min<std::size_t>(8, std::max<std::size_t>(2, (kManyRegisters ? 16 : 8) / kQueries));
  std::size_t column = 0;
  for (; column + kMost * kLanes <= tile.dim; column += kMost * kLanes) {
    add_columns<Source, kQueries, kMost>(tile, column, weights, output);
  }
  for (; column < tile.dim; column += Source::kColumns) {
    add_columns<Source, kQueries, Source::kPack>(tile, column, weights, output);
  }
}

}  // namespace touchstone::attend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
