// Speculation in the scheduler gives the completions of plain decoding: tokens, log-probabilities,
// text, reasons, events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "decode/speculative/distribution.h"
#include "decode/speculative/speculative_test_support.h"
#include "oracle/path_scorer.h"
#include "touchstone/core/error.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::decode {
namespace {

using test::Draws;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kVocabulary = 24;

// Remembers what was committed when a sequence was released, and how long its rows were.
class WatchedScorer : public oracle::TableScorer {
 public:
  explicit WatchedScorer(double scale = 4, std::int64_t max_length = 80)
      : TableScorer(kVocabulary, max_length, oracle::hashed_table(7, scale)) {}
  void release(ScorerSequence sequence) override {
    committed.insert(tokens(sequence));
    TableScorer::release(sequence);
  }
  std::multiset<std::vector<std::int32_t>> committed{};
};

Request request(std::vector<std::int32_t> prompt, std::int64_t tokens, double temperature) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = temperature, .seed = 5},
          .stop = {.max_tokens = tokens},
          .top_log_probabilities = 1};
}

// Both ways, and equal; the statistics of the speculative one.
SpeculationStatistics compare(const std::vector<Request>& requests, SchedulerOptions options,
                              std::int64_t seed, double scale = 4) {
  Context context({.threads = 1});
  WatchedScorer plain_scorer(scale);
  const test::Served plain = test::serve(plain_scorer, context, requests, options);
  // The source knows the whole text, without a stop that is not part of the tokens.
  std::vector<Request> endless = requests;
  for (Request& one : endless) one.stop.include_stop = true;
  WatchedScorer endless_scorer(scale);
  const test::Served known = test::serve(endless_scorer, context, endless, options);
  options.speculation.source = std::make_shared<test::RandomSource>(
      seed, kVocabulary, test::future_of(test::texts_of(requests, known)));
  options.speculation.adaptive = false;
  WatchedScorer scorer(scale);
  const test::Served drafted = test::serve(scorer, context, requests, options);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::size_t s = 0; s < plain.completions[i].size(); ++s) {
      EXPECT_TRUE(test::same(plain.completions[i][s], drafted.completions[i][s]))
          << "request " << i << " sample " << s << " seed " << seed;
    }
  }
  EXPECT_EQ(plain.events, drafted.events);
  EXPECT_EQ(plain_scorer.committed, scorer.committed) << "nothing after the end is committed";
  return drafted.speculation;
}

TEST(Speculation, TheToyTargetDependsOnItsWholeContext) {
  const auto table = oracle::hashed_table(7, 4);
  std::vector<std::int32_t> path = {1, 2, 3, 4, 5};
  std::vector<double> logits(kVocabulary);
  table(path, logits);
  for (std::int32_t& token : path) {
    std::vector<double> changed(kVocabulary);
    ++token;
    table(path, changed);
    --token;
    for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NE(changed[i], logits[i]);
  }
}

TEST(Speculation, TokensAreThoseOfPlainDecoding) {
  std::int64_t passes = 0;
  std::int64_t tokens = 0;
  std::int64_t drafted = 0;
  std::int64_t seed = 0;
  Draws draws(3);
  for (const double temperature : {0.0, 0.7, 1.5}) {
    for (const double top_p : {1.0, 0.8}) {
      for (const bool penalties : {false, true}) {
        for (const std::int64_t batch : {1, 2, 7, 32}) {
          std::vector<Request> requests;
          for (std::int64_t i = 0; i < batch; ++i) {
            std::vector<std::int32_t> prompt(static_cast<std::size_t>(1 + draws.below(9)));
            for (std::int32_t& token : prompt) token = draws.token(kVocabulary);
            Request one = request(prompt, 3 + draws.below(24), temperature);
            one.sampling.top_p = top_p;
            one.sampling.top_k = i % 3 == 0 ? 12 : 0;
            one.sampling.min_p = i % 4 == 0 ? 0.02 : 0;
            one.sampling.seed = i;
            if (penalties) {
              one.sampling.repetition_penalty = 1.3;
              one.sampling.frequency_penalty = 0.4;
              one.sampling.presence_penalty = 0.2;
            }
            one.samples = i % 5 == 0 ? 2 : 1;
            requests.push_back(std::move(one));
          }
          const SpeculationStatistics s =
              compare(requests, {.max_rows = batch % 2 == 0 ? 64 : 256}, ++seed);
          passes += s.passes;
          tokens += s.tokens;
          drafted += s.drafted_passes;
        }
      }
    }
  }
  EXPECT_GT(drafted, 1000);
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(passes), 1.5);
}

