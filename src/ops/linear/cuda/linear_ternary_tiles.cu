// Linear from ternary weights for more than 16 rows: tiles of 128 rows of W by 64 rows of x, a segment of
// both in shared memory while the next one is on its way.
#include "ops/linear/cuda/linear_ternary.cuh"

namespace touchstone::linear_layer {
namespace {

constexpr int kWarps = 8;
constexpr int kTilesN = 8;
constexpr int kColumns = 8 * kTilesN;                    // rows of x
constexpr int kPitch = static_cast<int>(kSegment) + 16;  // bytes: rows end in different banks
constexpr int kSums = kTernarySegmentBlocks * kColumns;  // ints
constexpr int kStage = kWarps * kTernaryStage + kColumns * kPitch + kSums * 4;

class TilesStage {
 public:
  __device__ TilesStage(std::uint8_t* shared, int segment)
      : memory_(shared + segment % 2 * kStage) {}
  __device__ std::uint8_t* slab(int warp) const { return memory_ + warp * kTernaryStage; }
  __device__ std::uint8_t* x() const { return memory_ + kWarps * kTernaryStage; }
  __device__ int* sums() const { return reinterpret_cast<int*>(x() + kColumns * kPitch); }

 private:
  std::uint8_t* memory_;
};

// Rows of x past the last are not copied: what comes of them is not stored.
template <int kCopy>
__device__ void fill_stage(const TernaryParams& p, const TilesStage& stage, std::int64_t tile,
                           std::int64_t row, int segment) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  copy_tile<kCopy>(p, tile + warp, segment, cuda::shared_address(stage.slab(warp)));
  const int columns = min(static_cast<int>(kSegment), p.in - segment * static_cast<int>(kSegment));
  const int pieces = columns / 16;
  const std::uint32_t x = cuda::shared_address(stage.x());
  for (int i = thread; i < kColumns * pieces; i += kWarps * 32) {
    const int r = i / pieces;
    const int c = (i - r * pieces) * 16;
    const std::int64_t from = row + r;
    if (from >= p.rows) break;
    cuda::copy_async_16(x + static_cast<std::uint32_t>(r * kPitch + c),
                        p.rounded.q + from * p.in + segment * kSegment + c);
  }
  const int groups = p.in / kTernaryGroup;
  for (int i = thread; i < columns / kTernaryGroup * kColumns; i += kWarps * 32) {
    const int group = i / kColumns;
    const std::int64_t from = row + i % kColumns;
    if (from >= p.rows) continue;
    stage.sums()[i] = -p.rounded.sums[from * groups + segment * kTernarySegmentBlocks + group];
  }
  cuda::commit_copies();
}

// Lane 4 g + q holds rows g and g + 8 of W, and of each eight rows of x numbers 2 q and 2 q + 1.
__device__ void store_tile(const TernaryParams& p, std::int64_t tile, std::int64_t row,
                           const float (&total)[kTilesN][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool gated = p.sink.gate != LinearGate::none;
#pragma unroll
  for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t r = row + n * 8 + lane % 4 * 2 + i;
      if (r >= p.rows) continue;
      const float scale = p.rounded.scales[r];
      const float first = __fmul_rn(total[n][i], scale);
      const float second = __fmul_rn(total[n][2 + i], scale);
      const std::int64_t c = tile * (gated ? 8 : kTernaryRows) + lane / 4;
      if (c < p.sink.columns) store(p.sink, r, c, finish(p.sink, r, c, first, second));
      if (!gated && c + 8 < p.sink.columns) {
        store(p.sink, r, c + 8, finish(p.sink, r, c + 8, second, 0));
      }
    }
  }
}

template <bool kScaleFirst, int kCopy>
__global__ void __launch_bounds__(kWarps * 32, 1)
    ternary_tiles_kernel(const __grid_constant__ TernaryParams p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // Neighboring blocks share rows of W, which stay in L2.
  const std::int64_t row_blocks = (p.rows + kColumns - 1) / kColumns;
  const std::int64_t row = blockIdx.x % row_blocks * kColumns;
  const std::int64_t tile = blockIdx.x / row_blocks * kWarps;
  float total[kTilesN][4] = {};
  fill_stage<kCopy>(p, TilesStage(shared, 0), tile, row, 0);
  for (int segment = 0; segment < p.segments; ++segment) {
    if (segment + 1 < p.segments) {
      fill_stage<kCopy>(p, TilesStage(shared, segment + 1), tile, row, segment + 1);
      cuda::wait_copies<1>();
    } else {
      cuda::wait_copies<0>();
    }
    __syncthreads();
    const TilesStage stage(shared, segment);
    const int blocks =
        min(kTernarySegmentBlocks, p.in / kTernaryGroup - segment * kTernarySegmentBlocks);
    std::uint32_t x[kTilesN];
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
      x[n] = cuda::shared_address(stage.x()) +
             static_cast<std::uint32_t>((n * 8 + lane % 8) * kPitch + lane / 8 * 16);
    }
    float acc[kTilesN][4] = {};
    add_segment<kScaleFirst>(stage.slab(warp), blocks, x, stage.sums(), kColumns, acc);
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[n][i] = __fadd_rn(total[n][i], acc[n][i]);
    }
    __syncthreads();
  }
  store_tile(p, tile + warp, row, total);
}

template <bool kScaleFirst>
void launch(Context& context, const TernaryParams& p, int copy) {
  auto* const kernel = copy == 16  ? ternary_tiles_kernel<kScaleFirst, 16>
                       : copy == 8 ? ternary_tiles_kernel<kScaleFirst, 8>
                                   : ternary_tiles_kernel<kScaleFirst, 4>;
  cuda::allow_shared(context, kernel);
  const std::int64_t per_tile = p.sink.gate == LinearGate::none ? kTernaryRows : kTernaryRows / 2;
  const std::int64_t tiles = (p.sink.columns + per_tile * kWarps - 1) / (per_tile * kWarps);
  cuda::launch(context, "linear ternary_tiles_kernel", kernel,
               {.blocks = static_cast<unsigned>(tiles * ((p.rows + kColumns - 1) / kColumns)),
                .threads = kWarps * 32,
                .shared_bytes = ternary_tiles_shared_bytes()},
               p);
}

}  // namespace

std::int64_t ternary_tiles_shared_bytes() { return 2 * kStage; }

void launch_ternary_tiles(Context& context, const TernaryParams& params, int copy) {
  if (params.weight.id == WeightFormatId::pq2_0) {
    launch<true>(context, params, copy);
  } else {
    launch<false>(context, params, copy);
  }
}

}  // namespace touchstone::linear_layer
