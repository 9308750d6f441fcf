// The promise of decoding: the tokens of a request are the same alone, in any batch, for any chunks,
// page sizes, with prefix sharing on and off and with preemption, at any temperature.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <span>
#include <tuple>

#include "model/model_test_support.h"
#include "touchstone/decode/beam_search.h"
#include "touchstone/decode/scheduler.h"

namespace touchstone::model {
namespace {

using decode::BeamHypothesis;
using decode::BeamRequest;
using decode::Completion;
using decode::Request;
using decode::Scheduler;

struct Format {
  const char* name;
  DType compute;
  std::optional<QuantFormat> cache;
};
const Format kFormats[] = {
    {"f32", DType::f32, std::nullopt},
    {"bf16", DType::bf16, std::nullopt},
    {"f16", DType::f16, std::nullopt},
    {"f32 int8", DType::f32, QuantFormat{.dtype = DType::i8}},
    {"f32 int4", DType::f32, QuantFormat{.dtype = DType::i4}},
    {"bf16 fp8", DType::bf16, QuantFormat{.dtype = DType::f8_e4m3}},
};
constexpr std::size_t kRequests = 33;
constexpr std::size_t kBatches[] = {1, 2, 7, kRequests};
constexpr std::int64_t kRows[] = {1, 3, 16, 64, 512};
constexpr std::int64_t kPages[] = {1, 8, 16, 48};
constexpr std::int64_t kMaxLength = 96;

// Half of the prompts begin alike, so that there is something to share.
Request request_of(std::size_t index, double temperature) {
  std::vector<std::int32_t> prompt;
  if (index % 2 == 0) prompt = test::random_tokens(33, 512);
  const auto own = test::random_tokens(1 + index, 512);
  prompt.insert(prompt.end(), own.begin(), own.end());
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = temperature,
                       .top_k = index % 3 == 0 ? 40 : 0,
                       .seed = static_cast<std::int64_t>(index)},
          .stop = {.max_tokens = 6 + static_cast<std::int64_t>(index % 5) * 6},
          .top_log_probabilities = 0};
}

struct Setting {
  std::size_t batch = 1;
  std::int64_t max_rows = 512;
  std::int64_t page_tokens = 16;
  bool share = false;
  bool preempt = false;
  bool swap = false;  // preempted continuations go to the host cache
  double temperature = 0;
  std::size_t format = 0;
};

struct Happened {
  std::int64_t preemptions = 0;
  std::int64_t swaps = 0;
  std::int64_t prefix_tokens = 0;
};

// The results of requests 0 to batch - 1.
std::vector<Completion> run(const std::filesystem::path& folder, const Setting& s,
                            Happened& happened) {
  const Format& format = kFormats[s.format];
  Context context = test::device_context(1);
  Model model(context, io::ModelFile::open(folder),
              {.compute = format.compute,
               .keys = format.cache,
               .values = format.cache,
               .max_length = kMaxLength,
               // One sequence for many requests: they must take turns.
               .sequences = s.preempt ? 1 : static_cast<std::int64_t>(s.batch),
               .host_sequences = s.swap ? 3 : 0,
               .page_tokens = s.page_tokens,
               .max_rows = s.max_rows,
               .share_prefixes = s.share});
  Scheduler scheduler(model, {.max_rows = s.max_rows,
                              .max_running = static_cast<std::int64_t>(s.batch),
                              .share_prefixes = s.share,
                              .swap_min_tokens = 4});
  std::vector<decode::RequestId> ids;
  for (std::size_t i = 0; i < s.batch; ++i) {
    ids.push_back(scheduler.submit(request_of(i, s.temperature)));
    if (i % 5 == 4) scheduler.step(context);  // the next ones join what is running
  }
  while (scheduler.step(context)) {
  }
  if (!s.share) {
    EXPECT_EQ(scheduler.statistics().prefix_tokens, 0);
  }
  happened.preemptions += scheduler.statistics().preemptions;
  happened.swaps += scheduler.statistics().swaps;
  happened.prefix_tokens += scheduler.statistics().prefix_tokens;
  std::vector<Completion> results;
  for (const decode::RequestId id : ids) results.push_back(scheduler.take(id)[0]);
  const cache::Statistics statistics = model.cache_statistics();
  EXPECT_EQ(statistics.sequences, 0);
  for (const cache::GroupStatistics& group : statistics.groups) EXPECT_EQ(group.used, 0);
  return results;
}

