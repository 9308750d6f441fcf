// Warps of cached_attention over bf16 for few queries. kWarps = 1: warp-private split-KV pipeline, one
// warp per split of a KV head, no synchronization with other warps. kWarps > 1, where there are few
// splits: the warps of a CTA share a split; QK^T is partitioned by chunk, PV by head-dim columns, in
// fixed chunk order, so that sums have the same bits.
//
// Query vectors are the rows of the products that give scores and tokens their columns, so that a
// lane has the scores of one vector where weights are operands of the second product: numbers of a
// value (rows) with 8 query vectors (columns). A query that is not bf16 is the sum of three bf16;
// the second is in the rows that 8 vectors leave empty.
#pragma once

#include "cache/rotation.h"
#include "ops/attention_paged/cuda/paged_bf16_tokens.cuh"
#include "ops/attention_paged/cuda/paged_rows.cuh"

namespace touchstone::paged_attention {

// Whether a query is bf16 as it is used.
TOUCHSTONE_HOST_DEVICE inline bool is_bf16_query(const PagedAttentionProblem& p) {
  return p.q_dtype == DType::bf16 && !p.layers.rotate_keys;
}

// Shared memory of a CTA, with what a lane has of the scores of each warp's chunk.
template <class S, bool kExact, int kWarps>
struct DecodeCtaShared {
  DecodeShared<S, kExact> warps[kWarps];
  alignas(16) float scores[kWarps > 1 ? kWarps : 1][32][S::kChunk / 4];
};

template <class S, bool kExact, int kWarps>
class DecodeWarp {
  using Shared = DecodeShared<S, kExact>;
  using CtaShared = DecodeCtaShared<S, kExact, kWarps>;
  using Tokens = DecodeTokens<S, kExact>;
  static constexpr int kVectors = Shared::kVectors;
  static constexpr int kStages = Shared::kStages;
  static constexpr int kChunk = S::kChunk;
  static constexpr int kTiles = kChunk / 8;
  static constexpr int kParts = kExact ? 1 : 3;
  static constexpr std::uint32_t kAll = Tokens::kAll;
  // Of the values' numbers, 16 each, those that a warp sums.
  static constexpr int kOwnProducts = S::kProducts / kWarps;
  static constexpr int kProductsAtOnce = kOwnProducts < 4 ? kOwnProducts : 4;
  using Scores = float[kTiles][2];

 public:
  __device__ DecodeWarp(const SplitWork& work, CtaShared& cta)
      : work_(work),
        p_(work.p),
        cta_(cta),
        warp_(kWarps == 1 ? 0 : static_cast<int>(threadIdx.x / 32)),
        shared_(cta.warps[warp_]),
        lane_(static_cast<int>(threadIdx.x % 32)),
        tokens_(work, shared_) {}

  __device__ void run() {
    RowCursor cursor(p_.rows, Items{work_});
    RowItem item;
    for (unsigned i = blockIdx.x; cursor.find(i, item); i += gridDim.x) attend_item(item);
  }

 private:
  __device__ unsigned row() const { return static_cast<unsigned>(lane_) / 4; }
  __device__ unsigned column() const { return static_cast<unsigned>(lane_) % 4; }
  __device__ std::uint32_t heads() const { return static_cast<std::uint32_t>(p_.heads_per_kv); }

  // ---- items ------------------------------------------------------------------------------------

  // Of a row: some of its queries, a KV head, a split.
  struct Items {
    const SplitWork& work;

    __device__ unsigned operator()(std::int64_t row) const {
      const RowWork of_row = row_work(work, row);
      const auto tile = static_cast<unsigned>(work.tile);
      return (of_row.count + tile - 1) / tile * of_row.splits *
             static_cast<unsigned>(work.p.layers.kv_heads);
    }
  };

