// Requests that cannot be served: they end, once and by name, and the others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>

#include "oracle/path_scorer.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/grammar.h"
#include "touchstone/decode/scheduler.h"

namespace touchstone::decode {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kWords = 40;
constexpr std::int32_t kPoison = 13;

// Refuses rows of kPoison, and more than `rows` rows of one sequence in a call.
class WindowScorer : public oracle::TableScorer {
 public:
  explicit WindowScorer(std::int64_t rows = 1000, Table table = oracle::hashed_table(7, 4))
      : TableScorer(kWords, 64, std::move(table)), rows_(rows) {}

  bool fits(std::span<const RowCount> counts) const override {
    return std::ranges::all_of(counts, [&](const RowCount& one) { return one.rows <= rows_; });
  }
  void score(Context& context, const ScoreArgs& args) override {
    std::map<std::int64_t, std::int64_t> counts;
    for (const ScoreRow& row : args.rows) {
      if (row.token == kPoison) throw Unsupported("token 13");
      if (++counts[row.sequence.id] > rows_) throw OutOfMemory("no pages");
    }
    TableScorer::score(context, args);
  }

 private:
  std::int64_t rows_;
};

// Any token but kPoison; the mask after `good` tokens throws.
class Failing : public TokenConstraint {
 public:
  explicit Failing(std::int64_t good) : good_(good) {}
  std::unique_ptr<TokenConstraint> start() const override {
    return std::make_unique<Failing>(good_);
  }
  std::unique_ptr<TokenConstraint> copy() const override {
    return std::make_unique<Failing>(*this);
  }
  void allowed(std::span<std::int32_t> mask) const override {
    if (taken_ >= good_) throw InvalidArgument("too many readings");
    std::ranges::fill(mask, -1);
    mask[0] &= ~(1 << kPoison);
  }
  void accept(std::int32_t /*token*/) override { ++taken_; }

 private:
  std::int64_t good_;
  std::int64_t taken_ = 0;
};

Request harmless(std::vector<std::int32_t> prompt, std::int64_t tokens) {
  Request asked{.prompt = std::move(prompt), .stop = {.max_tokens = tokens}};
  asked.constraint = std::make_shared<Failing>(1000);
  return asked;
}

struct Outcome {
  std::vector<std::string> errors;
  std::vector<std::vector<Completion>> answers;
};

Outcome serve(Scorer& scorer, const std::vector<Request>& requests, SchedulerOptions options = {}) {
  Scheduler scheduler(scorer, std::move(options));
  Context context({.threads = 1});
  std::vector<RequestId> ids;
  for (const Request& one : requests) ids.push_back(scheduler.submit(one));
  Outcome outcome;
  int steps = 0;
  for (bool more = true; more && outcome.errors.size() < 5;) {
    if (++steps > 1000) {
      ADD_FAILURE() << "the requests do not end";
      outcome.answers.resize(requests.size());
      return outcome;
    }
    try {
      more = scheduler.step(context);
    } catch (const Error& error) {
      outcome.errors.emplace_back(error.what());
    }
  }
  for (const RequestId id : ids) outcome.answers.push_back(scheduler.take(id));
  return outcome;
}

TEST(SchedulerFailure, EosTokensAreTokens) {
  WindowScorer scorer;
  for (const std::int32_t token : {-1, 40, 1 << 20}) {
    EXPECT_THAT(
        [&] {
          Scheduler(scorer, {.eos_tokens = {3, token}});
        },
        ThrowsMessage<InvalidArgument>(
            HasSubstr("eos_tokens: expected tokens in [0, 40), got " + std::to_string(token))));
  }
}

TEST(SchedulerFailure, ARequestThatCannotBeScoredEndsAndTheOthersGoOn) {
  WindowScorer scorer;
  std::vector<Request> requests = {harmless({1, 2, 3}, 6), harmless({4, kPoison, 6}, 6),
                                   harmless({7}, 6)};
  requests[1].samples = 3;
  for (const std::int64_t rows : {1, 2, 256}) {
    const Outcome outcome = serve(scorer, requests, {.max_rows = rows});
    ASSERT_EQ(outcome.errors.size(), 1U) << rows;
    EXPECT_EQ(outcome.errors[0], "scheduler: request 1: token 13");
    for (const Completion& answer : outcome.answers[1]) {
      EXPECT_EQ(answer.finish, FinishReason::failed);
      EXPECT_TRUE(answer.tokens.empty());
    }
    for (const std::size_t good : {std::size_t{0}, std::size_t{2}}) {
      EXPECT_EQ(outcome.answers[good][0].finish, FinishReason::length);
      EXPECT_EQ(outcome.answers[good][0].tokens,
                serve(scorer, {requests[good]}).answers[0][0].tokens);
    }
  }
}

TEST(SchedulerFailure, ErrorsKeepTheirType) {
  WindowScorer scorer(0);
  Scheduler scheduler(scorer, {});
  Context context({.threads = 1});
  const RequestId id = scheduler.submit(harmless({1, 2, 3}, 4));
  EXPECT_THAT([&] { scheduler.step(context); },
              ThrowsMessage<OutOfMemory>("scheduler: request 0: no pages"));
  EXPECT_EQ(scheduler.take(id)[0].finish, FinishReason::failed);
  EXPECT_FALSE(scheduler.step(context));
}

TEST(SchedulerFailure, PromptsThatDoNotFitAreReadInParts) {
  WindowScorer plenty;
  WindowScorer few(3);
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 30; ++i) prompt.push_back(14 + i % 20);
  const std::vector<Request> requests = {harmless(prompt, 5), harmless({2, 3}, 4),
                                         harmless(prompt, 7)};
  const Outcome expected = serve(plenty, requests);
  const Outcome outcome = serve(few, requests);
  EXPECT_TRUE(outcome.errors.empty()) << outcome.errors[0];
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(outcome.answers[i][0].tokens, expected.answers[i][0].tokens);
  }
}

