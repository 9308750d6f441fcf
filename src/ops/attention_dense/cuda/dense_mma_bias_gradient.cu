// The gradient of a bias on mma.sync. A block owns a tile of queries and of keys of one matrix of
// dbias and goes over all heads that share it, in order.
#include "ops/attention_dense/cuda/dense_mma_backward.cuh"

namespace touchstone::dense_attention {
namespace {

constexpr int kBiasTile = 64;     // queries, and keys
constexpr int kBiasColumns = 64;  // of the heads, at a time

struct BiasShared {
  struct Stage {
    alignas(128) std::byte queries[kMmaTileBytes<kBiasTile, kBiasColumns>];
    alignas(128) std::byte keys[kMmaTileBytes<kBiasTile, kBiasColumns>];
  };
  Stage stages[2];
};

// The sum of dS over all heads that share a matrix of dbias, in order. A step is some columns of
// q and k of one head, then of doutput and v.
template <class T>
class BiasGradient {
  using Scores = Sums<1, kBiasTile>;

 public:
  __device__ BiasGradient(const MmaGradientWork& work, BiasShared& shared)
      : work_(work), shared_(shared), span_(span_of(work.p, 0)), pair_(work.p, span_) {
    const BackwardProblem& p = work.p;
    const std::int64_t key_tiles = (p.keys + kBiasTile - 1) / kBiasTile;
    const std::int64_t query_tiles = (p.queries + kBiasTile - 1) / kBiasTile;
    key_ = static_cast<int>(blockIdx.x % key_tiles) * kBiasTile;
    query_ = static_cast<int>(blockIdx.x / key_tiles % query_tiles) * kBiasTile;
    number_ = blockIdx.x / key_tiles / query_tiles;
    unit_ = dbias_unit(p, number_);
    k_steps_ = static_cast<int>((p.k_dim + kBiasColumns - 1) / kBiasColumns);
    steps_ = k_steps_ + static_cast<int>((p.v_dim + kBiasColumns - 1) / kBiasColumns);
  }

  __device__ void run() {
    Scores sums, weights, dscores;
    clear(sums);
    const std::int64_t last = smaller(query_ + kBiasTile, span_.queries) - 1;
    const KeyTiles tiles = key_tiles(visible_range(work_.p, span_, query_),
                                     visible_range(work_.p, span_, last), kBiasTile);
    const int tile = key_ / kBiasTile;
    const bool seen = tile < tiles.sink_tiles ||
                      (tile < tiles.last && tile >= tiles.last - (tiles.count - tiles.sink_tiles));
    const std::int64_t count = seen ? unit_.sequences * unit_.heads * steps_ : 0;
    if (count > 0) issue_loads(0, 0);
    cuda::commit_copies();
    for (std::int64_t n = 0; n < count; ++n) {
      const auto stage = static_cast<int>(n % 2);
      const auto step = static_cast<int>(n % steps_);
      if (n + 1 < count) issue_loads(n + 1, 1 - stage);
      cuda::commit_copies();
      cuda::wait_copies<1>();
      __syncthreads();
      if (step == 0) {
        clear(weights);
        clear(dscores);
      }
      if (step < k_steps_) {
        multiply(weights, shared_.stages[stage]);
      } else {
        multiply(dscores, shared_.stages[stage]);
      }
      if (step + 1 == steps_) add(sums, weights, dscores, n / steps_);
      __syncthreads();
    }
    cuda::wait_copies<0>();
    store(sums);
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x / 32); }
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ std::int64_t sequence(std::int64_t pair) const {
    return unit_.first_sequence + pair / unit_.heads;
  }
  __device__ int head(std::int64_t pair) const {
    return static_cast<int>(unit_.first_head + pair % unit_.heads);
  }

