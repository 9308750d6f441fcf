// Dense attention backward on mma.sync: for GPUs before Hopper, and for what wgmma refuses.
//
// Every sum has one owner and one order. A block owns queries and goes over the keys (dq, three
// products a tile), or keys and goes over the queries of all heads of the group (dk and dv, four
// products). Both are one kernel: with own rows A, A' and tiles B, B' of the other side it makes
//   S = A B^T, dP = A' B'^T, then sums of dS B and of P B',
// where A, A' are q and doutput, B, B' k and v, or the other way round. Heads above 128 have no
// registers for dk and dv at once: there each has its own pass, and S is made once more.
#include "core/context_access.h"
#include "ops/attention_dense/cuda/dense_mma_backward.cuh"

namespace touchstone::dense_attention {
namespace {

enum class Side : std::uint8_t { queries, keys, keys_for_dk, keys_for_dv };

template <int kDim, Side kSide>
struct Shape {
  static constexpr bool kQueries = kSide == Side::queries;
  static constexpr bool kMakesFirst = kSide != Side::keys_for_dv;                // dq or dk
  static constexpr bool kMakesSecond = !kQueries && kSide != Side::keys_for_dk;  // dv
  static constexpr int kTiles = kQueries && kDim <= 128 ? 2 : 1;  // of 16 rows, of a warp
  static constexpr int kWarpRows = 16 * kTiles;
  static constexpr int kRows = kMmaWarps * kWarpRows;
  static constexpr int kStages = kDim <= 128 ? 2 : 1;
  static constexpr int kOthers = kDim == 64 || (kDim == 128 && !kQueries) ? 64 : 32;
};

template <int kDim, Side kSide>
struct Shared {
  using S = Shape<kDim, kSide>;
  struct Stage {
    alignas(128) std::byte first[kMmaTileBytes<S::kOthers, kDim>];
    alignas(128) std::byte second[kMmaTileBytes<S::kOthers, kDim>];
    alignas(16) float log_sum_exp[S::kQueries ? 1 : S::kOthers];
    alignas(16) float delta[S::kQueries ? 1 : S::kOthers];
  };
  alignas(128) std::byte own_first[kMmaTileBytes<S::kRows, kDim>];
  alignas(128) std::byte own_second[S::kMakesFirst ? kMmaTileBytes<S::kRows, kDim> : 1];
  Stage stages[S::kStages];
};

template <class T, int kDim, Side kSide>
class Gradient {
  using S = Shape<kDim, kSide>;
  using Scores = Sums<S::kTiles, S::kOthers>;

 public:
  __device__ Gradient(const MmaGradientWork& work, Shared<kDim, kSide>& shared)
      : work_(work),
        shared_(shared),
        coord_(tile_coord(work.schedule, blockIdx.x, work.p.batch,
                          S::kQueries ? work.p.query_offsets : work.p.key_offsets)),
        span_(span_of(work.p, coord_.sequence)),
        pair_(work.p, span_),
        row_(coord_.tile * S::kRows + warp() * S::kWarpRows) {}

  __device__ void run() {
    const std::int64_t rows =
        (S::kQueries ? span_.queries : span_.keys) - static_cast<std::int64_t>(first());
    if (rows <= 0) return;
    find_tiles();
    issue_own(rows);
    if constexpr (S::kMakesFirst) clear(first_);
    if constexpr (S::kMakesSecond) clear(second_);
    if constexpr (S::kQueries) read_rows();
    if constexpr (S::kStages == 2) {
      go_ahead();
    } else {
      take_turns();
    }
    // All copies have arrived, also where there was no tile to wait for: output goes through their
    // place.
    cuda::wait_copies<0>();
    __syncthreads();
    finish(rows);
  }

 private:
  using Stage = typename Shared<kDim, kSide>::Stage;

  __device__ static int warp() { return static_cast<int>(threadIdx.x / 32); }
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static std::uint32_t address(const std::byte* memory) {
    return cuda::shared_address(memory);
  }
  __device__ int first() const { return coord_.tile * S::kRows; }
  __device__ int group() const { return static_cast<int>(work_.p.heads_per_kv); }

