// One block of the split kernels: everything but how keys and values are read.
#pragma once

#include "cache/rotation.h"
#include "ops/attention_paged/cuda/paged_token_list.cuh"

namespace touchstone::paged_attention {

template <int kVectors, int kMaxDim>
struct alignas(16) SplitShared {
  static constexpr int kMaxVectors = kVectors;
  static constexpr int kSplit = paged_attention::kSplit;
  static constexpr bool kRunList = false;

  float query[kVectors][kMaxDim];
  float weights[kSplit][kVectors];  // scores first
  PageSlot slots[kSplit];           // of the tokens that are attended to
  TokenList list;
  int counts[4 * kWarps];
  float factors[kVectors];
  std::int64_t targets[kVectors];  // where the values of a vector go
  QueryInfo info;
};

// `Pass` attends for some query vectors over the tokens of shared.list:
//   start(block)             once, some barriers before all others
//   prepare(block)           when shared.query has been loaded
//   attend(block)            block.finish_vector and block.store_value for each vector
// and may have a way around shared.query:
//   Fetched, fetches(p)      what a thread holds of the vectors, and whether it can
//   fetch(block)             issues the loads
//   put(block, fetched)      what prepare would have done
template <class Shared, class Pass>
class SplitBlock {
 public:
  using SharedMemory = Shared;
  static constexpr int kVectors = Shared::kMaxVectors;
  static constexpr int kSplit = Shared::kSplit;
  // Rows that share pages go together, up to as many as make so many vectors: one pass.
  static constexpr std::uint32_t kMaxShared = kVectors;
  static_assert(kMaxShared < 32);

  __device__ SplitBlock(const SplitWork& work, Shared& memory)
      : work(work), p(work.p), shared(memory) {
    // There are less than 2^31 blocks, and dividing 64 bits takes long.
    const auto kv_heads = static_cast<std::uint32_t>(p.layers.kv_heads);
    const auto per_block = static_cast<std::uint32_t>(work.splits_per_block);
    const auto parts = (static_cast<std::uint32_t>(work.splits) + per_block - 1) / per_block;
    kv_head = blockIdx.x % kv_heads;
    split_ = static_cast<int>(blockIdx.x / kv_heads % parts * per_block);
    query_ = work.first_query + blockIdx.x / kv_heads / parts * work.tile;
    Pass::start(*this);
  }

  __device__ void run() {
    const std::int64_t end = smaller(query_ + work.tile, work.first_query + work.queries);
    if (work.tile == 1) {
      if (query_ < end) run_splits();
    } else {
      while (query_ < end) query_ += attend_queries(end);
    }
  }

  // The bytes of a vector or of its scales; `offset` is that of head 0 in slot 0.
  __device__ const std::byte* address(paged_attention::PageSlot page_slot, std::int64_t offset,
                                      std::int64_t bytes) const {
    return p.pages.memory + page_slot.page + offset +
           (kv_head * p.pages.page_tokens + page_slot.slot) * bytes;
  }

  __device__ float score_of(float dot) const {
    const float score = __fmul_rn(dot, p.scale);
    return p.soft_cap > 0 ? __fmul_rn(p.soft_cap, tanhf(score / p.soft_cap)) : score;
  }

  // The largest score of a vector and the sum of its weights: by one thread, before its values.
  __device__ void finish_vector(int vector, float largest, float sum) {
    const std::int64_t query = query_of(vector);
    const std::int64_t head = head_of(vector);
    if (work.partials != nullptr) {
      work.partials[partial_of(query, head) + split_] = {largest, sum};
      return;
    }
    const SoftmaxEpilogue epilogue(p.sink_logits, head, largest, sum);
    shared.factors[vector] = epilogue.nothing ? -1.0F : epilogue.factor;
    if (p.log_sum_exp.data != nullptr) {
      p.log_sum_exp.data[p.log_sum_exp.offset(query, head)] = epilogue.log_sum_exp;
    }
  }

  __device__ void store_value(int vector, std::int64_t d, float value) {
    if (vector >= vectors) return;
    const std::int64_t at = shared.targets[vector] + d;
    if (work.partials != nullptr) {
      work.partial_values[at + split_ * p.layers.v_dim] = value;
    } else {
      const float factor = shared.factors[vector];
      store_output(p, at, factor < 0 ? 0 : __fmul_rn(value, factor));
    }
  }

  // Two neighbors, the first with an even number.
  __device__ void store_pair(int vector, std::int64_t d, float2 values) {
    if (vector >= vectors) return;
    if (work.partials == nullptr || p.layers.v_dim % 2 != 0) {
      store_value(vector, d, values.x);
      store_value(vector, d + 1, values.y);
    } else {
      const std::int64_t at = shared.targets[vector] + split_ * p.layers.v_dim + d;
      *reinterpret_cast<float2*>(work.partial_values + at) = values;
    }
  }

