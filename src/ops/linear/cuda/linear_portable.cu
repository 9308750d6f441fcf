// Linear for any GPU, any strides, any format of W: tiles of 64 by 64 outputs, every element loaded
// and decoded by itself. Forward, dx and dweight are one product: C[m, n] = sum over k of
// A(m, k) B(n, k).
#include <algorithm>

#include "core/context_access.h"
#include "core/cuda_runtime.h"
#include "ops/linear/cuda/linear_decode.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::linear_layer {
namespace {

constexpr int kTile = 64;
constexpr int kDepth = 32;  // divides a segment
constexpr int kThreads = 128;

// A or B: a matrix by strides, or W, whose rows may run along m or along k.
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t m_stride = 0;
  std::int64_t k_stride = 0;
  std::int64_t rows = 0;  // m
  StoredWeight weight{};
  bool is_weight = false;
  bool weight_rows_along_k = false;

  __device__ float load(std::int64_t m, std::int64_t k, std::int64_t depth) const {
    if (m < 0 || m >= rows || k >= depth) return 0;
    if (is_weight) {
      return weight_rows_along_k ? weight_at(weight, k, m) : weight_at(weight, m, k);
    }
    return cuda::load_any(data, dtype, m * m_stride + k * k_stride);
  }
};

struct Params {
  Operand a;
  Operand b;
  std::int64_t depth = 0;
  std::int64_t segment = 0;
  std::int64_t column_tiles = 0;
  Sink sink;
};

// Row of B for column n of a tile: with a gate the second half of a tile are the up rows.
__device__ std::int64_t b_row(const Params& p, std::int64_t tile, int n) {
  if (p.sink.gate == LinearGate::none) return tile * kTile + n;
  const std::int64_t c = tile * (kTile / 2) + n % (kTile / 2);
  if (c >= p.sink.columns) return -1;
  return n < kTile / 2 ? c : c + p.sink.columns;
}

// The tile of C through shared memory, so that a gate finds both of its sums.
__device__ void store_tile(const Params& p, std::int64_t row_tile, std::int64_t column_tile,
                           const float (&c)[kTile][kTile + 1]) {
  const bool gate = p.sink.gate != LinearGate::none;
  const int width = gate ? kTile / 2 : kTile;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * width; i += kThreads) {
    const int m = i / width;
    const int n = i % width;
    const std::int64_t row = row_tile * kTile + m;
    const std::int64_t column = column_tile * width + n;
    if (row >= p.a.rows || column >= p.sink.columns) continue;
    store(p.sink, row, column, finish(p.sink, row, column, c[m][n], gate ? c[m][n + width] : 0.0F));
  }
}

// T: Bf16 or F16, on tensor cores, one chain.
template <class T>
__global__ __launch_bounds__(kThreads) void product_16(Params p) {
  __shared__ std::uint16_t a_tile[kTile][kDepth + 8];
  __shared__ std::uint16_t b_tile[kTile][kDepth + 8];
  __shared__ float c_tile[kTile][kTile + 1];
  const std::int64_t row_tile = blockIdx.x / p.column_tiles;
  const std::int64_t column_tile = blockIdx.x % p.column_tiles;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float totals[8][4] = {};
  float sums[8][4] = {};
  for (std::int64_t k = 0; k < p.depth; k += kDepth) {
    if (k % p.segment == 0) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        totals[i / 4][i % 4] = __fadd_rn(totals[i / 4][i % 4], sums[i / 4][i % 4]);
        sums[i / 4][i % 4] = 0;
      }
    }
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
      const int row = i / kDepth;
      const int column = i % kDepth;
      a_tile[row][column] =
          cuda::narrow<T>(p.a.load(row_tile * kTile + row, k + column, p.depth)).bits;
      b_tile[row][column] =
          cuda::narrow<T>(p.b.load(b_row(p, column_tile, row), k + column, p.depth)).bits;
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      const int column = step * 16 + lane % 4 * 2;
      std::uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = *reinterpret_cast<const std::uint32_t*>(
            &a_tile[warp * 16 + lane / 4 + i % 2 * 8][column + i / 2 * 8]);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const std::uint16_t* const b = &b_tile[j * 8 + lane / 4][column];
        multiply_add<T>(sums[j], a, *reinterpret_cast<const std::uint32_t*>(b),
                        *reinterpret_cast<const std::uint32_t*>(b + 8));
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8;
    c_tile[row][i / 4 * 8 + lane % 4 * 2 + i % 2] =
        __fadd_rn(totals[i / 4][i % 4], sums[i / 4][i % 4]);
  }
  __syncthreads();
  store_tile(p, row_tile, column_tile, c_tile);
}

