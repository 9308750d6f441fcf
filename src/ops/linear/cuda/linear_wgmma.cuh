// Products of any number of rows on Hopper's tensor cores: C[m, n] = sum over k of A(m, k) B(n, k).
//
// ProductMainloop is a component: a producer warp keeps a ring of tiles of 64 k filled by the copy
// engine, one or two consumer warpgroups of 64 rows each multiply them, every sum one chain of steps of
// 16 over all of k. Operands may be stored with k along their rows or along their columns. The kernel
// below is persistent: while consumers store a tile, the ring fills for the next.
#pragma once

#include "cuda/tensor_map.h"
#include "cuda/wgmma_either.cuh"
#include "ops/linear/cuda/linear_cuda.cuh"

// Compiled for other chips the kernel is empty, and what only it uses is unused.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177
#endif

namespace touchstone::linear_layer {

inline constexpr int kTileK = 64;
inline constexpr int kGroupRows = 64;  // of a consumer warpgroup
inline constexpr int kSliceBytes = kTileK * kTileK * 2;

// A stage holds kGroups * 64 rows of A and kN rows of B. The ring takes all of shared memory: it takes
// some 2 us for a tile to arrive, and what is under way by then bounds the speed.
template <int kGroups, int kN>
struct ProductShape {
  static constexpr int kTileM = kGroups * kGroupRows;
  static constexpr int kTileN = kN;
  // Two groups take the producer's registers: it is a whole warpgroup for that.
  static constexpr int kThreads =
      kGroups * cuda::kWarpgroup + (kGroups == 1 ? 32 : cuda::kWarpgroup);
  static constexpr int kStageBytes = (kTileM + kN) * kTileK * 2;
  static constexpr int kStages = 200 * 1024 / kStageBytes;
  // Of an epilogue: 16 rows by 32 columns of f32 a warp.
  static constexpr int kChunkStride = 36;
  static constexpr int kChunkBytes = 16 * kChunkStride * 4;
  static constexpr int kSharedBytes = kStages * kStageBytes + kGroups * 4 * kChunkBytes + 1024;
};

template <class T, bool kTransA, bool kTransB, int kGroups, int kN>
class ProductMainloop {
  using Shape = ProductShape<kGroups, kN>;

 public:
  // `tiles` begins at a multiple of 1024 bytes; `full` and `empty` have kStages barriers, of 1 and of
  // kGroups arrivals.
  __device__ ProductMainloop(std::byte* tiles, std::uint64_t* full, std::uint64_t* empty)
      : tiles_(tiles), full_(full), empty_(empty) {}

  // ---- producer: one thread ----

  // Waits until the stage is free. A stage is then filled by load_a and load_b.
  __device__ void begin_stage() {
    cuda::barrier_wait(&empty_[stage_], parity_ ^ 1);
    expect_stage();
  }
  // The same in the first round, when every stage is free.
  __device__ void expect_stage() { cuda::barrier_expect(&full_[stage_], Shape::kStageBytes); }
  __device__ void load_a(const CUtensorMap* map, int k, int row) {
    load<kTransA>(tile_a(), map, k, row, Shape::kTileM);
  }
  // `rows` rows of B from `row` on become rows [at, at + rows) of the tile; the map has boxes of as many
  // rows, or, with k along rows, of 64.
  __device__ void load_b(const CUtensorMap* map, int k, int row, int at, int rows) {
    load<kTransB>(tile_b() + at * kTileK * 2, map, k, row, rows);
  }

  // ---- consumers: all threads of `group` ----

  // The sums of one tile, over `steps` stages. Sum 4 j + i of a lane: row lane / 4 + i / 2 * 8 of its
  // warp's 16, column 8 j + lane % 4 * 2 + i % 2.
  __device__ void multiply(float (&sums)[kN / 2], int steps, int group) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    for (int i = 0; i < steps; ++i) {
      cuda::barrier_wait(&full_[stage_], parity_);
      cuda::wgmma_hold(sums);
      cuda::wgmma_begin();
      multiply_stage(sums, group);
      cuda::wgmma_commit();
      // The products of the stage before are done, those of this one under way.
      cuda::wgmma_wait<1>();
      if (i > 0) release(stage_ == 0 ? Shape::kStages - 1 : stage_ - 1);
      next_stage();
    }
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(sums);
    release(stage_ == 0 ? Shape::kStages - 1 : stage_ - 1);
  }