  // Where a vector of this pass begins in the query.
  __device__ std::int64_t query_at(int vector) const {
    return p.q.offset(query_of(vector), head_of(vector));
  }

  const SplitWork& work;
  const PagedAttentionProblem& p;
  Shared& shared;
  std::int64_t kv_head;
  int vectors = 0;  // of this pass

 private:
  __device__ std::uint32_t heads() const { return static_cast<std::uint32_t>(p.heads_per_kv); }
  __device__ std::int64_t query_of(int vector) const {
    return query_ + (first_vector_ + static_cast<std::uint32_t>(vector)) / heads();
  }
  __device__ std::int64_t head_of(int vector) const {
    return kv_head * heads() + (first_vector_ + static_cast<std::uint32_t>(vector)) % heads();
  }
  // Of split 0.
  __device__ std::int64_t partial_of(std::int64_t query, std::int64_t head) const {
    return ((query - work.first_query) * p.query_heads + head) * work.splits;
  }

  // Position of the split.
  __device__ std::int64_t first() const { return std::int64_t{split_} * kSplit; }

  __device__ std::int64_t page_of(std::int64_t position) const {
    return work.page_shift >= 0 ? position >> work.page_shift : position / p.pages.page_tokens;
  }

  // Without partial results there is one split, and an output is due in any case.
  __device__ bool is_due(const SplitRange& range) const {
    return work.partials == nullptr || range.has(split_);
  }

  // For query_ and those of its row with the same mask in the split; returns their number.
  __device__ std::int64_t attend_queries(std::int64_t end) {
    const std::int64_t row = row_of(p, query_);
    const VisibleRange visible = visible_range(p, row, query_);
    if (!is_due(splits_of(visible, work.splits, kSplit))) return 1;
    const SplitMask mask = split_mask(visible, first(), kSplit);
    std::uint32_t alike = 1;
    end = smaller(end, p.query_offsets[row + 1]);
    while (query_ + alike < end &&
           mask.same(split_mask(visible_range(p, row, query_ + alike), first(), kSplit))) {
      ++alike;
    }
    // Read with the tokens of a tree.
    if (p.tree != nullptr && threadIdx.x == 0) shared.info.visible = visible;
    list_tokens(row, mask, load_page(row, mask));
    loaded_ = 0;
    attend(alike);
    return alike;
  }

  // For one query token, or those of several rows that share their pages, one split after another.
  __device__ void run_splits() {
    touch_first();
    typename Pass::Fetched fetched;
    bool fetching = heads() <= kVectors && Pass::fetches(p);
    if (fetching) {
      vectors = static_cast<int>(heads());
      fetched = Pass::fetch(*this);
    }
    QueryInfo info;
    info.row = row_of(p, query_);
    info.visible = visible_range(p, info.row, query_);
    info.range = splits_of(info.visible, work.splits, kSplit);
    // Kept in shared memory, since registers are wanted for the tokens.
    if (threadIdx.x == 0) shared.info = info;
    const int end = static_cast<int>(smaller(split_ + work.splits_per_block, work.splits));
    while (true) {
      bool attended = false;
      if (is_due(info.range)) {
        const SplitMask mask = split_mask(info.visible, first(), kSplit);
        const PageOfThread page = load_page(info.row, mask);
        const std::uint32_t alike = rows_alike(info.row, mask);
        if (fetching) {
          Pass::put(*this, fetched);
          set_targets();
          loaded_ = heads();
          fetching = false;
        }
        if (alike > 0) {
          list_tokens(info.row, mask, page);
          if (split_ + 1 < end) touch_pages(info.row, split_ + 1);
          attend(alike);
          attended = true;
        }
      }
      if (++split_ >= end) return;
      if (!attended) __syncthreads();
      info = shared.info;
    }
  }

  // Issues the first loads all at once: each of these would be waited for before the next
  // address is known. The row is guessed as row_of does.
  __device__ void touch_first() const {
    const std::int64_t row = smaller(query_, p.rows - 1);
    touch(p.query_offsets + row);
    touch(p.query_offsets + row + 1);
    touch(p.lengths + row);
    if (p.positions != nullptr) touch(p.positions + query_);
    touch_pages(row, split_);
  }
  __device__ void touch_pages(std::int64_t row, int split) const {
    const std::int64_t page = page_of(std::int64_t{split} * kSplit + kEach * threadIdx.x);
    if (page < p.pages.table_stride) touch(work.table + row * p.pages.table_stride + page);
  }

  // A load whose result is unused: it only warms the cache.
  template <class T>
  __device__ static void touch(const T* from) {
    std::uint32_t unused;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(unused) : "l"(from));
  }

