// Checks and choice of implementation for layer norm and RMS norm; nothing else.
#include "ops/norm/norm.h"

#include <cstring>
#include <iterator>
#include <limits>

#include "core/cuda_runtime.h"
#include "core/implementation.h"
#include "ops/norm/norm_checks.h"

namespace touchstone::norm {
namespace {

constexpr Implementation<Forward> kForward[] = {
    {"simd", DeviceKind::cpu, nullptr, forward_simd},
    {"plain", DeviceKind::cpu, nullptr, forward_plain},
    {"persistent", DeviceKind::cuda, persistent_refuses_forward, forward_persistent},
    {"registers", DeviceKind::cuda, registers_refuses_forward, forward_registers},
    {"portable", DeviceKind::cuda, nullptr, forward_portable},
};

constexpr Implementation<Backward> kBackward[] = {
    {"simd", DeviceKind::cpu, nullptr, backward_simd},
    {"plain", DeviceKind::cpu, nullptr, backward_plain},
    {"persistent", DeviceKind::cuda, persistent_refuses_backward, backward_persistent},
    {"portable", DeviceKind::cuda, nullptr, backward_portable},
};

constexpr double kLowest = std::numeric_limits<double>::lowest();

DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// What every norm argument list goes through, with the facts it is measured against.
class NormChecks : public Checks {
 public:
  NormChecks(const char* op, const Context& context, const Argument& x)
      : Checks(op, context), x_(x) {
    present(x);
    if (context.device().is_cuda()) {
      dtype(x, {DType::f32, DType::bf16, DType::f16});
    } else {
      dtype(x, {DType::f64, DType::f32, DType::bf16, DType::f16});
    }
    layout_ = rows(x, false);
  }

  const RowLayout& layout() const { return layout_; }

  // A tensor shaped and typed like x. Returns its row stride.
  std::int64_t like_x(const Argument& a, bool writable) const {
    present(a);
    dtype(a, {x_.view.dtype});
    shape(a, x_.view.sizes());
    return rows(a, writable).stride;
  }

  void statistic(const Argument& a) const {
    present(a);
    dtype(a, {statistics_dtype(x_.view.dtype)});
    shape(a, x_.view.sizes().first(static_cast<std::size_t>(x_.view.rank - 1)));
    contiguous(a);
  }

  void column_vector(const Argument& a) const {
    present(a);
    if (x_.view.dtype == DType::bf16 || x_.view.dtype == DType::f16) {
      dtype(a, {x_.view.dtype, DType::f32});
    } else {
      dtype(a, {x_.view.dtype});
    }
    const std::int64_t expected[] = {layout_.cols};
    shape(a, expected);
    contiguous(a);
  }

  // weight and bias, or dweight and dbias. Returns their common dtype.
  DType column_vectors(const Argument& a, const Argument& b) const {
    if (a.view.defined()) column_vector(a);
    if (b.view.defined()) column_vector(b);
    if (a.view.defined() && b.view.defined()) dtype(b, {a.view.dtype});
    if (a.view.defined()) return a.view.dtype;
    return b.view.defined() ? b.view.dtype : DType::f32;
  }