  // Which tiles of the other side, of which head.
  __device__ void find_tiles() {
    const BackwardProblem& p = work_.p;
    if constexpr (S::kQueries) {
      const std::int64_t last = smaller(first() + S::kRows, span_.queries) - 1;
      tiles_ =
          key_tiles(visible_range(p, span_, first()), visible_range(p, span_, last), S::kOthers);
      count_ = tiles_.count;
    } else {
      range_ = query_tiles(p, span_, first(), S::kRows, S::kOthers);
      count_ = (range_.y - range_.x) * group();
    }
  }
  __device__ int tile_of(int n) const {
    return S::kQueries ? tiles_.tile(n) : range_.x + n % (range_.y - range_.x);
  }
  __device__ int head_of(int n) const {
    if constexpr (S::kQueries) return coord_.head / group();
    return coord_.head * group() + n / (range_.y - range_.x);
  }
  __device__ int query_head(int n) const { return S::kQueries ? coord_.head : head_of(n); }

  __device__ void issue_own(std::int64_t rows) {
    const BackwardProblem& p = work_.p;
    const std::int64_t token = first() + (S::kQueries ? span_.first_query : span_.first_key);
    const Tokens a(S::kQueries ? p.q : p.k, p.k_dim, coord_.sequence, coord_.head, token);
    issue_tile<S::kRows, kDim>(address(shared_.own_first), a, 0, rows);
    if constexpr (S::kMakesFirst) {
      const Tokens b(S::kQueries ? p.doutput : p.v, p.v_dim, coord_.sequence, coord_.head, token);
      issue_tile<S::kRows, kDim>(address(shared_.own_second), b, 0, rows);
    }
  }

  // Two stages: one is copied while the other is read.
  __device__ void go_ahead() {
    issue_first(0, 0);
    issue_second(0, 0);
    cuda::commit_copies();
    for (int n = 0; n < count_; ++n) {
      Stage& stage = shared_.stages[n % 2];
      issue_first(n + 1, (n + 1) % 2);
      issue_second(n + 1, (n + 1) % 2);
      cuda::commit_copies();
      cuda::wait_copies<1>();
      __syncthreads();
      Scores weights, dscores;
      clear(dscores);
      if constexpr (S::kMakesFirst) multiply_second(dscores, stage);
      multiply_first(weights, stage);
      differentiate(weights, dscores, stage, n);
      if constexpr (S::kMakesSecond) add_second(weights, stage);
      if constexpr (S::kMakesFirst) add_first(dscores, stage);
      __syncthreads();
    }
  }

  // One stage, of which each half is copied while the other is read.
  __device__ void take_turns() {
    Stage& stage = shared_.stages[0];
    if constexpr (S::kMakesFirst) {
      issue_second(0, 0);
      cuda::commit_copies();
      issue_first(0, 0);
      cuda::commit_copies();
    } else {
      issue_first(0, 0);
      cuda::commit_copies();
      issue_second(0, 0);
      cuda::commit_copies();
    }
    for (int n = 0; n < count_; ++n) {
      Scores weights, dscores;
      clear(dscores);
      arrive();
      if constexpr (S::kMakesFirst) {
        multiply_second(dscores, stage);
        __syncthreads();
        issue_second(n + 1, 0);
        cuda::commit_copies();
        arrive();
        multiply_first(weights, stage);
        differentiate(weights, dscores, stage, n);
        add_first(dscores, stage);
        __syncthreads();
        issue_first(n + 1, 0);
        cuda::commit_copies();
      } else {
        multiply_first(weights, stage);
        differentiate(weights, dscores, stage, n);
        __syncthreads();
        issue_first(n + 1, 0);
        cuda::commit_copies();
        arrive();
        add_second(weights, stage);
        __syncthreads();
        issue_second(n + 1, 0);
        cuda::commit_copies();
      }
    }
  }

