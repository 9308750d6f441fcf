// cached_attention on CUDA for latents that are key and value at once (MLA), on the tensor cores.
//
// A block takes tiles of kTile tokens, for 16 query vectors. A latent comes into shared memory once
// and is used twice: as a key, where each warp has 8 of the tokens, and as a value, where each warp
// has a quarter of the numbers. In between each warp makes weights of its scores, under a maximum
// that all agree on, and leaves them to all.
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/hopper.cuh"
#include "ops/attention_paged/cuda/paged_tensor_core_smem.cuh"

namespace touchstone::paged_attention {
namespace {

constexpr int kKeyDim = 576;
constexpr int kValueDim = 512;
constexpr int kTile = 32;
constexpr int kStages = 2;
// An odd number of units of 16 bytes: the same unit of 8 rows is in 8 different banks of the 128
// bytes of a shared memory wavefront.
constexpr int kPitch = kKeyDim * 2 + 16;

template <int kQueryParts>
struct alignas(128) MlaShared {
  static constexpr int kParts = kQueryParts;
  static constexpr int kMaxVectors = 16;
  static constexpr int kSplit = paged_attention::kSplit;
  static constexpr bool kRunList = false;
  using Row = std::byte[kPitch];

  union {
    Row stages[kStages][kTile];
    float query[kMaxVectors][kKeyDim];  // before anything is copied
  };
  Row parts[kParts][kMaxVectors];  // of the query, bf16
  // Weights of a tile in two parts, bf16; 16 bytes more in a row for the same reason as above.
  std::byte weights[2][kMaxVectors][kTile * 2 + 16];
  // Of a tile, then sums of weights: what each warp has.
  float4 of_warps[kMaxVectors];
  PageSlot slots[kSplit];
  TokenList list;
  int counts[4 * kWarps];
  float factors[kMaxVectors];
  std::int64_t targets[kMaxVectors];
  QueryInfo info;
};

// The tokens of the list, for the query vectors of a pass.
template <class Block>
class MlaMainloop {
 public:
  using Shared = typename Block::SharedMemory;

  __device__ explicit MlaMainloop(Block& block)
      : block_(block),
        shared_(block.shared),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        count_(block.shared.list.tokens),
        own_units_(block.address({0, 0}, block.work.keys.values, kKeyDim * 2) + lane_ * 16) {}

  __device__ void run() {
    issue_loads(0);
    for (int tile = 0; tile * kTile < count_; ++tile) {
      cuda::wait_copies<0>();
      __syncthreads();  // also: the tile before is done with
      issue_loads(tile + 1);
      float scores[2][2];  // of rows lane / 4 and 8 more, tokens 2 * (lane % 4) and the next one
      score(tile, scores);
      leave_largest(scores);
      __syncthreads();
      weigh(scores);
      __syncthreads();
      accumulate(tile);
    }
    leave();
  }

 private:
  static constexpr int kColumns = kValueDim / kWarps;  // of a warp
  static_assert(kTile == 8 * kWarps);
  static_assert(kStages == 2);

  // Copies a tile, a row by a warp. What lies behind the list is zeros: weights of 0 must not meet
  // a NaN.
  __device__ void issue_loads(int tile) {
    constexpr unsigned kUnits = kKeyDim * 2 / 16;
    if (tile * kTile < count_) {
#pragma unroll 4
      for (unsigned row = warp_; row < kTile; row += kWarps) {
        const int token = tile * kTile + static_cast<int>(row);
        const bool there = token < count_;
        const PageSlot page_slot = shared_.slots[there ? token : 0];
        const std::byte* const from =
            own_units_ + page_slot.page + std::uint64_t{page_slot.slot} * (kKeyDim * 2);
        const std::uint32_t to =
            cuda::shared_address(shared_.stages[tile % kStages][row]) + lane_ * 16;
#pragma unroll
        for (unsigned unit = 0; unit < kUnits; unit += 32) {
          if (unit + lane_ >= kUnits) break;
          cuda::copy_async_16_if(to + unit * 16, from + unit * 16, there);
        }
      }
    }
    cuda::commit_copies();
  }

