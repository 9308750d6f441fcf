// Checks and choice of implementation for linear; nothing else.
#include "touchstone/ops/linear.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/checks.h"
#include "core/implementation.h"
#include "ops/linear/linear_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace linear_checks {
namespace {

using linear_layer::Backward;
using linear_layer::Forward;

constexpr char kForwardName[] = "linear";
constexpr char kBackwardName[] = "linear_backward";

// Ours come first: a library is taken only by its name.
constexpr Implementation<Forward> kForward[] = {
    {"ternary", DeviceKind::cpu, linear_layer::ternary_refuses_cpu,
     linear_layer::forward_ternary_cpu},
    {"amx", DeviceKind::cpu, linear_layer::amx_refuses_forward, linear_layer::forward_amx},
    {"simd", DeviceKind::cpu, nullptr, linear_layer::forward_simd},
    {"plain", DeviceKind::cpu, nullptr, linear_layer::forward_plain},
    {"ternary_stream", DeviceKind::cuda, linear_layer::ternary_stream_refuses,
     linear_layer::forward_ternary_stream},
    {"ternary_tiles", DeviceKind::cuda, linear_layer::ternary_tiles_refuses,
     linear_layer::forward_ternary_tiles},
    {"ternary_portable", DeviceKind::cuda, linear_layer::ternary_portable_refuses,
     linear_layer::forward_ternary_portable},
    {"stream", DeviceKind::cuda, linear_layer::stream_refuses, linear_layer::forward_stream},
    {"wgmma", DeviceKind::cuda, linear_layer::wgmma_refuses_forward, linear_layer::forward_wgmma},
    {"portable", DeviceKind::cuda, nullptr, linear_layer::forward_portable},
    {"cublaslt", DeviceKind::cuda, linear_layer::cublaslt_refuses_forward,
     linear_layer::forward_cublaslt},
    {"openblas", DeviceKind::cpu, linear_layer::openblas_refuses_forward,
     linear_layer::forward_openblas},
};

constexpr Implementation<Backward> kBackward[] = {
    {"amx", DeviceKind::cpu, linear_layer::amx_refuses_backward, linear_layer::backward_amx},
    {"simd", DeviceKind::cpu, nullptr, linear_layer::backward_simd},
    {"plain", DeviceKind::cpu, nullptr, linear_layer::backward_plain},
    {"wgmma", DeviceKind::cuda, linear_layer::wgmma_refuses_backward, linear_layer::backward_wgmma},
    {"portable", DeviceKind::cuda, nullptr, linear_layer::backward_portable},
    {"cublaslt", DeviceKind::cuda, linear_layer::cublaslt_refuses_backward,
     linear_layer::backward_cublaslt},
    {"openblas", DeviceKind::cpu, linear_layer::openblas_refuses_backward,
     linear_layer::backward_openblas},
};

DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

void* writable(const Argument& a) { return const_cast<void*>(a.view.data); }

class LinearChecks : public Checks {
 public:
  LinearChecks(const char* op, const Context& context, const Argument& first)
      : Checks(op, context), op_(op), first_(first) {
    present(first);
    if (context.device().is_cuda()) {
      dtype(first, {DType::f32, DType::bf16, DType::f16});
    } else {
      dtype(first, {DType::f64, DType::f32, DType::bf16, DType::f16});
    }
    layout_ = rows(first, false);
  }

  DType x_dtype() const { return first_.view.dtype; }
  const RowLayout& layout() const { return layout_; }

  // [.., cols] with the leading shape of the first argument. Returns the row stride.
  std::int64_t matrix(const Argument& a, std::int64_t cols, std::initializer_list<DType> dtypes,
                      bool writable) const {
    present(a);
    dtype(a, dtypes);
    std::vector<std::int64_t> expected(first_.view.sizes().begin(), first_.view.sizes().end());
    expected.back() = cols;
    shape(a, expected);
    return rows(a, writable).stride;
  }

  // [size], like x or wide.
  void vector(const Argument& a, std::int64_t size) const {
    present(a);
    dtype(a, {x_dtype(), wide(x_dtype())});
    const std::int64_t expected[] = {size};
    shape(a, expected);
    contiguous(a);
  }

  // [out, in] of a dtype or as bytes; sets out.
  linear_layer::Weight weight(const Argument& a, const std::string& format_name, std::int64_t in,
                              std::int64_t& out) const {
    present(a);
    if (a.view.rank != 2) fail(a.name, "[out, in]", shape_string(a.view.sizes()));
    linear_layer::Weight w{.data = static_cast<const std::byte*>(a.view.data),
                           .format = format_of(a, format_name)};
    out = a.view.shape[0];
    const std::string what = std::string(op_) + ": in";
    const std::int64_t columns =
        w.format->dtype.has_value() ? in : weight_bytes(*w.format, in, what);
    const std::int64_t expected[] = {out, columns};
    shape(a, expected);
    w.row_bytes = checked_mul(rows(a, false).stride, size_of(a.view.dtype), "weight bytes");
    return w;
  }

 private:
  const WeightFormat* format_of(const Argument& a, const std::string& name) const {
    if (name.empty()) {
      if (x_dtype() == DType::f64) {
        dtype(a, {DType::f64});
      } else {
        dtype(a, {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3});
      }
      return touchstone::weight_format(a.view.dtype);
    }
    const WeightFormat& format = touchstone::weight_format(std::string_view(name));
    if (format.dtype.has_value()) {
      fail("weight_format", "a block format, or none for weights of a dtype", name);
    }
    if (x_dtype() == DType::f64) fail("weight_format", "none, since x is f64", name);
    dtype(a, {DType::u8});
    return &format;
  }

