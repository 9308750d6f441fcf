// The tokens of a row above a floor. No #pragma once: read once per target, after cpu/simd.h.
//
// Sweeps without a branch that the data decide often: blocks whose maximum reaches the floor are
// listed, what is above it in them is marked in words, a bit per token, and taken from there.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ops/softmax_topk/topk_cpu_values.h"

#if defined(TOUCHSTONE_TOPK_CPU_COLLECT_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_TOPK_CPU_COLLECT_H_
#undef TOUCHSTONE_TOPK_CPU_COLLECT_H_
#else
#define TOUCHSTONE_TOPK_CPU_COLLECT_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::topk::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

struct Found {
  std::size_t above = 0;   // in candidates
  std::size_t equals = 0;  // in equals
};

constexpr std::size_t kLanes = hn::MaxLanes(Tag());
constexpr std::size_t kBlockTokens = kBlockVectors * kLanes;

constexpr std::size_t kWordTokens = std::min<std::size_t>(64, kBlockTokens);
constexpr std::size_t kBlockWords = kBlockTokens / kWordTokens;

// A row as its logits are.
template <class T>
struct PlainRow {
  using Element = T;
  const T* x;
  std::size_t tokens;

  PlainRow(const Topk& p, std::int64_t row)
      : x(static_cast<const T*>(p.logits) + row * p.logits_stride),
        tokens(static_cast<std::size_t>(p.vocabulary)) {}

  // A whole block; a row that has to make it does so in `room`.
  HWY_INLINE const T* block(std::size_t first, T* /*room*/) const { return x + first; }
  // From `token` on, -inf past the end of the row.
  HWY_INLINE Vector vector(std::size_t token) const {
    return load_or_lowest(Tag(), x + token, tokens - token);
  }
  HWY_INLINE float value(std::size_t token) const { return convert<float>(x[token]); }
};

// A row of logits + bias where allowed.
template <class T>
struct CombinedRow {
  using Element = float;
  const Topk& p;
  std::int64_t row;

  HWY_INLINE const float* block(std::size_t first, float* room) const {
    load_values<T>(p, row, first, kBlockTokens, room);
    return room;
  }
  HWY_INLINE Vector vector(std::size_t token) const {
    alignas(64) float room[kLanes] = {};
    const auto tokens = static_cast<std::size_t>(p.vocabulary);
    load_values<T>(p, row, token, std::min(kLanes, tokens - token), room);
    return hn::Load(Tag(), room);
  }
  // Of a token that is allowed.
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

// Lists the blocks whose maximum reaches the floor, by way of their coarse groups.
HWY_INLINE std::size_t list_blocks(const ScratchSizes& sizes, Vector floor,
                                   const RowScratch& scratch) {
  const auto reaches = [=](const float* maxima) HWY_ATTR {
    return static_cast<std::size_t>(!hn::AllFalse(Tag(), hn::Ge(hn::LoadU(Tag(), maxima), floor)));
  };
  std::uint32_t* const groups = scratch.groups;
  std::uint32_t* const list = scratch.blocks;
  std::size_t count = 0;
  for (std::size_t c = 0; c < sizes.coarse; ++c) {
    groups[count] = static_cast<std::uint32_t>(c);
    count += reaches(scratch.coarse + c * kLanes);
  }
  std::size_t blocks = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = groups[i] * kCoarseBlocks;
    const std::size_t end = std::min(first + kCoarseBlocks, sizes.blocks);
    for (std::size_t b = first; b < end; ++b) {
      list[blocks] = static_cast<std::uint32_t>(b);
      blocks += reaches(scratch.fine + b * kLanes);
    }
  }
  return blocks;
}

