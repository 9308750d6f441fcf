// What one lane does for short rows: its part of a row's values, and their keys.
#pragma once

#include "ops/softmax_topk/topk_short_order.cuh"
#include "ops/softmax_topk/topk_short_place.cuh"

namespace touchstone::topk {

// A lane's part of a row: chunk c of lane l is the eight tokens from (c * kLanes + l) * 8 on. Held
// in registers, or loaded again whenever it is wanted.
template <class T, int kLanes, int kChunks>
struct HeldPart {
  using Logit = T;
  using Place = RowPlace<T>;
  static constexpr int kWords = kChunk * static_cast<int>(sizeof(T)) / 4;

  std::uint32_t words[kChunks][kWords];

  __device__ void load(const Place& place, int lane) {
    load_words(
        place, lane * kChunk, [](int c) { return c * kLanes * kChunk; }, words);
  }
  __device__ void chunk(int c, std::uint32_t (&out)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = words[c][i];
  }
};
template <class T, int kLanes, int kChunks>
struct TilePart {
  using Logit = T;
  using Place = TilePlace<T, kLanes>;
  static constexpr int kWords = kChunk * static_cast<int>(sizeof(T)) / 4;

  std::uint32_t own;  // of its first chunk

  __device__ void load(const Place& place, int lane) { own = place.address_of(lane * kChunk); }
  __device__ void chunk(int c, std::uint32_t (&out)[kWords]) const {
    constexpr std::uint32_t kInLine = 127;  // units are spread within so many bytes
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

// Of 16-bit logits as they are.
template <class T, int kLanes, int kChunks, class Part = HeldPart<T, kLanes, kChunks>>
struct NarrowRow {
  using K = NarrowKey;
  using Logit = T;
  using Place = typename Part::Place;
  // While a row is worked on, where there are registers left for the next one.
  static constexpr bool kLoadsAhead = kChunks == 1;
  static constexpr bool kPrefixes = false;

  Part part;

  __device__ void load(const Place& place, int lane) { part.load(place, lane); }
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
  // Of four chunks from this one on.
  __device__ void group_keys(int from, int lane, K (&keys)[kList]) const {
    static_assert(kChunk == 2 * kGroup);
    const std::uint32_t first = pair_of_ids(static_cast<std::uint32_t>(from * kLanes + lane) * 2);
#pragma unroll
    for (int i = 0; i < kList / 2; ++i) {
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
                                    K (&keys)[kList], int at) {
    const std::uint32_t first = pair_of_ids(token);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const std::uint32_t halves = ordered_halves<T>(from[i]);
      const std::uint32_t ids = first - static_cast<std::uint32_t>(2 * i) * 0x10001U;
      keys[at + 2 * i] = key_of_low_half(halves, ids);
      keys[at + 2 * i + 1] = key_of_high_half(halves, ids);
    }
  }
  __device__ void chunk_keys(int c, int lane, K (&keys)[kList]) const {
    std::uint32_t words[4];
    part.chunk(c, words);
    token_keys(words, (c * kLanes + lane) * kChunk, keys, 0);
  }
  // Two groups to a list.
  template <int kGroups>
  __device__ static void group_token_keys(const Place& place, const K (&groups)[kGroups],
                                          K (&keys)[kGroups / 2][kList]) {
    int tokens[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) tokens[g] = static_cast<int>(id_of(groups[g])) * kGroup;
    std::uint32_t words[kGroups][2];
    load_words(
        place, 0, [&](int g) { return tokens[g]; }, words);
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

// The largest of each group of a chunk.
__device__ inline void largest_of_groups(const float (&v)[kChunk], float* largest) {
  largest[0] = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
  largest[1] = fmaxf(fmaxf(v[4], v[5]), fmaxf(v[6], v[7]));
}

// The same for f32 logits, and for any with a bias or tokens that are not allowed.
template <class T, int kLanes, int kChunks>
struct WideRow {
  using K = Key;
  using Logit = T;
  using Place = RowPlace<T>;
  static constexpr bool kLoadsAhead = false;
  static constexpr bool kPrefixes = false;

  float values[kChunks][kChunk];

  // Tokens as they count, bias and permission included; -inf behind the last one.
  template <int kCount, int kTokens, class Offset>
  __device__ static void load_values(const RowPlace<T>& place, int first, Offset offset,
                                     float (&out)[kCount][kTokens]) {
    const Topk& p = place.args.p;
    std::uint32_t words[kCount][kTokens * sizeof(T) / 4];
    load_words(place, first, offset, words);
#pragma unroll
    for (int c = 0; c < kCount; ++c) widen_words<T>(words[c], out[c]);
    if (p.bias == nullptr && p.allowed == nullptr) return;
    const RowValues<T> row = values_of<T>(p, place.row);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const int at = first + offset(c) + i;
        if (at < place.args.vocabulary) out[c][i] = row.adjusted(out[c][i], at);
      }
    }
  }
  __device__ void load(const RowPlace<T>& place, int lane) {
    load_values(
        place, lane * kChunk, [](int c) { return c * kLanes * kChunk; }, values);
  }
  template <class Body>
  __device__ void each_value(Body body) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) body(values[c][i]);
    }
  }
  __device__ void group_maxima(float (&maxima)[kList]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) largest_of_groups(values[c], maxima + 2 * c);
  }
  __device__ void group_keys(int /*from*/, int lane, K (&keys)[kList]) const {
    static_assert(kChunks == kList / 2);
    float maxima[kList];
    group_maxima(maxima);
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      keys[i] = key_of(maxima[i], (i / 2 * kLanes + lane) * 2 + i % 2);
    }
  }
  __device__ void chunk_keys(int c, int lane, K (&keys)[kList]) const {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      keys[i] = key_of(values[c][i], (c * kLanes + lane) * kChunk + i);
    }
  }
  __device__ static void group_token_keys(const RowPlace<T>& place, const K (&groups)[2],
                                          K (&keys)[1][kList]) {
    const int tokens[2] = {static_cast<int>(id_of(groups[0])) * kGroup,
                           static_cast<int>(id_of(groups[1])) * kGroup};
    float found[2][kGroup];
    load_values(
        place, 0, [&](int g) { return tokens[g]; }, found);
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      keys[0][i] = key_of(found[i / kGroup][i % kGroup], tokens[i / kGroup] + i % kGroup);
    }
  }
  __device__ static float value_of(K key) { return topk::value_of(key); }
};

