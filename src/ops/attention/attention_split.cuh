// One block of the split kernels: everything but how keys and values are read.
#pragma once

#include "cache/rotation.h"
#include "ops/attention/attention_cuda.cuh"

namespace touchstone::attention {

// Where a token is: what a thread reads in one access.
struct alignas(16) Place {
  std::int64_t page;  // bytes to its beginning
  std::uint32_t slot;
};

template <int kVectors, int kMostDim>
struct alignas(16) SplitShared {
  static constexpr int kMostVectors = kVectors;

  float query[kVectors][kMostDim];
  float weights[kSplit][kVectors];  // scores first
  Place places[kSplit];             // of the tokens that are seen
  int counts[kSplit / 32];
  float largest[kVectors];
  float sums[kVectors];
  float factors[kVectors];
};

// `Read` has two functions, for the keys and for the values:
//   scores(block, count)     of the first `count` tokens of the list: block.put_score for each
//   accumulate(block, count) sums of weighted values: block.put_value for each number of a vector
template <class Shared, class Read>
class SplitBlock {
 public:
  static constexpr int kVectors = Shared::kMostVectors;

  __device__ SplitBlock(const SplitWork& work, Shared& memory)
      : work(work), p(work.p), shared(memory) {
    const std::int64_t block = blockIdx.x;
    const std::int64_t kv_heads = p.layers.kv_heads;
    kv_head = block % kv_heads;
    split_ = block / kv_heads % work.splits;
    first_ = split_ * kSplit;
    query_ = work.first_query + block / kv_heads / work.splits * work.tile;
    last_ = smaller(query_ + work.tile, work.first_query + work.queries);
  }

  __device__ void run() {
    while (query_ < last_) {
      const std::int64_t row = row_of(p, query_);
      const Sight sight = sight_of(p, row, query_);
      std::int64_t run = 1;
      // Without partial results this is the only split, and an output is due in any case.
      if (work.partials == nullptr || splits_of(sight, work.splits).has(split_)) {
        const SeenOfSplit seen = seen_of(sight, first_);
        const std::int64_t end = smaller(last_, p.query_starts[row + 1]);
        while (query_ + run < end && seen.same(seen_of(sight_of(p, row, query_ + run), first_))) {
          ++run;
        }
        list_tokens(row, sight);
        for (first_vector_ = 0; first_vector_ < run * p.heads_per_kv; first_vector_ += kVectors) {
          vectors_ = static_cast<int>(smaller(kVectors, run * p.heads_per_kv - first_vector_));
          pass();
        }
      }
      query_ += run;
    }
  }

  // The bytes of a vector or of its scales; `offset` is that of head 0 in slot 0.
  __device__ const std::byte* address(Place place, std::int64_t offset, std::int64_t bytes) const {
    return p.pages.memory + place.page + offset +
           (kv_head * p.pages.page_tokens + place.slot) * bytes;
  }

  __device__ void put_score(int token, int vector, float dot) {
    float score = __fmul_rn(dot, p.scale);
    if (p.soft_cap > 0) score = __fmul_rn(p.soft_cap, tanhf(score / p.soft_cap));
    shared.weights[token][vector] = score;
  }

  __device__ void put_value(int vector, std::int64_t d, float value) {
    if (vector >= vectors_) return;
    const std::int64_t query = query_of(vector);
    const std::int64_t head = head_of(vector);
    if (work.partials != nullptr) {
      work.partial_values[partial_of(query, head) * p.layers.v_dim + d] = value;
    } else {
      const float factor = shared.factors[vector];
      store_output(p, query, head, d, factor < 0 ? 0 : __fmul_rn(value, factor));
    }
  }

  const SplitWork& work;
  const CachedAttention& p;
  Shared& shared;
  std::int64_t kv_head;

 private:
  __device__ std::int64_t query_of(int vector) const {
    return query_ + (first_vector_ + vector) / p.heads_per_kv;
  }
  __device__ std::int64_t head_of(int vector) const {
    return kv_head * p.heads_per_kv + (first_vector_ + vector) % p.heads_per_kv;
  }
  __device__ std::int64_t partial_of(std::int64_t query, std::int64_t head) const {
    return ((query - work.first_query) * p.query_heads + head) * work.splits + split_;
  }

