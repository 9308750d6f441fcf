// What a CTA of linear_stream.cuh reads, and the rings of shared memory that its warps read it through.
#pragma once

#include "cuda/hopper.cuh"
#include "ops/linear/cuda/linear_source.cuh"

// Compiled for older chips the kernel is empty, and what only it uses is unused.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

namespace touchstone::linear_layer {

inline constexpr int kStreamRows = 16;  // of W in a tile
inline constexpr int kStreamMaxWarps = 8;
inline constexpr int kStreamMinWarps = 4;  // of a CTA: x is put in order by as many
inline constexpr int kStreamUnit = 128;    // elements of a row that are multiplied at a time
inline constexpr int kStreamZeros = 512;   // bytes, of two units: a row of x that is not there
inline constexpr int kStreamSlack = 512;   // bytes after x: a last unit is loaded as a whole

struct StreamParams {
  StoredWeight weight;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  int cta_rows = 0;  // of W that a CTA multiplies, with a gate of each half
  int rows = 0;
  int in = 0;
  int slice = 0;  // elements of a row in a stage, a multiple of the unit
  int slice_bytes = 0;
  int row_bytes = 0;        // of a row of W, without what lies between rows
  int row_pitch = 0;        // bytes of a stage from row to row
  int stage_rows = 0;       // of W, and of x where its slices are in the stages
  int warps = 0;            // that have a ring
  int x_pitch = 0;          // bytes of shared memory from row to row of x
  bool whole = false;       // a stage is a tile as it lies in memory
  bool ahead = false;       // W may be read before the kernels before this one have ended
  bool plain_sink = false;  // the sum, rounded, is the output
  Sink sink;
};

__device__ inline int stream_halves(const StreamParams& p) {
  return p.sink.gate == LinearGate::none ? 1 : 2;
}

// The rows of y's columns that a CTA computes, in tiles.
struct StreamRange {
  std::int64_t begin;
  std::int64_t end;

  explicit __device__ StreamRange(const StreamParams& p)
      : begin(std::int64_t{blockIdx.x} * p.cta_rows),
        end(min(begin + p.cta_rows, p.sink.columns)) {}
  __device__ int tiles() const {
    return static_cast<int>((end - begin + kStreamRows - 1) / kStreamRows);
  }
};

// Predicated 16-byte cp.async, branch-free: it is issued between MMAs.
__device__ __forceinline__ void copy_async_16_where(std::uint32_t shared, const void* global,
                                                    bool there) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.b32 there, %2, 0;\n"
      "@there cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}\n" ::"r"(shared),
      "l"(global), "r"(static_cast<int>(there))
      : "memory");
}

