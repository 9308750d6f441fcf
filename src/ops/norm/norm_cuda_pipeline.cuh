// The input of persistent CTAs: each thread group has a pipeline of stages in shared memory that
// bulk copies fill several rows ahead.
#pragma once

#include "ops/norm/norm_cuda.cuh"
#include "ops/norm/norm_tuning.h"

namespace touchstone::norm {

// How a row is spread: slice = the part of a row that one block holds.
struct RowSplit {
  std::int64_t row_vectors = 0;    // 16-byte vectors in a row
  std::int64_t slice_vectors = 0;  // in one block's slice (the last may be shorter)
  int cluster = 1;
  int stages = 2;
};

// The stages of one group; a stage holds the group's slice of a row of up to three matrices.
struct Pipeline {
  std::uint64_t* full;      // [stages] barriers
  unsigned char* memory;    // [stages][streams][row_bytes]
  std::uint32_t row_bytes;  // of one slice
  std::uint32_t stage_bytes;
  int stages;
  int write_stage = 0;       // issued next
  int read_stage = 0;        // consumed next
  std::uint32_t parity = 0;  // its barrier completes with

  __device__ Pipeline(std::uint64_t* barriers, unsigned char* start, std::uint32_t slice_bytes,
                      int streams, int stage_count)
      : full(barriers),
        memory(start),
        row_bytes(slice_bytes),
        stage_bytes(slice_bytes * static_cast<std::uint32_t>(streams)),
        stages(stage_count) {}

  // Initializes the barriers. First of all, by all threads of the CTA.
  __device__ void prepare(bool leads) const {
    if (leads) {
      for (int stage = 0; stage < stages; ++stage) cuda::barrier_init(&full[stage], 1);
      cuda::fence_barrier_init();
    }
    __syncthreads();
  }

  // Issues the copies into the next stage; for one thread of the group.
  template <class... Sources>
  __device__ void issue(Sources... sources) {
    std::uint64_t* barrier = &full[write_stage];
    unsigned char* stage = memory + static_cast<std::uint32_t>(write_stage) * stage_bytes;
    cuda::barrier_expect(barrier, stage_bytes);
    ((cuda::bulk_load(stage, sources, row_bytes, barrier), stage += row_bytes), ...);
    write_stage = write_stage + 1 == stages ? 0 : write_stage + 1;
  }

  // Waits for the next stage. It may be issued again once every thread of the group has called
  // wait() again and passed one more barrier.
  __device__ const uint4* wait() {
    cuda::barrier_wait(&full[read_stage], parity);
    const auto* stage = reinterpret_cast<const uint4*>(
        memory + static_cast<std::uint32_t>(read_stage) * stage_bytes);
    if (++read_stage == stages) {
      read_stage = 0;
      parity ^= 1;
    }
    return stage;
  }
};

// The shared memory of a CTA: barriers, reduction scratch, then the stages of all groups.
struct SharedLayout {
  static constexpr int kMaxGroups = 16;  // of a warp each, in a CTA of 512

  std::uint64_t full[kMaxGroups * tuning::kMaxStages];
  float4 scratch[2 * kMaxGroups];
  float4 exchange[2 * kMaxCluster];
  alignas(128) unsigned char stages[1];

  static constexpr std::int64_t bytes(std::int64_t stage_bytes) {
    return static_cast<std::int64_t>(sizeof(SharedLayout)) + stage_bytes;
  }
};

// The rows and columns of a CTA. CTAs of a cluster share the rows and split the columns. Rows are
// assigned to clusters round-robin, and those of a CTA to its groups: DRAM is read in one sweep,
// and no CTA has more than one row more than another.
struct Slice {
  std::int64_t unit;  // index of the cluster
  std::int64_t units;
  std::int64_t rows;  // of the whole problem
  std::int64_t first_vector;
  int vectors;
  int groups;

  __device__ Slice(const RowSplit& split, std::int64_t all_rows, int group_count)
      : unit(blockIdx.x / split.cluster),
        units(gridDim.x / split.cluster),
        rows(all_rows),
        first_vector(split.cluster > 1 ? cuda::cluster_rank() * split.slice_vectors : 0),
        vectors(static_cast<int>(min(split.slice_vectors, split.row_vectors - first_vector))),
        groups(group_count) {}

  // The group's i-th row.
  __device__ std::int64_t row_of(int group, int i) const {
    return unit + (group + static_cast<std::int64_t>(i) * groups) * units;
  }

  // How many rows fall to a group.
  __device__ int rows_of(int group) const {
    const std::int64_t left = rows - row_of(group, 0);
    return left <= 0 ? 0 : static_cast<int>((left + units * groups - 1) / (units * groups));
  }

  // Where the slice of a row starts.
  template <class T>
  __device__ unsigned char* at(const void* data, std::int64_t stride, std::int64_t row) const {
    return static_cast<unsigned char*>(const_cast<void*>(data)) +
           row * stride * static_cast<std::int64_t>(sizeof(T)) + first_vector * 16;
  }
};

}  // namespace touchstone::norm
