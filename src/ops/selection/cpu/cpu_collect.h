// The tokens of a row above a floor. No #pragma once: read once per target, after cpu/simd.h.
//
// Sweeps without unpredictable branches: groups or blocks whose maximum reaches the floor are
// listed, and their tokens above the floor collected.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ops/selection/cpu/cpu_values.h"

#if defined(TOUCHSTONE_SELECTION_CPU_COLLECT_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_SELECTION_CPU_COLLECT_H_
#undef TOUCHSTONE_SELECTION_CPU_COLLECT_H_
#else
#define TOUCHSTONE_SELECTION_CPU_COLLECT_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::selection::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

struct Found {
  float floor = 0;
  std::size_t above = 0;   // in found_bits and found_tokens
  std::size_t equals = 0;  // in equals
};

constexpr std::size_t kLanes = hn::MaxLanes(Tag());
constexpr std::size_t kBlockTokens = kBlockVectors * kLanes;

// Whether groups are listed instead of blocks.
constexpr bool kListsGroups = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;

// A row of raw logits.
template <class T>
struct RawRow {
  using Scanned = T;
  const T* x;
  std::size_t tokens;

  RawRow(const LogitRows& p, std::int64_t row)
      : x(static_cast<const T*>(p.logits) + row * p.logits_stride),
        tokens(static_cast<std::size_t>(p.vocabulary)) {}

  // A vector from `token` on, a multiple of the lanes, inside the row.
  template <class D>
  HWY_INLINE hn::Vec<D> values(D d, std::size_t token) const {
    return sd::load(d, x + token);
  }
  // The same, padded with -inf past the end of the row.
  HWY_INLINE Vector vector(std::size_t token) const {
    return load_or_lowest(Tag(), x + token, tokens - token);
  }
  HWY_INLINE float value(std::size_t token) const { return convert<float>(x[token]); }
};

// A row with bias or mask.
template <class T>
struct ProcessedRow {
  using Scanned = float;
  const LogitRows& p;
  std::int64_t row;

  template <class D>
  HWY_INLINE hn::Vec<D> values(D d, std::size_t token) const {
    auto v = sd::load(d, static_cast<const T*>(p.logits) + row * p.logits_stride + token);
    if (p.bias != nullptr) v = hn::Add(v, hn::LoadU(d, p.bias + row * p.bias_stride + token));
    if (p.token_mask == nullptr) return v;
    const auto token_mask = unmasked_lanes(d, p.token_mask + row * p.token_mask_stride, token);
    return hn::IfThenElse(token_mask, v, hn::Set(d, -std::numeric_limits<float>::infinity()));
  }
  HWY_INLINE Vector vector(std::size_t token) const {
    alignas(64) float room[kLanes] = {};
    const auto tokens = static_cast<std::size_t>(p.vocabulary);
    load_values<T>(p, row, token, std::min(kLanes, tokens - token), room);
    return hn::Load(Tag(), room);
  }
  // Of a token that is not masked.
  HWY_INLINE float value(std::size_t token) const {
    const T* const x = static_cast<const T*>(p.logits) + row * p.logits_stride;
    const float v = convert<float>(x[token]);
    if (p.bias == nullptr) return v;
    return v + p.bias[row * p.bias_stride + static_cast<std::int64_t>(token)];
  }
};

HWY_INLINE std::uint64_t bits_of_mask(hn::Mask<Tag> mask) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(Tag(), mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}

// Lists the coarse vectors that reach the floor.
HWY_INLINE std::size_t list_coarse(const ScratchSizes& sizes, Vector floor,
                                   const RowScratch& scratch) {
  std::uint32_t* const list = scratch.coarse_list;
  std::size_t count = 0;
  for (std::size_t c = 0; c < sizes.coarse; ++c) {
    const auto reach = hn::Ge(hn::LoadU(Tag(), scratch.coarse + c * kLanes), floor);
    list[count] = static_cast<std::uint32_t>(c);
    count += static_cast<std::size_t>(!hn::AllFalse(Tag(), reach));
  }
  return count;
}

