// layer_norm, rms_norm and their backwards.
#include "spec/norm.h"

#include <algorithm>
#include <memory>

#include "core/index.h"
#include "spec/operators.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/convert.h"
#include "touchstone/ops/layer_norm.h"
#include "touchstone/ops/rms_norm.h"

namespace touchstone::spec {
namespace {

// Up to this size the whole reference is computed even where a sample would do.
constexpr std::int64_t kWholeElements = std::int64_t{1} << 21;

struct NormCase : NormProblem {
  DType weight_dtype = DType::f32;
  bool weight = true;
  bool bias = true;
  bool fused = false;      // residual and sum forward, dsum backward
  bool statistics = true;  // forward: mean and rstd
  bool grads = true;       // backward: dweight and dbias
  double center = 0.5;     // of x

  NormCase(bool is_layer, const cases::Case& item) {
    item.check_options({"weight", "bias", "fused", "statistics", "grads", "eps", "center",
                        "weight_offset", "before_weight", "weight_dtype", "grad_dtype", "gap",
                        "offset"});
    const std::vector<std::int64_t> dims = item.dims("x");
    layer = is_layer;
    dtype = item.dtype;
    rows = dims[0];
    cols = dims[1];
    weight = item.flag("weight", true);
    bias = layer && item.flag("bias", true);
    fused = item.flag("fused", false);
    statistics = item.flag("statistics", true);
    grads = item.flag("grads", true);
    eps = item.number("eps", eps);
    center = item.number("center", center);
    weight_dtype = item.dtype_option("weight_dtype", dtype);
    grad_dtype = item.text("grad_dtype", "same") == "same" ? weight_dtype
                                                           : item.dtype_option("grad_dtype", dtype);
    if (!layer) {
      weight_offset = item.number("weight_offset", 0);
      before_weight = item.flag("before_weight", false);
    }
  }

  Operand matrix(const char* name, double mean, double scale) const {
    return {.name = name,
            .dtype = dtype,
            .shape = {rows, cols},
            .center = mean,
            .scale = scale,
            .strided = true};
  }
  Operand matrix_out(const char* name) const {
    return {.name = name, .dtype = dtype, .shape = {rows, cols}, .output = true, .strided = true};
  }
  Operand per_row(const char* name, bool output) const {
    return {.name = name, .dtype = wide_dtype(dtype), .shape = {rows}, .output = output};
  }
  Operand weight_operand() const {
    if (!weight) return {};
    return {.name = "weight",
            .dtype = weight_dtype,
            .shape = {cols},
            .center = 1 - weight_offset,
            .scale = 0.25,
            .shared = true};
  }

  std::int64_t tensor_bytes() const {
    return checked_mul(checked_mul(rows, cols, "elements"), size_of(dtype), "bytes");
  }
  Labels labels() const { return {.rows = rows, .cols = cols}; }
};

void append_row(std::vector<double>& to, const Reader& reader, std::size_t operand,
                std::int64_t row) {
  const std::vector<double> values = reader.row(operand, row);
  to.insert(to.end(), values.begin(), values.end());
}

std::vector<std::int64_t> row_elements(const std::vector<std::int64_t>& rows, std::int64_t cols) {
  std::vector<std::int64_t> result;
  for (const std::int64_t row : rows) {
    for (std::int64_t j = 0; j < cols; ++j) result.push_back(row * cols + j);
  }
  return result;
}

class NormForward : public Problem {
 public:
  NormForward(bool layer, const cases::Case& item) : p_(layer, item) {}

