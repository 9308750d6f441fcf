// Work of a launch whose rows have different numbers of queries and tokens. Lengths and offsets are
// in device memory, so that a captured launch follows them; the work is counted there, too.
#pragma once

#include "ops/attention_paged/cuda/paged_cuda.cuh"

namespace touchstone::paged_attention {

struct RowItem {
  std::int64_t row = 0;
  unsigned number = 0;  // among those of the row
};

// Numbers the items of all rows, one row after another. `Count` says how many a row has. By whole
// warps.
template <class Count>
class RowCursor {
 public:
  __device__ RowCursor(std::int64_t rows, Count count) : rows_(rows), count_(count) {}

  // Whether there is such an item. Items are requested in ascending order.
  __device__ bool find(unsigned item, RowItem& found) {
    while (item >= end_) {
      if (next_ >= rows_) return false;
      load();
    }
    const unsigned within = item - begin_;
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, upto_ > within))) - 1;
    const unsigned before = __shfl_sync(kAllLanes, upto_ - own_, lane);
    found = {next_ - 32 + lane, within - before};
    return true;
  }

 private:
  // The next 32 rows.
  __device__ void load() {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const std::int64_t row = next_ + lane;
    own_ = row < rows_ ? count_(row) : 0U;
    upto_ = own_;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const unsigned other = __shfl_up_sync(kAllLanes, upto_, offset);
      if (lane >= offset) upto_ += other;
    }
    begin_ = end_;
    end_ += __shfl_sync(kAllLanes, upto_, 31);
    next_ += 32;
  }

  std::int64_t rows_;
  Count count_;
  std::int64_t next_ = 0;         // row
  unsigned begin_ = 0, end_ = 0;  // items of the 32 rows before it
  unsigned own_ = 0, upto_ = 0;   // items of the lane's row, and of all up to it
};

// Rows with at least this many queries go to the prefill kernel; the others to the decode kernel.
__device__ inline bool is_prefill(const PagedAttentionProblem& p, std::int64_t row, int queries) {
  return queries > 0 && p.query_offsets[row + 1] - p.query_offsets[row] >= queries;
}

// What the decode kernel has to do for a row: its queries [first, first + count) of this launch,
// and the splits that its tokens lie in.
struct RowWork {
  std::int64_t first;
  unsigned count;
  unsigned splits;
};

__device__ inline RowWork row_work(const SplitWork& work, std::int64_t row) {
  const PagedAttentionProblem& p = work.p;
  const std::int64_t first = larger(p.query_offsets[row], work.first_query);
  const std::int64_t end = smaller(p.query_offsets[row + 1], work.first_query + work.queries);
  const std::int64_t splits = (p.lengths[row] + work.split - 1) / work.split;
  const bool none = end <= first || is_prefill(p, row, work.prefill_queries);
  return {first, none ? 0U : static_cast<unsigned>(end - first),
          static_cast<unsigned>(smaller(larger(splits, 1), work.splits))};
}

}  // namespace touchstone::paged_attention
