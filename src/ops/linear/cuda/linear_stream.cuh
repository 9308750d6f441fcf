// Linear of up to 16 rows of bf16 or f16 on Hopper: W passes through shared memory without a pause and
// is read once, in any format.
//
// mma.sync m16n8k16 with x on the left: a warp computes tiles of 8 rows of W, each as one chain of steps
// over all of `in`. It owns a ring of shared memory that it fills by asynchronous copies; nothing but the
// warp itself waits for a stage. x lies in shared memory. With `constant_weight` the ring fills while the kernel
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
inline constexpr int kStreamMaxWarps = 16;
inline constexpr int kStreamMinThreads = 128;  // x is put in order by as many
inline constexpr int kStreamMaxStages = 24;    // of a warp
inline constexpr int kStreamUnit = 128;        // elements of a row that are multiplied at a time
inline constexpr int kStreamSlack = 512;       // bytes after x: a last unit is loaded as a whole

struct StreamParams {
  StoredWeight weight;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t tiles = 0;  // of y
  int rows = 0;
  int in = 0;
  int slice = 0;   // elements of a row in a stage
  int slices = 0;  // of a row
  int slice_bytes = 0;
  int row_bytes = 0;   // of a row of W, without what lies between rows
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
  __device__ __forceinline__ StreamRing(const StreamParams& p, std::uint8_t* memory,
                                        std::uint64_t* full, std::int64_t first_tile)
      : p_(p),
        memory_(cuda::shared_address(memory)),
        full_(cuda::shared_address(full)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        place_(lane_ / 8 * p.row_pitch + lane_ % 8 * 16),
        tile_(first_tile) {
    set_rows();
  }

  // Starts to fill the next stage, if anything is left to read. The whole warp calls it, between two
  // products: it must be short.
  __device__ __forceinline__ void fill() {
    if (tile_ >= p_.tiles) return;
    const std::uint32_t to =
        memory_ + static_cast<std::uint32_t>(stage_ * kStreamRows * p_.row_pitch);
    if (p_.whole) {
      const int bytes = kStreamRows * p_.row_bytes;
      for (int byte = lane_ * 16; byte < bytes; byte += 512) {
        cuda::copy_async_16(to + static_cast<std::uint32_t>(byte), row_[0] + byte);
      }
    } else {
      // Eight lanes copy 128 bytes of a row at a time.
      const int begin = offset_ & ~15;
      const int bytes = min(offset_ + p_.slice_bytes, p_.row_bytes) - begin;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint8_t* const from = row_[half] + begin;
        const std::uint32_t at = to + static_cast<std::uint32_t>(place_ + half * 4 * p_.row_pitch);
        for (int batch = 0; batch < bytes; batch += 512) {
#pragma unroll
          for (int byte = 0; byte < 512; byte += 128) {
            if (lane_ % 8 * 16 + batch + byte < bytes) {
              cuda::copy_async_16(at + static_cast<std::uint32_t>(batch + byte),
                                  from + batch + byte);
            }
          }
        }
      }
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                     full_ + static_cast<std::uint32_t>(stage_ * 8))
                 : "memory");
    stage_ = stage_ + 1 == p_.stages ? 0 : stage_ + 1;
    offset_ += p_.slice_bytes;
    if (offset_ >= p_.row_bytes) next_rows();
  }

  // Brings what the first stages will hold into L2. A hint: nothing is read yet.
  __device__ __forceinline__ void prefetch() const {
    if (p_.whole || tile_ >= p_.tiles || lane_ % 8 != 0) return;
    const std::int64_t bytes = min(p_.weight.row_bytes, std::int64_t{p_.stages} * p_.row_pitch);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      cuda::bulk_prefetch(row_[half], static_cast<std::uint32_t>(bytes / 16 * 16));
    }
  }

 private:
  __device__ __forceinline__ void next_rows() {
    offset_ = 0;
    if (++half_ == stream_halves(p_)) {
      half_ = 0;
      tile_ += static_cast<std::int64_t>(gridDim.x) * p_.warps;
    }
    set_rows();
  }
  // The two rows of which this lane copies an eighth, four apart; past the last one, the last one again.
  __device__ __forceinline__ void set_rows() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row =
          min(p_.sink.columns - 1, tile_ * kStreamRows + (p_.whole ? 0 : lane_ / 8 + half * 4));
      row_[half] = p_.weight.data + (row + half_ * p_.sink.columns) * p_.weight.row_bytes +
                   (p_.whole ? 0 : lane_ % 8 * 16);
    }
  }

  const StreamParams& p_;
  std::uint32_t memory_;
  std::uint32_t full_;
  int lane_;
  int place_;  // of what this lane copies, in a stage
  std::int64_t tile_;
  int half_ = 0;
  int offset_ = 0;  // of the slice in its row
  int stage_ = 0;
  const std::uint8_t* row_[2] = {};
};

