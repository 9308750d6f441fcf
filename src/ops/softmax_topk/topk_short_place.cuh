// Where short rows are: in memory, and in shared memory, to which a warp has its rows brought.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/tensor_core.cuh"
#include "ops/softmax_topk/topk_cuda.cuh"

namespace touchstone::topk {

struct ShortArgs {
  Topk p;
  int rows = 0;
  int vocabulary = 0;
  int k = 0;
  bool vectors = false;      // rows start at multiples of 16 bytes
  bool full = false;         // and every lane has all its tokens
  bool packed = false;       // and one row begins where the other ends
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

  // As it counts.
  __device__ float value(int token) const {
    if (token >= args.vocabulary) return -infinity();
    return values_of<T>(args.p, row)(token);
  }
};

// Has a lane's part of a row brought to the L2 cache: a line, as a lane has no more.
template <class T>
__device__ void ask_ahead(const RowPlace<T>& place, int lane) {
  const int at = lane * (128 / static_cast<int>(sizeof(T)));
  if (at < place.args.vocabulary) asm volatile("prefetch.global.L2 [%0];" ::"l"(place.logits + at));
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

// Neighboring tokens in words, as vectors of 8 or 16 bytes.
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

// Volatile: what is loaded again need not be held.
__device__ inline void load_shared(std::uint32_t address, std::uint32_t (&words)[2]) {
  asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(address));
}
__device__ inline void load_shared(std::uint32_t address, std::uint32_t (&words)[4]) {
  asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address));
}
__device__ inline void store_shared(std::uint32_t address, const std::uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// The rows of a warp in shared memory, 128 bytes for each lane that shares one. Behind the last
// token of a row stands -inf.
template <class T, int kLanes>
struct Tile {
  static constexpr int kBytes = 4096;  // 8 units for each lane
  static constexpr int kRows = 32 / kLanes;
  static constexpr int kUnits = 8 * kLanes;  // of 16 bytes, in a row
  static constexpr int kUnitTokens = 16 / static_cast<int>(sizeof(T));

  std::uint32_t address;  // a multiple of 128

  // Of a byte of a row. Units are spread such that lanes which load at once find theirs in
  // different banks.
  __device__ std::uint32_t at(int row, int byte) const {
    int spread = 0;
    if constexpr (sizeof(T) == 4) {
      spread = kLanes == 4 ? row % 2 * 16 : (byte >> 7 & 1) * 16;
    } else if constexpr (kLanes < 8) {
      spread = row % (8 / kLanes) * kLanes * 16;
    }
    return address + static_cast<std::uint32_t>(row * (kUnits * 16) + (byte ^ spread));
  }

  // Has so many rows brought here, from this one on.
  __device__ void fill(const ShortArgs& args, int first, int rows, int lane) const {
    if (args.packed) {
      fill_packed(args, first, rows, lane);
    } else if (lane / kLanes < rows) {
      const RowPlace<T> place(args, first + lane / kLanes);
      if (args.vectors) {
        fill_on_grid(place, lane);
      } else {
        fill_off_grid(place, lane);
      }
    }
    cuda::commit_copies();
  }

 private:
  __device__ void fill_packed(const ShortArgs& args, int first, int rows, int lane) const {
    const auto* const from =
        static_cast<const uint4*>(args.p.logits) + std::int64_t{first} * kUnits + lane;
    // Every 64th unit is as far from its row's begin, and spread as far.
    const int next = 32 + lane;
    const std::uint32_t to[2] = {at(lane / kUnits, lane % kUnits * 16),
                                 at(next / kUnits, next % kUnits * 16)};
    if (rows == kRows) {
#pragma unroll
      for (int i = 0; i < 8; ++i) cuda::copy_async_16(to[i % 2] + i / 2 * 1024, from + i * 32);
      return;
    }
#pragma unroll 1
    for (int i = 0; i * 32 + lane < rows * kUnits; ++i) {
      cuda::copy_async_16((i % 2 == 0 ? to[0] : to[1]) + i / 2 * 1024, from + i * 32);
    }
  }

  // Of the row that this lane shares, every kLanes-th unit.
  __device__ void fill_on_grid(const RowPlace<T>& place, int lane) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int unit = i * kLanes + lane % kLanes;
      const std::uint32_t to = at(lane / kLanes, unit * 16);
      if ((unit + 1) * kUnitTokens <= place.args.vocabulary) {
        cuda::copy_async_16(to, place.logits + unit * kUnitTokens);
      } else {
        std::uint32_t words[4];
        load_some(place, unit * kUnitTokens, words);
        store_shared(to, words);
      }
    }
  }
  __device__ void fill_off_grid(const RowPlace<T>& place, int lane) const {
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      std::uint32_t words[4][4];  // several loads on their way
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_some(place, ((half + i) * kLanes + lane % kLanes) * kUnitTokens, words[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_shared(at(lane / kLanes, ((half + i) * kLanes + lane % kLanes) * 16), words[i]);
      }
    }
  }
};

// A row in a tile.
template <class T, int kLanes>
struct TilePlace : RowPlace<T> {
  Tile<T, kLanes> tile;
  int in_tile;

  __device__ TilePlace(const ShortArgs& a, int r, const Tile<T, kLanes>& t, int i)
      : RowPlace<T>(a, r), tile(t), in_tile(i) {}

  __device__ std::uint32_t address_of(int token) const {
    return tile.at(in_tile, token * static_cast<int>(sizeof(T)));
  }
  __device__ float value(int token) const {
    if constexpr (sizeof(T) == 4) {
      float value;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address_of(token)));
      return value;
    } else {
      std::uint16_t bits;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address_of(token)));
      return cuda::widen(T::from_bits(bits));
    }
  }
};

template <class T, int kLanes, int kCount, int kWords, class Offset>
__device__ void load_words(const TilePlace<T, kLanes>& place, int first, Offset offset,
                           std::uint32_t (&words)[kCount][kWords]) {
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    load_shared(place.address_of(first + offset(c)), words[c]);
  }
}

}  // namespace touchstone::topk
