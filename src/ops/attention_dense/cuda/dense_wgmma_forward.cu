// Dense attention forward on Hopper's tensor cores.
//
// A consumer warpgroup holds the scores of 64 rows by a tile of keys and the output accumulators of
// 64 rows in registers. It issues S = QK^T of the next key tile together with PV of the current one
// and computes the softmax of the next tile while both run; two warpgroups alternate between
// softmax and tensor cores (ping-pong).
//
// Persistent kernel: one CTA per SM; query tiles are scheduled longest-first. The producer runs one
// tile ahead, and the key tiles of all query tiles of a consumer form one stream: the first product
// of a query tile is issued with the last of the tile before, whose epilogue overlaps it.
#include <algorithm>
#include <string>

#include "core/context_access.h"
#include "ops/attention_dense/cuda/dense_wgmma_forward.cuh"

namespace touchstone::dense_attention {
namespace {

// ---- one consumer warpgroup ---------------------------------------------------------------------

template <class T, class S, bool kHasScoreMod>
class Consumer {
  static constexpr int kScores = S::kKeys / 2;  // of a thread

 public:
  __device__ Consumer(const ForwardWork& work, ForwardShared<S>& shared)
      : work_(work), shared_(shared) {
    group_ = static_cast<int>(threadIdx.x) / cuda::kWarpgroup - 1;
    lane_ = static_cast<int>(threadIdx.x % 32);
  }

  __device__ void run() {
    if (S::kConsumers == 2 && group_ == 1) signal_ping_pong(0);
    while (has(slot_)) mainloop();
    // The last signal has no matching wait.
    if (S::kConsumers == 2 && group_ == 0) wait_ping_pong();
  }

 private:
  // Stage and parity of item n of a pipeline. To save registers the item number is all the state
  // that is kept per pipeline.
  template <int kCount>
  __device__ static int stage(unsigned n) {
    return static_cast<int>(n % kCount);
  }
  template <int kCount>
  __device__ static std::uint32_t parity(unsigned n) {
    return n / kCount % 2;
  }

  // The slot of tile number n of queries, and what it holds.
  __device__ static int slot_index(unsigned n) { return stage<S::kSlots>(n); }
  __device__ const ForwardItem& item() const { return shared_.items[slot_index(slot_)]; }

  // Waits for tile number n of queries; whether there is one.
  __device__ bool has(unsigned n) {
    cuda::barrier_wait(&shared_.q_full[slot_index(n)], parity<S::kSlots>(n));
    return shared_.items[slot_index(n)].tiles.count > 0;
  }

  __device__ void begin() {
    const TileMask visible = item().visible;
    const int group_row = item().first_row + group_ * kConsumerRows;
    all_attend_begin_ = visible.row(group_row + kConsumerRows - 1).begin;
    all_attend_end_ = visible.row(group_row).end;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest_[r] = minus_infinity();
      total_[r] = 0;
    }
  }

  // Runs over the key tiles of this query tile and of those that follow without a gap.
  __device__ void mainloop() {
    float scores[kScores];
    std::uint32_t weights[S::kKeys / 16][4];
    begin();
    clear_sums();
    wait(shared_.k_full, step_);
    multiply_keys(scores, slot_index(slot_));
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(scores);
    release(shared_.k_empty[stage<S::kStages>(step_)]);
    online_softmax_tile(scores, item().tiles.tile(0));
    pack(scores, weights);
    for (int i = 1;; ++i) {
      const bool is_next = i == uniform(item().tiles.count);
      if (is_next) {
        if constexpr (S::kSlots == 1) break;
        if (!has(slot_ + 1)) break;
      }
      ++step_;
      wait(shared_.k_full, step_);
      wait_ping_pong();
      multiply_keys(scores, slot_index(is_next ? slot_ + 1 : slot_));
      wait(shared_.v_full, step_ - 1);
      multiply_values(weights, step_ - 1);
      signal_ping_pong(1 - group_);
      cuda::wgmma_wait<1>();
      cuda::wgmma_hold(scores);
      release(shared_.k_empty[stage<S::kStages>(step_)]);
      const float largest[2] = {largest_[0], largest_[1]};
      const float total[2] = {total_[0], total_[1]};
      if (is_next) {
        ++slot_;
        i = 0;
        begin();
      }
      online_softmax_tile(scores, item().tiles.tile(i));
      cuda::wgmma_wait<0>();
      hold_sums();
      release(shared_.v_empty[stage<S::kStages>(step_ - 1)]);
      if (is_next) {
        finish(slot_index(slot_ - 1), largest, total);
        clear_sums();
      } else if (rescales_) {
        rescale();
      }
      pack(scores, weights);
    }
    wait(shared_.v_full, step_);
    multiply_values(weights, step_);
    cuda::wgmma_wait<0>();
    hold_sums();
    release(shared_.v_empty[stage<S::kStages>(step_)]);
    finish(slot_index(slot_), largest_, total_);
    ++step_;
    ++slot_;
  }