  __device__ void next_stage() {
    if (++stage_ == Shape::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }
  // Back to the first stage of the first round.
  __device__ void restart() {
    stage_ = 0;
    parity_ = 0;
  }

 private:
  __device__ std::byte* tile_a() const { return tiles_ + stage_ * Shape::kStageBytes; }
  __device__ std::byte* tile_b() const { return tile_a() + Shape::kTileM * kTileK * 2; }

  // Rows of an operand, 64 k from `k` on: one box, or, with k along rows, a slice for every 64 of them.
  template <bool kTrans>
  __device__ void load(std::byte* to, const CUtensorMap* map, int k, int first, int rows) {
    if constexpr (!kTrans) {
      cuda::load_slice(to, map, k, first, 0, 0, &full_[stage_]);
    } else {
      for (int i = 0; i < rows; i += kTileK) {
        cuda::load_slice(to + i / kTileK * kSliceBytes, map, first + i, k, 0, 0, &full_[stage_]);
      }
    }
  }

  // The stage may be filled again.
  __device__ void release(int stage) const {
    if (threadIdx.x % cuda::kWarpgroup == 0) cuda::barrier_arrive(&empty_[stage]);
  }

  __device__ void multiply_stage(float (&sums)[kN / 2], int group) const {
    const std::uint64_t left = cuda::tile_descriptor(
        cuda::shared_address(tile_a()) + static_cast<std::uint32_t>(group * kSliceBytes), kTileK);
    const std::uint64_t right = cuda::tile_descriptor(cuda::shared_address(tile_b()), kTileK);
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
      // K along columns: the slices of B follow each other as rows of one slice would.
      cuda::wgmma_either<T, kTransA, kTransB>(
          sums, kTransA ? cuda::inner_rows(left, step) : cuda::advanced(left, step * 32),
          kTransB ? cuda::inner_rows(right, step) : cuda::advanced(right, step * 32), 1);
    }
  }

  std::byte* tiles_;
  std::uint64_t* full_;
  std::uint64_t* empty_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

// ---- the kernel of linear -----------------------------------------------------------------------

enum class ProductStores : std::uint8_t {
  any,     // element by element, through the epilogue
  octets,  // the sum is the output: 16 bytes of T at a time
  pairs,   // the sum is the output: two f32 at a time
};

struct ProductParams {
  CUtensorMap a;
  CUtensorMap b;
  std::int64_t m = 0;
  std::int64_t depth = 0;
  std::int64_t row_tiles = 0;
  std::int64_t column_tiles = 0;
  ProductStores stores = ProductStores::any;
  bool ahead = false;  // B may be read before the kernels before this one have ended
  Sink sink;
};

// The tiles of a CTA, one after the other. Tiles that run side by side share rows of A and of B in L2:
// blocks of eight row tiles.
class ProductTiles {
 public:
  std::int64_t row = 0;
  std::int64_t column = 0;

  explicit __device__ ProductTiles(const ProductParams& p) : p_(p), index_(blockIdx.x) { place(); }
  __device__ bool valid() const { return index_ < p_.row_tiles * p_.column_tiles; }
  __device__ void next() {
    index_ += gridDim.x;
    place();
  }

 private:
  __device__ void place() {
    if (!valid()) return;
    constexpr std::int64_t kGroup = 8;
    const std::int64_t group = index_ / (kGroup * p_.column_tiles);
    const std::int64_t rows = min(kGroup, p_.row_tiles - group * kGroup);
    const std::int64_t within = index_ - group * kGroup * p_.column_tiles;
    row = group * kGroup + within % rows;
    column = within / rows;
  }

  const ProductParams& p_;
  std::int64_t index_;
};

// The 4 by 4 words of four lanes, transposed: lane q gets word q of each, in their order.
__device__ inline void transpose_quad(std::uint32_t (&w)[4]) {
  const bool odd = threadIdx.x % 2 == 1;
  const bool upper = threadIdx.x / 2 % 2 == 1;
  const auto exchange = [](std::uint32_t& low, std::uint32_t& high, bool keeps_high, int mask) {
    const std::uint32_t other = __shfl_xor_sync(~0U, keeps_high ? low : high, mask);
    (keeps_high ? low : high) = other;
  };
  exchange(w[0], w[1], odd, 1);
  exchange(w[2], w[3], odd, 1);
  exchange(w[0], w[2], upper, 2);
  exchange(w[1], w[3], upper, 2);
}

// What a warp does with its 16 rows of a tile, from `row` on; columns of C from `column` on.
template <class T, int kN>
class ProductEpilogue {
 public:
  __device__ ProductEpilogue(const ProductParams& p, float* chunk, std::int64_t row,
                             std::int64_t column)
      : p_(p),
        chunk_(chunk),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(row),
        column_(column) {}

