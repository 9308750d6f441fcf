// The inner loops of cached_attention: scores of the tokens of a tile, and sums of their values. No
// #pragma once: read once per target.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "cpu/simd.h"
#include "ops/attention_paged/paged_cpu_load.h"

#if defined(TOUCHSTONE_PAGED_CPU_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_PAGED_CPU_TILE_H_
#undef TOUCHSTONE_PAGED_CPU_TILE_H_
#else
#define TOUCHSTONE_PAGED_CPU_TILE_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::paged_attention::HWY_NAMESPACE {

// ---- scores -----------------------------------------------------------------------------------

// A row of scores: whole vectors are written beyond the last token.
constexpr std::size_t kScoreStride = kSplitTokens + 16;

// The tokens of a page, as the kernels read them.
struct Tile {
  std::size_t tokens = 0;
  const std::byte* const* values = nullptr;  // of the first KV head
  std::int64_t offset = 0;                   // from there to the KV head in question
  const float* scales = nullptr;             // [tokens, scale_stride]
  std::size_t scale_stride = 0;
  std::size_t dim = 0;    // a multiple of a pack
  std::size_t group = 0;  // elements that share a scale
  // The next tile, for software prefetch: pages are scattered, which defeats the
  // hardware prefetcher. As many tokens; `bytes` = 0 when there is nothing to prefetch.
  struct {
    const std::byte* const* values = nullptr;
    std::int64_t offset = 0;
    std::size_t bytes = 0;
  } next{};
};

// Prefetches the bytes [from, from + bytes).
HWY_INLINE void fetch(const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) sd::prefetch(from + i);
}

// Prefetches token t of the next tile.
HWY_INLINE void fetch_next(const Tile& tile, std::size_t t) {
  fetch(tile.next.values[t] + tile.next.offset, tile.next.bytes);
}

// The sums of the lanes of kLanes vectors, lane i of the result that of v[i], in the same order for
// each. In two halves, so that something else can be done meanwhile: the first leaves half as many
// vectors.
#if HWY_TARGET == HWY_SCALAR

constexpr std::size_t kHalfSums = 1;
HWY_INLINE void begin_sums(const V* v, V* half) { half[0] = v[0]; }
template <std::size_t kCount = kLanes>
HWY_INLINE V end_sums(const V* half) {
  return half[0];
}

#else

constexpr std::size_t kHalfSums = kLanes / 2;

HWY_INLINE void begin_sums(const V* v, V* half) {
  const D d;
  for (std::size_t i = 0; i < kHalfSums; ++i) {
    const V a = v[2 * i];
    const V b = v[2 * i + 1];
    half[i] = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  }
}

template <std::size_t kCount = kLanes>
HWY_INLINE V end_sums(const V* half) {
  const D d;
  const hn::Repartition<double, D> d64;
  // Now in each block of four lanes, one sum per vector.
  V blocks[kCount / 4];
  for (std::size_t i = 0; i < kCount / 4; ++i) {
    const auto low = hn::BitCast(d64, half[2 * i]);
    const auto high = hn::BitCast(d64, half[2 * i + 1]);
    blocks[i] = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, low, high)),
                        hn::BitCast(d, hn::InterleaveUpper(d64, low, high)));
  }
  const auto halves = [&](V a, V b) {
    return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  };
  if constexpr (kCount == 4) {
    return blocks[0];
  } else if constexpr (kCount == 8) {
    return halves(blocks[0], blocks[1]);
  } else {
    static_assert(kCount == 16);
    // Two blocks for each four: of v[0..3] and v[8..11], of v[4..7] and v[12..15].
    const V even = halves(blocks[0], blocks[2]);
    const V odd = halves(blocks[1], blocks[3]);
    return hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)),
                             hn::Add(even, hn::SwapAdjacentBlocks(even)));
  }
}

#endif

