// The few Hopper instructions our kernels use, each as one small function: bulk copies that
// complete on an mbarrier, thread block clusters, programmatic dependent launch. Code compiled for
// older chips may name them but must not reach them.
#pragma once

#include <cstdint>

namespace touchstone::cuda {

// Kernels that need Hopper compile to an empty body elsewhere; the launcher never picks them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kHopper = false;
#else
inline constexpr bool kHopper = true;
#endif

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// Makes initialized barriers visible to the copy engine. Follow it with a block barrier.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives and sets how many bytes the following copies transfer.
__device__ inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Global to shared memory, 16-byte aligned at both ends, `bytes` a multiple of 16.
__device__ inline void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                                 std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Prefetches global memory into L2; alignment and size as for bulk_load. A hint: what is read later
// is whatever was written last, so it may be issued before pdl_wait().
__device__ inline void bulk_prefetch(const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// Programmatic dependent launch: waits for the grids this one was launched behind, and for their
// writes.
__device__ inline void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Programmatic dependent launch: lets the next grid be scheduled early. It must still call
// pdl_wait() before reading our output.
__device__ inline void pdl_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline std::uint32_t cluster_size() {
  std::uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return size;
}

// The two halves of a barrier of all threads of a cluster. The relaxed one does not wait for loads
// and stores: it only says that the block has started.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

// Stores into the shared memory of block `rank` of this cluster, at the address of `local` here.
__device__ inline void cluster_store(float4* local, std::uint32_t rank, float4 value) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.v4.f32 [remote], {%2, %3, %4, %5};\n"
      "}\n" ::"r"(shared_address(local)),
      "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

// Where `local` lies in the shared memory of block `rank` of this cluster.
__device__ inline std::uint32_t cluster_address(const void* local, std::uint32_t rank) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(local)), "r"(rank));
  return address;
}
__device__ inline void cluster_store(std::uint32_t address, unsigned long long value) {
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}
__device__ inline void cluster_or(std::uint32_t address, std::uint32_t value) {
  asm volatile("red.shared::cluster.or.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

}  // namespace touchstone::cuda
