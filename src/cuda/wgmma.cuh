// Matrix products of a warpgroup on Hopper's tensor cores (wgmma, sm_90a), the tiles in shared
// memory they read, and the copies that bring such tiles. Code compiled for other chips may name
// them but must not reach them.
//
// A tile is [columns / 64][rows][64] of a 16-bit type: slices of 64 columns, 128 bytes a row, whose
// 16-byte pieces are swizzled: piece c of row r lies at c ^ (r % 8). It starts at a multiple of
// 1024 bytes. The same tile serves both ways: its rows along the outer dimension of a product and
// its columns along the inner one, or, transposed, the other way round.
//
// A product is asynchronous: nothing may touch its sums, or the registers it reads, between
// wgmma_begin and the wgmma_wait that awaits it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "cuda/hopper.cuh"
#include "touchstone/core/dtype.h"

namespace touchstone::cuda {

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kWgmma = false;
#else
inline constexpr bool kWgmma = true;
#endif

inline constexpr int kSliceColumns = 64;
inline constexpr int kSliceRowBytes = 128;

// ---- products -----------------------------------------------------------------------------------

// The shared memory descriptor of a tile for wgmma. `rows` is the height of a slice.
__device__ inline std::uint64_t tile_descriptor(std::uint32_t shared, int rows) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{8 * kSliceRowBytes / 16} << 32;
  const std::uint64_t slice = static_cast<std::uint64_t>(rows) * kSliceRowBytes / 16;
  return kSwizzle128 | kEightRows | slice << 16 | (shared & 0x3ffff) >> 4;
}
// The descriptor `bytes` further on.
__device__ inline std::uint64_t advanced(std::uint64_t descriptor, int bytes) {
  return descriptor + static_cast<std::uint64_t>(bytes / 16);
}
// Columns [16 * step, ...) of a tile, where the inner dimension runs along its columns.
__device__ inline std::uint64_t inner_columns(std::uint64_t descriptor, int rows, int step) {
  return advanced(descriptor, step / 4 * rows * kSliceRowBytes + step % 4 * 32);
}
// Rows [16 * step, ...) of a tile, where the inner dimension runs along its rows.
__device__ inline std::uint64_t inner_rows(std::uint64_t descriptor, int step) {
  return advanced(descriptor, step * 16 * kSliceRowBytes);
}

__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving what is done with sums across the begin or the wait beside it.
template <int kCount>
__device__ inline void wgmma_hold(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define TOUCHSTONE_SUMS_8(d, i)                                                       \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define TOUCHSTONE_SUMS_32(d, i)                                                          \
  TOUCHSTONE_SUMS_8(d, i), TOUCHSTONE_SUMS_8(d, (i) + 8), TOUCHSTONE_SUMS_8(d, (i) + 16), \
      TOUCHSTONE_SUMS_8(d, (i) + 24)
#define TOUCHSTONE_NEW_8(d, i)                                                        \
  "=f"(d[i]), "=f"(d[(i) + 1]), "=f"(d[(i) + 2]), "=f"(d[(i) + 3]), "=f"(d[(i) + 4]), \
      "=f"(d[(i) + 5]), "=f"(d[(i) + 6]), "=f"(d[(i) + 7])
#define TOUCHSTONE_NEW_32(d, i)                                                        \
  TOUCHSTONE_NEW_8(d, i), TOUCHSTONE_NEW_8(d, (i) + 8), TOUCHSTONE_NEW_8(d, (i) + 16), \
      TOUCHSTONE_NEW_8(d, (i) + 24)
#define TOUCHSTONE_NAMES_32                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TOUCHSTONE_NAMES_64                                                                 \
  TOUCHSTONE_NAMES_32                                                                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Both operands from shared memory; `type` is bf16 or f16.
#define TOUCHSTONE_WGMMA_SHARED(columns, type, names, a, b, add, transposed, ...)                 \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " add                                      \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" names \
               "}, " a ", " b ", adds, 1, 1, 0, " transposed ";\n}\n"                             \
               : __VA_ARGS__                                                                      \
               : "l"(left), "l"(right), "r"(adds), "n"(kTransposed ? 1 : 0))
// The left operand from registers.
#define TOUCHSTONE_WGMMA_REGISTERS(columns, type, names, a, b, add, transposed, ...)              \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " add                                      \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" names \
               "}, {" a "}, " b ", adds, 1, 1, " transposed ";\n}\n"                              \
               : __VA_ARGS__                                                                      \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(adds),   \
                 "n"(kTransposed ? 1 : 0))

// sums = left * right, or sums += left * right: [64, 16] by [16, 64] or [16, 128]. Sum 4 j + i of a
// lane is at row lane / 4 + i / 2 * 8 of its warp's 16, column 8 j + lane % 4 * 2 + i % 2. With
// kTransposed the inner dimension runs along the rows of the right tile.
template <class T, bool kTransposed>
__device__ inline void wgmma(float (&sums)[32], std::uint64_t left, std::uint64_t right,
                             std::uint32_t adds) {
  if constexpr (!kWgmma) return;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<T, Bf16>) {
    TOUCHSTONE_WGMMA_SHARED(64, bf16, TOUCHSTONE_NAMES_32, "%32", "%33", "%34", "%35",
                            TOUCHSTONE_SUMS_32(sums, 0));
  } else {
    TOUCHSTONE_WGMMA_SHARED(64, f16, TOUCHSTONE_NAMES_32, "%32", "%33", "%34", "%35",
                            TOUCHSTONE_SUMS_32(sums, 0));
  }