  // For the heads of `alike` query tokens.
  __device__ void attend(std::uint32_t alike) {
    const std::uint32_t all = alike * heads();
    for (first_vector_ = 0; first_vector_ < all; first_vector_ += kVectors) {
      vectors = min(kVectors, static_cast<int>(all - first_vector_));
      pass(all);
    }
  }

  // Rows of one query, from `row` on, that have the pages of the split in common and the same mask
  // of it; none where the block of a row before attends for this one too. Groups begin at multiples
  // of their size, so that a block looks at few of its neighbors.
  __device__ std::uint32_t rows_alike(std::int64_t row, const SplitMask& mask) const {
    const std::uint32_t most = heads() < kMaxShared ? kMaxShared / heads() : 1;
    const std::uint32_t at = static_cast<std::uint32_t>(query_ - work.first_query) % most;
    // Lane i looks at row + i, the last lane at the row before.
    const int lane = static_cast<int>(threadIdx.x % 32);
    const unsigned alike = __ballot_sync(
        kAllLanes, static_cast<int>(is_alike(row, lane == 31 ? -1 : lane, most, mask)));
    if (at > 0 && alike >> 31 != 0) return 0;
    return min(static_cast<std::uint32_t>(__ffs(static_cast<int>(~alike | 1U << 31)) - 1),
               most - at);
  }

  __device__ bool is_alike(std::int64_t row, int offset, std::uint32_t most,
                           const SplitMask& mask) const {
    if (offset == 0) return true;
    if (offset >= static_cast<int>(most)) return false;
    const std::int64_t other = row + offset;
    const std::int64_t query = query_ + offset;
    if (query < work.first_query || query >= work.first_query + work.queries) return false;
    if (other < 0 || other >= p.rows) return false;
    if (p.query_offsets[row + 1] != p.query_offsets[row] + 1) return false;
    const std::int64_t first_page = page_of(first());
    const std::int64_t end =
        smaller(page_of(first() + kSplit + p.pages.page_tokens - 1), p.pages.table_stride);
    const std::int32_t* const pages = work.table + row * p.pages.table_stride;
    const std::int32_t* const others = work.table + other * p.pages.table_stride;
    if (first_page >= end || pages[first_page] != others[first_page]) return false;
    if (p.query_offsets[other] != query || p.query_offsets[other + 1] != query + 1) return false;
    if (!mask.same(split_mask(visible_range(p, other, query), first(), kSplit))) return false;
    bool same = true;
#pragma unroll 8
    for (std::int64_t page = first_page + 1; page < end; ++page) {
      same = same && pages[page] == others[page];
    }
    return same;
  }

  // The page of kEach tokens, where only a beginning of the split is visible and pages hold
  // them whole: thread i has tokens from kEach * i on.
  static constexpr int kEach = Shared::kRunList ? kRun : 4;
  static_assert(kSplit <= kEach * kThreads);
  struct PageOfThread {
    bool fits;
    std::int32_t number;
    std::uint32_t slot;
  };

  __device__ PageOfThread load_page(std::int64_t row, const SplitMask& mask) const {
    const auto page_tokens = static_cast<std::uint32_t>(p.pages.page_tokens);
    PageOfThread result{mask.is_beginning() && page_tokens % kEach == 0, -1, 0};
    const std::int64_t position = first() + kEach * threadIdx.x;
    const std::int64_t page = page_of(position);
    if (!result.fits || page >= p.pages.table_stride) return result;
    result.slot = static_cast<std::uint32_t>(position - page * p.pages.page_tokens);
    result.number = work.table[row * p.pages.table_stride + page];
    return result;
  }

  // The tokens that the query attends to, in order. Visible to all threads after the next barrier.
  __device__ void list_tokens(std::int64_t row, const SplitMask& mask, const PageOfThread& page) {
    const int first_token = static_cast<int>(kEach * threadIdx.x);
    const bool there = page.fits && (page.number >= 0 || first_token >= mask.end);
    if (__syncthreads_and(static_cast<int>(there)) == 0)
      return TokenLister<Shared>::list(work, shared, first(), row, mask);
    if constexpr (Shared::kRunList) {
      if (first_token < kSplit) {
        shared.runs[threadIdx.x] = {static_cast<std::uint32_t>(page.number), page.slot};
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        shared.slots[first_token + i] =
            PageSlot::of(page.number, page.slot + i, p.pages.geometry.page_bytes);
      }
    }
    if (threadIdx.x == 0) shared.list = {mask.end, Shared::kRunList, 0, nullptr, kSplit, {}, 0};
  }

  __device__ void pass(std::uint32_t all) {
    // A block that goes through several splits has its query already, unless there is too much.
    if (loaded_ != all || all > kVectors) {
      loaded_ = all;
      load_queries();
      Pass::prepare(*this);
    }
    __syncthreads();
    Pass::attend(*this);
    __syncthreads();
  }