class ModelBatch : public testing::Test {
 protected:
  ModelBatch() : folder_("batch") {
    const Json g =
        test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "gemma2.json");
    folder_.write(g["config"], g["tensors"]);
    const Json plain =
        test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "qwen2.json");
    plain_.write(plain["config"], plain["tensors"]);
  }

  // Alone, in one chunk, without sharing.
  const Completion& expected(bool windows, std::size_t index, double temperature,
                             std::size_t format) {
    const auto key = std::tuple(windows, index, temperature, format);
    const auto found = known_.find(key);
    if (found != known_.end()) return found->second;
    const Format& f = kFormats[format];
    Context context = test::device_context(1);
    Model model(context, io::ModelFile::open(folder(windows)),
                {.compute = f.compute,
                 .keys = f.cache,
                 .values = f.cache,
                 .max_length = kMaxLength,
                 .max_rows = 512,
                 .share_prefixes = false,
                 .graphs = false});
    Scheduler scheduler(model, {.max_rows = 512, .max_running = 1, .share_prefixes = false});
    const decode::RequestId id = scheduler.submit(request_of(index, temperature));
    while (scheduler.step(context)) {
    }
    return known_[key] = scheduler.take(id)[0];
  }
  const std::filesystem::path& folder(bool windows) const {
    if (!real_.empty()) return real_;
    return windows ? folder_.path() : plain_.path();
  }

  // Settings of which neighbors differ in everything.
  void check_cover(std::span<const std::size_t, 4> batches) {
    for (std::size_t i = 0; i < 24; ++i) {
      Setting s{.batch = batches[(i / 2 + 3) % 4],
                .max_rows = kRows[i % 5],
                .page_tokens = kPages[(i / 3) % 4],
                .share = (i / 2) % 2 == 0,
                .preempt = (i / 3) % 2 == 0,
                .swap = i % 3 != 1,
                .temperature = i % 2 == 0 ? 0.8 : 0,
                .format = i % 6};
      check(s, i % 4 < 2);
      if (HasFatalFailure()) return;
    }
  }

  void check(const Setting& s, bool windows) {
    SCOPED_TRACE(testing::Message() << "batch " << s.batch << ", rows " << s.max_rows << ", pages "
                                    << s.page_tokens << ", share " << s.share << ", preempt "
                                    << s.preempt << ", swap " << s.swap << ", T " << s.temperature
                                    << ", " << kFormats[s.format].name << ", windows " << windows);
    std::vector<Completion> results;
    ASSERT_NO_THROW(results = run(folder(windows), s, happened_));
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Completion& wanted = expected(windows, i, s.temperature, s.format);
      ASSERT_EQ(results[i].tokens, wanted.tokens) << "request " << i;
      for (std::size_t t = 0; t < wanted.tokens.size(); ++t) {
        ASSERT_EQ(results[i].log_probabilities[t].own, wanted.log_probabilities[t].own);
      }
    }
  }

  test::ModelFolder folder_;
  test::ModelFolder plain_{"batch_plain"};
  std::filesystem::path real_{};  // where given, instead of both
  std::map<std::tuple<bool, std::size_t, double, std::size_t>, Completion> known_;
  Happened happened_{};
};

TEST_F(ModelBatch, TheSameTokensInAnyBatch) {
  check_cover(kBatches);
  EXPECT_GT(happened_.preemptions, 10);
  EXPECT_GT(happened_.swaps, 5);
  EXPECT_GT(happened_.prefix_tokens, 100);
}

