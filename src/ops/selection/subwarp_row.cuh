// A lane's part of a short row: its values in registers or shared memory, and their keys.
#pragma once

#include "ops/selection/subwarp_sort.cuh"
#include "ops/selection/subwarp_source.cuh"

namespace touchstone::selection {

// Chunk c of lane l is the eight tokens from (c * kLanes + l) * 8 on. Kept in registers
// (RegisterPart) or re-read from shared memory (SharedPart).
template <class T, int kLanes, int kChunks>
struct RegisterPart {
  using Logit = T;
  using Source = GlobalRow<T>;
  static constexpr int kWords = kChunk * static_cast<int>(sizeof(T)) / 4;

  std::uint32_t words[kChunks][kWords];

  __device__ void load(const Source& source, int lane) {
    load_words(
        source, lane * kChunk, [](int c) { return c * kLanes * kChunk; }, words);
  }
  __device__ void chunk(int c, std::uint32_t (&out)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = words[c][i];
  }
};
template <class T, int kLanes, int kChunks>
struct SharedPart {
  using Logit = T;
  using Source = SharedRow<T, kLanes>;
  static constexpr int kWords = kChunk * static_cast<int>(sizeof(T)) / 4;

  std::uint32_t own;  // address of its first chunk

  __device__ void load(const Source& source, int lane) { own = source.address_of(lane * kChunk); }
  __device__ void chunk(int c, std::uint32_t (&out)[kWords]) const {
    constexpr std::uint32_t kInLine = 127;  // the swizzle stays within a line
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const auto offset = static_cast<std::uint32_t>(c * kLanes * kWords * 4 + i * 4);
      std::uint32_t words[4];
      load_shared((own ^ (offset & kInLine)) + (offset & ~kInLine), words);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i + j] = words[j];
    }
  }
};

// Raw 16-bit logits, with keys of 16 ordered bits above 16 bits of the token.
template <class T, int kLanes, int kChunks, class Part = RegisterPart<T, kLanes, kChunks>>
struct NarrowRow {
  using K = NarrowKey;
  using Logit = T;
  using Source = typename Part::Source;
  static constexpr bool kPrefixes = false;

  Part part;

  __device__ void load(const Source& source, int lane) { part.load(source, lane); }
  template <class Body>
  __device__ void each_value(Body body) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      std::uint32_t words[Part::kWords];
      part.chunk(c, words);
      float values[kChunk];
      widen_words<T>(words, values);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) body(values[i]);
    }
  }
  // Group keys of four chunks from chunk `from` on.
  __device__ void group_keys(int from, int lane, K (&keys)[kListSize]) const {
    static_assert(kChunk == 2 * kGroup);
    const std::uint32_t first = pair_of_ids(static_cast<std::uint32_t>(from * kLanes + lane) * 2);
#pragma unroll
    for (int i = 0; i < kListSize / 2; ++i) {
      std::uint32_t words[4];
      part.chunk(from + i, words);
      const std::uint32_t a = larger_halves<T>(words[0], words[1]);
      const std::uint32_t b = larger_halves<T>(words[2], words[3]);
      const std::uint32_t both =
          ordered_halves<T>(larger_halves<T>(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632)));
      const std::uint32_t ids = first - static_cast<std::uint32_t>(i * kLanes * 2) * 0x10001U;
      keys[2 * i] = key_of_low_half(both, ids);
      keys[2 * i + 1] = key_of_high_half(both, ids);
    }
  }
  template <int kWords>
  __device__ static void token_keys(const std::uint32_t (&from)[kWords], std::uint32_t token,
                                    K (&keys)[kListSize], int at) {
    const std::uint32_t first = pair_of_ids(token);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const std::uint32_t halves = ordered_halves<T>(from[i]);
      const std::uint32_t ids = first - static_cast<std::uint32_t>(2 * i) * 0x10001U;
      keys[at + 2 * i] = key_of_low_half(halves, ids);
      keys[at + 2 * i + 1] = key_of_high_half(halves, ids);
    }
  }
  __device__ void chunk_keys(int c, int lane, K (&keys)[kListSize]) const {
    std::uint32_t words[4];
    part.chunk(c, words);
    token_keys(words, (c * kLanes + lane) * kChunk, keys, 0);
  }
  // Two groups per list.
  template <int kGroups>
  __device__ static void group_token_keys(const Source& source, const K (&groups)[kGroups],
                                          K (&keys)[kGroups / 2][kListSize]) {
    int tokens[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) tokens[g] = static_cast<int>(id_of(groups[g])) * kGroup;
    std::uint32_t words[kGroups][2];
    load_words(
        source, 0, [&](int g) { return tokens[g]; }, words);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      token_keys(words[g], static_cast<std::uint32_t>(tokens[g]), keys[g / 2], g % 2 * kGroup);
    }
  }
  __device__ static float value_of(K key) {
    const std::uint32_t flip = (key & 0x80000000U) != 0 ? 0x80000000U : 0xffffffffU;
    return cuda::widen(T::from_bits(static_cast<std::uint16_t>((key ^ flip) >> 16)));
  }
};

// The maximum of each group of a chunk.
__device__ inline void largest_of_groups(const float (&v)[kChunk], float* largest) {
  largest[0] = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
  largest[1] = fmaxf(fmaxf(v[4], v[5]), fmaxf(v[6], v[7]));
}

// f32 logits, or any with a bias or a mask, with 64-bit keys.
template <class T, int kLanes, int kChunks>
struct WideRow {
  using K = Key;
  using Logit = T;
  using Source = GlobalRow<T>;
  static constexpr bool kPrefixes = false;

  float values[kChunks][kChunk];