// Ends inside of accepted paths: eos, stop tokens, max tokens, the context, least tokens.
TEST(Speculation, TextsEndWherePlainDecodingEndsThem) {
  Draws draws(8);
  for (std::int64_t seed = 0; seed < 60; ++seed) {
    Request one = request({draws.token(kVocabulary), 2}, 40, seed % 2 == 0 ? 0 : 0.9);
    one.stop.tokens = {draws.token(kVocabulary)};
    one.stop.include_stop = seed % 3 == 0;
    one.stop.min_tokens = seed % 4 == 0 ? 9 : 0;
    if (seed % 5 == 0) one.prompt.resize(70, 3);  // ten tokens fit
    if (seed % 7 == 0) one.stop.max_tokens = 1 + draws.below(6);
    one.stop.min_tokens = std::min(one.stop.min_tokens, one.stop.max_tokens);
    compare({one}, {.eos_tokens = {draws.token(kVocabulary)}}, 1000 + seed);
  }
}

// Letters for the first 24 tokens: stop strings end in the middle of an accepted path, and reach
// from one token into the next.
io::Tokenizer letters() {
  std::string json = R"({"model": {"type": "BPE", "merges": [], "vocab": {)";
  for (int i = 0; i < kVocabulary; ++i) {
    json += (i == 0 ? "\"" : ", \"") + std::string(1, static_cast<char>('a' + i)) +
            "\": " + std::to_string(i);
  }
  return io::Tokenizer::from_json(json + R"(}}, "decoder": {"type": "Fuse"}})");
}

TEST(Speculation, StopStringsEndTextsWherePlainDecodingDoes) {
  const io::Tokenizer tokenizer = letters();
  Draws draws(12);
  std::int64_t stopped = 0;
  std::int64_t accepted = 0;
  for (std::int64_t seed = 0; seed < 40; ++seed) {
    Request one = request({draws.token(kVocabulary), 2}, 40, seed % 2 == 0 ? 0 : 0.9);
    // Two letters that follow each other in the plain text.
    Context context({.threads = 1});
    WatchedScorer scorer;
    const std::string text =
        test::serve(scorer, context, {one}, {.tokenizer = &tokenizer}).completions[0][0].text;
    ASSERT_EQ(text.size(), 40U);
    one.stop.strings = {text.substr(static_cast<std::size_t>(5 + draws.below(30)), 2)};
    one.stop.include_stop = seed % 3 == 0;
    const SpeculationStatistics s = compare({one}, {.tokenizer = &tokenizer}, 3000 + seed);
    accepted += s.tokens - s.passes;
    stopped += s.tokens < 39 ? 1 : 0;
  }
  EXPECT_GT(stopped, 30);
  EXPECT_GT(accepted, 100);
}

// The text has another distribution of lengths where an end is missed, or tokens follow it.
TEST(Speculation, RejectionEndsAtStopTokens) {
  Context context({.threads = 1});
  oracle::TableScorer draft_model(6, 60, oracle::hashed_table(4, 2));
  SchedulerOptions options{.eos_tokens = {5}};
  options.speculation = {
      .source = model_source(draft_model, 6, {.width = 2, .branch = 2, .draw = true}),
      .tree_nodes = 6,
      .rule = AcceptanceRule::rejection,
      .adaptive = false};
  oracle::TableScorer scorer(6, 60, oracle::hashed_table(3, 2));
  std::int64_t ended = 0;
  for (std::int64_t seed = 0; seed < 200; ++seed) {
    Request one{.prompt = {1}, .sampling = {.temperature = 1}, .stop = {.max_tokens = 20}};
    one.sampling.seed = seed;
    one.stop.tokens = {4};
    one.stop.min_tokens = seed % 2 == 0 ? 6 : 0;
    one.stop.include_stop = true;
    const Completion answer = test::serve(scorer, context, {one}, options).completions[0][0];
    const auto end = std::ranges::find_if(answer.tokens, [](std::int32_t t) { return t >= 4; });
    const std::int64_t length = end - answer.tokens.begin();
    if (end == answer.tokens.end()) {
      EXPECT_EQ(answer.tokens.size(), 20U);
      EXPECT_EQ(answer.finish, FinishReason::length);
      continue;
    }
    ++ended;
    EXPECT_EQ(length + 1, std::ssize(answer.tokens)) << "nothing follows an end";
    EXPECT_GE(length, one.stop.min_tokens);
    EXPECT_NE(answer.finish, FinishReason::length);
  }
  EXPECT_GT(ended, 150);
}

