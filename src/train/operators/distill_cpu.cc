#include <algorithm>
#include <cmath>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "train/operators/distill_problem.h"

namespace touchstone::inline v0::train {
namespace {

std::int64_t target_at(const void* targets, bool wide, std::int64_t row) {
  return wide ? static_cast<const std::int64_t*>(targets)[row]
              : static_cast<const std::int32_t*>(targets)[row];
}

// Of logits divided by a temperature.
struct SoftmaxOfRow {
  double greatest = 0;
  double log_sum = 0;

  template <class T>
  SoftmaxOfRow(const T* logits, std::int64_t count, double temperature) {
    greatest = static_cast<double>(*std::max_element(logits, logits + count)) / temperature;
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      sum += std::exp(static_cast<double>(logits[i]) / temperature - greatest);
    }
    log_sum = greatest + std::log(sum);
  }
};

template <class Wide, class T>
void distill_row(const DistillProblem& p, std::int64_t row) {
  const Wide* const logits = static_cast<const Wide*>(p.logits) + row * p.vocabulary;
  const float* const teacher = p.teacher + row * p.vocabulary;
  T* const dlogits = static_cast<T*>(p.dlogits) + row * p.vocabulary;
  Wide& loss = static_cast<Wide*>(p.losses)[row];
  const std::int64_t target = target_at(p.targets, p.wide_targets, row);
  if (target == p.ignore) {
    loss = 0;
    std::fill_n(dlogits, p.vocabulary, convert<T>(0.0F));
    return;
  }
  const double t = p.temperature;
  const SoftmaxOfRow plain(logits, p.vocabulary, 1);
  const SoftmaxOfRow student(logits, p.vocabulary, t);
  const SoftmaxOfRow expert(teacher, p.vocabulary, t);
  const auto g = static_cast<double>(static_cast<const Wide*>(p.dloss)[row]);
  double divergence = 0;
  for (std::int64_t i = 0; i < p.vocabulary; ++i) {
    const auto l = static_cast<double>(logits[i]);
    const double log_q = static_cast<double>(teacher[i]) / t - expert.log_sum;
    const double log_p = l / t - student.log_sum;
    const double q = std::exp(log_q);
    if (q > 0) divergence += q * (log_q - log_p);
    const double hard = std::exp(l - plain.log_sum) - (i == target ? 1 : 0);
    dlogits[i] = convert<T>(
        static_cast<Wide>(g * ((1 - p.weight) * hard + p.weight * t * (std::exp(log_p) - q))));
  }
  const double hard_loss = plain.log_sum - static_cast<double>(logits[target]);
  loss = static_cast<Wide>((1 - p.weight) * hard_loss + p.weight * t * t * divergence);
}

}  // namespace

void distill_rows_cpu(Context& context, const DistillProblem& p) {
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t target = target_at(p.targets, p.wide_targets, row);
    if (target != p.ignore && (target < 0 || target >= p.vocabulary)) {
      throw InvalidArgument("distill: targets: expected 0 to " + std::to_string(p.vocabulary - 1) +
                            ", got " + std::to_string(target));
    }
  }
  visit_float_dtype(p.compute, [&]<class T>() {
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    detail::ContextAccess::pool(context).run(
        p.rows, [&](std::int64_t row) { distill_row<Wide, T>(p, row); });
  });
}

void mean_loss_cpu(Context& /*context*/, const MeanProblem& p) {
  const auto run = [&]<class T>() {
    double sum = 0;
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < p.count; ++i) {
      if (target_at(p.targets, p.wide_targets, i) == p.ignore) continue;
      sum += static_cast<double>(static_cast<const T*>(p.losses)[i]);
      ++counted;
    }
    *static_cast<T*>(p.mean) =
        static_cast<T>(counted == 0 ? 0 : sum / static_cast<double>(counted));
  };
  p.dtype == DType::f64 ? run.operator()<double>() : run.operator()<float>();
}

}  // namespace touchstone::inline v0::train
