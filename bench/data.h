// Memory to measure on, and looks into it.
#pragma once

#include <cstdint>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"

namespace touchstone::bench {

// Near-normal values: center + scale * N(0, 1). The pages of CPU tensors are first touched by the
// threads of the context; CUDA: queued on its stream.
void fill_random(Context& context, Tensor& tensor, float center, float scale, std::uint64_t seed);

// [rows, cols] of f32 noise on the context's device.
Tensor random_tensor(Context& context, std::int64_t rows, std::int64_t cols);

// Every byte 0xff: NaN in each floating point format, -1 in each integer one.
void poison(Context& context, Tensor& tensor);

// How many sets of operands of `bytes` each it takes to exceed the last cache of the device four
// times.
int sets_beyond_cache(Device device, std::int64_t bytes);

// Evenly spread over [0, count), the first and the last among them; all when there are no more.
std::vector<std::int64_t> spread_sample(std::int64_t count, std::int64_t wanted);

// The elements of a tensor, and the given rows of a [rows, cols] tensor one after another, as
// numbers.
std::vector<double> doubles(const Tensor& tensor);
std::vector<double> sampled_rows(const Tensor& tensor, const std::vector<std::int64_t>& rows);

// The relative error that counts as right before a time is taken. Far above rounding, far below any
// mistake; the tests hold the operators to derived bounds.
double error_bound(DType dtype);

}  // namespace touchstone::bench