// Allows the tokens of one residue, which depends on the last one.
class Residues : public TokenConstraint {
 public:
  std::unique_ptr<TokenConstraint> start() const override { return std::make_unique<Residues>(); }
  std::unique_ptr<TokenConstraint> copy() const override {
    return std::make_unique<Residues>(*this);
  }
  void allowed(std::span<std::int32_t> mask) const override {
    std::ranges::fill(mask, 0);
    for (std::int32_t t = 0; t < kVocabulary; ++t) {
      if (t % 3 == residue_) mask[0] |= 1 << t;
    }
  }
  void accept(std::int32_t token) override {
    if (token % 3 != residue_) throw InvalidArgument("residues: this token is not allowed");
    residue_ = (token * 7 + residue_ + 1) % 3;
  }

 private:
  std::int32_t residue_ = 1;
};

TEST(Speculation, ConstraintsMaskEveryNode) {
  std::int64_t accepted = 0;
  for (std::int64_t seed = 0; seed < 30; ++seed) {
    Request one = request({1, 2, 3}, 25, seed % 2 == 0 ? 0 : 1.2);
    one.constraint = std::make_shared<Residues>();
    one.sampling.repetition_penalty = seed % 3 == 0 ? 1.2 : 1;
    one.stop.tokens = {5};
    one.stop.min_tokens = 4;
    const SpeculationStatistics s = compare({one, request({4}, 9, 0.7)}, {}, 2000 + seed);
    accepted += s.tokens - s.passes;
  }
  EXPECT_GT(accepted, 100);
}

// Memory for so many tokens: drafts give way and preempt no sequence.
class SmallScorer : public WatchedScorer {
 public:
  bool fits(std::span<const RowCount> counts) const override {
    std::int64_t rows = 0;
    for (const RowCount& count : counts) rows += count.rows + length(count.sequence);
    return rows <= 60;
  }
};

TEST(Speculation, DraftsUseTheMemoryThatIsLeft) {
  Context context({.threads = 1});
  const std::vector<Request> requests = {request({1, 2, 3}, 20, 0), request({4, 5}, 20, 0.9)};
  WatchedScorer plain;
  const test::Served expected = test::serve(plain, context, requests, {});
  SmallScorer scorer;
  SchedulerOptions options;
  auto source = std::make_shared<test::RandomSource>(
      3, kVocabulary, test::future_of(test::texts_of(requests, expected)));
  options.speculation = {.source = source, .adaptive = false};
  Scheduler scheduler(scorer, options);
  std::vector<RequestId> ids;
  for (const Request& one : requests) ids.push_back(scheduler.submit(one));
  while (scheduler.step(context)) {
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(test::same(scheduler.take(ids[i])[0], expected.completions[i][0]));
  }
  EXPECT_EQ(scheduler.statistics().preemptions, 0);
  EXPECT_EQ(source->forgotten, 2);
}