// W in the dtype of x: ldmatrix gives fragments as they are.
struct PlainSource {
  static constexpr StepOrder kOrder = StepOrder::split;
  static constexpr int kUnitBytes = 256;
};

// Brings x into shared memory, rows of whole blocks of 32 with zeros after `in`, and puts its steps in
// the order of the source. All threads call it; `full` has one arrival.
template <StepOrder kOrder>
__device__ void stage_x(const StreamParams& p, std::uint8_t* to, std::uint64_t* full) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto bytes = static_cast<std::uint32_t>(p.in * 2);
  if (thread == 0) cuda::barrier_expect(full, static_cast<std::uint32_t>(p.rows) * bytes);
  if (thread < p.rows) {
    // Zeros before the copy: they are written by another path to memory.
    for (int k = p.in; k % 32 != 0; ++k) {
      *reinterpret_cast<std::uint16_t*>(to + thread * p.x_pitch + k * 2) = 0;
    }
  }
  __syncthreads();
  if (thread < p.rows)
    cuda::bulk_load(to + thread * p.x_pitch, p.x + thread * p.x_stride, bytes, full);
  cuda::barrier_wait(full, 0);
  if constexpr (kOrder != StepOrder::split) {
    const int steps = (p.in + 15) / 16;
    for (int i = thread; i < p.rows * steps; i += static_cast<int>(blockDim.x)) {
      const int row = i / steps;
      auto* const at = reinterpret_cast<uint4*>(to + row * p.x_pitch + (i - row * steps) * 32);
      const uint4 a = at[0];
      const uint4 b = at[1];
      std::uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      reorder_step<kOrder>(words);
      at[0] = {words[0], words[1], words[2], words[3]};
      at[1] = {words[4], words[5], words[6], words[7]};
    }
    __syncthreads();
  }
}

// The left operand: 16 rows of x, zeros where there are fewer. The zeros are loaded like the rest: a
// fragment is four neighboring registers, and to put zeros between loaded ones takes moves that wait for
// the product before.
class StreamLeft {
 public:
  // Lane l gives the address of row l % 8 of matrix l / 8: rows 0 to 7, rows 8 to 15, and the same eight
  // elements of k further on. A row that is not there is the same unit of zeros at every k.
  __device__ StreamLeft(const StreamParams& p, std::uint32_t x, std::uint32_t zeros) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool there = lane % 16 < p.rows;
    begin_ = (there ? x + static_cast<std::uint32_t>(lane % 16 * p.x_pitch) : zeros) +
             static_cast<std::uint32_t>(lane / 16 * 16);
    step_ = there ? kStreamUnit * 2 : 0;
  }
  __device__ __forceinline__ void restart() { at_ = begin_; }
  __device__ __forceinline__ void next_unit() { at_ += step_; }
  // Block i of the unit.
  __device__ __forceinline__ void load(int i, std::uint32_t (&a)[2][4]) const {
    cuda::load_matrices(at_ + static_cast<std::uint32_t>(i * 64), a[0]);
    cuda::load_matrices(at_ + static_cast<std::uint32_t>(i * 64 + 32), a[1]);
  }

 private:
  std::uint32_t begin_;
  std::uint32_t at_ = 0;
  std::uint32_t step_;
};

