// The public operators over dense keys and values: checks, then the choice of implementation.
#include "touchstone/ops/attention.h"

#include <vector>

#include "core/implementation.h"
#include "ops/attention_dense/dense_checks.h"
#include "ops/attention_dense/dense_problem.h"

namespace touchstone {
namespace {

using attend::AttentionBackward;
using attend::AttentionForward;

constexpr Implementation<AttentionForward> kForward[] = {
    {"simd", DeviceKind::cpu, attend::attention_simd_refuses, attend::attention_simd},
    {"plain", DeviceKind::cpu, nullptr, attend::attention_plain},
    {"wgmma", DeviceKind::cuda, attend::attention_wgmma_refuses, attend::attention_wgmma},
    {"mma", DeviceKind::cuda, attend::attention_mma_refuses, attend::attention_mma},
    {"portable", DeviceKind::cuda, attend::attention_portable_refuses, attend::attention_portable},
};

constexpr Implementation<AttentionBackward> kBackward[] = {
    {"simd", DeviceKind::cpu, attend::attention_backward_simd_refuses,
     attend::attention_backward_simd},
    {"plain", DeviceKind::cpu, nullptr, attend::attention_backward_plain},
    {"wgmma", DeviceKind::cuda, attend::attention_backward_wgmma_refuses,
     attend::attention_backward_wgmma},
    {"mma", DeviceKind::cuda, attend::attention_backward_mma_refuses,
     attend::attention_backward_mma},
    {"portable", DeviceKind::cuda, attend::attention_backward_portable_refuses,
     attend::attention_backward_portable},
};

}  // namespace

void attention(Context& context, const AttentionArgs& args) {
  run_first<AttentionForward>("attention", kForward, context, attend::check_forward(context, args),
                              args.implementation);
}

void attention_backward(Context& context, const AttentionBackwardArgs& args) {
  run_first<AttentionBackward>("attention_backward", kBackward, context,
                               attend::check_backward(context, args), args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const AttentionArgs& args) {
  return report_implementations<AttentionForward>(kForward, context,
                                                  attend::check_forward(context, args));
}

std::vector<ImplementationReport> explain(Context& context, const AttentionBackwardArgs& args) {
  return report_implementations<AttentionBackward>(kBackward, context,
                                                   attend::check_backward(context, args));
}

}  // namespace touchstone
