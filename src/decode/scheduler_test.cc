// The scheduler over a table in which every token of a path changes every logit.
#include "touchstone/decode/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>

#include "oracle/path_scorer.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"

namespace touchstone::decode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kTableTokens = 40;

// A table with memory for so many tokens in all sequences together.
class SmallScorer : public oracle::TableScorer {
 public:
  explicit SmallScorer(std::int64_t capacity = std::numeric_limits<std::int64_t>::max())
      : TableScorer(kTableTokens, 64, oracle::hashed_table(7, 4)), capacity_(capacity) {}

  ScorerSequence create() override { return *alive_.insert(alive_.end(), TableScorer::create()); }
  ScorerSequence fork(ScorerSequence sequence) override {
    return *alive_.insert(alive_.end(), TableScorer::fork(sequence));
  }
  void release(ScorerSequence sequence) override {
    std::erase(alive_, sequence);
    TableScorer::release(sequence);
  }
  bool fits(std::span<const RowCount> counts) const override {
    std::int64_t tokens = 0;
    for (const ScorerSequence sequence : alive_) tokens += length(sequence);
    for (const RowCount& count : counts) tokens += count.rows;
    return tokens <= capacity_;
  }
  void score(Context& context, const ScoreArgs& args) override {
    rows.push_back(std::ssize(args.rows));
    TableScorer::score(context, args);
  }
  std::size_t alive() const { return alive_.size(); }

  std::vector<std::int64_t> rows{};  // of every step

 private:
  std::int64_t capacity_;
  std::vector<ScorerSequence> alive_{};
};

Request request(std::vector<std::int32_t> prompt, std::int64_t tokens, double temperature = 0) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = temperature, .seed = 5},
          .stop = {.max_tokens = tokens}};
}

std::vector<Completion> alone(const Request& asked, SchedulerOptions options = {}) {
  SmallScorer scorer;
  Scheduler scheduler(scorer, std::move(options));
  Context context({.threads = 1});
  const RequestId id = scheduler.submit(asked);
  while (scheduler.step(context)) {
  }
  EXPECT_EQ(scorer.alive(), 0U);
  return scheduler.take(id);
}

TEST(Scheduler, GreedyIsTheLargestLogitOfEveryPath) {
  const std::vector<Completion> answers = alone(request({3, 1}, 6));
  ASSERT_EQ(answers.size(), 1U);
  std::vector<std::int32_t> path = {3, 1};
  for (int i = 0; i < 6; ++i) {
    std::vector<double> logits(kTableTokens);
    oracle::hashed_table(7, 4)(path, logits);
    path.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
  }
  EXPECT_EQ(answers[0].tokens, std::vector<std::int32_t>(path.begin() + 2, path.end()));
  EXPECT_EQ(answers[0].finish, FinishReason::length);
}

TEST(Scheduler, PromptsAreReadInChunksBesideContinuations) {
  SmallScorer scorer;
  Scheduler scheduler(scorer, {.max_rows = 4});
  Context context({.threads = 1});
  const RequestId first = scheduler.submit(request({1, 2}, 8));
  scheduler.step(context);
  const RequestId second = scheduler.submit(request({1, 2, 3, 4, 5, 6, 7}, 2));
  while (scheduler.step(context)) {
  }
  // 2 of the first; then one row each step, and three of the second's prompt beside it.
  EXPECT_THAT(scorer.rows, ElementsAre(2, 4, 4, 2, 2, 1, 1, 1));
  EXPECT_EQ(scheduler.take(first)[0].tokens, alone(request({1, 2}, 8))[0].tokens);
  EXPECT_EQ(scheduler.take(second)[0].tokens, alone(request({1, 2, 3, 4, 5, 6, 7}, 2))[0].tokens);
  EXPECT_THROW(scheduler.take(first), InvalidArgument);
}

