// Checks of ternary_project and its CPU implementation.
#include "touchstone/ops/ternary_project.h"

#include <algorithm>
#include <string>

#include "core/checks.h"
#include "core/context_access.h"
#include "core/implementation.h"
#include "core/thread_pool.h"
#include "cpu/ternary_group.h"
#include "ops/ternary_project/ternary_project_problem.h"
#include "ops/ternary_project/ternary_project_tuning.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0 {
namespace ternary_op {
namespace {

using tuning::kGroupsPerTask, tuning::kValuesPerTask;

Problem checked(const Context& context, const TernaryProjectArgs& args) {
  const Argument weight{"weight", args.weight};
  const Argument values{"values", args.values};
  const Argument codes{"codes", args.codes};
  const Argument scales{"scales", args.scales};
  const Checks checks("ternary_project", context);
  checks.present(weight);
  if (context.device().is_cuda()) {
    checks.dtype(weight, {DType::f32});
  } else {
    checks.dtype(weight, {DType::f32, DType::f64});
  }
  if (args.weight.rank != 2) {
    checks.fail("weight", "[rows, cols]", shape_string(args.weight.sizes()));
  }
  checks.contiguous(weight);
  Problem p{.rule = args.rule,
            .dtype = args.weight.dtype,
            .rows = args.weight.shape[0],
            .cols = args.weight.shape[1],
            .weight = args.weight.data};
  if (static_cast<std::uint8_t>(p.rule.geometry.grouping) > 2 ||
      static_cast<std::uint8_t>(p.rule.scale) > 2 ||
      static_cast<std::uint8_t>(p.rule.scale_type) > 2) {
    checks.fail("rule", "values of their enumerations", "others");
  }
  p.groups = ternary_groups(p.rule.geometry, p.rows, p.cols);
  if (args.values.defined()) {
    checks.present(values);
    if (p.dtype == DType::f64) {
      checks.dtype(values, {DType::f64, DType::f32, DType::bf16, DType::f16});
    } else {
      checks.dtype(values, {DType::f32, DType::bf16, DType::f16});
    }
    checks.shape(values, args.weight.sizes());
    checks.contiguous(values);
    p.values = args.values.data;
    p.values_dtype = args.values.dtype;
  }
  const std::int64_t groups[] = {p.groups};
  p.codes = static_cast<std::int8_t*>(
      const_cast<void*>(checks.array(codes, DType::i8, args.weight.sizes())));
  p.scales = static_cast<float*>(const_cast<void*>(checks.array(scales, DType::f32, groups)));
  if (!args.values.defined() && !args.codes.defined() && !args.scales.defined()) {
    checks.fail("values", "at least one of values, codes and scales", "none");
  }
  checks.disjoint(values, weight, p.values_dtype == p.dtype);
  checks.disjoint(codes, weight, false);
  checks.disjoint(scales, weight, false);
  checks.disjoint(codes, values, false);
  checks.disjoint(scales, values, false);
  checks.disjoint(scales, codes, false);
  return p;
}

// Values [begin, begin + count) of the matrix, which belong to one group.
template <class T>
void apply(const Problem& p, std::int64_t begin, std::int64_t count, double scale) {
  const T* const x = static_cast<const T*>(p.weight) + begin;
  const T threshold = ternary::threshold_of<T>(scale);
  if (p.codes != nullptr) ternary::write_codes(x, count, threshold, p.codes + begin);
  if (p.values == nullptr) return;
  const float stored = ternary_stored_scale(scale, p.rule.scale_type);
  visit_float_dtype(p.values_dtype, [&]<class V>() {
    ternary::write_values(x, count, threshold, stored, static_cast<V*>(p.values) + begin);
  });
}

template <class T>
void run_type(Context& context, const Problem& p) {
  ThreadPool& pool = detail::ContextAccess::pool(context);
  const auto scale_of = [&](std::int64_t group) {
    const TernarySpan span = ternary_group(p.rule.geometry, p.rows, p.cols, group);
    return ternary::group_scale(p.rule.scale, static_cast<const T*>(p.weight) + span.begin,
                                span.count);
  };
  const auto store_scale = [&](std::int64_t group, double scale) {
    if (p.scales != nullptr) p.scales[group] = ternary_stored_scale(scale, p.rule.scale_type);
  };
  if (p.groups == 1) {
    const double scale = scale_of(0);
    const std::int64_t all = p.rows * p.cols;
    store_scale(0, scale);
    pool.run(ceil_div(all, kValuesPerTask), [&](std::int64_t task) {
      const std::int64_t begin = task * kValuesPerTask;
      apply<T>(p, begin, std::min(kValuesPerTask, all - begin), scale);
    });
    return;
  }
  const std::int64_t per_task =
      p.rule.geometry.grouping == TernaryGrouping::row ? 1 : kGroupsPerTask;
  pool.run(ceil_div(p.groups, per_task), [&](std::int64_t task) {
    const std::int64_t end = std::min(p.groups, (task + 1) * per_task);
    for (std::int64_t group = task * per_task; group < end; ++group) {
      const TernarySpan span = ternary_group(p.rule.geometry, p.rows, p.cols, group);
      const double scale = scale_of(group);
      apply<T>(p, span.begin, span.count, scale);
      store_scale(group, scale);
    }
  });
}

}  // namespace

void run_cpu(Context& context, const Problem& p) {
  if (p.dtype == DType::f64) {
    run_type<double>(context, p);
  } else {
    run_type<float>(context, p);
  }
}

}  // namespace ternary_op

namespace {

bool has_column_groups(const ternary_op::Problem& p) {
  return p.rule.geometry.grouping == TernaryGrouping::group;
}

std::string warp_per_group_refuses(const Context& /*context*/, const ternary_op::Problem& p) {
  return has_column_groups(p) ? "" : "groups are rows or the tensor, needs 32 to 256 columns";
}
std::string multi_pass_refuses(const Context& /*context*/, const ternary_op::Problem& p) {
  if (has_column_groups(p)) return "groups are columns, needs rows or the tensor";
  // Their values would have to be sorted.
  return p.rule.scale == TernaryScaleRule::least_squares
             ? "rule: least squares over rows and tensors runs on the CPU"
             : "";
}

constexpr char kWarpPerGroup[] = "warp_per_group";
constexpr char kMultiPass[] = "multi_pass";

constexpr Implementation<ternary_op::Problem> kTernaryList[] = {
    {"plain", DeviceKind::cpu, nullptr, ternary_op::run_cpu},
    {kWarpPerGroup, DeviceKind::cuda, warp_per_group_refuses, ternary_op::run_warp_per_group},
    {kMultiPass, DeviceKind::cuda, multi_pass_refuses, ternary_op::run_multi_pass},
};

// Without a requested name, the one kernel for this kind of groups, so that its own reason is
// reported where it refuses.
std::string implementation_of(const Context& context, const ternary_op::Problem& p,
                              const std::string& wanted) {
  if (!context.device().is_cuda() || !wanted.empty()) return wanted;
  return has_column_groups(p) ? kWarpPerGroup : kMultiPass;
}

}  // namespace

void ternary_project(Context& context, const TernaryProjectArgs& args) {
  const ternary_op::Problem p = ternary_op::checked(context, args);
  if (p.groups == 0) return;
  run_first<ternary_op::Problem>("ternary_project", kTernaryList, context, p,
                                 implementation_of(context, p, args.implementation));
}

std::vector<ImplementationReport> explain(Context& context, const TernaryProjectArgs& args) {
  return report_implementations<ternary_op::Problem>(kTernaryList, context,
                                                     ternary_op::checked(context, args));
}

}  // namespace touchstone::inline v0
