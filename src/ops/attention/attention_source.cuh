// How cached_attention on the tensor cores gets at keys and values: where they lie in shared
// memory, how they are copied there, and their scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/hopper.cuh"
#include "cuda/tensor_core.cuh"
#include "ops/attention/attention_codes.cuh"
#include "ops/attention/attention_split.cuh"

namespace touchstone::attend {

inline constexpr int kGroup = 32;  // numbers that certainly share a scale

template <Encoding kEncoding, Scaling kScaling_, int kDim>
struct Operand {
  using C = Codes<kEncoding>;
  static constexpr Scaling kScaling = kScaling_;
  static constexpr int kTiles = C::kTiles;
  static constexpr int kRowBytes = kDim * C::kBits / 8;
  static constexpr int kUnits = kRowBytes / 16;
  static constexpr int kGroups = kScaling == Scaling::kGrouped ? kDim / kGroup : 1;
  // What is kept for the scales of a vector.
  static constexpr int kScaleBytes = kScaling == Scaling::kNone    ? 0
                                     : kScaling == Scaling::kWhole ? 4
                                                                   : 4 * kGroups;
  static_assert(kUnits % 2 == 0);

  __device__ static std::uint32_t at(int row, int unit) {
    return cuda::spread_unit<kUnits>(row, unit);
  }
};

struct alignas(8) ShortPlace {
  std::uint32_t page;
  std::uint32_t slot;

  __device__ static ShortPlace of(std::int32_t number, std::uint32_t slot,
                                  std::int64_t /*page_bytes*/) {
    return {static_cast<std::uint32_t>(number), slot};
  }
};

// In one access.
__device__ inline ShortPlace read_place(const ShortPlace& place) {
  const uint2 both = reinterpret_cast<const uint2&>(place);
  return {both.x, both.y};
}

__device__ inline float2 scale_and_minimum(std::uint32_t bits) {
  return {cuda::widen(F16::from_bits(static_cast<std::uint16_t>(bits))),
          cuda::widen(F16::from_bits(static_cast<std::uint16_t>(bits >> 16)))};
}

// Copies one of the two sections of the layer, and finds the scales in what was copied.
template <class Op, int kChunk, class Block>
class Source {
 public:
  __device__ Source(const Block& block, const Section& section)
      : block_(block),
        page_bytes_(static_cast<std::uint32_t>(block.p.pages.geometry.page_bytes)),
        scale_bytes_(static_cast<std::uint32_t>(section.scale_bytes)),
        first_(static_cast<std::uint32_t>(block.kv_head * block.p.pages.page_tokens)),
        asymmetric_(section.format.asymmetric) {
    values_ = block.address({0, 0}, section.values, section.value_bytes) + lane() % Op::kUnits * 16;
    scales_ = block.p.pages.memory + section.scales;
    if constexpr (Op::kScaling == Scaling::kGrouped) {
      shift_ =
          31 -
          __clz(static_cast<int>(cache::group_length(section.format, Block::SharedMemory::kDim)) /
                kGroup);
    }
  }

  // Tokens [chunk * kChunk, ...) of the list; zeros behind its end.
  template <class Slot>
  __device__ void ask(int chunk, int count, Slot& slot) const {
    constexpr int kRows = 32 / Op::kUnits;  // at a time
    const int own_row = lane() / Op::kUnits;
    const std::uint32_t own = Op::at(own_row, lane() % Op::kUnits);
    const std::uint32_t rows = cuda::shared_address(slot.rows);
    const ShortPlace* const places = block_.shared.places + chunk * kChunk + own_row;
    if ((chunk + 1) * kChunk <= count) {
#pragma unroll
      for (int first = 0; first < kChunk; first += kRows) {
        // at(first + own_row, ...): adding `first` changes bits of the row that own_row has not.
        const std::uint32_t at = first * Op::kRowBytes + (own ^ (first % 8 * 16));
        cuda::copy_async_16(rows + at, address(places[first]));
      }
    } else {
#pragma unroll 1
      for (int first = 0; first < kChunk; first += kRows) {
        const bool there = chunk * kChunk + first + own_row < count;
        const std::uint32_t at = first * Op::kRowBytes + (own ^ (first % 8 * 16));
        cuda::copy_async_16_if(rows + at, there ? address(places[first]) : values_, there);
      }
    }
    if constexpr (Op::kScaling != Scaling::kNone) ask_scales(chunk, count, slot.scales);
  }