  // Tells the compiler that all lanes have the same.
  __device__ static int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

  __device__ static void wait(std::uint64_t (&full)[S::kStages], unsigned n) {
    cuda::barrier_wait(&full[stage<S::kStages>(n)], parity<S::kStages>(n));
  }

  // Ping-pong: one warpgroup issues its products while the other computes its softmax.
  __device__ void wait_ping_pong() {
    if constexpr (S::kConsumers == 2) cuda::named_barrier(2 + group_, 2 * cuda::kWarpgroup);
  }
  __device__ void signal_ping_pong(int group) {
    if constexpr (S::kConsumers == 2) cuda::named_arrive(2 + group, 2 * cuda::kWarpgroup);
  }

  // Each warp for itself: its own products are done.
  __device__ void release(std::uint64_t& barrier) {
    if (lane_ == 0) cuda::barrier_arrive(&barrier);
  }

  // Of the warpgroup's rows, the first of this thread's two.
  __device__ int warp_row() const {
    return static_cast<int>(threadIdx.x % cuda::kWarpgroup) / 32 * 16 + lane_ / 4;
  }

  __device__ void multiply_keys(float (&scores)[kScores], int slot) {
    const std::uint64_t q = cuda::tile_descriptor(
        cuda::shared_address(shared_.q[slot] + group_ * kConsumerRows * cuda::kSliceRowBytes),
        S::kRows);
    const std::uint64_t k =
        cuda::tile_descriptor(cuda::shared_address(shared_.k[stage<S::kStages>(step_)]), S::kKeys);
    cuda::wgmma_hold(scores);
    cuda::wgmma_begin();
#pragma unroll
    for (int step = 0; step < S::kDim / 16; ++step) {
      cuda::wgmma<T, false>(scores, cuda::inner_columns(q, S::kRows, step),
                            cuda::inner_columns(k, S::kKeys, step), step > 0 ? 1 : 0);
    }
    cuda::wgmma_commit();
  }

