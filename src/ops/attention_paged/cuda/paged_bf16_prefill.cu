// cached_attention over bf16 for many queries: the arithmetic of paged_bf16.cuh by wgmma.
//
// A consumer warpgroup has the scores of 64 query vectors by a block of 128 positions and the sums
// of the split in registers, and those of the splits before in shared memory. Two consumer
// warpgroups ping-pong without explicit barriers: the softmax of one overlaps the GEMMs of the other.
#include <algorithm>

#include "ops/attention_paged/cuda/paged_bf16_prefill.cuh"
#include "ops/attention_paged/cuda/paged_bf16_prefill.h"
#include "touchstone/core/checked.h"

namespace touchstone::paged_attention {
namespace {

// Whether any thread of a warpgroup says so. A barrier of its own.
__device__ bool any_of_group(int barrier, bool x) {
  std::uint32_t result;
  asm volatile(
      "{\n.reg .pred own, any;\nsetp.ne.u32 own, %1, 0;\n"
      "bar.red.or.pred any, %2, 128, own;\nselp.u32 %0, 1, 0, any;\n}\n"
      : "=r"(result)
      : "r"(x ? 1U : 0U), "r"(barrier)
      : "memory");
  return result != 0;
}

template <class S>
class PrefillConsumer {
  static constexpr int kScores = S::kKeys / 2;  // of a thread
  static constexpr int kSums = S::kSums;
  static constexpr int kSteps = S::kKeys / 16;
  static constexpr int kChunkScores = S::Scheme::kChunk / 2;
  static constexpr int kBlocksOfSplit = S::Scheme::kSplit / S::kKeys;

 public:
  __device__ PrefillConsumer(const PrefillWork& work, PrefillShared<S>& shared,
                             const PrefillTile& tile)
      : work_(work), p_(work.split.p), shared_(shared), tile_(tile) {
    group_ = static_cast<int>(threadIdx.x) / cuda::kWarpgroup - 1;
    thread_ = static_cast<int>(threadIdx.x % cuda::kWarpgroup);
    lane_ = static_cast<int>(threadIdx.x % 32);
    heads_ = static_cast<int>(p_.heads_per_kv);
    const float multiplier = score_multiplier(p_);
    to_log2_ = __fmul_rn(S::kCaps ? 1.0F : multiplier, kLog2E);
  }

  __device__ void run() {
    load_queries();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = min(vector(r) / heads_, tile_.queries - 1);
      const VisibleRange visible = chain_range(p_, tile_.row, tile_.first + query);
      begin_[r] = static_cast<int>(visible.begin);
      end_[r] = static_cast<int>(visible.end);
      sinks_[r] = static_cast<int>(visible.sinks);
    }
    clear();
    const int count = tile_.blocks.count();
    int split = -1;
    for (int i = 0; i < count; ++i) {
      const int block = tile_.blocks.block(i);
      if (split != block / kBlocksOfSplit) {
        if (split >= 0) keep_split();
        split = block / kBlocksOfSplit;
      }
      attend(block);
    }
    finish();
  }

 private:
  __device__ int vector(int r) const {
    return group_ * S::kGroupRows + thread_ / 32 * 16 + lane_ / 4 + 8 * r;
  }

