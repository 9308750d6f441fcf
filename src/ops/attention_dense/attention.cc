// The public operators over dense keys and values: checks, then the choice of implementation.
#include "touchstone/ops/attention.h"

#include <vector>

#include "core/implementation.h"
#include "ops/attention_dense/dense_checks.h"
#include "ops/attention_dense/dense_problem.h"

namespace touchstone::inline v0 {
namespace {

using dense_attention::BackwardProblem;
using dense_attention::ForwardProblem;

constexpr Implementation<ForwardProblem> kForward[] = {
    {"simd", DeviceKind::cpu, dense_attention::attention_simd_refuses,
     dense_attention::attention_simd},
    {"plain", DeviceKind::cpu, nullptr, dense_attention::attention_plain},
    {"wgmma", DeviceKind::cuda, dense_attention::attention_wgmma_refuses,
     dense_attention::attention_wgmma},
    {"mma", DeviceKind::cuda, dense_attention::attention_mma_refuses,
     dense_attention::attention_mma},
    {"portable", DeviceKind::cuda, dense_attention::attention_portable_refuses,
     dense_attention::attention_portable},
};

constexpr Implementation<BackwardProblem> kBackward[] = {
    {"simd", DeviceKind::cpu, dense_attention::attention_backward_simd_refuses,
     dense_attention::attention_backward_simd},
    {"plain", DeviceKind::cpu, nullptr, dense_attention::attention_backward_plain},
    {"wgmma", DeviceKind::cuda, dense_attention::attention_backward_wgmma_refuses,
     dense_attention::attention_backward_wgmma},
    {"mma", DeviceKind::cuda, dense_attention::attention_backward_mma_refuses,
     dense_attention::attention_backward_mma},
    {"portable", DeviceKind::cuda, dense_attention::attention_backward_portable_refuses,
     dense_attention::attention_backward_portable},
};

}  // namespace

void attention(Context& context, const AttentionArgs& args) {
  run_first<ForwardProblem>("attention", kForward, context,
                            dense_attention::check_forward(context, args), args.implementation);
}

void attention_backward(Context& context, const AttentionBackwardArgs& args) {
  run_first<BackwardProblem>("attention_backward", kBackward, context,
                             dense_attention::check_backward(context, args), args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const AttentionArgs& args) {
  return report_implementations<ForwardProblem>(kForward, context,
                                                dense_attention::check_forward(context, args));
}

std::vector<ImplementationReport> explain(Context& context, const AttentionBackwardArgs& args) {
  return report_implementations<BackwardProblem>(kBackward, context,
                                                 dense_attention::check_backward(context, args));
}

}  // namespace touchstone::inline v0
