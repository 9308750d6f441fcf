// Linear of up to 16 rows of bf16 or f16: W is read once, at the speed of memory.
//
// mma.sync m16n8k16 with W on the left: a warp takes 16 rows of W (or twice 16) and one segment of
// `in`, its weights go from storage straight into fragments, two batches under way at any time. The
// warps of a block are the segments of one row tile, or of several where there are few segments; their
// sums meet in shared memory and are added in order.
#include "core/context_access.h"
#include "cuda/hopper.cuh"
#include "ops/linear/cuda/linear_source.cuh"

namespace touchstone::linear_layer {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kBlockElements = 32;  // of a row, at a time: two steps

struct Params {
  StoredWeight weight;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t segment = 0;
  int segments = 0;
  Sink sink;
};

// kTiles: row tiles of a warp; with a gate the second one holds the up rows of the first.
template <class T, class Source, int kTiles, int kColumnTiles>
class Warp {
 public:
  __device__ Warp(const Params& p, std::int64_t tile, int segment)
      : p_(p), lane_(static_cast<int>(threadIdx.x) % 32), quad_(lane_ % 4) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      row_[i] = p.weight.data + weight_row(tile, i / 2, lane_ / 4 + i % 2 * 8) * p.weight.row_bytes;
    }
    begin_ = segment * p.segment;
    end_ = min(p.in, begin_ + p.segment);
  }

  // Hints only: what another kernel still writes is read later.
  __device__ void prefetch() const {
    if (!cuda::kHopper || p_.weight.row_bytes % 16 != 0 || begin_ >= p_.in) return;
    const std::int64_t first = begin_ / p_.weight.block_elements * p_.weight.block_bytes / 16 * 16;
    const std::int64_t last =
        min(p_.weight.row_bytes,
            (end_ / p_.weight.block_elements * p_.weight.block_bytes + 15) / 16 * 16);
    if (quad_ == 0) {
#pragma unroll
      for (const std::uint8_t* const row : row_) {
        if (reinterpret_cast<std::uintptr_t>(row) % 16 == 0 && last > first) {
          cuda::bulk_prefetch(row + first, static_cast<std::uint32_t>(last - first));
        }
      }
    }
  }

  __device__ void run() {
    Batch a;
    Batch b;
    load(a, begin_);
    for (std::int64_t k = begin_; k < end_; k += 2 * kStride) {
      load(b, k + kStride);
      multiply(a, k);
      load(a, k + 2 * kStride);
      multiply(b, k + kStride);
    }
  }

  __device__ void store_sums(float4* to) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const float(&s)[4] = sums_[i][j];
        to[(i * kColumnTiles + j) * 32 + lane_] = {s[0], s[1], s[2], s[3]};
      }
    }
  }

 private:
  // Of a batch: as many as registers hold.
  static constexpr int kBlocks =
      kTiles == 1 || Source::kBlocks == 1 ? Source::kBlocks : Source::kBlocks / 2;
  static constexpr int kStride = kBlocks * kBlockElements;
  struct Batch {
    typename Source::Raw raw[kBlocks][2 * kTiles];
  };

  // The row of W at row r of tile `i`; past the last one, the last one again.
  __device__ std::int64_t weight_row(std::int64_t tile, int i, int r) const {
    if (p_.sink.gate == LinearGate::none) return min(p_.out - 1, (tile * kTiles + i) * 16 + r);
    return min(p_.sink.columns - 1, tile * 16 + r) + i * p_.sink.columns;
  }

  __device__ void load(Batch& batch, std::int64_t k) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const std::int64_t at = k + block * kBlockElements;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        batch.raw[block][i] =
            at < end_ ? Source::load(p_.weight, row_[i], at, p_.in, quad_) : typename Source::Raw{};
      }
    }
  }

  // Four elements of row 8 j + lane / 4 of x.
  __device__ uint2 load_x(int j, std::int64_t k) const {
    const std::int64_t row = j * 8 + lane_ / 4;
    if (row >= p_.rows || k >= p_.in) return {0, 0};
    return __ldg(reinterpret_cast<const uint2*>(p_.x + row * p_.x_stride + k));
  }

  __device__ void multiply(const Batch& batch, std::int64_t k) {
    if (k >= end_) return;
    uint2 x[kBlocks][2][kColumnTiles];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const std::int64_t at = k + block * kBlockElements + step * 16;
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          x[block][step][j] = load_x(j, at + step_offset<Source::kPairs>(quad_));
        }
      }
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      // A step past the end would add zeros: to a sum of -0 that is a change.
      if (k + block * kBlockElements >= end_) return;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const Fragment low = Source::decode(batch.raw[block][2 * i], quad_);
        const Fragment high = Source::decode(batch.raw[block][2 * i + 1], quad_);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const std::uint32_t a[4] = {low.step[step][0], high.step[step][0], low.step[step][1],
                                      high.step[step][1]};