  // All vectors of the tile, those of both warpgroups. Behind the last they repeat it.
  __device__ void load_queries() {
    constexpr int kUnits = S::kDim / 8;
    const auto* const q = static_cast<const std::uint16_t*>(p_.q.data);
    const std::uint32_t flip = p_.scale < 0 ? 0x80008000U : 0U;
    const bool aligned =
        (reinterpret_cast<std::uintptr_t>(q) | static_cast<std::uintptr_t>(p_.q.token_stride * 2) |
         static_cast<std::uintptr_t>(p_.q.head_stride * 2)) %
            16 ==
        0;
    const int thread = static_cast<int>(threadIdx.x) - cuda::kWarpgroup;
    for (int i = thread; i < S::kRows * kUnits; i += S::kGroups * cuda::kWarpgroup) {
      const int v = i / kUnits;
      const int unit = i % kUnits;
      const int query = min(v / heads_, tile_.queries - 1);
      const std::uint16_t* const from =
          q + p_.q.offset(tile_.first + query, tile_.kv_head * heads_ + v % heads_) + 8 * unit;
      std::uint32_t words[4];
      if (aligned) {
        const uint4 four = *reinterpret_cast<const uint4*>(from);
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
      } else {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          words[w] = static_cast<std::uint32_t>(from[2 * w + 1]) << 16 | from[2 * w];
        }
      }
      *reinterpret_cast<uint4*>(shared_.q + unit / 8 * S::kSliceBytes + v * cuda::kSliceRowBytes +
                                (unit % 8 ^ v % 8) * 16) = {words[0] ^ flip, words[1] ^ flip,
                                                            words[2] ^ flip, words[3] ^ flip};
    }
    cuda::fence_for_async();
    cuda::named_barrier(1, S::kGroups * cuda::kWarpgroup);
  }

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest_[r] = minus_infinity();
      sum_[r] = 0;
    }
