// Linear of up to 16 rows of bf16 or f16 on Hopper: streams W once through shared memory, in any format.
//
// mma.sync m16n8k16 with W on the left: a warp computes tiles of 16 rows of W by 8 or 16 of x, each as
// one chain of steps over all of `in`. Warp-private multi-stage cp.async pipeline; no CTA-wide
// synchronization in the mainloop. x is in shared memory as a whole, or, where it is too large, a slice
// of it beside W in every stage. With `constant_weight` the pipeline is filled
// before pdl_wait(), while the previous kernel drains. Rows of W are partitioned evenly across CTAs, not
// by tiles: a last tile may be short.
#pragma once

#include "ops/linear/cuda/linear_stream_ring.cuh"

namespace touchstone::linear_layer {

// W in the dtype of x: ldmatrix gives fragments as they are. A stage is a unit.
struct PlainSource {
  static constexpr StepOrder kOrder = StepOrder::split;
  static constexpr int kUnitBytes = 256;
};

// Brings x into shared memory, rows of whole blocks of 32 with zeros after `in`, its steps in the order
// of the source. All threads call it.
template <StepOrder kOrder>
__device__ void stage_x(const StreamParams& p, std::uint8_t* to) {
  constexpr int kBatch = 8;  // steps of a lane that are under way at a time
  const int steps = (p.in + 31) / 32 * 2;
  // Warps share a row where there are more of them than rows.
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int share = max(1, warps / p.rows);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_step = warp % share * 32 + static_cast<int>(threadIdx.x) % 32;
  for (int row = warp / share; row < p.rows; row += warps / share) {
    const auto* const from = reinterpret_cast<const uint4*>(p.x + row * p.x_stride);
    auto* const at = reinterpret_cast<uint4*>(to + row * p.x_pitch);
    for (int first = first_step; first < steps; first += kBatch * 32 * share) {
      uint4 words[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch * 2; ++i) {
        const int piece = (first + i / 2 * 32 * share) * 2 + i % 2;
        words[i / 2][i % 2] = piece * 8 < p.in ? from[piece] : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int step = first + i * 32 * share;
        if (step >= steps) break;
        const uint4 a = words[i][0];
        const uint4 b = words[i][1];
        std::uint32_t ordered[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        reorder_step<kOrder>(ordered);
        at[step * 2] = {ordered[0], ordered[1], ordered[2], ordered[3]};
        at[step * 2 + 1] = {ordered[4], ordered[5], ordered[6], ordered[7]};
      }
    }
  }
  __syncthreads();
}

// The right operand: 8 or 16 rows of x, zeros where there are fewer.
template <int kOctets, bool kXInStages>
class StreamRight {
 public:
  static constexpr bool kInStages = kXInStages;
  using Words = std::uint32_t[kOctets][4];  // of 32 elements: two words a step

  // Lane l gives the address of row l % 8, elements 8 (l / 8) to 8 (l / 8) + 7 of 32. A row that is not
  // there is the same unit of zeros at every k.
  __device__ StreamRight(const StreamParams& p, std::uint32_t x, std::uint32_t zeros) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      const int row = lane % 8 + i * 8;
      const int pitch = kInStages ? p.row_pitch : p.x_pitch;
      begin_[i] = (row < p.rows ? x + static_cast<std::uint32_t>(row * pitch) : zeros) +
                  static_cast<std::uint32_t>(lane / 8 * 16);
      step_[i] = row >= p.rows ? 0 : kInStages ? 1 : kStreamUnit * 2;
    }
  }
  // The unit that lies in a stage, `bytes` behind the first one.
  __device__ __forceinline__ void at_stage(int bytes) {
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      at_[i] = begin_[i] + step_[i] * static_cast<std::uint32_t>(bytes);
    }
  }
  __device__ __forceinline__ void restart() {
#pragma unroll
    for (int i = 0; i < kOctets; ++i) at_[i] = begin_[i];
  }
  __device__ __forceinline__ void next_unit() {
#pragma unroll
    for (int i = 0; i < kOctets; ++i) at_[i] += step_[i];
  }
  // Block `block` of 32 elements of the unit.
  __device__ __forceinline__ void load(int block, Words& b) const {
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      cuda::load_matrices(at_[i] + static_cast<std::uint32_t>(block * 64), b[i]);
    }
  }

 private:
  std::uint32_t begin_[kOctets];
  std::uint32_t at_[kOctets] = {};
  std::uint32_t step_[kOctets];
};