  __device__ void store_tile(const float (&sums)[kN / 2]) const {
    if (p_.stores == ProductStores::octets) {
      store_octets(sums);
    } else if (p_.stores == ProductStores::pairs) {
      store_pairs(sums);
    } else {
      store_chunks(sums);
    }
  }

 private:
  __device__ void store_octets(const float (&sums)[kN / 2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t m = row_ + lane_ / 4 + half * 8;
#pragma unroll
      for (int first = 0; first < kN / 8; first += 4) {
        std::uint32_t words[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (first + i < kN / 8) {
            const int at = (first + i) * 4 + half * 2;
            words[i] = packed<T>(sums[at], sums[at + 1]);
          }
        }
        transpose_quad(words);
        const int octet = first + lane_ % 4;
        const std::int64_t n = column_ + octet * 8;
        if (m < p_.m && octet < kN / 8 && n < p_.sink.columns) {
          *reinterpret_cast<uint4*>(static_cast<T*>(p_.sink.y) + m * p_.sink.stride + n) = {
              words[0], words[1], words[2], words[3]};
        }
      }
    }
  }

  __device__ void store_pairs(const float (&sums)[kN / 2]) const {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const std::int64_t m = row_ + lane_ / 4 + i % 2 * 8;
      const std::int64_t n = column_ + i / 2 * 8 + lane_ % 4 * 2;
      if (m < p_.m && n < p_.sink.columns) {
        *reinterpret_cast<float2*>(static_cast<float*>(p_.sink.y) + m * p_.sink.stride + n) = {
            sums[2 * i], sums[2 * i + 1]};
      }
    }
  }

  // 32 columns at a time through shared memory: with a gate 16 of each half.
  __device__ void store_chunks(const float (&sums)[kN / 2]) const {
    const bool gate = p_.sink.gate != LinearGate::none;
    const int width = gate ? kN / 2 : kN;
    const int step = gate ? 16 : 32;
    for (int first = 0; first < width; first += step) {
      __syncwarp();
#pragma unroll
      for (int octet = 0; octet < kN / 8; ++octet) {
        // Only the octets of this chunk are written; registers cannot be indexed by `first`.
        const int c = octet * 8;
        const int within = gate && c >= width ? c - width : c;
        if (within < first || within >= first + step) continue;
        put(sums, octet, within - first + (gate && c >= width ? 16 : 0));
      }
      __syncwarp();
      finish_chunk(first, min(step, width - first), gate);
    }
  }

  __device__ void put(const float (&sums)[kN / 2], int octet, int column) const {
    float* const to = chunk_ + lane_ / 4 * kStride + column + lane_ % 4 * 2;
    *reinterpret_cast<float2*>(to) = {sums[4 * octet], sums[4 * octet + 1]};
    *reinterpret_cast<float2*>(to + 8 * kStride) = {sums[4 * octet + 2], sums[4 * octet + 3]};
  }

  __device__ void finish_chunk(int first, int columns, bool gate) const {
    for (int c = lane_ % 16; c < columns; c += 16) {
      const std::int64_t at = column_ + first + c;
      if (at >= p_.sink.columns) continue;
#pragma unroll 4
      for (int r = lane_ / 16; r < 16; r += 2) {
        const std::int64_t m = row_ + r;
        if (m >= p_.m) continue;
        const float* const sum = chunk_ + r * kStride + c;
        store(p_.sink, m, at, finish(p_.sink, m, at, sum[0], gate ? sum[16] : 0.0F));
      }
    }
  }

  static constexpr int kStride = ProductShape<1, kN>::kChunkStride;
  const ProductParams& p_;
  float* chunk_;
  int lane_;
  std::int64_t row_;
  std::int64_t column_;
};

