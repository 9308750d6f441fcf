// How cached_attention on the tensor cores gets at keys and values: where they lie in shared
// memory, how they are copied there, and their scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/hopper.cuh"
#include "cuda/tensor_core.cuh"
#include "ops/attention_paged/cuda/dequant_operand.cuh"
#include "ops/attention_paged/cuda/paged_split.cuh"

namespace touchstone::paged_attention {

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

template <DType kEncoding_, Scaling kScaling_, int kDim>
struct Operand {
  static constexpr DType kEncoding = kEncoding_;
  using C = DequantOperand<kEncoding>;
  static constexpr Scaling kScaling = kScaling_;
  static constexpr int kTiles = C::kTiles;
  static constexpr bool kHalf = C::kHalf;
  static constexpr int kRowBytes = kDim * C::kBits / 8;
  static constexpr int kUnits = kRowBytes / 16;
  static constexpr int kGroups = kScaling == Scaling::kGrouped ? kDim / kGroup : 1;
  // What is kept for the scales of a vector.
  static constexpr int kScaleBytes = kScaling == Scaling::kNone    ? 0
                                     : kScaling == Scaling::kWhole ? 4
                                                                   : 16;
  static_assert(kUnits % 2 == 0);

  // Where a unit of a row lies: such that the same unit of the 8 rows of a matrix (token_of) is in
  // 8 different banks of the 128 bytes of a shared memory wavefront (4 for 2 units).
  __device__ static constexpr std::uint32_t at(unsigned row, unsigned unit) {
    return row * kRowBytes + (unit ^ spread(row)) * 16;
  }
  // Takes bits of the row as they are: that of a sum without carries is the exclusive or.
  __device__ static constexpr unsigned spread(unsigned row) {
    const unsigned quarter = row / (tokens_of_chunk(kRowBytes) / 4) % 4;
    return kUnits >= 8 ? row % 2 + 2 * quarter : quarter % kUnits;
  }
};

struct alignas(8) CompactPageSlot {
  std::uint32_t page;
  std::uint32_t slot;
};

// In one access.
__device__ inline CompactPageSlot load_slot(const CompactPageSlot& page_slot) {
  const uint2 both = reinterpret_cast<const uint2&>(page_slot);
  return {both.x, both.y};
}

// The lower of two f16, which is the scale of a record's scale and minimum.
__device__ inline float low_f16(std::uint32_t pair) {
  return cuda::widen(F16::from_bits(static_cast<std::uint16_t>(pair)));
}
__device__ inline float high_f16(std::uint32_t pair) { return low_f16(pair >> 16); }

// Where ldmatrix finds number lane % 8 of a tile of the chunk: unit 0 of its row, or its record.
template <class Op, int kChunk>
__device__ std::uint32_t row_address(const std::byte* rows, unsigned tile, unsigned lane) {
  return cuda::shared_address(rows) + Op::at(token_of<kChunk>(tile, lane % 8), 0);
}
// Another unit of the row: rows begin on 128 bytes or a part of it, so that what at() does to a
// unit can be done later.
__device__ inline std::uint32_t unit_address(std::uint32_t row, int unit) {
  return (row ^ static_cast<std::uint32_t>(unit % 8 * 16)) + unit / 8 * 128;
}
// Where the record of a token of the chunk lies: those of a tile in 8 different banks of 128
// bytes.
__device__ constexpr unsigned record_at(unsigned token) {
  return (token / 8 * 8 + (token + token / 8 * 2) % 8) * 16;
}
template <int kChunk>
__device__ std::uint32_t record_address(const std::byte* scales, unsigned lane) {
  return cuda::shared_address(scales) + record_at(token_of<kChunk>(lane / 8, lane % 8));
}

// Of the list, in registers.
struct ListLength {
  unsigned tokens;
  unsigned in_runs;  // all of them or none

  // Whether a chunk is there wholly, in runs.
  template <unsigned kChunk>
  __device__ bool has_runs(unsigned chunk) const {
    return (chunk + 1) * kChunk <= in_runs;
  }
};

// Where one of the two sections of the layer lies: of the head in slot 0 of page 0. In shared
// memory, since registers are wanted for the tokens.
struct SectionBase {
  const std::byte* values;
  const std::byte* scales;
};

// Copies one of the two sections of the layer, and finds the scales in what was copied.
template <class Op, int kChunk, class Block>
class SectionLoader {
 public:
  __device__ SectionLoader(const Block& block, const Section& section, const SectionBase& base)
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
  __device__ void issue_loads(unsigned lane, unsigned chunk, const ListLength& list,
                              Slot& slot) const {
    if (!list.template has_runs<kChunk>(chunk)) return issue_listed(lane, chunk, list, slot);
    issue_runs(lane, RunSlots(block_.shared, chunk, lane), slot);
  }

  // Of a chunk that does not lie in runs.
  template <class Slot>
  __device__ void issue_listed(unsigned lane, unsigned chunk, const ListLength& list,
                               Slot& slot) const {
    copy_listed(block_.shared, block_.p, section_, base_, first_odd(), lane, chunk, list.tokens,
                slot.rows, slot.scales);
  }