  // All copies but the last group have arrived.
  __device__ void arrive() {
    cuda::wait_copies<1>();
    __syncthreads();
  }

  // Where tile n of the other side begins, and how many rows are left from there on.
  struct Other {
    std::int64_t first, token, rows;
  };
  __device__ Other other_of(int n) const {
    const std::int64_t first = static_cast<std::int64_t>(tile_of(n)) * S::kOthers;
    return {first, first + (S::kQueries ? span_.first_key : span_.first_query),
            (S::kQueries ? span_.keys : span_.queries) - first};
  }

  __device__ void issue_first(int n, int number) {
    if (n >= count_) return;
    const BackwardProblem& p = work_.p;
    Stage& to = shared_.stages[number];
    const Other other = other_of(n);
    const int head = head_of(n);
    const Tokens tokens(S::kQueries ? p.k : p.q, p.k_dim, coord_.sequence, head, other.token);
    issue_tile<S::kOthers, kDim>(address(to.first), tokens, 0, other.rows);
    if constexpr (!S::kQueries) {
      const auto thread = static_cast<int>(threadIdx.x);
      if (thread >= S::kOthers) return;
      if (thread < other.rows) {
        const std::int64_t row = row_index(p, span_, coord_.sequence, head, other.first + thread);
        cuda::copy_async_small<4>(
            cuda::shared_address(&to.log_sum_exp[thread]),
            token_of<float>(p.log_sum_exp, coord_.sequence, head, other.token + thread));
        cuda::copy_async_small<4>(cuda::shared_address(&to.delta[thread]), work_.delta + row);
      } else {
        to.log_sum_exp[thread] = minus_infinity();
        to.delta[thread] = 0;
      }
    }
  }

  __device__ void issue_second(int n, int number) {
    if (n >= count_) return;
    const BackwardProblem& p = work_.p;
    const Other other = other_of(n);
    const Tokens tokens(S::kQueries ? p.v : p.doutput, p.v_dim, coord_.sequence, head_of(n),
                        other.token);
    issue_tile<S::kOthers, kDim>(address(shared_.stages[number].second), tokens, 0, other.rows);
  }

  // Of the own rows, where they are queries.
  __device__ void read_rows() {
    const BackwardProblem& p = work_.p;
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = row_ + 16 * m + 8 * r + lane() / 4;
        log_[m][r] = -minus_infinity();
        delta_[m][r] = 0;
        if (row >= span_.queries) continue;
        const std::int64_t index = row_index(p, span_, coord_.sequence, coord_.head, row);
        log_[m][r] = log_of(
            *token_of<float>(p.log_sum_exp, coord_.sequence, coord_.head, span_.first_query + row));
        delta_[m][r] = work_.delta[index];
      }
    }
  }

  __device__ FromTile<kDim> own_rows(const std::byte* tile) const {
    return {address(tile) + warp() * kMmaTileBytes<S::kWarpRows, kDim>, offsets_};
  }
  __device__ void multiply_first(Scores& sums, const Stage& stage) {
    clear(sums);
    add_columns<T, kDim>(sums, own_rows(shared_.own_first), address(stage.first), offsets_,
                         static_cast<int>(work_.p.k_dim));
  }
  __device__ void multiply_second(Scores& sums, const Stage& stage) {
    add_columns<T, kDim>(sums, own_rows(shared_.own_second), address(stage.second), offsets_,
                         static_cast<int>(work_.p.v_dim));
  }
  __device__ void add_first(const Scores& dscores, const Stage& stage) {
    add_rows<T, kDim>(first_, dscores, address(stage.first), offsets_,
                      static_cast<int>(work_.p.k_dim));
  }
  __device__ void add_second(const Scores& weights, const Stage& stage) {
    add_rows<T, kDim>(second_, weights, address(stage.second), offsets_,
                      static_cast<int>(work_.p.v_dim));
  }

