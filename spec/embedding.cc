// embedding and its backward. Bounds, with u the unit roundoff of the arithmetic (f32, or f64 for f64):
//
//   forward    the product with the scale, u |y|; without a scale nothing
//   backward   k additions of k rows, k u of the sum of their magnitudes; the product with the scale
//              and, with accumulate, the last addition: u each of their results
//
// and one rounding to the dtype.
#include "oracle/embedding.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "core/index.h"
#include "spec/operators.h"
#include "spec/stored_weight.h"
#include "touchstone/core/checked.h"
#include "touchstone/ops/embedding.h"

namespace touchstone::spec {
namespace {

// Which tokens a batch has.
enum class Pattern : std::uint8_t { spread, skewed, same };

// N tokens x E / V.
class EmbeddingProblem : public Problem {
 public:
  EmbeddingProblem(const cases::Case& item, bool backward)
      : dtype_(item.dtype),
        grad_dtype_(item.dtype_option("grad_dtype", item.dtype)),
        token_dtype_(item.dtype_option("token_dtype", DType::i32)),
        pattern_(static_cast<Pattern>(item.choice("tokens", {"spread", "skewed", "same"}))),
        scale_(item.number("scale", 1)),
        accumulate_(item.flag("accumulate", false)),
        backward_(backward) {
    item.check_options(
        {"weight", "tokens", "token_dtype", "scale", "accumulate", "grad_dtype", "gap", "offset"});
    const std::vector<std::int64_t> dims = item.dims("x/");
    count_ = dims[0], dim_ = dims[1];
    const std::string format = item.text("weight", std::string(name_of(dtype_)));
    weight_ = {.rows = dims[2], .cols = dim_, .format = &weight_format(std::string_view(format))};
    if (accumulate_) grad_dtype_ = wide_dtype(dtype_);
  }

  // Weight and y, or dy and dweight.
  enum : std::size_t { kTokens, kFrom, kTo, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kTokens] = control_operand("tokens", token_dtype_, {count_},
                                    [p = *this](std::int64_t n) { return p.token(n); });
    if (!backward_) {
      list[kFrom] = weight_.operand(1);
      list[kTo] = matrix("y", dtype_, count_, true);
      return list;
    }
    list[kFrom] = matrix("dy", dtype_, count_, false);
    list[kTo] = matrix("dweight", grad_dtype_, weight_.rows, true);
    if (accumulate_) begin_with_initial_gradient(list[kTo]);
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return backward_ ? invoke(embedding_backward, backward_args(v, implementation))
                     : invoke(embedding, forward_args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    return {backward_ ? backward_reference(reader, sample) : forward_reference(reader, sample)};
  }

  Cost cost() const override {
    const std::int64_t rows = checked_mul(checked_mul(count_, dim_, "elements"), size_of(dtype_));
    if (!backward_) return {.bytes = rows + checked_mul(count_, weight_.row_bytes(), "bytes")};
    const std::int64_t row = dim_ * size_of(grad_dtype_);
    return {.bytes = rows + (accumulate_ ? 2 * checked_mul(distinct(), row)
                                         : checked_mul(weight_.rows, row, "bytes"))};
  }
  Labels labels() const override {
    return {.rows = count_,
            .cols = dim_,
            .format =
                backward_ ? std::string(name_of(grad_dtype_)) : std::string(weight_.format->name)};
  }

  std::optional<Gradients> gradients() const override {
    if (!backward_) return std::nullopt;
    Gradients result;
    result.inputs = {{"weight", Gradients::kNone, kTo, false}};
    result.outputs = {{"y", kFrom}};
    result.dual = [p = *this](const gradcheck::DualSlice& s) {
      const std::vector<std::int64_t> tokens = p.tokens();
      oracle::embedding_forward<gradcheck::DualScalar>({.count = p.count_,
                                                        .dim = p.dim_,
                                                        .scale = p.scale_,
                                                        .tokens = tokens.data(),
                                                        .weight = s.in[0].data(),
                                                        .y = s.out[0].data()});
    };
    return result;
  }

