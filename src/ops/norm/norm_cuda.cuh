// What the vectorized kernels, forward and backward, share.
//
// A CTA is split into thread groups of kGroup threads; a group works on one row at a time and holds
// its columns in a fixed pattern: vector v of the row (16 bytes) belongs to thread v % kGroup. Rows
// too long for one CTA are cut into slices, one per CTA of a cluster, and the sums are exchanged
// through distributed shared memory.
//
// The order of every addition inside a row depends on its length only: any batch, any position in
// it, gives the same bits.
#pragma once

#include <cstdint>

#include "cuda/hopper.cuh"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "cuda/visit_dtype.h"
#include "ops/norm/norm.h"

namespace touchstone::norm {

inline constexpr int kMaxCluster = 8;

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <int kGroup, int kThreads>
struct ThreadGroup {
  static constexpr int kThreadsPerGroup = kGroup;
  static constexpr int kWarps = (kGroup + 31) / 32;
  static constexpr int kCount = kThreads / kGroup;

  int index;         // of the group in its CTA
  int rank;          // of the thread in its group
  float4* scratch;   // [2][kWarps], of this group
  float4* exchange;  // [2][kMaxCluster], of this CTA
  int cluster;       // CTAs that share a row
  int parity = 0;    // which half of scratch and exchange is used next

  __device__ ThreadGroup(float4* block_scratch, float4* block_exchange, int cluster_blocks)
      : index(static_cast<int>(threadIdx.x) / kGroup),
        rank(static_cast<int>(threadIdx.x) % kGroup),
        scratch(block_scratch + index * 2 * kWarps),
        exchange(block_exchange),
        cluster(cluster_blocks) {}

  __device__ bool leads() const { return rank == 0; }

  // The lanes of this warp that are of this group. Two groups in one warp may diverge.
  __device__ unsigned mask() const {
    if constexpr (kGroup < 32) {
      return ((1U << kGroup) - 1U) << (static_cast<unsigned>(threadIdx.x) % 32 / kGroup * kGroup);
    }
    return ~0U;
  }

  __device__ void barrier() const {
    if constexpr (kGroup <= 32) {
      __syncwarp(mask());
    } else if constexpr (kGroup == kThreads) {
      __syncthreads();
    } else {
      // Barrier 0 is __syncthreads.
      asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "n"(kGroup) : "memory");
    }
  }

  // Replaces each value by its combination over all threads, bitwise the same in each, and acts
  // as a barrier. Alternating halves of the scratch make one barrier per call enough.
  template <int kCountOfValues, class Combine>
  __device__ void combine(float (&v)[kCountOfValues], Combine op) {
    static_assert(kCountOfValues <= 4);
    butterfly<(kGroup < 32 ? kGroup : 32) / 2>(v, op);
    if constexpr (kWarps > 1) {
      float4* half = scratch + parity * kWarps;
      if (rank % 32 == 0) store(&half[rank / 32], v);
      barrier();
      load(&half[rank % kWarps], v);
      butterfly<kWarps / 2>(v, op);
    } else {
      barrier();
    }
    if constexpr (kGroup == kThreads && cuda::kHopper) {
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
  __device__ static void store(float4* to, const float (&v)[kCountOfValues]) {
    auto* words = reinterpret_cast<float*>(to);
#pragma unroll
    for (int i = 0; i < kCountOfValues; ++i) words[i] = v[i];
  }

  template <int kCountOfValues>
  __device__ static void load(const float4* from, float (&v)[kCountOfValues]) {
    const float4 words = *from;
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
  cuda::visit_dtype(dtype, [&]<class T>() {
    if (kind == Kind::rms) {
      launch.template operator()<T, true>();
    } else {
      launch.template operator()<T, false>();
    }
  });
}

// Why these rows cannot be read and written as vectors of 16 bytes; empty when they can.
std::string vectors_refuse(std::int64_t cols, DType dtype,
                           std::initializer_list<ConstRows> matrices,
                           std::initializer_list<const void*> weights);

// Kernels that are to run side by side must agree on the split of an SM between L1 and shared
// memory: an SM must be idle to change it.
template <class Kernel>
void prefer_shared(Kernel* kernel) {
  cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared),
              "cudaFuncSetAttribute");
}

// Sums of `count` partial rows [count][2][cols] in index order, in float64, into dweight and dbias.
// The last step of every CUDA backward.
struct ReducePartials {
  const void* partial = nullptr;
  bool wide = false;  // partials are double rather than float
  std::int64_t count = 0;
  std::int64_t cols = 0;
  void* dweight = nullptr;
  void* dbias = nullptr;
  DType dtype = DType::f32;
};
void launch_reduce_partials(Context& context, const ReducePartials& params, bool pdl);

}  // namespace touchstone::norm