// sums[q][t] += queries[q][columns] * keys[t][columns] for the columns of one group, lane by lane.
template <class Source, std::size_t kQueries, std::size_t kTokens>
HWY_INLINE void add_products(const float* const* queries, const std::byte* const* keys,
                             const float* const* scales, std::size_t begin, std::size_t end,
                             V* sums) {
  const D d;
  for (std::size_t i = begin; i < end; i += Source::kColumns) {
    V pack[kTokens][Source::kPack];
    for (std::size_t t = 0; t < kTokens; ++t) Source::load(keys[t], i, scales[t], pack[t]);
    for (std::size_t k = 0; k < Source::kPack; ++k) {
      for (std::size_t j = 0; j < kQueries; ++j) {
        const V x = hn::LoadU(d, queries[j] + i + k * kLanes);
        for (std::size_t t = 0; t < kTokens; ++t) {
          sums[j * kTokens + t] = hn::MulAdd(x, pack[t][k], sums[j * kTokens + t]);
        }
      }
    }
  }
}

// Writes the scores of kTokens tokens from `first` on, which begin_sums has left.
template <class Source, std::size_t kQueries, std::size_t kTokens>
HWY_INLINE void store_scores(const V* half, const Tile& tile, std::size_t first,
                             float* const* scores) {
  const D d;
  V result = end_sums(half);
  if constexpr (Source::kScaling == Scaling::per_token) {
    alignas(64) float repeated[kLanes];
    for (std::size_t j = 0; j < kQueries; ++j) {
      std::memcpy(repeated + j * kTokens, tile.scales + first, kTokens * sizeof(float));
    }
    result = hn::Mul(result, hn::Load(d, repeated));
  }
  alignas(64) float lanes[kLanes];
  hn::Store(result, d, lanes);
  for (std::size_t j = 0; j < kQueries; ++j) {
    std::memcpy(scores[j] + first, lanes + j * kTokens, kTokens * sizeof(float));
  }
}

// scores[q][t] = dot(queries[q], key of token t). Writes whole vectors.
template <class Source, std::size_t kQueries>
HWY_NOINLINE void score_tile(const Tile& tile, const float* const* queries, float* const* scores) {
  const D d;
  constexpr std::size_t kTokens = kLanes / kQueries;
  const float* q[kQueries];
  for (std::size_t i = 0; i < kQueries; ++i) q[i] = queries[i];
  V half[kHalfSums];
  for (V& sum : half) sum = hn::Zero(d);
  for (std::size_t first = 0; first < tile.tokens; first += kTokens) {
    const std::byte* key[kTokens];
    const float* scale[kTokens];
    for (std::size_t t = 0; t < kTokens; ++t) {
      const std::size_t token = std::min(first + t, tile.tokens - 1);
      key[t] = tile.values[token] + tile.offset;
      scale[t] = tile.scales + token * tile.scale_stride;
      if (tile.next.bytes != 0) fetch_next(tile, token);
    }
    V sums[kLanes];
    for (V& sum : sums) sum = hn::Zero(d);
    // The sums of the tokens before are finished while these are under way.
    add_products<Source, kQueries, kTokens>(q, key, scale, 0, Source::kColumns, sums);
    if (first != 0) {
      store_scores<Source, kQueries, kTokens>(half, tile, first - kTokens, scores);
    }
    if constexpr (Source::kGroups) {
      for (std::size_t end = tile.group, i = Source::kColumns; i < tile.dim; end += tile.group) {
        add_products<Source, kQueries, kTokens>(q, key, scale, i, end, sums);
        for (std::size_t t = 0; t < kTokens; ++t) scale[t] += Source::kScales;
        i = end;
      }
    } else {
      add_products<Source, kQueries, kTokens>(q, key, scale, Source::kColumns, tile.dim, sums);
    }
    begin_sums(sums, half);
  }
  const std::size_t last = (tile.tokens - 1) / kTokens * kTokens;
  store_scores<Source, kQueries, kTokens>(half, tile, last, scores);
}

// ---- values -----------------------------------------------------------------------------------

// The part of the next tile that is prefetched while some columns are summed: `bytes` with each
// token.
struct Share {
  const std::byte* const* tokens;
  std::int64_t offset = 0;
  std::size_t bytes = 0;   // 0: nothing
  std::size_t rounds = 1;  // parts of a token
};

