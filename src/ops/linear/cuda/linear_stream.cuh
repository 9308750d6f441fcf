// Linear of up to 16 rows of bf16 or f16 on Hopper: W passes through shared memory without a pause and
// is read once, in any format.
//
// mma.sync m16n8k16 with x on the left: a warp computes tiles of 8 rows of W, each as one chain of steps
// over all of `in`. It owns a ring of shared memory that bulk copies fill; nothing but the warp itself
// waits for a stage. x lies in shared memory. With `constant_weight` the ring fills while the kernel
// before this one still runs, so that memory does not idle between two layers.
#pragma once

#include "cuda/hopper.cuh"
#include "ops/linear/cuda/linear_source.cuh"

// Compiled for older chips the kernel is empty, and what only it uses is unused.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

namespace touchstone::linear_layer {

inline constexpr int kStreamRows = 8;  // of W in a tile
inline constexpr int kStreamMaxWarps = 8;
inline constexpr int kStreamMinThreads = 128;  // x is brought by as many
inline constexpr int kStreamMaxStages = 24;    // of a warp
inline constexpr int kStreamUnroll = 4;        // blocks of 32 elements

struct StreamParams {
  StoredWeight weight;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t tiles = 0;  // of y
  int rows = 0;
  int in = 0;
  int slice = 0;       // elements of a row in a stage
  int slices = 0;      // of a row
  int row_pitch = 0;   // bytes of a stage from row to row
  int stages = 0;      // of a warp
  int warps = 0;       // that have a ring
  int x_pitch = 0;     // bytes of shared memory from row to row of x
  bool whole = false;  // a stage is a tile as it lies in memory, brought by one copy
  bool ahead = false;  // W may be read before the kernels before this one have ended
  Sink sink;
};

__device__ inline int stream_halves(const StreamParams& p) {
  return p.sink.gate == LinearGate::none ? 1 : 2;
}

// A warp's ring and the order in which its stages are filled: tile after tile, with a gate the gate
// rows and then the up rows of each, slice after slice of `in`.
class StreamRing {
 public:
  __device__ StreamRing(const StreamParams& p, std::uint8_t* memory, std::uint64_t* full,
                        std::int64_t first_tile)
      : p_(p),
        memory_(memory),
        full_(full),
        lane_(static_cast<int>(threadIdx.x) % 32),
        tile_(first_tile) {
    set_row();
  }

  // Starts to fill the next stage, if anything is left to read. The whole warp calls it.
  __device__ void fill() {
    if (tile_ >= p_.tiles) return;
    const std::int64_t begin =
        std::int64_t{slice_ * p_.slice >> p_.weight.block_shift} * p_.weight.block_bytes / 16 * 16;
    const int past = min(p_.in, (slice_ + 1) * p_.slice);
    const std::int64_t last = (past + p_.weight.block_elements - 1) >> p_.weight.block_shift;
    const std::int64_t end = (last * p_.weight.block_bytes + 15) / 16 * 16;
    const auto bytes =
        static_cast<std::uint32_t>(p_.whole ? kStreamRows * p_.weight.row_bytes : end - begin);
    std::uint8_t* const to = memory_ + stage_ * kStreamRows * p_.row_pitch;
    if (lane_ == 0) {
      cuda::barrier_expect(&full_[stage_], p_.whole ? bytes : kStreamRows * bytes);
    }
    __syncwarp();
    if (p_.whole) {
      if (lane_ == 0) cuda::bulk_load(to, row_, bytes, &full_[stage_]);
    } else if (lane_ < kStreamRows) {
      cuda::bulk_load(to + lane_ * p_.row_pitch, row_ + begin, bytes, &full_[stage_]);
    }
    if (++stage_ == p_.stages) stage_ = 0;
    if (++slice_ == p_.slices) {
      slice_ = 0;
      if (++half_ == stream_halves(p_)) {
        half_ = 0;
        tile_ += static_cast<std::int64_t>(gridDim.x) * p_.warps;
      }
      set_row();
    }
  }

  // Brings what the first stages will hold into L2. A hint: nothing is read yet.
  __device__ void prefetch() const {
    if (p_.whole || tile_ >= p_.tiles || lane_ >= kStreamRows) return;
    const std::int64_t bytes = min(p_.weight.row_bytes, std::int64_t{p_.stages} * p_.row_pitch);
    cuda::bulk_prefetch(row_, static_cast<std::uint32_t>(bytes / 16 * 16));
  }

 private:
  // The row that this lane copies; past the last one, the last one again.
  __device__ void set_row() {
    const std::int64_t row =
        min(p_.sink.columns - 1, tile_ * kStreamRows + (p_.whole ? 0 : lane_ % kStreamRows));
    row_ = p_.weight.data + (row + half_ * p_.sink.columns) * p_.weight.row_bytes;
  }