// One warp's chains. A unit is straight code: what it loads stands between products, which wait for one
// another.
template <class T, class Source>
class StreamWarp {
 public:
  __device__ __forceinline__ StreamWarp(const StreamParams& p, const std::uint8_t* ring,
                                        std::uint64_t* full, StreamRing& filler, StreamLeft& left)
      : p_(p),
        ring_(ring),
        full_(full),
        filler_(filler),
        left_(left),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // The sums of the next tile of the ring.
  __device__ __forceinline__ void multiply_tile(float (&sums)[4]) {
    left_.restart();
    int offset = 0;  // bytes from the start of a row
#pragma unroll 1
    for (int begin = 0; begin < p_.in; begin += p_.slice) {
      cuda::barrier_wait(&full_[stage_], parity_);
      const std::uint8_t* const rows = ring_ + stage_ * kStreamRows * p_.row_pitch + (offset & 15);
      const std::uint8_t* row =
          rows + (kPlain ? lane_ % 8 * p_.row_pitch + lane_ / 8 * 16 : lane_ / 4 * p_.row_pitch);
      const int length = min(p_.slice, p_.in - begin);
      int k = 0;
      if constexpr (kPlain) {
        for (; k + 4 * kStreamUnit <= length; k += 4 * kStreamUnit) {
          multiply_units<4>(row, sums);
          row += 4 * Source::kUnitBytes;
        }
        for (; k + 2 * kStreamUnit <= length; k += 2 * kStreamUnit) {
          multiply_units<2>(row, sums);
          row += 2 * Source::kUnitBytes;
        }
      }
      for (; k + kStreamUnit <= length; k += kStreamUnit) {
        multiply_unit(row, k / kStreamUnit % 2, sums);
        left_.next_unit();
        row += unit_step(k);
      }
      if (k < length) multiply_tail(row, rows, k, length, sums);
      __syncwarp();
      filler_.fill();
      offset += p_.slice_bytes;
      if (++stage_ == p_.stages) {
        stage_ = 0;
        parity_ ^= 1;
      }
    }
  }

 private:
  static constexpr bool kPlain = std::is_same_v<Source, PlainSource>;

  // Bytes from the unit at element k to the next.
  __device__ __forceinline__ static int unit_step(int k) {
    if (Source::kUnitBytes == 144 || Source::kUnitBytes == 210) {
      return k / kStreamUnit % 2 == 0 ? 0 : Source::kUnitBytes;
    }
    return Source::kUnitBytes;
  }

  __device__ __forceinline__ static void load_plain(const std::uint8_t* row, int i, Fragment& to) {
    std::uint32_t v[4];
    cuda::load_matrices(cuda::shared_address(row) + static_cast<std::uint32_t>(i * 64), v);
    to = {{{v[0], v[1]}, {v[2], v[3]}}};
  }

  __device__ __forceinline__ void multiply_unit(const std::uint8_t* row, int half,
                                                float (&sums)[4]) const {
    constexpr int kBlocks = kStreamUnit / 32;
    Fragment right[kBlocks];
    std::uint32_t left[kBlocks][2][4];
    if constexpr (kPlain) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        load_plain(row, i, right[i]);
        left_.load(i, left[i]);
      }
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) multiply_block(left[i], right[i], sums);
    } else {
      const typename Source::Raw raw = Source::load(row, half, lane_ % 4);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) left_.load(i, left[i]);
      right[0] = Source::decode(raw, 0);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        if (i + 1 < kBlocks) right[i + 1] = Source::decode(raw, i + 1);
        multiply_block(left[i], right[i], sums);
      }
    }
  }

  // Plain weights: a unit is loaded while the one before it is multiplied.
  template <int kUnits>
  __device__ __forceinline__ void multiply_units(const std::uint8_t* row, float (&sums)[4]) {
    constexpr int kBlocks = kStreamUnit / 32;
    Fragment right[2][kBlocks];
    std::uint32_t left[2][kBlocks][2][4];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      load_plain(row, i, right[0][i]);
      left_.load(i, left[0][i]);
    }
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      left_.next_unit();
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        multiply_block(left[unit % 2][i], right[unit % 2][i], sums);
        if (unit + 1 < kUnits) {
          load_plain(row, (unit + 1) * kBlocks + i, right[(unit + 1) % 2][i]);
          left_.load(i, left[(unit + 1) % 2][i]);
        }
      }
    }
  }

  __device__ __forceinline__ static void multiply_block(const std::uint32_t (&left)[2][4],
                                                        const Fragment& right, float (&sums)[4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      multiply_add<T>(sums, left[step], right.step[step][0], right.step[step][1]);
    }
  }

  // The blocks of a last unit that is not whole, from element k of the slice on, and of weights without
  // blocks a last one of 8, 16 or 24 elements. W past `in` is whatever the stage held before: it must not
  // reach a product.
  __device__ __forceinline__ void multiply_tail(const std::uint8_t* row, const std::uint8_t* rows,
                                                int k, int length, float (&sums)[4]) const {
    const int half = k / kStreamUnit % 2;
#pragma unroll
    for (int i = 0; i < kStreamUnit / 32; ++i) {
      const int left = length - k - i * 32;
      if (left <= 0) break;
      std::uint32_t x[2][4];
      left_.load(i, x);
      Fragment w{};
      if constexpr (kPlain) {
        const auto* const words = reinterpret_cast<const std::uint32_t*>(
            rows + lane_ / 4 * p_.row_pitch + (k + i * 32) * 2);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (8 * j < left) w.step[j / 2][j % 2] = words[j * 4 + lane_ % 4];
        }
      } else {
        w = Source::decode(Source::load(row, half, lane_ % 4), i);
        // Elements of a lane are four neighbors of a step.
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const bool there = step * 16 + lane_ % 4 * 4 < left;
          w.step[step][0] = there ? w.step[step][0] : 0;
          w.step[step][1] = there ? w.step[step][1] : 0;
        }
      }
      multiply_block(x, w, sums);
    }
  }

  const StreamParams& p_;
  const std::uint8_t* ring_;
  std::uint64_t* full_;
  StreamRing& filler_;
  StreamLeft& left_;
  int lane_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