// f32: a thread has 4 rows by 8 columns and adds product after product.
__global__ __launch_bounds__(kThreads) void product_f32(Params p) {
  __shared__ float a_tile[kTile][kDepth + 1];
  __shared__ float b_tile[kTile][kDepth + 1];
  __shared__ float c_tile[kTile][kTile + 1];
  const std::int64_t row_tile = blockIdx.x / p.column_tiles;
  const std::int64_t column_tile = blockIdx.x % p.column_tiles;
  const int first_row = static_cast<int>(threadIdx.x) / 8;  // and 16, 32, 48 further on
  const int first_column = static_cast<int>(threadIdx.x) % 8;
  float totals[4][8] = {};
  float sums[4][8] = {};
  for (std::int64_t k = 0; k < p.depth; k += kDepth) {
    if (k % p.segment == 0) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        totals[i / 8][i % 8] = __fadd_rn(totals[i / 8][i % 8], sums[i / 8][i % 8]);
        sums[i / 8][i % 8] = 0;
      }
    }
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
      const int row = i / kDepth;
      const int column = i % kDepth;
      a_tile[row][column] = p.a.load(row_tile * kTile + row, k + column, p.depth);
      b_tile[row][column] = p.b.load(b_row(p, column_tile, row), k + column, p.depth);
    }
    __syncthreads();
    for (int d = 0; d < kDepth; ++d) {
      float b[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) b[j] = b_tile[first_column + 8 * j][d];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = a_tile[first_row + 16 * i][d];
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = __fmaf_rn(a, b[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    c_tile[first_row + 16 * (i / 8)][first_column + 8 * (i % 8)] =
        __fadd_rn(totals[i / 8][i % 8], sums[i / 8][i % 8]);
  }
  __syncthreads();
  store_tile(p, row_tile, column_tile, c_tile);
}

std::int64_t tiles(std::int64_t n, int width) { return (n + width - 1) / width; }

void run(Context& context, DType dtype, Params p) {
  const int width = p.sink.gate == LinearGate::none ? kTile : kTile / 2;
  p.segment = dtype == DType::f32 ? segment_length(p.depth) : (p.depth + kDepth) / kDepth * kDepth;
  p.column_tiles = tiles(p.sink.columns, width);
  const std::int64_t blocks = checked_mul(tiles(p.a.rows, kTile), p.column_tiles);
  if (blocks == 0) return;
  const cuda::DeviceScope scope(context.device().index);
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(blocks), .threads = kThreads};
  if (dtype == DType::f32) {
    cuda::launch(context, "linear portable", product_f32, shape, p);
  } else if (dtype == DType::bf16) {
    cuda::launch(context, "linear portable", product_16<Bf16>, shape, p);
  } else {
    cuda::launch(context, "linear portable", product_16<F16>, shape, p);
  }
}

// ---- sums over rows -----------------------------------------------------------------------------

struct BiasParams {
  const void* dy = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t out = 0;
  void* to = nullptr;
  DType to_dtype = DType::f32;
  bool accumulate = false;
};