// SmolLM2 (make real-model): on the CPU for an hour.
TEST_F(ModelBatch, TheSameTokensOfTheRealModel) {
  const bool whole = std::getenv("TOUCHSTONE_WHOLE_PRODUCT") != nullptr;
  if (!touchstone::test::on_gpu() && !whole) {
    GTEST_SKIP() << "takes an hour without a GPU: TOUCHSTONE_WHOLE_PRODUCT=1 runs it";
  }
  real_ = test::real_model();
  if (!std::filesystem::exists(real_)) GTEST_SKIP() << "no real model; make real-model brings it";
  constexpr std::size_t kFew[] = {1, 2, 3, 7};
  check_cover(kFew);
  EXPECT_GT(happened_.preemptions, 0);
}

// A prefix that ends within a page makes a sequence need a page more, for the copy.
TEST_F(ModelBatch, ASharedPageDoesNotStopTheOnlySequence) {
  check({.batch = kRequests, .max_rows = 16, .page_tokens = 48, .share = true, .preempt = true},
        false);
}

// Pages for a window and a chunk of each sequence, and prompts that are much longer: all run together,
// with the tokens that each has alone.
TEST_F(ModelBatch, LongPromptsOfWindowedModelsRunTogether) {
  constexpr std::size_t kPrompts = 4;
  constexpr std::int64_t kTokens = 60;
  const Json golden =
      test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "mistral.json");
  const test::ModelFolder windowed("batch_windowed");
  windowed.write(golden["config"], golden["tensors"]);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < kPrompts; ++i) {
    requests.push_back({.prompt = test::random_tokens(300 + i, 512),
                        .sampling = {.temperature = 0.8, .seed = static_cast<std::int64_t>(i)},
                        .stop = {.max_tokens = kTokens}});
  }
  for (const bool swap : {false, true}) {
    Context context = test::device_context(1);
    const auto serve = [&](std::span<const Request> asked, std::int64_t sequences) {
      Model model(context, io::ModelFile::open(windowed.path()),
                  {.max_length = 400,
                   .sequences = sequences,
                   .host_sequences = swap ? 2 : 0,
                   .page_tokens = 8,
                   .max_rows = 64});
      Scheduler scheduler(model, {.max_rows = 64, .swap_min_tokens = 4});
      std::vector<decode::RequestId> ids;
      for (const Request& one : asked) ids.push_back(scheduler.submit(one));
      while (scheduler.step(context)) {
      }
      std::vector<std::vector<std::int32_t>> tokens;
      for (const decode::RequestId id : ids) tokens.push_back(scheduler.take(id)[0].tokens);
      EXPECT_EQ(model.cache_statistics().sequences, 0);
      return std::pair(std::move(tokens), scheduler.statistics());
    };
    std::vector<std::vector<std::int32_t>> expected;
    for (const Request& one : requests) expected.push_back(serve({&one, 1}, 1).first[0]);
    const auto [tokens, statistics] = serve(requests, kPrompts);
    EXPECT_EQ(tokens, expected);
    // 1206 rows of prompts in steps of 64, some of them beside continuations; then the last one's
    // tokens, in whose steps the others end.
    RecordProperty("steps", static_cast<int>(statistics.steps));
    EXPECT_LE(statistics.steps, 1206 / 64 + 2 + kTokens);
    EXPECT_EQ(statistics.preemptions, 0);
    // In the memory of two the four take turns, and still overlap.
    const auto [crowded, crowded_statistics] = serve(requests, 2);
    EXPECT_EQ(crowded, expected);
    EXPECT_LE(crowded_statistics.steps, 3 * (1206 / kPrompts / 64 + 1 + kTokens));
  }
}

