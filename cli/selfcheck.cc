// touchstone selfcheck: every operator, implementation, dtype and device of this machine against
// the float64 oracle, on a handful of shapes. A look of seconds; the tests are the proof.
#include "cli/selfcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "bench/norm_data.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "oracle/layer_norm.h"
#include "oracle/rms_norm.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

using bench::Direction;
using bench::NormProblem;

struct Shape {
  std::int64_t rows;
  std::int64_t cols;
  double offset;  // added to x, whose deviation is 2
};

// One column, a ragged row, an ordinary layer, a long ragged row, and a mean far from zero, where
// a careless variance loses every digit.
constexpr Shape kShapes[] = {{7, 1, 0}, {33, 65, 0}, {64, 1024, 0}, {3, 4097, 0}, {16, 768, 2e4}};

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-53;
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}

// What the outputs should be, and the sizes of the terms they are sums of.
struct Expected {
  std::vector<double> out;  // y or dx
  std::vector<double> out_size;
  std::vector<double> dgamma;
  std::vector<double> dgamma_size;
  std::vector<double> dbeta;
  std::vector<double> dbeta_size;
};

std::vector<double> doubles(const Tensor& tensor) {
  const Tensor host = tensor.to(Device::cpu());
  std::vector<double> result;
  visit_float_dtype(host.dtype(), [&]<class T>() {
    for (const T value : host.values<T>()) result.push_back(convert<double>(value));
  });
  return result;
}

Expected expected_forward(const NormProblem& problem, const bench::NormData& data) {
  const std::vector<double> x = doubles(data.sets.front().x);
  const std::vector<double> gamma = doubles(data.gamma);
  const std::vector<double> beta = doubles(data.beta);
  Expected expected;
  expected.out.resize(x.size());
  expected.out_size.resize(x.size());
  if (problem.kind == norm::Kind::layer) {
    oracle::LayerNormForward<double> args;
    args.rows = problem.rows, args.cols = problem.cols, args.eps = bench::kEpsilon;
    args.x = x.data(), args.gamma = gamma.data(), args.beta = beta.data();
    args.y = expected.out.data();
    oracle::layer_norm_forward(args);
    args.y = expected.out_size.data();
    oracle::layer_norm_forward_magnitude(args);
  } else {
    oracle::RmsNormForward<double> args;
    args.rows = problem.rows, args.cols = problem.cols, args.eps = bench::kEpsilon;
    args.x = x.data(), args.weight = gamma.data(), args.y = expected.out.data();
    oracle::rms_norm_forward(args);
    args.y = expected.out_size.data();
    oracle::rms_norm_forward_magnitude(args);
  }
  return expected;
}

Expected expected_backward(const NormProblem& problem, const bench::NormData& data) {
  const std::vector<double> x = doubles(data.sets.front().x);
  const std::vector<double> dy = doubles(data.sets.front().dy);
  const std::vector<double> gamma = doubles(data.gamma);
  Expected expected;
  for (auto* values : {&expected.out, &expected.out_size}) values->resize(x.size());
  for (auto* values :
       {&expected.dgamma, &expected.dgamma_size, &expected.dbeta, &expected.dbeta_size}) {
    values->resize(gamma.size());
  }
  if (problem.kind == norm::Kind::layer) {
    oracle::LayerNormBackward args;
    args.rows = problem.rows, args.cols = problem.cols, args.eps = bench::kEpsilon;
    args.dy = dy.data(), args.h = x.data(), args.gamma = gamma.data();
    args.dx = expected.out.data(), args.dgamma = expected.dgamma.data();
    args.dbeta = expected.dbeta.data();
    oracle::layer_norm_backward(args);
    args.dx = expected.out_size.data(), args.dgamma = expected.dgamma_size.data();
    args.dbeta = expected.dbeta_size.data();
    oracle::layer_norm_backward_magnitude(args);
  } else {
    oracle::RmsNormBackward args;
    args.rows = problem.rows, args.cols = problem.cols, args.eps = bench::kEpsilon;
    args.dy = dy.data(), args.h = x.data(), args.weight = gamma.data();
    args.dx = expected.out.data(), args.dweight = expected.dgamma.data();
    oracle::rms_norm_backward(args);
    args.dx = expected.out_size.data(), args.dweight = expected.dgamma_size.data();
    oracle::rms_norm_backward_magnitude(args);
    expected.dbeta.clear();
  }
  return expected;
}

