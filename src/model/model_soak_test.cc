// Requests that come, wait, are preempted and go at random: no wrong token, nothing left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>

#include "model/model_test_support.h"
#include "touchstone/decode/draft_source.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::model {
namespace {

using decode::Completion;
using decode::Request;
using decode::Scheduler;

constexpr std::uint64_t kKinds = 60;
constexpr std::int64_t kSoakLength = 96;
constexpr std::int32_t kEos[] = {5, 17, 99};

// A generator of its own, so that runs can be repeated.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()(std::uint64_t sides) { return test::mix(state_++) % sides; }

 private:
  std::uint64_t state_;
};

// Two thirds of the tokens may follow, which ones depends on the token before; after `most` tokens
// none may.
class Ladder final : public decode::TokenConstraint {
 public:
  explicit Ladder(std::int64_t most) : most_(most) {}
  std::unique_ptr<TokenConstraint> start() const override {
    return std::make_unique<Ladder>(most_);
  }
  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<Ladder>(*this); }
  void allowed(std::span<std::int32_t> mask) const override {
    std::ranges::fill(mask, 0);
    if (taken_ == most_) return;
    for (std::int32_t token = 0; token < 512; ++token) {
      if ((token + last_) % 3 == 0) continue;
      auto& word = mask[static_cast<std::size_t>(token / 32)];
      word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | std::uint32_t{1}
                                                                              << (token % 32));
    }
  }
  bool complete() const override { return most_ % 2 == 0; }
  void accept(std::int32_t token) override {
    last_ = token;
    ++taken_;
  }

 private:
  std::int64_t most_;
  std::int64_t taken_ = 0;
  std::int32_t last_ = 0;
};

// Of 512 tokens, as the models have.
io::Tokenizer soak_tokenizer() {
  std::string text;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    text += "abcdefgh "[test::mix(i) % 9];
    if (i % 50 == 0) text += "é\n";
  }
  const std::string_view texts[] = {text};
  return io::Tokenizer::from_json(io::train_tokenizer(texts, {.vocabulary = 512}));
}

// One of few, so that the answer of each alone is known.
Request soak_request(std::uint64_t kind) {
  Dice dice(1000 * kind + 7);
  std::vector<std::int32_t> prompt;
  if (kind % 3 == 0) prompt = test::random_tokens(24, 512);  // some begin alike
  const auto own = test::random_tokens(1 + dice(40), 512);
  prompt.insert(prompt.end(), own.begin(), own.end());
  Request request{.prompt = std::move(prompt),
                  .sampling = {.temperature = kind % 2 == 0 ? 0.9 : 0,
                               .top_p = kind % 4 == 0 ? 0.9 : 1,
                               .repetition_penalty = kind % 5 == 0 ? 1.2 : 1,
                               .seed = static_cast<std::int64_t>(kind)},
                  .stop = {.max_tokens = static_cast<std::int64_t>(dice(32)),
                           .ignore_eos = kind % 8 < 2,
                           .include_stop = kind % 9 == 0},
                  .samples = kind % 7 == 0 ? 3 : 1,
                  .top_log_probabilities = kind % 6 == 0 ? 2 : -1,
                  .prompt_log_probabilities = kind % 13 == 0};
  if (kind % 10 == 3) request.stop.max_tokens = 200;  // to the end of the context
  if (kind % 8 == 1) request.stop.tokens = test::random_tokens(20, 512);
  if (kind % 8 == 2) request.stop.strings = {"a", "he", "\n"};
  if (kind % 8 == 3) request.stop.strings = {"bc de", "é"};
  if (kind % 5 == 4) request.stop.min_tokens = request.stop.max_tokens / 2;
  if (kind % 6 == 1) {
    request.constraint = std::make_shared<Ladder>(static_cast<std::int64_t>(dice(30)));
  }
  return request;
}