// One block per 32 columns: 8 threads a column add every eighth row in f64, then their sums.
__global__ __launch_bounds__(256) void sum_rows(BiasParams p) {
  __shared__ double sums[8][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t o = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  double sum = 0;
  for (std::int64_t r = part; r < p.rows && o < p.out; r += 8) {
    sum += static_cast<double>(cuda::load_any(p.dy, p.dtype, r * p.stride + o));
  }
  sums[part][lane] = sum;
  __syncthreads();
  if (part != 0 || o >= p.out) return;
  for (int i = 1; i < 8; ++i) sum += sums[i][lane];
  if (p.accumulate) sum += static_cast<double>(static_cast<const float*>(p.to)[o]);
  cuda::store_any(p.to, p.to_dtype, o, sum);
}

// ---- int8 activations ---------------------------------------------------------------------------

struct Int8Params {
  const void* x = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;
  std::int64_t in = 0;
  void* to = nullptr;  // [rows, in]
  float* scales = nullptr;
};

// One block per row.
__global__ __launch_bounds__(256) void round_rows(Int8Params p) {
  __shared__ float parts[8];
  const std::int64_t row = blockIdx.x;
  float largest = 0;
  for (std::int64_t i = threadIdx.x; i < p.in; i += 256) {
    const float v = fabsf(cuda::load_any(p.x, p.dtype, row * p.stride + i));
    // NaN and infinity stay: they must reach the scale.
    largest = v > largest || !(v < INFINITY) ? (v < INFINITY ? v : NAN) : largest;
    if (isnan(largest)) break;
  }
  const auto worse = [](float a, float b) { return isnan(a) || isnan(b) ? NAN : fmaxf(a, b); };
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = worse(largest, __shfl_xor_sync(~0U, largest, offset));
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const float part : parts) largest = worse(largest, part);
  const float scale = __fdiv_rn(largest, 127.0F);
  if (threadIdx.x == 0) p.scales[row] = scale;
  for (std::int64_t i = threadIdx.x; i < p.in; i += 256) {
    const float v = cuda::load_any(p.x, p.dtype, row * p.stride + i);
    // A subnormal scale may be too small by half of itself.
    const float rounded =
        scale > 0 ? fminf(fmaxf(rintf(__fdiv_rn(v, scale)), -127.0F), 127.0F) : 0.0F;
    cuda::store_any(p.to, p.dtype, row * p.in + i, static_cast<double>(rounded));
  }
}

// ---- W in the dtype of x ------------------------------------------------------------------------

struct DecodeParams {
  StoredWeight weight;
  std::int64_t first = 0;
  std::int64_t in = 0;
  void* to = nullptr;
};

// A thread decodes eight weights of a row.
template <class T>
__global__ __launch_bounds__(256) void decode_kernel(DecodeParams p) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x) * 8;
  if (column >= p.in) return;
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = column + i < p.in ? weight_at(p.weight, p.first + row, column + i) : 0.0F;
  }
  T* const to = static_cast<T*>(p.to) + row * p.in + column;
  if (p.in % 8 == 0) {
    *reinterpret_cast<uint4*>(to) =
        uint4{packed<T>(values[0], values[1]), packed<T>(values[2], values[3]),
              packed<T>(values[4], values[5]), packed<T>(values[6], values[7])};
    return;
  }
  for (int i = 0; i < 8 && column + i < p.in; ++i) to[i] = cuda::narrow<T>(values[i]);
}

}  // namespace

std::int64_t activation_bytes(const Forward& p) {
  if (!p.int8_activations) return 0;
  const std::int64_t x = checked_mul(checked_mul(p.rows, p.in), size_of(p.dtype));
  return (x + 255) / 256 * 256 + (p.rows * 4 + 255) / 256 * 256;
}