  __device__ void load_queries() {
    const std::int64_t dim = p.layers.k_dim;
    std::int64_t at[kVectors];
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
      at[vector] = vector < vectors ? query_at(vector) : 0;
    }
    // All loads before the first store: the branch on the type is outside.
    const auto load = [&]<class T>(const T* query) {
      for (std::int64_t d = threadIdx.x; d < dim; d += kThreads) {
        float x[kVectors];
#pragma unroll
        for (int vector = 0; vector < kVectors; ++vector) {
          x[vector] = vector < vectors ? cuda::widen(query[at[vector] + d]) : 0.0F;
        }
#pragma unroll
        for (int vector = 0; vector < kVectors; ++vector) shared.query[vector][d] = x[vector];
      }
    };
    if (p.q_dtype == DType::f32) {
      load(static_cast<const float*>(p.q.data));
    } else if (p.q_dtype == DType::bf16) {
      load(static_cast<const Bf16*>(p.q.data));
    } else {
      load(static_cast<const F16*>(p.q.data));
    }
    set_targets();
    __syncthreads();
    if (p.layers.rotate_keys) rotate_queries();
  }

  // Where the values of the vectors go.
  __device__ void set_targets() {
    if (static_cast<int>(threadIdx.x) >= vectors) return;
    const int vector = static_cast<int>(threadIdx.x);
    const std::int64_t query = query_of(vector);
    const std::int64_t head = head_of(vector);
    shared.targets[vector] = work.partials != nullptr ? partial_of(query, head) * p.layers.v_dim
                                                      : p.output.offset(query, head);
  }

  // cache::rotate() of every vector.
  __device__ void rotate_queries() {
    const std::int64_t dim = p.layers.k_dim;
    const std::int64_t block = cache::rotation_block(dim);
    if (block == 1) return;
    for (std::int64_t distance = 1; distance < block; distance *= 2) {
      for (std::int64_t i = threadIdx.x; i < vectors * (dim / 2); i += kThreads) {
        const std::int64_t pair = i % (dim / 2);
        const std::int64_t within = pair & (distance - 1);
        float* const x = shared.query[i / (dim / 2)] + 2 * (pair - within) + within;
        const float a = x[0];
        const float b = x[distance];
        x[0] = a + b;
        x[distance] = a - b;
      }
      __syncthreads();
    }
    const float factor = cache::rotation_factor(block);
    for (std::int64_t i = threadIdx.x; i < vectors * dim; i += kThreads) {
      float& x = shared.query[i / dim][i % dim];
      x = cache::rotation_scaled(x, factor);
    }
    __syncthreads();
  }

  int split_;
  std::int64_t query_;
  std::uint32_t first_vector_ = 0;
  std::uint32_t loaded_ = 0;  // vectors, where all of them are in shared memory
};

// The part of a Pass that has nothing to start, and no way around shared.query.
struct QueriesLoaded {
  template <class Block>
  __device__ static void start(const Block& /*block*/) {}

  struct Fetched {};
  __device__ static bool fetches(const PagedAttentionProblem& /*p*/) { return false; }
  template <class Block>
  __device__ static Fetched fetch(const Block& /*block*/) {
    return {};
  }
  template <class Block>
  __device__ static void put(Block& /*block*/, const Fetched& /*fetched*/) {}
};

// All keys, then all values. `Read` has two functions:
//   scores(block, count)     of the first `count` tokens of the list, to shared.weights
//   accumulate(block, count) sums of weighted values: block.store_value for each number of a vector
template <class Read>
struct TwoPasses : QueriesLoaded {
  template <class Block>
  __device__ static void prepare(Block& /*block*/) {}

  template <class Block>
  __device__ static void attend(Block& block) {
    const int count = block.shared.list.tokens;
    Read::scores(block, count);
    __syncthreads();
    for (int vector = static_cast<int>(threadIdx.x / 32); vector < block.vectors;
         vector += kWarps) {
      weigh(block, count, vector);
    }
    __syncthreads();
    Read::accumulate(block, count);
  }

 private:
  // Turns the scores of a vector into weights, zeros behind the end of the list. By one warp.
  template <class Block>
  __device__ static void weigh(Block& block, int count, int vector) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float largest = minus_infinity();
    for (int i = lane; i < count; i += 32) {
      largest = fmaxf(largest, block.shared.weights[i][vector]);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    float sum = 0;
    for (int i = lane; i < kSplit; i += 32) {
      const float weight = i < count ? weight_of(block.shared.weights[i][vector], largest) : 0;
      block.shared.weights[i][vector] = weight;
      sum = __fadd_rn(sum, weight);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, offset));
    }
    if (lane == 0) block.finish_vector(vector, largest, sum);
  }
};

}  // namespace touchstone::paged_attention
