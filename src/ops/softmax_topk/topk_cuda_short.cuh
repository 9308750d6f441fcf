// What one lane does for short rows: its keys, its part of a row's values, its places.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/softmax_topk/topk_cuda.cuh"

namespace touchstone::topk {

inline constexpr int kList = 8;   // places that are found, whatever k is
inline constexpr int kChunk = 8;  // neighbouring tokens of one lane
inline constexpr int kGroup = 4;  // tokens that are ranked together first

struct ShortArgs {
  Topk p;
  int rows = 0;
  int vocabulary = 0;
  int k = 0;
  int ahead = 0;             // rows, to those that are brought to L2 beside a warp's own
  bool vectors = false;      // rows start at multiples of 16 bytes
  bool full = false;         // and every lane has all its tokens
  bool wide_places = false;  // the places of a lane can be stored several at once
};

template <class T>
struct RowPlace {
  const ShortArgs& args;
  int row;
  const T* logits;

  __device__ RowPlace(const ShortArgs& a, int r)
      : args(a),
        row(r),
        logits(static_cast<const T*>(a.p.logits) + std::int64_t{r} * a.p.logits_stride) {
    // One address: else each load of the row gets a multiplication of its own.
    asm("" : "+l"(logits));
  }
};

// Two kinds of keys: `Key`, and 16 ordered bits of a value above 16 bits that fall with the token,
// where the values have no more. The id is that of a token or of a group.
using NarrowKey = std::uint32_t;
__device__ inline std::uint32_t id_of(NarrowKey key) { return ~key & 0xffffU; }
__device__ inline std::uint32_t id_of(Key key) { return token_of(key); }

__device__ inline NarrowKey larger(NarrowKey a, NarrowKey b) { return max(a, b); }
__device__ inline Key larger(Key a, Key b) { return a > b ? a : b; }

template <class K>
__device__ K one_of(bool the_larger, K a, K b) {
  return (a > b) == the_larger ? a : b;
}
__device__ inline NarrowKey one_of(bool the_larger, NarrowKey a, NarrowKey b) {
  return the_larger ? max(a, b) : min(a, b);
}

__device__ inline void order(NarrowKey& a, NarrowKey& b) {
  const NarrowKey first = max(a, b);
  b = min(a, b);
  a = first;
}
__device__ inline void order(Key& a, Key& b) {
  const bool ordered = a > b;
  const Key first = ordered ? a : b;
  b = ordered ? b : a;
  a = first;
}

// Batcher's network of 19 comparisons.
template <class K>
__device__ void sort_eight(K (&k)[kList]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) order(k[i], k[i + 1]);
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    order(k[i], k[i + 2]);
    order(k[i + 1], k[i + 3]);
    order(k[i + 1], k[i + 2]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) order(k[i], k[i + 4]);
  order(k[2], k[4]);
  order(k[3], k[5]);
#pragma unroll
  for (int i = 1; i < 7; i += 2) order(k[i], k[i + 1]);
}

template <class K>
__device__ void sort_bitonic_four(K (&k)[4]) {
  order(k[0], k[2]);
  order(k[1], k[3]);
  order(k[0], k[1]);
  order(k[2], k[3]);
}

// The best eight of two sorted lists, sorted.
template <class K>
__device__ void keep_best(K (&list)[kList], const K (&more)[kList]) {
#pragma unroll
  for (int i = 0; i < kList; ++i) list[i] = larger(list[i], more[kList - 1 - i]);
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      if ((i & half) == 0) order(list[i], list[i + half]);
    }
  }
}

// -inf, which stands behind the last token of a row.
template <class T>
__device__ constexpr std::uint32_t minus_infinity_bits() {
  if constexpr (sizeof(T) == 4) return 0xff800000U;
  return std::is_same_v<T, Bf16> ? 0xff80U : 0xfc00U;
}

template <class T>
__device__ std::uint32_t token_bits(const T* logits, int token, int vocabulary) {
  if (token >= vocabulary) return minus_infinity_bits<T>();
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(logits[token]);
  } else {
    return logits[token].bits;
  }
}

// Neighbouring tokens in words, as vectors of 8 or 16 bytes.
template <class T, int kWords>
__device__ void load_vectors(const T* from, std::uint32_t (&words)[kWords]) {
  if constexpr (kWords == 2) {
    const uint2 pair = __ldg(reinterpret_cast<const uint2*>(from));
    words[0] = pair.x;
    words[1] = pair.y;
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const T* const at = from + i * 4 / static_cast<int>(sizeof(T));
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(at));
      words[i] = four.x;
      words[i + 1] = four.y;
      words[i + 2] = four.z;
      words[i + 3] = four.w;
    }
  }
}

// The same where not all of them may be there. Which words hold which tokens never depends on how
// they are loaded.
template <class T, int kWords>
__device__ void load_some(const RowPlace<T>& place, int token, std::uint32_t (&words)[kWords]) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  const int vocabulary = place.args.vocabulary;
  if (place.args.vectors && token + kWords * kPerWord <= vocabulary) {
    return load_vectors(place.logits + token, words);
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int at = token + i * kPerWord;
    words[i] = token_bits(place.logits, at, vocabulary);
    if constexpr (kPerWord == 2) words[i] |= token_bits(place.logits, at + 1, vocabulary) << 16;
  }
}

// Several chunks or groups; the c-th starts at token first + offset(c). All loads of a lane stand
// behind one branch with nothing between them.
template <class T, int kCount, int kWords, class Offset>
__device__ void load_words(const RowPlace<T>& place, int first, Offset offset,
                           std::uint32_t (&words)[kCount][kWords]) {
  if (place.args.full) {
    const T* const from = place.logits + first;
#pragma unroll
    for (int c = 0; c < kCount; ++c) load_vectors(from + offset(c), words[c]);
  } else {
#pragma unroll
    for (int c = 0; c < kCount; ++c) load_some(place, first + offset(c), words[c]);
  }
}

