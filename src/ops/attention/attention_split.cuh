// One block of the split kernels: everything but how keys and values are read.
#pragma once

#include "cache/rotation.h"
#include "ops/attention/attention_cuda.cuh"

namespace touchstone::attention {

// Where a token is: what a thread reads in one access.
struct alignas(16) Place {
  std::int64_t page;  // bytes to its beginning
  std::uint32_t slot;

  __device__ static Place of(std::int32_t number, std::uint32_t slot, std::int64_t page_bytes) {
    return {number * page_bytes, slot};
  }
};

template <int kVectors, int kMostDim>
struct alignas(16) SplitShared {
  static constexpr int kMostVectors = kVectors;
  using Place = attention::Place;

  float query[kVectors][kMostDim];
  float weights[kSplit][kVectors];  // scores first
  Place places[kSplit];             // of the tokens that are seen
  int counts[kSplit / 32];
  float largest[kVectors];
  float sums[kVectors];
  float factors[kVectors];
  std::int64_t targets[kVectors];  // where the values of a vector go
};

// `Pass` attends for the query vectors in shared memory over the first `count` tokens of the list:
//   attend(block, count)     block.end_vector and block.put_value for each vector
template <class Shared, class Pass>
class SplitBlock {
 public:
  using SharedMemory = Shared;
  static constexpr int kVectors = Shared::kMostVectors;

  __device__ SplitBlock(const SplitWork& work, Shared& memory)
      : work(work),
        p(work.p),
        shared(memory),
        heads_per_kv_(static_cast<std::uint32_t>(work.p.heads_per_kv)) {
    // There are less than 2^31 blocks, and dividing 64 bits takes long.
    const auto kv_heads = static_cast<std::uint32_t>(p.layers.kv_heads);
    const auto splits = static_cast<std::uint32_t>(work.splits);
    kv_head = blockIdx.x % kv_heads;
    split_ = blockIdx.x / kv_heads % splits;
    first_ = split_ * kSplit;
    query_ = work.first_query + blockIdx.x / kv_heads / splits * work.tile;
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
        const auto all = static_cast<std::uint32_t>(run) * heads_per_kv_;
        for (first_vector_ = 0; first_vector_ < all; first_vector_ += kVectors) {
          vectors = min(kVectors, static_cast<int>(all - first_vector_));
          pass();
        }
      }
      query_ += run;
    }
  }

  // The bytes of a vector or of its scales; `offset` is that of head 0 in slot 0.
  __device__ const std::byte* address(attention::Place place, std::int64_t offset, std::int64_t bytes) const {
    return p.pages.memory + place.page + offset +
           (kv_head * p.pages.page_tokens + place.slot) * bytes;
  }

  __device__ float score_of(float dot) const {
    const float score = __fmul_rn(dot, p.scale);
    return p.soft_cap > 0 ? __fmul_rn(p.soft_cap, tanhf(score / p.soft_cap)) : score;
  }

  // The largest score of a vector and the sum of its weights: by one thread, before its values.
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

  __device__ void put_value(int vector, std::int64_t d, float value) {
    if (vector >= vectors) return;
    const std::int64_t at = shared.targets[vector] + d;
    if (work.partials != nullptr) {
      work.partial_values[at] = value;
    } else {
      const float factor = shared.factors[vector];
      store_output(p, at, factor < 0 ? 0 : __fmul_rn(value, factor));
    }
  }

  const SplitWork& work;
  const CachedAttention& p;
  Shared& shared;
  std::int64_t kv_head;
  int vectors = 0;  // of this pass

 private:
  __device__ std::int64_t query_of(int vector) const {
    return query_ + (first_vector_ + static_cast<std::uint32_t>(vector)) / heads_per_kv_;
  }
  __device__ std::int64_t head_of(int vector) const {
    return kv_head * heads_per_kv_ +
           (first_vector_ + static_cast<std::uint32_t>(vector)) % heads_per_kv_;
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
          shared.places[before + __popc(seen[i] & below)] =
              Shared::Place::of(numbers[i], slots[i], p.pages.geometry.page_bytes);
        }
        before += shared.counts[group];
      }
    }
    tokens_ = before;
  }

  __device__ void pass() {
    load_queries();
    Pass::attend(*this, tokens_);
    __syncthreads();
  }

  __device__ void load_queries() {
    const std::int64_t dim = p.layers.k_dim;
    std::int64_t at[kVectors];
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
      at[vector] = vector < vectors ? query_of(vector) * p.query_stride + head_of(vector) * dim : 0;
    }
    // All loads before the first store: the type is asked for outside.
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
    if (p.query_dtype == DType::f32) {
      load(static_cast<const float*>(p.query));
    } else if (p.query_dtype == DType::bf16) {
      load(static_cast<const Bf16*>(p.query));
    } else {
      load(static_cast<const F16*>(p.query));
    }
    if (static_cast<int>(threadIdx.x) < vectors) {
      const int vector = static_cast<int>(threadIdx.x);
      const std::int64_t query = query_of(vector);
      const std::int64_t head = head_of(vector);
      shared.targets[vector] = work.partials != nullptr
                                   ? partial_of(query, head) * p.layers.v_dim
                                   : query * p.output_stride + head * p.layers.v_dim;
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

  std::int64_t split_;
  std::int64_t first_;  // position of the split
  std::int64_t query_;
  std::int64_t last_;  // one past it
  std::uint32_t heads_per_kv_;
  std::uint32_t first_vector_ = 0;
  int tokens_ = 0;
};

// All keys, then all values. `Read` has two functions:
//   scores(block, count)     of the first `count` tokens of the list, to shared.weights
//   accumulate(block, count) sums of weighted values: block.put_value for each number of a vector
template <class Read>
struct TwoPasses {
  template <class Block>
  __device__ static void attend(Block& block, int count) {
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
    if (lane == 0) block.end_vector(vector, largest, sum);
  }
};

}  // namespace touchstone::attention
