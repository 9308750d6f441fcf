// sample: rows x vocabulary. `controls` says which of the sampling parameters are given.
#include "touchstone/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/index.h"
#include "spec/operators.h"
#include "spec/per_token.h"
#include "spec/sample_controls.h"
#include "spec/selection.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/random.h"

namespace touchstone::spec {
namespace {

constexpr float kSharpTemperature = 0.4F;
constexpr float kMinP = 0.05F;
constexpr float kRepetitionPenalty = 1.1F;
constexpr float kFrequencyPenalty = 0.1F;
constexpr float kPresencePenalty = 0.2F;
constexpr std::int64_t kHistory = 300;
constexpr std::int64_t kTopCount = 20;
constexpr std::int64_t kTreeNodes = 8;  // of every tree: a binary one
constexpr std::int64_t kTreeDepth = 4;

class Sample : public Problem {
 public:
  explicit Sample(const cases::Case& item)
      : tokens_(item),
        k_(std::min(item.integer("k", kDefaultK), tokens_.vocabulary)),
        controls_(static_cast<Controls>(item.choice("controls", controls_names()))),
        status_(item.flag("status", false)) {
    item.check_options({"k", "controls", "bias", "mask", "status", "gap", "offset"});
  }

  enum : std::size_t {
    kLogits,
    kBias,
    kMask,
    kTemperature,
    kTopK,
    kTopP_,
    kMinP_,
    kRepetition,
    kFrequency,
    kPresence,
    kHistory_,
    kHistoryRow,
    kParent,
    kTreeToken,
    kSeed,
    kPosition,
    kToken,
    kLogProbability,
    kTopTokens,
    kTopLogs,
    kStatus,
    kCount
  };

  std::vector<Operand> operands() const override {
    const std::int64_t rows = tokens_.rows;
    const auto constant = [](double value) { return [value](std::int64_t) { return value; }; };
    const auto f32 = [&](const char* name, float value) {
      return tokens_.per_row<float>(name, constant(value));
    };
    std::vector<Operand> list(kCount);
    list[kLogits] = tokens_.logits();
    list[kBias] = tokens_.bias_operand();
    list[kMask] = tokens_.mask_operand();
    list[kTemperature] = f32("temperature", temperature());
    if (uses_top_k()) {
      list[kTopK] = tokens_.per_row<std::int32_t>("top_k", constant(static_cast<double>(k_)));
    }
    if (uses_top_p()) list[kTopP_] = f32("top_p", kSampleTopP);
    if (controls_ == Controls::min_p) list[kMinP_] = f32("min_p", kMinP);
    if (penalizes()) {
      list[kRepetition] = f32("repetition_penalty", kRepetitionPenalty);
      list[kFrequency] = f32("frequency_penalty", kFrequencyPenalty);
      list[kPresence] = f32("presence_penalty", kPresencePenalty);
      // Spread over the vocabulary, with some tokens more than once.
      list[kHistory_] = {.name = "history",
                         .dtype = DType::i32,
                         .shape = {is_tree() ? ceil_div(rows, kTreeNodes) : rows, kHistory},
                         .write = values_of<std::int32_t>([v = tokens_.vocabulary](std::int64_t i) {
                           return (i / kHistory * 7919 + i % kHistory / 2 * 104729) % v;
                         })};
    }
    if (is_tree()) {
      list[kHistoryRow] = tokens_.per_row<std::int32_t>(
          "history_row", [](std::int64_t row) { return static_cast<double>(row / kTreeNodes); });
      list[kParent] = tokens_.per_row<std::int32_t>(
          "parent", [](std::int64_t row) { return static_cast<double>(tree_parent(row)); });
      list[kTreeToken] =
          tokens_.per_row<std::int32_t>("tree_token", [v = tokens_.vocabulary](std::int64_t row) {
            return static_cast<double>(tree_token(row, v));
          });
    }
    list[kSeed] = tokens_.per_row<std::int64_t>("seed", [](std::int64_t row) { return row; });
    list[kPosition] =
        tokens_.per_row<std::int64_t>("position", [](std::int64_t row) { return 7 * row; });
    list[kToken] = {.name = "token", .dtype = DType::i32, .shape = {rows}, .output = true};
    list[kLogProbability] = {.name = "log_probability", .shape = {rows}, .output = true};
    if (top_count() > 0) {
      const std::vector<std::int64_t> shape{rows, top_count()};
      list[kTopTokens] = {
          .name = "top_tokens", .dtype = DType::i32, .shape = shape, .output = true};
      list[kTopLogs] = {.name = "top_log_probabilities", .shape = shape, .output = true};
    }
    if (status_) {
      list[kStatus] = {.name = "status", .dtype = DType::i32, .shape = {rows}, .output = true};
    }
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return invoke(sample, args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    const std::vector<std::int64_t> rows = spread_sample(tokens_.rows, sample);
    const std::vector<double> tokens = reader.gather(kToken, rows);
    const std::vector<double> words = reader.all(kStatus);
    OutputReference token{kToken, rows, {}}, log{kLogProbability, rows, {}};
    OutputReference top_tokens{kTopTokens, {}, {}}, top_logs{kTopLogs, {}, {}};
    OutputReference status{kStatus, rows, {}};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const oracle::SampleRow row = row_of(reader, rows[i]);
      const oracle::SampleDistribution d = oracle::sample_distribution(row);
      const double u = random_uniform(rows[i], 7 * rows[i]);
      auto drawn = row.temperature == 0 ? d.order[0] : d.token(u);
      const auto got = static_cast<std::int64_t>(tokens[i]);
      if (row.temperature != 0 && got != drawn && is_the_draw(row, d, u, got, kDrawTolerance)) {
        drawn = got;
      }
      token.expected.add(static_cast<double>(drawn), 0);
      if (status_) {
        const std::int32_t how = static_cast<std::int32_t>(words[at(rows[i])]) & kHowRowWasDone;
        status.expected.add(expected_status(d, top_count()) | how, 0);
      }
      log.expected.add(d.log_probability[at(drawn)], log_probability_bound(row, d, drawn));
      for (std::int64_t j = 0; j < top_count(); ++j) {
        const std::int64_t t = d.order[at(j)];
        const std::int64_t index = rows[i] * top_count() + j;
        top_tokens.add(index, static_cast<double>(t), 0);
        top_logs.add(index, d.log_probability[at(t)], log_probability_bound(row, d, t));
      }
    }
    std::vector<OutputReference> result{std::move(token), std::move(log)};
    if (top_count() > 0) {
      result.push_back(std::move(top_tokens));
      result.push_back(std::move(top_logs));
    }
    if (status_) result.push_back(std::move(status));
    return result;
  }