#pragma unroll
          for (int j = 0; j < kColumnTiles; ++j) {
            multiply_add<T>(sums_[i][j], a, x[block][step][j].x, x[block][step][j].y);
          }
        }
      }
    }
  }

  const Params& p_;
  int lane_;
  int quad_;
  const std::uint8_t* row_[2 * kTiles];
  std::int64_t begin_;
  std::int64_t end_;
  float sums_[kTiles][kColumnTiles][4] = {};
};

template <class T, class Source, int kTiles, int kColumnTiles>
__global__ __launch_bounds__(kThreads, 2) void skinny(Params p) {
  constexpr int kParts = kTiles * kColumnTiles * 32;
  __shared__ float4 parts[kWarps][kParts];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int tiles = kWarps / p.segments;  // of a block
  const std::int64_t first_tile = static_cast<std::int64_t>(blockIdx.x) * tiles;
  if (warp < tiles * p.segments) {
    Warp<T, Source, kTiles, kColumnTiles> work(p, first_tile + warp / p.segments,
                                               warp % p.segments);
    work.prefetch();
    if constexpr (cuda::kHopper) {
      cuda::pdl_launch_dependents();
      cuda::pdl_wait();
    }
    work.run();
    work.store_sums(parts[warp]);
  }
  __syncthreads();
  const bool gate = p.sink.gate != LinearGate::none;
  const int width = gate ? 16 : 16 * kTiles;  // columns of y of a tile
  const int count = tiles * width * static_cast<int>(p.rows);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int o = i % width;
    const int n = i / width % static_cast<int>(p.rows);
    const int tile = i / width / static_cast<int>(p.rows);
    const std::int64_t column = (first_tile + tile) * width + o;
    if (column >= p.sink.columns) continue;
    // Sum of row r of W in tile t: register (r / 8) * 2 + n % 2 of lane (r % 8) * 4 + n % 8 / 2.
    const auto total = [&](int t, int r) {
      const int at = (t * kColumnTiles + n / 8) * 32 + r % 8 * 4 + n % 8 / 2;
      float sum = 0;
      for (int s = 0; s < p.segments; ++s) {
        const float* const four = reinterpret_cast<const float*>(&parts[tile * p.segments + s][at]);
        sum = __fadd_rn(sum, four[r / 8 * 2 + n % 2]);
      }
      return sum;
    };
    store(p.sink, n, column,
          finish(p.sink, n, column, total(o / 16, o % 16), gate ? total(1, o % 16) : 0.0F));
  }
}

template <class T, class Source, int kTiles, int kColumnTiles>
void launch_skinny(Context& context, const Params& p) {
  const std::int64_t tile_columns = p.sink.gate != LinearGate::none ? 16 : 16 * kTiles;
  const std::int64_t tiles = (p.sink.columns + tile_columns - 1) / tile_columns;
  const int per_block = kWarps / p.segments;
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>((tiles + per_block - 1) / per_block),
      .threads = kThreads,
      .pdl = cuda::is_hopper(context)};
  cuda::launch(context, "linear skinny", skinny<T, Source, kTiles, kColumnTiles>, shape, p);
}

