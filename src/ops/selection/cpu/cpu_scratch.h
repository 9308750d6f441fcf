// Scratch memory of CPU selections, partitioned from the workspace of the context.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/context_access.h"
#include "ops/selection/cpu/cpu_select.h"
#include "ops/selection/selection_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::selection {

// Threads that a call is worth.
inline std::int64_t useful_threads(const LogitRows& rows, std::int64_t max_threads) {
  const std::int64_t row_bytes = rows.vocabulary * size_of(rows.dtype);
  if (row_bytes >= kCpuBytesPerThread * max_threads) return max_threads;
  return std::clamp<std::int64_t>(rows.rows / ceil_div(kCpuBytesPerThread, row_bytes), 1,
                                  max_threads);
}

// Cuts one allocation into arrays. With a null base it only measures.
class WorkspacePartition {
 public:
  explicit WorkspacePartition(void* base) : base_(static_cast<char*>(base)) {}

  // `count` elements and a vector more: kernels store whole vectors.
  template <class Element>
  Element* take(std::size_t count) {
    constexpr std::size_t kVectorBytes = 64;
    char* const piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * sizeof(Element) + 2 * kVectorBytes - 1) / kVectorBytes * kVectorBytes;
    return reinterpret_cast<Element*>(piece);
  }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

// The arrays of one row.
inline RowScratch partition_row(const LogitRows& rows, const ScratchSizes& s,
                                WorkspacePartition& from) {
  RowScratch scratch;
  scratch.fine = from.take<float>(s.blocks * s.lanes);
  scratch.coarse = from.take<float>(s.coarse * s.lanes);
  scratch.segments = from.take<SegmentSum>(s.segments);
  scratch.maxima = from.take<float>(s.maxima);
  scratch.coarse_list = from.take<std::uint32_t>(s.coarse);
  scratch.listed = from.take<std::uint32_t>(s.blocks * s.lanes);
  scratch.found_bits = from.take<std::uint32_t>(s.candidates);
  scratch.found_tokens = from.take<std::uint32_t>(s.candidates);
  scratch.bins = from.take<std::uint16_t>(s.candidates);
  scratch.candidates = from.take<Candidate>(s.candidates);
  scratch.sorted = from.take<Candidate>(s.candidates);
  scratch.equals = from.take<std::uint32_t>(s.slots);
  scratch.top = from.take<float>(s.slots);
  scratch.values = from.take<float>(rows.has_raw_logits() ? 0 : s.segment_tokens);
  return scratch;
}

// Equal pieces of the workspace: some that tasks lease, one task at a time, and some that are
// reserved for rows. `Layout` partitions a piece: auto layout(WorkspacePartition&) -> its arrays.
// The number of leased pieces is at least that of concurrent tasks, so one is always free.
template <class Layout>
class ScratchPool {
 public:
  ScratchPool(Context& context, const char* op, Layout layout, std::int64_t leased,
              std::int64_t reserved)
      : layout_(layout), busy_(static_cast<std::size_t>(leased)) {
    WorkspacePartition measure(nullptr);
    layout_(measure);
    bytes_ = static_cast<std::int64_t>(measure.used());
    const std::int64_t all = checked_mul(checked_add(leased, reserved, op), bytes_, op);
    memory_ = static_cast<char*>(detail::ContextAccess::workspace(context, all));
  }

  // For the duration of a task. Prefers the piece that this thread used last: it is in its cache.
  class ScratchLease {
   public:
    explicit ScratchLease(ScratchPool& pool) : pool_(pool) {
      thread_local std::size_t last = 0;
      std::vector<std::atomic<bool>>& busy = pool.busy_;
      slot_ = last % busy.size();
      while (busy[slot_].exchange(true, std::memory_order_acquire)) {
        slot_ = (slot_ + 1) % busy.size();
      }
      last = slot_;
    }
    ~ScratchLease() { pool_.busy_[slot_].store(false, std::memory_order_release); }
    ScratchLease(const ScratchLease&) = delete;
    ScratchLease& operator=(const ScratchLease&) = delete;

    auto scratch() const { return pool_.piece(slot_); }

   private:
    ScratchPool& pool_;
    std::size_t slot_ = 0;
  };

  auto reserved(std::int64_t index) const {
    return piece(busy_.size() + static_cast<std::size_t>(index));
  }

 private:
  auto piece(std::size_t index) const {
    WorkspacePartition partition(memory_ + static_cast<std::int64_t>(index) * bytes_);
    return layout_(partition);
  }

  Layout layout_;
  std::int64_t bytes_ = 0;
  std::vector<std::atomic<bool>> busy_;
  char* memory_ = nullptr;
};

}  // namespace touchstone::selection