  const StreamParams& p_;
  std::uint8_t* memory_;
  std::uint64_t* full_;
  int lane_;
  std::int64_t tile_;
  int half_ = 0;
  int slice_ = 0;
  int stage_ = 0;
  const std::uint8_t* row_ = nullptr;
};

// W in the dtype of x: ldmatrix gives fragments as they are.
struct PlainSource {
  static constexpr StepOrder kOrder = StepOrder::split;
};

// x in shared memory, in the order of the source: rows of whole blocks of 32, zeros after `in`.
template <StepOrder kOrder>
__device__ void stage_x(const StreamParams& p, std::uint8_t* to) {
  const int steps = (p.in + 31) / 32 * 2;
  for (int i = static_cast<int>(threadIdx.x); i < p.rows * steps;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / steps;
    const int k = (i - row * steps) * 16;
    const std::uint16_t* const from = p.x + row * p.x_stride + k;
    uint4 v[2] = {};
    if (k < p.in) v[0] = *reinterpret_cast<const uint4*>(from);
    if (k + 8 < p.in) v[1] = *reinterpret_cast<const uint4*>(from + 8);
    std::uint32_t words[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
    reorder_step<kOrder>(words);
    auto* const at = reinterpret_cast<uint4*>(to + row * p.x_pitch + k * 2);
    at[0] = {words[0], words[1], words[2], words[3]};
    at[1] = {words[4], words[5], words[6], words[7]};
  }
}

// The left operand: rows 0 to 7 of x, and 8 to 15 with kSixteen.
template <bool kSixteen>
class StreamLeft {
 public:
  // Lane l gives the address of row l % 8 of matrix l / 8, eight elements of k further on each. A row
  // that is not there is the same zeros at every k.
  __device__ StreamLeft(const StreamParams& p, std::uint32_t x, std::uint32_t zeros) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < (kSixteen ? 2 : 1); ++i) {
      const int row = lane % 8 + 8 * i;
      const bool there = row < p.rows;
      at_[i] = there ? x + static_cast<std::uint32_t>(row * p.x_pitch + lane / 8 * 16) : zeros;
      scale_[i] = there ? 2 : 0;
    }
  }
  // Of the two steps from k on.
  __device__ void load(int k, std::uint32_t (&a)[2][4]) const {
    std::uint32_t v[4];
    cuda::load_matrices(at_[0] + static_cast<std::uint32_t>(k * scale_[0]), v);
    a[0][0] = v[0], a[0][2] = v[1], a[1][0] = v[2], a[1][2] = v[3];
    if constexpr (kSixteen) {
      cuda::load_matrices(at_[1] + static_cast<std::uint32_t>(k * scale_[1]), v);
      a[0][1] = v[0], a[0][3] = v[1], a[1][1] = v[2], a[1][3] = v[3];
    } else {
      a[0][1] = a[0][3] = a[1][1] = a[1][3] = 0;
    }
  }

 private:
  std::uint32_t at_[kSixteen ? 2 : 1];
  int scale_[kSixteen ? 2 : 1];
};

// kBlocks blocks of 32 elements of a stage, from k on; `within` is k's distance from the first element
// of the stage.
template <class T, class Source, int kBlocks, bool kSixteen>
__device__ void multiply_blocks(const StreamParams& p, const std::uint8_t* rows,
                                const std::uint8_t* row, const StreamLeft<kSixteen>& left, int k,
                                int within, float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Fragment f[kBlocks];
  std::uint32_t a[kBlocks][2][4];
  if constexpr (std::is_same_v<Source, PlainSource>) {
    const std::uint32_t at = cuda::shared_address(rows) +
                             static_cast<std::uint32_t>(lane % 8 * p.row_pitch + lane / 8 * 16);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      std::uint32_t v[4];
      cuda::load_matrices(at + static_cast<std::uint32_t>((within + 32 * i) * 2), v);
      f[i] = {{{v[0], v[1]}, {v[2], v[3]}}};
      left.load(k + 32 * i, a[i]);
    }
  } else {
    typename Source::Raw raw[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) raw[i] = Source::load(p.weight, row, k + 32 * i, lane % 4);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) left.load(k + 32 * i, a[i]);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) f[i] = Source::decode(raw[i]);
  }
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      multiply_add<T>(sums, a[i][step], f[i].step[step][0], f[i].step[step][1]);
    }
  }
}

// A last block of fewer than 32 elements, of plain weights: multiples of 8, zeros after them.
template <class T, bool kSixteen>
__device__ void multiply_rest(const StreamParams& p, const std::uint8_t* rows,
                              const StreamLeft<kSixteen>& left, int k, int within,
                              float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t a[2][4];
  left.load(k, a);
  const auto* const row =
      reinterpret_cast<const std::uint32_t*>(rows + lane / 4 * p.row_pitch + within * 2);
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int at = step * 16;
    const std::uint32_t low = k + at < p.in ? row[at / 2 + lane % 4] : 0;
    const std::uint32_t high = k + at + 8 < p.in ? row[at / 2 + 4 + lane % 4] : 0;
    multiply_add<T>(sums, a[step], low, high);
  }
}

