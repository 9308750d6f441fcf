// Products of any number of rows on Hopper's tensor cores: C[m, n] = sum over k of A(m, k) B(n, k).
//
// A CTA computes 64 or 128 rows by 128 columns of C: a producer warp keeps a pipeline of tiles of 64 k
// filled by the copy engine, one or two consumer warpgroups of 64 rows each multiply them. Operands
// may be stored with k along their rows or along their columns. With few tiles the segments of a sum
// are the CTAs of a cluster, which add their sums in order through distributed shared memory;
// otherwise a CTA goes through all segments and adds them in registers. The bits are the same.
#pragma once

#include "cuda/tensor_map.h"
#include "cuda/wgmma.cuh"
#include "ops/linear/cuda/linear_cuda.cuh"

// Compiled for other chips the kernel is empty, and what only it uses is unused.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177
#endif

namespace touchstone::linear_layer {

inline constexpr int kTileN = 128;
inline constexpr int kTileK = 64;
inline constexpr int kGroupRows = 64;  // of a consumer warpgroup
inline constexpr int kSliceBytes = kTileK * kTileK * 2;

struct ProductParams {
  CUtensorMap a;
  CUtensorMap b;
  std::int64_t m = 0;
  std::int64_t depth = 0;
  std::int64_t segment = 0;
  std::int64_t row_tiles = 0;
  std::int64_t column_tiles = 0;
  int segments = 1;          // CTAs of a cluster, or 1
  bool wide_stores = false;  // of 16 bytes
  bool plain = false;        // the sum is the output
  Sink sink;
};

template <int kGroups>
struct ProductShape {
  static constexpr int kTileM = kGroups * kGroupRows;
  static constexpr int kStages = kGroups == 1 ? 4 : 6;
  static constexpr int kThreads = kGroups * cuda::kWarpgroup + 32;
  static constexpr int kStageBytes = (kTileM + kTileN) * kTileK * 2;
  static constexpr int kSumStride = kTileN + 4;  // floats from row to row
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
  static_assert(kTileM * kSumStride * 4 <= kStages * kStageBytes);
};

// Tiles that run side by side share rows of A and of B in L2: blocks of eight row tiles.
__device__ inline void tile_of(const ProductParams& p, std::int64_t index, std::int64_t& row,
                               std::int64_t& column) {
  constexpr std::int64_t kGroup = 8;
  const std::int64_t group = index / (kGroup * p.column_tiles);
  const std::int64_t rows = min(kGroup, p.row_tiles - group * kGroup);
  const std::int64_t within = index - group * kGroup * p.column_tiles;
  row = group * kGroup + within % rows;
  column = within / rows;
}

template <class T, bool kTransA, bool kTransB, int kGroups, bool kCluster>
class ProductBlock {
  using Shape = ProductShape<kGroups>;

 public:
  __device__ ProductBlock(const ProductParams& p, std::byte* tiles, std::uint64_t* full,
                          std::uint64_t* empty)
      : p_(p), tiles_(tiles), full_(full), empty_(empty) {
    const std::int64_t index = blockIdx.x / static_cast<unsigned>(p.segments);
    tile_of(p, index, row_tile_, column_tile_);
    begin_ = kCluster ? cuda::cluster_rank() * p.segment : 0;
    end_ = kCluster ? min(p.depth, begin_ + p.segment) : p.depth;
  }

  __device__ void produce() {
    const int steps = static_cast<int>((end_ - begin_ + kTileK - 1) / kTileK);
    for (int i = 0; i < steps; ++i) {
      const int stage = i % Shape::kStages;
      if (i >= Shape::kStages) {
        cuda::barrier_wait(&empty_[stage], (i / Shape::kStages - 1) & 1);
      }
      cuda::barrier_expect(&full_[stage], Shape::kStageBytes);
      const int k = static_cast<int>(begin_) + i * kTileK;
      std::byte* const a = tiles_ + stage * Shape::kStageBytes;
      load<kTransA>(a, &p_.a, k, static_cast<int>(row_tile_) * Shape::kTileM, Shape::kTileM,
                    &full_[stage]);
      std::byte* const b = a + Shape::kTileM * kTileK * 2;
      if (p_.sink.gate == LinearGate::none) {
        load<kTransB>(b, &p_.b, k, static_cast<int>(column_tile_) * kTileN, kTileN, &full_[stage]);
      } else {
        // Gate rows, then the up rows that go with them.
        const int first = static_cast<int>(column_tile_) * kTileN / 2;
        load<false>(b, &p_.b, k, first, kTileN / 2, &full_[stage]);
        load<false>(b + kSliceBytes, &p_.b, k, first + static_cast<int>(p_.sink.columns),
                    kTileN / 2, &full_[stage]);
      }
    }
  }

