// Scorers and comparisons that the tests of beam search share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/copy.h"
#include "oracle/beam_search.h"
#include "oracle/path_scorer.h"
#include "tests/support/runners.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/kv_cache.h"
#include "touchstone/decode/beam_search.h"
#include "touchstone/ops/cached_attention.h"
#include "touchstone/ops/kv_append.h"

namespace touchstone::decode {

inline constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// A table whose logits are those of a GPU model: computed on the CPU, rounded to f32, copied.
class ToyScorer : public Scorer {
 public:
  ToyScorer(std::int64_t vocabulary, std::int64_t max_length, oracle::TableScorer::Table table)
      : inner_(vocabulary, max_length, std::move(table)), shape_(inner_.shape()) {
    shape_.device = test::test_device();
  }
  const ScorerShape& shape() const override { return shape_; }
  ScorerSequence create() override { return ++live_, inner_.create(); }
  ScorerSequence fork(ScorerSequence sequence) override { return ++live_, inner_.fork(sequence); }
  void truncate(ScorerSequence sequence, std::int64_t length) override {
    inner_.truncate(sequence, length);
  }
  void release(ScorerSequence sequence) override {
    inner_.release(sequence);
    --live_;
  }
  std::int64_t length(ScorerSequence sequence) const override { return inner_.length(sequence); }
  void score(Context& context, const ScoreArgs& args) override {
    if (!args.logits.defined()) {
      inner_.score(context, args);
      return;
    }
    Tensor host = Tensor::empty(args.logits.sizes(), DType::f32);
    ScoreArgs call = args;
    call.logits = host;
    inner_.score(context, call);
    const StreamLocation there{shape_.device, context.stream()};
    queue_copy(there, args.logits.data, {}, host.data(), host.bytes());
    wait_for(there);
    most_rows_ = std::max(most_rows_, args.logits.shape[0]);
  }
  void keep(std::span<const KeptRows> kept) override { inner_.keep(kept); }
  std::int64_t live() const { return live_; }
  std::int64_t most_rows() const { return most_rows_; }

 private:
  oracle::TableScorer inner_;
  ScorerShape shape_;
  std::int64_t live_ = 0;
  std::int64_t most_rows_ = 0;
};

inline BeamResults search(Scorer& scorer, const std::vector<BeamRequest>& requests) {
  test::Runner runner({.device = scorer.shape().device});
  return beam_search(runner, scorer, requests);
}

// The reference on the same f32 logits.
inline oracle::BeamProblem problem_of(const BeamRequest& request, std::int64_t vocabulary,
                                      const oracle::TableScorer::Table& table) {
  oracle::BeamProblem p;
  p.dialect = name_of(request.options.dialect);
  if (request.options.dialect == BeamDialect::hf) {
    p.dialect += "_" + std::string(name_of(request.options.early_stopping));
  }
  p.vocabulary = vocabulary;
  p.beams = request.options.beams;
  p.results = request.options.results;
  p.length_penalty = request.options.length_penalty;
  p.patience = request.options.patience;
  p.max_tokens = request.request.stop.max_tokens;
  p.prompt_tokens = std::ssize(request.request.prompt);
  p.eos = request.options.eos;
  p.logits = [prompt = request.request.prompt, table](const std::vector<std::int32_t>& text,
                                                      std::span<double> logits) {
    std::vector<std::int32_t> path = prompt;
    path.insert(path.end(), text.begin(), text.end());
    table(path, logits);
    for (double& v : logits) v = static_cast<double>(static_cast<float>(v));
  };
  const std::int64_t least = request.request.stop.min_tokens;
  if (least > 0) {
    p.allowed = [least, eos = p.eos](const std::vector<std::int32_t>& text, std::int32_t token) {
      return std::ssize(text) >= least || std::ranges::find(eos, token) == eos.end();
    };
  }
  return p;
}

// Tokens with the ending one, as the reference has them.
inline std::vector<std::int32_t> generated(const BeamHypothesis& h, const BeamRequest& request) {
  std::vector<std::int32_t> tokens = h.tokens;
  if (h.finished && !request.request.stop.include_stop) tokens.push_back(request.options.eos[0]);
  return tokens;
}

inline void expect_same(const std::vector<BeamHypothesis>& got,
                        const std::vector<oracle::BeamText>& expected, const BeamRequest& request) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("result " + std::to_string(i));
    if (request.options.eos.size() == 1 || request.request.stop.include_stop) {
      EXPECT_EQ(generated(got[i], request), expected[i].tokens);
    }
    EXPECT_NEAR(got[i].log_probability, expected[i].log_probability,
                2e-6 * static_cast<double>(expected[i].tokens.size()));
    EXPECT_NEAR(got[i].score, expected[i].score, 1e-5 * std::max(1.0, std::abs(expected[i].score)));
    EXPECT_EQ(got[i].reason == FinishReason::eos, expected[i].ended);
  }
}

