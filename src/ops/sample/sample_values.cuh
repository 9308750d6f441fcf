// The values of a penalized row on the device: those of softmax_topk, and the penalties of the
// tokens that its history holds.
//
// A scan asks for every token whether the history holds it. A bitmap in shared memory answers for a
// few tokens at once; tokens share bits, so that a bit only says where to look: in a table of the
// history's tokens and their values.
#pragma once

#include "ops/sample/sample_row.h"
#include "ops/softmax_topk/topk_scan.cuh"

namespace touchstone::sampling {

// Longer histories have no table but themselves, and a larger bitmap.
inline constexpr std::int64_t kMaxTabled = 4096;

// How much there is of both, by the shape of a problem.
struct HistorySizes {
  std::uint32_t bits;   // a power of two
  std::uint32_t slots;  // a power of two, or 0

  static HistorySizes of(const Sampling& p) {
    HistorySizes sizes{1U << 16, 16};
    if (p.history_length > kMaxTabled) return {1U << 18, 0};
    while (sizes.slots < 2 * p.history_length) sizes.slots *= 2;
    return sizes;
  }
};

// In shared memory, the bitmap and the table behind it.
struct alignas(16) HistoryTable {
  struct Slot {
    std::int32_t token;  // -1 = none
    std::uint32_t word;  // how often it is output; when that is known, its value
  };

  RowControls controls;
  const std::int32_t* history;
  std::int64_t length;
  std::int64_t prompt;  // so many entries are no output
  HistorySizes sizes;
  bool active;  // the row is penalized at all

  static std::int64_t bytes(const HistorySizes& sizes) {
    return static_cast<std::int64_t>(sizeof(HistoryTable)) + sizes.bits / 8 +
           std::int64_t{8} * sizes.slots;
  }

  __device__ std::uint32_t* seen() { return reinterpret_cast<std::uint32_t*>(this + 1); }
  __device__ Slot* slots() { return reinterpret_cast<Slot*>(seen() + sizes.bits / 32); }
  __device__ std::uint32_t slot_of(std::int64_t token) const {
    return static_cast<std::uint32_t>(token) * 2654435769U >> 7 & (sizes.slots - 1);
  }

  __device__ bool may_hold(std::int64_t token) {
    const std::uint32_t bit = static_cast<std::uint32_t>(token) & (sizes.bits - 1);
    return (seen()[bit / 32] >> (bit % 32) & 1U) != 0;
  }

  // By the whole block. `unpenalized` are the values of the row without this.
  template <class T>
  __device__ void fill(const Sampling& p, std::int64_t row, const RowControls& row_controls,
                       const HistorySizes& wanted, const topk::RowValues<T>& unpenalized) {
    constexpr int kThreads = topk::kScanThreads;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      controls = row_controls;
      history = p.history + row * p.history_stride;
      length = p.history_length;
      prompt = prompt_entries(p, row);
      sizes = wanted;
      active = row_controls.penalizes();
    }
    __syncthreads();
    if (!active) return;
    auto* const words = reinterpret_cast<uint4*>(seen());
    for (unsigned i = threadIdx.x; i < sizes.bits / 128; i += kThreads) words[i] = {0, 0, 0, 0};
    for (unsigned i = threadIdx.x; i < sizes.slots; i += kThreads) slots()[i] = {-1, 0};
    __syncthreads();
    for (std::int64_t i = thread; i < length; i += kThreads) {
      const std::int32_t token = history[i];
      if (token < 0 || token >= p.vocabulary) continue;
      const std::uint32_t bit = static_cast<std::uint32_t>(token) & (sizes.bits - 1);
      atomicOr(&seen()[bit / 32], 1U << (bit % 32));
      if (sizes.slots > 0) add(token, i >= prompt);
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < sizes.slots; i += kThreads) {
      Slot& slot = slots()[i];
      if (slot.token < 0) continue;
      slot.word = __float_as_uint(penalized(unpenalized(slot.token), controls, slot.word));
    }
    __syncthreads();
  }

  // The value of a token whose bit is set.
  __device__ float value_of(float value, std::int64_t token) {
    if (sizes.slots == 0) return searched(value, token);
    for (std::uint32_t at = slot_of(token);; at = (at + 1) & (sizes.slots - 1)) {
      const Slot slot = slots()[at];
      if (slot.token == token) return __uint_as_float(slot.word);
      if (slot.token < 0) return value;
    }
  }

 private:
  // At most half of the slots are ever taken.
  __device__ void add(std::int32_t token, bool is_output) {
    std::uint32_t slot = slot_of(token);
    for (;;) {
      const std::int32_t before = atomicCAS(&slots()[slot].token, -1, token);
      if (before == -1 || before == token) break;
      slot = (slot + 1) & (sizes.slots - 1);
    }
    if (is_output) atomicAdd(&slots()[slot].word, 1U);
  }

  // Without a table.
  __device__ __noinline__ float searched(float value, std::int64_t token) const {
    bool held = false;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      if (__ldg(history + i) != token) continue;
      held = true;
      if (i >= prompt) ++count;
    }
    return held ? penalized(value, controls, count) : value;
  }
};

// What a scan that is not plain takes: bias and mask, and the penalties of rows that have some.
template <class T>
struct PenalizedValues : topk::RowValues<T> {
  HistoryTable* table;  // null where the row is not penalized

  const std::uint32_t* seen;
  std::uint32_t last_bit;

  // Of a table that is filled, or none.
  __device__ PenalizedValues(const topk::RowValues<T>& row, HistoryTable* history)
      : topk::RowValues<T>(row),
        table(history != nullptr && history->active ? history : nullptr),
        seen(table != nullptr ? table->seen() : nullptr),
        last_bit(table != nullptr ? table->sizes.bits - 1 : 0) {}

  template <int kN>
  __device__ void adjust(float (&logits)[kN], int token, int vocabulary) const {
    topk::RowValues<T>::adjust(logits, token, vocabulary);
    if (table == nullptr || token >= vocabulary) return;
    const std::uint32_t bit = static_cast<std::uint32_t>(token) & last_bit;
    std::uint32_t bits = seen[bit / 32] >> (bit % 32) & ((1U << kN) - 1);
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1) {
      const int at = __ffs(static_cast<int>(bits)) - 1;
      float value = logits[0];
#pragma unroll
      for (int i = 1; i < kN; ++i) value = i == at ? logits[i] : value;
      value = table->value_of(value, token + at);
#pragma unroll
      for (int i = 0; i < kN; ++i) logits[i] = i == at ? value : logits[i];
    }
  }
};

// The values of a row whose dtype is known at run time only, one by one: for what comes after the
// scan, so that there is one such code for all kernels.
struct AnyValues {
  const void* logits;
  DType dtype;
  const float* bias;             // null = none
  const std::uint32_t* allowed;  // null = all
  HistoryTable* table;           // filled; null = none

  __device__ float adjusted(float logit, std::int64_t token) const {
    const topk::RowValues<float> unpenalized{nullptr, bias, allowed};
    const float value = unpenalized.adjusted(logit, token);
    if (table == nullptr || !table->active || !table->may_hold(token)) return value;
    return table->value_of(value, token);
  }
  __device__ float operator()(std::int64_t token) const {
    return adjusted(cuda::load_any(logits, dtype, token), token);
  }
};

}  // namespace touchstone::sampling
