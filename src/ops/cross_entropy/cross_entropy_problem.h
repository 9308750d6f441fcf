// The checked problem of cross_entropy and its backward, what a token's numbers are made of, and the
// implementations.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::cross_entropy_op {

struct Targets {
  const void* data = nullptr;
  bool wide = false;  // i64, else i32

  TOUCHSTONE_HOST_DEVICE std::int64_t operator[](std::int64_t n) const {
    return wide ? static_cast<const std::int64_t*>(data)[n]
                : static_cast<const std::int32_t*>(data)[n];
  }
};

// A matrix of known dtype: element (r, c) at data[r * stride + c]. Null = absent.
struct Matrix {
  void* data = nullptr;
  std::int64_t stride = 0;
};

// Forward and backward; the forward has neither dx nor dweight. Vocabulary is positive.
struct Problem {
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::int64_t dim = 0;
  std::int64_t vocabulary = 0;
  Matrix x{};       // only read
  Matrix weight{};  // only read
  Targets targets{};
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  double z_loss = 0;
  double soft_cap = 0;
  // Per token, in the dtype of losses; null = absent.
  void* loss = nullptr;
  void* log_probability = nullptr;
  void* lse = nullptr;
  void* mean_loss = nullptr;
  bool backward = false;
  const void* dloss = nullptr;
  Matrix dx{};
  Matrix dweight{};
  DType dweight_dtype = DType::f32;
  bool accumulate = false;
};

// The parameters of the formulas of a token.
struct Formula {
  std::int64_t vocabulary = 0;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  double z_loss = 0;
  double soft_cap = 0;

  explicit Formula(const Problem& p)
      : vocabulary(p.vocabulary),
        ignore_index(p.ignore_index),
        label_smoothing(p.label_smoothing),
        z_loss(p.z_loss),
        soft_cap(p.soft_cap) {}
  Formula() = default;
};

template <class C>
struct RowResult {
  C loss;
  C log_probability;
};

// Of a token with a target in range.
template <class C>
TOUCHSTONE_HOST_DEVICE RowResult<C> finish_row(const Formula& f, C lse, C target_logit,
                                               C mean_logit) {
  const C smoothing = static_cast<C>(f.label_smoothing);
  const C log_probability = target_logit - lse;
  C loss = (smoothing - C{1}) * log_probability;
  if (f.label_smoothing > 0) loss += smoothing * (lse - mean_logit);
  if (f.z_loss > 0) loss += static_cast<C>(f.z_loss) * lse * lse;
  return {loss, log_probability};
}

// dl[v] = softmax * exp(l[v] - lse) - uniform - [v = target] * target, times the slope of the cap.
template <class C>
struct RowGradient {
  C softmax;
  C uniform;
  C target;
};

template <class C>
TOUCHSTONE_HOST_DEVICE RowGradient<C> gradient_of(const Formula& f, C lse, C dloss) {
  return {dloss * (C{1} + C{2} * static_cast<C>(f.z_loss) * lse),
          dloss * static_cast<C>(f.label_smoothing / static_cast<double>(f.vocabulary)),
          dloss * static_cast<C>(1 - f.label_smoothing)};
}

// CPU, plain loops, one thread, f64: cross_entropy_plain.cc.
void run_plain(Context& context, const Problem& p);
// CPU, tiles of the vocabulary through the products of linear: cross_entropy_cpu.cc.
void run_simd(Context& context, const Problem& p);
// The same in bf16 on the tiles of AMX.
std::string amx_refuses(const Context& context, const Problem& p);
void run_amx(Context& context, const Problem& p);
// CUDA: cross_entropy_wgmma.cu and cross_entropy_portable.cu, or src/no_cuda in a CPU-only build.
std::string wgmma_refuses(const Context& context, const Problem& p);
void run_wgmma(Context& context, const Problem& p);
std::string portable_refuses(const Context& context, const Problem& p);
void run_portable(Context& context, const Problem& p);

}  // namespace touchstone::cross_entropy_op