  // Values with bias and mask; -inf past the end.
  template <int kCount, int kTokens, class Offset>
  __device__ static void load_values(const GlobalRow<T>& source, int first, Offset offset,
                                     float (&out)[kCount][kTokens]) {
    const LogitRows& input = source.params.input;
    std::uint32_t words[kCount][kTokens * sizeof(T) / 4];
    load_words(source, first, offset, words);
#pragma unroll
    for (int c = 0; c < kCount; ++c) widen_words<T>(words[c], out[c]);
    if (input.has_raw_logits()) return;
    const RowValues<T> row = values_of<T>(input, source.row);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const int at = first + offset(c) + i;
        if (at < source.params.vocabulary) out[c][i] = row.adjusted(out[c][i], at);
      }
    }
  }
  __device__ void load(const GlobalRow<T>& source, int lane) {
    load_values(
        source, lane * kChunk, [](int c) { return c * kLanes * kChunk; }, values);
  }
  template <class Body>
  __device__ void each_value(Body body) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) body(values[c][i]);
    }
  }
  __device__ void group_maxima(float (&maxima)[kListSize]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) largest_of_groups(values[c], maxima + 2 * c);
  }
  __device__ void group_keys(int /*from*/, int lane, K (&keys)[kListSize]) const {
    static_assert(kChunks == kListSize / 2);
    float maxima[kListSize];
    group_maxima(maxima);
#pragma unroll
    for (int i = 0; i < kListSize; ++i) {
      keys[i] = key_of(maxima[i], (i / 2 * kLanes + lane) * 2 + i % 2);
    }
  }
  __device__ void chunk_keys(int c, int lane, K (&keys)[kListSize]) const {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      keys[i] = key_of(values[c][i], (c * kLanes + lane) * kChunk + i);
    }
  }
  __device__ static void group_token_keys(const GlobalRow<T>& source, const K (&groups)[2],
                                          K (&keys)[1][kListSize]) {
    const int tokens[2] = {static_cast<int>(id_of(groups[0])) * kGroup,
                           static_cast<int>(id_of(groups[1])) * kGroup};
    float found[2][kGroup];
    load_values(
        source, 0, [&](int g) { return tokens[g]; }, found);
#pragma unroll
    for (int i = 0; i < kListSize; ++i) {
      keys[0][i] = key_of(found[i / kGroup][i % kGroup], tokens[i / kGroup] + i % kGroup);
    }
  }
  __device__ static float value_of(K key) { return selection::value_of(key); }
};

// Raw f32 logits in a tile.
template <class T, int kLanes, int kChunks>
struct SharedWideRow {
  using Logit = T;
  using Source = SharedRow<T, kLanes>;

  SharedPart<T, kLanes, kChunks> part;

  __device__ void load(const Source& source, int lane) { part.load(source, lane); }
  __device__ void values_of_chunk(int c, float (&values)[kChunk]) const {
    std::uint32_t words[kChunk];
    part.chunk(c, words);
    widen_words<T>(words, values);
  }
  template <class Body>
  __device__ void each_value(Body body) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float values[kChunk];
      values_of_chunk(c, values);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) body(values[i]);
    }
  }
  __device__ void group_maxima(float (&maxima)[kListSize]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float values[kChunk];
      values_of_chunk(c, values);
      largest_of_groups(values, maxima + 2 * c);
    }
  }
  template <class Offset>
  __device__ static void load_values(const Source& source, int first, Offset offset,
                                     float (&out)[2][kGroup]) {
    std::uint32_t words[2][kGroup];
    load_words(source, first, offset, words);
#pragma unroll
    for (int g = 0; g < 2; ++g) widen_words<T>(words[g], out[g]);
  }
};

// A WideRow or a SharedWideRow with 32-bit keys, which one instruction compares: the upper bits of
// the value above the complement of the token.
template <class Base, int kLanes, int kChunks>
struct PrefixRow : Base {
  using K = NarrowKey;
  using Source = typename Base::Source;
  static constexpr bool kPrefixes = true;
  static constexpr std::uint32_t kTokens = kLanes * kChunks * kChunk;

  __device__ static K key_of_prefix(float value, std::uint32_t id, std::uint32_t ids) {
    return (ordered(value) & ~(ids - 1)) | (~id & (ids - 1));
  }
  __device__ static int token_of(K key) { return static_cast<int>(~key & (kTokens - 1)); }

  __device__ void group_keys(int /*from*/, int lane, K (&keys)[kListSize]) const {
    float maxima[kListSize];
    this->group_maxima(maxima);
#pragma unroll
    for (int i = 0; i < kListSize; ++i) {
      const std::uint32_t group = (i / 2 * kLanes + lane) * 2 + i % 2;
      keys[i] = key_of_prefix(maxima[i], group, kTokens / kGroup);
    }
  }
  __device__ int groups_above(float value) const {
    float maxima[kListSize];
    this->group_maxima(maxima);
    int above = 0;
#pragma unroll
    for (int i = 0; i < kListSize; ++i) above += maxima[i] > value ? 1 : 0;
    return above;
  }
  __device__ static void group_token_keys(const Source& source, const K (&groups)[2],
                                          float (&found)[2][kGroup], K (&keys)[kListSize]) {
    int tokens[2];
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      tokens[g] = static_cast<int>(~groups[g] & (kTokens / kGroup - 1)) * kGroup;
    }
    Base::load_values(
        source, 0, [&](int g) { return tokens[g]; }, found);
#pragma unroll
    for (int i = 0; i < kListSize; ++i) {
      keys[i] =
          key_of_prefix(found[i / kGroup][i % kGroup], tokens[i / kGroup] + i % kGroup, kTokens);
    }
  }
};

}  // namespace touchstone::selection
