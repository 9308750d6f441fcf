// The values of a penalized row on the device: logits, bias and mask, and the penalties of the
// tokens in its history.
//
// Every token must be tested for membership in the history. A bitmap in shared memory answers for
// eight tokens at once; tokens share bits, so a set bit leads to a lookup in a hash table of the
// history's tokens and their penalized values, which are computed before the main loop.
#pragma once

#include "ops/sample/sample_row.h"
#include "ops/selection/row_values.cuh"
#include "ops/selection/selection_tuning.h"

namespace touchstone::sampling {

// Longer histories have no hash table, are searched linearly, and have a larger bitmap.
inline constexpr std::int64_t kMaxTabled = 4096;

// Sizes of both, by the history length.
struct HistorySizes {
  std::uint32_t bits;   // a power of two
  std::uint32_t slots;  // a power of two, or 0

  static HistorySizes of(const SampleProblem& p) {
    HistorySizes sizes{1U << 16, 16};
    if (p.history_entries() > kMaxTabled) return {1U << 18, 0};
    while (sizes.slots < 2 * p.history_entries()) sizes.slots *= 2;
    return sizes;
  }
};

// In shared memory, followed by the bitmap and the hash table.
struct alignas(16) HistoryTable {
  struct Slot {
    std::int32_t token;  // -1 = none
    std::uint32_t word;  // occurrences in the output; after fill(), the penalized value
  };

  RowControls controls;
  RowHistory history;
  HistorySizes sizes;
  bool active;  // the row has penalties

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

  // By the whole block. `unpenalized` are the values before penalties.
  template <class T>
  __device__ void fill(const SampleProblem& p, std::int64_t row, const RowControls& row_controls,
                       const HistorySizes& wanted, const selection::RowValues<T>& unpenalized) {
    constexpr int kThreads = selection::kStreamingThreads;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      controls = row_controls;
      history = row_history(p, row);
      sizes = wanted;
      active = row_controls.penalizes();
    }
    __syncthreads();
    if (!active) return;
    auto* const words = reinterpret_cast<uint4*>(seen());
    for (unsigned i = threadIdx.x; i < sizes.bits / 128; i += kThreads) words[i] = {0, 0, 0, 0};
    for (unsigned i = threadIdx.x; i < sizes.slots; i += kThreads) slots()[i] = {-1, 0};
    __syncthreads();
    for (std::int64_t i = thread; i < history.entries; i += kThreads) {
      const std::int32_t token = history.token(i);
      if (token < 0 || token >= p.vocabulary) continue;
      const std::uint32_t bit = static_cast<std::uint32_t>(token) & (sizes.bits - 1);
      atomicOr(&seen()[bit / 32], 1U << (bit % 32));
      if (sizes.slots > 0) add(token, history.is_output(i));
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
  // The load factor is at most one half.
  __device__ void add(std::int32_t token, bool is_output) {
    std::uint32_t slot = slot_of(token);
    for (;;) {
      const std::int32_t before = atomicCAS(&slots()[slot].token, -1, token);
      if (before == -1 || before == token) break;
      slot = (slot + 1) & (sizes.slots - 1);
    }
    if (is_output) atomicAdd(&slots()[slot].word, 1U);
  }

  // Linear search, for histories without a hash table.
  __device__ __noinline__ float searched(float value, std::int64_t token) const {
    bool held = false;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < history.entries; ++i) {
      if (history.token(i) != token) continue;
      held = true;
      if (history.is_output(i)) ++count;
    }
    return held ? penalized(value, controls, count) : value;
  }
};

// Values with bias, mask and penalties, for the streaming main loop.
template <class T>
struct PenalizedValues : selection::RowValues<T> {
  HistoryTable* table;  // null if the row has no penalties

  const std::uint32_t* seen;
  std::uint32_t last_bit;

  // `history` is filled, or null.
  __device__ PenalizedValues(const selection::RowValues<T>& row, HistoryTable* history)
      : selection::RowValues<T>(row),
        table(history != nullptr && history->active ? history : nullptr),
        seen(table != nullptr ? table->seen() : nullptr),
        last_bit(table != nullptr ? table->sizes.bits - 1 : 0) {}

  template <int kN>
  __device__ void adjust(float (&logits)[kN], int token, int vocabulary) const {
    selection::RowValues<T>::adjust(logits, token, vocabulary);
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

// The values of a row with the dtype chosen at run time, for the epilogue: one instantiation for
// all kernels.
struct AnyValues {
  const void* logits;
  DType dtype;
  const float* bias;                // null = none
  const std::uint32_t* token_mask;  // null = no mask
  HistoryTable* table;              // filled; null = none

  __device__ float adjusted(float logit, std::int64_t token) const {
    const selection::RowValues<float> unpenalized{nullptr, bias, token_mask};
    const float value = unpenalized.adjusted(logit, token);
    if (table == nullptr || !table->active || !table->may_hold(token)) return value;
    return table->value_of(value, token);
  }
  __device__ float operator()(std::int64_t token) const {
    return adjusted(cuda::load_any(logits, dtype, token), token);
  }
};

}  // namespace touchstone::sampling
