// CUDA's own element types, which the naive peers are written in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "touchstone/core/dtype.h"
#include "touchstone/core/error.h"

namespace touchstone::bench {

// Calls body.operator()<T>().
template <class Body>
auto visit_cuda_dtype(DType dtype, Body body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::f16:
      return body.template operator()<__half>();
    case DType::bf16:
      return body.template operator()<__nv_bfloat16>();
    default:
      throw Unsupported("bench: dtype: expected f32, bf16 or f16 on CUDA, got " +
                        std::string(name_of(dtype)));
  }
}

__device__ inline float load(const float* from) { return *from; }
__device__ inline float load(const __half* from) { return __half2float(*from); }
__device__ inline float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }

}  // namespace touchstone::bench