TEST(Speculation, ASourceOutlivesItsSchedulers) {
  Context context({.threads = 1});
  oracle::TableScorer draft_model(kVocabulary, 80, oracle::hashed_table(7, 4));
  SchedulerOptions options;
  auto random = std::make_shared<test::RandomSource>(3, kVocabulary, test::future_of({}));
  std::shared_ptr<DraftSource> same = model_source(draft_model, kVocabulary);
  for (const std::shared_ptr<DraftSource>& source : {std::shared_ptr<DraftSource>(random), same}) {
    options.speculation = {.source = source, .adaptive = false};
    WatchedScorer scorer;
    Scheduler scheduler(scorer, options);
    scheduler.submit(request({1, 2, 3}, 20, 0));
    for (int i = 0; i < 4; ++i) scheduler.step(context);
  }
  EXPECT_EQ(random->forgotten, 1) << "of a request that was not finished";
  // Another text under the same number: the draft model has forgotten the first.
  WatchedScorer scorer;
  const test::Served served = test::serve(scorer, context, {request({9, 8}, 20, 0)}, options);
  EXPECT_EQ(served.speculation.accepted[0], served.speculation.offered[0]);
}

// Every source, with the controller on, and what is counted.
TEST(Speculation, EverySourceGivesTheSameText) {
  Context context({.threads = 1});
  // A text that repeats itself: the table sees the last two tokens only.
  const auto periodic = [](const std::vector<std::int32_t>& path, std::span<double> logits) {
    const std::size_t n = path.size();
    const std::int32_t next = (path[n - 1] * 5 + (n > 1 ? path[n - 2] : 0) * 3 + 1) % 24;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<std::int32_t>(i) == next ? 4 : 0;
    }
  };
  oracle::TableScorer draft_model(kVocabulary, 400, periodic);
  for (const double temperature : {0.0, 0.8}) {
    std::vector<Request> requests;
    for (std::int32_t i = 0; i < 3; ++i) requests.push_back(request({i, 3}, 120, temperature));
    oracle::TableScorer plain(kVocabulary, 400, periodic);
    const test::Served expected = test::serve(plain, context, requests, {});
    for (const bool adaptive : {false, true}) {
      for (int kind = 0; kind < 6; ++kind) {
        SchedulerOptions options;
        options.speculation.adaptive = adaptive;
        std::vector<std::unique_ptr<DraftSource>> both;
        both.push_back(ngram_source());
        both.push_back(suffix_source());
        options.speculation.source =
            kind == 0   ? prompt_lookup_source()
            : kind == 1 ? ngram_source()
            : kind == 2 ? suffix_source()
            : kind == 3 ? model_source(draft_model, kVocabulary)
            : kind == 4 ? model_source(draft_model, kVocabulary, {.width = 3, .branch = 2})
                        : merged_source(std::move(both));
        oracle::TableScorer scorer(kVocabulary, 400, periodic);
        const test::Served found = test::serve(scorer, context, requests, options);
        for (std::size_t i = 0; i < requests.size(); ++i) {
          EXPECT_TRUE(test::same(found.completions[i][0], expected.completions[i][0])) << kind;
        }
        const SpeculationStatistics& s = found.speculation;
        EXPECT_EQ(s.tokens, 3 * 119) << "the first token comes with the prompt";
        EXPECT_FALSE(s.controller.empty());
        if (adaptive) continue;
        EXPECT_GT(s.tokens, temperature == 0 ? 2 * s.passes : s.passes) << kind;
        ASSERT_FALSE(s.offered.empty());
        EXPECT_EQ(s.offered[0], s.drafted_passes);
        EXPECT_LE(s.accepted[0], s.offered[0]);
      }
    }
  }
}

