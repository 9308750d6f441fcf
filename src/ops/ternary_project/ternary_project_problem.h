// A checked problem of ternary_project.
#pragma once

#include <cstdint>

#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"
#include "touchstone/core/ternary.h"

namespace touchstone::inline v0::ternary_op {

// rows and cols are positive. Outputs that are null are not written.
struct Problem {
  TernaryRule rule;
  DType dtype = DType::f32;  // of weight: f32, or on the CPU f64
  DType values_dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t groups = 0;
  const void* weight = nullptr;
  void* values = nullptr;
  std::int8_t* codes = nullptr;
  float* scales = nullptr;
};

void run_cpu(Context& context, const Problem& p);
// ternary_project_cuda.cu, or src/no_cuda in a CPU-only build: groups of columns, rows and tensors.
void run_warp_per_group(Context& context, const Problem& p);
void run_multi_pass(Context& context, const Problem& p);

}  // namespace touchstone::inline v0::ternary_op