  // A uniform at a border has two right tokens.
  bool reference_reads_outputs() const override { return true; }
  Cost cost() const override {
    return {.bytes = checked_add(tokens_.logit_bytes(), checked_mul(tokens_.rows, 8), "bytes"),
            .only_reads = true};
  }
  Labels labels() const override {
    return {.rows = tokens_.rows, .cols = tokens_.vocabulary, .k = k_};
  }

 private:
  bool is_tree() const { return controls_ == Controls::tree; }
  bool penalizes() const { return controls_ == Controls::penalties || is_tree(); }
  static std::int64_t tree_parent(std::int64_t row) {
    const std::int64_t node = row % kTreeNodes;
    return node == 0 ? -1 : row - node + (node - 1) / 2;
  }
  // Some of them are in the history already.
  static std::int64_t tree_token(std::int64_t row, std::int64_t vocabulary) {
    return row % kTreeNodes / 2 * 104729 % vocabulary;
  }
  bool uses_top_k() const {
    return controls_ == Controls::usual || penalizes() || controls_ == Controls::probabilities;
  }
  bool uses_top_p() const {
    return uses_top_k() || controls_ == Controls::top_p || controls_ == Controls::wide_top_p;
  }
  float temperature() const {
    if (controls_ == Controls::greedy) return 0;
    return controls_ == Controls::top_p ? kSharpTemperature : kSampleTemperature;
  }
  std::int64_t top_count() const {
    return controls_ == Controls::probabilities ? std::min(kTopCount, tokens_.vocabulary) : 0;
  }

  oracle::SampleRow row_of(const Reader& reader, std::int64_t number) const {
    oracle::SampleRow row;
    row.logits = reader.row(kLogits, number);
    row.bias = tokens_.bias_row(reader, kBias, number);
    for (const unsigned char banned : tokens_.banned_row(reader, kMask, number)) {
      row.token_mask.push_back(banned == 0);
    }
    row.temperature = static_cast<double>(temperature());
    if (uses_top_p()) row.top_p = static_cast<double>(kSampleTopP);
    if (uses_top_k()) row.top_k = k_;
    if (controls_ == Controls::min_p) row.min_p = static_cast<double>(kMinP);
    if (!penalizes()) return row;
    row.repetition_penalty = static_cast<double>(kRepetitionPenalty);
    row.frequency_penalty = static_cast<double>(kFrequencyPenalty);
    row.presence_penalty = static_cast<double>(kPresencePenalty);
    for (const double token : reader.row(kHistory_, is_tree() ? number / kTreeNodes : number)) {
      row.history.push_back(static_cast<std::int64_t>(token));
    }
    for (std::int64_t node = number; is_tree() && node >= 0; node = tree_parent(node)) {
      row.history.push_back(tree_token(node, tokens_.vocabulary));
    }
    return row;
  }

  SampleArgs args(Views v, const std::string& implementation) const {
    SampleArgs args;
    args.logits = v[kLogits], args.bias = v[kBias], args.token_mask = v[kMask];
    args.temperature = v[kTemperature], args.top_k = v[kTopK], args.top_p = v[kTopP_];
    args.min_p = v[kMinP_];
    args.repetition_penalty = v[kRepetition], args.frequency_penalty = v[kFrequency];
    args.presence_penalty = v[kPresence], args.history = v[kHistory_];
    args.history_row = v[kHistoryRow], args.parent = v[kParent], args.tree_token = v[kTreeToken];
    if (is_tree()) args.max_depth = std::min(kTreeDepth, tokens_.rows);
    args.seed = v[kSeed], args.position = v[kPosition];
    args.token = v[kToken], args.log_probability = v[kLogProbability];
    args.top_tokens = v[kTopTokens], args.top_log_probabilities = v[kTopLogs];
    args.status = v[kStatus];
    args.implementation = implementation;
    return args;
  }

  TokenCase tokens_;
  std::int64_t k_;
  Controls controls_;
  bool status_;
};

}  // namespace

std::vector<std::string> controls_names() {
  return {"usual", "top_p",     "wide_top_p",    "min_p", "greedy",
          "none",  "penalties", "probabilities", "tree"};
}

std::unique_ptr<Problem> make_sample(const cases::Case& item) {
  return std::make_unique<Sample>(item);
}

}  // namespace touchstone::spec