// The distribution of the text, not the text: first two tokens of many seeds.
TEST(Speculation, RejectionHasTheDistributionOfTheTarget) {
  Context context({.threads = 1});
  const auto table = oracle::hashed_table(3, 2);
  std::map<std::vector<std::int32_t>, double> found;
  constexpr int kRuns = 4000;
  std::int64_t accepted = 0;
  oracle::TableScorer draft_model(6, 40, oracle::hashed_table(4, 2));
  SchedulerOptions options;
  options.speculation = {
      .source = model_source(draft_model, 6, {.width = 2, .branch = 2, .draw = true}),
      .tree_nodes = 6,
      .max_depth = 2,
      .rule = AcceptanceRule::rejection,
      .adaptive = false};
  oracle::TableScorer scorer(6, 40, table);
  Scheduler scheduler(scorer, options);
  for (int run = 0; run < kRuns; ++run) {
    Request one{
        .prompt = {1}, .sampling = {.temperature = 1, .top_k = 4}, .stop = {.max_tokens = 4}};
    one.sampling.seed = run;
    const RequestId id = scheduler.submit(one);
    while (scheduler.step(context)) {
    }
    const Completion answer = scheduler.take(id)[0];
    found[{answer.tokens[1], answer.tokens[2]}] += 1.0 / kRuns;
    ASSERT_EQ(answer.tokens.size(), 4U);
  }
  accepted = scheduler.speculation().tokens - scheduler.speculation().passes;
  EXPECT_GT(accepted, kRuns / 4);
  // By enumeration: the first token comes with the prompt and is not looked at.
  const SamplingControls controls{.temperature = 1, .top_k = 4};
  const auto p = [&](const std::vector<std::int32_t>& path) {
    std::vector<double> logits(6);
    table(path, logits);
    const std::vector<float> narrow(logits.begin(), logits.end());
    return target_distribution({.logits = narrow, .controls = &controls, .tokens = path}).drawn;
  };
  std::map<std::vector<std::int32_t>, double> expected;
  for (std::int32_t a = 0; a < 6; ++a) {
    for (std::int32_t b = 0; b < 6; ++b) {
      for (std::int32_t c = 0; c < 6; ++c) {
        expected[{b, c}] +=
            p({1}).probability(a) * p({1, a}).probability(b) * p({1, a, b}).probability(c);
      }
    }
  }
  double sum = 0;
  double cells = -1;
  for (const auto& [tokens, share] : expected) {
    if (share == 0) {
      EXPECT_EQ(found[tokens], 0);
      continue;
    }
    sum += kRuns * (found[tokens] - share) * (found[tokens] - share) / share;
    ++cells;
  }
  EXPECT_LT((sum - cells) / std::sqrt(2 * cells), 4);
}

// A target with hidden states whose pass takes two milliseconds.
class HiddenScorer : public oracle::PathScorer {
 public:
  HiddenScorer()
      : PathScorer({.vocabulary = kVocabulary, .max_length = 200, .layers = 1, .hidden_size = 1}) {}
  void score(Context& context, const ScoreArgs& args) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    tapped += args.hidden_layers.empty() ? 0 : 1;
    PathScorer::score(context, args);
  }
  std::int64_t tapped = 0;  // passes that computed hidden states

 private:
  void score_path(const std::vector<std::int32_t>& path, std::span<double> logits,
                  std::span<double> hidden) override {
    oracle::hashed_table(7, 4)(path, logits);
    std::ranges::fill(hidden, path.back());
  }
};

// Observes slowly, drafts nothing, and notices gaps.
class SlowObserver : public DraftSource {
 public:
  std::string name() const override { return "slow"; }
  std::span<const std::int32_t> hidden_layers() const override { return layers_; }
  void observe(Context& /*context*/, const ObservedRows& rows) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    ++calls;
    std::int64_t& length = lengths_[rows.id];
    EXPECT_EQ(rows.position, length);
    length += std::ssize(rows.rows);
  }
  void copy(Context& /*context*/, std::int64_t from, std::int64_t to) override {
    lengths_[to] = lengths_[from];
  }
  void draft(Context& /*context*/, std::span<DraftRequest> /*requests*/) override {}
  void forget(std::int64_t id) override { lengths_.erase(id); }

  std::int64_t calls = 0;

 private:
  std::vector<std::int32_t> layers_{1};
  std::map<std::int64_t, std::int64_t> lengths_;
};

TEST(Speculation, ObservingIsACostOfTheSource) {
  Context context({.threads = 1});
  HiddenScorer scorer;
  SchedulerOptions options;
  auto source = std::make_shared<SlowObserver>();
  options.speculation = {.source = source, .adaptive = false};
  const test::Served served = test::serve(scorer, context, {request({1, 2}, 20, 0)}, options);
  EXPECT_EQ(source->calls, 20) << "the prompt, then every token but the last";
  const SpeculationStatistics& s = served.speculation;
  EXPECT_GE(s.draft_seconds, 19 * 0.004);
  EXPECT_LE(s.plain_seconds, s.seconds - 0.8 * s.draft_seconds)
      << "plain decoding observes nothing";
}

