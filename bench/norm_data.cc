#include "bench/norm_data.h"

#include "bench/data.h"
#include "touchstone/core/checked.h"
#include "touchstone/ops/layer_norm.h"
#include "touchstone/ops/rms_norm.h"

namespace touchstone::bench {
namespace {

DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

LayerNormArgs layer_forward(const NormData& data, NormSet& set) {
  LayerNormArgs args;
  args.x = set.x;
  args.weight = data.gamma;
  args.bias = data.beta;
  args.y = set.out;
  args.mean = set.mean;
  args.rstd = set.rstd;
  args.eps = kEpsilon;
  return args;
}

LayerNormBackwardArgs layer_backward(const NormData& data, NormSet& set) {
  LayerNormBackwardArgs args;
  args.dy = set.dy;
  args.x = set.x;
  args.mean = set.mean;
  args.rstd = set.rstd;
  args.weight = data.gamma;
  args.dx = set.out;
  args.dweight = set.dgamma;
  args.dbias = set.dbeta;
  return args;
}

RmsNormArgs rms_forward(const NormData& data, NormSet& set) {
  RmsNormArgs args;
  args.x = set.x;
  args.weight = data.gamma;
  args.y = set.out;
  args.rstd = set.rstd;
  args.eps = kEpsilon;
  return args;
}

RmsNormBackwardArgs rms_backward(const NormData& data, NormSet& set) {
  RmsNormBackwardArgs args;
  args.dy = set.dy;
  args.x = set.x;
  args.rstd = set.rstd;
  args.weight = data.gamma;
  args.dx = set.out;
  args.dweight = set.dgamma;
  return args;
}

}  // namespace

std::string NormProblem::op() const {
  return std::string(kind == norm::Kind::layer ? "layer_norm" : "rms_norm") +
         (direction == Direction::forward ? "_forward" : "_backward");
}

std::string NormProblem::shape() const { return std::to_string(rows) + "x" + std::to_string(cols); }

std::int64_t NormProblem::tensor_bytes() const {
  return checked_mul(checked_mul(rows, cols, "bench: elements"), size_of(dtype), "bench: bytes");
}

std::int64_t NormProblem::minimal_bytes() const {
  return checked_mul(tensor_bytes(), direction == Direction::forward ? 2 : 3, "bench: bytes");
}

std::int64_t norm_data_bytes(const NormProblem& problem, int sets, bool backward) {
  return checked_mul(checked_mul(problem.tensor_bytes(), backward ? 3 : 2, "bench: bytes"), sets,
                     "bench: bytes");
}

NormData make_norm_data(Context& context, const NormProblem& problem, int sets, bool backward) {
  const Device device = problem.device;
  const DType dtype = problem.dtype;
  const DType statistics = statistics_dtype(dtype);
  NormData data;
  data.gamma = Tensor::empty({problem.cols}, dtype, device);
  data.beta = Tensor::empty({problem.cols}, dtype, device);
  fill_random(context, data.gamma, 1.0F, 0.25F, 1);
  fill_random(context, data.beta, 0.0F, 0.5F, 2);
  for (int i = 0; i < sets; ++i) {
    const auto seed = 16 + 4 * static_cast<std::uint64_t>(i);
    NormSet set;
    set.x = Tensor::empty({problem.rows, problem.cols}, dtype, device);
    set.out = Tensor::empty({problem.rows, problem.cols}, dtype, device);
    set.mean = Tensor::empty({problem.rows}, statistics, device);
    set.rstd = Tensor::empty({problem.rows}, statistics, device);
    fill_random(context, set.x, 0.5F, 2.0F, seed);
    fill_random(context, set.out, 0.0F, 1.0F, seed + 1);
    if (backward) {
      set.dy = Tensor::empty({problem.rows, problem.cols}, dtype, device);
      set.dgamma = Tensor::empty({problem.cols}, dtype, device);
      set.dbeta = Tensor::empty({problem.cols}, dtype, device);
      fill_random(context, set.dy, 0.0F, 1.0F, seed + 2);
    }
    data.sets.push_back(std::move(set));
  }
  // The backward of every contender starts from the same statistics: those of our forward.
  NormProblem forward = problem;
  forward.direction = Direction::forward;
  const NormCall prepare = touchstone_call(context, forward, data);
  for (NormSet& set : data.sets) prepare(set);
  context.synchronize();
  return data;
}

NormCall touchstone_call(Context& context, const NormProblem& problem, const NormData& data) {
  const bool forward = problem.direction == Direction::forward;
  // One of the operators on the arguments that `args` makes of a set.
  const auto call = [&](auto op, auto args) -> NormCall {
    return [&context, &data, op, args, name = problem.implementation](NormSet& set) {
      auto operands = args(data, set);
      operands.implementation = name;
      op(context, operands);
    };
  };
  if (problem.kind == norm::Kind::layer) {
    return forward ? call(layer_norm, layer_forward) : call(layer_norm_backward, layer_backward);
  }
  return forward ? call(rms_norm, rms_forward) : call(rms_norm_backward, rms_backward);
}

std::vector<ImplementationReport> touchstone_implementations(Context& context,
                                                             const NormProblem& problem,
                                                             NormData& data) {
  const bool forward = problem.direction == Direction::forward;
  NormSet& set = data.sets.front();
  if (problem.kind == norm::Kind::layer) {
    return forward ? explain(context, layer_forward(data, set))
                   : explain(context, layer_backward(data, set));
  }
  return forward ? explain(context, rms_forward(data, set))
                 : explain(context, rms_backward(data, set));
}

std::string touchstone_implementation(Context& context, const NormProblem& problem,
                                      NormData& data) {
  if (!problem.implementation.empty()) return problem.implementation;
  for (const ImplementationReport& report : touchstone_implementations(context, problem, data)) {
    if (report.accepted) return report.name;
  }
  return "none";
}

}  // namespace touchstone::bench
