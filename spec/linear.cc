// linear and its backward. Bounds, with u the unit roundoff of the sums (f32, or f64 for f64):
//
//   A sum of n products errs by at most G(n) u of the sum of their magnitudes. A segment is a running
//   sum of at most 1024 terms on the CPU. On CUDA it is one of steps of 16: a step aligns its 16
//   products and the sum so far to the largest of them, drops what lies below 2^-25 of it, 17 times,
//   and cuts the result to 24 bits, 2 u: 11 u a step. One chain runs over all of `in`; the bound that
//   is checked is that of eight, a chain's worst case needs every step to lose its most to one side.
//   AMX        tiles of bf16 on the CPU add 17 terms a step of 32 and each step once, which is less;
//              products and sums below 2^-126 are 0, each of them
//   bias       one addition
//   soft cap   its slope is at most 1; tanh and the two products cost a few u of the result
//   gate       |act'| <= 1.13; act itself costs a few u of its argument
//   residual   one addition
//
// and each output is rounded once to its dtype. W is what the format decodes to; on CUDA, for x of 16
// bits, rounded to the dtype of x.
#include "oracle/linear.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "core/index.h"
#include "cpu/amx.h"
#include "spec/operators.h"
#include "spec/stored_weight.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/convert.h"
#include "touchstone/ops/linear.h"

namespace touchstone::spec {
namespace {

// Products up to which every output of the sampled rows is computed.
constexpr std::int64_t kWholeProducts = std::int64_t{1} << 26;
constexpr std::int64_t kSampledColumns = 200;

double sum_growth(std::int64_t n, bool tensor_cores) {
  const auto terms = static_cast<double>(n);
  const double cpu = std::min(terms, 1024.0) + terms / 256;
  const double cuda = 11 * (std::max(terms / 8, 512.0) + 64) / 16 + 8;
  return (tensor_cores ? std::max(cpu, cuda) : cpu) + 2;
}

struct LinearCase {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  StoredWeight weight{};

  explicit LinearCase(const cases::Case& item) {
    const std::vector<std::int64_t> dims = item.dims("x/");
    dtype = item.dtype;
    rows = dims[0];
    in = dims[1];
    out = dims[2];
    const std::string format = item.text("weight", std::string(name_of(dtype)));
    weight = {.rows = out, .cols = in, .format = &weight_format(std::string_view(format))};
  }

  Operand weight_operand() const { return weight.operand(1 / std::sqrt(static_cast<double>(in))); }

  // Row o of W as the product takes it.
  std::vector<double> rounded_weight_row(const Reader& reader, std::size_t operand,
                                         std::int64_t o) const {
    std::vector<double> row = weight.row(reader, operand, o);
    if (!tensor_cores(reader)) return row;
    visit_float_dtype(dtype, [&]<class T>() {
      for (double& value : row) value = convert<double>(convert<T>(value));
    });
    return row;
  }
  bool tensor_cores(const Reader& reader) const {
    return reader.view(0).device.is_cuda() && (dtype == DType::bf16 || dtype == DType::f16);
  }

  // What sums of n products lose where subnormal numbers are 0.
  double flushed(const Reader& reader, std::int64_t n) const {
    const bool tiles = !reader.view(0).device.is_cuda() && dtype == DType::bf16 &&
                       weight.format->dtype == DType::bf16 && uses_amx_bf16();
    return tiles ? 0x1p-126 * static_cast<double>(2 * n + 2) : 0;
  }

  std::int64_t elements_bytes(std::int64_t a, std::int64_t b, DType type) const {
    return checked_mul(checked_mul(a, b, "elements"), size_of(type), "bytes");
  }
  Labels labels() const {
    return {.rows = rows,
            .cols = in,
            .format = std::string(weight.format->name) + " " + std::to_string(out) + "x" +
                      std::to_string(in)};
  }
};

Operand matrix(const char* name, DType dtype, std::int64_t rows, std::int64_t cols, bool output) {
  return {.name = name, .dtype = dtype, .shape = {rows, cols}, .output = output, .strided = true};
}

// A value and how far from it an implementation may be.
struct Value {
  double value = 0;
  double error = 0;
};

class Forward : public Problem {
 public:
  explicit Forward(const cases::Case& item)
      : p_(item),
        y_dtype_(item.dtype_option("y", item.dtype)),
        bias_(item.flag("bias", false)),
        residual_(item.flag("residual", false)),
        int8_(item.flag("int8", false)),
        library_(item.flag("library", false)),
        gate_(static_cast<LinearGate>(item.choice("gate", {"none", "silu", "gelu", "gelu_tanh"}))),
        soft_cap_(item.number("soft_cap", 0)) {
    item.check_options({"weight", "y", "bias", "residual", "int8", "gate", "soft_cap", "gap",
                        "offset", "accumulate", "grad_dtype", "library"});
    columns_ = gate_ == LinearGate::none ? p_.out : p_.out / 2;
  }