// Slice `slice` of a tile, which lies in `rows`.
template <class T, class Source, bool kSixteen>
__device__ void multiply_slice(const StreamParams& p, const std::uint8_t* rows,
                               const StreamLeft<kSixteen>& left, int slice, float (&sums)[4]) {
  constexpr int kStride = 32 * kStreamUnroll;
  const int begin = slice * p.slice;
  const int end = min(p.in, begin + p.slice);
  // Byte 0 of this lane's row, as if the stage held it.
  const std::uint8_t* const row =
      rows + static_cast<int>(threadIdx.x) % 32 / 4 * p.row_pitch -
      (static_cast<std::int64_t>(begin >> p.weight.block_shift) * p.weight.block_bytes / 16 * 16);
  int k = begin;
  for (; k + kStride <= end; k += kStride) {
    multiply_blocks<T, Source, kStreamUnroll>(p, rows, row, left, k, k - begin, sums);
  }
  for (; k + 32 <= end; k += 32) {
    multiply_blocks<T, Source, 1>(p, rows, row, left, k, k - begin, sums);
  }
  if constexpr (std::is_same_v<Source, PlainSource>) {
    if (k < end) multiply_rest<T>(p, rows, left, k, k - begin, sums);
  }
}

// Sums 2 i and 2 i + 1 of a lane: row lane / 4 + 8 i of x, columns lane % 4 * 2 and + 1 of the tile.
template <bool kSixteen>
__device__ void store_stream_tile(const StreamParams& p, std::int64_t tile,
                                  const float (&sums)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < (kSixteen ? 4 : 2); ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const std::int64_t column = tile * kStreamRows + lane % 4 * 2 + i % 2;
    if (row >= p.rows || column >= p.sink.columns) continue;
    store(p.sink, row, column, finish(p.sink, row, column, sums[0][i], sums[1][i]));
  }
}

template <class T, class Source, bool kSixteen>
__global__ __launch_bounds__(kStreamMaxWarps * 32,
                             2) void linear_stream(const __grid_constant__ StreamParams p) {
  if constexpr (cuda::kHopper) {
    extern __shared__ __align__(128) std::uint8_t memory[];
    __shared__ std::uint64_t full[kStreamMaxWarps][kStreamMaxStages];
    __shared__ uint4 zeros;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int ring_bytes = p.stages * kStreamRows * p.row_pitch;
    std::uint8_t* const ring = memory + warp * ring_bytes;
    std::uint8_t* const x = memory + p.warps * ring_bytes;
    const std::int64_t first = blockIdx.x + static_cast<std::int64_t>(gridDim.x) * warp;
    const bool works = warp < p.warps && first < p.tiles;
    if (threadIdx.x == 0) zeros = {};
    if (works && lane == 0) {
      for (int i = 0; i < p.stages; ++i) cuda::barrier_init(&full[warp][i], 1);
      cuda::fence_barrier_init();
    }
    __syncwarp();
    cuda::pdl_launch_dependents();
    StreamRing filler(p, ring, full[warp], first);
    if (!p.ahead) {
      if (works) filler.prefetch();
      cuda::pdl_wait();
    }
    if (works) {
      for (int i = 0; i < p.stages; ++i) filler.fill();
    }
    if (p.ahead) cuda::pdl_wait();
    stage_x<Source::kOrder>(p, x);
    __syncthreads();
    if (!works) return;
    const StreamLeft<kSixteen> left(p, cuda::shared_address(x), cuda::shared_address(&zeros));
    int stage = 0;
    std::uint32_t parity = 0;
    for (std::int64_t tile = first; tile < p.tiles;
         tile += static_cast<std::int64_t>(gridDim.x) * p.warps) {
      float sums[2][4] = {};
      for (int half = 0; half < stream_halves(p); ++half) {
        float chain[4] = {};
        for (int slice = 0; slice < p.slices; ++slice) {
          cuda::barrier_wait(&full[warp][stage], parity);
          multiply_slice<T, Source>(p, ring + stage * kStreamRows * p.row_pitch, left, slice,
                                    chain);
          __syncwarp();
          filler.fill();
          if (++stage == p.stages) {
            stage = 0;
            parity ^= 1;
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) (half == 0 ? sums[0][i] : sums[1][i]) = chain[i];
      }
      store_stream_tile<kSixteen>(p, tile, sums);
    }
  }
}

// Launches the kernel of the format; false where there is none. linear_stream*.cu.
bool launch_stream_plain(Context& context, DType dtype, const cuda::LaunchShape& shape,
                         const StreamParams& p);
bool launch_stream_blocks(Context& context, DType dtype, const cuda::LaunchShape& shape,
                          const StreamParams& p);

template <class T, class Source>
void launch_stream(Context& context, const cuda::LaunchShape& shape, const StreamParams& p) {
  const auto kernel = p.rows > 8 ? linear_stream<T, Source, true> : linear_stream<T, Source, false>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "linear stream", kernel, shape, p);
}

}  // namespace touchstone::linear_layer
