#include "ops/norm/norm_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "tests/support/guarded_call.h"

namespace touchstone::test {
namespace {

DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

RmsNormArgs rms_args(const ForwardArgs& a) {
  return {.x = a.x,
          .residual = a.residual,
          .weight = a.weight,
          .y = a.y,
          .sum = a.sum,
          .rstd = a.rstd,
          .eps = a.eps,
          .weight_offset = a.weight_offset,
          .rounding = a.rounding,
          .implementation = a.implementation};
}

RmsNormBackwardArgs rms_args(const BackwardArgs& a) {
  return {.dy = a.dy,
          .x = a.x,
          .rstd = a.rstd,
          .weight = a.weight,
          .dsum = a.dsum,
          .dx = a.dx,
          .dweight = a.dweight,
          .weight_offset = a.weight_offset,
          .implementation = a.implementation};
}

spec::NormProblem spec_problem(const Problem& p) {
  return {.layer = p.kind == Kind::layer,
          .dtype = p.dtypes.x,
          .grad_dtype = p.dtypes.weight_grad,
          .rows = p.rows(),
          .cols = p.cols,
          .eps = p.eps,
          .weight_offset = p.weight_offset,
          .before_weight = p.before_weight};
}

spec::NormValues spec_values(const Data& data) {
  return {data.h, data.weight, data.bias, data.dy, data.dsum};
}

// The backward that goes with a forward: `registers` is one of the forward alone.
std::string backward_of(const std::string& forward) {
  return forward == "registers" ? "persistent" : forward;
}

}  // namespace

Statistics oracle_statistics(const Problem& p, const Data& data) {
  return spec::norm_statistics(spec_problem(p), spec_values(data));
}
ExpectedForward expected_forward(const Problem& p, const Data& data) {
  return spec::norm_forward_reference(spec_problem(p), spec_values(data));
}
ExpectedBackward expected_backward(const Problem& p, const Data& data) {
  return spec::norm_backward_reference(spec_problem(p), spec_values(data));
}

std::vector<DTypes> all_dtypes() {
  std::vector<DTypes> all;
  if (!on_gpu()) all.push_back({DType::f64, DType::f64, DType::f64});
  all.push_back({DType::f32, DType::f32, DType::f32});
  for (const DType half : {DType::bf16, DType::f16}) {
    for (const DType weight : {half, DType::f32}) {
      for (const DType weight_grad : {half, DType::f32}) all.push_back({half, weight, weight_grad});
    }
  }
  return all;
}

std::int64_t Problem::rows() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : lead) count *= extent;
  return count;
}

std::vector<std::int64_t> Problem::shape() const {
  std::vector<std::int64_t> result = lead;
  result.push_back(cols);
  return result;
}

std::string Problem::describe() const {
  std::ostringstream text;
  text << (kind == Kind::layer ? "layer_norm " : "rms_norm ") << shape_string(shape()) << " "
       << name_of(dtypes.x) << ", weights " << name_of(dtypes.weight) << ", their gradients "
       << name_of(dtypes.weight_grad) << ", eps " << eps << ", center " << x.center << ", scale "
       << x.scale << ", gap " << layout.row_gap << ", offset " << layout.offset;
  if (weight) text << (weight_zeros ? ", weight with zeros" : ", weight");
  if (bias && kind == Kind::layer) text << ", bias";
  if (fused) text << ", fused";
  if (statistics) text << ", statistics";
  if (!weight_grads) text << ", no weight gradients";
  if (weight_offset != 0) text << ", weight offset " << weight_offset;
  if (before_weight) text << ", rounded before the weight";
  return text.str();
}

