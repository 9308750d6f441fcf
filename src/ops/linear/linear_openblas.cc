// Products by OpenBLAS, found at run time: a named implementation for callers to whom its speed is
// worth more than rows that keep their bits in any batch.
#include <dlfcn.h>

#include <vector>

#include "core/context_access.h"
#include "ops/linear/linear_epilogue.h"
#include "ops/linear/linear_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::linear_layer {
namespace {

// cblas.h, which need not be installed: CblasRowMajor, CblasNoTrans and CblasTrans.
constexpr int kRowMajor = 101;
constexpr int kNoTrans = 111;
constexpr int kTrans = 112;

template <class C>
using Gemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, C alpha, const C* a,
                      int lda, const C* b, int ldb, C beta, C* c, int ldc);

struct Library {
  Gemm<float> sgemm = nullptr;
  Gemm<double> dgemm = nullptr;

  // Never closed: its threads outlive any call.
  Library() {
    void* const handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    sgemm = reinterpret_cast<Gemm<float>>(dlsym(handle, "cblas_sgemm"));
    dgemm = reinterpret_cast<Gemm<double>>(dlsym(handle, "cblas_dgemm"));
  }
  bool found() const { return sgemm != nullptr && dgemm != nullptr; }

  template <class C>
  Gemm<C> gemm() const {
    if constexpr (std::is_same_v<C, float>) {
      return sgemm;
    } else {
      return dgemm;
    }
  }
};

const Library& library() {
  static const Library kLibrary;
  return kLibrary;
}

bool fits(std::int64_t n) { return n <= std::int64_t{0x7fffffff}; }

// Whether the library may and can run at all. Comes before every limit of a single call: a limit of
// a library that is not there says nothing.
std::string unavailable(bool allowed) {
  if (!allowed) return "its bits depend on the batch and bits_may_depend_on_batch is not set";
  if (!library().found()) return "libopenblas.so.0 is not installed";
  return {};
}

std::string refusal(DType dtype, DType weight, std::initializer_list<std::int64_t> sizes) {
  if ((dtype != DType::f32 && dtype != DType::f64) || weight != dtype) {
    return "needs x and weight of f32, or both of f64";
  }
  for (const std::int64_t size : sizes) {
    if (!fits(size)) return "sizes and strides beyond 31 bits";
  }
  return {};
}

std::int64_t weight_stride(const Weight& w) { return w.row_bytes / w.format->block_bytes; }

// op(A) op(B), both stored row by row.
template <class C>
struct Matrix {
  const C* data;
  std::int64_t stride;
  bool transposed;
};
template <class C>
void multiply(const Matrix<C>& a, const Matrix<C>& b, std::int64_t m, std::int64_t n,
              std::int64_t k, C beta, C* c, std::int64_t stride) {
  const auto i = [](std::int64_t value) { return static_cast<int>(value); };
  library().gemm<C>()(kRowMajor, a.transposed ? kTrans : kNoTrans, b.transposed ? kTrans : kNoTrans,
                      i(m), i(n), i(k), C{1}, a.data, i(a.stride), b.data, i(b.stride), beta, c,
                      i(stride));
}

template <class C>
void forward(Context& context, const Forward& p) {
  auto* const sums = static_cast<C*>(detail::ContextAccess::workspace(
      context, checked_mul(checked_mul(p.rows, p.out), std::int64_t{sizeof(C)})));
  multiply<C>({static_cast<const C*>(p.x.data), p.x.stride, false},
              {reinterpret_cast<const C*>(p.weight.data), weight_stride(p.weight), true}, p.rows,
              p.out, p.in, C{0}, sums, p.out);
  const Epilogue<C> epilogue(p);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    C* const row = sums + r * p.out;
    epilogue.store(r, 0, p.columns(), row, row + (p.gate == LinearGate::none ? 0 : p.columns()));
  }
}

template <class C>
void backward(const Backward& p) {
  const Matrix<C> dy{static_cast<const C*>(p.dy.data), p.dy.stride, false};
  if (p.dx.data != nullptr) {
    multiply<C>(dy, {reinterpret_cast<const C*>(p.weight.data), weight_stride(p.weight), false},
                p.rows, p.in, p.out, C{0}, static_cast<C*>(p.dx.data), p.dx.stride);
  }
  if (p.dweight.data != nullptr) {
    multiply<C>({dy.data, dy.stride, true}, {static_cast<const C*>(p.x.data), p.x.stride, false},
                p.out, p.in, p.rows, p.accumulate ? C{1} : C{0}, static_cast<C*>(p.dweight.data),
                p.dweight.stride);
  }
  if (p.dbias == nullptr) return;
  auto* const to = static_cast<C*>(p.dbias);
  for (std::int64_t o = 0; o < p.out; ++o) {
    double sum = p.accumulate ? static_cast<double>(to[o]) : 0;
    for (std::int64_t r = 0; r < p.rows; ++r)
      sum += static_cast<double>(dy.data[r * dy.stride + o]);
    to[o] = static_cast<C>(sum);
  }
}

}  // namespace

std::string openblas_refuses_forward(const Context& context, const Forward& p) {
  (void)context;
  if (std::string reason = unavailable(p.bits_may_depend_on_batch); !reason.empty()) return reason;
  if (p.int8_activations) return "int8_activations";
  if (p.in == 0) return "in = 0";
  return refusal(p.dtype, p.weight.format->dtype.value_or(DType::u8),
                 {p.rows, p.in, p.out, p.x.stride, weight_stride(p.weight)});
}

std::string openblas_refuses_backward(const Context& context, const Backward& p) {
  (void)context;
  if (std::string reason = unavailable(p.bits_may_depend_on_batch); !reason.empty()) return reason;
  if (p.rows == 0 || p.in == 0 || p.out == 0) return "a size of 0";
  const bool has_weight = p.dx.data != nullptr;
  return refusal(p.dtype, has_weight ? p.weight.format->dtype.value_or(DType::u8) : p.dtype,
                 {p.rows, p.in, p.out, p.dy.stride, p.x.stride, p.dx.stride, p.dweight.stride,
                  has_weight ? weight_stride(p.weight) : 0});
}

void forward_openblas(Context& context, const Forward& p) {
  p.dtype == DType::f64 ? forward<double>(context, p) : forward<float>(context, p);
}

void backward_openblas(Context& context, const Backward& p) {
  (void)context;
  p.dtype == DType::f64 ? backward<double>(p) : backward<float>(p);
}

}  // namespace touchstone::linear_layer
