// Linear from ternary weights with int8 activations: ternary_stream, up to 16 rows of x by a kernel that
// streams W; ternary_portable, any format and alignment; and what they and ternary_tiles refuse.
#include "core/context_access.h"
#include "ops/linear/cuda/linear_ternary.cuh"
#include "ops/linear/linear_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::linear_layer {
namespace {

constexpr int kMaxStages = tuning::kTernaryMaxStages;
constexpr int kMaxSplit = tuning::kTernaryMaxSplit;
constexpr int kMinWarps = tuning::kTernaryMinWarps;
constexpr int kMaxThreads = kMaxSplit * 32;
constexpr int kMinCtas = tuning::kTernaryMinCtas;

// ---- x, by a kernel of its own ---------------------------------------------------------------------

struct RoundParams {
  const void* x = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;
  int in = 0;
  bool permute = false;
  std::int8_t* q = nullptr;
  int* sums = nullptr;
  float* scales = nullptr;
};

template <bool kWide>
__global__ void __launch_bounds__(256) ternary_round_kernel(const __grid_constant__ RoundParams p) {
  __shared__ float scratch[8];
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  const std::int64_t row = blockIdx.x;
  const auto* const x =
      static_cast<const std::uint8_t*>(p.x) + row * p.stride * (p.dtype == DType::f32 ? 4 : 2);
  int* const sums = p.sums == nullptr ? nullptr : p.sums + row * (p.in / kTernaryGroup);
  const float scale =
      round_row<kWide>(x, p.dtype, p.in, p.permute, p.q + row * p.in, sums, 1, 1, scratch);
  if (threadIdx.x == 0) p.scales[row] = scale;
}

// ---- up to 16 rows ------------------------------------------------------------------------------------

struct StreamMemory {
  std::uint8_t* ring;
  std::uint8_t* x;  // [rows] of x_pitch
  int* sums;        // [groups][columns], negative
  float* partial;   // [row tiles][segments][16][columns]
  float* scales;    // [columns]
  float* scratch;   // a float per warp

  static __host__ __device__ int x_offset(const TernaryParams& p) {
    return p.split * p.row_tiles * p.stages * kTernaryStage;
  }
  static __host__ __device__ int sums_offset(const TernaryParams& p) {
    return x_offset(p) + static_cast<int>(p.rows) * p.x_pitch;
  }
  static __host__ __device__ int partial_offset(const TernaryParams& p, int columns) {
    return sums_offset(p) + p.in / kTernaryGroup * columns * 4;
  }
  static __host__ __device__ int bytes(const TernaryParams& p, int columns) {
    return partial_offset(p, columns) +
           (p.row_tiles * p.segments * kTernaryRows * columns + columns + 32) * 4;
  }
  __device__ StreamMemory(std::uint8_t* shared, const TernaryParams& p, int columns)
      : ring(shared),
        x(shared + x_offset(p)),
        sums(reinterpret_cast<int*>(shared + sums_offset(p))),
        partial(reinterpret_cast<float*>(shared + partial_offset(p, columns))),
        scales(partial + p.row_tiles * p.segments * kTernaryRows * columns),
        scratch(scales + columns) {}
};

// The pieces of W that a warp multiplies, one after another: segments of tiles.
class Pieces {
 public:
  __device__ Pieces(const TernaryParams& p, int warp)
      : p_(p),
        group_(blockIdx.x),
        tile_(warp / p.split),
        first_(warp % p.split),
        segment_(first_) {}

  // Starts to copy the next piece to `to`, if there is one.
  template <int kCopy>
  __device__ void copy_next(std::uint32_t to) {
    if (group_ < p_.tile_groups) {
      copy_tile<kCopy>(p_, group_ * p_.row_tiles + tile_, segment_, to);
      segment_ += p_.split;
      if (segment_ >= p_.segments) {
        segment_ = first_;
        group_ += gridDim.x;
      }
    }
    cuda::commit_copies();
  }