Data make_data(const Problem& p) {
  const std::int64_t count = p.rows() * p.cols;
  const auto values = [&](const Distribution& d, std::int64_t n, DType dtype, std::uint64_t salt) {
    return rounded(random_values(d, n, p.seed * 1000 + salt), dtype);
  };
  Data data;
  data.x = values(p.x, count, p.dtypes.x, 1);
  data.h = data.x;
  if (p.fused) {
    data.residual = values({.scale = p.x.scale}, count, p.dtypes.x, 2);
    data.dsum = values({}, count, p.dtypes.x, 3);
    for (std::size_t i = 0; i < data.h.size(); ++i) data.h[i] += data.residual[i];
    data.h = rounded(data.h, p.dtypes.x);
  }
  if (p.weight) {
    data.weight = values({.center = 1 - p.weight_offset, .scale = 0.5}, p.cols, p.dtypes.weight, 4);
    for (std::size_t i = 0; p.weight_zeros && i < data.weight.size(); i += 3) data.weight[i] = 0;
  }
  if (p.bias && p.kind == Kind::layer) data.bias = values({}, p.cols, p.dtypes.weight, 5);
  data.dy = values(p.dy, count, p.dtypes.x, 6);
  return data;
}

void call(Context& context, Kind kind, const ForwardArgs& args) {
  if (kind == Kind::layer) {
    layer_norm(context, args);
  } else {
    rms_norm(context, rms_args(args));
  }
}

void call(Context& context, Kind kind, const BackwardArgs& args) {
  if (kind == Kind::layer) {
    layer_norm_backward(context, args);
  } else {
    rms_norm_backward(context, rms_args(args));
  }
}

std::vector<ImplementationReport> reports(Context& context, Kind kind, const ForwardArgs& args) {
  return kind == Kind::layer ? explain(context, args) : explain(context, rms_args(args));
}

std::vector<ImplementationReport> reports(Context& context, Kind kind, const BackwardArgs& args) {
  return kind == Kind::layer ? explain(context, args) : explain(context, rms_args(args));
}

ForwardRun::ForwardRun(const Problem& p, const Data& data) : kind(p.kind) {
  const Device device = test_device();
  x = Guarded(device, p.dtypes.x, p.shape(), data.x, p.layout);
  y = Guarded(device, p.dtypes.x, p.shape(), p.layout);
  if (p.fused) {
    residual = Guarded(device, p.dtypes.x, p.shape(), data.residual, p.layout);
    sum = Guarded(device, p.dtypes.x, p.shape(), p.layout);
  }
  if (p.weight) weight = Guarded(device, p.dtypes.weight, {p.cols}, data.weight);
  if (!data.bias.empty()) bias = Guarded(device, p.dtypes.weight, {p.cols}, data.bias);
  if (p.statistics) {
    const DType dtype = statistics_dtype(p.dtypes.x);
    if (p.kind == Kind::layer) mean = Guarded(device, dtype, p.lead);
    rstd = Guarded(device, dtype, p.lead);
  }
  args.x = x;
  args.residual = residual;
  args.weight = weight;
  args.bias = bias;
  args.y = y;
  args.sum = sum;
  args.mean = mean;
  args.rstd = rstd;
  args.eps = p.eps;
  args.weight_offset = p.weight_offset;
  args.rounding = p.before_weight ? RmsNormRounding::before_weight : RmsNormRounding::once;
}

std::vector<std::string> ForwardRun::accepting() const {
  Runner context({.device = test_device(), .threads = 1});
  return accepting_names("norm forward", reports(context, kind, args));
}

void ForwardRun::run(Runner& context) {
  run_guarded(context, "norm forward", {&x, &residual, &weight, &bias}, {&y, &sum, &mean, &rstd},
              [&] { call(context, kind, context.with(args)); });
}