 private:
  const Argument& x_;
  RowLayout layout_;
};

// `outputs` against each other and against `inputs`; an output may be one of `sharable` exactly.
struct Sharing {
  const Argument* output;
  std::initializer_list<const Argument*> sharable;
};

void check_overlap(const Checks& checks, std::initializer_list<Sharing> outputs,
                   std::initializer_list<const Argument*> inputs) {
  for (const Sharing* a = outputs.begin(); a != outputs.end(); ++a) {
    for (const Argument* input : inputs) {
      bool sharable = false;
      for (const Argument* other : a->sharable) sharable = sharable || other == input;
      checks.disjoint(*a->output, *input, sharable);
    }
    for (const Sharing* b = std::next(a); b != outputs.end(); ++b) {
      checks.disjoint(*a->output, *b->output, false);
    }
  }
}

void* writable(const Argument& a) { return const_cast<void*>(a.view.data); }

}  // namespace

Forward check_forward(const char* op, const Context& context, Kind kind,
                      const ForwardArguments& args) {
  const NormChecks checks(op, context, args.x);
  Forward p;
  p.kind = kind;
  p.dtype = args.x.view.dtype;
  p.rows = checks.layout().rows;
  p.cols = checks.layout().cols;
  p.x = {args.x.view.data, checks.layout().stride};
  if (args.residual.view.defined() != args.sum.view.defined()) {
    const bool residual = args.residual.view.defined();
    checks.fail("sum", residual ? "a tensor, since residual is given" : "none without residual",
                residual ? "none" : "a tensor");
  }
  if (args.residual.view.defined()) {
    p.residual = {args.residual.view.data, checks.like_x(args.residual, false)};
    p.sum = {writable(args.sum), checks.like_x(args.sum, true)};
  }
  p.weight_dtype = checks.column_vectors(args.weight, args.bias);
  p.weight = args.weight.view.data;
  p.bias = args.bias.view.data;
  p.y = {writable(args.y), checks.like_x(args.y, true)};
  if (args.mean.view.defined()) checks.statistic(args.mean);
  if (args.rstd.view.defined()) checks.statistic(args.rstd);
  p.mean = writable(args.mean);
  p.rstd = writable(args.rstd);
  checks.finite_at_least("eps", args.eps, 0);
  checks.finite_at_least("weight_offset", args.weight_offset, kLowest);
  p.eps = args.eps;
  p.weight_offset = args.weight_offset;
  p.round_before_weight = args.round_before_weight;
  check_overlap(checks,
                {{&args.y, {&args.x, &args.residual}},
                 {&args.sum, {&args.x, &args.residual}},
                 {&args.mean, {}},
                 {&args.rstd, {}}},
                {&args.x, &args.residual, &args.weight, &args.bias});
  return p;
}

Backward check_backward(const char* op, const Context& context, Kind kind,
                        const BackwardArguments& args) {
  const NormChecks checks(op, context, args.x);
  Backward p;
  p.kind = kind;
  p.dtype = args.x.view.dtype;
  p.rows = checks.layout().rows;
  p.cols = checks.layout().cols;
  p.x = {args.x.view.data, checks.layout().stride};
  p.dy = {args.dy.view.data, checks.like_x(args.dy, false)};
  if (kind == Kind::layer) checks.statistic(args.mean);
  checks.statistic(args.rstd);
  p.mean = args.mean.view.data;
  p.rstd = args.rstd.view.data;
  if (args.weight.view.defined()) checks.column_vector(args.weight);
  p.weight_dtype = args.weight.view.defined() ? args.weight.view.dtype : DType::f32;
  p.weight = args.weight.view.data;
  if (args.dsum.view.defined()) p.dsum = {args.dsum.view.data, checks.like_x(args.dsum, false)};
  p.dx = {writable(args.dx), checks.like_x(args.dx, true)};
  p.weight_grad_dtype = checks.column_vectors(args.dweight, args.dbias);
  p.dweight = writable(args.dweight);
  p.dbias = writable(args.dbias);
  checks.finite_at_least("weight_offset", args.weight_offset, kLowest);
  p.weight_offset = args.weight_offset;
  check_overlap(
      checks, {{&args.dx, {&args.dy, &args.x, &args.dsum}}, {&args.dweight, {}}, {&args.dbias, {}}},
      {&args.dy, &args.x, &args.mean, &args.rstd, &args.weight, &args.dsum});
  return p;
}

void run_forward(const char* op, Context& context, const Forward& problem,
                 const std::string& implementation) {
  if (problem.rows == 0 || problem.cols == 0) return;
  run_first<Forward>(op, kForward, context, problem, implementation);
}

void run_backward(const char* op, Context& context, const Backward& problem,
                  const std::string& implementation) {
  if (problem.cols == 0) return;
  if (problem.rows > 0) {
    run_first<Backward>(op, kBackward, context, problem, implementation);
    return;
  }
  // The sum over no rows.
  const std::int64_t bytes = problem.cols * size_of(problem.weight_grad_dtype);
  for (void* gradient : {problem.dweight, problem.dbias}) {
    if (gradient == nullptr) continue;
    if (context.device().is_cuda()) {
      cuda::fill_zero(context.device().index, gradient, bytes, context.stream());
    } else {
      std::memset(gradient, 0, static_cast<std::size_t>(bytes));
    }
  }
}

std::vector<ImplementationReport> report(const Context& context, const Forward& problem) {
  return report_implementations<Forward>(kForward, context, problem);
}

std::vector<ImplementationReport> report(const Context& context, const Backward& problem) {
  return report_implementations<Backward>(kBackward, context, problem);
}

}  // namespace touchstone::norm