  // Products become weights and gradients of products.
  __device__ void differentiate(Scores& weights, Scores& dscores, const Stage& stage, int n) {
    const int first = tile_of(n) * S::kOthers;
    const int own_last = row_ + S::kWarpRows - 1;
    const int last = first + S::kOthers - 1;
    const int own = row_ + lane() / 4;
    const int other = first + lane() % 4 * 2;
    const bool dropped = work_.p.dropout.threshold > 0;
    if (dropped) drop(dscores, n, own, other);
    if (work_.changed) change(weights, dscores, stage, n, own, other);
    const bool all = S::kQueries ? pair_.attends_all(row_, own_last, first, last)
                                 : pair_.attends_all(first, last, row_, own_last);
    if (!all) hide<S::kQueries>(weights, pair_, own, other, work_.hidden);
    for_both(weights, dscores, stage, [&](float& weight, float& dscore, float log, float delta) {
      weight = cuda::exp2_flushed(fmaf(weight, work_.scale, -log));
      dscore = score_gradient(weight, dscore, work_.capped ? 0 : delta);
    });
    if (dropped && S::kMakesSecond) drop(weights, n, own, other);
  }

  __device__ void drop(Scores& weights, int n, int own, int other) {
    drop_weights<S::kQueries>(weights, work_.p, span_, coord_.sequence, query_head(n), own, other);
  }

  // Soft cap, ALiBi, bias. With a cap dscores have its slope afterwards, and delta taken off.
  __device__ void change(Scores& weights, Scores& dscores, const Stage& stage, int n, int own,
                         int other) {
    const ScoreRule rule(work_.p, span_, coord_.sequence, query_head(n));
    if (work_.capped) {
      for_both(weights, dscores, stage, [&](float& weight, float& dscore, float, float delta) {
        weight = rule.capped(weight);
        dscore = (dscore - delta) * rule.cap_slope(weight);
      });
    } else {
      for_each(weights, [&](float& weight, int, int) { weight *= rule.scale(); });
    }
    add_to_scores<S::kQueries>(weights, rule, span_, own, other);
  }

  // function(weight, dscore, log, delta): the latter two of the query.
  template <class Function>
  __device__ void for_both(Scores& weights, Scores& dscores, const Stage& stage,
                           const Function& function) {
    const int column = lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < S::kOthers / 8; ++j) {
      float log[2], delta[2];  // of the columns
      if constexpr (!S::kQueries) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          log[c] = log_of(stage.log_sum_exp[8 * j + column + c]);
          delta[c] = stage.delta[8 * j + column + c];
        }
      }
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (S::kQueries) {
            function(weights[m][j][i], dscores[m][j][i], log_[m][i / 2], delta_[m][i / 2]);
          } else {
            function(weights[m][j][i], dscores[m][j][i], log[i % 2], delta[i % 2]);
          }
        }
      }
    }
  }

  __device__ void finish(std::int64_t rows) {
    const BackwardProblem& p = work_.p;
    const std::int64_t left = rows - warp() * S::kWarpRows;
    const std::int64_t token = row_ + (S::kQueries ? span_.first_query : span_.first_key);
    const std::uint32_t own = warp() * kMmaTileBytes<S::kWarpRows, kDim>;
    float factors[S::kTiles][2];
    if constexpr (S::kMakesFirst) {
#pragma unroll
      for (auto& factor : factors) factor[0] = factor[1] = static_cast<float>(p.scale);
      const MutableHeads& to = S::kQueries ? p.dq : p.dk;
      store_rows<T, kDim>(first_, factors, shared_.own_first + own,
                          token_of<T>(to, coord_.sequence, coord_.head, token), to.token_stride,
                          p.k_dim, left);
    }
    if constexpr (S::kMakesSecond) {
#pragma unroll
      for (auto& factor : factors) factor[0] = factor[1] = 1;
      store_rows<T, kDim>(
          second_, factors, (S::kMakesFirst ? shared_.own_second : shared_.own_first) + own,
          token_of<T>(p.dv, coord_.sequence, coord_.head, token), p.dv.token_stride, p.v_dim, left);
    }
  }

  const MmaGradientWork& work_;
  Shared<kDim, kSide>& shared_;
  TileCoord coord_;
  SequenceSpan span_;
  TileMask pair_;
  int row_;  // the warp's first
  int count_ = 0;
  KeyTiles tiles_;
  int2 range_{0, 0};
  LaneOffsets<kDim> offsets_;
  float log_[S::kTiles][2], delta_[S::kTiles][2];
  float first_[S::kMakesFirst ? S::kTiles : 1][kDim / 8][4];
  float second_[S::kMakesSecond ? S::kTiles : 1][kDim / 8][4];
};