 private:
  const TernaryParams& p_;
  std::int64_t group_;
  int tile_;
  int first_;
  int segment_;
};

// x in int8 and the sums of its groups: rounded here, or from the kernel before.
template <int kColumns>
__device__ void stage_stream_x(const TernaryParams& p, const StreamMemory& memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int rows = static_cast<int>(p.rows);
  const int groups = p.in / kTernaryGroup;
  if (p.rounded.q == nullptr) {
    for (int r = 0; r < rows; ++r) {
      const auto* const x = static_cast<const std::uint8_t*>(p.x) +
                            r * p.x_stride * (p.x_dtype == DType::f32 ? 4 : 2);
      const float scale = round_row<true>(x, p.x_dtype, p.in, p.weight.id == WeightFormatId::pq2_0,
                                          reinterpret_cast<std::int8_t*>(memory.x + r * p.x_pitch),
                                          memory.sums + r, kColumns, -1, memory.scratch);
      if (thread == 0) memory.scales[r] = scale;
    }
  } else {
    const int pieces = p.in / 16;
    for (int i = thread; i < rows * pieces; i += threads) {
      const int r = i / pieces;
      const int c = (i - r * pieces) * 16;
      *reinterpret_cast<uint4*>(memory.x + r * p.x_pitch + c) =
          *reinterpret_cast<const uint4*>(p.rounded.q + std::int64_t{r} * p.in + c);
    }
    for (int i = thread; i < rows * groups; i += threads) {
      memory.sums[i % groups * kColumns + i / groups] = -p.rounded.sums[i];
    }
    if (thread < rows) memory.scales[thread] = p.rounded.scales[thread];
  }
  __syncthreads();
}

// Adds up the segments of the tiles of a group and stores them.
template <int kColumns>
__device__ void store_stream(const TernaryParams& p, const StreamMemory& memory,
                             std::int64_t group) {
  const bool gated = p.sink.gate != LinearGate::none;
  const int height = gated ? kTernaryRows / 2 : kTernaryRows;
  const int rows = static_cast<int>(p.rows);
  for (int i = static_cast<int>(threadIdx.x); i < p.row_tiles * height * rows;
       i += static_cast<int>(blockDim.x)) {
    const int tile = i / (height * rows);
    const int r = i / height % rows;
    const int o = i % height;
    const std::int64_t c = (group * p.row_tiles + tile) * height + o;
    if (c >= p.sink.columns) continue;
    const float* const from =
        memory.partial + tile * p.segments * kTernaryRows * kColumns + o * kColumns + r;
    float sum = 0;
    float up = 0;
    for (int s = 0; s < p.segments; ++s) {
      sum = __fadd_rn(sum, from[s * kTernaryRows * kColumns]);
      if (gated) up = __fadd_rn(up, from[(s * kTernaryRows + 8) * kColumns]);
    }
    const float scale = memory.scales[r];
    store(p.sink, r, c, finish(p.sink, r, c, __fmul_rn(sum, scale), __fmul_rn(up, scale)));
  }
}

template <bool kScaleFirst, int kTilesN, int kCopy, int kStages>
__global__ void __launch_bounds__(kMaxThreads, kMinCtas)
    ternary_stream_kernel(const __grid_constant__ TernaryParams p) {
  constexpr int kColumns = 8 * kTilesN;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const StreamMemory memory(shared, p, kColumns);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint8_t* const ring = memory.ring + warp * kStages * kTernaryStage;
  const std::uint32_t ring_at = cuda::shared_address(ring);
  Pieces pieces(p, warp);
  if constexpr (cuda::kHopper) {
    if (!p.ahead) cuda::pdl_wait();
  }
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    pieces.copy_next<kCopy>(ring_at + static_cast<std::uint32_t>(s * kTernaryStage));
  }
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    if (p.ahead) cuda::pdl_wait();
  }
  stage_stream_x<kColumns>(p, memory);
  const int tile = warp / p.split;
  int stage = 0;
  for (std::int64_t group = blockIdx.x; group < p.tile_groups; group += gridDim.x) {
    for (int segment = warp % p.split; segment < p.segments; segment += p.split) {
      cuda::wait_copies<kStages - 1>();
      __syncwarp();
      const int blocks =
          min(kTernarySegmentBlocks, p.in / kTernaryGroup - segment * kTernarySegmentBlocks);
      std::uint32_t x[kTilesN];
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
        const int r = min(n * 8 + lane % 8, static_cast<int>(p.rows) - 1);
        x[n] = cuda::shared_address(memory.x) +
               static_cast<std::uint32_t>(r * p.x_pitch + lane / 8 * 16 +
                                          segment * static_cast<int>(kSegment));
      }
      float acc[kTilesN][4] = {};
      add_segment<kScaleFirst>(ring + stage * kTernaryStage, blocks, x,
                               memory.sums + segment * kTernarySegmentBlocks * kColumns, kColumns,
                               acc);
      __syncwarp();
      pieces.copy_next<kCopy>(ring_at + static_cast<std::uint32_t>(stage * kTernaryStage));
      stage = stage + 1 == kStages ? 0 : stage + 1;
      float* const to = memory.partial + (tile * p.segments + segment) * kTernaryRows * kColumns +
                        lane / 4 * kColumns + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
        *reinterpret_cast<float2*>(to + n * 8) = {acc[n][0], acc[n][1]};
        *reinterpret_cast<float2*>(to + 8 * kColumns + n * 8) = {acc[n][2], acc[n][3]};
      }
    }
    __syncthreads();
    store_stream<kColumns>(p, memory, group);
    __syncthreads();
  }
  cuda::wait_copies<0>();
}