#endif
}
template <class T, bool kTransposed>
__device__ inline void wgmma(float (&sums)[64], std::uint64_t left, std::uint64_t right,
                             std::uint32_t adds) {
  if constexpr (!kWgmma) return;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<T, Bf16>) {
    TOUCHSTONE_WGMMA_SHARED(128, bf16, TOUCHSTONE_NAMES_64, "%64", "%65", "%66", "%67",
                            TOUCHSTONE_SUMS_32(sums, 0), TOUCHSTONE_SUMS_32(sums, 32));
  } else {
    TOUCHSTONE_WGMMA_SHARED(128, f16, TOUCHSTONE_NAMES_64, "%64", "%65", "%66", "%67",
                            TOUCHSTONE_SUMS_32(sums, 0), TOUCHSTONE_SUMS_32(sums, 32));
  }
#endif
}

// The same, sums = left * right, where what `sums` held before is of no interest even to the
// compiler: their registers are free until then.
template <class T, bool kTransposed>
__device__ inline void wgmma_new(float (&sums)[32], std::uint64_t left, std::uint64_t right) {
  if constexpr (!kWgmma) return;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr std::uint32_t adds = 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    TOUCHSTONE_WGMMA_SHARED(64, bf16, TOUCHSTONE_NAMES_32, "%32", "%33", "%34", "%35",
                            TOUCHSTONE_NEW_32(sums, 0));
  } else {
    TOUCHSTONE_WGMMA_SHARED(64, f16, TOUCHSTONE_NAMES_32, "%32", "%33", "%34", "%35",
                            TOUCHSTONE_NEW_32(sums, 0));
  }
#endif
}
template <class T, bool kTransposed>
__device__ inline void wgmma_new(float (&sums)[64], std::uint64_t left, std::uint64_t right) {
  if constexpr (!kWgmma) return;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr std::uint32_t adds = 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    TOUCHSTONE_WGMMA_SHARED(128, bf16, TOUCHSTONE_NAMES_64, "%64", "%65", "%66", "%67",
                            TOUCHSTONE_NEW_32(sums, 0), TOUCHSTONE_NEW_32(sums, 32));
  } else {
    TOUCHSTONE_WGMMA_SHARED(128, f16, TOUCHSTONE_NAMES_64, "%64", "%65", "%66", "%67",
                            TOUCHSTONE_NEW_32(sums, 0), TOUCHSTONE_NEW_32(sums, 32));
  }
#endif
}

// The same with the left operand in registers: word i of a lane holds row lane / 4 + i % 2 * 8 and
// columns lane % 4 * 2 + i / 2 * 8 and one more. Sums 8 s to 8 s + 7 of one product, rounded and
// packed in pairs, are columns [16 s, 16 s + 16) of the next one's left operand.
template <class T, bool kTransposed>
__device__ inline void wgmma(float (&sums)[32], const std::uint32_t (&left)[4], std::uint64_t right,
                             std::uint32_t adds) {
  if constexpr (!kWgmma) return;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<T, Bf16>) {
    TOUCHSTONE_WGMMA_REGISTERS(64, bf16, TOUCHSTONE_NAMES_32, "%32, %33, %34, %35", "%36", "%37",
                               "%38", TOUCHSTONE_SUMS_32(sums, 0));
  } else {
    TOUCHSTONE_WGMMA_REGISTERS(64, f16, TOUCHSTONE_NAMES_32, "%32, %33, %34, %35", "%36", "%37",
                               "%38", TOUCHSTONE_SUMS_32(sums, 0));
  }
#endif
}
template <class T, bool kTransposed>
__device__ inline void wgmma(float (&sums)[64], const std::uint32_t (&left)[4], std::uint64_t right,
                             std::uint32_t adds) {
  if constexpr (!kWgmma) return;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<T, Bf16>) {
    TOUCHSTONE_WGMMA_REGISTERS(128, bf16, TOUCHSTONE_NAMES_64, "%64, %65, %66, %67", "%68", "%69",
                               "%70", TOUCHSTONE_SUMS_32(sums, 0), TOUCHSTONE_SUMS_32(sums, 32));
  } else {
    TOUCHSTONE_WGMMA_REGISTERS(128, f16, TOUCHSTONE_NAMES_64, "%64, %65, %66, %67", "%68", "%69",
                               "%70", TOUCHSTONE_SUMS_32(sums, 0), TOUCHSTONE_SUMS_32(sums, 32));
  }
#endif
}

#undef TOUCHSTONE_WGMMA_REGISTERS
#undef TOUCHSTONE_WGMMA_SHARED
#undef TOUCHSTONE_NAMES_64
#undef TOUCHSTONE_NAMES_32
#undef TOUCHSTONE_SUMS_32
#undef TOUCHSTONE_SUMS_8
#undef TOUCHSTONE_NEW_32
#undef TOUCHSTONE_NEW_8

// ---- warpgroups ---------------------------------------------------------------------------------

inline constexpr int kWarpgroup = 128;

template <int kRegisters>
__device__ inline void give_registers_back() {
  if constexpr (kWgmma) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  if constexpr (kWgmma) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barriers of some of a block's threads, by number (0 is __syncthreads). Whoever arrives only does
// not wait.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// ---- copies of tiles ----------------------------------------------------------------------------

// One slice of [batch, head, token, column], tokens from `token` on and columns from `column` on.
// What lies outside the tensor arrives as zeros.
__device__ inline void load_slice(void* shared, const CUtensorMap* map, int column, int token,
                                  int head, int batch, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(column),
      "r"(token), "r"(head), "r"(batch)
      : "memory");
}

__device__ inline void fetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
}

// Makes what this thread wrote to shared memory visible to products and bulk copies; a barrier
// follows.
__device__ inline void fence_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace touchstone::cuda
