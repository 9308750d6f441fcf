// ternary_project: rows x columns. Codes and stored scales are exact: the sums are made in f64, and
// normal numbers do not come within 1e-15 of a tie or of the middle of two halves.
#include "touchstone/ops/ternary_project.h"

#include <memory>

#include "core/index.h"
#include "oracle/ternary_project.h"
#include "spec/operators.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/convert.h"

namespace touchstone::spec {
namespace {

constexpr oracle::TernaryScale kOracleRule[] = {
    oracle::TernaryScale::mean, oracle::TernaryScale::absmax, oracle::TernaryScale::least_squares};

template <class T>
double rounded(double x) {
  return convert<double>(convert<T>(x));
}

class TernaryProject : public Problem {
 public:
  explicit TernaryProject(const cases::Case& item)
      : dtype_(item.dtype),
        values_dtype_(item.dtype_option("values", DType::f32)),
        rule_{.geometry = parse_ternary_geometry(item.text("groups", "128")),
              .scale = parse_ternary_scale_rule(item.text("scale", "mean")),
              .scale_type = static_cast<TernaryScaleType>(
                  item.choice("stored", {"f16", "f32", "f16_bf16"}))} {
    item.check_options({"groups", "scale", "stored", "values"});
    const std::vector<std::int64_t> dims = item.dims("x");
    rows_ = dims[0], cols_ = dims[1];
    groups_ = ternary_groups(rule_.geometry, rows_, cols_);
  }

  enum : std::size_t { kWeight, kValues, kCodes, kScales, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    const std::vector<std::int64_t> shape{rows_, cols_};
    list[kWeight] = {.name = "weight", .dtype = dtype_, .shape = shape, .scale = 0.05};
    list[kValues] = {.name = "values", .dtype = values_dtype_, .shape = shape, .output = true};
    list[kCodes] = {.name = "codes", .dtype = DType::i8, .shape = shape, .output = true};
    list[kScales] = {.name = "scales", .shape = {groups_}, .output = true};
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return invoke(ternary_project, args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    OutputReference values{.operand = kValues}, codes{.operand = kCodes},
        scales{.operand = kScales};
    const std::vector<double> all = reader.all(kWeight);
    // Groups of the sampled rows: `rows` says how many, a matrix of one group is looked at whole.
    const std::int64_t wanted =
        sample == kAllRows ? groups_ : checked_mul(sample, ceil_div(groups_, rows_));
    for (const std::int64_t group : spread_sample(groups_, wanted)) {
      const TernarySpan span = ternary_group(rule_.geometry, rows_, cols_, group);
      const auto* const begin = all.data() + span.begin;
      const double scale = oracle::ternary_scale(kOracleRule[static_cast<int>(rule_.scale)],
                                                 {begin, begin + span.count});
      const double kept = stored(scale);
      scales.add(group, kept, 0);
      for (std::int64_t i = span.begin; i < span.begin + span.count; ++i) {
        const auto code = static_cast<double>(oracle::ternary_code(all[at(i)], scale));
        codes.add(i, code, 0);
        visit_float_dtype(values_dtype_,
                          [&]<class T>() { values.add(i, rounded<T>(code * kept), 0); });
      }
    }
    return {values, codes, scales};
  }

  Cost cost() const override {
    const std::int64_t each = size_of(dtype_) + size_of(values_dtype_) + 1;
    const std::int64_t matrix = checked_mul(checked_mul(rows_, cols_, "elements"), each, "bytes");
    return {.bytes = checked_add(matrix, checked_mul(groups_, 4), "bytes")};
  }
  Labels labels() const override {
    return {.rows = rows_, .cols = cols_, .format = ternary_geometry_name(rule_.geometry)};
  }

 private:
  TernaryProjectArgs args(Views v, const std::string& implementation) const {
    return {.weight = v[kWeight],
            .rule = rule_,
            .values = v[kValues],
            .codes = v[kCodes],
            .scales = v[kScales],
            .implementation = implementation};
  }

  // Normal weights are far from the ends of f16.
  double stored(double scale) const {
    switch (rule_.scale_type) {
      case TernaryScaleType::f16:
        return rounded<F16>(scale);
      case TernaryScaleType::f32:
        return rounded<float>(scale);
      default:
        return rounded<F16>(rounded<Bf16>(scale));
    }
  }

  DType dtype_;
  DType values_dtype_;
  TernaryRule rule_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::int64_t groups_ = 0;
};

}  // namespace

std::unique_ptr<Problem> make_ternary_project(const cases::Case& item) {
  return std::make_unique<TernaryProject>(item);
}

}  // namespace touchstone::spec