  enum : std::size_t { kX, kResidual, kWeight, kBias, kY, kSum, kMean, kRstd, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kX] = p_.matrix("x", p_.center, 2);
    if (p_.fused) list[kResidual] = p_.matrix("residual", 0, 1);
    list[kWeight] = p_.weight_operand();
    if (p_.bias) {
      list[kBias] = {.name = "bias",
                     .dtype = p_.weight_dtype,
                     .shape = {p_.cols},
                     .scale = 0.5,
                     .shared = true};
    }
    list[kY] = p_.matrix_out("y");
    if (p_.fused) list[kSum] = p_.matrix_out("sum");
    if (p_.statistics && p_.layer) list[kMean] = p_.per_row("mean", true);
    if (p_.statistics) list[kRstd] = p_.per_row("rstd", true);
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return p_.layer ? invoke(layer_norm, layer_args(v, implementation))
                    : invoke(rms_norm, rms_args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    const std::vector<std::int64_t> rows = spread_sample(p_.rows, sample);
    NormProblem part = p_;
    part.rows = std::ssize(rows);
    NormValues values;
    values.weight = reader.all(kWeight);
    values.bias = reader.all(kBias);
    for (const std::int64_t row : rows) append_row(values.h, reader, kX, row);
    if (p_.fused) {
      std::vector<double> residual;
      for (const std::int64_t row : rows) append_row(residual, reader, kResidual, row);
      visit_float_dtype(p_.dtype, [&]<class T>() {
        for (std::size_t i = 0; i < residual.size(); ++i) {
          values.h[i] = convert<double>(convert<T>(values.h[i] + residual[i]));
        }
      });
    }
    NormForwardReference expected = norm_forward_reference(part, values);
    const std::vector<std::int64_t> elements = row_elements(rows, p_.cols);
    std::vector<OutputReference> result;
    result.push_back({kY, elements, std::move(expected.y)});
    if (p_.fused) {
      // One addition in the dtype: there is one right answer, to the bit.
      result.push_back({kSum, elements, {values.h, std::vector<double>(values.h.size())}});
    }
    if (reader.defined(kMean)) result.push_back({kMean, rows, std::move(expected.mean)});
    if (reader.defined(kRstd)) result.push_back({kRstd, rows, std::move(expected.rstd)});
    return result;
  }

  Cost cost() const override {
    return {.bytes = checked_mul(p_.tensor_bytes(), p_.fused ? 4 : 2, "bytes")};
  }
  Labels labels() const override { return p_.labels(); }

 private:
  LayerNormArgs layer_args(Views v, const std::string& implementation) const {
    LayerNormArgs args;
    args.x = v[kX], args.residual = v[kResidual];
    args.weight = v[kWeight], args.bias = v[kBias];
    args.y = v[kY], args.sum = v[kSum], args.mean = v[kMean], args.rstd = v[kRstd];
    args.eps = p_.eps;
    args.implementation = implementation;
    return args;
  }
  RmsNormArgs rms_args(Views v, const std::string& implementation) const {
    RmsNormArgs args;
    args.x = v[kX], args.residual = v[kResidual], args.weight = v[kWeight];
    args.y = v[kY], args.sum = v[kSum], args.rstd = v[kRstd];
    args.eps = p_.eps;
    args.weight_offset = p_.weight_offset;
    args.rounding = p_.before_weight ? RmsNormRounding::before_weight : RmsNormRounding::once;
    args.implementation = implementation;
    return args;
  }

  NormCase p_;
};

class NormBackward : public Problem {
 public:
  NormBackward(bool layer, const cases::Case& item) : p_(layer, item) {}

  enum : std::size_t { kDy, kX, kMean, kRstd, kWeight, kDsum, kDx, kDweight, kDbias, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kDy] = p_.matrix("dy", 0, 1);
    list[kX] = p_.matrix("x", p_.center, 2);
    if (p_.layer) list[kMean] = p_.per_row("mean", false);
    list[kRstd] = p_.per_row("rstd", false);
    list[kWeight] = p_.weight_operand();
    if (p_.fused) list[kDsum] = p_.matrix("dsum", 0, 1);
    list[kDx] = p_.matrix_out("dx");
    if (p_.grads) {
      list[kDweight] = column_out("dweight");
      if (p_.layer) list[kDbias] = column_out("dbias");
    }
    return list;
  }

  // The statistics are those of our forward, whose y goes where dx will be.
  void prepare(Context& context, Views v) const override {
    if (p_.layer) {
      LayerNormArgs args;
      args.x = v[kX], args.y = v[kDx], args.mean = v[kMean], args.rstd = v[kRstd];
      args.eps = p_.eps;
      layer_norm(context, args);
    } else {
      RmsNormArgs args;
      args.x = v[kX], args.y = v[kDx], args.rstd = v[kRstd];
      args.eps = p_.eps;
      rms_norm(context, args);
    }
    context.synchronize();
  }
  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return p_.layer ? invoke(layer_norm_backward, layer_args(v, implementation))
                    : invoke(rms_norm_backward, rms_args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    const bool whole = sample >= p_.rows || p_.rows * p_.cols <= kWholeElements;
    const std::vector<std::int64_t> rows = spread_sample(p_.rows, whole ? p_.rows : sample);
    NormProblem part = p_;
    part.rows = std::ssize(rows);
    NormValues values;
    values.weight = reader.all(kWeight);
    for (const std::int64_t row : rows) {
      append_row(values.h, reader, kX, row);
      append_row(values.dy, reader, kDy, row);
      if (p_.fused) append_row(values.dsum, reader, kDsum, row);
    }
    NormBackwardReference expected = norm_backward_reference(part, values);
    std::vector<OutputReference> result;
    result.push_back({kDx, row_elements(rows, p_.cols), std::move(expected.dx)});
    if (!p_.grads) return result;
    std::vector<std::int64_t> columns;
    if (!whole) {
      columns = spread_sample(p_.cols, sample);
      expected.dweight = expected.dbias = {};
      sum_columns(reader, columns, expected);
    }
    result.push_back({kDweight, columns, std::move(expected.dweight)});
    if (p_.layer) result.push_back({kDbias, columns, std::move(expected.dbias)});
    return result;
  }