// ---- listing and collecting --------------------------------------------------------------------

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// Stores the selected lanes contiguously and returns their number. Overwrites up to a vector; up to
// kUsual elements if there are no more.
template <std::size_t kUsual>
HWY_INLINE std::size_t store_lanes(__m512i v, __mmask16 lanes, void* to) {
  const auto count = static_cast<std::size_t>(std::popcount(static_cast<unsigned>(lanes)));
  // Not a compressing store, which costs a hundred cycles on some processors. Merged with a zero
  // that the compiler cannot see through: the zeroing form has a false dependency on the same
  // processors.
  __m512i zero = _mm512_setzero_si512();
  asm("" : "+v"(zero));
  const __m512i compressed = _mm512_mask_compress_epi32(zero, lanes, v);
  // A full-width store, mostly across two cache lines, costs more than a predicted branch.
  if constexpr (kUsual == 4) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_castsi512_si128(compressed));
  } else {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_castsi512_si256(compressed));
  }
  if (HWY_UNLIKELY(count > kUsual)) _mm512_storeu_si512(to, compressed);
  return count;
}

// Distance between the two runs of a fine group: GroupMaxima.
template <class T>
constexpr std::size_t kRunStride = sd::kEvenOdd<T> ? 2 * kLanes : kLanes;

// The first tokens of the groups of a block, relative to the block.
template <class T>
constexpr std::array<std::uint32_t, kLanes> group_begins() {
  std::array<std::uint32_t, kLanes> begins{};
  for (std::size_t i = 0; i < kLanes; ++i) {
    const std::size_t lane = i / 4 * 4 + kFirstOfLane<T>[i % 4];
    begins[i] = static_cast<std::uint32_t>(kPairOfLane<T>[i % 4] * 2 * kLanes +
                                           lane * (sd::kEvenOdd<T> ? 2 : 1));
  }
  return begins;
}

// Lists the groups, in whole blocks, whose maximum reaches the floor, by their first tokens.
template <class T>
HWY_INLINE std::size_t list_hits(const ScratchSizes& sizes, std::size_t whole_blocks, Vector floor,
                                 const RowScratch& scratch) {
  const hn::RebindToUnsigned<Tag> du;
  constexpr std::array<std::uint32_t, kLanes> kBegins = group_begins<T>();
  const std::size_t coarse = list_coarse(sizes, floor, scratch);
  std::size_t groups = 0;
  for (std::size_t i = 0; i < coarse; ++i) {
    const std::size_t begin = scratch.coarse_list[i] * kCoarseBlocks;
    const std::size_t end = std::min(begin + kCoarseBlocks, whole_blocks);
    auto tokens = hn::Add(hn::LoadU(du, kBegins.data()),
                          hn::Set(du, static_cast<std::uint32_t>(begin * kBlockTokens)));
    for (std::size_t b = begin; b < end; ++b) {
      const auto reach = hn::Ge(hn::LoadU(Tag(), scratch.fine + b * kLanes), floor);
      groups += store_lanes<8>(tokens.raw, reach.raw, scratch.listed + groups);
      tokens = hn::Add(tokens, hn::Set(du, kBlockTokens));
    }
  }
  return groups;
}

// The values of two runs.
using GroupTag = hn::FixedTag<float, 8>;
using RunTag = hn::Half<GroupTag>;
template <class Row>
HWY_INLINE hn::Vec<GroupTag> group_values(const Row& row, std::size_t first, std::size_t second) {
  return hn::Combine(GroupTag(), row.values(RunTag(), second), row.values(RunTag(), first));
}
// Combined before they are widened.
HWY_INLINE hn::Vec<GroupTag> group_values(const RawRow<Bf16>& row, std::size_t first,
                                          std::size_t second) {
  const sd::Bits16<RunTag> run;
  const auto bits = hn::Combine(sd::Bits16<GroupTag>(), hn::LoadU(run, sd::bits_of(row.x + second)),
                                hn::LoadU(run, sd::bits_of(row.x + first)));
  return sd::widen_bf16(GroupTag(), bits);
}

