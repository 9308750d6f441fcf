// The values of a penalised row on the device: those of softmax_topk, and the penalties of the
// tokens that its history holds.
//
// A scan asks for every token whether the history holds it. Two bitmaps in shared memory answer:
// tokens of the whole history, and those of its output part. Vocabularies beyond kHistoryBits share
// bits; a bit that is set then only means that the history has to be searched.
#pragma once

#include "ops/sample/sample_row.h"
#include "ops/softmax_topk/topk_scan.cuh"

namespace touchstone::sampling {

inline constexpr std::int64_t kHistoryBits = std::int64_t{1} << 18;

// In shared memory, the bitmaps behind it.
struct alignas(16) HistoryTable {
  RowControls controls;
  const std::int32_t* history;
  std::int64_t length;
  std::int64_t prompt;  // so many entries are no output
  int words;            // of each bitmap
  bool exact;           // no two tokens share a bit
  bool active;          // the row is penalised at all

  __host__ __device__ static int words_for(std::int64_t vocabulary) {
    const std::int64_t bits = vocabulary < kHistoryBits ? vocabulary : kHistoryBits;
    return static_cast<int>((bits + 31) / 32);
  }
  __host__ __device__ static std::int64_t bytes(std::int64_t vocabulary) {
    return static_cast<std::int64_t>(sizeof(HistoryTable)) +
           8 * std::int64_t{words_for(vocabulary)};
  }

  __device__ std::uint32_t* seen() { return reinterpret_cast<std::uint32_t*>(this + 1); }
  __device__ std::uint32_t* in_output() { return seen() + words; }

  __device__ static bool is_set(const std::uint32_t* bits, std::int64_t token) {
    const auto bit = static_cast<std::uint32_t>(token) % static_cast<std::uint32_t>(kHistoryBits);
    return (bits[bit / 32] >> (bit % 32) & 1U) != 0;
  }
  __device__ static void set(std::uint32_t* bits, std::int32_t token) {
    const auto bit = static_cast<std::uint32_t>(token) % static_cast<std::uint32_t>(kHistoryBits);
    atomicOr(&bits[bit / 32], 1U << (bit % 32));
  }

  // By the whole block.
  __device__ void fill(const Sampling& p, std::int64_t row, const RowControls& row_controls) {
    const int thread = static_cast<int>(threadIdx.x);
    const int bitmap_words = words_for(p.vocabulary);
    if (thread == 0) {
      controls = row_controls;
      history = p.history + row * p.history_stride;
      length = p.history_length;
      prompt = prompt_entries(p, row);
      words = bitmap_words;
      exact = p.vocabulary <= kHistoryBits;
      active = row_controls.penalises();
    }
    __syncthreads();
    if (!active) return;
    for (int i = thread; i < 2 * bitmap_words; i += topk::kScanThreads) seen()[i] = 0;
    __syncthreads();
    for (std::int64_t i = thread; i < length; i += topk::kScanThreads) {
      const std::int32_t token = history[i];
      if (token < 0 || token >= p.vocabulary) continue;
      set(seen(), token);
      if (i >= prompt) set(in_output(), token);
    }
    __syncthreads();
  }

  // The value of a token whose bit is set. Out of line: rare, and no burden on the scan. How often
  // a token occurs in the output only matters to the frequency penalty.
  __device__ __noinline__ float penalty(float value, std::int64_t token) {
    bool held = exact;
    std::int64_t count = 0;
    if (exact && (controls.frequency == 0 || !is_set(in_output(), token))) {
      count = is_set(in_output(), token) ? 1 : 0;
    } else {
      for (std::int64_t i = exact ? prompt : 0; i < length; ++i) {
        if (__ldg(history + i) != token) continue;
        held = true;
        if (i >= prompt) ++count;
      }
    }
    return held ? penalised(value, controls, count) : value;
  }
};

template <class T>
struct PenalisedValues : topk::RowValues<T> {
  HistoryTable* table;
  const std::uint32_t* seen;  // null where the row is not penalised

  // Of a table that is filled.
  __device__ PenalisedValues(const topk::RowValues<T>& row, HistoryTable* history)
      : topk::RowValues<T>(row),
        table(history),
        seen(history->active ? history->seen() : nullptr) {}

  __device__ float adjusted(float logit, std::int64_t token) const {
    const float value = topk::RowValues<T>::adjusted(logit, token);
    if (seen == nullptr || !HistoryTable::is_set(seen, token)) return value;
    return table->penalty(value, token);
  }
  __device__ float operator()(std::int64_t token) const {
    return adjusted(cuda::widen(this->logits[token]), token);
  }
};

}  // namespace touchstone::sampling