// One warp's chains. A unit is straight code: what it loads stands between products, which wait for one
// another.
template <class T, class Source, int kOctets, int kStages, bool kXInStages>
class StreamWarp {
  using Ring = StreamRing<kStages>;
  using Right = StreamRight<kOctets, kXInStages>;

 public:
  using Sums = float[kOctets][4];

  __device__ __forceinline__ StreamWarp(const StreamParams& p, const std::uint8_t* ring,
                                        Ring& filler, Right& right)
      : p_(p),
        ring_(ring),
        filler_(filler),
        right_(right),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // The sums of the next tile of the ring.
  __device__ __forceinline__ void multiply_tile(Sums& sums) {
    if constexpr (!kXInStages) right_.restart();
    if constexpr (kPlain) {
      multiply_plain(sums);
    } else {
      multiply_blocks(sums);
    }
  }

 private:
  static constexpr bool kPlain = std::is_same_v<Source, PlainSource>;
  static constexpr int kBlocks = kStreamUnit / 32;

  // ---- stages ----

  // Waits until the copies of the next stage to be read are there, with `kMore` later ones under way.
  template <int kMore>
  __device__ __forceinline__ static void wait() {
    cuda::wait_copies<kMore>();
    __syncwarp();
  }
  __device__ __forceinline__ const std::uint8_t* stage(int i) const {
    return ring_ + i * p_.stage_rows * p_.row_pitch;
  }
  __device__ __forceinline__ static int after(int stage) {
    return stage + 1 == kStages ? 0 : stage + 1;
  }

  // ---- products of 32 elements ----