bool begins(const std::vector<std::int32_t>& whole, const std::vector<std::int32_t>& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

struct Sent {
  decode::RequestId id{};
  std::uint64_t kind = 0;
  decode::Cancellation cancellation{};
  bool cancelled = false;
};

class Soak {
 public:
  Soak(const std::filesystem::path& folder, bool speculates)
      : tokenizer_(soak_tokenizer()),
        context_(test::device_context(1)),
        model_(context_, io::ModelFile::open(folder),
               {.max_length = kSoakLength,
                .sequences = 2,
                .host_sequences = 2,
                .page_tokens = 4,
                .max_rows = 48}),
        draft_model_(context_, io::ModelFile::open(folder),
                     {.max_length = kSoakLength, .sequences = 6, .page_tokens = 4}),
        scheduler_(model_, {.max_rows = 48,
                            .max_running = 12,
                            .swap_min_tokens = 20,
                            .eos_tokens = {std::begin(kEos), std::end(kEos)},
                            .tokenizer = &tokenizer_,
                            .speculation = speculation(speculates)}),
        alone_context_(test::device_context(1)),
        alone_model_(
            alone_context_, io::ModelFile::open(folder),
            {.max_length = kSoakLength, .sequences = 4, .max_rows = 128, .share_prefixes = false}) {
  }

  void run(std::int64_t requests, std::uint64_t seed) {
    Dice dice(seed);
    std::vector<Sent> open;
    std::int64_t sent = 0;
    while (sent < requests || !open.empty()) {
      for (std::uint64_t burst = dice(3) == 0 ? dice(9) : 0; burst > 0 && sent < requests;
           --burst) {
        Sent next{.kind = dice(kKinds)};
        Request request = soak_request(next.kind);
        next.cancellation = request.cancellation;
        next.id = scheduler_.submit(std::move(request));
        open.push_back(std::move(next));
        ++sent;
      }
      if (!open.empty() && dice(10) == 0) {
        Sent& victim = open[dice(open.size())];
        victim.cancellation.cancel();
        victim.cancelled = true;
      }
      scheduler_.step(context_);
      std::erase_if(open, [&](const Sent& one) {
        if (!scheduler_.finished(one.id)) return false;
        check(one, scheduler_.take(one.id));
        return true;
      });
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_FALSE(scheduler_.step(context_));
    const cache::Statistics statistics = model_.cache_statistics();
    EXPECT_EQ(statistics.sequences, 0);
    for (const cache::GroupStatistics& group : statistics.groups) EXPECT_EQ(group.used, 0);
  }

  decode::SchedulerStatistics statistics() const { return scheduler_.statistics(); }
  decode::SpeculationStatistics speculation() const { return scheduler_.speculation(); }
  std::int64_t cut() const { return cut_; }

 private:
  // The model drafts for itself, which is right at temperature 0; the other sources are wrong.
  decode::SpeculationOptions speculation(bool speculates) {
    if (!speculates) return {};
    std::vector<std::unique_ptr<decode::DraftSource>> sources;
    sources.push_back(decode::ngram_source({.min_match = 1}));
    sources.push_back(decode::suffix_source({.learn = true}));
    sources.push_back(decode::model_source(draft_model_, 512, {.width = 2, .branch = 2}));
    return {.source = decode::merged_source(std::move(sources)),
            .tree_nodes = 9,
            .max_depth = 5,
            .adaptive = false};
  }

  const std::vector<Completion>& expected(std::uint64_t kind) {
    const auto found = known_.find(kind);
    if (found != known_.end()) return found->second;
    Scheduler scheduler(alone_model_, {.max_rows = 128,
                                       .share_prefixes = false,
                                       .eos_tokens = {std::begin(kEos), std::end(kEos)},
                                       .tokenizer = &tokenizer_});
    const decode::RequestId id = scheduler.submit(soak_request(kind));
    while (scheduler.step(alone_context_)) {
    }
    return known_[kind] = scheduler.take(id);
  }

  void check(const Sent& one, const std::vector<Completion>& answers) {
    const std::vector<Completion>& wanted = expected(one.kind);
    ASSERT_EQ(answers.size(), wanted.size());
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].finish == decode::FinishReason::cancelled) {
        ASSERT_TRUE(one.cancelled);
        ASSERT_TRUE(begins(wanted[i].tokens, answers[i].tokens)) << "kind " << one.kind;
        ++cut_;
        continue;
      }
      ASSERT_EQ(answers[i].finish, wanted[i].finish) << "kind " << one.kind;
      ASSERT_EQ(answers[i].tokens, wanted[i].tokens) << "kind " << one.kind;
      ASSERT_EQ(answers[i].text, wanted[i].text) << "kind " << one.kind;
      ASSERT_EQ(answers[i].stop_index, wanted[i].stop_index) << "kind " << one.kind;
      ASSERT_EQ(answers[i].prompt_log_probabilities, wanted[i].prompt_log_probabilities);
      ASSERT_EQ(answers[i].log_probabilities.size(), wanted[i].log_probabilities.size());
      for (std::size_t t = 0; t < answers[i].log_probabilities.size(); ++t) {
        ASSERT_EQ(answers[i].log_probabilities[t].own, wanted[i].log_probabilities[t].own);
        ASSERT_EQ(answers[i].log_probabilities[t].top, wanted[i].log_probabilities[t].top);
      }
    }
  }

  io::Tokenizer tokenizer_;
  Context context_;
  Model model_;
  Model draft_model_;
  Scheduler scheduler_;
  Context alone_context_;
  Model alone_model_;
  std::map<std::uint64_t, std::vector<Completion>> known_;
  std::int64_t cut_ = 0;
};

// TOUCHSTONE_SOAK sets the number of requests: 10000 take minutes.
class ModelSoak : public testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(ModelSoak, NoWrongTokenAndNothingLeftBehind) {
  const auto [family, speculates] = GetParam();
  const char* const asked = std::getenv("TOUCHSTONE_SOAK");
  const std::int64_t requests = asked == nullptr ? 200 : std::atoll(asked);
  const Json golden = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) /
                                      (std::string(family) + ".json"));
  const test::ModelFolder folder(std::string("soak_") + family);
  folder.write(golden["config"], golden["tensors"]);
  Soak soak(folder.path(), speculates);
  soak.run(requests, 11);
  if (HasFatalFailure()) return;
  const decode::SchedulerStatistics statistics = soak.statistics();
  EXPECT_GT(statistics.preemptions, requests / 20);
  EXPECT_GT(statistics.swaps, 0);
  EXPECT_GT(statistics.preemptions, statistics.swaps);
  EXPECT_GT(statistics.prefix_tokens, requests);
  EXPECT_GT(soak.cut(), requests / 50);
  const decode::SpeculationStatistics drafts = soak.speculation();
  EXPECT_TRUE(!speculates || drafts.tokens > drafts.passes + requests);
  RecordProperty("steps", static_cast<int>(statistics.steps));
  RecordProperty("preemptions", static_cast<int>(statistics.preemptions));
  RecordProperty("swaps", static_cast<int>(statistics.swaps));
}

// Without windows and with layers that have nothing else.
INSTANTIATE_TEST_SUITE_P(Families, ModelSoak,
                         testing::Combine(testing::Values("llama3", "mistral"), testing::Bool()),
                         [](const auto& setting) {
                           return std::string(std::get<0>(setting.param)) +
                                  (std::get<1>(setting.param) ? "Speculating" : "");
                         });

}  // namespace
}  // namespace touchstone::model