  // The tokens that the query sees, in order.
  __device__ void list_tokens(std::int64_t row, const Sight& sight) {
    __syncthreads();  // the list before has been read
    const auto page_tokens = static_cast<std::uint32_t>(p.pages.page_tokens);
    const std::int64_t first_page = first_ / page_tokens;
    const auto first_slot = static_cast<std::uint32_t>(first_ - first_page * page_tokens);
    const std::int32_t* const pages = work.table + row * p.pages.table_stride + first_page;
    const std::int64_t room = p.pages.table_stride * p.pages.page_tokens;
    std::int32_t numbers[kSplit / kThreads];
    std::uint32_t slots[kSplit / kThreads];
    unsigned seen[kSplit / kThreads];
#pragma unroll
    for (int i = 0; i < kSplit / kThreads; ++i) {
      const std::uint32_t token = i * kThreads + threadIdx.x;
      const std::uint32_t page = (first_slot + token) / page_tokens;
      slots[i] = first_slot + token - page * page_tokens;
      numbers[i] = -1;
      if (first_ + token < room && sees(sight, first_ + token)) numbers[i] = pages[page];
    }
#pragma unroll
    for (int i = 0; i < kSplit / kThreads; ++i) {
      seen[i] = __ballot_sync(kAllLanes, static_cast<int>(numbers[i] >= 0));
      if (threadIdx.x % 32 == 0) shared.counts[i * kWarps + threadIdx.x / 32] = __popc(seen[i]);
    }
    __syncthreads();
    int before = 0;
    for (int group = 0, i = 0; i < kSplit / kThreads; ++i) {
      for (int warp = 0; warp < kWarps; ++warp, ++group) {
        if (warp == static_cast<int>(threadIdx.x / 32) && numbers[i] >= 0) {
          const unsigned below = (1U << (threadIdx.x % 32)) - 1;
          shared.places[before + __popc(seen[i] & below)] = {
              numbers[i] * p.pages.geometry.page_bytes, slots[i]};
        }
        before += shared.counts[group];
      }
    }
    tokens_ = before;
  }

  __device__ void pass() {
    load_queries();
    Read::scores(*this, tokens_);
    __syncthreads();
    for (int vector = static_cast<int>(threadIdx.x / 32); vector < vectors_; vector += kWarps) {
      weigh(vector);
    }
    __syncthreads();
    Read::accumulate(*this, tokens_);
    __syncthreads();
  }

  __device__ void load_queries() {
    const std::int64_t dim = p.layers.k_dim;
    for (int vector = 0; vector < kVectors; ++vector) {
      const std::int64_t at =
          vector < vectors_ ? query_of(vector) * p.query_stride + head_of(vector) * dim : 0;
      for (std::int64_t d = threadIdx.x; d < dim; d += kThreads) {
        shared.query[vector][d] =
            vector < vectors_ ? cuda::load_any(p.query, p.query_dtype, at + d) : 0;
      }
    }
    __syncthreads();
    if (p.layers.rotate_keys) rotate_queries();
  }

  // cache::rotate() of every vector.
  __device__ void rotate_queries() {
    const std::int64_t dim = p.layers.k_dim;
    const std::int64_t block = cache::rotation_block(dim);
    if (block == 1) return;
    for (std::int64_t distance = 1; distance < block; distance *= 2) {
      for (std::int64_t i = threadIdx.x; i < vectors_ * (dim / 2); i += kThreads) {
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
    for (std::int64_t i = threadIdx.x; i < vectors_ * dim; i += kThreads) {
      float& x = shared.query[i / dim][i % dim];
      x = cache::rotation_scaled(x, factor);
    }
    __syncthreads();
  }

  // Turns the scores of a vector into weights, zeros behind the end of the list. By one warp.
  __device__ void weigh(int vector) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float largest = minus_infinity();
    for (int i = lane; i < tokens_; i += 32) {
      largest = fmaxf(largest, shared.weights[i][vector]);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    float sum = 0;
    for (int i = lane; i < kSplit; i += 32) {
      const float weight = i < tokens_ ? weight_of(shared.weights[i][vector], largest) : 0;
      shared.weights[i][vector] = weight;
      sum = __fadd_rn(sum, weight);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, offset));
    }
    if (lane == 0) end_vector(vector, largest, sum);
  }

  __device__ void end_vector(int vector, float largest, float sum) {
    const std::int64_t query = query_of(vector);
    const std::int64_t head = head_of(vector);
    if (work.partials != nullptr) {
      work.partials[partial_of(query, head)] = {largest, sum};
      return;
    }
    const Ending ending(p, head, largest, sum);
    shared.factors[vector] = ending.nothing ? -1.0F : ending.factor;
    if (p.log_sum_exp != nullptr) p.log_sum_exp[query * p.query_heads + head] = ending.log_sum_exp;
  }

  std::int64_t split_;
  std::int64_t first_;  // position of the split
  std::int64_t query_;
  std::int64_t last_;  // one past it
  std::int64_t first_vector_ = 0;
  int vectors_ = 0;
  int tokens_ = 0;
};

}  // namespace touchstone::attention