  // Where a chunk that lies in runs is.
  struct RunSlots {
    static constexpr unsigned kRuns = kChunk / kRun;
    CompactPageSlot runs[kRuns];
    CompactPageSlot token;  // of the lane

    template <class Shared>
    __device__ RunSlots(const Shared& shared, unsigned chunk, unsigned lane) {
      const CompactPageSlot* const from = shared.runs + chunk * kRuns;
#pragma unroll
      for (unsigned run = 0; run < kRuns; ++run) runs[run] = load_slot(from[run]);
      token = load_slot(from[lane / kRun % kRuns]);
      token.slot += lane % kRun;
    }
  };

  template <class Slots, class Slot>
  __device__ void issue_runs(unsigned lane, const Slots& run_slots, Slot& slot) const {
    const std::uint32_t own =
        cuda::shared_address(slot.rows) + Op::at(lane / Op::kUnits, lane % Op::kUnits);
    // All that is read from shared memory before the first copy.
    const std::byte* const unit = base_.values + lane * 16;
    const std::byte* from[RunSlots::kRuns];
#pragma unroll
    for (unsigned run = 0; run < RunSlots::kRuns; ++run) {
      from[run] = address(unit, run_slots.runs[run]);
    }
    const std::byte* scales = nullptr;
    if constexpr (Op::kScaling != Scaling::kNone) {
      scales = scales_at(section_, base_, page_bytes(), first_odd(), run_slots.token);
    }
#pragma unroll
    for (unsigned row = 0; row < kChunk; row += kRows) {
      cuda::copy_async_16(target(own, row), from[row / kRun] + row % kRun * Op::kRowBytes);
    }
    if constexpr (Op::kScaling != Scaling::kNone) {
      copy_scales(section_, scales, record_of(lane, slot.scales));
    }
  }

  // The scale of the lane's token in a chunk, where vectors have one. It was copied with another.
  __device__ float whole_scale(unsigned lane, unsigned chunk, const ListLength& list,
                               const std::byte* scales) const {
    // In runs every second slot is odd, and heads begin at even ones.
    bool odd = lane % 2 != 0;
    if (!list.template has_runs<kChunk>(chunk)) {
      odd = is_odd(block_.shared, block_.p, first_odd(), chunk * kChunk + lane, list.tokens);
    }
    const std::uint32_t both = reinterpret_cast<const std::uint32_t*>(scales)[lane];
    return low_f16(odd ? both >> 16 : both);
  }

  // Scale and minimum of each kGroup numbers of the lane's token, which the record is made to be
  // where it is stored otherwise.
  __device__ void settle_record(unsigned lane, std::byte* scales, std::uint32_t (&words)[4]) const {
    auto& record = *reinterpret_cast<uint4*>(scales + record_at(lane));
    if (is_uniform()) {
      words[0] = record.x;
      words[1] = record.y;
      words[2] = record.z;
      words[3] = record.w;
    } else {
      gather_record(reinterpret_cast<const std::byte*>(&record), words);
      record = {words[0], words[1], words[2], words[3]};
    }
  }
  __device__ void settle_record(unsigned lane, std::byte* scales) const {
    if (is_uniform()) return;
    std::uint32_t words[4];
    settle_record(lane, scales, words);
  }

  __device__ bool asymmetric() const {
    return Op::kScaling == Scaling::kGrouped && section_.format.asymmetric;
  }

 private:
  static constexpr unsigned kRows = 32 / Op::kUnits;  // copied at a time

  // Where the lane's part of `row` and the rows after it goes. Adding `row` changes bits that the
  // lane's own row has not, and rows begin on 128 bytes or a part of it.
  __device__ static std::uint32_t target(std::uint32_t own, unsigned row) {
    return (own ^ Op::spread(row) * 16) + row * Op::kRowBytes;
  }

  // Tokens that may lie anywhere.
  template <class Shared>
  __device__ __noinline__ static void copy_listed(const Shared& shared,
                                                  const PagedAttentionProblem& p,
                                                  const Section& section, const SectionBase& base,
                                                  std::uint32_t first_odd, unsigned lane,
                                                  unsigned chunk, unsigned count,
                                                  const std::byte* rows, std::byte* scales) {
    const std::uint32_t own =
        cuda::shared_address(rows) + Op::at(lane / Op::kUnits, lane % Op::kUnits);
    const auto page_bytes = static_cast<std::uint32_t>(p.pages.geometry.page_bytes);
    const auto slot_of = [&](unsigned token) { return slot_in_list(shared, p, token); };
    const auto address = [&](const std::byte* values, const CompactPageSlot& page_slot) {
      return offset(offset(values, page_slot.slot, static_cast<std::uint32_t>(section.value_bytes)),
                    page_slot.page, page_bytes);
    };
    const std::byte* const unit = base.values + lane % Op::kUnits * 16;
#pragma unroll 1
    for (unsigned row = 0; row < kChunk; row += kRows) {
      const unsigned token = chunk * kChunk + row + lane / Op::kUnits;
      const bool there = token < count;
      cuda::copy_async_16_if(target(own, row), there ? address(unit, slot_of(token)) : unit, there);
    }
    if constexpr (Op::kScaling != Scaling::kNone) {
      static_assert(kChunk == 32);
      std::byte* const record = record_of(lane, scales);
      const unsigned token = chunk * kChunk + lane;
      if (token < count) {
        return copy_scales(section, scales_at(section, base, page_bytes, first_odd, slot_of(token)),
                           record);
      }
#pragma unroll
      for (int i = 0; i < Op::kScaleBytes; i += 4) {
        *reinterpret_cast<std::uint32_t*>(record + i) = 0;
      }
    }
  }