// Collects the tokens above the floor in the listed groups.
template <class Row>
HWY_INLINE std::size_t take_listed(const Row& row, std::size_t groups, Vector floor,
                                   const RowScratch& scratch) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> du;
  constexpr auto kApart = static_cast<std::uint32_t>(kRunStride<typename Row::Scanned>);
  const auto values_of = [&](std::size_t token)
                             HWY_ATTR { return group_values(row, token, token + kApart); };
  // Two groups at a time.
  alignas(64) constexpr std::uint32_t kOffsets[16] = {
      0, 1, 2, 3, kApart, kApart + 1, kApart + 2, kApart + 3,
      0, 1, 2, 3, kApart, kApart + 1, kApart + 2, kApart + 3};
  const auto offsets = hn::Load(du, kOffsets);
  std::uint32_t* const list = scratch.listed;
  list[groups] = groups == 0 ? 0 : list[groups - 1];
  std::size_t above = 0;
  for (std::size_t i = 0; i < groups; i += 2) {
    const auto v = hn::Combine(d, values_of(list[i + 1]), values_of(list[i]));
    const auto first = hn::Add(offsets, hn::Set(du, list[i]));
    const __m512i tokens =
        _mm512_mask_add_epi32(first.raw, 0xff00, offsets.raw, hn::Set(du, list[i + 1]).raw);
    auto take = hn::Gt(v, floor);
    if (i + 1 == groups) take = hn::And(take, hn::FirstN(d, 8));
    store_lanes<4>(hn::BitCast(du, v).raw, take.raw, scratch.found_bits + above);
    above += store_lanes<4>(tokens, take.raw, scratch.found_tokens + above);
  }
  return above;
}

#else

constexpr std::size_t kWordTokens = std::min<std::size_t>(64, kBlockTokens);
constexpr std::size_t kBlockWords = kBlockTokens / kWordTokens;

// Lists the whole blocks whose maximum reaches the floor, by their first tokens.
template <class T>
HWY_INLINE std::size_t list_hits(const ScratchSizes& sizes, std::size_t whole_blocks, Vector floor,
                                 const RowScratch& scratch) {
  std::uint32_t* const list = scratch.listed;
  const std::size_t coarse = list_coarse(sizes, floor, scratch);
  std::size_t blocks = 0;
  for (std::size_t i = 0; i < coarse; ++i) {
    const std::size_t begin = scratch.coarse_list[i] * kCoarseBlocks;
    const std::size_t end = std::min(begin + kCoarseBlocks, whole_blocks);
    for (std::size_t b = begin; b < end; ++b) {
      const auto reach = hn::Ge(hn::LoadU(Tag(), scratch.fine + b * kLanes), floor);
      list[blocks] = static_cast<std::uint32_t>(b * kBlockTokens);
      blocks += static_cast<std::size_t>(!hn::AllFalse(Tag(), reach));
    }
  }
  return blocks;
}

// Bit i of the words, kWordTokens to each, says whether token i of a block is above the floor.
template <class Row>
HWY_INLINE void mark_block(const Row& row, std::size_t first, Vector floor, std::uint64_t* words) {
  const Tag d;
  const auto mark = [&](std::size_t i, void* bits) HWY_ATTR {
    hn::StoreMaskBits(d, hn::Gt(row.values(d, first + i), floor), static_cast<std::uint8_t*>(bits));
  };
  if constexpr (kLanes % 8 == 0 && std::endian::native == std::endian::little) {
    // Straight to memory, since the words are not needed soon: assembling them in registers costs
    // twice as much.
    auto* const bytes = reinterpret_cast<std::uint8_t*>(words);
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kBlockTokens; i += kLanes) mark(i, bytes + i / 8);
  } else {
    std::fill_n(words, kBlockWords, 0);
    for (std::size_t i = 0; i < kBlockTokens; i += kLanes) {
      std::uint64_t bits = 0;
      mark(i, &bits);
      words[i / kWordTokens] |= bits << i % kWordTokens;
    }
  }
}