  __device__ void attend_item(const RowItem& item) {
    const RowWork of_row = row_work(work_, item.row);
    // Heads first: they have their tokens in the same pages.
    const auto kv_heads = static_cast<unsigned>(p_.layers.kv_heads);
    kv_head_ = item.number % kv_heads;
    split_ = static_cast<int>(item.number / kv_heads % of_row.splits);
    const std::int64_t tile = item.number / kv_heads / of_row.splits;
    tokens_.set_split(split_, kv_head_);
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
    const SplitMask mask = split_mask(visible, tokens_.first(), S::kSplit);
    const typename Tokens::Neighbor neighbor = tokens_.load_neighbor(row);
    tokens_.find(row, visible, mask);
    std::uint32_t alike = 1;
    std::uint32_t done = 1;
    if (work_.tile == 1) {
      alike = tokens_.rows_alike(row, query, mask, neighbor);
    } else {
      while (query + alike < end && (alike + 1) * heads() <= kVectors &&
             mask.same(
                 split_mask(visible_range(p_, row, query + alike), tokens_.first(), S::kSplit))) {
        ++alike;
      }
      done = alike;
    }
    query_ = query;
    const std::uint32_t all = alike * heads();
    for (first_vector_ = 0; first_vector_ < all; first_vector_ += kVectors) {
      vectors_ = min(kVectors, static_cast<int>(all - first_vector_));
      pass();
    }
    return done;
  }

  // ---- one pass over the split ------------------------------------------------------------------

  __device__ void pass() {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) tokens_.issue(tokens_.first_chunk() + warp_ + i * kWarps, i);
    begin();
    int stage = 0;
#pragma unroll 1
    for (int chunk = tokens_.first_chunk(); chunk < tokens_.end_chunk(); chunk += kWarps) {
      cuda::wait_copies<kStages - 1>();
      __syncwarp();
      if constexpr (kWarps == 1) {
        attend_chunk(stage);
        __syncwarp();
      } else {
        attend_chunks(stage, min(kWarps, tokens_.end_chunk() - chunk));
        __syncthreads();
      }
      tokens_.issue(chunk + warp_ + kStages * kWarps, stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    cuda::wait_copies<0>();
    __syncwarp();
    finish();
  }

  __device__ void begin() {
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
    Scores scores;
    score_chunk(stage, scores);
    weigh(scores);
    add_values(stage, 0, scores);
  }

  // The chunks of all warps, in their order.
  __device__ void attend_chunks(int stage, int chunks) {
    if (warp_ < chunks) {
      Scores own;
      score_chunk(stage, own);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        *reinterpret_cast<float2*>(&cta_.scores[warp_][lane_][2 * t]) = {own[t][0], own[t][1]};
      }
    }
    __syncthreads();
    Scores scores[kWarps];
    bool moves = false;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      if (i >= chunks) break;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const float2 two = *reinterpret_cast<const float2*>(&cta_.scores[i][lane_][2 * t]);
        scores[i][t][0] = two.x;
        scores[i][t][1] = two.y;
      }
      moves = moves || is_above(top_of(scores[i]), largest_, to_log2_);
    }
    // Where no chunk moves the maximum, weights do not wait for each other.
    const bool at_once = __any_sync(kAllLanes, static_cast<int>(moves)) == 0;
    if (at_once) {
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        if (i < chunks) weights_of(scores[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      if (i >= chunks) break;
      if (!at_once) weigh(scores[i]);
      add_values(stage, i, scores[i]);
    }
  }

  // The scores of the warp's own chunk; -inf for tokens that are not attended to.
  __device__ void score_chunk(int stage, Scores& scores) const {
    // Matrix i of four: tokens 8 * (i / 2) and on, unit i % 2 of a pair.
    score(cuda::shared_address(shared_.chunks[stage][0]), lane_ / 8, scores);
    if (p_.soft_cap > 0) cap(scores);
    if (const std::uint32_t attended = shared_.attended[stage]; attended != kAll) {
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const unsigned token = 8 * (i / 2) + 2 * column() + i % 2;
        if ((attended >> token & 1) == 0) scores[i / 2][i % 2] = minus_infinity();
      }
    }
  }