  __device__ void issue_loads(std::int64_t n, int stage) {
    const BackwardProblem& p = work_.p;
    const std::int64_t pair = n / steps_;
    const auto step = static_cast<int>(n % steps_);
    const bool of_k = step < k_steps_;
    const int column = (of_k ? step : step - k_steps_) * kBiasColumns;
    const int kv_head = head(pair) / static_cast<int>(p.heads_per_kv);
    const std::int64_t columns = of_k ? p.k_dim : p.v_dim;
    Tokens a(of_k ? p.q : p.doutput, columns - column, sequence(pair), head(pair), query_);
    Tokens b(of_k ? p.k : p.v, columns - column, sequence(pair), kv_head, key_);
    a.data += column;
    b.data += column;
    BiasShared::Stage& to = shared_.stages[stage];
    issue_tile<kBiasTile, kBiasColumns>(cuda::shared_address(to.queries), a, 0,
                                        span_.queries - query_);
    issue_tile<kBiasTile, kBiasColumns>(cuda::shared_address(to.keys), b, 0, span_.keys - key_);
  }

  __device__ void multiply(Scores& scores, const BiasShared::Stage& stage) {
    add_columns<T, kBiasColumns>(
        scores,
        FromTile<kBiasColumns>{
            cuda::shared_address(stage.queries) + warp() * kMmaTileBytes<16, kBiasColumns>,
            offsets_},
        cuda::shared_address(stage.keys), offsets_, kBiasColumns);
  }

  // The lane's first row and column.
  __device__ int query() const { return query_ + warp() * 16 + lane() / 4; }
  __device__ int key() const { return key_ + lane() % 4 * 2; }

  __device__ void add(Scores& sums, Scores& weights, const Scores& dscores, std::int64_t pair) {
    const BackwardProblem& p = work_.p;
    const ScoreRule rule(p, span_, sequence(pair), head(pair));
    apply_score_mods<true>(weights, rule, span_, query(), key());
    hide<true>(weights, pair_, query(), key(), minus_infinity());
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (query() + 8 * r >= span_.queries) continue;
      const std::int64_t row = row_index(p, span_, sequence(pair), head(pair), query() + 8 * r);
      const float log = log_of(*token_of<float>(p.log_sum_exp, sequence(pair), head(pair),
                                                span_.first_query + query() + 8 * r));
      const float delta = work_.delta[row];
#pragma unroll
      for (int j = 0; j < kBiasTile / 8; ++j) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          const float weight = cuda::exp2_flushed(fmaf(weights[0][j][i], kLog2E, -log));
          sums[0][j][i] += score_gradient(weight, dscores[0][j][i], delta);
        }
      }
    }
  }

  __device__ void store(Scores& sums) {
    const std::int64_t rows = span_.queries - query();
    const std::int64_t columns = span_.keys - key();
    float* const to = static_cast<float*>(work_.p.dbias) +
                      (number_ * span_.queries + query()) * span_.keys + key();
    for_each(sums, [&](float& sum, int down, int across) {
      if (down < rows && across < columns) to[down * span_.keys + across] = sum;
    });
  }

  const MmaGradientWork& work_;
  BiasShared& shared_;
  SequenceSpan span_;
  TileMask pair_;
  int query_, key_;
  std::int64_t number_;
  DbiasUnit unit_;
  int k_steps_, steps_;
  LaneOffsets<kBiasColumns> offsets_;
};

template <class T>
__global__ void __launch_bounds__(kMmaThreads, 2)
    bias_gradient_kernel(const __grid_constant__ MmaGradientWork work) {
  __shared__ BiasShared shared;
  BiasGradient<T>(work, shared).run();
}

}  // namespace

void mma_bias_gradient(Context& context, const MmaGradientWork& work) {
  const BackwardProblem& p = work.p;
  const std::int64_t tiles =
      ((p.queries + kBiasTile - 1) / kBiasTile) * ((p.keys + kBiasTile - 1) / kBiasTile);
  const auto kernel =
      p.dtype == DType::bf16 ? bias_gradient_kernel<Bf16> : bias_gradient_kernel<F16>;
  cuda::launch(context, "attention bias gradient", kernel,
               {.blocks = static_cast<unsigned>(p.dbias_batch * p.dbias_heads * tiles),
                .threads = kMmaThreads},
               work);
}

}  // namespace touchstone::dense_attention