// Appends the tokens of a word and returns their number. Always writes two: most words have no
// more, and the branch is predicted.
template <class Row>
HWY_INLINE std::size_t take_word(const Row& row, std::uint64_t word, std::size_t first,
                                 std::uint32_t* bits, std::uint32_t* tokens) {
  const auto count = static_cast<std::size_t>(std::popcount(word));
  const auto take_lowest = [&](std::size_t i) {
    // Never 0, which countr_zero would have to test.
    const std::uint64_t some = word | static_cast<std::uint64_t>(word == 0);
    const std::size_t token = first + static_cast<std::size_t>(std::countr_zero(some));
    word &= word - 1;
    bits[i] = std::bit_cast<std::uint32_t>(row.value(token));
    tokens[i] = static_cast<std::uint32_t>(token);
  };
  take_lowest(0);
  take_lowest(1);
  if (HWY_UNLIKELY(count > 2)) {
    for (std::size_t i = 2; i < count; ++i) take_lowest(i);
  }
  return count;
}

// Collects the tokens above the floor in the listed blocks.
template <class Row>
HWY_INLINE std::size_t take_listed(const Row& row, std::size_t blocks, Vector floor,
                                   const RowScratch& scratch) {
  // Marking waits for the cache and collecting does not, so they are interleaved, some blocks
  // apart: a word that was just stored in parts would stall the load.
  constexpr std::size_t kApart = 16;
  std::uint64_t words[kApart * kBlockWords];
  const std::uint32_t* const list = scratch.listed;
  std::size_t above = 0;
  const auto mark = [&](std::size_t i) HWY_ATTR {
    mark_block(row, list[i], floor, words + i % kApart * kBlockWords);
  };
  const auto take = [&](std::size_t i) HWY_ATTR {
    HWY_UNROLL(2)
    for (std::size_t w = 0; w < kBlockWords; ++w) {
      above += take_word(row, words[i % kApart * kBlockWords + w], list[i] + w * kWordTokens,
                         scratch.found_bits + above, scratch.found_tokens + above);
    }
  };
  const std::size_t first = std::min(kApart, blocks);
  for (std::size_t i = 0; i < first; ++i) mark(i);
  for (std::size_t i = first; i < blocks; ++i) {
    take(i - kApart);
    mark(i);
  }
  for (std::size_t i = blocks - first; i < blocks; ++i) take(i);
  return above;
}

#endif

// ---- the rest ----------------------------------------------------------------------------------

// Appends the tokens above the floor from `token` on, the start of the last block.
template <class Row>
HWY_INLINE std::size_t take_rest(const Row& row, std::size_t token, std::size_t tokens,
                                 Vector floor, std::size_t above, const RowScratch& scratch) {
  for (; token < tokens; token += kLanes) {
    const auto v = row.vector(token);
    const hn::RebindToUnsigned<Tag> du;
    alignas(64) std::uint32_t bits[kLanes];
    hn::Store(hn::BitCast(du, v), du, bits);
    auto taken = bits_of_mask(hn::Gt(v, floor));
    for (; taken != 0; taken &= taken - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(taken));
      scratch.found_bits[above] = bits[lane];
      scratch.found_tokens[above++] = static_cast<std::uint32_t>(token + lane);
    }
  }
  return above;
}

// The first `wanted` tokens at the floor.
template <class Row>
HWY_INLINE std::size_t take_equals(const Row& row, std::size_t tokens, std::size_t listed,
                                   Vector floor, std::size_t wanted, const RowScratch& scratch) {
  std::size_t count = 0;
  const auto take_block = [&](std::size_t first) HWY_ATTR {
    for (std::size_t i = first; i < std::min(first + kBlockTokens, tokens); i += kLanes) {
      auto bits = bits_of_mask(hn::Eq(row.vector(i), floor));
      for (; bits != 0; bits &= bits - 1) {
        const std::size_t token = i + static_cast<std::size_t>(std::countr_zero(bits));
        // The padding is -inf, which may be the floor.
        if (count == wanted || token >= tokens) return;
        scratch.equals[count++] = static_cast<std::uint32_t>(token);
      }
    }
  };
  // The list is in block order.
  std::size_t done = 0;
  for (std::size_t i = 0; i < listed && count < wanted; ++i) {
    const std::size_t first = scratch.listed[i] / kBlockTokens * kBlockTokens;
    if (first < done) continue;
    take_block(first);
    done = first + kBlockTokens;
  }
  if (count < wanted) take_block(tokens / kBlockTokens * kBlockTokens);
  return count;
}

}  // namespace touchstone::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
