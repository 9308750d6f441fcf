// Descriptions of tensors in global memory for the copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "touchstone/core/dtype.h"

namespace touchstone::cuda {

// [batch, head, token, column] of a 16-bit dtype; strides in elements, that of a column is 1.
struct HeadsShape {
  const void* data = nullptr;
  std::int64_t batches = 1, heads = 1, tokens = 1, columns = 1;
  std::int64_t batch_stride = 0, head_stride = 0, token_stride = 0;
};

// Whether the copy engine takes it: everything a multiple of 16 bytes.
bool can_map(const HeadsShape& shape);

// For copies of slices: kSliceColumns columns of `rows` tokens (at most 256), swizzled as wgmma.cuh
// says.
CUtensorMap slice_map(const HeadsShape& shape, DType dtype, int rows);

}  // namespace touchstone::cuda