  __device__ void multiply_values(const std::uint32_t (&weights)[S::kKeys / 16][4], unsigned step) {
    const std::uint64_t v =
        cuda::tile_descriptor(cuda::shared_address(shared_.v[stage<S::kStages>(step)]), S::kKeys);
    hold_sums();
    cuda::wgmma_begin();
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i) {
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        const int slice = part * S::kPart / cuda::kSliceColumns * S::kKeys * cuda::kSliceRowBytes;
        cuda::wgmma<T, true>(sums_[part], weights[i], cuda::inner_rows(cuda::advanced(v, slice), i),
                             1);
      }
    }
    cuda::wgmma_commit();
  }

  __device__ void clear_sums() {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
      for (float& o : sums_[part]) o = 0;
    }
  }
  __device__ void hold_sums() {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) cuda::wgmma_hold(sums_[part]);
  }

  // Online softmax with lazy rescaling: the running max of a row is updated only when it grows by
  // more than 2^kRescaleSlack; until then earlier sums stay valid. The decision depends on the
  // row's own scores only; a warp without an updated row skips the multiplications.
  __device__ void online_softmax_tile(float (&scores)[kScores], int tile) {
    const int first_key = tile * S::kKeys;
    if constexpr (kHasScoreMod) apply_score_mods(scores, first_key);
    apply_mask(scores, first_key);
    float top[2] = {largest_[0], largest_[1]};
#pragma unroll
    for (int i = 0; i < kScores; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
    bool moves[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = row_max(top[r]);
      // The first visible score updates it: it is above -inf. The difference of two -inf is NaN.
      moves[r] = (top[r] - largest_[r]) * work_.scale > tuning::kRescaleSlack;
    }
    rescales_ = __any_sync(kAllLanes, moves[0] || moves[1]);
    if (rescales_) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float before = largest_[r];
        if (moves[r]) largest_[r] = top[r];
        shrink_[r] = cuda::exp2_flushed(before * work_.scale - base(r));
        total_[r] *= shrink_[r];
      }
    }
    const float bases[2] = {base(0), base(1)};
    float total[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = cuda::exp2_flushed(fmaf(scores[i], work_.scale, -bases[i / 2 % 2]));
      total[i / 2 % 2] += scores[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) total_[r] += total[r];
  }
  // Fully masked so far: any finite number will do, since every score is -inf.
  __device__ float base(int r) const {
    return largest_[r] == minus_infinity() ? 0 : largest_[r] * work_.scale;
  }

  __device__ void apply_mask(float (&scores)[kScores], int first_key) const {
    const int column = first_key + lane_ % 4 * 2;
    if (first_key + S::kKeys <= all_attend_end_ && first_key >= all_attend_begin_) return;
    const int row = item().first_row + group_ * kConsumerRows + warp_row();
    const RowMask visible[2] = {item().visible.row(row), item().visible.row(row + 8)};
    const int left[2] = {visible[0].end - column, visible[1].end - column};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (i / 4 * 8 + i % 2 >= left[i / 2 % 2]) scores[i] = minus_infinity();
    }
    if (first_key >= all_attend_begin_) return;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (!visible[i / 2 % 2].attends(column + i / 4 * 8 + i % 2)) scores[i] = minus_infinity();
    }
  }

  // Soft cap, ALiBi, bias; afterwards scores are to base 2.
  __device__ void apply_score_mods(float (&scores)[kScores], int first_key) {
    const ForwardItem& item = this->item();
    const int first_row = item.first_row + group_ * kConsumerRows + warp_row();
    const ScoreRule rule(work_.p, item.span, item.sequence, item.head);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int key = first_key + lane_ % 4 * 2 + i / 4 * 8 + i % 2;
      const int row = first_row + i / 2 % 2 * 8;
      const bool there = row < item.span.queries && key < item.span.keys;
      scores[i] = (rule.capped(scores[i]) + rule.added(row, key, there)) * kLog2E;
    }
  }

  __device__ void rescale() {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
      for (int i = 0; i < S::kPart / 2; ++i) sums_[part][i] *= shrink_[i / 2 % 2];
    }
  }

  __device__ static void pack(const float (&scores)[kScores],
                              std::uint32_t (&weights)[S::kKeys / 16][4]) {
#pragma unroll
    for (int i = 0; i < S::kKeys / 4; ++i) {
      weights[i / 4][i % 4] = packed_pair<T>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  // Output of the tile in `slot` goes out through the slot's own memory, which is then free.
  __device__ void finish(int slot, const float (&largest)[2], const float (&totals)[2]) {
    const ForwardProblem& p = work_.p;
    const ForwardItem& item = shared_.items[slot];
    const int group_row = group_ * kConsumerRows;  // of the tile
    const int rows = item.rows - group_row;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = row_sum(totals[r]);
      float top = largest[r] * work_.scale;
      factor[r] = 1;
      if (p.sink_logits != nullptr) {
        const float sink = static_cast<const float*>(p.sink_logits)[item.head] * kLog2E;
        const float base = fmaxf(top, sink);
        factor[r] = top == minus_infinity() ? 0 : cuda::exp2_flushed(top - base);
        total *= factor[r];
        if (sink != minus_infinity()) total += cuda::exp2_flushed(sink - base);
        top = base;
      }
      factor[r] = total > 0 ? factor[r] / total : (total == 0 ? 0 : total);
      const int row = warp_row() + 8 * r;
      if (p.log_sum_exp.data != nullptr && lane_ % 4 == 0 && row < rows) {
        static_cast<float*>(
            p.log_sum_exp.data)[item.log_at + (group_row + row) * p.log_sum_exp.token_stride] =
            total == 0 ? minus_infinity() : fmaf(top, kLn2, logf(total));
      }
    }
    T* const output =
        static_cast<T*>(p.output.data) + item.output_at + group_row * p.output.token_stride;
    store_rows<T, S::kDim, S::kRows>(
        sums_, factor[0], factor[1],
        shared_.q[slot] + group_ * kConsumerRows * cuda::kSliceRowBytes, output,
        p.output.token_stride, static_cast<int>(p.v_dim), rows, 4 + group_);
    // The copy engine writes there next. Every thread says so for itself, as it has read for
    // itself.
    cuda::fence_for_async();
    cuda::barrier_arrive(&shared_.q_empty[slot]);
  }

  const ForwardWork& work_;
  ForwardShared<S>& shared_;
  unsigned step_ = 0;  // tiles of keys begun
  unsigned slot_ = 0;  // tiles of queries done
  int group_, lane_;
  int all_attend_begin_, all_attend_end_;  // keys that all rows of the warpgroup attend to
  float largest_[2], total_[2], shrink_[2];
  bool rescales_;  // the sums so far, by `shrink_`
  float sums_[S::kParts][S::kPart / 2];
};

