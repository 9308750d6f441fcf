// What the bulk forward and backward kernels share.
//
// A block is split into teams of kTeam threads; a team works on one row at a time and holds its
// columns in a fixed pattern: vector v of the row (16 bytes) belongs to thread v % kTeam. Rows
// arrive through a ring of shared memory stages filled by the copy engine, so that loads are in
// flight while the team computes. Rows too long for one block are cut into slices, one per block
// of a cluster, and the sums are exchanged through distributed shared memory.
//
// The order of every addition inside a row depends on its length only: any batch, any position in
// it, gives the same bits.
#pragma once

#include <cstdint>

#include "cuda/hopper.cuh"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/norm/norm.h"

namespace touchstone::norm {

// Of the 227 KB a block may have; the rest is for barriers and reductions.
inline constexpr std::int64_t kRingBytes = 220 << 10;
inline constexpr int kMaxStages = 8;
inline constexpr int kMaxCluster = 8;

// How a row is spread: slice = the part of a row that one block holds.
struct RowSplit {
  std::int64_t row_vectors = 0;    // 16-byte vectors in a row
  std::int64_t slice_vectors = 0;  // in one block's slice (the last may be shorter)
  int cluster = 1;
  int stages = 2;
};

// One team's ring of stages; a stage holds the team's slice of a row of up to three matrices.
struct Ring {
  std::uint64_t* full;      // [stages] barriers
  unsigned char* memory;    // [stages][streams][row_bytes]
  std::uint32_t row_bytes;  // of one slice
  std::uint32_t stage_bytes;
  int stages;
  int filling = 0;           // the stage that is filled next
  int draining = 0;          // the stage that is read next
  std::uint32_t parity = 0;  // its barrier completes with

  __device__ Ring(std::uint64_t* barriers, unsigned char* start, std::uint32_t slice_bytes,
                  int streams, int stage_count)
      : full(barriers),
        memory(start),
        row_bytes(slice_bytes),
        stage_bytes(slice_bytes * static_cast<std::uint32_t>(streams)),
        stages(stage_count) {}

  // Starts the copies into the next stage; for one thread of the team.
  template <class... Sources>
  __device__ void fill(Sources... sources) {
    std::uint64_t* barrier = &full[filling];
    unsigned char* stage = memory + static_cast<std::uint32_t>(filling) * stage_bytes;
    cuda::barrier_expect(barrier, stage_bytes);
    ((cuda::bulk_load(stage, sources, row_bytes, barrier), stage += row_bytes), ...);
    filling = filling + 1 == stages ? 0 : filling + 1;
  }

  // The next stage, once it is full. It stays until every thread of the team has come back here
  // and been through one more barrier.
  __device__ const uint4* drain() {
    cuda::barrier_wait(&full[draining], parity);
    const auto* stage =
        reinterpret_cast<const uint4*>(memory + static_cast<std::uint32_t>(draining) * stage_bytes);
    if (++draining == stages) {
      draining = 0;
      parity ^= 1;
    }
    return stage;
  }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <int kTeam, int kThreads>
struct Team {
  static constexpr int kWarps = kTeam / 32;
  static constexpr int kCount = kThreads / kTeam;

  int index;         // of the team in its block
  int rank;          // of the thread in its team
  float4* scratch;   // [2][kWarps], of this team
  float4* exchange;  // [2][kMaxCluster], of this block
  int cluster;       // blocks that share a row
  int parity = 0;    // which half of scratch and exchange is used next

  __device__ Team(float4* block_scratch, float4* block_exchange, int cluster_blocks)
      : index(static_cast<int>(threadIdx.x) / kTeam),
        rank(static_cast<int>(threadIdx.x) % kTeam),
        scratch(block_scratch + index * 2 * kWarps),
        exchange(block_exchange),
        cluster(cluster_blocks) {}

  __device__ bool leads() const { return rank == 0; }

  __device__ void barrier() const {
    if constexpr (kTeam == 32) {
      __syncwarp();
    } else if constexpr (kTeam == kThreads) {
      __syncthreads();
    } else {
      // Barrier 0 is __syncthreads.
      asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "n"(kTeam) : "memory");
    }
  }

  // Replaces each value by its combination over all threads, bitwise the same in each, and acts
  // as a barrier. Alternating halves of the scratch make one barrier per call enough.
  template <int kCountOfValues, class Combine>
  __device__ void combine(float (&v)[kCountOfValues], Combine op) {
    static_assert(kCountOfValues <= 4);
    butterfly<16>(v, op);
    if constexpr (kWarps > 1) {
      float4* half = scratch + parity * kWarps;
      if (rank % 32 == 0) store(&half[rank / 32], v);
      barrier();
      load(&half[rank % kWarps], v);
      butterfly<kWarps / 2>(v, op);
    } else {
      barrier();
    }
    if constexpr (kTeam == kThreads) {
      if (cluster > 1) combine_cluster(v, op);
    }
    parity ^= 1;
  }

  template <int kCountOfValues>
  __device__ void sum(float (&v)[kCountOfValues]) {
    combine(v, Sum{});
  }