Activations prepare_activations(Context& context, const Forward& p, std::byte* workspace) {
  if (!p.int8_activations) return {p.x, nullptr};
  const std::int64_t bytes = (p.rows * p.in * size_of(p.dtype) + 255) / 256 * 256;
  auto* const scales = reinterpret_cast<float*>(workspace + bytes);
  const cuda::DeviceScope scope(context.device().index);
  cuda::launch(context, "linear int8 activations", round_rows,
               {.blocks = static_cast<unsigned>(p.rows), .threads = 256},
               Int8Params{p.x.data, p.dtype, p.x.stride, p.in, workspace, scales});
  return {{workspace, p.in}, scales};
}

void decode_rows(Context& context, const Weight& w, std::int64_t first, std::int64_t rows,
                 std::int64_t in, DType dtype, void* to) {
  const cuda::DeviceScope scope(context.device().index);
  constexpr std::int64_t kMaxRows = 65535;  // of a grid
  for (std::int64_t done = 0; done < rows; done += kMaxRows) {
    const std::int64_t count = std::min(kMaxRows, rows - done);
    const DecodeParams params{stored(w), first + done, in,
                              static_cast<std::byte*>(to) + done * in * 2};
    const dim3 grid(static_cast<unsigned>((in + 2047) / 2048), static_cast<unsigned>(count));
    if (dtype == DType::bf16) {
      decode_kernel<Bf16><<<grid, 256, 0, cuda::stream_of(context)>>>(params);
    } else {
      decode_kernel<F16><<<grid, 256, 0, cuda::stream_of(context)>>>(params);
    }
    cuda::check_launch("linear decode");
  }
}

void forward_portable(Context& context, const Forward& p) {
  auto* const workspace =
      static_cast<std::byte*>(detail::ContextAccess::workspace(context, activation_bytes(p)));
  const Activations x = prepare_activations(context, p, workspace);
  Params params;
  params.a = {
      .data = x.x.data, .dtype = p.dtype, .m_stride = x.x.stride, .k_stride = 1, .rows = p.rows};
  params.b.weight = stored(p.weight);
  params.b.is_weight = true;
  params.b.rows = p.out;
  params.depth = p.in;
  params.sink = forward_sink(p, x.scales);
  run(context, p.dtype, params);
}

void bias_gradient(Context& context, const Backward& p) {
  if (p.dbias == nullptr || p.out == 0) return;
  const cuda::DeviceScope scope(context.device().index);
  cuda::launch(context, "linear dbias", sum_rows,
               {.blocks = static_cast<unsigned>((p.out + 31) / 32), .threads = 256},
               BiasParams{p.dy.data, p.dtype, p.dy.stride, p.rows, p.out, p.dbias, p.dbias_dtype,
                          p.accumulate});
}

void backward_portable(Context& context, const Backward& p) {
  if (p.dx.data != nullptr) {
    Params params;
    params.a = {.data = p.dy.data,
                .dtype = p.dtype,
                .m_stride = p.dy.stride,
                .k_stride = 1,
                .rows = p.rows};
    params.b.weight = stored(p.weight);
    params.b.is_weight = true;
    params.b.weight_rows_along_k = true;
    params.b.rows = p.in;
    params.depth = p.out;
    params.sink = {.y = p.dx.data, .stride = p.dx.stride, .dtype = p.dtype, .columns = p.in};
    run(context, p.dtype, params);
  }
  if (p.dweight.data != nullptr) {
    Params params;
    params.a = {
        .data = p.dy.data, .dtype = p.dtype, .m_stride = 1, .k_stride = p.dy.stride, .rows = p.out};
    params.b = {
        .data = p.x.data, .dtype = p.dtype, .m_stride = 1, .k_stride = p.x.stride, .rows = p.in};
    params.depth = p.rows;
    params.sink = {.y = p.dweight.data,
                   .stride = p.dweight.stride,
                   .dtype = p.dweight_dtype,
                   .accumulate = p.accumulate,
                   .columns = p.in};
    run(context, p.dtype, params);
  }
  bias_gradient(context, p);
}

}  // namespace touchstone::linear_layer