// Sums 2 i and 2 i + 1 of a lane: row lane / 4 + 8 i of x, columns lane % 4 * 2 and + 1 of the tile.
__device__ inline void store_stream_tile(const StreamParams& p, std::int64_t tile,
                                         const float (&sums)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const std::int64_t column = tile * kStreamRows + lane % 4 * 2 + i % 2;
    if (row >= p.rows || column >= p.sink.columns) continue;
    store(p.sink, row, column, finish(p.sink, row, column, sums[0][i], sums[1][i]));
  }
}

template <class T, class Source>
__global__ __launch_bounds__(kStreamMaxWarps *
                             32) void linear_stream(const __grid_constant__ StreamParams p) {
  if constexpr (cuda::kHopper) {
    extern __shared__ __align__(128) std::uint8_t memory[];
    __shared__ std::uint64_t full[kStreamMaxWarps][kStreamMaxStages];
    __shared__ std::uint64_t x_full;
    __shared__ uint4 zeros[kStreamUnit * 2 / 16];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int ring_bytes = p.stages * kStreamRows * p.row_pitch;
    std::uint8_t* const ring = memory + warp * ring_bytes;
    std::uint8_t* const x = memory + p.warps * ring_bytes;
    const std::int64_t first = blockIdx.x + static_cast<std::int64_t>(gridDim.x) * warp;
    const bool works = warp < p.warps && first < p.tiles;
    if (threadIdx.x < kStreamUnit * 2 / 16) zeros[threadIdx.x] = {};
    if (threadIdx.x == 0) cuda::barrier_init(&x_full, 1);
    if (works && lane == 0) {
      for (int i = 0; i < p.stages; ++i) cuda::barrier_init(&full[warp][i], 32);
    }
    cuda::fence_barrier_init();
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
    stage_x<Source::kOrder>(p, x, &x_full);
    if (!works) return;
    StreamLeft left(p, cuda::shared_address(x), cuda::shared_address(zeros));
    StreamWarp<T, Source> work(p, ring, full[warp], filler, left);
    for (std::int64_t tile = first; tile < p.tiles;
         tile += static_cast<std::int64_t>(gridDim.x) * p.warps) {
      float sums[2][4] = {};
#pragma unroll 1
      for (int half = 0; half < stream_halves(p); ++half) {
        float chain[4] = {};
        work.multiply_tile(chain);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[0][i] = half == 0 ? chain[i] : sums[0][i];
          sums[1][i] = half == 0 ? sums[1][i] : chain[i];
        }
      }
      store_stream_tile(p, tile, sums);
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
  const auto kernel = linear_stream<T, Source>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "linear stream", kernel, shape, p);
}

}  // namespace touchstone::linear_layer
