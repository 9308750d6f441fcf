// What the naive peers on CUDA are written in: CUDA's own element types, a join over a block.
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

// Joins the values of all kThreads threads of the block, in every thread.
template <int kThreads, class Value, class Join>
__device__ Value block_join(Value value, Join join) {
  __shared__ Value partial[kThreads];
  partial[threadIdx.x] = value;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (static_cast<int>(threadIdx.x) < width) {
      partial[threadIdx.x] = join(partial[threadIdx.x], partial[threadIdx.x + width]);
    }
    __syncthreads();
  }
  const Value result = partial[0];
  __syncthreads();
  return result;
}

}  // namespace touchstone::bench