  __device__ void consume(int group) {
    float totals[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) totals[i] = 0;
    int stage = 0;
    std::uint32_t parity = 0;
    for (std::int64_t begin = begin_; begin < end_; begin += p_.segment) {
      const std::int64_t length = min(p_.segment, end_ - begin);
      const int steps = static_cast<int>((length + kTileK - 1) / kTileK);
      float sums[64];
      for (int i = 0; i < steps; ++i) {
        cuda::barrier_wait(&full_[stage], parity);
        cuda::wgmma_hold(sums);
        cuda::wgmma_begin();
        multiply(sums, group, stage, i == 0);
        cuda::wgmma_commit();
        // The products of the stage before are done, those of this one under way.
        cuda::wgmma_wait<1>();
        if (i > 0) release(stage == 0 ? Shape::kStages - 1 : stage - 1);
        if (++stage == Shape::kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
      cuda::wgmma_wait<0>();
      cuda::wgmma_hold(sums);
      release(stage == 0 ? Shape::kStages - 1 : stage - 1);
#pragma unroll
      for (int j = 0; j < 64; ++j) totals[j] = __fadd_rn(totals[j], sums[j]);
    }
    // Every consumer is done with the tiles: their memory now holds the sums.
    cuda::named_barrier(1, kGroups * cuda::kWarpgroup);
    put(totals, group);
  }

  // After all sums of the CTA, or of the cluster, are in shared memory.
  __device__ void finish_tile() {
    const int width = p_.sink.gate == LinearGate::none ? kTileN : kTileN / 2;
    const int pieces = Shape::kTileM * width / 8;
    const int parts = kCluster ? p_.segments : 1;
    const int rank = kCluster ? static_cast<int>(cuda::cluster_rank()) : 0;
    const int threads = kGroups * cuda::kWarpgroup;
    for (int i = static_cast<int>(threadIdx.x) + rank * threads; i < pieces; i += parts * threads) {
      const int row = i / (width / 8);
      const int column = i % (width / 8) * 8;
      const std::int64_t m = row_tile_ * Shape::kTileM + row;
      const std::int64_t n = column_tile_ * width + column;
      if (m >= p_.m || n >= p_.sink.columns) continue;
      float v[8];
      float up[8] = {};
      gather(row, column, v);
      if (width != kTileN) gather(row, column + width, up);
      store_eight(m, n, v, up);
    }
  }

 private:
  // kRows of an operand, 64 k from `k` on: a tile of one slice, or, with k along rows, a slice for
  // every 64 of them.
  template <bool kTrans>
  __device__ static void load(std::byte* to, const CUtensorMap* map, int k, int first, int rows,
                              std::uint64_t* barrier) {
    for (int i = 0; i < rows; i += kTileK) {
      cuda::load_slice(to + i / kTileK * kSliceBytes, map, kTrans ? first + i : k,
                       kTrans ? k : first + i, 0, 0, barrier);
    }
  }

  // The stage may be filled again.
  __device__ void release(int stage) const {
    if (threadIdx.x % cuda::kWarpgroup == 0) cuda::barrier_arrive(&empty_[stage]);
  }

  __device__ void multiply(float (&sums)[64], int group, int stage, bool fresh) const {
    const std::uint32_t a = cuda::shared_address(tiles_ + stage * Shape::kStageBytes);
    const std::uint32_t b = a + Shape::kTileM * kTileK * 2;
    const std::uint64_t left = cuda::tile_descriptor(a + group * kSliceBytes, kTileK);
    const std::uint64_t right = cuda::tile_descriptor(b, kTileK);
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
      // K along columns: the slices of B follow each other as rows of one slice would.
      cuda::wgmma_either<T, kTransA, kTransB>(
          sums, kTransA ? cuda::inner_rows(left, step) : cuda::advanced(left, step * 32),
          kTransB ? cuda::inner_rows(right, step) : cuda::advanced(right, step * 32),
          fresh && step == 0 ? 0 : 1);
    }
  }

  __device__ float* sum_row(int row) const {
    return reinterpret_cast<float*>(tiles_) + row * Shape::kSumStride;
  }
  __device__ void put(const float (&totals)[64], int group) const {
    const int thread = static_cast<int>(threadIdx.x) % cuda::kWarpgroup;
    const int lane = thread % 32;
    const int row = group * kGroupRows + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(sum_row(row) + column) = {totals[4 * j], totals[4 * j + 1]};
      *reinterpret_cast<float2*>(sum_row(row + 8) + column) = {totals[4 * j + 2],
                                                               totals[4 * j + 3]};
    }
  }

