// What beam search refuses: one error that names the request, the option and the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "decode/beam/beam_test_support.h"
#include "touchstone/core/error.h"

namespace touchstone::decode {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(BeamCheck, RefusesByOption) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const std::string& message, auto change) {
    ToyScorer scorer(50, 8, oracle::hashed_table(1, 1));
    std::vector<BeamRequest> requests(2);
    for (BeamRequest& r : requests) r.request.prompt = {1, 2};
    change(requests[1]);
    EXPECT_THAT([&] { search(scorer, requests); },
                ThrowsMessage<InvalidArgument>(HasSubstr("beam_search: request 1: " + message)));
    EXPECT_EQ(scorer.live(), 0);
    EXPECT_EQ(scorer.most_rows(), 0);
  };
  refused("beams: expected a number in [1, 1024], got 0", [](auto& r) { r.options.beams = 0; });
  refused("beams: expected a number in [1, 1024], got 1025",
          [](auto& r) { r.options.beams = 1025; });
  refused("results: expected a number in [0, beams = 4], got 5",
          [](auto& r) { r.options.results = 5; });
  refused("length_penalty", [&](auto& r) { r.options.length_penalty = kNan; });
  refused("patience: expected a finite number > 0", [](auto& r) { r.options.patience = 0; });
  refused("patience: expected the dialect ctranslate2, got canonical",
          [](auto& r) { r.options.patience = 2; });
  refused("early_stopping: expected the dialect hf, got canonical",
          [](auto& r) { r.options.early_stopping = EarlyStopping::yes; });
  refused("groups: expected a divisor of beams = 4, got 3", [](auto& r) { r.options.groups = 3; });
  refused("diversity: expected groups > 1, got 1", [](auto& r) { r.options.diversity = 1; });
  refused("eos: expected a token in [0, 50), got 50", [](auto& r) { r.options.eos = {50}; });
  refused("banned: expected a token in [0, 50), got -1", [](auto& r) { r.options.banned = {-1}; });
  refused("forced: expected tokens that are not banned, got 3", [](auto& r) {
    r.options.forced = {3};
    r.options.banned = {3};
  });
  refused("no_repeat_ngram", [](auto& r) { r.options.no_repeat_ngram = -1; });
  refused("temperature: expected 0: beam search does not sample, got 0.8",
          [](auto& r) { r.request.sampling.temperature = 0.8; });
  refused("top_k: expected 0: beam search does not sample, got 5",
          [](auto& r) { r.request.sampling.top_k = 5; });
  refused("top_p: expected 1: beam search does not sample, got 0.5",
          [](auto& r) { r.request.sampling.top_p = 0.5; });
  refused("min_p: expected 0: beam search does not sample, got 0.1",
          [](auto& r) { r.request.sampling.min_p = 0.1; });
  refused("constraint: expected none", [](auto& r) {
    struct Anything : TokenConstraint {
      std::unique_ptr<TokenConstraint> start() const override { return nullptr; }
      std::unique_ptr<TokenConstraint> copy() const override { return nullptr; }
      void allowed(std::span<std::int32_t> mask) const override { std::ranges::fill(mask, -1); }
      void accept(std::int32_t /*token*/) override {}
    };
    r.request.constraint = std::make_shared<const Anything>();
  });
  refused("samples: expected 1", [](auto& r) { r.request.samples = 2; });
  refused("stop strings: expected none", [](auto& r) { r.request.stop.strings = {"a"}; });
  refused("prompt: expected at least one token, got none",
          [](auto& r) { r.request.prompt.clear(); });
  refused("prompt: expected fewer than 8 tokens", [](auto& r) { r.request.prompt.assign(8, 1); });
  refused("trie: expected a vocabulary of at most 50, got 60", [](auto& r) {
    const std::vector<std::vector<std::int32_t>> texts{{55}};
    r.options.trie = std::make_shared<TokenTrie>(TokenTrie::from_sequences(texts, 60));
  });
}

TEST(BeamCheck, NanIsOneErrorAndNothingStays) {
  ToyScorer scorer(50, 32, [](const std::vector<std::int32_t>& path, std::span<double> logits) {
    oracle::hashed_table(1, 1)(path, logits);
    if (path.size() == 3 && path[0] == 7) logits[49] = std::numeric_limits<double>::quiet_NaN();
  });
  std::vector<BeamRequest> requests(3);
  for (BeamRequest& r : requests) r.request.prompt = {1};
  requests[2].request.prompt = {7};
  EXPECT_THAT([&] { search(scorer, requests); },
              ThrowsMessage<CorruptData>(
                  HasSubstr("beam_search: request 2: step 3: the logits of beam 0 contain NaN")));
  EXPECT_EQ(scorer.live(), 0);
}

TEST(BeamCheck, NothingToDo) {
  ToyScorer scorer(50, 8, oracle::hashed_table(1, 1));
  EXPECT_TRUE(search(scorer, {}).hypotheses.empty());
  BeamRequest none{.request = {.prompt = {1}, .stop = {.max_tokens = 0}}};
  EXPECT_TRUE(search(scorer, {none}).hypotheses.at(0).empty());
  // The context ends a text as max_tokens does.
  BeamRequest full{.request = {.prompt = {1, 2, 3, 4, 5}, .stop = {.max_tokens = 100}}};
  const auto got = search(scorer, {full}).hypotheses.at(0);
  ASSERT_EQ(got.size(), 4U);
  for (const BeamHypothesis& h : got) {
    EXPECT_EQ(h.tokens.size(), 3U);
    EXPECT_EQ(h.reason, FinishReason::length);
  }
}

TEST(BeamCheck, Names) {
  for (const BeamDialect d : {BeamDialect::canonical, BeamDialect::hf, BeamDialect::fairseq,
                              BeamDialect::ctranslate2, BeamDialect::vllm}) {
    EXPECT_EQ(parse_beam_dialect(name_of(d)), d);
  }
  EXPECT_EQ(parse_early_stopping("true"), EarlyStopping::yes);
  EXPECT_THAT([] { parse_beam_dialect("bart"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("canonical, hf, fairseq")));
}

TEST(TokenTrie, SharesBeginnings) {
  const std::vector<std::vector<std::int32_t>> texts = {{1, 2}, {1}, {1, 2, 3}, {4, 5}, {1, 9}};
  const TokenTrie trie = TokenTrie::from_sequences(texts, 10);
  EXPECT_EQ(trie.size(), 7);
  const std::int32_t one = trie.child(TokenTrie::kRoot, 1);
  EXPECT_TRUE(trie.ends(one));
  EXPECT_FALSE(trie.ends(TokenTrie::kRoot));
  EXPECT_THAT(trie.tokens(one), testing::ElementsAre(2, 9));
  EXPECT_THAT(trie.tokens(trie.child(one, 9)), testing::IsEmpty());
  EXPECT_EQ(trie.child(one, 3), kNoNode);
  EXPECT_THAT(
      [] {
        TokenTrie::from_sequences(std::vector<std::vector<std::int32_t>>{{1}, {}}, 10);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("trie: sequence 1: expected at least one")));
}

}  // namespace
}  // namespace touchstone::decode
