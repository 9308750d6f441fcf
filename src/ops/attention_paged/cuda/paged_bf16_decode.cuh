// One warp of cached_attention over bf16 for few queries: it streams a split of one KV head through
// a pipeline of chunks in shared memory of its own and never waits for another warp.
//
// Query vectors are the rows of the products that give scores and tokens their columns, so that a
// lane has the scores of one vector where weights are operands of the second product: numbers of a
// value (rows) with 8 query vectors (columns). A query that is not bf16 is the sum of three bf16;
// the second is in the rows that 8 vectors leave empty.
#pragma once

#include "cache/rotation.h"
#include "ops/attention_paged/cuda/paged_bf16.cuh"
#include "ops/attention_paged/cuda/paged_rows.cuh"
#include "ops/attention_paged/cuda/paged_token_list.cuh"

namespace touchstone::paged_attention {

// Whether a query is bf16 as it is used.
TOUCHSTONE_HOST_DEVICE inline bool is_bf16_query(const PagedAttentionProblem& p) {
  return p.q_dtype == DType::bf16 && !p.layers.rotate_keys;
}

template <class S, bool kExact>
struct alignas(1024) DecodeShared {
  static constexpr int kStages = tuning::kDecodeStages;
  static constexpr int kVectors = 8;
  std::byte chunks[kStages][2][S::kChunk * S::kRowBytes];  // keys, values
  float query[kExact ? 1 : kVectors][kExact ? 1 : S::kDim];
  std::uint32_t attended[kStages];  // tokens of a chunk, a bit each
  VisibleRange visible;             // with a tree
};

template <class S, bool kExact>
class DecodeWarp {
  using Shared = DecodeShared<S, kExact>;
  static constexpr int kVectors = Shared::kVectors;
  static constexpr int kStages = Shared::kStages;
  static constexpr int kChunk = S::kChunk;
  static constexpr int kTiles = kChunk / 8;
  static constexpr int kParts = kExact ? 1 : 3;
  static constexpr int kRunsOfLane = S::kSplit / kRun / 32;
  static constexpr std::uint32_t kAll = kChunk == 32 ? 0xffffffffU : (1U << (kChunk % 32)) - 1;

 public:
  __device__ DecodeWarp(const SplitWork& work, Shared& shared)
      : work_(work), p_(work.p), shared_(shared), lane_(static_cast<int>(threadIdx.x)) {}

  __device__ void run() {
    const auto count = [this](std::int64_t row) {
      const RowWork of_row = row_work(work_, row);
      const auto tile = static_cast<unsigned>(work_.tile);
      return (of_row.count + tile - 1) / tile * of_row.splits *
             static_cast<unsigned>(p_.layers.kv_heads);
    };
    RowCursor cursor(p_.rows, count);
    RowItem item;
    for (unsigned i = blockIdx.x; cursor.find(i, item); i += gridDim.x) attend_item(item);
  }

 private:
  __device__ unsigned row() const { return static_cast<unsigned>(lane_) / 4; }
  __device__ unsigned column() const { return static_cast<unsigned>(lane_) % 4; }
  __device__ std::uint32_t heads() const { return static_cast<std::uint32_t>(p_.heads_per_kv); }
  __device__ std::int64_t first() const { return std::int64_t{split_} * S::kSplit; }

  // ---- what is attended to ----------------------------------------------------------------------

  // Some queries of a row, one KV head, one split.
  __device__ void attend_item(const RowItem& item) {
    const RowWork of_row = row_work(work_, item.row);
    // Heads first: they have their tokens in the same pages.
    const auto kv_heads = static_cast<unsigned>(p_.layers.kv_heads);
    kv_head_ = item.number % kv_heads;
    split_ = static_cast<int>(item.number / kv_heads % of_row.splits);
    const std::int64_t tile = item.number / kv_heads / of_row.splits;
    std::int64_t query = of_row.first + tile * work_.tile;
    const std::int64_t end = smaller(query + work_.tile, of_row.first + of_row.count);
    while (query < end) query += attend_queries(item.row, query, end);
  }