TEST(Scheduler, TheContextEndsAContinuation) {
  std::vector<std::int32_t> prompt(60, 1);
  EXPECT_EQ(alone(request(prompt, 100))[0].tokens.size(), 4U);
  prompt.resize(64);
  EXPECT_THAT([&] { alone(request(prompt, 1)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("prompt: expected fewer than 64 tokens")));
}

TEST(Scheduler, StopTokensAndEos) {
  const std::vector<std::int32_t> all = alone(request({3, 1}, 12))[0].tokens;
  Request asked = request({3, 1}, 12);
  asked.stop.tokens = {39, all[4]};
  const Completion stopped = alone(asked)[0];
  const auto first = std::ranges::find(all, all[4]);
  EXPECT_EQ(stopped.tokens, std::vector<std::int32_t>(all.begin(), first));
  EXPECT_EQ(stopped.finish, FinishReason::stop);
  EXPECT_EQ(stopped.stop_index, 1);
  asked.stop.include_stop = true;
  EXPECT_EQ(alone(asked)[0].tokens, std::vector<std::int32_t>(all.begin(), first + 1));

  const Completion eos = alone(request({3, 1}, 12), {.eos_tokens = {all[2]}})[0];
  EXPECT_EQ(eos.finish, FinishReason::eos);
  EXPECT_LT(eos.tokens.size(), 3U);
  Request through = request({3, 1}, 12);
  through.stop.ignore_eos = true;
  EXPECT_EQ(alone(through, {.eos_tokens = {all[2]}})[0].tokens, all);
  // Before min_tokens they are not chosen at all.
  Request longer = request({3, 1}, 12);
  longer.stop.min_tokens = 8;
  const Completion late = alone(longer, {.eos_tokens = {all[2]}})[0];
  EXPECT_GE(late.tokens.size(), 8U);
  EXPECT_EQ(std::ranges::count(late.tokens, all[2]), 0);
}

TEST(Scheduler, SamplesAreTheRequestsOfTheirSeeds) {
  Request asked = request({9, 9, 9}, 10, 0.8);
  asked.samples = 5;
  for (const std::int64_t running : {1, 2, 32}) {
    const std::vector<Completion> answers = alone(asked, {.max_running = running});
    std::set<std::vector<std::int32_t>> different;
    for (std::int32_t i = 0; i < 5; ++i) {
      Request one = request({9, 9, 9}, 10, 0.8);
      one.sampling.seed += i;
      EXPECT_EQ(answers[static_cast<std::size_t>(i)].tokens, alone(one)[0].tokens) << i;
      different.insert(answers[static_cast<std::size_t>(i)].tokens);
    }
    EXPECT_EQ(different.size(), 5U);
  }
}

TEST(Scheduler, LogProbabilities) {
  Request asked = request({3, 1, 4, 1, 5}, 3);
  asked.top_log_probabilities = 2;
  asked.prompt_log_probabilities = true;
  for (const std::int64_t rows : {1, 2, 256}) {
    const Completion answer = alone(asked, {.max_rows = rows})[0];
    ASSERT_EQ(answer.prompt_log_probabilities.size(), 4U);
    ASSERT_EQ(answer.log_probabilities.size(), 3U);
    std::vector<std::int32_t> path;
    std::vector<std::int32_t> text = asked.prompt;
    text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      path.push_back(text[i]);
      std::vector<double> logits(kTableTokens);
      oracle::hashed_table(7, 4)(path, logits);
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit);
      const double expected = logits[static_cast<std::size_t>(text[i + 1])] - std::log(sum);
      const bool prompt = i < 4;
      EXPECT_NEAR(prompt ? answer.prompt_log_probabilities[i] : answer.log_probabilities[i - 4].own,
                  expected, 1e-5);
      if (prompt) continue;
      ASSERT_EQ(answer.log_probabilities[i - 4].top.size(), 2U);
      EXPECT_EQ(answer.log_probabilities[i - 4].top[0].first, text[i + 1]);
    }
  }
  // The prompt alone, nothing generated.
  asked.stop.max_tokens = 0;
  const Completion scored = alone(asked)[0];
  EXPECT_EQ(scored.prompt_log_probabilities.size(), 4U);
  EXPECT_TRUE(scored.tokens.empty());
}

// Allows one token more than the last, or nothing after `limit`.
class Counting : public TokenConstraint {
 public:
  explicit Counting(std::int32_t limit) : limit_(limit) {}
  std::unique_ptr<TokenConstraint> start() const override {
    return std::make_unique<Counting>(limit_);
  }
  std::unique_ptr<TokenConstraint> copy() const override {
    return std::make_unique<Counting>(*this);
  }
  void allowed(std::span<std::int32_t> mask) const override {
    std::ranges::fill(mask, 0);
    if (next_ < limit_) {
      mask[static_cast<std::size_t>(next_ / 32)] =
          static_cast<std::int32_t>(std::uint32_t{1} << (next_ % 32));
    }
  }
  void accept(std::int32_t token) override { next_ = token + 1; }

 private:
  std::int32_t limit_;
  std::int32_t next_ = 30;
};

TEST(Scheduler, ConstraintsDecideWhatMayFollow) {
  Request asked = request({1}, 10, 0.8);
  asked.samples = 2;
  asked.constraint = std::make_shared<Counting>(35);
  for (const Completion& answer : alone(asked)) {
    EXPECT_THAT(answer.tokens, ElementsAre(30, 31, 32, 33, 34));
    EXPECT_EQ(answer.finish, FinishReason::no_token);
  }
}

TEST(Scheduler, CancellationEndsWhatIsRunningAndWhatWaits) {
  SmallScorer scorer;
  Scheduler scheduler(scorer, {.max_running = 1});
  Context context({.threads = 1});
  const Request first = request({1, 2}, 50);
  Request second = request({3}, 50);
  second.samples = 2;
  const RequestId a = scheduler.submit(first);
  const RequestId b = scheduler.submit(second);
  for (int i = 0; i < 3; ++i) scheduler.step(context);
  first.cancellation.cancel();
  scheduler.step(context);
  EXPECT_TRUE(scheduler.finished(a));
  second.cancellation.cancel();
  EXPECT_FALSE(scheduler.step(context));
  const Completion cut = scheduler.take(a)[0];
  EXPECT_EQ(cut.finish, FinishReason::cancelled);
  EXPECT_EQ(cut.tokens.size(), 3U);
  EXPECT_EQ(scheduler.take(b)[1].finish, FinishReason::cancelled);
  EXPECT_EQ(scorer.alive(), 0U);
}

