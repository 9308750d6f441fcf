// Beam search against exhaustive search and the float64 reference of each dialect, and hand-worked
// cases.
#include "touchstone/decode/beam_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "decode/beam/beam_test_support.h"

namespace touchstone::decode {
namespace {

using Path = std::vector<std::int32_t>;

// Probabilities by generated text, the prompt being one token; unlisted tokens have probability 0.
oracle::TableScorer::Table by_hand(std::map<Path, std::map<std::int32_t, double>> rows) {
  return [rows = std::move(rows)](const Path& path, std::span<double> logits) {
    std::ranges::fill(logits, kMinusInfinity);
    const auto row = rows.find(Path(path.begin() + 1, path.end()));
    if (row == rows.end()) return;
    for (const auto& [token, probability] : row->second) {
      logits[static_cast<std::size_t>(token)] = std::log(probability);
    }
  };
}

BeamRequest request(std::int32_t beams, double penalty, std::int64_t max_tokens, Path eos = {0}) {
  return {.request = {.prompt = {1}, .stop = {.max_tokens = max_tokens, .include_stop = true}},
          .options = {.beams = beams, .length_penalty = penalty, .eos = std::move(eos)}};
}

std::vector<BeamHypothesis> one(std::int64_t vocabulary, const oracle::TableScorer::Table& table,
                                const BeamRequest& r) {
  ToyScorer scorer(vocabulary, 64, table);
  BeamResults results = search(scorer, {r});
  EXPECT_EQ(scorer.live(), 0);
  return results.hypotheses.at(0);
}

std::vector<Path> tokens_of(const std::vector<BeamHypothesis>& list) {
  std::vector<Path> tokens;
  for (const BeamHypothesis& h : list) tokens.push_back(h.tokens);
  return tokens;
}

// An early ending of -3.0 stays in the pool and beats what ends at -5.0 later. Without length
// normalization nothing that runs on can pass it.
TEST(BeamSearch, AnEarlyFinishedBeamCompetesToTheEnd) {
  const double early = std::exp(-3.0), rest = 1 - early;
  const auto table =
      by_hand({{{}, {{0, early}, {2, rest}}},
               {{2}, {{3, 1}}},
               {{2, 3}, {{0, std::exp(-5.0) / rest}, {3, 1 - std::exp(-5.0) / rest}}},
               {{2, 3, 3}, {{3, 1}}},
               {{2, 3, 3, 3}, {{3, 1}}}});
  const auto got = one(4, table, request(2, 0, 3));
  ASSERT_EQ(got.size(), 2U);
  // The running beam of -0.05 reaches the limit and is best; the early one stays before -5.
  EXPECT_EQ(tokens_of(got), (std::vector<Path>{{2, 3, 3}, {0}}));
  EXPECT_NEAR(got[1].log_probability, -3.0, 1e-6);
  EXPECT_EQ(got[1].reason, FinishReason::eos);
  EXPECT_EQ(got[0].reason, FinishReason::length);
  EXPECT_FALSE(got[0].finished);
}

TEST(BeamSearch, EosBestAtTheFirstStep) {
  const auto table =
      by_hand({{{}, {{0, 0.6}, {1, 0.4}}}, {{1}, {{0, 0.95}, {1, 0.05}}}, {{1, 1}, {{0, 1}}}});
  EXPECT_EQ(tokens_of(one(2, table, request(1, 0, 3))), (std::vector<Path>{{0}}));
  EXPECT_EQ(tokens_of(one(2, table, request(2, 0, 3))), (std::vector<Path>{{0}, {1, 0}}));
  // Averages: log(.38) / 2 is above log(.6), log(.02) / 3 below.
  EXPECT_EQ(tokens_of(one(2, table, request(2, 1, 3))), (std::vector<Path>{{1, 0}, {0}}));
}

TEST(BeamSearch, TiesGoToTheBetterParentThenToTheLowerToken) {
  const oracle::TableScorer::Table flat = [](const Path&, std::span<double> logits) {
    std::ranges::fill(logits, 0.25);
  };
  EXPECT_EQ(tokens_of(one(5, flat, request(3, 0, 1, {}))), (std::vector<Path>{{0}, {1}, {2}}));
  EXPECT_EQ(tokens_of(one(5, flat, request(3, 0, 2, {}))),
            (std::vector<Path>{{0, 0}, {0, 1}, {0, 2}}));
  // Two equal parents: the first one's tokens come first, although the second has lower ones.
  const auto two = by_hand(
      {{{}, {{2, 0.5}, {3, 0.5}}}, {{2}, {{4, 0.5}, {3, 0.5}}}, {{3}, {{1, 0.5}, {2, 0.5}}}});
  EXPECT_EQ(tokens_of(one(5, two, request(4, 0, 2, {}))),
            (std::vector<Path>{{2, 3}, {2, 4}, {3, 1}, {3, 2}}));
}

TEST(BeamSearch, MoreBeamsThanTokensAndNothingOfProbabilityZero) {
  const auto table = by_hand({{{}, {{0, 0.25}, {1, 0.75}}}, {{1}, {{0, 1}}}});
  for (const std::int32_t beams : {3, 16, 1024}) {
    const auto got = one(3, table, request(beams, 0, 5));
    EXPECT_EQ(tokens_of(got), (std::vector<Path>{{1, 0}, {0}})) << beams;
  }
  // A row of -inf only: its beam has no continuation, and nothing comes back.
  EXPECT_TRUE(one(3, by_hand({{{}, {{1, 1}}}}), request(2, 0, 5)).empty());
  EXPECT_TRUE(one(3, by_hand({}), request(2, 0, 5)).empty());
  // Infinity takes all of the probability.
  const oracle::TableScorer::Table infinite = [](const Path&, std::span<double> logits) {
    std::ranges::fill(logits, 0);
    logits[2] = std::numeric_limits<double>::infinity();
  };
  const auto got = one(3, infinite, request(2, 0, 2));
  ASSERT_EQ(tokens_of(got), (std::vector<Path>{{2, 2}}));
  EXPECT_EQ(got[0].log_probability, 0);
}

TEST(BeamSearch, ReportsWhatWasFound) {
  const auto table = by_hand({{{}, {{1, 0.6}, {2, 0.2}, {0, 0.2}}},
                              {{1}, {{0, 0.6}, {3, 0.4}}},
                              {{2}, {{3, 1}}},
                              {{1, 3}, {{1, 1}}},
                              {{2, 3}, {{1, 1}}}});
  BeamRequest r = request(3, 2, 3);
  r.request.stop.include_stop = false;
  r.request.stop.tokens = {3};
  r.request.top_log_probabilities = 0;
  const auto got = one(4, table, r);
  ASSERT_EQ(tokens_of(got), (std::vector<Path>{{1}, {1}, {2}}));
  EXPECT_EQ(got[0].reason, FinishReason::eos);
  EXPECT_EQ(got[1].reason, FinishReason::stop);
  EXPECT_EQ(got[1].stop_index, 0);
  EXPECT_EQ(got[0].length, 2);
  EXPECT_NEAR(got[0].log_probability, std::log(0.36), 1e-6);
  EXPECT_NEAR(got[0].score, std::log(0.36) / 4, 1e-6);
  ASSERT_EQ(got[0].log_probabilities.size(), 2U);
  EXPECT_NEAR(static_cast<double>(got[0].log_probabilities[1]), std::log(0.6), 1e-6);
}

TEST(BeamSearch, EqualsExhaustiveSearch) {
  int compared = 0;
  for (std::int64_t seed = 0; seed < 120; ++seed) {
    const std::int64_t vocabulary = 2 + seed % 4;
    const std::int64_t length = 1 + seed % 5;
    const auto beams = static_cast<std::int32_t>(
        std::min(1024.0, std::pow(static_cast<double>(vocabulary), static_cast<double>(length))));
    BeamRequest r = request(beams, std::vector<double>{0, 1, 0.6, 3, -1}[seed % 5], length);
    const auto table = oracle::hashed_table(seed, 3);
    oracle::BeamReference reference(problem_of(r, vocabulary, table));
    const auto expected = reference.exhaustive(beams);
    if (reference.search().margin < 1e-6) continue;
    ++compared;
    SCOPED_TRACE(seed);
    expect_same(one(vocabulary, table, r), expected, r);
  }
  EXPECT_GT(compared, 100);
}

// Random tables, every dialect, with everything that changes what a search does.
TEST(BeamSearch, EqualsTheReferenceOfEachDialect) {
  int compared = 0, near = 0;
  const std::vector<std::pair<BeamDialect, EarlyStopping>> dialects = {
      {BeamDialect::canonical, EarlyStopping::no},  {BeamDialect::hf, EarlyStopping::no},
      {BeamDialect::hf, EarlyStopping::yes},        {BeamDialect::hf, EarlyStopping::never},
      {BeamDialect::fairseq, EarlyStopping::no},    {BeamDialect::vllm, EarlyStopping::no},
      {BeamDialect::ctranslate2, EarlyStopping::no}};
  for (std::int64_t seed = 0; seed < (test::kSanitized ? 140 : 1400); ++seed) {
    std::mt19937 draw(static_cast<unsigned>(seed));
    const auto below = [&](int n) {
      return static_cast<std::int64_t>(draw() % static_cast<unsigned>(n));
    };
    const std::int64_t vocabulary = 3 + below(30);
    BeamRequest r =
        request(static_cast<std::int32_t>(1 + below(6)),
                std::vector<double>{0, 1, 0.6, 2.5, -0.7}[static_cast<std::size_t>(below(5))],
                1 + below(7));
    std::tie(r.options.dialect, r.options.early_stopping) =
        dialects[static_cast<std::size_t>(seed) % dialects.size()];
    if (below(3) == 0 && r.options.dialect != BeamDialect::ctranslate2) r.options.eos.push_back(2);
    if (below(6) == 0) r.options.eos.clear();
    r.request.stop.min_tokens =
        below(3) == 0 ? below(static_cast<int>(r.request.stop.max_tokens)) : 0;
    if (below(3) == 0) r.options.results = 1;
    if (r.options.dialect == BeamDialect::ctranslate2 && below(3) == 0) r.options.patience = 2;
    r.request.stop.include_stop = r.options.dialect != BeamDialect::ctranslate2 || below(2) == 0;
    r.request.prompt = Path(static_cast<std::size_t>(1 + below(4)), 1);
    // EOS likely, so that beams end early and late.
    const auto inner = oracle::hashed_table(seed, 3);
    const oracle::TableScorer::Table table = [inner](const Path& path, std::span<double> logits) {
      inner(path, logits);
      logits[0] += 1.5;
    };
    const auto expected = oracle::BeamReference(problem_of(r, vocabulary, table)).search();
    if (expected.margin < 1e-5) {
      ++near;
      continue;
    }
    ++compared;
    SCOPED_TRACE(testing::Message() << "seed " << seed << " " << name_of(r.options.dialect));
    expect_same(one(vocabulary, table, r), expected.texts, r);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(compared, 9 * near);
}

TEST(BeamSearch, OneBeamWithoutPenaltyIsGreedy) {
  for (std::int64_t seed = 0; seed < 50; ++seed) {
    const auto table = oracle::hashed_table(seed, 4);
    Path path{1};
    std::vector<double> logits(11);
    for (int i = 0; i < 12 && (path.size() == 1 || path.back() != 0); ++i) {
      table(path, logits);
      for (double& v : logits) v = static_cast<double>(static_cast<float>(v));
      path.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    }
    const auto got = one(11, table, request(1, 0, 12));
    ASSERT_EQ(got.size(), 1U);
    EXPECT_EQ(got[0].tokens, Path(path.begin() + 1, path.end())) << seed;
  }
}

// Step 1: a .5, b .4, EOS .1. After a: EOS .3, a .7; after b: EOS .9. At two tokens everything ends.
TEST(BeamSearch, HandWorkedDialects) {
  const auto table = by_hand({{{}, {{1, 0.5}, {2, 0.4}, {0, 0.1}}},
                              {{1}, {{1, 0.7}, {0, 0.3}}},
                              {{2}, {{0, 0.9}, {1, 0.1}}},
                              {{1, 1}, {{0, 0.5}, {1, 0.5}}},
                              {{2, 1}, {{0, 1}}}});
  const auto run = [&](BeamDialect dialect, double penalty, std::int64_t max_tokens) {
    BeamRequest r = request(2, penalty, max_tokens);
    r.request.prompt = {1};
    r.options.dialect = dialect;
    return one(3, table, r);
  };
  // .36 = b EOS, .35 = a a, .15 = a EOS.
  EXPECT_EQ(tokens_of(run(BeamDialect::canonical, 0, 2)), (std::vector<Path>{{2, 0}, {1, 1}}));
  // fairseq forces EOS as the second token: a EOS instead of a a.
  EXPECT_EQ(tokens_of(run(BeamDialect::fairseq, 0, 2)), (std::vector<Path>{{2, 0}, {1, 0}}));
  // vLLM: every EOS among the 2K of a beam finishes; .36, .35, then EOS .1 and a EOS .15 are cut.
  EXPECT_EQ(tokens_of(run(BeamDialect::vllm, 0, 2)), (std::vector<Path>{{2, 0}, {1, 1}}));
  // Its length counts the prompt and not EOS: log(.36) / 2, and log(.1) / 1 for EOS alone.
  const auto vllm = run(BeamDialect::vllm, 1, 2);
  EXPECT_EQ(vllm[0].tokens, (Path{1, 1}));
  EXPECT_NEAR(vllm[0].score, std::log(0.35) / 3, 1e-6);
  EXPECT_EQ(vllm[1].tokens, (Path{2, 0}));
  EXPECT_NEAR(vllm[1].score, std::log(0.36) / 2, 1e-6);
  EXPECT_EQ(vllm[1].length, 2);
}

TEST(BeamSearch, Constraints) {
  const auto table = oracle::hashed_table(5, 3);
  const auto with = [&](auto change) {
    BeamRequest r = request(4, 0, 6);
    change(r);
    return one(12, table, r);
  };
  for (const BeamHypothesis& h : with([](BeamRequest& r) { r.request.stop.min_tokens = 3; })) {
    EXPECT_GE(h.length, 4 - (h.reason == FinishReason::eos ? 0 : 1));
  }
  for (const BeamHypothesis& h : with([](BeamRequest& r) { r.options.banned = {3, 4, 5, 3}; })) {
    for (const std::int32_t token : h.tokens) EXPECT_TRUE(token < 3 || token > 5);
  }
  for (const BeamHypothesis& h : with([](BeamRequest& r) { r.options.forced = {7, -1, 9}; })) {
    EXPECT_EQ(h.tokens.at(0), 7);
    if (h.tokens.size() > 2) {
      EXPECT_EQ(h.tokens[2], 9);
    }
  }
  const auto repeats = [](const Path& text, std::size_t n) {
    std::map<Path, int> seen;
    for (std::size_t i = 0; i + n <= text.size(); ++i) {
      if (++seen[Path(text.begin() + static_cast<std::ptrdiff_t>(i),
                      text.begin() + static_cast<std::ptrdiff_t>(i + n))] > 1) {
        return true;
      }
    }
    return false;
  };
  for (const std::int32_t n : {1, 2}) {
    const auto got = with([&](BeamRequest& r) {
      r.options.no_repeat_ngram = n;
      r.request.prompt = {3, 5, 3};
      r.request.stop.max_tokens = 9;
      r.options.eos.clear();
    });
    EXPECT_FALSE(got.empty());
    for (const BeamHypothesis& h : got) {
      Path text{5, 3};
      text.insert(text.end(), h.tokens.begin(), h.tokens.end());
      EXPECT_FALSE(repeats(text, static_cast<std::size_t>(n)));
    }
  }
}

// The masked search has the log-probabilities of the whole vocabulary, bit for bit, whichever way
// the mask is applied: few tokens by a longer list, many by a second pass.
TEST(BeamSearch, MaskedAndPlainRowsHaveTheSameLogProbabilities) {
  const auto table = oracle::hashed_table(9, 3);
  constexpr std::int64_t kVocabulary = 2000;
  BeamRequest plain = request(4, 0, 3, {});
  plain.request.top_log_probabilities = 0;
  const auto free = one(kVocabulary, table, plain);
  for (const std::int32_t banned : {1, 300, 1000}) {
    BeamRequest r = plain;
    // From the end of the vocabulary, as far as the free search did not use it.
    for (std::int32_t t = kVocabulary; t-- > 0 && std::ssize(r.options.banned) < banned;) {
      bool used = false;
      for (const BeamHypothesis& h : free) used |= std::ranges::find(h.tokens, t) != h.tokens.end();
      if (!used) r.options.banned.push_back(t);
    }
    const auto got = one(kVocabulary, table, r);
    ASSERT_FALSE(got.empty());
    EXPECT_EQ(got[0].tokens, free[0].tokens);
    EXPECT_EQ(got[0].log_probabilities, free[0].log_probabilities) << banned;
  }
}

TEST(BeamSearch, TrieLeavesItsTextsOnly) {
  const std::vector<Path> texts = {{3, 4}, {3, 5, 6}, {3, 5, 7}, {8}, {3, 4}, {9, 9, 9, 9}};
  BeamRequest r = request(8, 0, 8);
  r.options.trie = std::make_shared<TokenTrie>(TokenTrie::from_sequences(texts, 10));
  const auto got = one(10, oracle::hashed_table(4, 3), r);
  std::vector<Path> found = tokens_of(got);
  EXPECT_EQ(found.size(), 5U);
  for (Path& text : found) {
    EXPECT_EQ(text.back(), 0);
    text.pop_back();
    EXPECT_NE(std::ranges::find(texts, text), texts.end());
  }
  for (std::size_t i = 1; i < got.size(); ++i) EXPECT_GE(got[i - 1].score, got[i].score);
}

// Groups: with a large penalty each takes another token; without one all are the same search.
TEST(BeamSearch, DiverseGroups) {
  const auto table = oracle::hashed_table(6, 2);
  BeamRequest r = request(6, 0, 1, {});
  r.options.groups = 3;
  r.options.diversity = 100;
  const auto far = one(20, table, r);
  std::vector<std::int32_t> tokens;
  for (const BeamHypothesis& h : far) tokens.push_back(h.tokens.at(0));
  std::ranges::sort(tokens);
  EXPECT_EQ(std::ranges::unique(tokens).begin(), tokens.end());
  EXPECT_EQ(tokens.size(), 6U);
  r.request.stop.max_tokens = 4;
  const auto longer = one(20, table, r);
  ASSERT_EQ(longer.size(), 6U);
  // Raw: the sum of log-probabilities of the text, no penalty inside.
  for (const BeamHypothesis& h : longer) {
    oracle::BeamProblem p = problem_of(r, 20, table);
    double sum = 0;
    std::vector<double> logits(20);
    for (std::size_t i = 0; i < h.tokens.size(); ++i) {
      p.logits(Path(h.tokens.begin(), h.tokens.begin() + static_cast<std::ptrdiff_t>(i)), logits);
      double total = 0;
      for (const double v : logits) total += std::exp(v);
      sum += logits[static_cast<std::size_t>(h.tokens[i])] - std::log(total);
    }
    EXPECT_NEAR(h.log_probability, sum, 1e-5);
  }
  r.options.diversity = 0;
  const auto same = one(20, table, r);
  BeamRequest alone = r;
  alone.options.groups = 1;
  alone.options.beams = 2;
  const auto pair = one(20, table, alone);
  ASSERT_EQ(same.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(same[i].tokens, pair[i / 3].tokens);
}

}  // namespace
}  // namespace touchstone::decode