  // For `query` and those after it with the same mask; returns their number.
  __device__ std::uint32_t attend_queries(std::int64_t row, std::int64_t query, std::int64_t end) {
    const VisibleRange visible = visible_range(p_, row, query);
    const bool due =
        work_.partials == nullptr || splits_of(visible, work_.splits, S::kSplit).has(split_);
    if (!due) return 1;
    const SplitMask mask = split_mask(visible, first(), S::kSplit);
    std::uint32_t alike = 1;
    std::uint32_t done = 1;
    if (work_.tile == 1) {
      alike = rows_alike(row, query, mask);
      if (alike == 0) return 1;
    } else {
      while (query + alike < end && (alike + 1) * heads() <= kVectors &&
             mask.same(split_mask(visible_range(p_, row, query + alike), first(), S::kSplit))) {
        ++alike;
      }
      done = alike;
    }
    query_ = query;
    find_tokens(row, visible, mask);
    const std::uint32_t all = alike * heads();
    for (first_vector_ = 0; first_vector_ < all; first_vector_ += kVectors) {
      vectors_ = min(kVectors, static_cast<int>(all - first_vector_));
      pass();
    }
    return done;
  }

  // Rows of one query, from `row` on, that have the pages of the split in common and the same mask
  // of it; none where that of a row before attends for this one too. Groups begin at multiples of
  // their size, so that a warp looks at few of its neighbors.
  __device__ std::uint32_t rows_alike(std::int64_t row, std::int64_t query,
                                      const SplitMask& mask) const {
    const std::uint32_t most = heads() < kVectors ? kVectors / heads() : 1;
    if (most == 1) return 1;
    const std::uint32_t at = static_cast<std::uint32_t>(query - work_.first_query) % most;
    // Lane i looks at row + i, the last lane at the row before.
    const int offset = lane_ == 31 ? -1 : lane_;
    const unsigned alike = __ballot_sync(
        kAllLanes, static_cast<int>(is_alike(row, query, offset, static_cast<int>(most), mask)));
    if (at > 0 && alike >> 31 != 0) return 0;
    return min(static_cast<std::uint32_t>(__ffs(static_cast<int>(~alike | 1U << 31)) - 1),
               most - at);
  }

  __device__ bool is_alike(std::int64_t row, std::int64_t query, int offset, int most,
                           const SplitMask& mask) const {
    if (offset == 0) return true;
    if (offset >= most) return false;
    const std::int64_t other = row + offset;
    const std::int64_t of_other = query + offset;
    if (of_other < work_.first_query || of_other >= work_.first_query + work_.queries) return false;
    if (other < 0 || other >= p_.rows) return false;
    const std::int64_t page_tokens = p_.pages.page_tokens;
    const std::int64_t stride = p_.pages.table_stride;
    const std::int64_t first_page = first() / page_tokens;
    const std::int64_t end = smaller((first() + S::kSplit + page_tokens - 1) / page_tokens, stride);
    const std::int32_t* const pages = work_.table + row * stride;
    const std::int32_t* const others = work_.table + other * stride;
    if (first_page >= end || pages[first_page] != others[first_page]) return false;
    if (p_.query_offsets[other] != of_other || p_.query_offsets[other + 1] != of_other + 1) {
      return false;
    }
    if (!mask.same(split_mask(visible_range(p_, other, of_other), first(), S::kSplit))) {
      return false;
    }
    bool same = true;
#pragma unroll 8
    for (std::int64_t page = first_page + 1; page < end; ++page) {
      same = same && pages[page] == others[page];
    }
    return same;
  }