  enum : std::size_t { kX, kWeight, kBias, kResidual, kY, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kX] = matrix("x", p_.dtype, p_.rows, p_.in, false);
    list[kWeight] = p_.weight_operand();
    if (bias_) list[kBias] = {.name = "bias", .dtype = p_.dtype, .shape = {p_.out}, .shared = true};
    if (residual_) list[kResidual] = matrix("residual", p_.dtype, p_.rows, columns_, false);
    list[kY] = matrix("y", y_dtype_, p_.rows, columns_, true);
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return invoke(linear, args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    const std::vector<std::int64_t> rows = spread_sample(p_.rows, sample);
    const bool whole = std::ssize(rows) * p_.in * p_.out <= kWholeProducts;
    const std::vector<std::int64_t> columns =
        spread_sample(columns_, whole ? columns_ : kSampledColumns);
    std::vector<std::vector<double>> x;
    std::vector<double> scales;
    for (const std::int64_t row : rows) {
      x.push_back(reader.row(kX, row));
      scales.push_back(int8_ ? to_int8(x.back()) : 1);
    }
    const std::vector<double> bias = reader.all(kBias);
    OutputReference y{.operand = kY};
    for (const std::int64_t c : columns) {
      const std::vector<double> w = p_.rounded_weight_row(reader, kWeight, c);
      const std::vector<double> up = gate_ == LinearGate::none
                                         ? std::vector<double>()
                                         : p_.rounded_weight_row(reader, kWeight, c + columns_);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        Value v = product(reader, x[r], scales[r], w, bias, c);
        if (!up.empty()) v = gated(v, product(reader, x[r], scales[r], up, bias, c + columns_));
        add_residual(reader, rows[r] * columns_ + c, v);
        y.add(rows[r] * columns_ + c, v.value, with_rounding(y_dtype_, v.value, v.error + tiny()));
      }
    }
    return {y};
  }

  Cost cost() const override {
    const std::int64_t weights = checked_mul(p_.out, p_.weight.row_bytes(), "bytes");
    return {.bytes = weights + p_.elements_bytes(p_.rows, p_.in, p_.dtype) +
                     p_.elements_bytes(p_.rows, columns_, y_dtype_),
            .flops = p_.rows <= 16 ? 0
                                   : 2.0 * static_cast<double>(p_.rows) *
                                         static_cast<double>(p_.in) * static_cast<double>(p_.out),
            .only_reads = p_.rows <= 16};
  }
  Labels labels() const override { return p_.labels(); }

 private:
  LinearArgs args(Views v, const std::string& implementation) const {
    LinearArgs args;
    args.x = v[kX];
    args.weight = p_.weight.argument(v[kWeight]);
    args.weight_format = p_.weight.format_name();
    args.bias = v[kBias];
    args.residual = v[kResidual];
    args.y = v[kY];
    args.gate = gate_;
    args.soft_cap = soft_cap_;
    args.int8_activations = int8_;
    args.bits_may_depend_on_batch = library_;
    args.constant_weight = true;  // operands are written before the first call
    args.implementation = implementation;
    return args;
  }

  double u() const { return unit_roundoff(wide_dtype(p_.dtype)); }
  double tiny() const { return 4 * rounding_error(wide_dtype(p_.dtype), 0); }

  // One element of v up to the soft cap.
  Value product(const Reader& reader, const std::vector<double>& x, double scale,
                const std::vector<double>& w, const std::vector<double>& bias,
                std::int64_t o) const {
    long double sum = 0;
    double size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum += static_cast<long double>(x[i]) * w[i];
      size += std::fabs(x[i] * w[i]);
    }
    Value v{.value = scale * static_cast<double>(sum),
            .error = sum_growth(p_.in, p_.tensor_cores(reader)) * u() * std::fabs(scale) * size +
                     p_.flushed(reader, p_.in)};
    // Integer sums are multiplied by the scales as they are stored; other kernels round W.
    if (int8_ && p_.weight.format->ternary && p_.tensor_cores(reader)) {
      v.error += unit_roundoff(p_.dtype) * std::fabs(scale) * size;
    }
    if (!bias.empty()) {
      v.value += bias[at(o)];
      v.error += u() * (std::fabs(v.value) + v.error);
    }
    if (soft_cap_ > 0) {
      v.value = soft_cap_ * std::tanh(v.value / soft_cap_);
      v.error += 8 * u() * (std::fabs(v.value) + v.error);
    }
    return v;
  }

