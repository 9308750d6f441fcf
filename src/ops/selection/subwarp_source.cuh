// Sources of short rows: global memory (GlobalRow), or a tile of shared memory that a warp fills
// with its rows by asynchronous copies (RowTile, SharedRow).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/tensor_core.cuh"
#include "ops/selection/row_values.cuh"

namespace touchstone::selection {

struct SubwarpParams {
  LogitRows input{};
  int rows = 0;
  int vocabulary = 0;
  bool vectors = false;  // rows start at multiples of 16 bytes
  bool full = false;     // and every lane has all its tokens
  bool packed = false;   // and rows are contiguous
};

template <class T>
struct GlobalRow {
  const SubwarpParams& params;
  int row;
  const T* logits;

  __device__ GlobalRow(const SubwarpParams& a, int r)
      : params(a),
        row(r),
        logits(static_cast<const T*>(a.input.logits) + std::int64_t{r} * a.input.logits_stride) {
    // Materializes the address: otherwise each load recomputes the product.
    asm("" : "+l"(logits));
  }

  // With bias and mask; -inf past the end.
  __device__ float value(int token) const {
    if (token >= params.vocabulary) return -infinity();
    return values_of<T>(params.input, row)(token);
  }
};

// Prefetches a lane's part of a row, at most one cache line, to L2.
template <class T>
__device__ void prefetch_l2(const GlobalRow<T>& source, int lane) {
  const int at = lane * (128 / static_cast<int>(sizeof(T)));
  if (at < source.params.vocabulary)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(source.logits + at));
}

// -inf, which pads rows.
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

// Consecutive tokens as packed words, by vector loads of 8 or 16 bytes.
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

// The same for tokens that may lie past the end of the row or be unaligned.
template <class T, int kWords>
__device__ void load_some(const GlobalRow<T>& source, int token, std::uint32_t (&words)[kWords]) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  const int vocabulary = source.params.vocabulary;
  if (source.params.vectors && token + kWords * kPerWord <= vocabulary) {
    return load_vectors(source.logits + token, words);
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int at = token + i * kPerWord;
    words[i] = token_bits(source.logits, at, vocabulary);
    if constexpr (kPerWord == 2) words[i] |= token_bits(source.logits, at + 1, vocabulary) << 16;
  }
}

// Several chunks or groups; the c-th starts at token first + offset(c). One branch, then all loads
// back to back.
template <class T, int kCount, int kWords, class Offset>
__device__ void load_words(const GlobalRow<T>& source, int first, Offset offset,
                           std::uint32_t (&words)[kCount][kWords]) {
  if (source.params.full) {
    const T* const from = source.logits + first;
#pragma unroll
    for (int c = 0; c < kCount; ++c) load_vectors(from + offset(c), words[c]);
  } else {
#pragma unroll
    for (int c = 0; c < kCount; ++c) load_some(source, first + offset(c), words[c]);
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

// Volatile: values are re-read instead of kept in registers.
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

// The rows of a warp in shared memory, 128 bytes per lane, padded with -inf.
template <class T, int kLanes>
struct RowTile {
  static constexpr int kBytes = 4096;  // 8 units per lane
  static constexpr int kRows = 32 / kLanes;
  static constexpr int kUnits = 8 * kLanes;  // of 16 bytes per row
  static constexpr int kUnitTokens = 16 / static_cast<int>(sizeof(T));

  std::uint32_t address;  // a multiple of 128

  // Address of a byte of a row. Units are swizzled so that lanes that load together hit different
  // banks.
  __device__ std::uint32_t at(int row, int byte) const {
    int swizzle = 0;
    if constexpr (sizeof(T) == 4) {
      swizzle = kLanes == 4 ? row % 2 * 16 : (byte >> 7 & 1) * 16;
    } else if constexpr (kLanes < 8) {
      swizzle = row % (8 / kLanes) * kLanes * 16;
    }
    return address + static_cast<std::uint32_t>(row * (kUnits * 16) + (byte ^ swizzle));
  }

  // Issues the copies of `rows` rows from row `first` on.
  __device__ void fill(const SubwarpParams& params, int first, int rows, int lane) const {
    if (params.packed) {
      fill_packed(params, first, rows, lane);
    } else if (lane / kLanes < rows) {
      const GlobalRow<T> source(params, first + lane / kLanes);
      if (params.vectors) {
        fill_aligned(source, lane);
      } else {
        fill_unaligned(source, lane);
      }
    }
    cuda::commit_copies();
  }

 private:
  __device__ void fill_packed(const SubwarpParams& params, int first, int rows, int lane) const {
    const auto* const from =
        static_cast<const uint4*>(params.input.logits) + std::int64_t{first} * kUnits + lane;
    // Units 64 apart have the same offset in their rows and the same swizzle.
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

  // Every kLanes-th unit of the row of this lane.
  __device__ void fill_aligned(const GlobalRow<T>& source, int lane) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int unit = i * kLanes + lane % kLanes;
      const std::uint32_t to = at(lane / kLanes, unit * 16);
      if ((unit + 1) * kUnitTokens <= source.params.vocabulary) {
        cuda::copy_async_16(to, source.logits + unit * kUnitTokens);
      } else {
        std::uint32_t words[4];
        load_some(source, unit * kUnitTokens, words);
        store_shared(to, words);
      }
    }
  }
  __device__ void fill_unaligned(const GlobalRow<T>& source, int lane) const {
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      std::uint32_t words[4][4];  // four loads in flight
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_some(source, ((half + i) * kLanes + lane % kLanes) * kUnitTokens, words[i]);
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
struct SharedRow : GlobalRow<T> {
  RowTile<T, kLanes> tile;
  int in_tile;

  __device__ SharedRow(const SubwarpParams& a, int r, const RowTile<T, kLanes>& t, int i)
      : GlobalRow<T>(a, r), tile(t), in_tile(i) {}

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
__device__ void load_words(const SharedRow<T, kLanes>& source, int first, Offset offset,
                           std::uint32_t (&words)[kCount][kWords]) {
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    load_shared(source.address_of(first + offset(c)), words[c]);
  }
}

}  // namespace touchstone::selection