  // Where the tokens of the split are, and the chunks that have some.
  __device__ void find_tokens(std::int64_t row, const VisibleRange& visible,
                              const SplitMask& mask) {
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

  // ---- copies -----------------------------------------------------------------------------------

  static constexpr int kUnits = S::kRowBytes / 16;  // of a row
  static constexpr int kRows = 32 / kUnits;         // copied at a time

  // Unit `unit` of row `row`: the same unit of 8 rows falls into 8 different groups of banks.
  __device__ static std::uint32_t at(int row, int unit) {
    return static_cast<std::uint32_t>(row * S::kRowBytes + (unit ^ row % 8) * 16);
  }

  // No copies behind the end, but a group all the same.
  __device__ void issue(int chunk, int stage) {
    if (chunk < end_chunk_) issue_chunk(chunk, stage);
    cuda::commit_copies();
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

  // ---- one pass over the split ------------------------------------------------------------------

  __device__ void pass() {
    const std::int64_t head = kv_head_ * p_.pages.page_tokens * S::kRowBytes;
    keys_ = p_.pages.memory + work_.keys.values + head;
    values_ = p_.pages.memory + work_.values.values + head;
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) issue(first_chunk_ + i, i);
    load_query();
    multiplier_ = score_multiplier(p_);
    to_log2_ = __fmul_rn(p_.soft_cap > 0 ? 1.0F : multiplier_, kLog2E);
    largest_ = minus_infinity();
    sum_ = 0;
#pragma unroll
    for (auto& tile : output_) {
#pragma unroll
      for (float& x : tile) x = 0;
    }
    int stage = 0;
#pragma unroll 1
    for (int chunk = first_chunk_; chunk < end_chunk_; ++chunk) {
      cuda::wait_copies<kStages - 1>();
      __syncwarp();
      attend_chunk(stage);
      __syncwarp();
      issue(chunk + kStages, stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    cuda::wait_copies<0>();
    __syncwarp();
    finish();
  }

  __device__ std::int64_t query_of(unsigned vector) const {
    return query_ + (first_vector_ + vector) / heads();
  }
  __device__ std::int64_t head_of(unsigned vector) const {
    return kv_head_ * heads() + (first_vector_ + vector) % heads();
  }

  // The lane's numbers of its vector: 2 * column() and the next of every 8.
  __device__ void load_query() {
    const bool there = static_cast<int>(row()) < vectors_;
    if constexpr (kExact) {
      const auto* const query = static_cast<const std::uint16_t*>(p_.q.data) +
                                (there ? p_.q.offset(query_of(row()), head_of(row())) : 0) +
                                2 * column();
      const std::uint32_t flip = p_.scale < 0 ? 0x80008000U : 0U;
#pragma unroll
      for (int i = 0; i < 2 * S::kProducts; ++i) {
        const std::uint32_t low = there ? query[8 * i] : 0U;
        const std::uint32_t high = there ? query[8 * i + 1] : 0U;
        query_parts_[0][i / 2][i % 2] = there ? (high << 16 | low) ^ flip : 0U;
      }
    } else {
      load_floats();
      const float sign = p_.scale < 0 ? -1.0F : 1.0F;
#pragma unroll
      for (int i = 0; i < 2 * S::kProducts; ++i) {
        const float* const from = shared_.query[row()] + 8 * i + 2 * column();
        float x[2] = {__fmul_rn(from[0], sign), __fmul_rn(from[1], sign)};
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          query_parts_[part][i / 2][i % 2] = take_bf16_pair(x[0], x[1]);
        }
      }
    }
  }

  // All vectors as floats, rotated as keys are.
  __device__ void load_floats() {
    __syncwarp();
    for (int i = lane_; i < kVectors * S::kDim; i += 32) {
      const int vector = i / S::kDim;
      float x = 0;
      if (vector < vectors_) {
        const auto v = static_cast<unsigned>(vector);
        const std::int64_t at = p_.q.offset(query_of(v), head_of(v)) + i % S::kDim;
        if (p_.q_dtype == DType::f32) {
          x = static_cast<const float*>(p_.q.data)[at];
        } else if (p_.q_dtype == DType::bf16) {
          x = cuda::widen(static_cast<const Bf16*>(p_.q.data)[at]);
        } else {
          x = cuda::widen(static_cast<const F16*>(p_.q.data)[at]);
        }
      }
      shared_.query[vector][i % S::kDim] = x;
    }
    __syncwarp();
    if (p_.layers.rotate_keys) rotate();
  }

  // cache::rotate() of every vector.
  __device__ void rotate() {
    constexpr int kHalf = S::kDim / 2;
    const auto block = static_cast<int>(cache::rotation_block(S::kDim));
    if (block == 1) return;
    for (int distance = 1; distance < block; distance *= 2) {
      for (int i = lane_; i < kVectors * kHalf; i += 32) {
        const int pair = i % kHalf;
        const int within = pair & (distance - 1);
        float* const x = shared_.query[i / kHalf] + 2 * (pair - within) + within;
        const float a = x[0];
        const float b = x[distance];
        x[0] = a + b;
        x[distance] = a - b;
      }
      __syncwarp();
    }
    const float factor = cache::rotation_factor(block);
    for (int i = lane_; i < kVectors * S::kDim; i += 32) {
      float& x = shared_.query[i / S::kDim][i % S::kDim];
      x = cache::rotation_scaled(x, factor);
    }
    __syncwarp();
  }

  __device__ void attend_chunk(int stage) {
    // Matrix i of four: tokens 8 * (i / 2) and on, unit i % 2 of a pair.
    const int matrix = lane_ / 8;
    const std::uint32_t keys = cuda::shared_address(shared_.chunks[stage][0]);
    float scores[kTiles][2];
    score(keys, matrix, scores);
    if (p_.soft_cap > 0) cap(scores);
    if (const std::uint32_t attended = shared_.attended[stage]; attended != kAll) {
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const unsigned token = 8 * (i / 2) + 2 * column() + i % 2;
        if ((attended >> token & 1) == 0) scores[i / 2][i % 2] = minus_infinity();
      }
    }
    weigh(scores);
    std::uint32_t first[kTiles], second[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      first[t] = take_bf16_pair(scores[t][0], scores[t][1]);
      second[t] = bf16_pair(scores[t][0], scores[t][1]);
    }
    const std::uint32_t values = keys + sizeof(shared_.chunks[0][0]);
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      const int token = 8 * t + matrix / 2 * 8 + lane_ % 8;
#pragma unroll
      for (int n = 0; n < S::kProducts; n += 4) {
        std::uint32_t x[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          cuda::load_transposed(values + at(token, 2 * (n + i) + matrix % 2), x[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          cuda::multiply_add_bf16(output_[n + i], x[i], first[t], first[t + 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          cuda::multiply_add_bf16(output_[n + i], x[i], second[t], second[t + 1]);
        }
      }
    }
  }

  __device__ void score(std::uint32_t keys, int matrix, float (&scores)[kTiles][2]) const {
    float sums[kTiles][4] = {};
    float thirds[kExact ? 1 : kTiles][4] = {};
#pragma unroll
    for (int k = 0; k < S::kProducts; ++k) {
      const std::uint32_t query[4] = {
          query_parts_[0][k][0], kExact ? 0U : query_parts_[kParts / 2][k][0],
          query_parts_[0][k][1], kExact ? 0U : query_parts_[kParts / 2][k][1]};
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        std::uint32_t x[4];
        const int token = 8 * t + matrix / 2 * 8 + lane_ % 8;
        cuda::load_matrices(keys + at(token, 2 * k + matrix % 2), x);
        cuda::multiply_add_bf16(sums[t], query, x[0], x[1]);
        cuda::multiply_add_bf16(sums[t + 1], query, x[2], x[3]);
        if constexpr (!kExact) {
          const std::uint32_t third[4] = {query_parts_[2][k][0], 0, query_parts_[2][k][1], 0};
          cuda::multiply_add_bf16(thirds[t], third, x[0], x[1]);
          cuda::multiply_add_bf16(thirds[t + 1], third, x[2], x[3]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float x = sums[t][i];
        if constexpr (!kExact) {
          // An infinity must not meet the zeros in the other parts.
          if (fabsf(x) != -minus_infinity()) {
            x = __fadd_rn(x, __fadd_rn(sums[t][i + 2], thirds[t][i]));
          }
        }
        scores[t][i] = x;
      }
    }
  }

  __device__ void cap(float (&scores)[kTiles][2]) const {
#pragma unroll
    for (auto& tile : scores) {
#pragma unroll
      for (float& x : tile) x = capped_bf16_score(__fmul_rn(x, multiplier_), p_.soft_cap);
    }
  }

  // Scores become weights.
  __device__ void weigh(float (&scores)[kTiles][2]) {
    float top = scores[0][0];
#pragma unroll
    for (int i = 1; i < 2 * kTiles; ++i) top = fmaxf(top, scores[i / 2][i % 2]);
    if (__any_sync(kAllLanes, static_cast<int>(is_above(top, largest_, to_log2_))) != 0) {
      top = max_of_row(top);
      move_largest(is_above(top, largest_, to_log2_) ? top : largest_);
    }
    const float base = weight_base(largest_, to_log2_);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      float& x = scores[i / 2][i % 2];
      x = bf16_weight(x, to_log2_, base);
      sum_ = __fadd_rn(sum_, x);
    }
  }

  __device__ void move_largest(float largest) {
    const float factor = moving_factor(largest_, largest, to_log2_);
    largest_ = largest;
    sum_ = __fmul_rn(sum_, factor);
    const float factors[2] = {of_vector(factor, 2 * column()), of_vector(factor, 2 * column() + 1)};
#pragma unroll
    for (auto& tile : output_) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[i] = __fmul_rn(tile[i], factors[i % 2]);
    }
  }

  // What the lanes of a query vector have.
  __device__ static float of_vector(float x, unsigned vector) {
    return __shfl_sync(kAllLanes, x, static_cast<int>(4 * vector));
  }

  __device__ void finish() {
    const float sum = sum_of_row(sum_);
    const float largest = p_.soft_cap > 0 ? largest_ : __fmul_rn(largest_, multiplier_);
    const bool writes = column() == 0 && static_cast<int>(row()) < vectors_;
    if (work_.partials != nullptr) {
      if (writes) {
        work_.partials[partial_of(query_of(row()), head_of(row()))] = {largest, sum};
      }
      store([&](unsigned vector) {
        float* const to =
            work_.partial_values + partial_of(query_of(vector), head_of(vector)) * S::kDim;
        return [to](int d, float x) { to[d] = x; };
      });
      return;
    }
    const SoftmaxEpilogue epilogue(
        p_.sink_logits, static_cast<int>(row()) < vectors_ ? head_of(row()) : 0, largest, sum);
    if (writes && p_.log_sum_exp.data != nullptr) {
      p_.log_sum_exp.data[p_.log_sum_exp.offset(query_of(row()), head_of(row()))] =
          epilogue.log_sum_exp;
    }
    store([&](unsigned vector) {
      SoftmaxEpilogue own = epilogue;
      own.factor = of_vector(epilogue.factor, vector);
      own.nothing = of_vector(epilogue.nothing ? 1.0F : 0.0F, vector) != 0;
      const std::int64_t to = p_.output.offset(query_of(vector), head_of(vector));
      return [this, own, to](int d, float x) { store_output(p_, to + d, finished_value(x, own)); };
    });
  }

  // `target` of a vector gives what stores its number d.
  template <class Target>
  __device__ void store(const Target& target) const {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const unsigned vector = 2 * column() + x;
      const auto put = target(vector);
      if (static_cast<int>(vector) >= vectors_) continue;
#pragma unroll
      for (int n = 0; n < S::kProducts; ++n) {
        put(16 * n + static_cast<int>(row()), output_[n][x]);
        put(16 * n + static_cast<int>(row()) + 8, output_[n][x + 2]);
      }
    }
  }

  __device__ std::int64_t partial_of(std::int64_t query, std::int64_t head) const {
    return ((query - work_.first_query) * p_.query_heads + head) * work_.splits + split_;
  }

  const SplitWork& work_;
  const PagedAttentionProblem& p_;
  Shared& shared_;
  int lane_;
  // The item.
  int split_ = 0;
  std::int64_t kv_head_ = 0;
  std::int64_t query_ = 0;
  std::uint32_t first_vector_ = 0;
  int vectors_ = 0;
  // Its tokens.
  SplitMask mask_{};
  const std::int32_t* pages_ = nullptr;
  TreeCursor tree_{};
  int first_ancestor_ = 0;
  int first_chunk_ = 0, end_chunk_ = 0;
  bool in_runs_ = false;
  std::int64_t runs_[kRunsOfLane] = {};  // where a run of the split begins, or -1
  const std::byte* keys_ = nullptr;
  const std::byte* values_ = nullptr;
  // The sums of the split.
  float multiplier_ = 1, to_log2_ = 1;
  float largest_ = 0, sum_ = 0;
  std::uint32_t query_parts_[kParts][S::kProducts][2];
  float output_[S::kProducts][4];
};

}  // namespace touchstone::paged_attention