  Cost cost() const override {
    return {.bytes = checked_mul(p_.tensor_bytes(), p_.fused ? 4 : 3, "bytes")};
  }
  Labels labels() const override { return p_.labels(); }

  std::optional<Gradients> gradients() const override {
    Gradients result;
    result.inputs = {{"x", kX, kDx, true}, {"weight", kWeight, kDweight, false}};
    if (p_.layer) result.inputs.push_back({"bias", Gradients::kNone, kDbias, false});
    result.outputs = {{"y", kDy}};
    result.independent_rows = p_.rows;
    // With one or two columns dx vanishes, and what is left is rounding noise of 1/sqrt(eps) size.
    result.gradient_floor = 0.1;
    result.dual = [p = p_](const gradcheck::DualSlice& s) {
      oracle_forward(p, s.rows, s.in[0].data(), s.in[1].data(), p.layer ? s.in[2].data() : nullptr,
                     s.out[0].data());
    };
    return result;
  }

 private:
  template <class S>
  static void oracle_forward(const NormCase& p, std::int64_t rows, const S* x, const S* weight,
                             const S* bias, S* y) {
    oracle::norm_forward<S>({.norm = oracle_norm(p),
                             .rows = rows,
                             .cols = p.cols,
                             .eps = p.eps,
                             .x = x,
                             .weight = weight,
                             .bias = bias,
                             .y = y});
  }

  Operand column_out(const char* name) const {
    return {.name = name, .dtype = p_.grad_dtype, .shape = {p_.cols}, .output = true};
  }

  void sum_columns(const Reader& reader, const std::vector<std::int64_t>& columns,
                   NormBackwardReference& expected) const {
    std::vector<NormColumn> sums(columns.size(), NormColumn(p_));
    const std::vector<double> mean = reader.all(kMean);
    const std::vector<double> rstd = reader.all(kRstd);
    for (std::int64_t row = 0; row < p_.rows; ++row) {
      std::vector<std::int64_t> elements(columns.size());
      for (std::size_t i = 0; i < columns.size(); ++i) elements[i] = row * p_.cols + columns[i];
      const std::vector<double> dy = reader.gather(kDy, elements);
      const std::vector<double> h = reader.gather(kX, elements);
      for (std::size_t i = 0; i < columns.size(); ++i) {
        sums[i].add(dy[i], h[i], p_.layer ? mean[at(row)] : 0, rstd[at(row)]);
      }
    }
    for (const NormColumn& sum : sums) sum.finish(expected.dweight, expected.dbias);
  }

  LayerNormBackwardArgs layer_args(Views v, const std::string& implementation) const {
    LayerNormBackwardArgs args;
    args.dy = v[kDy], args.x = v[kX], args.mean = v[kMean], args.rstd = v[kRstd];
    args.weight = v[kWeight], args.dsum = v[kDsum];
    args.dx = v[kDx], args.dweight = v[kDweight], args.dbias = v[kDbias];
    args.implementation = implementation;
    return args;
  }
  RmsNormBackwardArgs rms_args(Views v, const std::string& implementation) const {
    RmsNormBackwardArgs args;
    args.dy = v[kDy], args.x = v[kX], args.rstd = v[kRstd];
    args.weight = v[kWeight], args.dsum = v[kDsum];
    args.dx = v[kDx], args.dweight = v[kDweight];
    args.weight_offset = p_.weight_offset;
    args.implementation = implementation;
    return args;
  }

  NormCase p_;
};

std::unique_ptr<Problem> make_norm(bool layer, const cases::Case& item, bool backward) {
  if (backward) return std::make_unique<NormBackward>(layer, item);
  return std::make_unique<NormForward>(layer, item);
}

}  // namespace

std::unique_ptr<Problem> make_layer_norm(const cases::Case& item, bool backward) {
  return make_norm(true, item, backward);
}
std::unique_ptr<Problem> make_rms_norm(const cases::Case& item, bool backward) {
  return make_norm(false, item, backward);
}

}  // namespace touchstone::spec