 private:
  template <int kFirstOffset, int kCountOfValues, class Combine>
  __device__ static void butterfly(float (&v)[kCountOfValues], Combine op) {
#pragma unroll
    for (int offset = kFirstOffset; offset > 0; offset /= 2) {
#pragma unroll
      for (float& value : v) value = op(value, __shfl_xor_sync(~0U, value, offset));
    }
  }

  template <int kCountOfValues>
  __device__ static void store(float4* place, const float (&v)[kCountOfValues]) {
    auto* words = reinterpret_cast<float*>(place);
#pragma unroll
    for (int i = 0; i < kCountOfValues; ++i) words[i] = v[i];
  }

  template <int kCountOfValues>
  __device__ static void load(const float4* place, float (&v)[kCountOfValues]) {
    const float4 words = *place;
    const float values[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < kCountOfValues; ++i) v[i] = values[i];
  }

  template <int kCountOfValues, class Combine>
  __device__ void combine_cluster(float (&v)[kCountOfValues], Combine op) {
    float4* half = exchange + parity * kMaxCluster;
    if (rank < cluster) {
      float4 mine{0, 0, 0, 0};
      store(&mine, v);
      cuda::cluster_store(&half[cuda::cluster_rank()], rank, mine);
    }
    cuda::cluster_barrier();
    load(&half[0], v);
    for (int i = 1; i < cluster; ++i) {
      float other[kCountOfValues];
      load(&half[i], other);
#pragma unroll
      for (int k = 0; k < kCountOfValues; ++k) v[k] = op(v[k], other[k]);
    }
  }
};

// The block's shared memory: barriers, reduction scratch, then the rings.
struct SharedLayout {
  static constexpr int kMaxTeams = 16;  // of a warp each, in a block of 512

  std::uint64_t full[kMaxTeams * kMaxStages];
  float4 scratch[2 * kMaxTeams];
  float4 exchange[2 * kMaxCluster];
  alignas(128) unsigned char ring[1];

  static constexpr std::int64_t bytes(std::int64_t ring_bytes) {
    return static_cast<std::int64_t>(sizeof(SharedLayout)) + ring_bytes;
  }
};

// What a bulk kernel does before it touches global memory.
__device__ inline SharedLayout& begin_bulk_kernel(int teams, int stages) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<SharedLayout*>(memory);
  if (static_cast<int>(threadIdx.x) < teams) {
    for (int stage = 0; stage < stages; ++stage) {
      cuda::barrier_init(&shared.full[static_cast<int>(threadIdx.x) * kMaxStages + stage], 1);
    }
    cuda::fence_barrier_init();
  }
  __syncthreads();
  cuda::let_next_grid_start();
  cuda::wait_for_previous_grids();
  return shared;
}

// The rows of one matrix that a team meets, in order.
struct RowWalk {
  unsigned char* next;  // the slice of the next row
  std::int64_t step;    // bytes to the one after

  __device__ unsigned char* take() {
    unsigned char* row = next;
    next += step;
    return row;
  }
};

// A block's rows and columns. Blocks of a cluster share the rows and split the columns. The
// clusters take the rows in turn, and so do the teams of a block the block's rows: memory is swept
// in order, which DRAM rewards, and no block has more than one row more than another.
struct Slice {
  std::int64_t unit;  // the cluster's number
  std::int64_t units;
  std::int64_t rows;  // of the whole problem
  std::int64_t first_vector;
  int vectors;
  int teams;

  __device__ Slice(const RowSplit& split, std::int64_t all_rows, int team_count)
      : unit(blockIdx.x / split.cluster),
        units(gridDim.x / split.cluster),
        rows(all_rows),
        first_vector(split.cluster > 1 ? cuda::cluster_rank() * split.slice_vectors : 0),
        vectors(static_cast<int>(min(split.slice_vectors, split.row_vectors - first_vector))),
        teams(team_count) {}

  // The team's i-th row.
  __device__ std::int64_t row_of(int team, int i) const {
    return unit + (team + static_cast<std::int64_t>(i) * teams) * units;
  }

  // How many rows fall to a team.
  __device__ int rows_of(int team) const {
    const std::int64_t left = rows - row_of(team, 0);
    return left <= 0 ? 0 : static_cast<int>((left + units * teams - 1) / (units * teams));
  }

  // Where the slice of a row starts.
  template <class T>
  __device__ unsigned char* at(const void* data, std::int64_t stride, std::int64_t row) const {
    return static_cast<unsigned char*>(const_cast<void*>(data)) +
           row * stride * static_cast<std::int64_t>(sizeof(T)) + first_vector * 16;
  }

  // The slices of a team's rows in one matrix.
  template <class T>
  __device__ RowWalk rows_at(const void* data, std::int64_t stride, int team) const {
    return {at<T>(data, stride, row_of(team, 0)),
            units * teams * stride * static_cast<std::int64_t>(sizeof(T))};
  }
};