  Value gated(const Value& gate, const Value& up) const {
    const double act =
        oracle::linear_activation<double>(static_cast<oracle::LinearGate>(gate_), gate.value);
    const double act_error = 1.2 * gate.error + 16 * u() * (std::fabs(gate.value) + gate.error);
    return {.value = act * up.value,
            .error = std::fabs(act) * up.error + (std::fabs(up.value) + up.error) * act_error +
                     2 * u() * std::fabs(act * up.value)};
  }

  void add_residual(const Reader& reader, std::int64_t index, Value& v) const {
    if (!residual_) return;
    v.value += reader.gather(kResidual, std::span(&index, 1))[0];
    v.error += u() * (std::fabs(v.value) + v.error);
  }

  // The rounding of x of int8_activations, in the arithmetic of the sums, which decides
  // between two integers.
  double to_int8(std::vector<double>& x) const {
    const auto round = [&]<class C>(C) {
      C largest = 0;
      for (const double value : x) largest = std::max(largest, std::abs(static_cast<C>(value)));
      const C scale = largest / C{127};
      for (double& value : x) {
        const C rounded = std::nearbyint(static_cast<C>(value) / scale);
        value = scale > 0 ? static_cast<double>(std::clamp(rounded, C{-127}, C{127})) : 0;
      }
      return static_cast<double>(scale);
    };
    return p_.dtype == DType::f64 ? round(double{}) : round(float{});
  }

  LinearCase p_;
  DType y_dtype_;
  bool bias_;
  bool residual_;
  bool int8_;
  bool library_;  // an implementation of a library may be named
  LinearGate gate_;
  double soft_cap_;
  std::int64_t columns_ = 0;
};

class Backward : public Problem {
 public:
  explicit Backward(const cases::Case& item)
      : p_(item),
        grad_dtype_(item.dtype_option("grad_dtype", item.dtype)),
        accumulate_(item.flag("accumulate", false)),
        library_(item.flag("library", false)) {
    item.check_options({"weight", "y", "bias", "residual", "int8", "gate", "soft_cap", "gap",
                        "offset", "accumulate", "grad_dtype", "library"});
    if (accumulate_) grad_dtype_ = wide_dtype(p_.dtype);
  }

  enum : std::size_t { kDy, kX, kWeight, kDx, kDweight, kDbias, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kDy] = matrix("dy", p_.dtype, p_.rows, p_.out, false);
    list[kX] = matrix("x", p_.dtype, p_.rows, p_.in, false);
    list[kWeight] = p_.weight_operand();
    list[kDx] = matrix("dx", p_.dtype, p_.rows, p_.in, true);
    list[kDweight] = matrix("dweight", grad_dtype_, p_.out, p_.in, true);
    list[kDbias] = {.name = "dbias", .dtype = grad_dtype_, .shape = {p_.out}, .output = true};
    if (accumulate_) {
      begin_with_initial_gradient(list[kDweight]);
      begin_with_initial_gradient(list[kDbias]);
    }
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return invoke(linear_backward, args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    return {dx_reference(reader, sample), dweight_reference(reader, sample),
            dbias_reference(reader)};
  }

  Cost cost() const override {
    const std::int64_t weights = checked_mul(p_.out, p_.weight.row_bytes(), "bytes");
    return {.bytes = weights + p_.elements_bytes(p_.rows, p_.in, p_.dtype) * 2 +
                     p_.elements_bytes(p_.rows, p_.out, p_.dtype) +
                     p_.elements_bytes(p_.out, p_.in, grad_dtype_),
            .flops = 4.0 * static_cast<double>(p_.rows) * static_cast<double>(p_.in) *
                     static_cast<double>(p_.out)};
  }
  Labels labels() const override { return p_.labels(); }

  std::optional<Gradients> gradients() const override {
    if (!p_.weight.plain()) return std::nullopt;
    Gradients result;
    result.inputs = {{"x", kX, kDx, true},
                     {"weight", kWeight, kDweight, false},
                     {"bias", Gradients::kNone, kDbias, false}};
    result.outputs = {{"y", kDy}};
    result.independent_rows = p_.rows;
    result.dual = [p = p_](const gradcheck::DualSlice& s) {
      oracle::linear_forward<gradcheck::DualScalar>({.rows = s.rows,
                                                     .in = p.in,
                                                     .out = p.out,
                                                     .x = s.in[0].data(),
                                                     .weight = s.in[1].data(),
                                                     .bias = s.in[2].data(),
                                                     .y = s.out[0].data()});
    };
    return result;
  }

 private:
  LinearBackwardArgs args(Views v, const std::string& implementation) const {
    LinearBackwardArgs args;
    args.dy = v[kDy], args.x = v[kX];
    args.weight = p_.weight.argument(v[kWeight]);
    args.weight_format = p_.weight.format_name();
    args.dx = v[kDx], args.dweight = v[kDweight], args.dbias = v[kDbias];
    args.accumulate = accumulate_;
    args.bits_may_depend_on_batch = library_;
    args.implementation = implementation;
    return args;
  }

