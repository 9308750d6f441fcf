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

// Tokens that a warp takes at a time, by the bytes of the longest vector.
TOUCHSTONE_HOST_DEVICE constexpr int tokens_of_chunk(int row_bytes) {
  return row_bytes > 128 ? 16 : 32;
}
// A chunk is taken as tiles of 8 tokens: which token is number n of a tile. Of every tile lane c of
// four has the scores of numbers 2 * c and 2 * c + 1; together these are a quarter of the chunk.
template <int kChunk>
__device__ constexpr unsigned token_of(unsigned tile, unsigned n) {
  return kChunk / 4 * (n / 2) + 2 * tile + n % 2;
}

template <Encoding kEncoding_, Scaling kScaling_, int kDim>
struct Operand {
  static constexpr Encoding kEncoding = kEncoding_;
  using C = Codes<kEncoding>;
  static constexpr Scaling kScaling = kScaling_;
  static constexpr int kTiles = C::kTiles;
  static constexpr int kRowBytes = kDim * C::kBits / 8;
  static constexpr int kUnits = kRowBytes / 16;
  static constexpr int kGroups = kScaling == Scaling::kGrouped ? kDim / kGroup : 1;
  // What is kept for the scales of a vector.
  static constexpr int kScaleBytes = kScaling == Scaling::kNone    ? 0
                                     : kScaling == Scaling::kWhole ? 4
                                                                   : 16;
  static_assert(kUnits % 2 == 0);

  // Where a unit of a row lies: such that the same unit of the 8 rows of a matrix (token_of) is in
  // 8 different places of the 128 bytes that shared memory gives at a time (4 for 2 units).
  __device__ static constexpr std::uint32_t at(unsigned row, unsigned unit) {
    return row * kRowBytes + (unit ^ spread(row)) * 16;
  }
  // Takes bits of the row as they are: that of a sum without carries is the exclusive or.
  __device__ static constexpr unsigned spread(unsigned row) {
    const unsigned quarter = row / (tokens_of_chunk(kRowBytes) / 4) % 4;
    return kUnits >= 8 ? row % 2 + 2 * quarter : quarter % kUnits;
  }
};

struct alignas(8) ShortPlace {
  std::uint32_t page;
  std::uint32_t slot;
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

// Where one of the two sections of the layer lies: of the head in slot 0 of page 0. In shared
// memory, since registers are wanted for the tokens.
struct SectionBase {
  const std::byte* values;
  const std::byte* scales;
};

// Copies one of the two sections of the layer, and finds the scales in what was copied.
template <class Op, int kChunk, class Block>
class Source {
 public:
  __device__ Source(const Block& block, const Section& section, const SectionBase& base)
      : block_(block), section_(section), base_(base) {}

  template <class AnyBlock>
  __device__ static SectionBase base_of(const AnyBlock& block, const Section& section) {
    // Scales of whole vectors are copied two at a time, beginning with an even one.
    const std::int64_t scales =
        Op::kScaling == Scaling::kWhole
            ? block.kv_head * block.p.pages.page_tokens / 2 * 4
            : block.kv_head * block.p.pages.page_tokens * section.scale_bytes;
    return {block.address({0, 0}, section.values, section.value_bytes),
            block.p.pages.memory + section.scales + scales};
  }

  // Tokens [chunk * kChunk, ...) of the list; zeros behind its end.
  template <class Slot>
  __device__ void ask(unsigned lane, unsigned chunk, unsigned count, Slot& slot) const {
    const std::uint32_t own =
        cuda::shared_address(slot.rows) + Op::at(lane / Op::kUnits, lane % Op::kUnits);
    const ShortPlace* const runs = block_.shared.runs + chunk * (kChunk / kRun);
    if (block_.shared.list.dense && (chunk + 1) * kChunk <= count) {
#pragma unroll
      for (unsigned run = 0; run < kChunk; run += kRun) {
        const std::byte* const from =
            address(base_.values + lane * 16, read_place(runs[run / kRun]));
#pragma unroll
        for (unsigned row = run; row < run + kRun; row += kRows) {
          cuda::copy_async_16(target(own, row), from + (row - run) * Op::kRowBytes);
        }
      }
    } else {
      ask_listed(lane, chunk, count, own);
    }
    if constexpr (Op::kScaling != Scaling::kNone) ask_scales(lane, chunk, count, slot.scales);
  }