// A thread's columns of gamma or beta: its vector j is vector first + j * kTeam of the row, of
// which it has those with j * kTeam < left. Absent weights are `absent`, missing columns 0.
template <class T, int kTeam, int kVectors>
__device__ void load_weights(const void* data, DType dtype, float offset, float absent,
                             std::int64_t first, int left,
                             float (&out)[kVectors][cuda::kPerVector<T>]) {
  constexpr int kN = cuda::kPerVector<T>;
  // Decided once and outside the loop, so that all loads are in flight together.
  const bool narrow = data != nullptr && dtype != DType::f32;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int k = 0; k < kN; ++k) out[j][k] = absent;
    if (data == nullptr || j * kTeam >= left) continue;
    const std::int64_t column = (first + j * kTeam) * kN;
    if (!narrow) {
#pragma unroll
      for (int k = 0; k < kN; k += 4) {
        const float4 four =
            __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(data) + column + k));
        out[j][k] = four.x + offset;
        out[j][k + 1] = four.y + offset;
        out[j][k + 2] = four.z + offset;
        out[j][k + 3] = four.w + offset;
      }
    } else if constexpr (sizeof(T) == 2) {  // f32 rows have f32 weights
      const uint4 eight =
          __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(data) + column));
      cuda::unpack_as<T>(eight, out[j]);
#pragma unroll
      for (int k = 0; k < kN; ++k) out[j][k] += offset;
    }
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (j * kTeam < left) continue;
#pragma unroll
    for (int k = 0; k < kN; ++k) out[j][k] = 0;
  }
}

// Calls launch.operator()<T, kRms>().
template <class Launch>
void visit_dtype_and_kind(DType dtype, Kind kind, Launch launch) {
  const bool rms = kind == Kind::rms;
  if (dtype == DType::f32) {
    rms ? launch.template operator()<float, true>() : launch.template operator()<float, false>();
  } else if (dtype == DType::bf16) {
    rms ? launch.template operator()<Bf16, true>() : launch.template operator()<Bf16, false>();
  } else {
    rms ? launch.template operator()<F16, true>() : launch.template operator()<F16, false>();
  }
}

// Chooses the split: as few blocks per row as hold it, and then as many stages as fit. A stage is
// a row of each team in `rows` matrices; `weight_bytes` per column are kept beside the ring. The
// cluster may come out too large to launch.
inline RowSplit split_rows(std::int64_t cols, DType dtype, int team, int teams,
                           int vectors_per_thread, int rows, int weight_bytes) {
  RowSplit split;
  split.row_vectors = cols * size_of(dtype) / 16;
  if (split.row_vectors == 0) return split;  // shorter than a vector: not for the copy engine
  const std::int64_t capacity = std::int64_t{team} * vectors_per_thread;
  const std::int64_t per_vector = 16 / size_of(dtype);
  std::int64_t stages = 0;
  for (split.cluster = 1;; split.cluster *= 2) {
    split.slice_vectors = (split.row_vectors + split.cluster - 1) / split.cluster;
    const std::int64_t room = kRingBytes - split.slice_vectors * per_vector * weight_bytes;
    stages = room / (split.slice_vectors * 16 * rows * teams);
    if (split.slice_vectors <= capacity && stages >= 2) break;
  }
  // Teams that run out of step with each other need less depth than one that runs alone.
  const std::int64_t most = teams > 1 ? 4 : kMaxStages;
  split.stages = static_cast<int>(stages < most ? stages : most);
  return split;
}

inline std::int64_t ring_bytes(const RowSplit& split, int teams, int rows) {
  return split.slice_vectors * 16 * rows * split.stages * teams;
}

// One persistent block per multiprocessor, as far as there are rows for every team; with clusters,
// as many as the chip can place at once.
template <class Params>
unsigned persistent_blocks(const Context& context, void (*kernel)(Params), const RowSplit& split,
                           std::int64_t rows, int teams, const cuda::LaunchShape& shape) {
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  std::int64_t units = processors;
  if (split.cluster > 1) {
    cuda::LaunchShape probe = shape;
    probe.blocks = static_cast<unsigned>(processors / split.cluster * split.cluster);
    const cuda::LaunchConfig config(context, probe);
    int clusters = 0;
    cuda::check(cudaOccupancyMaxActiveClusters(&clusters, kernel, config.get()),
                "cudaOccupancyMaxActiveClusters");
    units = clusters;
  }
  const std::int64_t useful = (rows + teams - 1) / teams;
  if (useful < units) units = useful;
  return static_cast<unsigned>((units < 1 ? 1 : units) * split.cluster);
}

// Why the copy engine cannot take these rows, or nothing. `widest` is the split they would get
// from the largest team.
std::string bulk_refuses(const Context& context, std::int64_t cols, DType dtype,
                         std::initializer_list<ConstRows> matrices,
                         std::initializer_list<const void*> weights, const RowSplit& widest);

// Sums of `count` partial rows [count][2][cols] in index order, in float64, into dgamma and dbeta.
// The last step of every CUDA backward.
struct Finish {
  const void* partial = nullptr;
  bool wide = false;  // partials are double rather than float
  std::int64_t count = 0;
  std::int64_t cols = 0;
  void* dgamma = nullptr;
  void* dbeta = nullptr;
  DType dtype = DType::f32;
};
void launch_finish(Context& context, const Finish& params, bool overlap_previous);

}  // namespace touchstone::norm
