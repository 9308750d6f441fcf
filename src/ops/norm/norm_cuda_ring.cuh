// How blocks that stay for the whole problem are fed: each team has a ring of stages in shared
// memory that the copy engine fills, several rows ahead, and takes its rows from there.
#pragma once

#include "ops/norm/norm_cuda.cuh"

namespace touchstone::norm {

// Of the 227 KB a multiprocessor has for blocks; the rest is for barriers and reductions, and for
// the block that waits beside this one (kKeepDy in norm_cuda_backward.cu).
inline constexpr std::int64_t kRingBytes = 208 << 10;
inline constexpr int kMaxStages = 8;

// Rows that a team asks for before it has its first. With more, all teams would wait for the last
// of them: requests are served in no order.
inline constexpr int kFirstFills = 2;

// Rows of a team of the backward that are brought into L2 while the grids before this one end.
inline constexpr int kEarlyRows = 2;

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

  // Comes before everything else, for all threads of the block.
  __device__ void prepare(bool leads) const {
    if (leads) {
      for (int stage = 0; stage < stages; ++stage) cuda::barrier_init(&full[stage], 1);
      cuda::fence_barrier_init();
    }
    __syncthreads();
  }

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
};

}  // namespace touchstone::norm