  // Turns the scales of a chunk into what `scores` and `weights` read: by every lane, with a
  // __syncwarp before and after. `offset` is what was decoded too low.
  //   kWhole    in place, a float for each token
  //   kGrouped  to `scratch`: [group][token], then the minima with the offset in them
  __device__ void settle_scales(unsigned lane, unsigned chunk, unsigned count, std::byte* scales,
                                float offset, float* scratch) const {
    if constexpr (Op::kScaling == Scaling::kWhole) {
      const unsigned token = chunk * kChunk + lane;
      const bool odd = token < count && (first_odd() + place_of(token).slot) % 2 != 0;
      auto* const record = reinterpret_cast<std::uint32_t*>(scales) + lane;
      const std::uint32_t bits = odd ? *record >> 16 : *record;
      *reinterpret_cast<float*>(record) =
          cuda::widen(F16::from_bits(static_cast<std::uint16_t>(bits)));
    } else if constexpr (Op::kScaling == Scaling::kGrouped) {
      std::uint32_t words[4];
      canonical_record(lane, scales, words);
#pragma unroll
      for (int g = 0; g < Op::kGroups; ++g) {
        const float2 scale = scale_and_minimum(words[g]);
        scratch[g * kChunk + lane] = scale.x;
        scratch[(Op::kGroups + g) * kChunk + lane] = fmaf(offset, scale.x, scale.y);
      }
    }
  }

  // The same for keys: minima and offsets come in by a product with the records, which are made
  // uniform for it: scale and minimum of each kGroup numbers.
  __device__ void settle_key_scales(unsigned lane, std::byte* scales, float* scratch) const {
    std::uint32_t words[4];
    if (!canonical_record(lane, scales, words)) {
      *reinterpret_cast<uint4*>(scales + record_at(lane)) = {words[0], words[1], words[2],
                                                             words[3]};
    }
#pragma unroll
    for (int g = 0; g < Op::kGroups; ++g) {
      scratch[g * kChunk + lane] = scale_and_minimum(words[g]).x;
    }
  }

  // Where the record of a token of the chunk lies: those of a tile in 8 different places of 128
  // bytes.
  __device__ static constexpr unsigned record_at(unsigned token) {
    return (token / 8 * 8 + (token + token / 8 * 2) % 8) * 16;
  }

  __device__ bool asymmetric() const { return section_.format.asymmetric; }
  __device__ std::uint32_t flip() const {
    return Op::kScaling == Scaling::kGrouped && asymmetric() ? 0x80808080U : 0U;
  }

 private:
  static constexpr unsigned kRows = 32 / Op::kUnits;  // copied at a time

  // Where the lane's part of `row` and the rows after it goes. Adding `row` changes bits that the
  // lane's own row has not, and rows begin on 128 bytes or a part of it.
  __device__ static std::uint32_t target(std::uint32_t own, unsigned row) {
    return (own ^ Op::spread(row) * 16) + row * Op::kRowBytes;
  }

  // Tokens that may lie anywhere.
  __device__ void ask_listed(unsigned lane, unsigned chunk, unsigned count,
                             std::uint32_t own) const {
    const std::byte* const unit = base_.values + lane % Op::kUnits * 16;
#pragma unroll 1
    for (unsigned row = 0; row < kChunk; row += kRows) {
      const unsigned token = chunk * kChunk + row + lane / Op::kUnits;
      const bool there = token < count;
      cuda::copy_async_16_if(target(own, row), there ? address(unit, place_of(token)) : unit,
                             there);
    }
  }