std::int64_t max_shared_bytes(const Context& context) {
  return cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

// Warps, tiles and the grid. Not for a launch where it asks for more than max_shared_bytes().
void plan_stream(const Context& context, int copy, TernaryParams& p, cuda::LaunchShape& shape) {
  const int columns = p.rows <= 8 ? 8 : 16;
  const int rounds = (p.segments + kMaxSplit - 1) / kMaxSplit;
  p.split = (p.segments + rounds - 1) / rounds;
  p.row_tiles = p.split >= kMinWarps ? 1 : kMinWarps / p.split;
  p.x_pitch = p.in + 16;
  const int height = p.sink.gate == LinearGate::none ? kTernaryRows : kTernaryRows / 2;
  const std::int64_t tiles = ceil_div(p.sink.columns, std::int64_t{height});
  p.tile_groups = ceil_div(tiles, std::int64_t{p.row_tiles});
  shape.threads = static_cast<unsigned>(p.split * p.row_tiles * 32);
  shape.pdl = cuda::is_hopper(context);
  const std::int64_t most = max_shared_bytes(context);
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  // CTAs that all processors hold, with rings of p.stages: as many as shared memory and the registers of
  // kMinCtas of the largest have room for.
  const auto resident = [&] {
    shape.shared_bytes = StreamMemory::bytes(p, columns);
    return processors * std::clamp<std::int64_t>((most + 1024) / (shape.shared_bytes + 1024), 1,
                                                 kMinCtas * kMaxThreads / shape.threads);
  };
  // Where every warp has one piece of W, a ring of one leaves room for the CTAs of the next kernel.
  p.stages = 1;
  const bool one_each = copy == 16 && p.split == p.segments && p.tile_groups <= resident();
  if (!one_each) p.stages = kMaxStages;
  shape.blocks = static_cast<unsigned>(std::min(p.tile_groups, resident()));
}

template <bool kScaleFirst, int kTilesN>
void launch_stream(Context& context, const cuda::LaunchShape& shape, const TernaryParams& p,
                   int copy) {
  auto* const kernel = copy == 16 && p.stages == 1
                           ? ternary_stream_kernel<kScaleFirst, kTilesN, 16, 1>
                       : copy == 16 ? ternary_stream_kernel<kScaleFirst, kTilesN, 16, kMaxStages>
                       : copy == 8  ? ternary_stream_kernel<kScaleFirst, kTilesN, 8, kMaxStages>
                                    : ternary_stream_kernel<kScaleFirst, kTilesN, 4, kMaxStages>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "linear ternary_stream_kernel", kernel, shape, p);
}

