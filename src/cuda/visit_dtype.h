// The element types of CUDA operators: f32, bf16 and f16.
#pragma once

#include "touchstone/core/dtype.h"
#include "touchstone/core/half.h"

namespace touchstone::cuda {

// Calls body.operator()<T>() with the type of `dtype`. A build that is only compiled
// (TOUCHSTONE_CUDA_COMPILE_CHECK) leaves out f16, whose code is that of bf16 with another type.
template <class Body>
void visit_dtype(DType dtype, const Body& body) {
  if (dtype == DType::f32) {
    body.template operator()<float>();
  } else if (dtype == DType::bf16) {
    body.template operator()<Bf16>();
  } else {
#ifndef TOUCHSTONE_CUDA_COMPILE_CHECK
    body.template operator()<F16>();
#endif
  }
}

}  // namespace touchstone::cuda