BackwardRun::BackwardRun(const Problem& p, const Data& data) : kind(p.kind) {
  const Device device = test_device();
  const Statistics values = oracle_statistics(p, data);
  const DType statistics = statistics_dtype(p.dtypes.x);
  dy = Guarded(device, p.dtypes.x, p.shape(), data.dy, p.layout);
  x = Guarded(device, p.dtypes.x, p.shape(), data.h, p.layout);
  if (p.kind == Kind::layer) mean = Guarded(device, statistics, p.lead, values.mean);
  rstd = Guarded(device, statistics, p.lead, values.rstd);
  if (p.weight) weight = Guarded(device, p.dtypes.weight, {p.cols}, data.weight);
  if (p.fused) dsum = Guarded(device, p.dtypes.x, p.shape(), data.dsum, p.layout);
  dx = Guarded(device, p.dtypes.x, p.shape(), p.layout);
  if (p.weight_grads) {
    dweight = Guarded(device, p.dtypes.weight_grad, {p.cols});
    if (p.kind == Kind::layer) dbias = Guarded(device, p.dtypes.weight_grad, {p.cols});
  }
  args.dy = dy;
  args.x = x;
  args.mean = mean;
  args.rstd = rstd;
  args.weight = weight;
  args.dsum = dsum;
  args.dx = dx;
  args.dweight = dweight;
  args.dbias = dbias;
  args.weight_offset = p.weight_offset;
}

void BackwardRun::take_statistics(const ForwardRun& forward) {
  if (mean.defined()) mean.set(forward.mean.values());
  rstd.set(forward.rstd.values());
}

std::vector<std::string> BackwardRun::accepting() const {
  Runner context({.device = test_device(), .threads = 1});
  return accepting_names("norm backward", reports(context, kind, args));
}

BackwardArgs BackwardRun::args_on(const Runner& runner) const {
  BackwardArgs result = args;
  result.implementation = backward_of(runner.implementation());
  return result;
}

void BackwardRun::run(Runner& context) {
  const std::string forward = context.implementation();
  context.set_implementation(backward_of(forward));
  run_guarded(context, "norm backward", {&dy, &x, &mean, &rstd, &weight, &dsum},
              {&dx, &dweight, &dbias}, [&] { call(context, kind, context.with(args)); });
  context.set_implementation(forward);
}

void check_forward(const Problem& p, Targets targets) {
  SCOPED_TRACE(p.describe());
  const Data data = make_data(p);
  const ExpectedForward expected = expected_forward(p, data);
  ForwardRun run(p, data);
  for_each_on(targets, run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_TRUE(close(run.y.values(), expected.y, p.dtypes.x, p.cols)) << "y";
    // One addition in the dtype: there is one right answer, to the bit.
    if (p.fused) {
      EXPECT_EQ(run.sum.values(), data.h) << "sum";
    }
    if (run.mean.defined()) {
      EXPECT_TRUE(close(run.mean.values(), expected.mean, run.mean.dtype())) << "mean";
    }
    if (run.rstd.defined()) {
      EXPECT_TRUE(close(run.rstd.values(), expected.rstd, run.rstd.dtype())) << "rstd";
    }
  });
}

void check_backward(const Problem& p, Targets targets) {
  SCOPED_TRACE(p.describe());
  const Data data = make_data(p);
  const ExpectedBackward expected = expected_backward(p, data);
  BackwardRun run(p, data);
  for_each_on(targets, run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_TRUE(close(run.dx.values(), expected.dx, p.dtypes.x, p.cols)) << "dx";
    if (run.dweight.defined()) {
      EXPECT_TRUE(close(run.dweight.values(), expected.dweight, run.dweight.dtype())) << "dweight";
    }
    if (run.dbias.defined()) {
      EXPECT_TRUE(close(run.dbias.values(), expected.dbias, run.dbias.dtype())) << "dbias";
    }
  });
}

std::vector<std::string> both(const ForwardRun& forward, const BackwardRun& backward) {
  std::vector<std::string> names = forward.accepting();
  const std::vector<std::string> others = backward.accepting();
  std::erase_if(names, [&](const std::string& name) {
    return std::find(others.begin(), others.end(), backward_of(name)) == others.end();
  });
  return names;
}

void for_each_round_trip(const Problem& p, const Data& data,
                         const std::function<void(Runner&, ForwardRun&, BackwardRun&)>& body) {
  SCOPED_TRACE(p.describe());
  ForwardRun forward(p, data);
  BackwardRun backward(p, data);
  for_each_runner(both(forward, backward), [&](Runner& context) {
    forward.run(context);
    backward.take_statistics(forward);
    backward.run(context);
    body(context, forward, backward);
  });
}

}  // namespace touchstone::test