  struct Left {
    std::uint32_t step[2][4];
  };
  __device__ __forceinline__ static void multiply_block(const Left& left,
                                                        const typename Right::Words& x,
                                                        Sums& sums) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < kOctets; ++i) {
        multiply_add<T>(sums[i], left.step[step], x[i][step * 2], x[i][step * 2 + 1]);
      }
    }
  }

  // ---- plain weights ----

  // Lane l names row l % 16, elements 8 (l / 16) to 8 (l / 16) + 7 of a step.
  __device__ __forceinline__ std::uint32_t plain_rows(int i) const {
    return cuda::shared_address(stage(i)) +
           static_cast<std::uint32_t>(lane_ % 16 * p_.row_pitch + lane_ / 16 * 16);
  }

  __device__ __forceinline__ void multiply_plain(Sums& sums) {
    const int units = p_.in / kStreamUnit;
#pragma unroll 1
    for (int unit = 0; unit + 2 <= units; unit += 2) multiply_units<2>(sums);
    if (units % 2 != 0) multiply_units<1>(sums);
    if (p_.in % kStreamUnit != 0) multiply_plain_tail(sums);
  }

  // Straight code: the compiler puts loads and copies where products wait for one another.
  template <int kUnits>
  __device__ __forceinline__ void multiply_units(Sums& sums) {
    wait<kStages - kUnits>();
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const std::uint32_t rows = plain_rows(stage_);
      if constexpr (kXInStages) right_.at_stage(stage_ * p_.stage_rows * p_.row_pitch);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        typename Right::Words x;
        right_.load(kXInStages ? block : unit * kBlocks + block, x);
        Left left;
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          cuda::load_matrices(rows + static_cast<std::uint32_t>(block * 64 + step * 32),
                              left.step[step]);
        }
        multiply_block(left, x, sums);
      }
      stage_ = after(stage_);
    }
    __syncwarp();
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if constexpr (!kXInStages) right_.next_unit();
      filler_.fill_part(0);
      filler_.fill_part(1);
      if constexpr (kXInStages) filler_.template fill_x<kOctets>();
      filler_.advance();
    }
  }

  // A last unit that is not whole, of whole blocks and one of 8, 16 or 24 elements. W past `in`, and x
  // in a stage, is whatever the stage held before: it must not reach a product.
  __device__ __forceinline__ void multiply_plain_tail(Sums& sums) {
    wait<kStages - 1>();
    const std::uint8_t* const rows = stage(stage_);
    if constexpr (kXInStages) right_.at_stage(stage_ * p_.stage_rows * p_.row_pitch);
    const int length = p_.in % kStreamUnit;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (i * 32 >= length) break;
      typename Right::Words x;
      right_.load(i, x);
      if constexpr (kXInStages) {
#pragma unroll
        for (int j = 0; j < kOctets * 4; ++j) {
          if (i * 32 + j % 4 * 8 >= length) x[j / 4][j % 4] = 0;
        }
      }
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t left[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int k = i * 32 + step * 16 + j / 2 * 8;
          left[j] = k < length
                        ? *reinterpret_cast<const std::uint32_t*>(
                              rows + (lane_ / 4 + j % 2 * 8) * p_.row_pitch + k * 2 + lane_ % 4 * 4)
                        : 0;
        }
#pragma unroll
        for (int j = 0; j < kOctets; ++j) {
          multiply_add<T>(sums[j], left, x[j][step * 2], x[j][step * 2 + 1]);
        }
      }
    }
    __syncwarp();
    if constexpr (kXInStages) filler_.template fill_x<kOctets>();
    filler_.fill();
    stage_ = after(stage_);
  }

  // ---- weights in blocks, and fp8 ----

  // Bytes from the unit at element k to the next.
  __device__ __forceinline__ static int unit_step(int k) {
    if (Source::kUnitBytes == 144 || Source::kUnitBytes == 210) {
      return k / kStreamUnit % 2 == 0 ? 0 : Source::kUnitBytes;
    }
    return Source::kUnitBytes;
  }

  __device__ __forceinline__ void multiply_blocks(Sums& sums) {
    int offset = 0;  // bytes from the start of a row
#pragma unroll 1
    for (int begin = 0; begin < p_.in; begin += p_.slice) {
      wait<kStages - 1>();
      const std::uint8_t* row = stage(stage_) + (offset & 15) + lane_ / 4 * p_.row_pitch;
      const int length = min(p_.slice, p_.in - begin);
      int k = 0;
      for (; k + kStreamUnit <= length; k += kStreamUnit) {
        multiply_unit(row, k / kStreamUnit % 2, sums);
        right_.next_unit();
        row += unit_step(k);
      }
      if (k < length) multiply_tail(row, k / kStreamUnit % 2, length - k, sums);
      __syncwarp();
      filler_.fill();
      offset += p_.slice_bytes;
      stage_ = after(stage_);
    }
  }

  template <class Raw>
  __device__ __forceinline__ static Left decode(const Raw& low, const Raw& high, int i) {
    const Fragment a = Source::decode(low, i);
    const Fragment b = Source::decode(high, i);
    return {{{a.step[0][0], b.step[0][0], a.step[0][1], b.step[0][1]},
             {a.step[1][0], b.step[1][0], a.step[1][1], b.step[1][1]}}};
  }
  __device__ __forceinline__ void multiply_unit(const std::uint8_t* row, int half,
                                                Sums& sums) const {
    const typename Source::Raw low = Source::load(row, half, lane_ % 4);
    const typename Source::Raw high = Source::load(row + 8 * p_.row_pitch, half, lane_ % 4);
    typename Right::Words x[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) right_.load(i, x[i]);
    Left left[kBlocks];
    left[0] = decode(low, high, 0);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (i + 1 < kBlocks) left[i + 1] = decode(low, high, i + 1);
      multiply_block(left[i], x[i], sums);
    }
  }

  // The blocks of a last unit that is not whole, and of fp8 a last one of 8, 16 or 24 elements. W past
  // `in` is whatever the stage held before: it must not reach a product.
  __device__ __forceinline__ void multiply_tail(const std::uint8_t* row, int half, int length,
                                                Sums& sums) const {
    const typename Source::Raw low = Source::load(row, half, lane_ % 4);
    const typename Source::Raw high = Source::load(row + 8 * p_.row_pitch, half, lane_ % 4);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (i * 32 >= length) break;
      typename Right::Words x;
      right_.load(i, x);
      Left left = decode(low, high, i);
      // Elements of a lane are four neighbors of a step.
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const bool there = i * 32 + step * 16 + lane_ % 4 * 4 < length;
#pragma unroll
        for (std::uint32_t& word : left.step[step]) word = there ? word : 0;
      }
      multiply_block(left, x, sums);
    }
  }

  const StreamParams& p_;
  const std::uint8_t* ring_;
  Ring& filler_;
  Right& right_;
  int lane_;
  int stage_ = 0;
};

