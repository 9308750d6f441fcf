// Linear of a few rows of bf16 or f16 with W of the same dtype, on Hopper: W streams through shared
// memory without a pause.
//
// A CTA stays on its multiprocessor and takes one tile of 16 rows of W after the other. The copy engine
// fills a ring of stages, each 64 elements of every segment of these rows; eight warps, one a segment,
// multiply them with x, which lies in shared memory. While the sums of a tile are added and stored the
// ring already fills for the next.
#include "core/context_access.h"
#include "cuda/tensor_map.h"
#include "cuda/wgmma.cuh"
#include "ops/linear/cuda/linear_cuda.cuh"

// Compiled for older chips the kernel is empty, and what only it uses is unused.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

namespace touchstone::linear_layer {
namespace {

constexpr int kWarps = kMaxSegments;
constexpr int kThreads = kWarps * 32 + 32;
constexpr int kRows = 16;
constexpr int kColumns = 64;
constexpr int kPartBytes = kRows * kColumns * 2;  // of a segment
constexpr int kStageBytes = kWarps * kPartBytes;
constexpr int kMaxStages = 12;
constexpr int kMaxSharedBytes = 216 * 1024;
constexpr int kMaxActivationBytes = 72 * 1024;
constexpr int kPadding = 8;  // elements after a row of x: rows then lie in different banks

struct Params {
  CUtensorMap weight;
  const std::uint16_t* weight_data = nullptr;
  std::int64_t weight_stride = 0;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t in = 0;
  std::int64_t segment = 0;
  std::int64_t tiles = 0;  // of y
  int rows = 0;
  int stages = 0;
  Sink sink;
};

struct Shared {
  std::byte* ring;
  std::uint16_t* x;
};

__device__ Shared shared_parts(const Params& p) {
  extern __shared__ std::byte memory[];
  const std::uint32_t misaligned = cuda::shared_address(memory) % 1024;
  std::byte* const ring = memory + (misaligned == 0 ? 0 : 1024 - misaligned);
  return {ring, reinterpret_cast<std::uint16_t*>(ring + p.stages * kStageBytes)};
}

__device__ inline int halves(const Params& p) { return p.sink.gate == LinearGate::none ? 1 : 2; }

// First row of W of a tile; with a gate the up rows follow as a tile of their own.
__device__ int first_row(const Params& p, std::int64_t tile, int half) {
  return static_cast<int>(tile * kRows + half * p.sink.columns);
}

__device__ void produce(const Params& p, std::byte* ring, std::uint64_t* full,
                        std::uint64_t* empty) {
  const int steps = static_cast<int>(p.segment / kColumns);
  int stage = 0;
  std::uint32_t parity = 1;  // the first round finds every stage empty
  for (std::int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    for (int half = 0; half < halves(p); ++half) {
      const int row = first_row(p, tile, half);
      for (int step = 0; step < steps; ++step) {
        cuda::barrier_wait(&empty[stage], parity);
        cuda::barrier_expect(&full[stage], kStageBytes);
        for (int s = 0; s < kWarps; ++s) {
          cuda::load_slice(ring + stage * kStageBytes + s * kPartBytes, &p.weight,
                           static_cast<int>(s * p.segment) + step * kColumns, row, 0, 0,
                           &full[stage]);
        }
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
  }
}

// The four sums of a lane: rows lane / 4 and + 8 of the tile, columns lane % 4 * 2 and + 1.
class Consumer {
 public:
  __device__ Consumer(const Params& p, const Shared& shared, std::uint64_t* full,
                      std::uint64_t* empty)
      : p_(p),
        ring_(cuda::shared_address(shared.ring)),
        full_(full),
        empty_(empty),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        has_row_(lane_ / 4 < p.rows) {
    x_ = shared.x + (has_row_ ? lane_ / 4 : 0) * (p.in + kPadding) + lane_ % 4 * 2;
  }

  template <class T>
  __device__ void multiply_tile(float (&sums)[4]) {
    const int steps = static_cast<int>(p_.segment / kColumns);
    const int matrix = lane_ / 8;
    const int row = lane_ % 8 + matrix % 2 * 8;
    for (int step = 0; step < steps; ++step) {
      const std::int64_t k = warp_ * p_.segment + step * kColumns;
      std::uint32_t x[4][2];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::int64_t at = k + i * 8;
        x[i / 2][i % 2] =
            has_row_ && at < p_.in ? *reinterpret_cast<const std::uint32_t*>(x_ + at) : 0;
      }
      cuda::barrier_wait(&full_[stage_], parity_);
      const std::uint32_t tile =
          ring_ + static_cast<std::uint32_t>(stage_ * kStageBytes + warp_ * kPartBytes + row * 128);
      std::uint32_t a[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int piece = 2 * i + matrix / 2;
        cuda::load_matrices(tile + static_cast<std::uint32_t>((piece ^ (row % 8)) * 16), a[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) multiply_add<T>(sums, a[i], x[i][0], x[i][1]);
      __syncwarp();
      if (lane_ == 0) cuda::barrier_arrive(&empty_[stage_]);
      if (++stage_ == p_.stages) {
        stage_ = 0;
        parity_ ^= 1;
      }
    }
  }

 private:
  const Params& p_;
  std::uint32_t ring_;
  std::uint64_t* full_;
  std::uint64_t* empty_;
  int warp_;
  int lane_;
  bool has_row_;
  const std::uint16_t* x_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

// Row r of a tile, row n of x: the sums of segments in their order.
__device__ float total(const float4 (&parts)[kWarps][32], int r, int n) {
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kWarps; ++s) {
    const float* const four = reinterpret_cast<const float*>(&parts[s][r % 8 * 4 + n / 2]);
    sum = __fadd_rn(sum, four[r / 8 * 2 + n % 2]);
  }
  return sum;
}

template <class T>
__device__ void consume(const Params& p, const Shared& shared, std::uint64_t* full,
                        std::uint64_t* empty, float4 (&parts)[2][kWarps][32]) {
  constexpr int kConsumers = kWarps * 32;
  const int thread = static_cast<int>(threadIdx.x);
  // x has rows of 16 bytes' multiples, in memory and here.
  const int pieces = static_cast<int>(p.in / 8);
  for (int i = thread; i < p.rows * pieces; i += kConsumers) {
    const int row = i / pieces;
    const int piece = i % pieces;
    cuda::copy_async_16(cuda::shared_address(shared.x + row * (p.in + kPadding) + piece * 8),
                        p.x + row * p.x_stride + piece * 8);
  }
  cuda::commit_copies();
  cuda::wait_copies<0>();
  cuda::named_barrier(1, kConsumers);
  Consumer work(p, shared, full, empty);
  int buffer = 0;
  for (std::int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    for (int half = 0; half < halves(p); ++half) {
      float sums[4] = {};
      work.multiply_tile<T>(sums);
      parts[buffer][thread / 32][thread % 32] = {sums[0], sums[1], sums[2], sums[3]};
      buffer ^= 1;
    }
    cuda::named_barrier(1, kConsumers);
    const bool gate = halves(p) == 2;
    for (int i = thread; i < kRows * p.rows; i += kConsumers) {
      const int r = i % kRows;
      const int n = i / kRows;
      const std::int64_t column = tile * kRows + r;
      if (column >= p.sink.columns) continue;
      const float sum = total(parts[gate ? 0 : buffer ^ 1], r, n);
      store(p.sink, n, column, finish(p.sink, n, column, sum, gate ? total(parts[1], r, n) : 0.0F));
    }
    if (gate) cuda::named_barrier(1, kConsumers);
  }
}

template <class T>
__global__ __launch_bounds__(kThreads, 1) void stream_kernel(const __grid_constant__ Params p) {
  if constexpr (cuda::kHopper) {
    __shared__ std::uint64_t full[kMaxStages];
    __shared__ std::uint64_t empty[kMaxStages];
    __shared__ float4 parts[2][kWarps][32];
    const Shared shared = shared_parts(p);
    if (threadIdx.x == 0) {
      for (int i = 0; i < p.stages; ++i) {
        cuda::barrier_init(&full[i], 1);
        cuda::barrier_init(&empty[i], kWarps);
      }
      cuda::fence_barrier_init();
    }
    __syncthreads();
    cuda::pdl_launch_dependents();
    if (threadIdx.x >= kWarps * 32) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      // A hint while the kernel before this one may still run.
      const int row = first_row(p, blockIdx.x, lane / kRows % halves(p)) + lane % kRows;
      if (lane < kRows * halves(p) && row < halves(p) * p.sink.columns) {
        cuda::bulk_prefetch(p.weight_data + row * p.weight_stride,
                            static_cast<std::uint32_t>(p.in * 2));
      }
      cuda::pdl_wait();
      if (lane == 0) produce(p, shared.ring, full, empty);
    } else {
      cuda::pdl_wait();
      consume<T>(p, shared, full, empty, parts);
    }
  }
}

std::int64_t activation_shared_bytes(const Forward& p) { return p.rows * (p.in + kPadding) * 2; }

cuda::HeadsShape weight_shape(const Forward& p) {
  return {.data = p.weight.data,
          .tokens = p.out,
          .columns = p.in,
          .token_stride = p.weight.row_bytes / 2};
}

}  // namespace

std::string stream_refuses(const Context& context, const Forward& p) {
  if (!cuda::is_hopper(context)) return "needs Hopper";
  if (p.dtype == DType::f32) return "x of f32, needs bf16 or f16";
  if (p.weight.format->dtype != p.dtype) return "weight is not of the dtype of x";
  if (p.rows > 8) return std::to_string(p.rows) + " rows, needs at most 8";
  if (segment_count(p.in) != kMaxSegments) return "in is too short for eight segments";
  if (activation_shared_bytes(p) > kMaxActivationBytes) return "x does not fit in shared memory";
  if (p.in % 8 != 0 || !cuda::can_map(weight_shape(p))) {
    return "weight: data or strides are no multiples of 16 bytes";
  }
  if (!p.int8_activations &&
      (reinterpret_cast<std::uintptr_t>(p.x.data) % 16 != 0 || p.x.stride % 8 != 0)) {
    return "x: data or strides are no multiples of 16 bytes";
  }
  return {};
}

void forward_stream(Context& context, const Forward& p) {
  auto* const workspace =
      static_cast<std::byte*>(detail::ContextAccess::workspace(context, activation_bytes(p)));
  const Activations x = prepare_activations(context, p, workspace);
  const cuda::DeviceScope scope(context.device().index);
  Params params;
  params.weight = cuda::slice_map(weight_shape(p), p.dtype, kRows);
  params.weight_data = reinterpret_cast<const std::uint16_t*>(p.weight.data);
  params.weight_stride = p.weight.row_bytes / 2;
  params.x = static_cast<const std::uint16_t*>(x.x.data);
  params.x_stride = x.x.stride;
  params.in = p.in;
  params.segment = segment_length(p.in);
  params.tiles = (p.columns() + kRows - 1) / kRows;
  params.rows = static_cast<int>(p.rows);
  const std::int64_t x_bytes = activation_shared_bytes(p);
  params.stages = static_cast<int>(
      std::min<std::int64_t>(kMaxStages, (kMaxSharedBytes - 1024 - x_bytes) / kStageBytes));
  params.sink = forward_sink(p, x.scales);
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(std::min(params.tiles, processors)),
                                .threads = kThreads,
                                .shared_bytes = 1024 + params.stages * kStageBytes + x_bytes,
                                .pdl = true};
  const auto kernel = p.dtype == DType::bf16 ? stream_kernel<Bf16> : stream_kernel<F16>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "linear stream", kernel, shape, params);
}

}  // namespace touchstone::linear_layer
