// The tokens of a split as one warp of the decode kernel over bf16 reads them: where they are, and
// their copies to shared memory.
#pragma once

#include "ops/attention_paged/cuda/paged_bf16.cuh"
#include "ops/attention_paged/cuda/paged_token_list.cuh"

namespace touchstone::paged_attention {

template <class S, bool kExact>
struct alignas(1024) DecodeShared {
  static constexpr int kStages = tuning::kDecodeStages;
  static constexpr int kVectors = 8;
  std::byte chunks[kStages][2][S::kChunk * S::kRowBytes];  // keys, values
  float query[kExact ? 1 : kVectors][kExact ? 1 : S::kDim];
  std::uint32_t attended[kStages];  // tokens of a chunk, a bit each
  VisibleRange visible;             // with a tree
};

// One split of one row and KV head.
template <class S, bool kExact>
class DecodeTokens {
  using Shared = DecodeShared<S, kExact>;
  static constexpr int kChunk = S::kChunk;
  static constexpr int kRunsOfLane = S::kSplit / kRun / 32;

 public:
  // Every token of a chunk.
  static constexpr std::uint32_t kAll = kChunk == 32 ? 0xffffffffU : (1U << (kChunk % 32)) - 1;

  __device__ DecodeTokens(const SplitWork& work, Shared& shared)
      : work_(work), p_(work.p), shared_(shared), lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void set_split(int split, std::int64_t kv_head) {
    split_ = split;
    const std::int64_t head = kv_head * p_.pages.page_tokens * S::kRowBytes;
    keys_ = p_.pages.memory + work_.keys.values + head;
    values_ = p_.pages.memory + work_.values.values + head;
  }
  __device__ std::int64_t first() const { return std::int64_t{split_} * S::kSplit; }
  // Those that have tokens which are attended to.
  __device__ int first_chunk() const { return first_chunk_; }
  __device__ int end_chunk() const { return end_chunk_; }

  // The first page of the split in the lane's neighbor of a row, and in the row itself. Lane i looks
  // at row + i, the last lane at the row before. Loaded early, and waited for in rows_alike.
  struct Neighbor {
    int offset = 0;
    std::int32_t own = 0, other = -1;
  };
  __device__ Neighbor load_neighbor(std::int64_t row) const {
    Neighbor result;
    result.offset = lane_ == 31 ? -1 : lane_;
    const std::int64_t other = row + result.offset;
    const std::int64_t page = page_of(first());
    const bool there = other >= 0 && other < p_.rows && page < p_.pages.table_stride;
    if (result.offset == 0 || result.offset >= most_alike() || !there) return result;
    result.own = work_.table[row * p_.pages.table_stride + page];
    result.other = work_.table[other * p_.pages.table_stride + page];
    return result;
  }

  // Rows of one query, from `row` on, that have the pages of the split in common and the same mask
  // of it; none where that of a row before attends for this one too. Groups begin at multiples of
  // their size, so that a warp looks at few of its neighbors.
  __device__ std::uint32_t rows_alike(std::int64_t row, std::int64_t query, const SplitMask& mask,
                                      const Neighbor& neighbor) const {
    const auto most = static_cast<std::uint32_t>(most_alike());
    if (most == 1) return 1;
    const std::uint32_t at = static_cast<std::uint32_t>(query - work_.first_query) % most;
    const bool same = neighbor.offset == 0 || (neighbor.own == neighbor.other &&
                                               is_alike(row, query, neighbor.offset, mask));
    const unsigned alike = __ballot_sync(kAllLanes, static_cast<int>(same));
    if (at > 0 && alike >> 31 != 0) return 0;
    return min(static_cast<std::uint32_t>(__ffs(static_cast<int>(~alike | 1U << 31)) - 1),
               most - at);
  }