// The largest |got - expected| / bound, infinite where there is a NaN. An output is rounded once,
// and carries the rounding of sums of `terms` values whose sizes are `size`; a row's statistics
// carry the sizes of the whole row, `row` values long, into each of its elements.
double worst_ratio(DType dtype, const std::vector<double>& got, const std::vector<double>& expected,
                   const std::vector<double>& size, std::int64_t terms, std::int64_t row) {
  const double arithmetic = unit_roundoff(dtype == DType::f64 ? DType::f64 : DType::f32);
  // Pairwise or blocked sums grow with the logarithm; the oracle, itself a running sum in f64,
  // with the square root of the number of terms.
  const auto n = static_cast<double>(terms);
  const double growth = 16 + 2 * std::log2(n) + (dtype == DType::f64 ? std::sqrt(n) : 0);
  double worst = 0;
  const auto step = static_cast<std::size_t>(row);
  for (std::size_t start = 0; start < got.size(); start += step) {
    double mean_size = 0;
    for (std::size_t i = start; i < start + step; ++i)
      mean_size += size[i] / static_cast<double>(row);
    for (std::size_t i = start; i < start + step; ++i) {
      const double bound = unit_roundoff(dtype) * std::fabs(expected[i]) +
                           arithmetic * growth * (size[i] + mean_size) + 0x1p-149;
      const double ratio = std::fabs(got[i] - expected[i]) / bound;
      if (!(ratio <= worst)) worst = std::isnan(ratio) ? HUGE_VAL : ratio;
    }
  }
  return worst;
}

double check_forward(const NormProblem& problem, const bench::NormData& data) {
  const Expected expected = expected_forward(problem, data);
  return worst_ratio(problem.dtype, doubles(data.sets.front().out), expected.out, expected.out_size,
                     problem.cols, problem.cols);
}

double check_backward(const NormProblem& problem, const bench::NormData& data) {
  const Expected expected = expected_backward(problem, data);
  const bench::NormSet& set = data.sets.front();
  double worst = worst_ratio(problem.dtype, doubles(set.out), expected.out, expected.out_size,
                             problem.cols, problem.cols);
  const std::int64_t terms = problem.rows + problem.cols;
  worst = std::max(worst, worst_ratio(problem.dtype, doubles(set.dgamma), expected.dgamma,
                                      expected.dgamma_size, terms, problem.cols));
  if (!expected.dbeta.empty()) {
    worst = std::max(worst, worst_ratio(problem.dtype, doubles(set.dbeta), expected.dbeta,
                                        expected.dbeta_size, terms, problem.cols));
  }
  return worst;
}

// Moves x away from zero, where the dtype can still tell its values apart.
void add_offset(Context& context, const NormProblem& problem, bench::NormData& data,
                double offset) {
  Tensor x = data.sets.front().x.to(Device::cpu());
  visit_float_dtype(x.dtype(), [&]<class T>() {
    for (T& value : x.values<T>()) value = convert<T>(convert<double>(value) + offset);
  });
  data.sets.front().x = x.to(problem.device);
  NormProblem forward = problem;
  forward.direction = Direction::forward;
  bench::touchstone_call(context, forward, data)(data.sets.front());
}

// Every implementation that takes the problem.
void check_problem(std::vector<Outcome>& outcomes, Context& context, NormProblem problem,
                   double offset) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    problem.direction = direction;
    const bool forward = direction == Direction::forward;
    problem.implementation.clear();
    bench::NormData data = bench::make_norm_data(context, problem, 1, !forward);
    if (offset != 0) add_offset(context, problem, data, offset);
    for (const ImplementationReport& report :
         bench::touchstone_implementations(context, problem, data)) {
      if (!report.accepted) continue;
      problem.implementation = report.name;
      bench::touchstone_call(context, problem, data)(data.sets.front());
      context.synchronize();
      add_outcome(outcomes, {.op = problem.op(),
                             .device = name_of(context.device()),
                             .implementation = report.name,
                             .dtype = std::string(name_of(problem.dtype)),
                             .worst = forward ? check_forward(problem, data)
                                              : check_backward(problem, data)});
    }
  }
}