#pragma unroll
    for (float& x : sums_) x = 0;
  }

  // ---- a block of keys --------------------------------------------------------------------------

  __device__ void attend(int block) {
    float scores[kScores];
    cuda::barrier_wait(&shared_.k_full[turn_.stage], turn_.parity);
    // By the lane that releases the stage.
    const std::uint32_t there =
        __shfl_sync(kAllLanes, lane_ == 0 ? shared_.there[turn_.stage] : 0U, 0);
    multiply_keys(scores);
    release(shared_.k_empty[turn_.stage]);
    if constexpr (S::kCaps) {
#pragma unroll
      for (float& x : scores) {
        x = capped_bf16_score(__fmul_rn(x, score_multiplier(p_)), p_.soft_cap);
      }
    }
    const int first = block * S::kKeys;
    const KeyBlocks& blocks = tile_.blocks;
    const bool whole = there == (1U << (S::kKeys / 8)) - 1 &&
                       (first + S::kKeys <= blocks.all_sinks ||
                        (first >= blocks.all_begin && first + S::kKeys <= blocks.all_end));
    bool finite = true;
    if (!whole) {
      mask(scores, first, there);
      cuda::barrier_wait(&shared_.v_full[turn_.stage], turn_.parity);
      finite = !any_of_group(4 + group_, !own_values_finite());
    }
    // The first chunk may move the maximum, and often does at the beginning of a split; with
    // another that does, or with values that must not meet a weight of zero, the block is attended
    // to chunk by chunk.
    move_largest(scores, 0);
    if (any_of_group(2 + group_, any_above(scores)) || !finite) {
      attend_chunks(scores, first, there, finite);
    } else {
      attend_block(scores);
    }
    release(shared_.v_empty[turn_.stage]);
    turn_.next();
  }

  // Each warp for itself: its own products are done.
  __device__ void release(std::uint64_t& barrier) {
    __syncwarp();
    if (lane_ == 0) cuda::barrier_arrive(&barrier);
  }

  __device__ void multiply_keys(float (&scores)[kScores]) {
    const std::uint64_t q = cuda::tile_descriptor(
        cuda::shared_address(shared_.q + group_ * S::kGroupRows * cuda::kSliceRowBytes), S::kRows);
    const std::uint64_t k =
        cuda::tile_descriptor(cuda::shared_address(shared_.k[turn_.stage]), S::kKeys);
    cuda::wgmma_begin();
    cuda::wgmma_new<Bf16, false>(scores, q, k);
#pragma unroll
    for (int step = 1; step < S::kDim / 16; ++step) {
      cuda::wgmma<Bf16, false>(scores, cuda::inner_columns(q, S::kRows, step),
                               cuda::inner_columns(k, S::kKeys, step), 1);
    }
    cuda::wgmma_commit();
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(scores);
  }

  __device__ static bool is_there(std::uint32_t there, int token) {
    return (there >> (token / 8) & 1) != 0;
  }
  __device__ static bool attends(int position, int begin, int end, int sinks) {
    return position < end && (position >= begin || position < sinks);
  }

  __device__ void mask(float (&scores)[kScores], int first, std::uint32_t there) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int r = i / 2 % 2;
      const int token = i / 4 * 8 + lane_ % 4 * 2 + i % 2;
      if (!is_there(there, i / 4 * 8) || !attends(first + token, begin_[r], end_[r], sinks_[r])) {
        scores[i] = minus_infinity();
      }
    }
  }

  // Whether the thread's part of the values is finite.
  __device__ bool own_values_finite() const {
    constexpr std::uint32_t kExponents = 0x7f807f80;
    const auto* const values = reinterpret_cast<const uint4*>(shared_.v[turn_.stage]);
    unsigned special = 0;
#pragma unroll 4
    for (int i = thread_; i < S::kTileBytes / 16; i += cuda::kWarpgroup) {
      const uint4 x = values[i];
      special |= __vcmpeq2(x.x & kExponents, kExponents) | __vcmpeq2(x.y & kExponents, kExponents) |
                 __vcmpeq2(x.z & kExponents, kExponents) | __vcmpeq2(x.w & kExponents, kExponents);
    }
    return special == 0;
  }

  // ---- softmax ----------------------------------------------------------------------------------

  // Moves the maxima for a chunk where they must.
  __device__ void move_largest(const float (&scores)[kScores], int chunk) {
    float top[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (i / kChunkScores == chunk) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
    }
    const bool above =
        is_above(top[0], largest_[0], to_log2_) || is_above(top[1], largest_[1], to_log2_);
    if (__any_sync(kAllLanes, static_cast<int>(above)) == 0) return;
    float factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float of_row = max_of_row(top[r]);
      const float after = is_above(of_row, largest_[r], to_log2_) ? of_row : largest_[r];
      factors[r] = moving_factor(largest_[r], after, to_log2_);
      largest_[r] = after;
      sum_[r] = __fmul_rn(sum_[r], factors[r]);
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums_[i] = __fmul_rn(sums_[i], factors[i / 2 % 2]);
  }

  __device__ bool any_above(const float (&scores)[kScores]) const {
    float top[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
    for (int i = kChunkScores; i < kScores; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
    return is_above(top[0], largest_[0], to_log2_) || is_above(top[1], largest_[1], to_log2_);
  }

  // Weights of 16 positions, in two parts.
  struct Weights {
    std::uint32_t first[4], second[4];
  };
  __device__ void weigh(const float (&scores)[kScores], int step, const float (&bases)[2],
                        Weights& weights) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int r = i / 2 % 2;
      float x[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        x[k] = bf16_weight(scores[8 * step + i + k], to_log2_, bases[r]);
        sum_[r] = __fadd_rn(sum_[r], x[k]);
      }
      weights.first[i / 2] = take_bf16_pair(x[0], x[1]);
      weights.second[i / 2] = bf16_pair(x[0], x[1]);
    }
  }

  // ---- values -----------------------------------------------------------------------------------

  __device__ std::uint64_t values() const {
    return cuda::tile_descriptor(cuda::shared_address(shared_.v[turn_.stage]), S::kKeys);
  }

  __device__ void attend_block(const float (&scores)[kScores]) {
    const float bases[2] = {weight_base(largest_[0], to_log2_), weight_base(largest_[1], to_log2_)};
    Weights weights[kSteps];
    cuda::barrier_wait(&shared_.v_full[turn_.stage], turn_.parity);
    const std::uint64_t v = values();
    cuda::wgmma_hold(sums_);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      weigh(scores, step, bases, weights[step]);
      cuda::wgmma_begin();
      cuda::wgmma<Bf16, true>(sums_, weights[step].first, cuda::inner_rows(v, step), 1);
      cuda::wgmma<Bf16, true>(sums_, weights[step].second, cuda::inner_rows(v, step), 1);
      cuda::wgmma_commit();
    }
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(sums_);
  }

  __device__ void attend_chunks(const float (&scores)[kScores], int first, std::uint32_t there,
                                bool finite) {
    cuda::barrier_wait(&shared_.v_full[turn_.stage], turn_.parity);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      constexpr int kStepsOfChunk = S::Scheme::kChunk / 16;
      if (step % kStepsOfChunk == 0) move_largest(scores, step / kStepsOfChunk);
      const float bases[2] = {weight_base(largest_[0], to_log2_),
                              weight_base(largest_[1], to_log2_)};
      Weights weights;
      weigh(scores, step, bases, weights);
      if (!finite) {
        multiply_masked(weights, first, step, there);
        continue;
      }
      const std::uint64_t v = values();
      cuda::wgmma_hold(sums_);
      cuda::wgmma_begin();
      cuda::wgmma<Bf16, true>(sums_, weights.first, cuda::inner_rows(v, step), 1);
      cuda::wgmma<Bf16, true>(sums_, weights.second, cuda::inner_rows(v, step), 1);
      cuda::wgmma_commit();
      cuda::wgmma_wait<0>();
      cuda::wgmma_hold(sums_);
    }
  }

  // Row by row of the warp, with zeros in place of the values that the row does not attend to: a
  // weight of zero times NaN or infinity is NaN. Products of mma have the same bits.
  __device__ void multiply_masked(const Weights& weights, int first, int step,
                                  std::uint32_t there) {
    const int token = 16 * step + lane_ % 4 * 2;  // and the next, and 8 and 9 more
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const int from = row % 8 * 4;
      const bool upper = row >= 8;
      const int begin = __shfl_sync(kAllLanes, upper ? begin_[1] : begin_[0], from);
      const int end = __shfl_sync(kAllLanes, upper ? end_[1] : end_[0], from);
      const int sinks = __shfl_sync(kAllLanes, upper ? sinks_[1] : sinks_[0], from);
      std::uint32_t keep[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = token + 8 * i;
        const bool has = is_there(there, 16 * step + 8 * i);
        keep[i] = (has && attends(first + at, begin, end, sinks) ? 0xffffU : 0U) |
                  (has && attends(first + at + 1, begin, end, sinks) ? 0xffff0000U : 0U);
      }
      const bool own = lane_ / 4 == row % 8;
      if (__any_sync(kAllLanes, static_cast<int>((keep[0] | keep[1]) != 0)) == 0) continue;
#pragma unroll
      for (int n = 0; n < kSums / 4; n += 2) {
        std::uint32_t x[4];  // two columns of 8, of 8 tokens and of 8 more
        const int r = 16 * step + lane_ / 8 % 2 * 8 + lane_ % 8;
        const int unit = n + lane_ / 16;
        cuda::load_transposed(
            cuda::shared_address(shared_.v[turn_.stage]) +
                static_cast<std::uint32_t>(unit / 8 * S::kSliceBytes + r * cuda::kSliceRowBytes +
                                           (unit % 8 ^ r % 8) * 16),
            x);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float sum[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i] = sums_[4 * (n + k) + i];
          const std::uint32_t low = x[2 * k] & keep[0];
          const std::uint32_t high = x[2 * k + 1] & keep[1];
          cuda::multiply_add_bf16(sum, weights.first, low, high);
          cuda::multiply_add_bf16(sum, weights.second, low, high);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (own && (i >= 2) == upper) sums_[4 * (n + k) + i] = sum[i];
          }
        }
      }
    }
  }

  // ---- splits -----------------------------------------------------------------------------------

  struct Merged {
    MergeFactors factors[2];
  };
  // The split joins those before it; factors of the two rows.
  __device__ Merged merge_rows() {
    float of_split[2], sums[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      of_split[r] = S::kCaps ? largest_[r] : __fmul_rn(largest_[r], score_multiplier(p_));
      sums[r] = sum_of_row(sum_[r]);
    }
    Merged merged{{{total_largest_[0], of_split[0]}, {total_largest_[1], of_split[1]}}};
#pragma unroll
    for (int r = 0; r < 2; ++r) total_sum_[r] = merged.factors[r].merged(total_sum_[r], sums[r]);
    return merged;
  }
  __device__ float4 total(int i) const {
    return has_total_ ? shared_.totals[group_][i][thread_] : float4{0, 0, 0, 0};
  }
  __device__ float4 merged_values(const Merged& merged, int i) const {
    const float4 before = total(i);
    return {merged.factors[0].merged(before.x, sums_[4 * i]),
            merged.factors[0].merged(before.y, sums_[4 * i + 1]),
            merged.factors[1].merged(before.z, sums_[4 * i + 2]),
            merged.factors[1].merged(before.w, sums_[4 * i + 3])};
  }

  __device__ void keep_split() {
    const Merged merged = merge_rows();
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      shared_.totals[group_][i][thread_] = merged_values(merged, i);
    }
    has_total_ = true;
    clear();
  }

  __device__ void finish() {
    const Merged merged = merge_rows();
    const std::int64_t first_head = tile_.kv_head * heads_;
    const SoftmaxEpilogue epilogues[2] = {
        {p_.sink_logits, first_head + vector(0) % heads_, total_largest_[0], total_sum_[0]},
        {p_.sink_logits, first_head + vector(1) % heads_, total_largest_[1], total_sum_[1]}};
    std::int64_t to[2];
    bool there[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = vector(r) / heads_;
      const std::int64_t head = first_head + vector(r) % heads_;
      there[r] = query < tile_.queries && vector(r) < work_.tile_queries * heads_;
      to[r] = p_.output.offset(tile_.first + query, head) + lane_ % 4 * 2;
      if (there[r] && lane_ % 4 == 0 && p_.log_sum_exp.data != nullptr) {
        p_.log_sum_exp.data[p_.log_sum_exp.offset(tile_.first + query, head)] =
            epilogues[r].log_sum_exp;
      }
    }
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const float4 x = merged_values(merged, i);
      if (there[0]) store(to[0] + 8 * i, x.x, x.y, epilogues[0]);
      if (there[1]) store(to[1] + 8 * i, x.z, x.w, epilogues[1]);
    }
  }
  __device__ void store(std::int64_t at, float x, float y, const SoftmaxEpilogue& epilogue) const {
    const float low = finished_value(x, epilogue);
    const float high = finished_value(y, epilogue);
    if (p_.output_dtype == DType::bf16 && pairs_aligned()) {
      *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(p_.output.data) + at) =
          bf16_pair(low, high);
    } else {
      store_output(p_, at, low);
      store_output(p_, at + 1, high);
    }
  }
  __device__ bool pairs_aligned() const {
    return (reinterpret_cast<std::uintptr_t>(p_.output.data) % 4 == 0) &&
           (p_.output.token_stride | p_.output.head_stride) % 2 == 0;
  }

  const PrefillWork& work_;
  const PagedAttentionProblem& p_;
  PrefillShared<S>& shared_;
  const PrefillTile& tile_;
  PrefillTurn<S::kStages> turn_;
  int group_, thread_, lane_, heads_;
  float to_log2_;
  int begin_[2], end_[2], sinks_[2];  // what the thread's rows attend to
  float largest_[2], sum_[2];         // of the split
  float sums_[kSums];
  bool has_total_ = false;  // there were splits before
  float total_largest_[2] = {minus_infinity(), minus_infinity()};
  float total_sum_[2] = {0, 0};
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    bf16_prefill_kernel(const __grid_constant__ PrefillWork work) {
  if constexpr (cuda::kWgmma) {
    extern __shared__ std::byte memory[];
    const std::uint32_t misaligned = cuda::shared_address(memory) % 1024;
    auto& shared =
        *reinterpret_cast<PrefillShared<S>*>(memory + (misaligned == 0 ? 0 : 1024 - misaligned));
    const PrefillTile tile = find_tile<S>(work);
    if (tile.queries == 0) return;
    if (threadIdx.x == 0) {
      for (int i = 0; i < S::kStages; ++i) {
        cuda::barrier_init(&shared.k_full[i], 1);
        cuda::barrier_init(&shared.v_full[i], 1);
        cuda::barrier_init(&shared.k_empty[i], S::kGroups * 4);
        cuda::barrier_init(&shared.v_empty[i], S::kGroups * 4);
      }
      cuda::fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < cuda::kWarpgroup) {
      cuda::give_registers_back<40>();
      if (threadIdx.x < 32) PrefillProducer<S>(work, shared, tile).run();
    } else {
      cuda::take_registers<232>();
      PrefillConsumer<S>(work, shared, tile).run();
    }
  }
}