  // Eight sums of a row; those of a cluster added in the order of segments.
  __device__ void gather(int row, int column, float (&v)[8]) const {
    const float* const local = sum_row(row) + column;
    if constexpr (!kCluster) {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = local[i];
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = 0;
      for (int s = 0; s < p_.segments; ++s) {
        const std::uint32_t at = cuda::cluster_address(local, static_cast<std::uint32_t>(s));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 x = load_remote(at + half * 16);
          v[4 * half] = __fadd_rn(v[4 * half], x.x);
          v[4 * half + 1] = __fadd_rn(v[4 * half + 1], x.y);
          v[4 * half + 2] = __fadd_rn(v[4 * half + 2], x.z);
          v[4 * half + 3] = __fadd_rn(v[4 * half + 3], x.w);
        }
      }
    }
  }
  __device__ static float4 load_remote(std::uint32_t address) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
  }

  __device__ void store_eight(std::int64_t m, std::int64_t n, float (&v)[8],
                              const float (&up)[8]) const {
    const bool whole = n + 8 <= p_.sink.columns;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!p_.plain && n + i < p_.sink.columns) v[i] = finish(p_.sink, m, n + i, v[i], up[i]);
    }
    if (whole && p_.wide_stores) {
      T* const to = static_cast<T*>(p_.sink.y) + m * p_.sink.stride + n;
      *reinterpret_cast<uint4*>(to) = uint4{packed<T>(v[0], v[1]), packed<T>(v[2], v[3]),
                                            packed<T>(v[4], v[5]), packed<T>(v[6], v[7])};
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (n + i < p_.sink.columns) store(p_.sink, m, n + i, v[i]);
    }
  }

  const ProductParams& p_;
  std::byte* tiles_;
  std::uint64_t* full_;
  std::uint64_t* empty_;
  std::int64_t row_tile_ = 0;
  std::int64_t column_tile_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

template <class T, bool kTransA, bool kTransB, int kGroups, bool kCluster>
__global__ __launch_bounds__(ProductShape<kGroups>::kThreads,
                             kGroups == 1
                                 ? 2
                                 : 1) void linear_product(const __grid_constant__ ProductParams p) {
  if constexpr (cuda::kWgmma) {
    using Shape = ProductShape<kGroups>;
    extern __shared__ std::byte memory[];
    __shared__ std::uint64_t full[Shape::kStages];
    __shared__ std::uint64_t empty[Shape::kStages];
    const std::uint32_t misaligned = cuda::shared_address(memory) % 1024;
    std::byte* const tiles = memory + (misaligned == 0 ? 0 : 1024 - misaligned);
    const int group = static_cast<int>(threadIdx.x) / cuda::kWarpgroup;
    if (threadIdx.x == 0) {
      for (int i = 0; i < Shape::kStages; ++i) {
        cuda::barrier_init(&full[i], 1);
        cuda::barrier_init(&empty[i], kGroups);
      }
      cuda::fence_barrier_init();
    }
    __syncthreads();
    ProductBlock<T, kTransA, kTransB, kGroups, kCluster> block(p, tiles, full, empty);
    cuda::pdl_launch_dependents();
    if (group == kGroups) {
      if (threadIdx.x % 32 == 0) {
        cuda::pdl_wait();
        block.produce();
      }
    } else {
      cuda::pdl_wait();
      block.consume(group);
    }
    if constexpr (kCluster) {
      __syncwarp();
      cuda::cluster_barrier();
    } else if (group < kGroups) {
      cuda::named_barrier(1, kGroups * cuda::kWarpgroup);
    }
    if (group < kGroups) block.finish_tile();
    if constexpr (kCluster) {
      __syncwarp();
      cuda::cluster_barrier();
    }
  }
}

}  // namespace touchstone::linear_layer