  // sum over k of a(k) * b(k), with what may be off.
  template <class A, class B>
  Value sum(const Reader& reader, std::int64_t n, A a, B b, double before) const {
    long double total = 0;
    double size = std::fabs(before);
    for (std::int64_t k = 0; k < n; ++k) {
      total += static_cast<long double>(a(k)) * b(k);
      size += std::fabs(a(k) * b(k));
    }
    const double u = unit_roundoff(wide_dtype(p_.dtype));
    return {.value = before + static_cast<double>(total),
            .error = sum_growth(n, p_.tensor_cores(reader)) * u * size + p_.flushed(reader, n)};
  }
  void add(OutputReference& output, DType dtype, const Value& v) const {
    const double tiny = 4 * rounding_error(wide_dtype(p_.dtype), 0);
    output.expected.add(v.value, with_rounding(dtype, v.value, v.error + tiny));
  }
  std::vector<std::int64_t> some(std::int64_t count, std::int64_t sample) const {
    const bool whole = p_.rows * p_.in * p_.out <= kWholeProducts;
    return spread_sample(count, whole ? count : std::min(sample, std::int64_t{16}));
  }

  OutputReference dx_reference(const Reader& reader, std::int64_t sample) const {
    OutputReference result{.operand = kDx};
    const std::vector<std::int64_t> columns = some(p_.in, sample);
    const std::vector<std::int64_t> rows = some(p_.rows, sample);
    std::vector<std::vector<double>> weights;
    for (std::int64_t o = 0; o < p_.out; ++o) {
      const std::vector<double> row = p_.rounded_weight_row(reader, kWeight, o);
      std::vector<double> picked;
      for (const std::int64_t i : columns) picked.push_back(row[at(i)]);
      weights.push_back(std::move(picked));
    }
    for (const std::int64_t r : rows) {
      const std::vector<double> dy = reader.row(kDy, r);
      for (std::size_t c = 0; c < columns.size(); ++c) {
        result.index.push_back(r * p_.in + columns[c]);
        add(result, p_.dtype,
            sum(
                reader, p_.out, [&](std::int64_t o) { return dy[at(o)]; },
                [&](std::int64_t o) { return weights[at(o)][c]; }, 0));
      }
    }
    return result;
  }

  OutputReference dweight_reference(const Reader& reader, std::int64_t sample) const {
    OutputReference result{.operand = kDweight};
    const std::vector<std::int64_t> outs = some(p_.out, sample);
    const std::vector<std::int64_t> ins = some(p_.in, sample);
    std::vector<std::vector<double>> dy;
    std::vector<std::vector<double>> x;
    for (std::int64_t r = 0; r < p_.rows; ++r) {
      const auto pick = [](const std::vector<double>& row, const std::vector<std::int64_t>& which) {
        std::vector<double> picked;
        for (const std::int64_t i : which) picked.push_back(row[at(i)]);
        return picked;
      };
      dy.push_back(pick(reader.row(kDy, r), outs));
      x.push_back(pick(reader.row(kX, r), ins));
    }
    for (std::size_t o = 0; o < outs.size(); ++o) {
      for (std::size_t i = 0; i < ins.size(); ++i) {
        const std::int64_t index = outs[o] * p_.in + ins[i];
        result.index.push_back(index);
        add(result, grad_dtype_,
            sum(
                reader, p_.rows, [&](std::int64_t r) { return dy[at(r)][o]; },
                [&](std::int64_t r) { return x[at(r)][i]; },
                accumulate_ ? initial_gradient(index) : 0));
      }
    }
    return result;
  }

  OutputReference dbias_reference(const Reader& reader) const {
    OutputReference result{.operand = kDbias};
    std::vector<std::vector<double>> dy;
    for (std::int64_t r = 0; r < p_.rows; ++r) dy.push_back(reader.row(kDy, r));
    for (std::int64_t o = 0; o < p_.out; ++o) {
      add(result, grad_dtype_,
          sum(
              reader, p_.rows, [&](std::int64_t r) { return dy[at(r)][at(o)]; },
              [](std::int64_t) { return 1.0; }, accumulate_ ? initial_gradient(o) : 0));
    }
    return result;
  }

  LinearCase p_;
  DType grad_dtype_;
  bool accumulate_;
  bool library_;
};

}  // namespace

std::unique_ptr<Problem> make_linear(const cases::Case& item, bool backward) {
  if (backward) return std::make_unique<Backward>(item);
  return std::make_unique<Forward>(item);
}

}  // namespace touchstone::spec