// Attention over a paged cache on the CPU, one head: keys and values are functions of the token, so
// the logits show whose cache a beam reads.
class CacheScorer : public Scorer {
 public:
  static constexpr std::int64_t kDim = 8;

  CacheScorer(std::int64_t vocabulary, std::int64_t max_length, std::int64_t page_tokens,
              std::int64_t pages)
      : cache_(context_, {.layout = layout(page_tokens), .pool_pages = {pages}}), builder_(cache_) {
    shape_.vocabulary = vocabulary;
    shape_.max_length = max_length;
  }
  const ScorerShape& shape() const override { return shape_; }
  ScorerSequence create() override { return added(cache_.create()); }
  ScorerSequence fork(ScorerSequence s) override { return added(cache_.fork(ids_.at(s.id))); }
  void truncate(ScorerSequence s, std::int64_t length) override {
    cache_.truncate(ids_.at(s.id), length);
  }
  void release(ScorerSequence s) override {
    cache_.release(ids_.at(s.id));
    ids_.erase(s.id);
  }
  std::int64_t length(ScorerSequence s) const override { return cache_.length(ids_.at(s.id)); }
  void score(Context& /*context*/, const ScoreArgs& args) override {
    check_score_args(*this, args);
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < args.rows.size(); ++i) {
      const std::vector<float> state = append(args.rows[i]);
      if (wanted == args.logit_rows.size() ||
          args.logit_rows[wanted] != static_cast<std::int32_t>(i)) {
        continue;
      }
      auto* const out = static_cast<float*>(args.logits.data) +
                        static_cast<std::int64_t>(wanted++) * shape_.vocabulary;
      for (std::int64_t v = 0; v < shape_.vocabulary; ++v) {
        out[v] = 0;
        for (std::int64_t d = 0; d < kDim; ++d) {
          out[v] += state[static_cast<std::size_t>(d)] * number(v, d, 7) * 6;
        }
      }
    }
  }
  void keep(std::span<const KeptRows> /*kept*/) override {}  // a search keeps every row
  cache::Statistics statistics() const { return cache_.statistics(); }

 private:
  static cache::Layout layout(std::int64_t page_tokens) {
    constexpr QuantFormat kPlain{.dtype = DType::f32};
    return {{{.layers = 1,
              .kv_heads = 1,
              .k_dim = kDim,
              .v_dim = kDim,
              .k = kPlain,
              .v = kPlain,
              .page_tokens = page_tokens}}};
  }
  static float number(std::int64_t a, std::int64_t b, std::int64_t seed) {
    return static_cast<float>(2 * random_uniform(seed, a * 64 + b) - 1);
  }
  ScorerSequence added(cache::SequenceId id) {
    ids_[next_] = id;
    return {next_++};
  }
  // The output of attention for one more token.
  std::vector<float> append(const ScoreRow& row) {
    const std::vector<cache::SequenceId> ids{ids_.at(row.sequence.id)};
    std::vector<float> k, v, q, output(kDim);
    for (std::int64_t d = 0; d < kDim; ++d) {
      k.push_back(number(row.token, d, 1));
      v.push_back(number(row.token, d, 2) + 0.1F * number(row.position, d, 4));
      q.push_back(number(row.token, d, 3));
    }
    cache_.reserve(ids, 1);
    const cache::CacheView& view = builder_.build(context_, ids);
    kv_append(context_, {.cache = view,
                         .k = make_view(std::as_const(k).data(), {1, 1, kDim}),
                         .v = make_view(std::as_const(v).data(), {1, 1, kDim})});
    const std::int64_t offsets[] = {0, 1};
    cached_attention(context_, {.q = make_view(std::as_const(q).data(), {1, 1, kDim}),
                                .query_offsets = make_view(&offsets[0], {2}),
                                .cache = view,
                                .output = make_view(output.data(), {1, 1, kDim}),
                                .include_reserved = true});
    cache_.commit(ids, 1);
    return output;
  }

  Context context_{{.threads = 1}};
  cache::KvCache cache_;
  cache::CacheViewBuilder builder_;
  ScorerShape shape_;
  std::map<std::int64_t, cache::SequenceId> ids_;
  std::int64_t next_ = 0;
};

}  // namespace touchstone::decode