  // Scale and minimum of each kGroup numbers of the lane's token; whether they are stored so.
  __device__ bool canonical_record(unsigned lane, const std::byte* scales,
                                   std::uint32_t (&words)[4]) const {
    const std::byte* const record = scales + record_at(lane);
    // One or several kGroup, or with 0 all there are.
    const auto length = static_cast<int>(section_.format.group);
    const int shift = length == kGroup ? 0 : length == 2 * kGroup ? 1 : 2;
    if (asymmetric() && shift == 0 && Op::kGroups == 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(record);
      words[0] = four.x;
      words[1] = four.y;
      words[2] = four.z;
      words[3] = four.w;
      return true;
    }
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const int at = g >> shift;
      words[g] = g >= Op::kGroups ? 0U
                 : asymmetric()   ? reinterpret_cast<const std::uint32_t*>(record)[at]
                                  : reinterpret_cast<const std::uint16_t*>(record)[at];
    }
    return false;
  }

  __device__ ShortPlace place_of(unsigned token) const {
    const TokenList& list = block_.shared.list;
    if (list.dense) {
      const ShortPlace run = read_place(block_.shared.runs[token / kRun]);
      return {run.page, run.slot + token % kRun};
    }
    const auto page_tokens = static_cast<std::uint32_t>(block_.p.pages.page_tokens);
    const std::uint32_t slot = list.first_slot + block_.shared.positions[token];
    const std::uint32_t page = slot / page_tokens;
    return {static_cast<std::uint32_t>(list.pages[page]), slot - page * page_tokens};
  }

  __device__ const std::byte* address(const std::byte* values, const ShortPlace& place) const {
    return offset(offset(values, place.slot, Op::kRowBytes), place.page, page_bytes());
  }

  // base + count * bytes, in one instruction.
  __device__ static const std::byte* offset(const std::byte* base, std::uint32_t count,
                                            std::uint32_t bytes) {
    const std::byte* result;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(result) : "r"(count), "r"(bytes), "l"(base));
    return result;
  }

  // A lane for each token.
  __device__ void ask_scales(unsigned lane, unsigned chunk, unsigned count, std::byte* to) const {
    static_assert(kChunk == 32);
    const unsigned token = chunk * kChunk + lane;
    std::byte* const record =
        to + (Op::kScaling == Scaling::kGrouped ? record_at(lane) : lane * Op::kScaleBytes);
    const std::uint32_t target = cuda::shared_address(record);
    if (token >= count) {  // a scale of 0
#pragma unroll
      for (int i = 0; i < Op::kScaleBytes; i += 4) {
        *reinterpret_cast<std::uint32_t*>(record + i) = 0;
      }
      return;
    }
    const ShortPlace place = place_of(token);
    const std::byte* const page = offset(base_.scales, place.page, page_bytes());
    if constexpr (Op::kScaling == Scaling::kWhole) {
      // Two scales, of which this is one: copies have 4 bytes at least.
      cuda::copy_async_small<4>(target, offset(page, (first_odd() + place.slot) / 2, 4));
    } else {
      const auto bytes = static_cast<std::uint32_t>(section_.scale_bytes);
      const std::byte* const from = offset(page, place.slot, bytes);
      if (bytes == 16) return cuda::copy_async_16(target, from);
      if (bytes == 8) return cuda::copy_async_small<8>(target, from);
      cuda::copy_async_small<4>(target, from);
    }
  }

  __device__ std::uint32_t page_bytes() const {
    return static_cast<std::uint32_t>(block_.p.pages.geometry.page_bytes);
  }
  // Whether an odd number of vectors of a page comes before those of the head.
  __device__ std::uint32_t first_odd() const {
    return static_cast<std::uint32_t>(block_.kv_head) &
           static_cast<std::uint32_t>(block_.p.pages.page_tokens) & 1U;
  }

  const Block& block_;
  const Section& section_;
  const SectionBase& base_;
};

}  // namespace touchstone::attend