  // Where the tokens of the split are, and the chunks that have some.
  __device__ void find(std::int64_t row, const VisibleRange& visible, const SplitMask& mask) {
    mask_ = mask;
    pages_ = work_.table + row * p_.pages.table_stride;
    int begin = mask.begin;
    int end = mask.begin < mask.end ? mask.end : 0;
    first_ancestor_ = S::kSplit;
    if (mask.tree) {
      __syncwarp();
      if (lane_ == 0) shared_.visible = visible;
      __syncwarp();
      tree_ = find_ancestor(shared_.visible, first());
      first_ancestor_ = static_cast<int>(larger(visible.tree_position - first(), 0));
      if (end == 0) begin = first_ancestor_;
      const std::int64_t ancestors = visible.tree_position + count_ancestors(visible) - first();
      end = static_cast<int>(smaller(larger(ancestors, mask.end), S::kSplit));
    }
    if (mask.sinks > 0) begin = 0;
    end = max(end, mask.sinks);
    first_chunk_ = begin / kChunk;
    end_chunk_ = (end + kChunk - 1) / kChunk;
    in_runs_ = p_.pages.page_tokens % kRun == 0;
    if (!in_runs_) return;
#pragma unroll
    for (int i = 0; i < kRunsOfLane; ++i) {
      const std::int64_t position = first() + kRun * (lane_ + 32 * i);
      const std::int64_t page = page_of(position);
      const std::int32_t number = page < p_.pages.table_stride ? pages_[page] : -1;
      runs_[i] = number < 0 ? -1 : offset_of(number, position - page * p_.pages.page_tokens);
    }
  }
  // Unit `unit` of row `row`: the same unit of 8 rows falls into 8 different groups of banks.
  __device__ static std::uint32_t at(int row, int unit) {
    return static_cast<std::uint32_t>(row * S::kRowBytes + (unit ^ row % 8) * 16);
  }

  // No copies behind the end, but a group all the same.
  __device__ void issue(int chunk, int stage) {
    if (chunk < end_chunk_) issue_chunk(chunk, stage);
    cuda::commit_copies();
  }

 private:
  static constexpr int kUnits = S::kRowBytes / 16;  // of a row
  static constexpr int kRows = 32 / kUnits;         // copied at a time

  static constexpr int kVectors = Shared::kVectors;

  __device__ std::uint32_t heads() const { return static_cast<std::uint32_t>(p_.heads_per_kv); }

  __device__ int most_alike() const {
    return heads() < kVectors ? kVectors / static_cast<int>(heads()) : 1;
  }

  // Whether the row `offset` further on, which has the first page of the split in common, has all.
  __device__ bool is_alike(std::int64_t row, std::int64_t query, int offset,
                           const SplitMask& mask) const {
    const std::int64_t other = row + offset;
    const std::int64_t of_other = query + offset;
    if (of_other < work_.first_query || of_other >= work_.first_query + work_.queries) return false;
    if (p_.query_offsets[row + 1] != p_.query_offsets[row] + 1) return false;
    if (p_.query_offsets[other] != of_other || p_.query_offsets[other + 1] != of_other + 1) {
      return false;
    }
    if (!mask.same(split_mask(visible_range(p_, other, of_other), first(), S::kSplit))) {
      return false;
    }
    const std::int64_t page_tokens = p_.pages.page_tokens;
    const std::int64_t stride = p_.pages.table_stride;
    const std::int64_t end = smaller(page_of(first() + S::kSplit + page_tokens - 1), stride);
    const std::int32_t* const pages = work_.table + row * stride;
    const std::int32_t* const others = work_.table + other * stride;
    bool same = true;
#pragma unroll 8
    for (std::int64_t page = page_of(first()) + 1; page < end; ++page) {
      same = same && pages[page] == others[page];
    }
    return same;
  }

  __device__ static std::int64_t count_ancestors(const VisibleRange& visible) {
    std::int64_t result = 0;
    for (std::int64_t word = 0; word < visible.tree_words; ++word) {
      result += count_bits(tree_word(visible, word));
    }
    return result;
  }