// f32 logits as they are, in a tile.
template <class T, int kLanes, int kChunks>
struct TileRow {
  using Logit = T;
  using Place = TilePlace<T, kLanes>;
  static constexpr bool kLoadsAhead = false;

  TilePart<T, kLanes, kChunks> part;

  __device__ void load(const Place& place, int lane) { part.load(place, lane); }
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
  __device__ void group_maxima(float (&maxima)[kList]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float values[kChunk];
      values_of_chunk(c, values);
      largest_of_groups(values, maxima + 2 * c);
    }
  }
  template <class Offset>
  __device__ static void load_values(const Place& place, int first, Offset offset,
                                     float (&out)[2][kGroup]) {
    std::uint32_t words[2][kGroup];
    load_words(place, first, offset, words);
#pragma unroll
    for (int g = 0; g < 2; ++g) widen_words<T>(words[g], out[g]);
  }
};

// A WideRow or a TileRow with keys of 32 bits, which one instruction compares: the upper bits of a
// value above those that fall with the token.
template <class Base, int kLanes, int kChunks>
struct PrefixRow : Base {
  using K = NarrowKey;
  using Place = typename Base::Place;
  static constexpr bool kPrefixes = true;
  static constexpr std::uint32_t kTokens = kLanes * kChunks * kChunk;

  __device__ static K key_of_prefix(float value, std::uint32_t id, std::uint32_t ids) {
    return (ordered(value) & ~(ids - 1)) | (~id & (ids - 1));
  }
  __device__ static int token_of(K key) { return static_cast<int>(~key & (kTokens - 1)); }

  __device__ void group_keys(int /*from*/, int lane, K (&keys)[kList]) const {
    float maxima[kList];
    this->group_maxima(maxima);
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      const std::uint32_t group = (i / 2 * kLanes + lane) * 2 + i % 2;
      keys[i] = key_of_prefix(maxima[i], group, kTokens / kGroup);
    }
  }
  __device__ int groups_above(float value) const {
    float maxima[kList];
    this->group_maxima(maxima);
    int above = 0;
#pragma unroll
    for (int i = 0; i < kList; ++i) above += maxima[i] > value ? 1 : 0;
    return above;
  }
  __device__ static void group_token_keys(const Place& place, const K (&groups)[2],
                                          float (&found)[2][kGroup], K (&keys)[kList]) {
    int tokens[2];
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      tokens[g] = static_cast<int>(~groups[g] & (kTokens / kGroup - 1)) * kGroup;
    }
    Base::load_values(
        place, 0, [&](int g) { return tokens[g]; }, found);
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      keys[i] =
          key_of_prefix(found[i / kGroup][i % kGroup], tokens[i / kGroup] + i % kGroup, kTokens);
    }
  }
};

}  // namespace touchstone::topk
