// Products of a warpgroup whose operands may both have the inner dimension along the rows of their
// tiles, for every width that a tile of C has: see wgmma.cuh.
#pragma once

#include "cuda/wgmma.cuh"

namespace touchstone::cuda {

#define TOUCHSTONE_SUMS_8(d, i)                                                       \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define TOUCHSTONE_SUMS_16(d, i) TOUCHSTONE_SUMS_8(d, i), TOUCHSTONE_SUMS_8(d, (i) + 8)
#define TOUCHSTONE_SUMS_32(d, i) TOUCHSTONE_SUMS_16(d, i), TOUCHSTONE_SUMS_16(d, (i) + 16)
#define TOUCHSTONE_SUMS_64(d, i) TOUCHSTONE_SUMS_32(d, i), TOUCHSTONE_SUMS_32(d, (i) + 32)
#define TOUCHSTONE_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TOUCHSTONE_NAMES_24 \
  TOUCHSTONE_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TOUCHSTONE_NAMES_32 \
  TOUCHSTONE_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TOUCHSTONE_NAMES_48 \
  TOUCHSTONE_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TOUCHSTONE_NAMES_56 \
  TOUCHSTONE_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TOUCHSTONE_NAMES_64 \
  TOUCHSTONE_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TOUCHSTONE_NAMES_128                                                                     \
  TOUCHSTONE_NAMES_64                                                                            \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"

// left, right, adds and the two directions are the operands after the sums.
#define TOUCHSTONE_WGMMA_EITHER(columns, type, names, l, r, a, tl, tr, ...)                       \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " a                                        \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" names \
               "}, " l ", " r ", adds, 1, 1, " tl ", " tr ";\n}\n"                                \
               : __VA_ARGS__                                                                      \
               : "l"(left), "l"(right), "r"(adds), "n"(kLeftTransposed ? 1 : 0),                  \
                 "n"(kTransposed ? 1 : 0))
#define TOUCHSTONE_WGMMA_TYPES(columns, names, l, r, a, tl, tr, ...)             \
  if constexpr (std::is_same_v<T, Bf16>) {                                       \
    TOUCHSTONE_WGMMA_EITHER(columns, bf16, names, l, r, a, tl, tr, __VA_ARGS__); \
  } else {                                                                       \
    TOUCHSTONE_WGMMA_EITHER(columns, f16, names, l, r, a, tl, tr, __VA_ARGS__);  \
  }

// sums += left * right, or = without `adds`: [64, 16] by [16, 2 kSums].
template <class T, bool kLeftTransposed, bool kTransposed, int kSums>
__device__ inline void wgmma_either(float (&sums)[kSums], std::uint64_t left, std::uint64_t right,
                                    std::uint32_t adds) {
  if constexpr (!kWgmma) return;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (kSums == 16) {
    TOUCHSTONE_WGMMA_TYPES(32, TOUCHSTONE_NAMES_16, "%16", "%17", "%18", "%19", "%20",
                           TOUCHSTONE_SUMS_16(sums, 0));
  } else if constexpr (kSums == 24) {
    TOUCHSTONE_WGMMA_TYPES(48, TOUCHSTONE_NAMES_24, "%24", "%25", "%26", "%27", "%28",
                           TOUCHSTONE_SUMS_16(sums, 0), TOUCHSTONE_SUMS_8(sums, 16));
  } else if constexpr (kSums == 32) {
    TOUCHSTONE_WGMMA_TYPES(64, TOUCHSTONE_NAMES_32, "%32", "%33", "%34", "%35", "%36",
                           TOUCHSTONE_SUMS_32(sums, 0));
  } else if constexpr (kSums == 48) {
    TOUCHSTONE_WGMMA_TYPES(96, TOUCHSTONE_NAMES_48, "%48", "%49", "%50", "%51", "%52",
                           TOUCHSTONE_SUMS_32(sums, 0), TOUCHSTONE_SUMS_16(sums, 32));
  } else if constexpr (kSums == 56) {
    TOUCHSTONE_WGMMA_TYPES(112, TOUCHSTONE_NAMES_56, "%56", "%57", "%58", "%59", "%60",
                           TOUCHSTONE_SUMS_32(sums, 0), TOUCHSTONE_SUMS_16(sums, 32),
                           TOUCHSTONE_SUMS_8(sums, 48));
  } else if constexpr (kSums == 64) {
    TOUCHSTONE_WGMMA_TYPES(128, TOUCHSTONE_NAMES_64, "%64", "%65", "%66", "%67", "%68",
                           TOUCHSTONE_SUMS_64(sums, 0));
  } else if constexpr (kSums == 128) {
    TOUCHSTONE_WGMMA_TYPES(256, TOUCHSTONE_NAMES_128, "%128", "%129", "%130", "%131", "%132",
                           TOUCHSTONE_SUMS_64(sums, 0), TOUCHSTONE_SUMS_64(sums, 64));
  } else {
    static_assert(kSums == 0, "no product of this width");
  }
#endif
}

#undef TOUCHSTONE_WGMMA_TYPES
#undef TOUCHSTONE_WGMMA_EITHER
#undef TOUCHSTONE_NAMES_128
#undef TOUCHSTONE_NAMES_64
#undef TOUCHSTONE_NAMES_56
#undef TOUCHSTONE_NAMES_48
#undef TOUCHSTONE_NAMES_32
#undef TOUCHSTONE_NAMES_24
#undef TOUCHSTONE_NAMES_16
#undef TOUCHSTONE_SUMS_64
#undef TOUCHSTONE_SUMS_32
#undef TOUCHSTONE_SUMS_16
#undef TOUCHSTONE_SUMS_8

}  // namespace touchstone::cuda
