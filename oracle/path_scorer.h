// Scorers without a cache: every row is scored from the tokens of its whole path. Slow, and
// independent of other rows, sequences and calls by construction.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "touchstone/core/error.h"
#include "touchstone/core/random.h"
#include "touchstone/decode/scorer.h"

namespace touchstone::oracle {

class PathScorer : public decode::Scorer {
 public:
  const decode::ScorerShape& shape() const override { return shape_; }

  decode::ScorerSequence create() override {
    committed_[next_] = {};
    return {next_++};
  }
  decode::ScorerSequence fork(decode::ScorerSequence sequence) override {
    committed_[next_] = tokens(sequence);
    return {next_++};
  }
  void truncate(decode::ScorerSequence sequence, std::int64_t length) override {
    if (length < 0 || length > this->length(sequence)) {
      throw InvalidArgument("truncate: length " + std::to_string(length) + " is not in [0, " +
                            std::to_string(this->length(sequence)) + "]");
    }
    committed_.at(sequence.id).resize(static_cast<std::size_t>(length));
    pending_.clear();
  }
  void release(decode::ScorerSequence sequence) override {
    tokens(sequence);
    committed_.erase(sequence.id);
    pending_.clear();
  }
  std::int64_t length(decode::ScorerSequence sequence) const override {
    return static_cast<std::int64_t>(tokens(sequence).size());
  }
  // The committed tokens.
  const std::vector<std::int32_t>& tokens(decode::ScorerSequence sequence) const {
    const auto found = committed_.find(sequence.id);
    if (found == committed_.end()) {
      throw InvalidArgument("scorer: no sequence " + std::to_string(sequence.id));
    }
    return found->second;
  }

  void score(Context& /*context*/, const decode::ScoreArgs& args) override {
    decode::check_score_args(*this, args);
    pending_.assign(args.rows.begin(), args.rows.end());
    const auto vocabulary = static_cast<std::size_t>(shape_.vocabulary);
    const auto width = static_cast<std::size_t>(shape_.hidden_size);
    std::vector<double> logits(vocabulary);
    std::vector<double> hidden(static_cast<std::size_t>(shape_.layers + 1) * width);
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < args.rows.size(); ++i) {
      const bool logits_wanted = wanted < args.logit_rows.size() &&
                                 args.logit_rows[wanted] == static_cast<std::int32_t>(i);
      if (!logits_wanted && args.hidden_layers.empty()) continue;
      score_path(path_of(static_cast<std::int32_t>(i)), logits, hidden);
      if (logits_wanted) store(args.logits, wanted++ * vocabulary, logits);
      for (std::size_t j = 0; j < args.hidden_layers.size(); ++j) {
        const auto layer = static_cast<std::size_t>(args.hidden_layers[j]);
        store(args.hidden, (j * args.rows.size() + i) * width,
              std::span(hidden).subspan(layer * width, width));
      }
    }
  }

  void keep(std::span<const decode::KeptRows> kept) override {
    decode::check_kept_rows(pending_, kept);
    for (const decode::KeptRows& rows : kept) tokens(rows.sequence);
    for (const decode::KeptRows& rows : kept) {
      for (const std::int32_t row : rows.rows) {
        committed_.at(rows.sequence.id).push_back(pending_[static_cast<std::size_t>(row)].token);
      }
    }
    pending_.clear();
  }

 protected:
  explicit PathScorer(decode::ScorerShape shape) : shape_(shape) {}
  // The logits, [vocabulary], after the last token of `path`, and its hidden states,
  // [layers + 1, hidden_size].
  virtual void score_path(const std::vector<std::int32_t>& path, std::span<double> logits,
                          std::span<double> hidden) = 0;

 private:
  std::vector<std::int32_t> path_of(std::int32_t row) const {
    std::vector<std::int32_t> path = tokens(pending_[static_cast<std::size_t>(row)].sequence);
    const std::size_t committed = path.size();
    for (; row != decode::kNoNode; row = pending_[static_cast<std::size_t>(row)].parent) {
      path.insert(path.begin() + static_cast<std::ptrdiff_t>(committed),
                  pending_[static_cast<std::size_t>(row)].token);
    }
    return path;
  }
  static void store(const TensorView& to, std::size_t at, std::span<const double> from) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (to.dtype == DType::f64) {
        static_cast<double*>(to.data)[at + i] = from[i];
      } else {
        static_cast<float*>(to.data)[at + i] = static_cast<float>(from[i]);
      }
    }
  }

  decode::ScorerShape shape_;
  std::map<std::int64_t, std::vector<std::int32_t>> committed_;
  std::vector<decode::ScoreRow> pending_;
  std::int64_t next_ = 0;
};

// Logits from a table: any function of the path. Small vocabularies allow exact enumeration.
class TableScorer : public PathScorer {
 public:
  using Table =
      std::function<void(const std::vector<std::int32_t>& path, std::span<double> logits)>;

  TableScorer(std::int64_t vocabulary, std::int64_t max_length, Table table)
      : PathScorer({.vocabulary = vocabulary, .max_length = max_length}),
        table_(std::move(table)) {}

 private:
  void score_path(const std::vector<std::int32_t>& path, std::span<double> logits,
                  std::span<double> /*hidden*/) override {
    table_(path, logits);
  }

  Table table_;
};

// A table in which every token of the path, and its place in it, changes every logit; the logits are
// in (-scale, scale).
inline TableScorer::Table hashed_table(std::int64_t seed, double scale) {
  return [=](const std::vector<std::int32_t>& path, std::span<double> logits) {
    std::uint64_t state = 0;
    for (const std::int32_t token : path) {
      const PhiloxWords words = random_words(static_cast<std::int64_t>(state), token);
      state = std::uint64_t{words.word[1]} << 32 | words.word[0];
    }
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = scale * (2 * random_uniform(seed ^ static_cast<std::int64_t>(state),
                                              static_cast<std::int64_t>(i)) -
                           1);
    }
  };
}

}  // namespace touchstone::oracle
