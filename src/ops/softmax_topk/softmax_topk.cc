#include "touchstone/ops/softmax_topk.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/checks.h"
#include "core/implementation.h"
#include "ops/softmax_topk/softmax_topk_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace {

using topk::SoftmaxTopkProblem;

constexpr char kName[] = "softmax_topk";

constexpr Implementation<SoftmaxTopkProblem> kImplementations[] = {
    {"simd", DeviceKind::cpu, topk::softmax_topk_simd_refuses, topk::softmax_topk_simd},
    {"plain", DeviceKind::cpu, nullptr, topk::softmax_topk_plain},
    {"subwarp_smem", DeviceKind::cuda, topk::softmax_topk_subwarp_smem_refuses,
     topk::softmax_topk_subwarp_smem},
    {"subwarp", DeviceKind::cuda, topk::softmax_topk_subwarp_refuses, topk::softmax_topk_subwarp},
    {"cluster", DeviceKind::cuda, topk::softmax_topk_cluster_refuses, topk::softmax_topk_cluster},
    {"two_phase", DeviceKind::cuda, topk::softmax_topk_two_phase_refuses,
     topk::softmax_topk_two_phase},
    {"streaming_packed", DeviceKind::cuda, topk::softmax_topk_streaming_packed_refuses,
     topk::softmax_topk_streaming_packed},
    {"streaming", DeviceKind::cuda, topk::softmax_topk_streaming_refuses,
     topk::softmax_topk_streaming},
    {"sort", DeviceKind::cuda, topk::softmax_topk_sort_refuses, topk::softmax_topk_sort},
};

// The arguments by the names that messages use.
struct Arguments {
  explicit Arguments(const SoftmaxTopkArgs& args)
      : logits{"logits", args.logits},
        temperature{"temperature", args.temperature},
        bias{"bias", args.bias},
        token_mask{"token_mask", args.token_mask},
        probabilities{"probabilities", args.probabilities},
        indices{"indices", args.indices},
        log_probabilities{"log_probabilities", args.log_probabilities},
        log_sum_exp{"log_sum_exp", args.log_sum_exp},
        status{"status", args.status} {}

  Argument logits, temperature, bias, token_mask;
  Argument probabilities, indices, log_probabilities, log_sum_exp, status;
};

class TopkChecks : public Checks {
 public:
  TopkChecks(const Context& context, const Argument& logits)
      : Checks(kName, context), logits_(logits) {
    present(logits);
    dtype(logits, {DType::f32, DType::bf16, DType::f16});
    layout_ = rows(logits, false);
    if (layout_.cols < 1) {
      fail(logits.name, "at least one token", shape_string(logits.view.sizes()));
    }
  }

  const RowLayout& layout() const { return layout_; }

  // The leading shape of logits, followed by `last` if that is not negative.
  std::vector<std::int64_t> leading_shape(std::int64_t last = -1) const {
    const auto sizes = logits_.view.sizes();
    std::vector<std::int64_t> result(sizes.begin(), sizes.end() - 1);
    if (last >= 0) result.push_back(last);
    return result;
  }

  // k, which the last extent of probabilities decides.
  std::int64_t slots(const Argument& a) const {
    present(a);
    dtype(a, {DType::f32});
    if (a.view.rank != logits_.view.rank) shape(a, leading_shape(1));
    const std::int64_t k = a.view.shape[static_cast<std::size_t>(a.view.rank - 1)];
    if (k < 1 || k > layout_.cols) {
      fail(a.name, "a last extent of 1 to " + std::to_string(layout_.cols), std::to_string(k));
    }
    return k;
  }

  // A contiguous tensor of the leading shape, or of that and `last`.
  void output(const Argument& a, DType type, std::int64_t last = -1) const {
    present(a);
    dtype(a, {type});
    const std::vector<std::int64_t> expected = leading_shape(last);
    shape(a, expected);
    if (last >= 0) rows(a, true);
    contiguous(a);
  }

  // An input [last], the same for every row, or [.., last]. Returns its row stride.
  std::int64_t per_token(const Argument& a, DType type, std::int64_t last) const {
    present(a);
    dtype(a, {type});
    if (a.view.rank == 1) {
      const std::int64_t expected[] = {last};
      shape(a, expected);
    } else {
      shape(a, leading_shape(last));
    }
    const std::int64_t stride = rows(a, false).stride;
    return a.view.rank == 1 ? 0 : stride;
  }