// Proposes a token in every pass up to a length of the text, then nothing.
class EarlySource : public DraftSource {
 public:
  std::string name() const override { return "early"; }
  void draft(Context& /*context*/, std::span<DraftRequest> requests) override {
    for (DraftRequest& one : requests) {
      if (std::ssize(one.tokens) < 30) one.draft.tree.add({.token = 0, .log_probability = -1});
    }
  }
  void forget(std::int64_t /*id*/) override {}
};

TEST(Speculation, TokensBeforeTheFirstPlainStepCountInItsTime) {
  Context context({.threads = 1});
  HiddenScorer scorer;
  SchedulerOptions options;
  options.speculation = {.source = std::make_shared<EarlySource>(), .adaptive = false};
  const SpeculationStatistics s =
      test::serve(scorer, context, {request({1, 2}, 40, 0)}, options).speculation;
  EXPECT_GT(s.drafted_passes, 10);
  EXPECT_LT(s.drafted_passes, s.passes);
  EXPECT_GE(s.plain_seconds, 0.9 * 0.002 * static_cast<double>(s.tokens));
}

TEST(Speculation, HiddenStatesAreDroppedWhereObservingCostsTooMuch) {
  Context context({.threads = 1});
  std::vector<Request> requests = {request({1, 2}, 100, 0.7), request({3, 4, 5}, 90, 0)};
  requests[0].samples = 2;
  HiddenScorer plain;
  const test::Served expected = test::serve(plain, context, requests, {});
  HiddenScorer scorer;
  SchedulerOptions options;
  auto source = std::make_shared<SlowObserver>();
  options.speculation.source = source;
  const test::Served served = test::serve(scorer, context, requests, options);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(test::same(expected.completions[i][0], served.completions[i][0])) << i;
  }
  EXPECT_GE(scorer.tapped, 1);
  EXPECT_LE(scorer.tapped, 30) << "of about 100 passes";
  EXPECT_LE(source->calls, 90);
  EXPECT_THAT(served.speculation.controller, HasSubstr("stopped: hidden states cost too much"));
}

class BadSource : public DraftSource {
 public:
  explicit BadSource(int fault) : fault_(fault) {}
  std::string name() const override { return "bad"; }
  std::int64_t vocabulary() const override { return fault_ == 3 ? 99 : 0; }
  void draft(Context& /*context*/, std::span<DraftRequest> requests) override {
    TokenTree& tree = requests[0].draft.tree;
    const std::int64_t nodes = fault_ == 0   ? 1
                               : fault_ == 1 ? requests[0].limits.max_nodes + 1
                                             : requests[0].limits.max_depth + 1;
    for (std::int32_t i = 0; i < nodes; ++i) {
      tree.add({.parent = fault_ == 1 ? kNoNode : i - 1, .token = fault_ == 0 ? 24 : 1});
    }
  }
  void forget(std::int64_t /*id*/) override {}

 private:
  int fault_;
};

TEST(Speculation, BadDraftsAreRefusedAndNothingChanges) {
  Context context({.threads = 1});
  const char* const messages[] = {"token 24 is outside [0, 24)", "17 nodes exceed the budget of 16",
                                  "depth 5 exceeds the limit of 4"};
  for (int fault = 0; fault < 3; ++fault) {
    WatchedScorer scorer;
    SchedulerOptions options;
    options.speculation = {
        .source = std::make_shared<BadSource>(fault), .max_depth = 4, .adaptive = false};
    Scheduler scheduler(scorer, options);
    scheduler.submit(request({1, 2}, 12, 0));
    EXPECT_TRUE(scheduler.step(context));
    for (int again = 0; again < 2; ++again) {
      EXPECT_THAT([&] { scheduler.step(context); },
                  ThrowsMessage<InvalidArgument>(HasSubstr(messages[fault])));
      EXPECT_EQ(scorer.tokens({0}), (std::vector<std::int32_t>{1, 2}));
    }
  }
  WatchedScorer scorer;
  SchedulerOptions options;
  options.speculation.source = std::make_shared<BadSource>(3);
  EXPECT_THAT(
      [&] { Scheduler(scorer, options); },
      ThrowsMessage<InvalidArgument>(HasSubstr("vocabulary of the target, 24 tokens, got 99")));
}

}  // namespace
}  // namespace touchstone::decode
