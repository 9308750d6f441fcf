// softmax_topk: rows x vocabulary.
#include "touchstone/ops/softmax_topk.h"

#include <algorithm>
#include <memory>

#include "core/index.h"
#include "spec/operators.h"
#include "spec/per_token.h"
#include "spec/selection.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::spec {
namespace {

class SoftmaxTopk : public Problem {
 public:
  explicit SoftmaxTopk(const cases::Case& item)
      : tokens_(item),
        k_(std::min(item.integer("k", kDefaultK), tokens_.vocabulary)),
        temperature_(item.number("temperature", 0)),
        indices_(item.dtype_option("indices", DType::i32)),
        renormalize_(item.flag("renormalize", false)),
        extras_(item.flag("extras", false)) {
    item.check_options(
        {"k", "temperature", "bias", "mask", "indices", "renormalize", "extras", "gap", "offset"});
    if (item.options.contains("k") && (k_ < 1 || item.integer("k", 1) > tokens_.vocabulary)) {
      throw InvalidArgument("k: expected 1 to " + std::to_string(tokens_.vocabulary) + ", got " +
                            item.text("k", ""));
    }
  }

  enum : std::size_t {
    kLogits,
    kTemperature,
    kBias,
    kMask,
    kProbabilities,
    kIndices,
    kLogProbabilities,
    kLogSumExp,
    kStatus,
    kCount
  };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kLogits] = tokens_.logits();
    if (temperature_ > 0)
      list[kTemperature] = tokens_.per_row<float>("temperature", temperatures());
    list[kBias] = tokens_.bias_operand();
    list[kMask] = tokens_.mask_operand();
    const std::vector<std::int64_t> selected{tokens_.rows, k_};
    list[kProbabilities] = {.name = "probabilities", .shape = selected, .output = true};
    list[kIndices] = {.name = "indices", .dtype = indices_, .shape = selected, .output = true};
    if (extras_) {
      list[kLogProbabilities] = {.name = "log_probabilities", .shape = selected, .output = true};
      list[kLogSumExp] = {.name = "log_sum_exp", .shape = {tokens_.rows}, .output = true};
      list[kStatus] = {
          .name = "status", .dtype = DType::i32, .shape = {tokens_.rows}, .output = true};
    }
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return invoke(softmax_topk, args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    const std::vector<std::int64_t> rows = spread_sample(tokens_.rows, sample);
    TopkReference expected;
    std::vector<std::int64_t> index;
    const std::vector<double> status = reader.all(kStatus);
    for (const std::int64_t row : rows) {
      const std::vector<double> logits = reader.row(kLogits, row);
      const std::vector<double> bias = tokens_.bias_row(reader, kBias, row);
      const std::vector<unsigned char> banned = tokens_.banned_row(reader, kMask, row);
      const double temperature = temperature_ > 0 ? reader.all(kTemperature)[at(row)] : 1;
      const oracle::SoftmaxTopk problem{.rows = 1,
                                        .vocabulary = tokens_.vocabulary,
                                        .k = k_,
                                        .logits = logits.data(),
                                        .bias = bias.empty() ? nullptr : bias.data(),
                                        .banned = banned.empty() ? nullptr : banned.data(),
                                        .temperature = &temperature,
                                        .renormalize = renormalize_};
      expected.add(oracle::softmax_topk_row(problem, 0), temperature,
                   extras_ ? static_cast<std::int32_t>(status[at(row)]) : 0);
      for (std::int64_t j = 0; j < k_; ++j) index.push_back(row * k_ + j);
    }
    std::vector<OutputReference> result{{kProbabilities, index, expected.probability},
                                        {kIndices, index, expected.tokens}};
    if (!extras_) return result;
    result.push_back({kLogProbabilities, index, expected.log_probability});
    result.push_back({kLogSumExp, rows, expected.log_sum_exp});
    result.push_back({kStatus, rows, expected.status});
    return result;
  }

  // How a row was done is part of its status.
  bool reference_reads_outputs() const override { return extras_; }
  Cost cost() const override {
    const std::int64_t outputs = checked_mul(checked_mul(tokens_.rows, k_), 8);
    return {.bytes = checked_add(tokens_.logit_bytes(), outputs, "bytes"), .only_reads = true};
  }
  Labels labels() const override {
    return {.rows = tokens_.rows, .cols = tokens_.vocabulary, .k = k_};
  }

 private:
  // Another one for every row.
  std::function<double(std::int64_t)> temperatures() const {
    return [base = temperature_](std::int64_t row) {
      return base * (1 + 0.25 * static_cast<double>(row % 5));
    };
  }

  SoftmaxTopkArgs args(Views v, const std::string& implementation) const {
    SoftmaxTopkArgs args;
    args.logits = v[kLogits], args.temperature = v[kTemperature];
    args.bias = v[kBias], args.token_mask = v[kMask];
    args.probabilities = v[kProbabilities], args.indices = v[kIndices];
    args.log_probabilities = v[kLogProbabilities], args.log_sum_exp = v[kLogSumExp];
    args.status = v[kStatus];
    args.renormalize = renormalize_;
    args.implementation = implementation;
    return args;
  }

  TokenCase tokens_;
  std::int64_t k_;
  double temperature_;
  DType indices_;
  bool renormalize_;
  bool extras_;
};

}  // namespace

std::unique_ptr<Problem> make_softmax_topk(const cases::Case& item) {
  return std::make_unique<SoftmaxTopk>(item);
}

}  // namespace touchstone::spec