void launch_stream(Context& context, const cuda::LaunchShape& shape, const TernaryParams& p,
                   int copy) {
  const bool first = p.weight.id == WeightFormatId::pq2_0;
  if (p.rows <= 8) {
    first ? launch_stream<true, 1>(context, shape, p, copy)
          : launch_stream<false, 1>(context, shape, p, copy);
  } else {
    first ? launch_stream<true, 2>(context, shape, p, copy)
          : launch_stream<false, 2>(context, shape, p, copy);
  }
}

// ---- any format ----------------------------------------------------------------------------------

constexpr int kPortableRows = 4;  // of x that a warp computes at a time
constexpr int kPortableWarps = 4;

// One row of W by kPortableRows rows of x: lanes share a group.
__device__ void portable_sums(const TernaryParams& p, std::int64_t o, std::int64_t row,
                              float (&total)[kPortableRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ternary::Layout layout = ternary::layout_of(p.weight.id);
  const std::uint8_t* const w = p.weight.data + o * p.weight.row_bytes;
  float acc[kPortableRows] = {};
#pragma unroll
  for (float& sum : total) sum = 0;
  for (int first = 0; first < p.in; first += layout.elements) {
    const std::uint8_t* const block = w + first / layout.elements * p.weight.block_bytes;
    int sums[kPortableRows] = {};
    for (int i = lane; i < layout.elements; i += 32) {
      const int code = ternary::code_at(layout, block, i);
#pragma unroll
      for (int r = 0; r < kPortableRows; ++r) {
        const std::int64_t from = min(row + r, p.rows - 1);
        sums[r] += code * p.rounded.q[from * p.in + first + i];
      }
    }
    const float scale = half_at(block + layout.scale);
#pragma unroll
    for (int r = 0; r < kPortableRows; ++r) {
#pragma unroll
      for (int half = 16; half > 0; half /= 2) {
        sums[r] += __shfl_xor_sync(0xffffffffU, sums[r], half);
      }
      acc[r] = __fmaf_rn(scale, static_cast<float>(sums[r]), acc[r]);
    }
    const int end = first + layout.elements;
    if (end % kSegment == 0 || end == p.in) {
#pragma unroll
      for (int r = 0; r < kPortableRows; ++r) {
        total[r] = __fadd_rn(total[r], acc[r]);
        acc[r] = 0;
      }
    }
  }
}

__global__ void __launch_bounds__(kPortableWarps * 32)
    ternary_portable_kernel(const __grid_constant__ TernaryParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = std::int64_t{blockIdx.y} * kPortableRows;
  for (std::int64_t c = std::int64_t{blockIdx.x} * kPortableWarps + threadIdx.x / 32;
       c < p.sink.columns; c += std::int64_t{gridDim.x} * kPortableWarps) {
    float sums[kPortableRows];
    float up[kPortableRows] = {};
    portable_sums(p, c, row, sums);
    if (p.sink.gate != LinearGate::none) portable_sums(p, c + p.sink.columns, row, up);
#pragma unroll
    for (int r = 0; r < kPortableRows; ++r) {
      if (lane != r || row + r >= p.rows) continue;
      const float scale = p.rounded.scales[row + r];
      store(p.sink, row + r, c,
            finish(p.sink, row + r, c, __fmul_rn(sums[r], scale), __fmul_rn(up[r], scale)));
    }
  }
}

void launch_portable_ternary(Context& context, TernaryParams p) {
  // Rows of x in chunks that a grid has room for.
  constexpr std::int64_t kChunk = 65535 * kPortableRows;
  const TernaryParams all = p;
  for (std::int64_t first = 0; first < all.rows; first += kChunk) {
    p.rows = std::min(kChunk, all.rows - first);
    p.rounded.q = all.rounded.q + first * all.in;
    p.rounded.scales = all.rounded.scales + first;
    p.sink.y =
        static_cast<std::byte*>(all.sink.y) + first * all.sink.stride * size_of(all.sink.dtype);
    if (all.sink.residual != nullptr) {
      p.sink.residual = static_cast<const std::byte*>(all.sink.residual) +
                        first * all.sink.residual_stride * size_of(all.sink.residual_dtype);
    }
    const dim3 grid(static_cast<unsigned>(std::clamp<std::int64_t>(
                        ceil_div(p.sink.columns, std::int64_t{kPortableWarps}), 1, 1 << 20)),
                    static_cast<unsigned>(ceil_div(p.rows, std::int64_t{kPortableRows})));
    ternary_portable_kernel<<<grid, kPortableWarps * 32, 0, cuda::stream_of(context)>>>(p);
    cuda::check_launch("linear ternary_portable_kernel");
  }
}

// ---- what kernels take -----------------------------------------------------------------------------

bool is_wide(const Forward& p) {
  const std::int64_t per_vector = 16 / size_of(p.dtype);
  return reinterpret_cast<std::uintptr_t>(p.x.data) % 16 == 0 && p.x.stride % per_vector == 0 &&
         p.in % kTernaryGroup == 0;
}

// Bytes that the fast kernels copy at a time, 0 where they cannot: whole pairs of blocks.
int copy_bytes(const Forward& p) {
  const auto id = p.weight.format->id;
  if (id != WeightFormatId::ternary_g128 && id != WeightFormatId::pq2_0) return 0;
  if (p.in % (2 * kTernaryGroup) != 0 || !is_wide(p)) return 0;
  const auto address = reinterpret_cast<std::uintptr_t>(p.weight.data);
  if (p.in % kSegment == 0 && address % 16 == 0 && p.weight.row_bytes % 16 == 0) return 16;
  if (p.in % (4 * kTernaryGroup) == 0 && address % 8 == 0 && p.weight.row_bytes % 8 == 0) return 8;
  return address % 4 == 0 && p.weight.row_bytes % 4 == 0 ? 4 : 0;
}

struct Workspace {
  std::int64_t sums = 0;
  std::int64_t scales = 0;
  std::int64_t bytes = 0;

  explicit Workspace(const Forward& p) {
    const auto aligned = [](std::int64_t n) { return (n + 255) / 256 * 256; };
    sums = aligned(checked_mul(p.rows, p.in, "linear workspace"));
    scales = sums + aligned(p.rows * (p.in / kTernaryGroup) * 4);
    bytes = scales + p.rows * 4;
  }
};

void round_rows_to_int8(Context& context, const Forward& p, bool sums, TernaryParams& params) {
  const Workspace layout(p);
  auto* const memory =
      static_cast<std::byte*>(detail::ContextAccess::workspace(context, layout.bytes));
  const bool wide = is_wide(p);
  RoundParams round{.x = p.x.data,
                    .dtype = p.dtype,
                    .stride = p.x.stride,
                    .in = static_cast<int>(p.in),
                    .permute = sums && p.weight.format->id == WeightFormatId::pq2_0,
                    .q = reinterpret_cast<std::int8_t*>(memory),
                    .sums = reinterpret_cast<int*>(memory + layout.sums),
                    .scales = reinterpret_cast<float*>(memory + layout.scales)};
  params.rounded = {round.q, round.sums, round.scales};
  cuda::launch(
      context, "linear ternary_round_kernel",
      wide ? ternary_round_kernel<true> : ternary_round_kernel<false>,
      {.blocks = static_cast<unsigned>(p.rows), .threads = 256, .pdl = cuda::is_hopper(context)},
      round);
}

TernaryParams ternary_params(const Forward& p) {
  TernaryParams params;
  params.weight = stored(p.weight);
  params.x = p.x.data;
  params.x_dtype = p.dtype;
  params.x_stride = p.x.stride;
  params.rows = p.rows;
  params.out = p.out;
  params.in = static_cast<int>(p.in);
  params.segments = static_cast<int>(ceil_div(p.in, kSegment));
  params.ahead = p.constant_weight;
  params.sink = forward_sink(p, nullptr);
  return params;
}

// What the kernels on tensor cores both refuse.
std::string mma_refusal(const Context& context, const Forward& p) {
  if (std::string refusal = ternary_portable_refuses(context, p); !refusal.empty()) return refusal;
  if (copy_bytes(p) != 0) return {};
  const auto id = p.weight.format->id;
  if (id != WeightFormatId::ternary_g128 && id != WeightFormatId::pq2_0) {
    return "weights in " + std::string(p.weight.format->name) + ", needs ternary_g128 or pq2_0";
  }
  if (p.in % (2 * kTernaryGroup) != 0) {
    return "in " + std::to_string(p.in) + " is no multiple of " + std::to_string(2 * kTernaryGroup);
  }
  return is_wide(p) ? "weight: rows are not aligned to 4 bytes"
                    : "x: data or strides are no multiples of 16 bytes";
}

std::string shared_refusal(const Context& context, std::int64_t bytes) {
  const std::int64_t most = max_shared_bytes(context);
  return bytes > most
             ? "bytes of shared memory " + std::to_string(bytes) + " > " + std::to_string(most)
             : "";
}

}  // namespace