// A warp's ring and the order in which its stages are filled: tile after tile, with a gate the gate
// rows and then the up rows of each, slice after slice of `in`. Every stage is one group of copies, an
// empty one when nothing is left to read.
template <int kStages>
class StreamRing {
 public:
  __device__ __forceinline__ StreamRing(const StreamParams& p, std::uint8_t* memory,
                                        const StreamRange& range, int first_tile)
      : p_(p),
        range_(range),
        tiles_(range.tiles()),
        memory_(cuda::shared_address(memory)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        column_(lane_ % 8 * 16),
        to_(memory_ + static_cast<std::uint32_t>(lane_ / 8 * p.row_pitch + column_)),
        x_(reinterpret_cast<const std::uint8_t*>(p.x + lane_ / 8 * p.x_stride) + column_),
        tile_(first_tile) {
    set_rows();
  }

  // Starts to fill the next stage. The whole warp calls it.
  __device__ __forceinline__ void fill() {
    if (tile_ < tiles_) {
      const int begin = p_.whole ? 0 : offset_ & ~15;
      const int bytes = p_.whole ? kStreamRows * p_.row_bytes
                                 : min(offset_ + p_.slice_bytes, p_.row_bytes) - begin;
      if (p_.whole) {
        const std::uint32_t to = memory_ + static_cast<std::uint32_t>(stage_ * stage_bytes());
        for (int byte = lane_ * 16; byte < bytes; byte += 512) {
          cuda::copy_async_16(to + static_cast<std::uint32_t>(byte), row_[0] + byte);
        }
      } else {
        // Eight lanes copy 128 bytes of a row at a time.
        for (int batch = 0; batch < bytes; batch += 128) {
          copy_batch(begin + batch, batch, column_ + batch < bytes);
        }
      }
    }
    advance();
  }

  // The same in two halves of a stage of 256 bytes a row, as straight code. Then advance().
  __device__ __forceinline__ void fill_part(int part) const {
    copy_batch(offset_ + part * 128, part * 128,
               tile_ < tiles_ && offset_ + part * 128 + column_ < p_.row_bytes);
  }

  // The slices of x of all stages, which are filled but for them; waits for all copies.
  template <int kOctets>
  __device__ void begin_x() const {
    int offset = 0;
    for (int stage = 0; stage < kStages; ++stage) {
      fill_x<kOctets>(stage, offset);
      offset = offset + p_.slice_bytes < p_.row_bytes ? offset + p_.slice_bytes : 0;
    }
    cuda::commit_copies();
    cuda::wait_copies<0>();
    __syncwarp();
  }
  // That of the next stage.
  template <int kOctets>
  __device__ __forceinline__ void fill_x() const {
    fill_x<kOctets>(stage_, offset_);
  }

  __device__ __forceinline__ void advance() {
    cuda::commit_copies();
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    offset_ += p_.slice_bytes;
    if (offset_ >= p_.row_bytes) next_rows();
  }

  // L2 prefetch of the first tile's rows.
  __device__ __forceinline__ void prefetch(int bytes) const {
    if (p_.whole || tile_ >= tiles_ || lane_ >= kStreamRows) return;
    const int length = min(bytes, p_.row_bytes) & ~15;
    cuda::bulk_prefetch(row(lane_), static_cast<std::uint32_t>(length));
  }

 private:
  __device__ __forceinline__ int stage_bytes() const { return p_.stage_rows * p_.row_pitch; }

  // A row of x is as long as one of W.
  template <int kOctets>
  __device__ __forceinline__ void fill_x(int stage, int offset) const {
    const std::uint32_t to =
        to_ + static_cast<std::uint32_t>(stage * stage_bytes() + kStreamRows * p_.row_pitch);
#pragma unroll
    for (int i = 0; i < kOctets * 2; ++i) {
      const std::uint8_t* const from = x_ + i * 4 * p_.x_stride * 2 + offset;
#pragma unroll
      for (int part = 0; part < 256; part += 128) {
        copy_async_16_where(to + static_cast<std::uint32_t>(i * 4 * p_.row_pitch + part),
                            from + part,
                            lane_ / 8 + i * 4 < p_.rows && offset + part + column_ < p_.row_bytes);
      }
    }
  }

  // 128 bytes from byte `from` of each row on, to byte `to` of the stage's rows.
  __device__ __forceinline__ void copy_batch(int from, int to, bool there) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_async_16_where(
          to_ + static_cast<std::uint32_t>(stage_ * stage_bytes() + i * 4 * p_.row_pitch + to),
          row_[i] + from, there);
    }
  }

  __device__ __forceinline__ void next_rows() {
    offset_ = 0;
    if (++half_ == stream_halves(p_)) {
      half_ = 0;
      tile_ += p_.warps;
    }
    set_rows();
  }
  // The four rows of which this lane copies an eighth, four apart; past the last one, the last one again.
  __device__ __forceinline__ void set_rows() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      row_[i] = row(p_.whole ? 0 : lane_ / 8 + i * 4) + (p_.whole ? 0 : column_);
    }
  }
  __device__ __forceinline__ const std::uint8_t* row(int of_tile) const {
    const std::int64_t at = min(range_.end - 1, range_.begin + tile_ * kStreamRows + of_tile);
    return p_.weight.data + (at + half_ * p_.sink.columns) * p_.weight.row_bytes;
  }

  const StreamParams& p_;
  StreamRange range_;
  int tiles_;
  std::uint32_t memory_;
  int lane_;
  int column_;        // byte of a batch that this lane copies
  std::uint32_t to_;  // where it goes, in the first stage
  const std::uint8_t* x_;
  int tile_;
  int half_ = 0;
  int offset_ = 0;  // of the slice in its row
  int stage_ = 0;
  const std::uint8_t* row_[4] = {};
};

}  // namespace touchstone::linear_layer