// Random requests that join, leave, are cancelled and run out of memory: never a wrong token, never a
// sequence left over.
TEST(Scheduler, SoakOfRandomRequests) {
  SmallScorer scorer(100);
  Scheduler scheduler(scorer, {.max_rows = 13, .max_running = 6});
  Context context({.threads = 1});
  std::map<std::int64_t, Request> open;
  std::int64_t draw = 0;
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random_uniform(11, draw++) * static_cast<double>(limit));
  };
  // 10^4 with TOUCHSTONE_WHOLE_PRODUCT=1.
  const std::int64_t requests = std::getenv("TOUCHSTONE_WHOLE_PRODUCT") == nullptr ? 400 : 10000;
  std::int64_t submitted = 0;
  std::int64_t compared = 0;
  bool busy = true;
  while (busy || submitted < requests) {
    while (submitted < requests && open.size() < 40 && below(3) == 0) {
      std::vector<std::int32_t> prompt(static_cast<std::size_t>(1 + below(20)));
      for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(below(3));
      Request asked = request(std::move(prompt), 1 + below(30), below(2) == 0 ? 0 : 0.8);
      asked.samples = 1 + static_cast<std::int32_t>(below(3));
      open.emplace(scheduler.submit(asked).id, asked);
      ++submitted;
    }
    if (!open.empty() && below(20) == 0) open.begin()->second.cancellation.cancel();
    busy = scheduler.step(context);
    for (auto it = open.begin(); it != open.end();) {
      if (!scheduler.finished({it->first})) {
        ++it;
        continue;
      }
      const std::vector<Completion> answers = scheduler.take({it->first});
      Request again = it->second;
      again.cancellation = {};
      if (compared % 4 == 0) {
        const std::vector<Completion> expected = alone(again);
        for (std::size_t i = 0; i < answers.size(); ++i) {
          ASSERT_LE(answers[i].tokens.size(), expected[i].tokens.size());
          EXPECT_TRUE(std::ranges::equal(
              answers[i].tokens, std::span(expected[i].tokens).first(answers[i].tokens.size())));
          if (answers[i].finish != FinishReason::cancelled) {
            EXPECT_EQ(answers[i].tokens.size(), expected[i].tokens.size());
          }
        }
      }
      ++compared;
      it = open.erase(it);
    }
  }
  EXPECT_EQ(compared, requests);
  EXPECT_EQ(scorer.alive(), 0U);
  EXPECT_GT(scheduler.statistics().preemptions, 20);
}

TEST(Scheduler, Refuses) {
  SmallScorer scorer;
  EXPECT_THAT([&] { Scheduler(scorer, {.max_rows = 0}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("max_rows")));
  Scheduler scheduler(scorer, {});
  Request asked = request({1}, 4);
  asked.stop.strings = {"x"};
  EXPECT_THAT([&] { scheduler.submit(asked); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no tokenizer")));
  EXPECT_THAT([&] { scheduler.finished({3}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("request 3 is not known")));
}

// Thousands wait: what is cancelled among them ends at the next step, before its turn.
TEST(Scheduler, WaitingRequestsCanBeCancelled) {
  SmallScorer scorer;
  Scheduler scheduler(scorer, {.max_running = 2});
  Context context({.threads = 1});
  std::vector<RequestId> ids;
  std::vector<Cancellation> cancellations;
  for (int i = 0; i < 3000; ++i) {
    Request asked = request({1, 2}, 4);
    if (i == 5) asked.samples = 3;
    if (i == 6) asked.cancellation.cancel();
    cancellations.push_back(asked.cancellation);
    ids.push_back(scheduler.submit(std::move(asked)));
  }
  scheduler.step(context);
  EXPECT_TRUE(scheduler.finished(ids[6]));
  cancellations[2999].cancel();
  cancellations[5].cancel();
  EXPECT_FALSE(scheduler.finished(ids[2999]));
  scheduler.step(context);
  EXPECT_TRUE(scheduler.finished(ids[2999]));
  EXPECT_EQ(scheduler.take(ids[5])[2].finish, FinishReason::cancelled);
  EXPECT_FALSE(scheduler.finished(ids[10]));
  EXPECT_EQ(scheduler.take(ids[2999])[0].finish, FinishReason::cancelled);
  for (const Cancellation& one : cancellations) one.cancel();
  EXPECT_FALSE(scheduler.step(context));
  EXPECT_EQ(scorer.alive(), 0U);
}

}  // namespace
}  // namespace touchstone::decode