TEST(SchedulerFailure, AConstraintThatThrowsEndsItsRequest) {
  WindowScorer scorer;
  std::vector<Request> requests = {harmless({1, 2, 3}, 6), harmless({4}, 6), harmless({7}, 6)};
  requests[1].constraint = std::make_shared<Failing>(2);
  requests[1].samples = 2;
  const Outcome outcome = serve(scorer, requests);
  EXPECT_EQ(outcome.errors, std::vector<std::string>{"scheduler: request 1: too many readings"});
  for (const Completion& answer : outcome.answers[1]) {
    EXPECT_EQ(answer.finish, FinishReason::failed);
    EXPECT_EQ(answer.tokens.size(), 2U);
  }
  EXPECT_EQ(outcome.answers[2][0].tokens, serve(scorer, {requests[2]}).answers[0][0].tokens);
  // One that cannot give its first mask is not taken at all.
  Scheduler scheduler(scorer, {});
  requests[0].constraint = std::make_shared<Failing>(0);
  EXPECT_THROW(scheduler.submit(requests[0]), InvalidArgument);
  const std::vector<std::string> other(2 * kWords, "a");
  const std::vector<std::int32_t> none;
  requests[0].constraint = std::make_shared<GrammarConstraint>(
      Grammar::from_gbnf(R"(root ::= "a"+)"), GrammarVocabulary(other, none));
  EXPECT_THAT([&] { scheduler.submit(requests[0]); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected 3 words for 80 tokens, got 2")));
  Context context({.threads = 1});
  EXPECT_FALSE(scheduler.step(context));
}

// A complete text that nothing may follow ends by a stop, an incomplete one by no_token.
TEST(SchedulerFailure, CompleteTextsEnd) {
  WindowScorer scorer;
  const std::vector<std::int32_t> none;
  std::vector<std::string> bytes(kWords);
  bytes[5] = "a";
  bytes[6] = "b";
  const GrammarVocabulary vocabulary(bytes, none);
  for (const char* const grammar : {R"(root ::= "aab")", R"(root ::= "aac")"}) {
    Request asked{.prompt = {1}, .stop = {.max_tokens = 9}};
    asked.constraint = std::make_shared<GrammarConstraint>(Grammar::from_gbnf(grammar), vocabulary);
    const Completion answer = serve(scorer, {asked}).answers[0][0];
    const bool complete = grammar[12] == 'b';
    EXPECT_EQ(answer.tokens.size(), complete ? 3U : 2U);
    EXPECT_EQ(answer.finish, complete ? FinishReason::stop : FinishReason::no_token);
  }
}

TEST(SchedulerFailure, NanOfAPromptIsCorruptData) {
  const auto inner = oracle::hashed_table(7, 4);
  WindowScorer scorer(1000, [&](const std::vector<std::int32_t>& path, std::span<double> logits) {
    inner(path, logits);
    if (path.size() == 2 && path[1] == 9) logits[3] = std::numeric_limits<double>::quiet_NaN();
  });
  for (const std::int64_t tokens : {0, 4}) {
    Request bad{.prompt = {1, 9, 2, 3}, .stop = {.max_tokens = tokens}};
    bad.prompt_log_probabilities = true;
    Request good = bad;
    good.prompt = {1, 2, 3};
    const Outcome outcome = serve(scorer, {bad, good}, {.max_rows = 3});
    ASSERT_EQ(outcome.errors.size(), 1U);
    EXPECT_EQ(outcome.errors[0], "scheduler: request 0: the logits of the model are NaN");
    EXPECT_EQ(outcome.answers[0][0].finish, FinishReason::failed);
    EXPECT_EQ(outcome.answers[1][0].prompt_log_probabilities.size(), 2U);
    EXPECT_EQ(outcome.answers[1][0].finish, FinishReason::length);
  }
}

// One call of a scorer, create(), fork() or keep(), throws and leaves it as it was. The texts are those
// of a scorer that never fails, whichever call it is, and nothing is left behind.
TEST(SchedulerFailure, TextsSurviveACallThatThrows) {
  class Once : public oracle::TableScorer {
   public:
    explicit Once(std::int64_t bad)
        : TableScorer(kWords, 64, oracle::hashed_table(7, 4)), bad_(bad) {}
    ScorerSequence create() override {
      count("create");
      ++alive;
      return TableScorer::create();
    }
    ScorerSequence fork(ScorerSequence sequence) override {
      count("fork");
      ++alive;
      return TableScorer::fork(sequence);
    }
    void release(ScorerSequence sequence) override {
      --alive;
      TableScorer::release(sequence);
    }
    void keep(std::span<const KeptRows> kept) override {
      count("keep");
      TableScorer::keep(kept);
    }
    std::int64_t alive = 0;
    bool thrown = false;

   private:
    void count(const char* name) {
      if (calls_++ != bad_) return;
      thrown = true;
      throw OutOfMemory(std::string(name) + ": no memory");
    }
    std::int64_t bad_;
    std::int64_t calls_ = 0;
  };
  std::vector<Request> requests(3);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = {static_cast<std::int32_t>(i + 1), 5, 6};
    requests[i].samples = static_cast<std::int32_t>(i + 2);
    requests[i].stop.max_tokens = 5;
    requests[i].sampling = {.temperature = 1, .seed = 3};
    requests[i].top_log_probabilities = 0;
  }
  for (const std::int64_t max_rows : {2, 5, 256}) {
    for (const bool drafts : {false, true}) {
      SchedulerOptions options{.max_rows = max_rows};
      options.speculation.adaptive = false;
      const auto answers = [&](Once& scorer) {
        options.speculation.source = drafts ? ngram_source({.min_match = 1}) : nullptr;
        return serve(scorer, requests, options);
      };
      Once never(-1);
      const Outcome expected = answers(never);
      bool thrown = true;
      for (std::int64_t bad = 0; thrown; ++bad) {
        Once scorer(bad);
        const Outcome outcome = answers(scorer);
        thrown = scorer.thrown;
        EXPECT_LE(outcome.errors.size(), 1U);
        EXPECT_EQ(scorer.alive, 0);
        for (std::size_t i = 0; i < requests.size(); ++i) {
          ASSERT_EQ(outcome.answers[i].size(), expected.answers[i].size());
          for (std::size_t j = 0; j < expected.answers[i].size(); ++j) {
            EXPECT_EQ(outcome.answers[i][j].tokens, expected.answers[i][j].tokens)
                << "request " << i << ", sample " << j << ", call " << bad << ", rows " << max_rows;
            EXPECT_EQ(outcome.answers[i][j].finish, FinishReason::length);
          }
        }
      }
    }
  }
}

// A prefix that is shared but leaves no room for the rest is given up for a new sequence.
TEST(SchedulerFailure, ARequestWaitsWhereItsNewSequenceCannotBeMade) {
  class Shared : public WindowScorer {
   public:
    bool fits(std::span<const RowCount> counts) const override {
      return counts.size() == 1 && length(counts[0].sequence) == 0;
    }
    ScorerSequence open(std::span<const std::int32_t> tokens) override {
      const ScorerSequence sequence = WindowScorer::create();
      Context context({.threads = 1});
      const std::int32_t rows[] = {0};
      score(context, {.rows = chain_rows(sequence, 0, tokens.first(1))});
      const KeptRows kept[] = {{sequence, rows}};
      keep(kept);
      return sequence;
    }
    ScorerSequence create() override {
      if (++calls_ == 1) throw OutOfMemory("no memory");
      return WindowScorer::create();
    }

   private:
    int calls_ = 0;
  };
  Shared scorer;
  const Outcome outcome = serve(scorer, {harmless({1, 2, 3}, 1)});
  EXPECT_EQ(outcome.errors, std::vector<std::string>{"no memory"});
  EXPECT_EQ(outcome.answers[0][0].finish, FinishReason::length);
}

// What a hook throws takes nothing from the others.
TEST(SchedulerFailure, HooksThatThrow) {
  WindowScorer scorer;
  Scheduler scheduler(scorer, {});
  Context context({.threads = 1});
  std::map<std::int64_t, std::vector<std::int32_t>> seen;
  std::map<std::int64_t, int> ends;
  std::vector<RequestId> ids;
  int events = 0;
  const auto note = [&](const TokenEvent& event) {
    if (event.token >= 0) seen[event.request.id].push_back(event.token);
    ends[event.request.id] += event.finish != FinishReason::none ? 1 : 0;
    if (++events % 2 == 0) throw std::runtime_error("hook");  // in the middle of a step, too
  };
  for (const std::int32_t token : {1, 2, 3}) {
    ids.push_back(scheduler.submit(harmless({token, 5}, 4), note));
  }
  int thrown = 0;
  for (bool more = true; more;) {
    ASSERT_LT(thrown, 100);
    try {
      more = scheduler.step(context);
    } catch (const std::runtime_error&) {
      ++thrown;
    }
  }
  EXPECT_EQ(thrown, 6);
  for (const RequestId id : ids) {
    EXPECT_EQ(seen[id.id], scheduler.take(id)[0].tokens);
    EXPECT_EQ(ends[id.id], 1);
  }
}

TEST(SchedulerFailure, HooksMaySubmitButNotStep) {
  WindowScorer scorer;
  Scheduler scheduler(scorer, {});
  Context context({.threads = 1});
  std::optional<RequestId> second;
  std::vector<std::string> errors;
  const RequestId first = scheduler.submit(harmless({1, 2}, 3), [&](const TokenEvent& event) {
    try {
      scheduler.step(context);
    } catch (const InvalidArgument& error) {
      errors.emplace_back(error.what());
    }
    if (event.finish != FinishReason::none) second = scheduler.submit(harmless({3}, 2));
  });
  while (scheduler.step(context)) {
  }
  EXPECT_EQ(errors, std::vector<std::string>(3, "scheduler: step: called by a hook"));
  EXPECT_EQ(scheduler.take(first)[0].tokens.size(), 3U);
  ASSERT_TRUE(second);
  EXPECT_EQ(scheduler.take(*second)[0].tokens.size(), 2U);
}

TEST(SchedulerFailure, TheContextIsOfTheScorersDevice) {
  class Elsewhere : public WindowScorer {
   public:
    const ScorerShape& shape() const override { return shape_; }

   private:
    ScorerShape shape_{.vocabulary = kWords, .max_length = 64, .device = Device::cuda(3)};
  };
  Elsewhere scorer;
  Scheduler scheduler(scorer, {});
  Context context({.threads = 1});
  const RequestId id = scheduler.submit(harmless({1}, 4));
  EXPECT_THAT(
      [&] { scheduler.step(context); },
      ThrowsMessage<InvalidArgument>(HasSubstr("context: expected one of cuda:3, got cpu")));
  EXPECT_FALSE(scheduler.finished(id));
}

}  // namespace
}  // namespace touchstone::decode