// Sum i of octet j of a lane: row lane / 4 + i / 2 * 8 of the tile of W, row j * 8 + lane % 4 * 2 + i % 2
// of x. `first` is the tile's first row of W, `end` where the CTA's rows end.
template <class T, int kOctets>
__device__ void store_stream_tile(const StreamParams& p, std::int64_t first, std::int64_t end,
                                  const float (&sums)[2][kOctets][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kOctets; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = j * 8 + lane % 4 * 2 + i % 2;
      const std::int64_t column = first + lane / 4 + i / 2 * 8;
      if (row >= p.rows || column >= end) continue;
      if (p.plain_sink) {
        static_cast<T*>(p.sink.y)[row * p.sink.stride + column] = cuda::narrow<T>(sums[0][j][i]);
      } else {
        store(p.sink, row, column, finish(p.sink, row, column, sums[0][j][i], sums[1][j][i]));
      }
    }
  }
}

template <class T, class Source, int kOctets, int kStages, bool kXInStages>
__global__ __launch_bounds__(kStreamMaxWarps * 32,
                             2) void linear_stream(const __grid_constant__ StreamParams p) {
  if constexpr (cuda::kHopper) {
    extern __shared__ __align__(128) std::uint8_t memory[];
    __shared__ uint4 zeros[kStreamZeros / 16];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int ring_bytes = kStages * p.stage_rows * p.row_pitch;
    std::uint8_t* const ring = memory + warp * ring_bytes;
    std::uint8_t* const x = memory + p.warps * ring_bytes;
    const StreamRange range(p);
    const bool works = warp < p.warps && warp < range.tiles();
    if (threadIdx.x < kStreamZeros / 16) zeros[threadIdx.x] = {};
    cuda::pdl_launch_dependents();
    StreamRing<kStages> filler(p, ring, range, warp);
    if (!p.ahead) {
      if (works) filler.prefetch(kStages * p.slice_bytes);
      cuda::pdl_wait();
    }
    if (works) {
      for (int i = 0; i < kStages; ++i) filler.fill();
    }
    if (p.ahead) cuda::pdl_wait();
    if constexpr (kXInStages) {
      if (works) filler.template begin_x<kOctets>();
      __syncthreads();
    } else {
      stage_x<Source::kOrder>(p, x);
    }
    if (!works) return;
    const std::uint8_t* const first_x = kXInStages ? ring + kStreamRows * p.row_pitch : x;
    StreamRight<kOctets, kXInStages> right(p, cuda::shared_address(first_x),
                                           cuda::shared_address(zeros));
    StreamWarp<T, Source, kOctets, kStages, kXInStages> work(p, ring, filler, right);
    for (int tile = warp; tile < range.tiles(); tile += p.warps) {
      float sums[2][kOctets][4] = {};
#pragma unroll 1
      for (int half = 0; half < stream_halves(p); ++half) {
        float chain[kOctets][4] = {};
        work.multiply_tile(chain);
#pragma unroll
        for (int i = 0; i < kOctets * 4; ++i) {
          sums[0][i / 4][i % 4] = half == 0 ? chain[i / 4][i % 4] : sums[0][i / 4][i % 4];
          sums[1][i / 4][i % 4] = half == 0 ? sums[1][i / 4][i % 4] : chain[i / 4][i % 4];
        }
      }
      store_stream_tile<T, kOctets>(p, range.begin + tile * kStreamRows, range.end, sums);
    }
  }
}

// Launches the kernel of the format; false where there is none. linear_stream*.cu.
bool launch_stream_plain(Context& context, DType dtype, int stages, const cuda::LaunchShape& shape,
                         const StreamParams& p);
bool launch_stream_blocks(Context& context, DType dtype, const cuda::LaunchShape& shape,
                          const StreamParams& p);

// Stages of a ring: of weights in blocks, and what plain weights have to choose from.
inline constexpr int kStreamBlockStages = 5;
inline constexpr int kStreamPlainStages[] = {19, 15, 11, 5};
inline constexpr int kStreamXStages[] = {11, 5};  // with slices of x

template <class T, class Source, int kStages = kStreamBlockStages, bool kXInStages = false>
void launch_stream(Context& context, const cuda::LaunchShape& shape, const StreamParams& p) {
  const auto kernel = p.rows > 8 ? linear_stream<T, Source, 2, kStages, kXInStages>
                                 : linear_stream<T, Source, 1, kStages, kXInStages>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "linear stream", kernel, shape, p);
}

}  // namespace touchstone::linear_layer