template <class T, class S, bool kHasScoreMod>
__global__ void __launch_bounds__(S::kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardWork work) {
  if constexpr (cuda::kWgmma) {
    auto& shared = shared_memory<ForwardShared<S>>();
    if (threadIdx.x == 0) {
      init_barriers(shared.q_full, 1);
      init_barriers(shared.q_empty, S::kConsumers * cuda::kWarpgroup);
      init_barriers(shared.k_full, 1);
      init_barriers(shared.v_full, 1);
      init_barriers(shared.k_empty, S::kConsumers * 4);
      init_barriers(shared.v_empty, S::kConsumers * 4);
      cuda::fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < cuda::kWarpgroup) {
      cuda::give_registers_back<S::kProducerRegisters>();
      if (threadIdx.x < 32) ForwardProducer<S>(work, shared).run();
    } else {
      cuda::take_registers<S::kConsumerRegisters>();
      Consumer<T, S, kHasScoreMod>(work, shared).run();
    }
  }
}

template <class T, class S, bool kHasScoreMod>
void launch_forward(Context& context, const ForwardProblem& p) {
  const bool packed = p.query_offsets != nullptr;
  ForwardWork work;
  work.p = p;
  work.scale = kHasScoreMod ? 1.0F : static_cast<float>(p.scale * 1.4426950408889634);
  work.q = make_tile_source(p, p.q, p.query_heads, p.queries, p.k_dim, S::kRows);
  work.k = make_tile_source(p, p.k, p.kv_heads, p.keys, p.k_dim, S::kKeys);
  work.v = make_tile_source(p, p.v, p.kv_heads, p.keys, p.v_dim, S::kKeys);
  work.schedule = make_tile_schedule(p, p.queries, p.query_heads, packed, S::kRows, p.keys);
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const std::int64_t blocks = std::min<std::int64_t>(processors, work.schedule.count());
  if ((p.causal || packed) && work.schedule.count() > blocks) {
    work.tiles_taken =
        static_cast<unsigned*>(detail::ContextAccess::workspace(context, sizeof(unsigned)));
    cuda::check(cudaMemsetAsync(work.tiles_taken, 0, sizeof(unsigned), cuda::stream_of(context)),
                "cudaMemsetAsync");
  }
  const auto kernel = forward_kernel<T, S, kHasScoreMod>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "attention forward", kernel,
               {.blocks = static_cast<unsigned>(blocks),
                .threads = S::kThreads,
                .shared_bytes = sizeof(ForwardShared<S>) + 1024},
               work);
}

template <class T, class S>
void launch_shape(Context& context, const ForwardProblem& p) {
  const bool changed = p.soft_cap > 0 || p.alibi_slopes != nullptr || p.bias != nullptr;
  changed ? launch_forward<T, S, true>(context, p) : launch_forward<T, S, false>(context, p);
}

template <class T>
void launch_type(Context& context, const ForwardProblem& p) {
  const std::int64_t dim = larger(p.k_dim, p.v_dim);
  if (dim <= 64 && p.causal && p.queries <= 1024) {
    // The finer the tiles, the less of what they hold is hidden.
    launch_shape<T, ForwardShape<64, 2>>(context, p);
  } else if (dim <= 64) {
    launch_shape<T, ForwardShape<64, 3>>(context, p);
  } else if (dim <= 128) {
    launch_shape<T, ForwardShape<128, 2>>(context, p);
  } else if (dim <= 192) {
    launch_shape<T, ForwardShape<192, 2>>(context, p);
  } else {
    launch_shape<T, ForwardShape<256, 2>>(context, p);
  }
}

}  // namespace

std::string attention_wgmma_refuses(const Context& context, const ForwardProblem& p) {
  if (std::string refusal = cuda::sm_90a_refusal(context); !refusal.empty()) return refusal;
  if (std::string refusal = refuses_heads(p); !refusal.empty()) return refusal;
  if (p.dropout.threshold > 0) return "dropout of weights";
  if (p.scale < 0) return "scale " + std::to_string(p.scale) + " < 0";
  std::string refusal = refuses_count(p);
  if (refusal.empty()) refusal = refuses_layout(p, "q", p.q, p.query_heads, p.queries, p.k_dim);
  if (refusal.empty()) refusal = refuses_layout(p, "k", p.k, p.kv_heads, p.keys, p.k_dim);
  if (refusal.empty()) refusal = refuses_layout(p, "v", p.v, p.kv_heads, p.keys, p.v_dim);
  if (refusal.empty()) {
    refusal = refuses_layout(p, "output", p.output, p.query_heads, p.queries, p.v_dim);
  }
  return refusal;
}

void attention_wgmma(Context& context, const ForwardProblem& p) {
  p.dtype == DType::bf16 ? launch_type<Bf16>(context, p) : launch_type<F16>(context, p);
}

}  // namespace touchstone::dense_attention