// The whole product, some minutes: TOUCHSTONE_WHOLE_PRODUCT=1.
TEST_F(ModelBatch, WholeProduct) {
  if (std::getenv("TOUCHSTONE_WHOLE_PRODUCT") == nullptr) {
    GTEST_SKIP() << "set TOUCHSTONE_WHOLE_PRODUCT to run all combinations";
  }
  std::int64_t runs = 0;
  for (std::size_t format = 0; format < std::size(kFormats); ++format) {
    for (const double temperature : {0.0, 0.8}) {
      for (const std::size_t batch : kBatches) {
        for (const std::int64_t rows : kRows) {
          for (const std::int64_t pages : kPages) {
            for (int bits = 0; bits < 16; ++bits) {
              check({.batch = batch,
                     .max_rows = rows,
                     .page_tokens = pages,
                     .share = (bits & 1) != 0,
                     .preempt = (bits & 2) != 0,
                     .swap = (bits & 8) != 0,
                     .temperature = temperature,
                     .format = format},
                    (bits & 4) != 0);
              ++runs;
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
  RecordProperty("runs", static_cast<int>(runs));
}

// Beam search, too, with windows that slide past the prompt.
class ModelBeam : public testing::TestWithParam<const char*> {
 protected:
  ModelBeam() : folder_(std::string("beam_") + GetParam()) {
    const Json golden = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) /
                                        (std::string(GetParam()) + ".json"));
    folder_.write(golden["config"], golden["tensors"]);
  }
  Model open(ModelOptions options) {
    return {context_, io::ModelFile::open(folder_.path()), options};
  }
  static BeamRequest request(std::uint64_t length, std::int32_t beams) {
    BeamRequest r{.request = {.prompt = test::random_tokens(length, 512),
                              .stop = {.max_tokens = 10},
                              .top_log_probabilities = 0},
                  .options = {.beams = beams, .eos = {2}}};
    return r;
  }
  static void expect_same_bits(const std::vector<BeamHypothesis>& a,
                               const std::vector<BeamHypothesis>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].tokens, b[i].tokens);
      EXPECT_EQ(a[i].log_probability, b[i].log_probability);
      EXPECT_EQ(a[i].score, b[i].score);
      EXPECT_EQ(a[i].reason, b[i].reason);
      EXPECT_EQ(a[i].log_probabilities, b[i].log_probabilities);
    }
  }

  Context context_ = test::device_context();
  test::ModelFolder folder_;
};

TEST_P(ModelBeam, TheSameAloneAndInAnyBatch) {
  std::vector<BeamRequest> requests;
  for (const std::uint64_t length : {1, 9, 30, 270}) {
    requests.push_back(request(length, length == 30 ? 1 : 4));
  }
  std::vector<std::vector<BeamHypothesis>> alone;
  for (const BeamRequest& one : requests) {
    Model model = open({.max_length = 400, .sequences = 4, .page_tokens = 16});
    alone.push_back(decode::beam_search(context_, model, {&one, 1}).hypotheses[0]);
    ASSERT_FALSE(alone.back().empty());
  }
  for (const ModelOptions& options :
       {ModelOptions{.max_length = 400, .sequences = 16, .page_tokens = 5, .max_rows = 33},
        ModelOptions{
            .max_length = 350, .sequences = 16, .page_tokens = 1, .share_prefixes = false}}) {
    Model model = open(options);
    for (int round = 0; round < 2; ++round) {  // the second finds prefixes of the first
      const auto together = decode::beam_search(context_, model, requests);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(i);
        expect_same_bits(together.hypotheses[i], alone[i]);
      }
      EXPECT_GT(together.statistics.prompt_seconds, 0);
      EXPECT_GT(together.statistics.decode_seconds, 0);
    }
    EXPECT_EQ(model.cache_statistics().sequences, 0);
  }
}

// Pages for one sequence of a window and max_rows tokens, and a prompt that is much longer.
TEST_P(ModelBeam, OneBeamOfALongPromptIsGreedy) {
  BeamRequest beam = request(1201, 1);
  beam.request.stop.ignore_eos = true;
  beam.options.length_penalty = 0;
  Model model = open({.max_length = 1240, .max_rows = 64});
  const auto found = decode::beam_search(context_, model, {&beam, 1}).hypotheses[0];
  ASSERT_EQ(found.size(), 1U);
  // More rows in a step than the model has pages for.
  decode::Scheduler scheduler(model, {.max_rows = 1024});
  const decode::RequestId id = scheduler.submit(beam.request);
  while (scheduler.step(context_)) {
  }
  EXPECT_EQ(found[0].tokens, scheduler.take(id)[0].tokens);
  EXPECT_EQ(found[0].tokens.size(), 10U);
}

INSTANTIATE_TEST_SUITE_P(Families, ModelBeam, testing::Values("llama3", "mistral", "gemma2"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace touchstone::model