  // Scores of the warp's 8 tokens. A query of one part is summed in four chains, so that a product
  // need not wait for the one before.
  __device__ void score(int tile, float (&scores)[2][2]) {
    constexpr int kChains = Shared::kParts == 1 ? 4 : 1;
    float dots[Shared::kParts][kChains][4] = {};
    const std::uint32_t keys = cuda::shared_address(shared_.stages[tile % kStages][8 * warp_]) +
                               lane_ % 8 * kPitch + lane_ / 8 * 16;
    const std::uint32_t query =
        cuda::shared_address(shared_.parts[0][0]) + lane_ % 16 * kPitch + lane_ / 16 * 16;
#pragma unroll
    for (int step = 0; step < kKeyDim / 16; step += 2) {
      std::uint32_t words[4];  // of 32 numbers
      cuda::load_matrices(keys + step * 32, words);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int part = 0; part < Shared::kParts; ++part) {
          std::uint32_t rows[4];
          cuda::load_matrices(query + part * sizeof(shared_.parts[0]) + (step + i) * 32, rows);
          cuda::multiply_add_bf16(dots[part][(step + i) % kChains], rows, words[2 * i],
                                  words[2 * i + 1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float dot = dots[0][0][i];
      if constexpr (Shared::kParts == 1) {
        dot = __fadd_rn(__fadd_rn(dot, dots[0][1][i]), __fadd_rn(dots[0][2][i], dots[0][3][i]));
      } else if (fabsf(dot) != -minus_infinity()) {
        // An infinity must not meet the zeros in the other parts.
        dot = __fadd_rn(dot, __fadd_rn(dots[1][0][i], dots[2][0][i]));
      }
      const int token = tile * kTile + static_cast<int>(8 * warp_ + 2 * (lane_ % 4)) + i % 2;
      scores[i / 2][i % 2] = token < count_ ? block_.score_of(dot) : minus_infinity();
    }
  }

  __device__ void leave_largest(const float (&scores)[2][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = fmaxf(scores[half][0], scores[half][1]);
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
      }
      if (lane_ % 4 == 0) of_warp(half) = largest;
    }
  }

  // Turns scores into weights, under a maximum that moves when they would become larger than
  // 2^kSlack, which is seldom.
  __device__ void weigh(const float (&scores)[2][2]) {
    constexpr float kSlack = 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 all = shared_.of_warps[vector_of(half)];
      const float largest = fmaxf(fmaxf(all.x, all.y), fmaxf(all.z, all.w));
      // While fully masked the difference is infinite, or NaN if the tile is masked too.
      const bool moves = __fmul_rn(__fsub_rn(largest, largest_[half]), kLog2E) > kSlack;
      if (__any_sync(kAllLanes, static_cast<int>(moves)) != 0) {
        move_largest(half, moves ? largest : largest_[half]);
      }
      float x[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x[i] = weight_of(scores[half][i], largest_[half]);
        sum_[half] = __fadd_rn(sum_[half], x[i]);
      }
      std::byte* const to = shared_.weights[0][vector_of(half)] + 16 * warp_ + 4 * (lane_ % 4);
      *reinterpret_cast<std::uint32_t*>(to) = take_pair<false>(x[0], x[1]);
      *reinterpret_cast<std::uint32_t*>(to + sizeof(shared_.weights[0])) = pack_bf16(x[0], x[1]);
    }
  }

  // Brings what there is already under it. Where it has not changed the factor is exactly 1.
  __device__ void move_largest(int half, float largest) {
    const float factor = largest == largest_[half] ? 1.0F : weight_of(largest_[half], largest);
    largest_[half] = largest;
    sum_[half] = __fmul_rn(sum_[half], factor);
#pragma unroll
    for (auto& output : output_) {
      output[2 * half] = __fmul_rn(output[2 * half], factor);
      output[2 * half + 1] = __fmul_rn(output[2 * half + 1], factor);
    }
  }