// Bit i of the words, kWordTokens to each, says whether element i of a block is above the floor.
template <class T>
HWY_INLINE void mark_block(const T* x, Vector floor, std::uint64_t* words) {
  const Tag d;
  const auto mark = [&](std::size_t i, void* bits) HWY_ATTR {
    hn::StoreMaskBits(d, hn::Gt(sd::load(d, x + i), floor), static_cast<std::uint8_t*>(bits));
  };
  if constexpr (kLanes % 8 == 0 && std::endian::native == std::endian::little) {
    // Straight to memory, since nobody asks for the words soon: put together in registers, they
    // cost twice as much.
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

// Appends the tokens of a word to the candidates, with the bits of the value for a key as yet;
// returns how many. Writes two whether there are or not: most words have no more, and the branch is
// then foreseen.
template <class Row>
HWY_INLINE std::size_t take_word(const Row& row, std::uint64_t word, std::size_t first,
                                 Candidate* candidates) {
  const auto count = static_cast<std::size_t>(std::popcount(word));
  const auto take_lowest = [&] {
    // Never 0 for countr_zero, which would ask.
    const std::uint64_t some = word | static_cast<std::uint64_t>(word == 0);
    const std::size_t token = first + static_cast<std::size_t>(std::countr_zero(some));
    word &= word - 1;
    const auto bits = std::bit_cast<std::uint32_t>(row.value(token));
    return std::uint64_t{bits} << 32 | token;
  };
  candidates[0] = take_lowest();
  candidates[1] = take_lowest();
  if (HWY_UNLIKELY(count > 2)) {
    for (std::size_t i = 2; i < count; ++i) candidates[i] = take_lowest();
  }
  return count;
}

// What is above the floor in the first `blocks` of the list, whole ones.
template <class Row>
HWY_INLINE std::size_t take_blocks(const Row& row, std::size_t blocks, Vector floor,
                                   const RowScratch& scratch) {
  using Element = typename Row::Element;
  // Marking waits for the cache and taking for nothing, so they go together. Some blocks apart,
  // since a word that is still on its way to memory in parts cannot be read.
  constexpr std::size_t kApart = 16;
  std::uint64_t words[kApart * kBlockWords];
  alignas(64) Element room[kBlockTokens];
  Candidate* const candidates = scratch.candidates;
  const std::uint32_t* const list = scratch.blocks;
  std::size_t above = 0;
  const auto mark = [&](std::size_t i) HWY_ATTR {
    mark_block(row.block(list[i] * kBlockTokens, room), floor, words + i % kApart * kBlockWords);
  };
  const auto take = [&](std::size_t i) HWY_ATTR {
    HWY_UNROLL(2)
    for (std::size_t w = 0; w < kBlockWords; ++w) {
      above += take_word(row, words[i % kApart * kBlockWords + w],
                         list[i] * kBlockTokens + w * kWordTokens, candidates + above);
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

// Every token above the floor, by token. The last block of the list may end past the row.
template <class Row>
HWY_INLINE std::size_t take_above(const Row& row, std::size_t tokens, std::size_t blocks,
                                  Vector floor, const RowScratch& scratch) {
  const std::size_t whole =
      blocks > 0 && (scratch.blocks[blocks - 1] + std::size_t{1}) * kBlockTokens > tokens
          ? blocks - 1
          : blocks;
  std::size_t above = take_blocks(row, whole, floor, scratch);
  if (whole == blocks) return above;
  for (std::size_t i = scratch.blocks[whole] * kBlockTokens; i < tokens; i += kLanes) {
    for (auto bits = bits_of_mask(hn::Gt(row.vector(i), floor)); bits != 0; bits &= bits - 1) {
      above += take_word(row, bits & (~bits + 1), i, scratch.candidates + above);
    }
  }
  return above;
}

// The first `wanted` tokens at the floor.
template <class Row>
HWY_INLINE std::size_t take_equals(const Row& row, std::size_t tokens, std::size_t blocks,
                                   Vector floor, std::size_t wanted, const RowScratch& scratch) {
  std::size_t count = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t first = scratch.blocks[b] * kBlockTokens;
    for (std::size_t i = first; i < std::min(first + kBlockTokens, tokens); i += kLanes) {
      for (auto bits = bits_of_mask(hn::Eq(row.vector(i), floor)); bits != 0; bits &= bits - 1) {
        const std::size_t token = i + static_cast<std::size_t>(std::countr_zero(bits));
        // Past the end there is -inf, which may be the floor.
        if (count == wanted || token >= tokens) return count;
        scratch.equals[count++] = static_cast<std::uint32_t>(token);
      }
    }
  }
  return count;
}

template <class Row>
HWY_INLINE Found collect_from(const Row& row, const Topk& p, float floor, const ScratchSizes& sizes,
                              const RowScratch& scratch) {
  const auto low = hn::Set(Tag(), floor);
  const auto k = static_cast<std::size_t>(p.k);
  const auto tokens = static_cast<std::size_t>(p.vocabulary);
  const std::size_t blocks = list_blocks(sizes, low, scratch);
  Found found;
  found.above = take_above(row, tokens, blocks, low, scratch);
  if (found.above < k) {
    found.equals = take_equals(row, tokens, blocks, low, k - found.above, scratch);
  }
  return found;
}

// Every token above the floor, and, if they are fewer than k, the first at it by token.
template <class T>
HWY_INLINE Found collect(const Topk& p, std::int64_t row, float floor, const ScratchSizes& sizes,
                         const RowScratch& scratch) {
  if (p.bias == nullptr && p.allowed == nullptr) {
    return collect_from(PlainRow<T>(p, row), p, floor, sizes, scratch);
  }
  return collect_from(CombinedRow<T>{p, row}, p, floor, sizes, scratch);
}

}  // namespace touchstone::topk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