template <class T, int kWords>
__device__ void widen_words(const std::uint32_t (&words)[kWords],
                            float (&out)[kWords * 4 / sizeof(T)]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(words[i]);
    } else {
      out[2 * i] = cuda::widen(T::from_bits(static_cast<std::uint16_t>(words[i])));
      out[2 * i + 1] = cuda::widen(T::from_bits(static_cast<std::uint16_t>(words[i] >> 16)));
    }
  }
}

// The larger of two pairs of values, each half by itself.
template <class T>
__device__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  } else {
    asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  }
  return y;
}

// Two values in words of 16 bits that grow with them; as in ordered(), -0 is +0.
template <class T>
__device__ std::uint32_t ordered_halves(std::uint32_t pair) {
  std::uint32_t x;
  if constexpr (std::is_same_v<T, Bf16>) {  // x * 1 + 0
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(pair), "r"(0x3f803f80U), "r"(0U));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(pair), "r"(0x3c003c00U), "r"(0U));
  }
  std::uint32_t negative;  // all bits of a half, from its sign
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(negative) : "r"(x));
  return x ^ (negative | 0x80008000U);
}
// The lower halves of the keys with ids `id` and `id + 1`.
__device__ inline std::uint32_t pair_of_ids(std::uint32_t id) {
  return (0xffffU - id) * 0x10001U - 0x10000U;
}
__device__ inline NarrowKey key_of_low_half(std::uint32_t halves, std::uint32_t ids) {
  return __byte_perm(halves, ids, 0x1054);
}
__device__ inline NarrowKey key_of_high_half(std::uint32_t halves, std::uint32_t ids) {
  return __byte_perm(halves, ids, 0x3276);
}

// A lane's part of a row: chunk c of lane l is the eight tokens from (c * kLanes + l) * 8 on. This
// one for 16-bit logits as they are.
template <class T, int kLanes, int kChunks>
struct NarrowRow {
  using K = NarrowKey;
  using Logit = T;
  // While a row is worked on, where there are registers left for the next one.
  static constexpr bool kLoadsAhead = kChunks == 1;

  std::uint32_t words[kChunks][4];

  __device__ void load(const RowPlace<T>& place, int lane) {
    load_words(
        place, lane * kChunk, [](int c) { return c * kLanes * kChunk; }, words);
  }
  template <class Body>
  __device__ void each_value(Body body) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float values[kChunk];
      widen_words<T>(words[c], values);
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
      const int c = from + i;
      const std::uint32_t a = larger_halves<T>(words[c][0], words[c][1]);
      const std::uint32_t b = larger_halves<T>(words[c][2], words[c][3]);
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
    token_keys(words[c], (c * kLanes + lane) * kChunk, keys, 0);
  }
  // Two groups to a list.
  template <int kGroups>
  __device__ static void group_token_keys(const RowPlace<T>& place, const K (&groups)[kGroups],
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

// The same for f32 logits, and for any with a bias or tokens that are not allowed.
template <class T, int kLanes, int kChunks>
struct WideRow {
  using K = Key;
  using Logit = T;
  static constexpr bool kLoadsAhead = false;

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
  __device__ void group_keys(int /*from*/, int lane, K (&keys)[kList]) const {
    static_assert(kChunks <= kList / 2);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const std::uint32_t group = (c * kLanes + lane) * (kChunk / kGroup);
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const float* const v = values[c] + g * kGroup;
        keys[2 * c + g] = key_of(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])), group + g);
      }
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

// A lane's neighbouring places of a row, several in one store where they can be.
template <int kPlaces>
__device__ void put_places(const ShortArgs& args, int row, int first,
                           const std::int32_t (&token)[kPlaces], const float (&weights)[kPlaces],
                           const float (&logarithms)[kPlaces], float total) {
  constexpr int kTogether = kPlaces >= 4 ? 4 : 2;
  using Floats = std::conditional_t<kTogether == 4, float4, float2>;
  using Ints = std::conditional_t<kTogether == 4, int4, int2>;
  const Topk& p = args.p;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(total));
#pragma unroll
  for (int j = 0; j < kPlaces; j += kTogether) {
    if (first + j >= args.k) return;
    const std::int64_t at = std::int64_t{row} * args.k + (first + j);
    alignas(16) float probability[kTogether];
    alignas(16) float logarithm[kTogether];
    alignas(16) std::int32_t index[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      probability[i] = weights[j + i] * inverse;
      logarithm[i] = logarithms[j + i];
      index[i] = token[j + i];
    }
    if (!args.wide_places) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + j + i >= args.k) return;
        put_index(p, at + i, index[i]);
        p.probabilities[at + i] = probability[i];
        if (p.log_probabilities != nullptr) p.log_probabilities[at + i] = logarithm[i];
      }
      continue;
    }
    *reinterpret_cast<Floats*>(p.probabilities + at) =
        *reinterpret_cast<const Floats*>(probability);
    if (p.log_probabilities != nullptr) {
      *reinterpret_cast<Floats*>(p.log_probabilities + at) =
          *reinterpret_cast<const Floats*>(logarithm);
    }
    if (!p.wide_indices) {
      *reinterpret_cast<Ints*>(static_cast<std::int32_t*>(p.indices) + at) =
          *reinterpret_cast<const Ints*>(index);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kTogether; i += 2) {
      *reinterpret_cast<longlong2*>(static_cast<std::int64_t*>(p.indices) + at + i) = {
          index[i], index[i + 1]};
    }
  }
}

}  // namespace touchstone::topk
