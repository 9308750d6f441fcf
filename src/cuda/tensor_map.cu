#include <algorithm>
#include <limits>
#include <string>

#include "cuda/check.h"
#include "cuda/tensor_map.h"
#include "cuda/wgmma.cuh"
#include "touchstone/core/error.h"

namespace touchstone::cuda {
namespace {

// From the driver that is there, so that the library does not have to be linked against it.
auto encoder() {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found),
          "cudaGetDriverEntryPointByVersion");
    if (found != cudaDriverEntryPointSuccess) {
      throw Unsupported("the driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

}  // namespace

bool can_map(const HeadsShape& shape) {
  const auto fits = [](std::int64_t extent, std::int64_t stride) {
    return extent <= std::numeric_limits<std::int32_t>::max() &&
           (extent <= 1 || (stride > 0 && stride % 8 == 0 && stride < (std::int64_t{1} << 38)));
  };
  return reinterpret_cast<std::uintptr_t>(shape.data) % 16 == 0 &&
         fits(shape.batches, shape.batch_stride) && fits(shape.heads, shape.head_stride) &&
         fits(shape.tokens, shape.token_stride);
}

CUtensorMap slice_map(const HeadsShape& shape, DType dtype, int rows) {
  const auto extent = [](std::int64_t n) {
    return static_cast<cuuint64_t>(std::max<std::int64_t>(n, 1));
  };
  // A stride that is never taken may be anything, but it is checked.
  const auto bytes = [](std::int64_t count, std::int64_t stride) {
    return static_cast<cuuint64_t>(count <= 1 ? 16 : stride * 2);
  };
  const cuuint64_t extents[] = {extent(shape.columns), extent(shape.tokens), extent(shape.heads),
                                extent(shape.batches)};
  const cuuint64_t strides[] = {bytes(shape.tokens, shape.token_stride),
                                bytes(shape.heads, shape.head_stride),
                                bytes(shape.batches, shape.batch_stride)};
  const cuuint32_t box[] = {kSliceColumns, static_cast<cuuint32_t>(rows), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result = encoder()(
      &map,
      dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      const_cast<void*>(shape.data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw DeviceError("cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result)));
  }
  return map;
}

}  // namespace touchstone::cuda
