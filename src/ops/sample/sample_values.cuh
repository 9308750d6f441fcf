// The values of a penalised row on the device: those of softmax_topk, and the penalties of the
// tokens that its history holds.
//
// A scan asks for every token whether the history holds it. A bitmap in shared memory answers for a
// few tokens at once; tokens share bits, so that a bit only says where to look: in a table of the
// history's tokens and how often each is output.
#pragma once

#include "ops/sample/sample_row.h"
#include "ops/softmax_topk/topk_scan.cuh"

namespace touchstone::sampling {

// Longer histories have no table but themselves, and a larger bitmap.
inline constexpr std::int64_t kMostTabled = 4096;

// How much there is of both, by the shape of a problem.
struct HistorySizes {
  std::uint32_t bits;   // a power of two
  std::uint32_t slots;  // a power of two, or 0

  static HistorySizes of(const Sampling& p) {
    HistorySizes sizes{1U << 16, 16};
    if (p.history_length > kMostTabled) return {1U << 18, 0};
    while (sizes.slots < 2 * p.history_length) sizes.slots *= 2;
    return sizes;
  }
};

// In shared memory, the bitmap and the table behind it.
struct alignas(16) HistoryTable {
  struct Slot {
    std::int32_t token;  // -1 = none
    std::uint32_t in_output;
  };

  RowControls controls;
  const std::int32_t* history;
  std::int64_t length;
  std::int64_t prompt;  // so many entries are no output
  HistorySizes sizes;
  bool active;  // the row is penalised at all

  static std::int64_t bytes(const HistorySizes& sizes) {
    return static_cast<std::int64_t>(sizeof(HistoryTable)) + sizes.bits / 8 +
           std::int64_t{8} * sizes.slots;
  }

  __device__ std::uint32_t* seen() { return reinterpret_cast<std::uint32_t*>(this + 1); }
  __device__ Slot* slots() { return reinterpret_cast<Slot*>(seen() + sizes.bits / 32); }
  __device__ std::uint32_t slot_of(std::int64_t token) const {
    return static_cast<std::uint32_t>(token) * 2654435769U >> 7 & (sizes.slots - 1);
  }

  // The bits of kN tokens from this one on, which is a multiple of kN.
  template <int kN>
  __device__ std::uint32_t bits_at(std::int64_t token) {
    const std::uint32_t bit = static_cast<std::uint32_t>(token) & (sizes.bits - 1);
    return seen()[bit / 32] >> (bit % 32) & ((1U << kN) - 1);
  }

  // By the whole block.
  __device__ void fill(const Sampling& p, std::int64_t row, const RowControls& row_controls,
                       const HistorySizes& wanted) {
    constexpr int kThreads = topk::kScanThreads;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      controls = row_controls;
      history = p.history + row * p.history_stride;
      length = p.history_length;
      prompt = prompt_entries(p, row);
      sizes = wanted;
      active = row_controls.penalises();
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
  }

  // The value of a token whose bit is set. Out of line: rare, and no burden on the scan.
  __device__ __noinline__ float penalty(float value, std::int64_t token) {
    bool held = false;
    std::int64_t count = 0;
    if (sizes.slots > 0) {
      std::uint32_t slot = slot_of(token);
      while (slots()[slot].token >= 0 && slots()[slot].token != token) {
        slot = (slot + 1) & (sizes.slots - 1);
      }
      held = slots()[slot].token >= 0;
      count = slots()[slot].in_output;
    } else {
      for (std::int64_t i = 0; i < length; ++i) {
        if (__ldg(history + i) != token) continue;
        held = true;
        if (i >= prompt) ++count;
      }
    }
    return held ? penalised(value, controls, count) : value;
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
    if (is_output) atomicAdd(&slots()[slot].in_output, 1U);
  }
};

// What a scan that is not plain takes: bias and mask, and the penalties of rows that have some.
template <class T>
struct PenalisedValues : topk::RowValues<T> {
  HistoryTable* table;  // null where the row is not penalised

  // Of a table that is filled, or none.
  __device__ PenalisedValues(const topk::RowValues<T>& row, HistoryTable* history)
      : topk::RowValues<T>(row), table(history != nullptr && history->active ? history : nullptr) {}

  template <int kN>
  __device__ void adjust(float (&logits)[kN], int token, int vocabulary) const {
    topk::RowValues<T>::adjust(logits, token, vocabulary);
    if (table == nullptr || token >= vocabulary) return;
    const std::uint32_t bits = table->template bits_at<kN>(token);
    if (bits == 0) return;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if ((bits >> i & 1U) != 0) logits[i] = table->penalty(logits[i], token + i);
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
    const topk::RowValues<float> unpenalised{nullptr, bias, allowed};
    const float value = unpenalised.adjusted(logit, token);
    if (table == nullptr || !table->active || table->bits_at<1>(token) == 0) return value;
    return table->penalty(value, token);
  }
  __device__ float operator()(std::int64_t token) const {
    return adjusted(cuda::load_any(logits, dtype, token), token);
  }
};

}  // namespace touchstone::sampling