 private:
  std::int64_t token(std::int64_t n) const {
    const std::int64_t v = weight_.rows;
    const std::int64_t mixed = (n * 2654435761 + 12345) % 1000003;
    if (pattern_ == Pattern::same) return v - 1;
    if (pattern_ == Pattern::skewed) return mixed % (1 + mixed / 7 % v);
    return (n * 7919 + v - 1) % v;
  }
  std::vector<std::int64_t> tokens() const {
    std::vector<std::int64_t> list(at(count_));
    for (std::int64_t n = 0; n < count_; ++n) list[at(n)] = token(n);
    return list;
  }
  std::int64_t distinct() const {
    std::vector<std::int64_t> list = tokens();
    std::ranges::sort(list);
    return std::ssize(list) - std::ssize(std::ranges::unique(list));
  }
  Operand matrix(const char* name, DType dtype, std::int64_t rows, bool output) const {
    return {.name = name, .dtype = dtype, .shape = {rows, dim_}, .output = output, .strided = true};
  }

  EmbeddingArgs forward_args(Views v, const std::string& implementation) const {
    return {.tokens = v[kTokens],
            .weight = weight_.argument(v[kFrom]),
            .weight_format = weight_.format_name(),
            .y = v[kTo],
            .scale = scale_,
            .implementation = implementation};
  }
  EmbeddingBackwardArgs backward_args(Views v, const std::string& implementation) const {
    return {.tokens = v[kTokens],
            .dy = v[kFrom],
            .dweight = v[kTo],
            .scale = scale_,
            .accumulate = accumulate_,
            .implementation = implementation};
  }

  double u() const { return unit_roundoff(wide_dtype(dtype_)); }
  double tiny() const { return rounding_error(wide_dtype(dtype_), 0); }

  OutputReference forward_reference(const Reader& reader, std::int64_t sample) const {
    OutputReference y{.operand = kTo};
    for (const std::int64_t n : spread_sample(count_, sample)) {
      const std::vector<double> row = weight_.row(reader, kFrom, token(n));
      std::vector<double> expected(at(dim_));
      const std::int64_t first = 0;
      oracle::embedding_forward<double>({.count = 1,
                                         .dim = dim_,
                                         .scale = scale_,
                                         .tokens = &first,
                                         .weight = row.data(),
                                         .y = expected.data()});
      for (std::int64_t d = 0; d < dim_; ++d) {
        const double value = expected[at(d)];
        // The scale itself is rounded, then the product.
        const double error = scale_ == 1 ? 0 : 2 * u() * std::fabs(value) + tiny();
        const bool exact = scale_ == 1 && weight_.format->dtype == dtype_;
        y.add(n * dim_ + d, value, exact ? 0 : with_rounding(dtype_, value, error));
      }
    }
    return y;
  }

  OutputReference backward_reference(const Reader& reader, std::int64_t sample) const {
    OutputReference result{.operand = kTo};
    std::map<std::int64_t, std::vector<std::int64_t>> rows;
    for (std::int64_t n = 0; n < count_; ++n) rows[token(n)].push_back(n);
    // Every row, or tokens that occur and as many that may not.
    std::vector<std::int64_t> which = spread_sample(weight_.rows, sample);
    for (const auto& [token, list] : rows) {
      if (sample >= weight_.rows || std::ssize(which) >= 2 * sample) break;
      which.push_back(token);
    }
    for (const std::int64_t v : which) {
      std::vector<double> sum(at(dim_));
      std::vector<double> size(at(dim_));
      for (const std::int64_t n : rows[v]) {
        const std::vector<double> dy = reader.row(kFrom, n);
        for (std::size_t d = 0; d < dy.size(); ++d) {
          sum[d] += dy[d];
          size[d] += std::fabs(dy[d]);
        }
      }
      const auto additions = static_cast<double>(rows[v].size());
      for (std::int64_t d = 0; d < dim_; ++d) {
        const double before = accumulate_ ? initial_gradient(v * dim_ + d) : 0;
        const double value = before + scale_ * sum[at(d)];
        const double error = (additions + 3) * u() * std::fabs(scale_) * size[at(d)] + 2 * tiny() +
                             (accumulate_ ? u() * std::fabs(value) : 0);
        result.add(v * dim_ + d, value,
                   rows[v].empty() ? 0 : with_rounding(grad_dtype_, value, error));
      }
    }
    return result;
  }

  DType dtype_;
  DType grad_dtype_;
  DType token_dtype_;
  Pattern pattern_;
  double scale_;
  bool accumulate_;
  bool backward_;
  std::int64_t count_ = 0;
  std::int64_t dim_ = 0;
  StoredWeight weight_{};
};

}  // namespace

std::unique_ptr<Problem> make_embedding(const cases::Case& item, bool backward) {
  return std::make_unique<EmbeddingProblem>(item, backward);
}

}  // namespace touchstone::spec
