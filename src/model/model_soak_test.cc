// Requests that come, wait, are preempted and go at random: no wrong token, nothing left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "model/model_test_support.h"
#include "touchstone/decode/scheduler.h"

namespace touchstone::model {
namespace {

using decode::Completion;
using decode::Request;
using decode::Scheduler;

constexpr std::uint64_t kKinds = 40;
constexpr std::int64_t kSoakLength = 96;

// A generator of its own, so that runs can be repeated.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()(std::uint64_t sides) { return test::mix(state_++) % sides; }

 private:
  std::uint64_t state_;
};

// One of few, so that the answer of each alone is known.
Request soak_request(std::uint64_t kind) {
  Dice dice(1000 * kind + 7);
  std::vector<std::int32_t> prompt;
  if (kind % 3 == 0) prompt = test::random_tokens(24, 512);  // some begin alike
  const auto own = test::random_tokens(1 + dice(40), 512);
  prompt.insert(prompt.end(), own.begin(), own.end());
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = kind % 2 == 0 ? 0.9 : 0,
                       .top_p = kind % 4 == 0 ? 0.9 : 1,
                       .repetition_penalty = kind % 5 == 0 ? 1.2 : 1,
                       .seed = static_cast<std::int64_t>(kind)},
          .stop = {.max_tokens = static_cast<std::int64_t>(dice(32))},
          .samples = kind % 7 == 0 ? 3 : 1,
          .top_log_probabilities = kind % 6 == 0 ? 2 : -1};
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
  explicit Soak(const std::filesystem::path& folder)
      : context_(test::device_context(1)),
        model_(context_, io::ModelFile::open(folder),
               {.max_length = kSoakLength,
                .sequences = 2,
                .host_sequences = 2,
                .page_tokens = 4,
                .max_rows = 48}),
        scheduler_(model_, {.max_rows = 48, .max_running = 12, .swap_min_tokens = 20}),
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
  std::int64_t cut() const { return cut_; }

 private:
  const std::vector<Completion>& expected(std::uint64_t kind) {
    const auto found = known_.find(kind);
    if (found != known_.end()) return found->second;
    Scheduler scheduler(alone_model_, {.max_rows = 128, .share_prefixes = false});
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
    }
  }

  Context context_;
  Model model_;
  Scheduler scheduler_;
  Context alone_context_;
  Model alone_model_;
  std::map<std::uint64_t, std::vector<Completion>> known_;
  std::int64_t cut_ = 0;
};

// TOUCHSTONE_SOAK sets the number of requests: 10000 take minutes.
class ModelSoak : public testing::TestWithParam<const char*> {};

TEST_P(ModelSoak, NoWrongTokenAndNothingLeftBehind) {
  const char* const asked = std::getenv("TOUCHSTONE_SOAK");
  const std::int64_t requests = asked == nullptr ? 200 : std::atoll(asked);
  const Json golden = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) /
                                      (std::string(GetParam()) + ".json"));
  const test::ModelFolder folder(std::string("soak_") + GetParam());
  folder.write(golden["config"], golden["tensors"]);
  Soak soak(folder.path());
  soak.run(requests, 11);
  if (HasFatalFailure()) return;
  const decode::SchedulerStatistics statistics = soak.statistics();
  EXPECT_GT(statistics.preemptions, requests / 20);
  EXPECT_GT(statistics.swaps, 0);
  EXPECT_GT(statistics.preemptions, statistics.swaps);
  EXPECT_GT(statistics.prefix_tokens, requests);
  EXPECT_GT(soak.cut(), requests / 50);
  RecordProperty("steps", static_cast<int>(statistics.steps));
  RecordProperty("preemptions", static_cast<int>(statistics.preemptions));
  RecordProperty("swaps", static_cast<int>(statistics.swaps));
}

// Without windows and with layers that have nothing else.
INSTANTIATE_TEST_SUITE_P(Families, ModelSoak, testing::Values("llama3", "mistral"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace touchstone::model