// output[q][columns] += weights[q][t] * (value of token t)[columns], kVectors of columns from
// `column` on, token by token. Rows of weights are kScoreStride apart.
template <class Source, std::size_t kQueries, std::size_t kVectors>
HWY_INLINE void add_columns(const Tile& tile, std::size_t column, const float* weights,
                            float* const* output, const Share& share) {
  const D d;
  constexpr std::size_t kPacks = kVectors / Source::kPack;
  V sums[kQueries][kVectors];
  for (std::size_t j = 0; j < kQueries; ++j) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      sums[j][k] = hn::LoadU(d, output[j] + column + k * kLanes);
    }
  }
  const float* scale[kPacks];
  for (std::size_t k = 0; k < kPacks; ++k) {
    scale[k] = tile.scales;
    if constexpr (Source::kGroups) {
      scale[k] += (column + k * Source::kColumns) / tile.group * Source::kScales;
    }
  }
  // Where the columns begin in a token, so that their addresses differ by constants.
  constexpr bool kWhole = Source::kPackBytes != 0;
  const std::size_t begin = kWhole ? 0 : column;
  const std::int64_t offset =
      tile.offset + static_cast<std::int64_t>(column / Source::kColumns * Source::kPackBytes);
  // In the order in which it lies in memory. A lone query does too little with a token for that: it
  // prefetches the same part of every token.
  constexpr bool kInOrder = kQueries > 1;
  const std::byte* const* wanted = share.tokens;
  for (std::size_t t = 0; t < tile.tokens; ++wanted) {
    const std::byte* from = *wanted + share.offset;
    const std::size_t end = kInOrder ? std::min(t + share.rounds, tile.tokens) : tile.tokens;
    for (; t < end; ++t) {
      fetch(kInOrder ? from : share.tokens[t] + share.offset, share.bytes);
      from += share.bytes;
      const std::byte* const values = tile.values[t] + offset;
      V pack[kVectors];
      for (std::size_t k = 0; k < kPacks; ++k) {
        Source::load(values, begin + k * Source::kColumns, scale[k] + t * tile.scale_stride,
                     pack + k * Source::kPack);
      }
      for (std::size_t j = 0; j < kQueries; ++j) {
        const V weight = hn::Set(d, weights[j * kScoreStride + t]);
        for (std::size_t k = 0; k < kVectors; ++k) {
          sums[j][k] = hn::MulAdd(weight, pack[k], sums[j][k]);
        }
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
HWY_NOINLINE void add_tile(const Tile& tile, const float* weights, float* const* output) {
  // As many sums as registers hold beside the values.
  constexpr bool kManyRegisters = HWY_ARCH_X86 ? HWY_TARGET <= HWY_AVX3 : HWY_ARCH_ARM_A64;
  constexpr std::size_t kMax =
      std::min<std::size_t>(8, std::max<std::size_t>(2, (kManyRegisters ? 16 : 8) / kQueries));
  const Share nothing{.tokens = tile.values, .rounds = tile.tokens};
  const std::size_t rounds = std::max<std::size_t>(1, tile.dim / (kMax * kLanes));
  const std::size_t bytes = (tile.next.bytes / rounds + 63) / 64 * 64;
  std::size_t column = 0;
  for (std::size_t round = 0; column + kMax * kLanes <= tile.dim; ++round) {
    Share share = nothing;
    if (bytes != 0) {
      share = {tile.next.values, tile.next.offset, bytes, rounds};
      if (kQueries > 1) share.tokens += tile.tokens * round / rounds;
      if (kQueries == 1) share.offset += static_cast<std::int64_t>(round * bytes);
    }
    add_columns<Source, kQueries, kMax>(tile, column, weights, output, share);
    column += kMax * kLanes;
  }
  for (; column < tile.dim; column += Source::kColumns) {
    add_columns<Source, kQueries, Source::kPack>(tile, column, weights, output, nothing);
  }
}

}  // namespace touchstone::paged_attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