  // Of a row of the chunk, where a vector has one scale.
  __device__ float whole_scale(int chunk, int count, int row, const std::byte* scales) const {
    const int token = chunk * kChunk + row;
    const auto bits = *reinterpret_cast<const std::uint32_t*>(scales + row * Op::kScaleBytes);
    const bool odd = (first_ + block_.shared.places[token < count ? token : 0].slot) % 2 != 0;
    return cuda::widen(F16::from_bits(static_cast<std::uint16_t>(odd ? bits >> 16 : bits)));
  }

  // Of a row of the chunk, for every kGroup numbers.
  __device__ void group_scales(int row, const std::byte* scales,
                               float2 (&result)[Op::kGroups]) const {
    const std::byte* const record = scales + row * Op::kScaleBytes;
    if (asymmetric_ && shift_ == 0) {
      std::uint32_t words[Op::kGroups];
      if constexpr (Op::kGroups == 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(record);
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
      } else {
#pragma unroll
        for (int g = 0; g < Op::kGroups; ++g) {
          words[g] = reinterpret_cast<const std::uint32_t*>(record)[g];
        }
      }
#pragma unroll
      for (int g = 0; g < Op::kGroups; ++g) result[g] = corrected(scale_and_minimum(words[g]));
      return;
    }
#pragma unroll
    for (int g = 0; g < Op::kGroups; ++g) {
      const int at = g >> shift_;
      result[g] =
          asymmetric_
              ? corrected(scale_and_minimum(reinterpret_cast<const std::uint32_t*>(record)[at]))
              : scale_and_minimum(reinterpret_cast<const std::uint16_t*>(record)[at]);
    }
  }

  __device__ bool asymmetric() const { return Op::kScaling == Scaling::kGrouped && asymmetric_; }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  // Codes that are decoded too low are so in all of a group: the minimum makes up for it.
  __device__ static float2 corrected(float2 scale) {
    if constexpr (Op::C::kOffset != 0) scale.y = fmaf(Op::C::kOffset, scale.x, scale.y);
    return scale;
  }

  __device__ const std::byte* address(const ShortPlace& at) const {
    const ShortPlace place = read_place(at);
    return offset(offset(values_, place.slot, Op::kRowBytes), place.page, page_bytes_);
  }

  // base + count * bytes, in one instruction.
  __device__ static const std::byte* offset(const std::byte* base, std::uint32_t count,
                                            std::uint32_t bytes) {
    const std::byte* result;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(result) : "r"(count), "r"(bytes), "l"(base));
    return result;
  }

  // A lane for each token.
  __device__ void ask_scales(int chunk, int count, std::byte* to) const {
    static_assert(kChunk == 32);
    const int token = chunk * kChunk + lane();
    std::byte* const record = to + lane() * Op::kScaleBytes;
    const std::uint32_t target = cuda::shared_address(record);
    if (token >= count) {  // a scale of 0
#pragma unroll
      for (int i = 0; i < Op::kScaleBytes; i += 4) {
        *reinterpret_cast<std::uint32_t*>(record + i) = 0;
      }
      return;
    }
    const ShortPlace place = read_place(block_.shared.places[token]);
    const std::byte* const page = offset(scales_, place.page, page_bytes_);
    if constexpr (Op::kScaling == Scaling::kWhole) {
      // Two scales, of which this is one: copies have 4 bytes at least.
      cuda::copy_async_small<4>(target, offset(page, (first_ + place.slot) / 2, 4));
    } else {
      const std::byte* const from = offset(page, first_ + place.slot, scale_bytes_);
      if (scale_bytes_ == 4) return cuda::copy_async_small<4>(target, from);
      if (scale_bytes_ == 8) return cuda::copy_async_small<8>(target, from);
      cuda::copy_async_16(target, from);
    }
  }

  const Block& block_;
  const std::byte* values_;  // of slot 0 of page 0, the lane's unit
  const std::byte* scales_;  // of head 0 in slot 0 of page 0
  std::uint32_t page_bytes_;
  std::uint32_t scale_bytes_;
  std::uint32_t first_;  // vectors of a page before those of the head
  int shift_ = 0;        // log2 of the group's length in kGroup
  bool asymmetric_;
};

}  // namespace touchstone::attend