template <class T, class Source>
void launch_source(Context& context, const Params& p) {
  // Two row tiles a warp share what is loaded of x; one leaves more warps to small layers.
  const bool two = p.sink.gate != LinearGate::none || p.rows > 4;
  if (p.rows > 8) {
    launch_skinny<T, Source, 2, 2>(context, p);
  } else if (two) {
    launch_skinny<T, Source, 2, 1>(context, p);
  } else {
    launch_skinny<T, Source, 1, 1>(context, p);
  }
}

template <class T>
void launch_dtype(Context& context, const Params& p) {
  using Id = WeightFormatId;
  switch (p.weight.id) {
    case Id::fp8_e4m3:
      return launch_source<T, Fp8Source<T>>(context, p);
    case Id::int8_g32:
    case Id::int8_g64:
    case Id::int8_g128:
    case Id::q8_0:
      return launch_source<T, Int8Source<T>>(context, p);
    case Id::int4_g32:
    case Id::int4_g64:
    case Id::int4_g128:
      return launch_source<T, Int4Source<T>>(context, p);
    case Id::q4_0:
      return launch_source<T, Q4Source<T, false>>(context, p);
    case Id::q4_1:
      return launch_source<T, Q4Source<T, true>>(context, p);
    case Id::q4_k:
      return launch_source<T, Q4KSource<T>>(context, p);
    case Id::q6_k:
      return launch_source<T, Q6KSource<T>>(context, p);
    default:
      return launch_source<T, PlainSource<T>>(context, p);
  }
}

bool has_source(const Forward& p) {
  using Id = WeightFormatId;
  const Id id = p.weight.format->id;
  if (p.weight.format->dtype == p.dtype) return true;
  return id == Id::fp8_e4m3 || (id >= Id::int8_g32 && id <= Id::q4_1) || id == Id::q4_k ||
         id == Id::q6_k;
}

// Bytes to which W and its rows have to be aligned.
std::int64_t weight_alignment(const WeightFormat& format) {
  if (format.dtype == DType::f8_e4m3) return 8;
  return format.dtype.has_value() || format.id == WeightFormatId::q4_k ? 16 : 2;
}

}  // namespace

std::string skinny_refuses(const Context& context, const Forward& p) {
  (void)context;
  if (p.dtype == DType::f32) return "x of f32, needs bf16 or f16";
  if (p.rows > 16) return std::to_string(p.rows) + " rows, needs at most 16";
  if (!has_source(p)) return "no kernel for weights in " + std::string(p.weight.format->name);
  if (p.in == 0 || p.in > INT32_MAX) return "in is 0 or beyond 31 bits";
  const std::int64_t alignment = weight_alignment(*p.weight.format);
  if (reinterpret_cast<std::uintptr_t>(p.weight.data) % alignment != 0 ||
      p.weight.row_bytes % alignment != 0 || p.in % 8 != 0) {
    return "rows of weight are not aligned to " + std::to_string(alignment) + " bytes";
  }
  if (!p.int8_activations &&
      (reinterpret_cast<std::uintptr_t>(p.x.data) % 8 != 0 || p.x.stride % 4 != 0)) {
    return "rows of x are not aligned to 8 bytes";
  }
  return {};
}

void forward_skinny(Context& context, const Forward& p) {
  auto* const workspace =
      static_cast<std::byte*>(detail::ContextAccess::workspace(context, activation_bytes(p)));
  const Activations x = prepare_activations(context, p, workspace);
  const cuda::DeviceScope scope(context.device().index);
  const Params params{.weight = stored(p.weight),
                      .x = static_cast<const std::uint16_t*>(x.x.data),
                      .x_stride = x.x.stride,
                      .rows = p.rows,
                      .in = p.in,
                      .out = p.out,
                      .segment = segment_length(p.in),
                      .segments = segment_count(p.in),
                      .sink = forward_sink(p, x.scales)};
  p.dtype == DType::bf16 ? launch_dtype<Bf16>(context, params) : launch_dtype<F16>(context, params);
}

}  // namespace touchstone::linear_layer