cuda::HeadsShape section_shape(const PagedAttentionProblem& p, const Section& section) {
  const std::int64_t dim = section.dim;
  return {p.pages.memory + section.values,
          p.pages.pages,
          p.layers.kv_heads,
          p.pages.page_tokens,
          dim,
          p.pages.geometry.page_bytes / 2,
          p.pages.page_tokens * dim,
          dim};
}

template <class S>
void launch_prefill(Context& context, PrefillWork& work) {
  const PagedAttentionProblem& p = work.split.p;
  work.tile_queries = S::kRows / static_cast<int>(p.heads_per_kv);
  work.box = S::kKeys;
  while (p.pages.page_tokens % work.box != 0) work.box /= 2;
  work.keys = cuda::slice_map(section_shape(p, work.split.keys), DType::bf16, work.box);
  work.values = cuda::slice_map(section_shape(p, work.split.values), DType::bf16, work.box);
  // Of every row the last tile may be short.
  const std::int64_t tiles = p.rows == 1
                                 ? ceil_div(p.queries, work.tile_queries)
                                 : p.queries / work.tile_queries + std::min(p.rows, p.queries);
  const auto kernel = bf16_prefill_kernel<S>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "cached_attention bf16_prefill_kernel", kernel,
               {.blocks = static_cast<unsigned>(tiles * p.layers.kv_heads),
                .threads = S::kThreads,
                .shared_bytes = static_cast<std::int64_t>(sizeof(PrefillShared<S>)) + 1024},
               work);
}

}  // namespace

