// activation, gate and their backwards. Bounds are those of the contract, with u the unit roundoff of
// the arithmetic (f32, or f64 for f64): act(x) within 16 u |x|, relu_squared within u x^2, act'(x)
// within 16 u (1 + |x|); a product with another number costs one more rounding; one rounding to the
// dtype. Slopes come from dual numbers through the oracle.
#include "oracle/activation.h"

#include <cmath>
#include <memory>

#include "core/index.h"
#include "spec/operators.h"
#include "touchstone/core/checked.h"
#include "touchstone/dual.h"
#include "touchstone/ops/activation.h"
#include "touchstone/ops/gate.h"

namespace touchstone::spec {
namespace {

// In the order of Activation.
std::vector<std::string> kinds() { return {"silu", "gelu", "gelu_tanh", "relu_squared"}; }

// act(x), act'(x) and how far from them an implementation may be.
struct Act {
  double value, value_error, slope, slope_error;
};

class ActivationProblem : public Problem {
 public:
  ActivationProblem(const cases::Case& item, bool gated, bool backward)
      : dtype_(item.dtype),
        kind_(item.choice("kind", kinds())),
        spread_(item.number("spread", 3)),
        gated_(gated),
        backward_(backward) {
    item.check_options({"kind", "spread", "gap", "offset"});
    const std::vector<std::int64_t> dims = item.dims("x");
    rows_ = dims[0], cols_ = dims[1];
  }

  enum : std::size_t { kDy, kX, kUp, kY, kDup, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    const auto matrix = [&](const char* name, bool output, double scale) {
      return Operand{.name = name,
                     .dtype = dtype_,
                     .shape = {rows_, cols_},
                     .output = output,
                     .scale = scale,
                     .strided = true};
    };
    if (backward_) list[kDy] = matrix("dy", false, 1);
    list[kX] = matrix(gated_ ? "gate" : "x", false, spread_);
    if (gated_) list[kUp] = matrix("up", false, 1);
    list[kY] = matrix(!backward_ ? "y" : gated_ ? "dgate" : "dx", true, 1);
    if (gated_ && backward_) list[kDup] = matrix("dup", true, 1);
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    const auto kind = static_cast<Activation>(kind_);
    if (gated_ && backward_) {
      return invoke(gate_backward, {.dy = v[kDy],
                                    .gate = v[kX],
                                    .up = v[kUp],
                                    .dgate = v[kY],
                                    .dup = v[kDup],
                                    .kind = kind,
                                    .implementation = implementation});
    }
    if (gated_) {
      return invoke(gate, {.gate = v[kX],
                           .up = v[kUp],
                           .y = v[kY],
                           .kind = kind,
                           .implementation = implementation});
    }
    if (backward_) {
      return invoke(
          activation_backward,
          {.dy = v[kDy], .x = v[kX], .dx = v[kY], .kind = kind, .implementation = implementation});
    }
    return invoke(activation,
                  {.x = v[kX], .y = v[kY], .kind = kind, .implementation = implementation});
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    OutputReference y{.operand = kY};
    OutputReference dup{.operand = kDup};
    for (const std::int64_t row : spread_sample(rows_, sample)) {
      const std::vector<double> x = reader.row(kX, row);
      const std::vector<double> up = gated_ ? reader.row(kUp, row) : std::vector<double>();
      const std::vector<double> dy = backward_ ? reader.row(kDy, row) : std::vector<double>();
      for (std::int64_t c = 0; c < cols_; ++c) {
        const Act act = act_of(x[at(c)]);
        const double factor = (gated_ ? up[at(c)] : 1) * (backward_ ? dy[at(c)] : 1);
        add(y, row * cols_ + c, factor * (backward_ ? act.slope : act.value),
            factor * (backward_ ? act.slope_error : act.value_error));
        if (gated_ && backward_) {
          add(dup, row * cols_ + c, dy[at(c)] * act.value, dy[at(c)] * act.value_error);
        }
      }
    }
    if (gated_ && backward_) return {y, dup};
    return {y};
  }

  Cost cost() const override {
    std::int64_t tensors = 0;
    for (const Operand& operand : operands()) tensors += operand.defined() ? 1 : 0;
    return {.bytes = tensors *
                     checked_mul(checked_mul(rows_, cols_, "elements"), size_of(dtype_), "bytes")};
  }
  Labels labels() const override {
    return {.rows = rows_, .cols = cols_, .format = kinds()[kind_]};
  }

  std::optional<Gradients> gradients() const override {
    if (!backward_) return std::nullopt;
    Gradients result;
    result.inputs = {{gated_ ? "gate" : "x", kX, kY, true}};
    if (gated_) result.inputs.push_back({"up", kUp, kDup, true});
    result.outputs = {{"y", kDy}};
    result.independent_rows = rows_;
    result.dual = [p = *this](const gradcheck::DualSlice& s) {
      for (std::size_t i = 0; i < s.out[0].size(); ++i) {
        const gradcheck::DualScalar act = oracle::activation<gradcheck::DualScalar>(
            static_cast<oracle::Activation>(p.kind_), s.in[0][i]);
        s.out[0][i] = p.gated_ ? act * s.in[1][i] : act;
      }
    };
    return result;
  }

 private:
  Act act_of(double x) const {
    const auto kind = static_cast<oracle::Activation>(kind_);
    const Dual<1> act = oracle::activation(kind, Dual<1>::variable(x, 0));
    const double u = unit_roundoff(wide_dtype(dtype_));
    const double value_error =
        kind == oracle::Activation::relu_squared ? u * act.value : 16 * u * std::fabs(x);
    return {act.value, value_error, act.d[0], 16 * u * (1 + std::fabs(x))};
  }
  // 3 u: products with up and dy, here and in the reference.
  void add(OutputReference& output, std::int64_t index, double value, double error) const {
    const double u = unit_roundoff(wide_dtype(dtype_));
    const double tiny = 8 * rounding_error(wide_dtype(dtype_), 0);
    output.add(index, value,
               with_rounding(dtype_, value, std::fabs(error) + 3 * u * std::fabs(value) + tiny));
  }

  DType dtype_;
  std::size_t kind_;
  double spread_;
  bool gated_;
  bool backward_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace

std::unique_ptr<Problem> make_activation(const cases::Case& item, bool backward) {
  return std::make_unique<ActivationProblem>(item, false, backward);
}
std::unique_ptr<Problem> make_gate(const cases::Case& item, bool backward) {
  return std::make_unique<ActivationProblem>(item, true, backward);
}

}  // namespace touchstone::spec