  __device__ void accumulate(int tile) {
    const std::uint32_t values = cuda::shared_address(shared_.stages[tile % kStages][lane_ % 16]) +
                                 warp_ * kColumns * 2 + lane_ / 16 * 16;
    const std::uint32_t weights =
        cuda::shared_address(shared_.weights[0][lane_ % 16]) + lane_ / 16 * 16;
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      std::uint32_t parts[2][4];
      cuda::load_matrices(weights + step * 32, parts[0]);
      cuda::load_matrices(weights + sizeof(shared_.weights[0]) + step * 32, parts[1]);
#pragma unroll
      for (int column = 0; column < kColumns; column += 16) {
        std::uint32_t words[4];  // of 16 tokens 8 numbers, then 8 more
        cuda::load_transposed(values + step * 16 * kPitch + column * 2, words);
#pragma unroll
        for (const auto& part : parts) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            cuda::multiply_add_bf16(output_[column / 8 + i], part, words[2 * i], words[2 * i + 1]);
          }
        }
      }
    }
  }

  __device__ void leave() {
    __syncthreads();  // of_warps is done with
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, offset));
      }
      if (lane_ % 4 == 0) of_warp(half) = sum;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int vector = vector_of(half);
      if (warp_ != 0 || lane_ % 4 != 0 || vector >= block_.vectors) continue;
      const float4 all = shared_.of_warps[vector];
      block_.finish_vector(vector, largest_[half],
                           __fadd_rn(__fadd_rn(all.x, all.y), __fadd_rn(all.z, all.w)));
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        block_.store_pair(vector_of(half), warp_ * kColumns + 8 * n + 2 * (lane_ % 4),
                          {output_[n][2 * half], output_[n][2 * half + 1]});
      }
    }
  }

  // What this warp has of a row, beside that of the others.
  __device__ float& of_warp(int half) const {
    return reinterpret_cast<float*>(&shared_.of_warps[vector_of(half)])[warp_];
  }
  __device__ int vector_of(int half) const { return static_cast<int>(lane_ / 4) + 8 * half; }

  Block& block_;
  Shared& shared_;
  unsigned lane_;
  unsigned warp_;
  int count_;
  const std::byte* own_units_;  // of the latent in slot 0 of page 0
  float largest_[2] = {minus_infinity(), minus_infinity()};
  float sum_[2] = {};
  float output_[kColumns / 8][4] = {};
};

template <class Shared>
struct MlaPass : QueriesLoaded {
  // The query as bf16 numbers, in parts that add up to it.
  template <class Block>
  __device__ static void prepare(Block& block) {
    constexpr int kPairs = kKeyDim / 2;
    Shared& shared = block.shared;
    for (int i = static_cast<int>(threadIdx.x); i < Shared::kMaxVectors * kPairs; i += kThreads) {
      const int vector = i / kPairs;
      const int pair = i % kPairs;
      float low = shared.query[vector][2 * pair];
      float high = shared.query[vector][2 * pair + 1];
#pragma unroll
      for (auto& part : shared.parts) {
        reinterpret_cast<std::uint32_t*>(part[vector])[pair] = take_pair<false>(low, high);
      }
    }
  }

  template <class Block>
  __device__ static void attend(Block& block) {
    MlaMainloop<Block>(block).run();
  }
};

template <class Shared>
__global__ void __launch_bounds__(kThreads, Shared::kParts == 1 ? 2 : 1)
    mla_kernel(const __grid_constant__ SplitWork work) {
  extern __shared__ __align__(128) std::byte memory[];
  if constexpr (cuda::kHopper) cuda::pdl_launch_dependents();
  SplitBlock<Shared, MlaPass<Shared>>(work, *reinterpret_cast<Shared*>(memory)).run();
}

template <class Shared>
void launch_mla(Context& context, const SplitWork& work, unsigned blocks) {
  cuda::allow_shared(context, mla_kernel<Shared>);
  cuda::launch(context, "cached_attention mla_kernel", mla_kernel<Shared>,
               {.blocks = blocks, .threads = kThreads, .shared_bytes = sizeof(Shared)}, work);
}

using OnePart = MlaShared<1>;
using AllParts = MlaShared<kParts>;

}  // namespace

std::string cached_attention_mla_refuses(const Context& context, const PagedAttentionProblem& p) {
  const cache::LayerGroup& layers = p.layers;
  if (!layers.k_is_v) return "not k_is_v";
  if (layers.k.dtype != DType::bf16) {
    return attention_common::needs("latents", "bf16", name_of(layers.k.dtype));
  }
  if (layers.k_dim != kKeyDim || layers.v_dim != kValueDim) {
    return "k_dim " + std::to_string(layers.k_dim) + ", v_dim " + std::to_string(layers.v_dim) +
           ", needs 576 and 512";
  }
  if (std::string refusal = refuses_pages(p); !refusal.empty()) return refusal;
  const int shared = cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (shared < static_cast<int>(sizeof(AllParts))) {
    return attention_common::above("bytes of shared memory", sizeof(AllParts), shared);
  }
  return {};
}

void cached_attention_mla(Context& context, const PagedAttentionProblem& p) {
  run_splits(context, p, {.run = is_exact(p) ? launch_mla<OnePart> : launch_mla<AllParts>});
}

}  // namespace touchstone::paged_attention