  // The values of the chunk that `warp` copied, times their weights.
  __device__ void add_values(int stage, int warp, Scores& weights) {
    std::uint32_t first[kTiles], second[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      first[t] = take_bf16_pair(weights[t][0], weights[t][1]);
      second[t] = bf16_pair(weights[t][0], weights[t][1]);
    }
    const int matrix = lane_ / 8;
    const std::uint32_t values = cuda::shared_address(cta_.warps[warp].chunks[stage][1]);
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      const int token = 8 * t + matrix / 2 * 8 + lane_ % 8;
#pragma unroll
      for (int n = 0; n < kOwnProducts; n += kProductsAtOnce) {
        std::uint32_t x[kProductsAtOnce][4];
#pragma unroll
        for (int i = 0; i < kProductsAtOnce; ++i) {
          const int product = warp_ * kOwnProducts + n + i;
          cuda::load_transposed(values + Tokens::at(token, 2 * product + matrix % 2), x[i]);
        }
#pragma unroll
        for (int i = 0; i < kProductsAtOnce; ++i) {
          cuda::multiply_add_bf16(output_[n + i], x[i], first[t], first[t + 1]);
        }
#pragma unroll
        for (int i = 0; i < kProductsAtOnce; ++i) {
          cuda::multiply_add_bf16(output_[n + i], x[i], second[t], second[t + 1]);
        }
      }
    }
  }

  __device__ void score(std::uint32_t keys, int matrix, Scores& scores) const {
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
        cuda::load_matrices(keys + Tokens::at(token, 2 * k + matrix % 2), x);
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

  __device__ void cap(Scores& scores) const {
#pragma unroll
    for (auto& tile : scores) {
#pragma unroll
      for (float& x : tile) x = capped_bf16_score(__fmul_rn(x, multiplier_), p_.soft_cap);
    }
  }

  __device__ static float top_of(const Scores& scores) {
    float top = scores[0][0];
#pragma unroll
    for (int i = 1; i < 2 * kTiles; ++i) top = fmaxf(top, scores[i / 2][i % 2]);
    return top;
  }

  // Scores become weights, under a maximum that may move.
  __device__ void weigh(Scores& scores) {
    float top = top_of(scores);
    if (__any_sync(kAllLanes, static_cast<int>(is_above(top, largest_, to_log2_))) != 0) {
      top = max_of_row(top);
      move_largest(is_above(top, largest_, to_log2_) ? top : largest_);
    }
    weights_of(scores);
  }
  __device__ void weights_of(Scores& scores) {
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
    const bool writes = warp_ == 0 && column() == 0 && static_cast<int>(row()) < vectors_;
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
      for (int n = 0; n < kOwnProducts; ++n) {
        const int d = 16 * (warp_ * kOwnProducts + n) + static_cast<int>(row());
        put(d, output_[n][x]);
        put(d + 8, output_[n][x + 2]);
      }
    }
  }

  __device__ std::int64_t partial_of(std::int64_t query, std::int64_t head) const {
    return ((query - work_.first_query) * p_.query_heads + head) * work_.splits + split_;
  }

  const SplitWork& work_;
  const PagedAttentionProblem& p_;
  CtaShared& cta_;
  int warp_;
  Shared& shared_;
  int lane_;
  Tokens tokens_;
  // The item.
  int split_ = 0;
  std::int64_t kv_head_ = 0;
  std::int64_t query_ = 0;
  std::uint32_t first_vector_ = 0;
  int vectors_ = 0;
  // The sums of the split.
  float multiplier_ = 1, to_log2_ = 1;
  float largest_ = 0, sum_ = 0;
  std::uint32_t query_parts_[kParts][S::kProducts][2];
  float output_[kOwnProducts][4];
};

}  // namespace touchstone::paged_attention