template <class T, int kDim, Side kSide>
__global__ void __launch_bounds__(kMmaThreads, 2)
    gradient_kernel(const __grid_constant__ MmaGradientWork work) {
  extern __shared__ __align__(128) std::byte memory[];
  Gradient<T, kDim, kSide>(work, *reinterpret_cast<Shared<kDim, kSide>*>(memory)).run();
}

// ---- the host's side ----------------------------------------------------------------------------

template <class T, int kDim, Side kSide>
void launch_side(Context& context, MmaGradientWork work) {
  using S = Shape<kDim, kSide>;
  const BackwardProblem& p = work.p;
  const bool packed = p.query_offsets != nullptr;
  if constexpr (S::kQueries) {
    work.schedule = make_tile_schedule(p, p.queries, p.query_heads, packed, S::kRows, p.keys);
  } else {
    work.schedule =
        make_tile_schedule(p, p.keys, p.kv_heads, packed, S::kRows, p.queries * p.heads_per_kv);
    work.schedule.last_first = false;
  }
  const auto kernel = gradient_kernel<T, kDim, kSide>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "attention gradient", kernel,
               {.blocks = static_cast<unsigned>(work.schedule.count()),
                .threads = kMmaThreads,
                .shared_bytes = sizeof(Shared<kDim, kSide>)},
               work);
}

template <class T>
void backward(Context& context, const BackwardProblem& p) {
  MmaGradientWork work;
  work.p = p;
  work.changed = has_score_mods(p);
  work.capped = p.soft_cap > 0;
  work.scale = work.changed ? kLog2E : static_cast<float>(p.scale * 1.4426950408889634);
  work.hidden = work.scale < 0 ? INFINITY : -INFINITY;
  auto* const delta = static_cast<float*>(detail::ContextAccess::workspace(
      context, static_cast<std::int64_t>(sizeof(float)) * row_count(p)));
  work.delta = delta;
  attention_delta(context, p, delta);
  attention_sink_gradient(context, p, delta);
  const std::int64_t dim = larger(p.k_dim, p.v_dim);
  if (dim <= 64) {
    launch_side<T, 64, Side::keys>(context, work);
    launch_side<T, 64, Side::queries>(context, work);
  } else if (dim <= 128) {
    launch_side<T, 128, Side::keys>(context, work);
    launch_side<T, 128, Side::queries>(context, work);
  } else {
    launch_side<T, 256, Side::keys_for_dk>(context, work);
    launch_side<T, 256, Side::keys_for_dv>(context, work);
    launch_side<T, 256, Side::queries>(context, work);
  }
  if (p.dbias != nullptr) mma_bias_gradient(context, work);
}

}  // namespace

std::string attention_backward_mma_refuses(const Context& context, const BackwardProblem& p) {
  std::string refusal = mma_refuses(context, p);
  if (refusal.empty()) refusal = mma_refuses_layout("doutput", p.doutput);
  if (refusal.empty()) refusal = mma_refuses_layout("dq", p.dq);
  if (refusal.empty()) refusal = mma_refuses_layout("dk", p.dk);
  if (refusal.empty()) refusal = mma_refuses_layout("dv", p.dv);
  return refusal;
}

void attention_backward_mma(Context& context, const BackwardProblem& p) {
  p.dtype == DType::bf16 ? backward<Bf16>(context, p) : backward<F16>(context, p);
}

}  // namespace touchstone::dense_attention