 private:
  const Argument& logits_;
  RowLayout layout_;
};

void check_overlap(const Checks& checks, const Arguments& a) {
  const Argument* const inputs[] = {&a.logits, &a.temperature, &a.bias, &a.token_mask};
  const Argument* const outputs[] = {&a.probabilities, &a.indices, &a.log_probabilities,
                                     &a.log_sum_exp, &a.status};
  for (auto output = std::begin(outputs); output != std::end(outputs); ++output) {
    for (const Argument* input : inputs) checks.disjoint(**output, *input, false);
    for (auto other = std::next(output); other != std::end(outputs); ++other) {
      checks.disjoint(**output, **other, false);
    }
  }
}

void check_inputs(const TopkChecks& checks, const Arguments& a, SoftmaxTopkProblem& p) {
  if (a.temperature.view.defined()) {
    checks.output(a.temperature, DType::f32);
    p.temperature = static_cast<const float*>(a.temperature.view.data);
  }
  if (a.bias.view.defined()) {
    p.bias_stride = checks.per_token(a.bias, DType::f32, p.vocabulary);
    p.bias = static_cast<const float*>(a.bias.view.data);
  }
  if (a.token_mask.view.defined()) {
    p.token_mask_stride = checks.per_token(a.token_mask, DType::i32, ceil_div(p.vocabulary, 32));
    p.token_mask = static_cast<const std::uint32_t*>(a.token_mask.view.data);
  }
}

void check_outputs(const TopkChecks& checks, const Arguments& a, const SoftmaxTopkArgs& args,
                   SoftmaxTopkProblem& p) {
  checks.output(a.probabilities, DType::f32, p.k);
  p.probabilities = static_cast<float*>(args.probabilities.data);
  checks.present(a.indices);
  checks.dtype(a.indices, {DType::i32, DType::i64});
  p.wide_indices = a.indices.view.dtype == DType::i64;
  checks.output(a.indices, a.indices.view.dtype, p.k);
  if (!p.wide_indices && p.vocabulary > std::numeric_limits<std::int32_t>::max()) {
    checks.fail("indices", "dtype i64 for " + std::to_string(p.vocabulary) + " tokens", "i32");
  }
  p.indices = args.indices.data;
  if (a.log_probabilities.view.defined()) checks.output(a.log_probabilities, DType::f32, p.k);
  p.log_probabilities = static_cast<float*>(args.log_probabilities.data);
  if (a.log_sum_exp.view.defined()) checks.output(a.log_sum_exp, DType::f32);
  p.log_sum_exp = static_cast<float*>(args.log_sum_exp.data);
  if (a.status.view.defined()) checks.output(a.status, DType::i32);
  p.status = static_cast<std::int32_t*>(args.status.data);
}

SoftmaxTopkProblem checked(const Context& context, const SoftmaxTopkArgs& args) {
  const Arguments a(args);
  const TopkChecks checks(context, a.logits);
  SoftmaxTopkProblem p;
  p.dtype = a.logits.view.dtype;
  p.rows = checks.layout().rows;
  p.vocabulary = checks.layout().cols;
  p.logits = a.logits.view.data;
  p.logits_stride = checks.layout().stride;
  p.k = checks.slots(a.probabilities);
  check_inputs(checks, a, p);
  check_outputs(checks, a, args, p);
  if (!std::isfinite(args.temperature_scale) || args.temperature_scale <= 0) {
    checks.fail("temperature_scale", "a finite number above 0",
                std::to_string(args.temperature_scale));
  }
  p.temperature_scale = args.temperature_scale;
  p.renormalize = args.renormalize;
  check_overlap(checks, a);
  return p;
}

}  // namespace

void softmax_topk(Context& context, const SoftmaxTopkArgs& args) {
  const SoftmaxTopkProblem problem = checked(context, args);
  if (problem.rows == 0) return;
  run_first<SoftmaxTopkProblem>(kName, kImplementations, context, problem, args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const SoftmaxTopkArgs& args) {
  return report_implementations<SoftmaxTopkProblem>(kImplementations, context,
                                                    checked(context, args));
}

}  // namespace touchstone::inline v0