  __device__ std::int64_t page_of(std::int64_t position) const {
    return work_.page_shift >= 0 ? position >> work_.page_shift : position / p_.pages.page_tokens;
  }
  // Of a token, from where the head begins in page 0.
  __device__ std::int64_t offset_of(std::int32_t page, std::int64_t slot) const {
    return page * p_.pages.geometry.page_bytes + slot * S::kRowBytes;
  }
  // The same for a token of the split, or -1.
  __device__ std::int64_t find_offset(int token) const {
    std::int64_t slot = first() + token;
    bool attended = token < mask_.end && (token < mask_.sinks || token >= mask_.begin);
    if (token >= first_ancestor_) {
      slot = ancestor_slot_of(shared_.visible, tree_, slot);
      attended = slot >= 0;
    }
    if (!attended) return -1;
    const std::int64_t page = page_of(slot);
    const std::int32_t number = page < p_.pages.table_stride ? pages_[page] : -1;
    return number < 0 ? -1 : offset_of(number, slot - page * p_.pages.page_tokens);
  }

  __device__ void issue_chunk(int chunk, int stage) {
    const int token = chunk * kChunk;
    const bool whole =
        token + kChunk <= mask_.sinks || (token >= mask_.begin && token + kChunk <= mask_.end);
    std::int64_t runs[kChunk / kRun];
    bool plain = whole && in_runs_;
    if (plain) {
#pragma unroll
      for (int i = 0; i < kChunk / kRun; ++i) {
        runs[i] = run_offset(token / kRun + i);
        plain = plain && runs[i] >= 0;
      }
    }
    if (!plain) return issue_listed(token, stage);
    if (lane_ == 0) shared_.attended[stage] = kAll;
    const std::uint32_t to = cuda::shared_address(shared_.chunks[stage][0]);
    const int row = lane_ / kUnits;
    const int unit = lane_ % kUnits;
    const std::int64_t own = row * S::kRowBytes + unit * 16;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const std::byte* const base = (part == 0 ? keys_ : values_) + own;
#pragma unroll
      for (int r = 0; r < kChunk; r += kRows) {
        cuda::copy_async_16(to + part * sizeof(shared_.chunks[0][0]) + at(row + r, unit),
                            base + runs[r / kRun] + r % kRun * S::kRowBytes);
      }
    }
  }
  __device__ std::int64_t run_offset(int run) const {
    std::int64_t result = __shfl_sync(kAllLanes, runs_[0], run % 32);
    if constexpr (kRunsOfLane == 2) {
      const std::int64_t upper = __shfl_sync(kAllLanes, runs_[1], run % 32);
      result = run < 32 ? result : upper;
    }
    return result;
  }

  // Tokens that may lie anywhere or be masked: those are zeros.
  __device__ void issue_listed(int token, int stage) {
    std::int64_t offset = -1;
    if (lane_ < kChunk) offset = find_offset(token + lane_);
    const unsigned attended = __ballot_sync(kAllLanes, static_cast<int>(offset >= 0));
    if (lane_ == 0) shared_.attended[stage] = attended;
    const std::uint32_t to = cuda::shared_address(shared_.chunks[stage][0]);
    const int unit = lane_ % kUnits;
#pragma unroll 1
    for (int r = lane_ / kUnits; r < kChunk; r += kRows) {
      const std::int64_t from = __shfl_sync(kAllLanes, offset, r);
      const bool there = from >= 0;
      const std::int64_t own = (there ? from : 0) + unit * 16;
      cuda::copy_async_16_if(to + at(r, unit), keys_ + own, there);
      cuda::copy_async_16_if(to + sizeof(shared_.chunks[0][0]) + at(r, unit), values_ + own, there);
    }
  }

  const SplitWork& work_;
  const PagedAttentionProblem& p_;
  Shared& shared_;
  int lane_;
  int split_ = 0;
  const std::byte* keys_ = nullptr;
  const std::byte* values_ = nullptr;
  SplitMask mask_{};
  const std::int32_t* pages_ = nullptr;
  TreeCursor tree_{};
  int first_ancestor_ = 0;
  int first_chunk_ = 0, end_chunk_ = 0;
  bool in_runs_ = false;
  std::int64_t runs_[kRunsOfLane] = {};  // where a run of the split begins, or -1
};

}  // namespace touchstone::paged_attention