template <class Mainloop, int kN>
__device__ void load_columns(const ProductParams& p, Mainloop& mainloop, std::int64_t tile, int k) {
  if (p.sink.gate == LinearGate::none) {
    mainloop.load_b(&p.b, k, static_cast<int>(tile) * kN, 0, kN);
    return;
  }
  // Gate rows, then the up rows that go with them.
  const int first = static_cast<int>(tile) * kN / 2;
  mainloop.load_b(&p.b, k, first, 0, kN / 2);
  mainloop.load_b(&p.b, k, first + static_cast<int>(p.sink.columns), kN / 2, kN / 2);
}

template <class Shape, class Mainloop>
__device__ void produce(const ProductParams& p, Mainloop& mainloop) {
  const int steps = static_cast<int>((p.depth + kTileK - 1) / kTileK);
  int early = 0;  // stages whose B is under way
  if (p.ahead) {
    for (ProductTiles tile(p); tile.valid() && early < Shape::kStages; tile.next()) {
      for (int i = 0; i < steps && early < Shape::kStages; ++i, ++early) {
        mainloop.expect_stage();
        load_columns<Mainloop, Shape::kTileN>(p, mainloop, tile.column, i * kTileK);
        mainloop.next_stage();
      }
    }
    mainloop.restart();
  }
  cuda::pdl_wait();
  for (ProductTiles tile(p); tile.valid(); tile.next()) {
    for (int i = 0; i < steps; ++i) {
      if (early > 0) {
        --early;
      } else {
        mainloop.begin_stage();
        load_columns<Mainloop, Shape::kTileN>(p, mainloop, tile.column, i * kTileK);
      }
      mainloop.load_a(&p.a, i * kTileK, static_cast<int>(tile.row) * Shape::kTileM);
      mainloop.next_stage();
    }
  }
}

template <class T, class Shape, class Mainloop>
__device__ void consume(const ProductParams& p, Mainloop& mainloop, float* chunk, int group) {
  constexpr int kN = Shape::kTileN;
  const int steps = static_cast<int>((p.depth + kTileK - 1) / kTileK);
  const int width = p.sink.gate == LinearGate::none ? kN : kN / 2;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (ProductTiles tile(p); tile.valid(); tile.next()) {
    float sums[kN / 2];
    mainloop.multiply(sums, steps, group);
    const ProductEpilogue<T, kN> epilogue(p, chunk, tile.row * Shape::kTileM + warp * 16,
                                          tile.column * width);
    epilogue.store_tile(sums);
  }
}

template <class T, bool kTransA, bool kTransB, int kGroups, int kN>
__global__ __launch_bounds__(ProductShape<kGroups, kN>::kThreads,
                             1) void linear_product(const __grid_constant__ ProductParams p) {
  if constexpr (cuda::kWgmma) {
    using Shape = ProductShape<kGroups, kN>;
    extern __shared__ std::byte memory[];
    __shared__ std::uint64_t full[Shape::kStages];
    __shared__ std::uint64_t empty[Shape::kStages];
    const std::uint32_t misaligned = cuda::shared_address(memory) % 1024;
    std::byte* const tiles = memory + (misaligned == 0 ? 0 : 1024 - misaligned);
    using Mainloop = ProductMainloop<T, kTransA, kTransB, kGroups, kN>;
    if (threadIdx.x == 0) {
      for (int i = 0; i < Shape::kStages; ++i) {
        cuda::barrier_init(&full[i], 1);
        cuda::barrier_init(&empty[i], kGroups);
      }
      cuda::fence_barrier_init();
    }
    __syncthreads();
    Mainloop mainloop(tiles, full, empty);
    cuda::pdl_launch_dependents();
    const int group = static_cast<int>(threadIdx.x) / cuda::kWarpgroup;
    if (group == kGroups) {
      if constexpr (kGroups == 2) cuda::give_registers_back<40>();
      if (threadIdx.x % cuda::kWarpgroup == 0) produce<Shape>(p, mainloop);
    } else {
      if constexpr (kGroups == 2) cuda::take_registers<232>();
      const int warp = static_cast<int>(threadIdx.x) / 32;
      auto* const chunk = reinterpret_cast<float*>(tiles + Shape::kStages * Shape::kStageBytes +
                                                   warp * Shape::kChunkBytes);
      cuda::pdl_wait();
      consume<T, Shape>(p, mainloop, chunk, group);
    }
  }
}

}  // namespace touchstone::linear_layer
