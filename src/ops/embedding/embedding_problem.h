// The checked problems of embedding and its backward, and the implementations that take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"
#include "touchstone/core/weight_format.h"

namespace touchstone::embedding_op {

struct Tokens {
  const void* data = nullptr;
  bool wide = false;  // i64, else i32
  std::int64_t count = 0;

  TOUCHSTONE_HOST_DEVICE std::int64_t operator[](std::int64_t n) const {
    return wide ? static_cast<const std::int64_t*>(data)[n]
                : static_cast<const std::int32_t*>(data)[n];
  }
};

// Count and dim are positive.
struct Forward {
  DType dtype = DType::f32;  // of y
  Tokens tokens{};
  std::int64_t vocabulary = 0;
  std::int64_t dim = 0;
  const std::byte* weight = nullptr;
  std::int64_t row_bytes = 0;
  const WeightFormat* format = nullptr;
  void* y = nullptr;
  std::int64_t y_stride = 0;  // elements
  double scale = 1;
};

// Vocabulary and dim are positive; there may be no tokens.
struct Backward {
  DType dtype = DType::f32;  // of dy
  DType dweight_dtype = DType::f32;
  Tokens tokens{};
  std::int64_t vocabulary = 0;
  std::int64_t dim = 0;
  const void* dy = nullptr;
  std::int64_t dy_stride = 0;
  void* dweight = nullptr;
  std::int64_t dweight_stride = 0;
  double scale = 1;
  bool accumulate = false;
};

// CPU, plain loops, one thread: embedding_plain.cc.
void forward_plain(Context& context, const Forward& p);
void backward_plain(Context& context, const Backward& p);
// CPU, Highway, every SIMD target: embedding_cpu.cc.
void forward_simd(Context& context, const Forward& p);
void backward_simd(Context& context, const Backward& p);
// CUDA: embedding_cuda.cu and embedding_cuda_backward.cu, or src/no_cuda in a CPU-only build.
// `vectorized`: 16-byte stores. `sorted`: tokens are sorted in the workspace.
std::string forward_vectorized_refuses(const Context& context, const Forward& p);
void forward_vectorized(Context& context, const Forward& p);
void forward_portable(Context& context, const Forward& p);
std::string backward_sorted_refuses(const Context& context, const Backward& p);
void backward_sorted(Context& context, const Backward& p);
void backward_portable(Context& context, const Backward& p);

}  // namespace touchstone::embedding_op
