// What the vector kernels, forward and backward, share.
//
// A block is split into teams of kTeam threads; a team works on one row at a time and holds its
// columns in a fixed pattern: vector v of the row (16 bytes) belongs to thread v % kTeam. Rows too
// long for one block are cut into slices, one per block of a cluster, and the sums are exchanged
// through distributed shared memory.
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

inline constexpr int kMaxCluster = 8;

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <int kTeam, int kThreads>
struct Team {
  static constexpr int kThreadsPerTeam = kTeam;
  static constexpr int kWarps = (kTeam + 31) / 32;
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

  // The lanes of this warp that are of this team. Two teams in one warp may go different ways.
  __device__ unsigned mask() const {
    if constexpr (kTeam < 32) {
      return ((1U << kTeam) - 1U) << (static_cast<unsigned>(threadIdx.x) % 32 / kTeam * kTeam);
    }
    return ~0U;
  }

  __device__ void barrier() const {
    if constexpr (kTeam <= 32) {
      __syncwarp(mask());
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
    butterfly<(kTeam < 32 ? kTeam : 32) / 2>(v, op);
    if constexpr (kWarps > 1) {
      float4* half = scratch + parity * kWarps;
      if (rank % 32 == 0) store(&half[rank / 32], v);
      barrier();
      load(&half[rank % kWarps], v);
      butterfly<kWarps / 2>(v, op);
    } else {
      barrier();
    }
    if constexpr (kTeam == kThreads && cuda::kHopper) {
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
  __device__ void butterfly(float (&v)[kCountOfValues], Combine op) const {
#pragma unroll
    for (int offset = kFirstOffset; offset > 0; offset /= 2) {
#pragma unroll
      for (float& value : v) value = op(value, __shfl_xor_sync(mask(), value, offset));
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

// Why these rows cannot be taken as vectors of 16 bytes, or nothing.
std::string vectors_refuse(std::int64_t cols, DType dtype,
                           std::initializer_list<ConstRows> matrices,
                           std::initializer_list<const void*> weights);

// Kernels that are to run side by side must agree on how a multiprocessor divides its memory
// between L1 and shared memory: to change it, it must be empty.
template <class Kernel>
void prefer_shared(Kernel* kernel) {
  cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared),
              "cudaFuncSetAttribute");
}

// Sums of `count` partial rows [count][2][cols] in index order, in float64, into dweight and dbias.
// The last step of every CUDA backward.
struct Finish {
  const void* partial = nullptr;
  bool wide = false;  // partials are double rather than float
  std::int64_t count = 0;
  std::int64_t cols = 0;
  void* dweight = nullptr;
  void* dbias = nullptr;
  DType dtype = DType::f32;
};
void launch_finish(Context& context, const Finish& params, bool overlap_previous);

}  // namespace touchstone::norm
