// rope and its backward. Bounds, with u the unit roundoff of the arithmetic (f32, or f64 for f64):
//
//   angle      a = position * frequency errs by at most 4 * 2^-53 |a|, here and there together. In
//              f32 it is reduced to turns in f64 and rounded once, at most 2^-26 turns, and turned
//              into radians: 2 pi 2^-26 + 2 u.
//   sin, cos   their slope is at most 1; the polynomials err by 2^-26 and a few roundings: 4 u
//   rotation   two products and a sum, and the scale: 3 u of |x| + |x'|
//
// and one rounding to the dtype.
#include "spec/rope.h"

#include <cmath>
#include <memory>
#include <numbers>

#include "core/index.h"
#include "oracle/rope.h"
#include "spec/operators.h"
#include "touchstone/core/checked.h"
#include "touchstone/ops/rope.h"

namespace touchstone::spec {
namespace {

class RopeProblem : public Problem {
 public:
  RopeProblem(const cases::Case& item, bool backward)
      : dtype_(item.dtype),
        adjacent_(item.choice("pairs", {"halves", "adjacent"}) == 1),
        far_(item.flag("far", false)),
        scale_(item.number("scale", 1)),
        backward_(backward) {
    item.check_options({"pairs", "rotary", "scale", "far", "gap", "offset"});
    const std::vector<std::int64_t> dims = item.dims("xx");
    tokens_ = dims[0], heads_ = dims[1], dim_ = dims[2];
    frequencies_ = rope_frequencies(item.integer("rotary", dim_), 10000).values;
  }

  enum : std::size_t { kX, kPositions, kFrequencies, kY, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kX] = heads(backward_ ? "dy" : "x", false);
    list[kPositions] = {
        .name = "positions", .dtype = DType::i64, .shape = {tokens_}, .write = positions_writer()};
    list[kFrequencies] = {.name = "frequencies",
                          .dtype = DType::f64,
                          .shape = {std::ssize(frequencies_)},
                          .write = values_of<double>([f = frequencies_](std::int64_t i) {
                            return f[static_cast<std::size_t>(i)];
                          }),
                          .shared = true};
    list[kY] = heads(backward_ ? "dx" : "y", true);
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return backward_ ? invoke(rope_backward, backward_args(v, implementation))
                     : invoke(rope, forward_args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    OutputReference y{.operand = kY};
    const std::vector<double> positions = reader.all(kPositions);
    for (const std::int64_t row : spread_sample(tokens_ * heads_, sample)) {
      const std::vector<double> x = reader.row(kX, row);
      // Angles of the backward are those of the forward, negated.
      const auto position = static_cast<std::int64_t>(positions[at(row / heads_)]);
      const std::int64_t turned = backward_ ? -position : position;
      std::vector<double> expected(x.size());
      oracle::rope_forward<double>({.tokens = 1,
                                    .heads = 1,
                                    .dim = dim_,
                                    .pairs = std::ssize(frequencies_),
                                    .adjacent = adjacent_,
                                    .scale = scale_,
                                    .positions = &turned,
                                    .frequencies = frequencies_.data(),
                                    .x = x.data(),
                                    .y = expected.data()});
      for (std::int64_t d = 0; d < dim_; ++d) {
        y.add(row * dim_ + d, expected[at(d)],
              bound(x, static_cast<double>(position), d, expected[at(d)]));
      }
    }
    return {y};
  }

  Cost cost() const override {
    return {.bytes = 2 * checked_mul(checked_mul(tokens_ * heads_, dim_, "elements"),
                                     size_of(dtype_), "bytes")};
  }
  Labels labels() const override {
    return {.rows = tokens_, .cols = heads_ * dim_, .format = adjacent_ ? "adjacent" : "halves"};
  }

  std::optional<Gradients> gradients() const override {
    if (!backward_) return std::nullopt;
    Gradients result;
    result.inputs = {{"x", Gradients::kNone, kY, true}};
    result.outputs = {{"y", kX}};
    result.independent_rows = tokens_;
    result.dual = [p = *this](const gradcheck::DualSlice& s) {
      std::vector<std::int64_t> positions(at(s.rows));
      for (std::int64_t i = 0; i < s.rows; ++i) positions[at(i)] = p.position(s.first_row + i);
      oracle::rope_forward<gradcheck::DualScalar>({.tokens = s.rows,
                                                   .heads = p.heads_,
                                                   .dim = p.dim_,
                                                   .pairs = std::ssize(p.frequencies_),
                                                   .adjacent = p.adjacent_,
                                                   .scale = p.scale_,
                                                   .positions = positions.data(),
                                                   .frequencies = p.frequencies_.data(),
                                                   .x = s.in[0].data(),
                                                   .y = s.out[0].data()});
    };
    return result;
  }

 private:
  std::int64_t position(std::int64_t token) const {
    return far_ ? token * 1000003 % 16777259 : token * 7 % 5003;
  }
  std::function<void(std::span<std::byte>)> positions_writer() const {
    return values_of<std::int64_t>([p = *this](std::int64_t i) { return p.position(i); });
  }
  Operand heads(const char* name, bool output) const {
    return {.name = name,
            .dtype = dtype_,
            .shape = {tokens_, heads_, dim_},
            .output = output,
            .strided = true};
  }
  RopePairs pairs() const { return adjacent_ ? RopePairs::adjacent : RopePairs::halves; }
  RopeArgs forward_args(Views v, const std::string& implementation) const {
    return {.x = v[kX],
            .positions = v[kPositions],
            .frequencies = v[kFrequencies],
            .y = v[kY],
            .pairs = pairs(),
            .scale = scale_,
            .implementation = implementation};
  }
  RopeBackwardArgs backward_args(Views v, const std::string& implementation) const {
    return {.dy = v[kX],
            .positions = v[kPositions],
            .frequencies = v[kFrequencies],
            .dx = v[kY],
            .pairs = pairs(),
            .scale = scale_,
            .implementation = implementation};
  }

  double bound(const std::vector<double>& x, double position, std::int64_t d, double value) const {
    const std::int64_t count = std::ssize(frequencies_);
    if (d >= 2 * count) return 0;  // copied
    const std::int64_t pair = adjacent_ ? d / 2 : d % count;
    const std::int64_t other = adjacent_ ? d ^ 1 : (d + count) % (2 * count);
    const double size = std::fabs(scale_) * (std::fabs(x[at(d)]) + std::fabs(x[at(other)]));
    return with_rounding(dtype_, value,
                         rotation_error(dtype_, position * frequencies_[at(pair)], size));
  }

  DType dtype_;
  bool adjacent_;
  bool far_;
  double scale_;
  bool backward_;
  std::int64_t tokens_ = 0;
  std::int64_t heads_ = 0;
  std::int64_t dim_ = 0;
  std::vector<double> frequencies_;
};

}  // namespace

double rotation_error(DType dtype, double angle, double size) {
  const double u = unit_roundoff(wide_dtype(dtype));
  double error = 4 * 0x1p-53 * std::fabs(angle);
  if (dtype != DType::f64) error += 2 * std::numbers::pi * 0x1p-26 + 0x1p-26 + 2 * u;
  const double tiny = 4 * rounding_error(wide_dtype(dtype), 0);
  return size * (error + 8 * u) + tiny;
}

std::unique_ptr<Problem> make_rope(const cases::Case& item, bool backward) {
  return std::make_unique<RopeProblem>(item, backward);
}

}  // namespace touchstone::spec