  const char* op_;
  const Argument& first_;
  RowLayout layout_;
};

Forward checked(const Context& context, const LinearArgs& args) {
  const Argument x{"x", args.x};
  const Argument weight{"weight", args.weight};
  const Argument bias{"bias", args.bias};
  const Argument residual{"residual", args.residual};
  const Argument y{"y", args.y};
  const LinearChecks checks(kForwardName, context, x);
  Forward p;
  p.dtype = checks.x_dtype();
  p.rows = checks.layout().rows;
  p.in = checks.layout().cols;
  p.x = {args.x.data, checks.layout().stride};
  p.weight = checks.weight(weight, args.weight_format, p.in, p.out);
  p.gate = args.gate;
  if (static_cast<std::uint8_t>(args.gate) > static_cast<std::uint8_t>(LinearGate::gelu_tanh)) {
    checks.fail("gate", "none, silu, gelu or gelu_tanh",
                std::to_string(static_cast<int>(args.gate)));
  }
  if (args.gate != LinearGate::none && p.out % 2 != 0) {
    checks.fail("weight", "an even number of rows, since there is a gate", std::to_string(p.out));
  }
  checks.soft_cap(args.soft_cap, p.dtype);
  p.soft_cap = args.soft_cap;
  if (args.bias.defined()) {
    checks.vector(bias, p.out);
    p.bias = args.bias.data;
    p.bias_dtype = args.bias.dtype;
  }
  p.y = {writable(y), checks.matrix(y, p.columns(), {p.dtype, wide(p.dtype)}, true)};
  p.y_dtype = args.y.dtype;
  if (args.residual.defined()) {
    p.residual = {args.residual.data, checks.matrix(residual, p.columns(), {p.dtype}, false)};
  }
  for (const Argument* input : {&x, &weight, &bias}) checks.disjoint(y, *input, false);
  checks.disjoint(y, residual, p.y_dtype == p.dtype);
  p.int8_activations = args.int8_activations;
  p.bits_may_depend_on_batch = args.bits_may_depend_on_batch;
  p.constant_weight = args.constant_weight;
  return p;
}

Backward checked(const Context& context, const LinearBackwardArgs& args) {
  const Argument dy{"dy", args.dy};
  const Argument x{"x", args.x};
  const Argument weight{"weight", args.weight};
  const Argument dx{"dx", args.dx};
  const Argument dweight{"dweight", args.dweight};
  const Argument dbias{"dbias", args.dbias};
  const LinearChecks checks(kBackwardName, context, dy);
  Backward p;
  p.dtype = p.dx_dtype = checks.x_dtype();
  p.rows = checks.layout().rows;
  p.out = checks.layout().cols;
  p.dy = {args.dy.data, checks.layout().stride};
  p.in = args.dx.defined()        ? args.dx.shape[at(std::max(args.dx.rank, 1) - 1)]
         : args.dweight.defined() ? args.dweight.shape[1]
                                  : 0;
  if (args.dx.defined()) {
    std::int64_t out = 0;
    p.dx = {writable(dx), checks.matrix(dx, p.in, {p.dtype}, true)};
    p.weight = checks.weight(weight, args.weight_format, p.in, out);
    if (out != p.out) checks.fail("weight", std::to_string(p.out) + " rows", std::to_string(out));
  }
  if (args.dweight.defined()) {
    p.x = {args.x.data, checks.matrix(x, p.in, {p.dtype}, false)};
    checks.present(dweight);
    checks.dtype(dweight, {p.dtype, wide(p.dtype)});
    const std::int64_t expected[] = {p.out, p.in};
    checks.shape(dweight, expected);
    p.dweight = {writable(dweight), checks.rows(dweight, true).stride};
    p.dweight_dtype = args.dweight.dtype;
  }
  if (args.dbias.defined()) {
    checks.vector(dbias, p.out);
    p.dbias = writable(dbias);
    p.dbias_dtype = args.dbias.dtype;
  }
  p.accumulate = args.accumulate;
  for (const Argument* gradient : {&dweight, &dbias}) {
    if (p.accumulate && gradient->view.defined()) checks.dtype(*gradient, {wide(p.dtype)});
  }
  const Argument* const outputs[] = {&dx, &dweight, &dbias};
  for (std::size_t i = 0; i < std::size(outputs); ++i) {
    for (const Argument* input : {&dy, &x, &weight}) checks.disjoint(*outputs[i], *input, false);
    for (std::size_t j = i + 1; j < std::size(outputs); ++j) {
      checks.disjoint(*outputs[i], *outputs[j], false);
    }
  }
  p.bits_may_depend_on_batch = args.bits_may_depend_on_batch;
  return p;
}

}  // namespace
}  // namespace linear_checks

void linear(Context& context, const LinearArgs& args) {
  using namespace linear_checks;
  const Forward p = checked(context, args);
  if (p.rows == 0 || p.out == 0) return;
  run_first<Forward>(kForwardName, kForward, context, p, args.implementation);
}

void linear_backward(Context& context, const LinearBackwardArgs& args) {
  using namespace linear_checks;
  const Backward p = checked(context, args);
  run_first<Backward>(kBackwardName, kBackward, context, p, args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const LinearArgs& args) {
  using namespace linear_checks;
  return report_implementations<Forward>(kForward, context, checked(context, args));
}

std::vector<ImplementationReport> explain(Context& context, const LinearBackwardArgs& args) {
  using namespace linear_checks;
  return report_implementations<Backward>(kBackward, context, checked(context, args));
}

}  // namespace touchstone::inline v0