std::string prefill_bf16_refusal(const Context& context, const PagedAttentionProblem& p) {
  using attention_common::above;
  constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
  constexpr std::int64_t kMaxHeads = 128;
  constexpr std::int64_t kPageMultiple = 8;
  if (std::string refusal = cuda::sm_90a_refusal(context); !refusal.empty()) return refusal;
  if (p.q_dtype != DType::bf16) return attention_common::needs("q", "bf16", name_of(p.q_dtype));
  if (p.layers.rotate_keys) return "rotate_keys";
  if (p.tree != nullptr) return "tree is given";
  if (p.heads_per_kv > kMaxHeads)
    return above("query heads per KV head", p.heads_per_kv, kMaxHeads);
  if (p.pages.page_tokens % kPageMultiple != 0) {
    return attention_common::no_multiple("page_tokens", p.pages.page_tokens, kPageMultiple);
  }
  const std::int64_t positions = p.pages.table_stride * p.pages.page_tokens;
  if (positions > kMaxPositions) return above("positions of a row", positions, kMaxPositions);
  const SplitWork work = split_work(p, tuning::kSplit);
  const bool mapped =
      cuda::can_map(section_shape(p, work.keys)) && cuda::can_map(section_shape(p, work.values));
  return mapped ? "" : "pages have strides that are no multiples of 16 bytes";
}

void prefill_bf16(Context& context, const SplitWork& split) {
  PrefillWork work;
  work.split = split;
  work.split.prefill_queries = tuning::kPrefillQueries;
  const bool caps = split.p.soft_cap > 0;
  if (split.p.layers.k_dim == 64) {
    caps ? launch_prefill<PrefillShape<64, true>>(context, work)
         : launch_prefill<PrefillShape<64, false>>(context, work);
  } else {
    caps ? launch_prefill<PrefillShape<128, true>>(context, work)
         : launch_prefill<PrefillShape<128, false>>(context, work);
  }
}

}  // namespace touchstone::paged_attention