std::vector<Outcome> check_device(Device device) {
  std::vector<Outcome> outcomes;
  ContextOptions wanted;
  wanted.device = device;
  Context context(wanted);
  std::vector<DType> dtypes = {DType::f64, DType::f32, DType::bf16, DType::f16};
  if (device.is_cuda()) dtypes.erase(dtypes.begin());
  Progress progress;
  for (const norm::Kind kind : {norm::Kind::layer, norm::Kind::rms}) {
    for (const DType dtype : dtypes) {
      for (const Shape& shape : kShapes) {
        const bool wide = dtype == DType::f64 || dtype == DType::f32;
        if (shape.offset != 0 && !wide) continue;
        NormProblem problem;
        problem.kind = kind;
        problem.dtype = dtype;
        problem.device = device;
        problem.rows = shape.rows;
        problem.cols = shape.cols;
        progress.show(
            fmt::format("selfcheck: {} {} {}", problem.op(), name_of(dtype), problem.shape()));
        check_problem(outcomes, context, problem, shape.offset);
      }
    }
  }
  const auto show = [&](const std::string& what) { progress.show(what); };
  check_selections(outcomes, context, show);
  check_attention(outcomes, context, show);
  return outcomes;
}

int selfcheck(bool json) {
  std::vector<Device> devices = {Device::cpu()};
  for (std::size_t i = 0; i < cuda_devices().size(); ++i) {
    devices.push_back(Device::cuda(static_cast<int>(i)));
  }
  std::vector<Outcome> outcomes;
  for (const Device device : devices) {
    for (Outcome& outcome : check_device(device)) outcomes.push_back(std::move(outcome));
  }
  const auto failures =
      std::ranges::count_if(outcomes, [](const Outcome& outcome) { return !outcome.right(); });
  if (json) {
    Json rows = Json::array();
    for (const Outcome& outcome : outcomes) {
      // JSON has no infinity: a NaN in the output is null here.
      rows.push_back({{"op", outcome.op},
                      {"device", outcome.device},
                      {"impl", outcome.implementation},
                      {"dtype", outcome.dtype},
                      {"shapes", outcome.shapes},
                      {"error_over_bound", outcome.worst},
                      {"ok", outcome.right()}});
    }
    print_json({{"version", version()}, {"ok", failures == 0}, {"checks", rows}});
    return failures == 0 ? kOk : kNo;
  }
  Table table({"operator", "device", "impl", "dtype", ">shapes", ">error / bound", "verdict"});
  for (const Outcome& outcome : outcomes) {
    table.add({outcome.op, outcome.device, outcome.implementation, outcome.dtype,
               std::to_string(outcome.shapes), fmt::format("{:.3f}", outcome.worst),
               outcome.right() ? "ok" : "FAILED"},
              outcome.right() ? Tone::plain : Tone::bad);
  }
  print(table.text());
  print(failures == 0 ? toned("selfcheck: all right\n", Tone::good)
                      : toned(fmt::format("selfcheck: {} FAILED\n", failures), Tone::bad));
  return failures == 0 ? kOk : kNo;
}

}  // namespace

void add_outcome(std::vector<Outcome>& outcomes, const Outcome& fresh) {
  auto found = std::ranges::find_if(outcomes, [&](const Outcome& other) {
    return other.op == fresh.op && other.device == fresh.device &&
           other.implementation == fresh.implementation && other.dtype == fresh.dtype;
  });
  if (found == outcomes.end()) {
    outcomes.push_back(fresh);
    found = std::prev(outcomes.end());
    found->worst = 0;
  }
  ++found->shapes;
  if (!(fresh.worst <= found->worst)) found->worst = fresh.worst;
}

void add_selfcheck(Options& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  Options* verb = app.add_verb("selfcheck", "Check every operator against its oracle");
  verb->add_flag("--json", *json, "Print JSON");
  verb->callback([json, &exit_code] { exit_code = selfcheck(*json); });
}

}  // namespace touchstone::cli