std::string ternary_portable_refuses(const Context& /*context*/, const Forward& p) {
  if (!p.weight.format->ternary) {
    return "weights in " + std::string(p.weight.format->name) + ", needs a ternary format";
  }
  if (!p.int8_activations) return "needs int8 activations";
  if (p.in == 0 || p.in > (1 << 20)) return "in is 0 or above 1048576";
  return {};
}

std::string ternary_tiles_refuses(const Context& context, const Forward& p) {
  if (std::string refusal = mma_refusal(context, p); !refusal.empty()) return refusal;
  return shared_refusal(context, ternary_tiles_shared_bytes());
}

std::string ternary_stream_refuses(const Context& context, const Forward& p) {
  if (std::string refusal = mma_refusal(context, p); !refusal.empty()) return refusal;
  if (p.rows > tuning::kTernaryStreamMaxRows) {
    return "rows " + std::to_string(p.rows) + " > " + std::to_string(tuning::kTernaryStreamMaxRows);
  }
  TernaryParams params = ternary_params(p);
  cuda::LaunchShape shape;
  plan_stream(context, copy_bytes(p), params, shape);
  return shared_refusal(context, shape.shared_bytes);
}

void forward_ternary_stream(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  TernaryParams params = ternary_params(p);
  cuda::LaunchShape shape;
  plan_stream(context, copy_bytes(p), params, shape);
  if (p.rows > tuning::kTernaryRowsRoundedInside) round_rows_to_int8(context, p, true, params);
  launch_stream(context, shape, params, copy_bytes(p));
}

void forward_ternary_tiles(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  TernaryParams params = ternary_params(p);
  round_rows_to_int8(context, p, true, params);
  launch_ternary_tiles(context, params, copy_bytes(p));
}

void forward_ternary_portable(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  TernaryParams params = ternary_params(p);
  round_rows_to_int8(context, p, false, params);
  launch_portable_ternary(context, params);
}

}  // namespace touchstone::linear_layer