  template <class Shared>
  __device__ __noinline__ static bool is_odd(const Shared& shared, const PagedAttentionProblem& p,
                                             std::uint32_t first_odd, unsigned token,
                                             unsigned count) {
    return token < count && (first_odd + slot_in_list(shared, p, token).slot) % 2 != 0;
  }

  // Whether records are stored as they are used.
  __device__ bool is_uniform() const {
    return Op::kGroups == 4 && section_.scale_bytes == 16;  // of no other group and symmetry
  }
  __device__ void gather_record(const std::byte* record, std::uint32_t (&words)[4]) const {
    // One or several kGroup, or with 0 all there are.
    const auto length = static_cast<int>(section_.format.group_size);
    const int shift = length == kGroup ? 0 : length == 2 * kGroup ? 1 : 2;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const int at = g >> shift;
      words[g] = g >= Op::kGroups ? 0U
                 : asymmetric()   ? reinterpret_cast<const std::uint32_t*>(record)[at]
                                  : reinterpret_cast<const std::uint16_t*>(record)[at];
    }
  }

  __device__ CompactPageSlot slot_of(unsigned token) const {
    return slot_in_list(block_.shared, block_.p, token);
  }
  template <class Shared>
  __device__ static CompactPageSlot slot_in_list(const Shared& shared,
                                                 const PagedAttentionProblem& p, unsigned token) {
    const TokenList& list = shared.list;
    if (list.dense) {
      const CompactPageSlot run = load_slot(shared.runs[token / kRun]);
      return {run.page, run.slot + token % kRun};
    }
    const auto page_tokens = static_cast<std::uint32_t>(p.pages.page_tokens);
    const int position = shared.positions[token];
    std::uint32_t slot = list.first_slot + static_cast<std::uint32_t>(position);
    if (position >= list.first_ancestor) slot = slot_of_ancestor(shared, position);
    const std::uint32_t page = slot / page_tokens;
    return {static_cast<std::uint32_t>(list.pages[page]), slot - page * page_tokens};
  }

  // From the first slot of the first page of the list on.
  template <class Shared>
  __device__ static std::uint32_t slot_of_ancestor(const Shared& shared, int position) {
    const TokenList& list = shared.list;
    const std::int64_t at = list.first_position + position;
    const std::int64_t slot = ancestor_slot_of(shared.info.visible, list.tree, at);
    return list.first_slot + static_cast<std::uint32_t>(slot - list.first_position);
  }

  // The bytes of a vector are a runtime value: with a constant it would be four instructions.
  __device__ const std::byte* address(const std::byte* values,
                                      const CompactPageSlot& page_slot) const {
    return offset(offset(values, page_slot.slot, static_cast<std::uint32_t>(section_.value_bytes)),
                  page_slot.page, page_bytes());
  }

  // base + count * bytes, in one instruction.
  __device__ static const std::byte* offset(const std::byte* base, std::uint32_t count,
                                            std::uint32_t bytes) {
    const std::byte* result;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(result) : "r"(count), "r"(bytes), "l"(base));
    return result;
  }

  // A lane for each token.
  __device__ static std::byte* record_of(unsigned lane, std::byte* scales) {
    return scales + (Op::kScaling == Scaling::kGrouped ? record_at(lane) : lane * Op::kScaleBytes);
  }
  __device__ static const std::byte* scales_at(const Section& section, const SectionBase& base,
                                               std::uint32_t page_bytes, std::uint32_t first_odd,
                                               const CompactPageSlot& page_slot) {
    const std::byte* const page = offset(base.scales, page_slot.page, page_bytes);
    // Two scales of whole vectors, of which one is meant: copies have 4 bytes at least.
    if constexpr (Op::kScaling == Scaling::kWhole) {
      return offset(page, (first_odd + page_slot.slot) / 2, 4);
    }
    return offset(page, page_slot.slot, static_cast<std::uint32_t>(section.scale_bytes));
  }
  __device__ static void copy_scales(const Section& section, const std::byte* from,
                                     std::byte* record) {
    const std::uint32_t target = cuda::shared_address(record);
    if constexpr (Op::kScaling == Scaling::kWhole) {
      cuda::copy_async_small<4>(target, from);
    } else {
      if (section.scale_bytes == 16) return cuda::copy_async_16(target, from);
      if (section.scale_bytes == 8) return cuda::copy_async_small<8>(target, from);
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

}  // namespace touchstone::paged_attention
