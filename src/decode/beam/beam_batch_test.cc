// Batches, caches and memory: the same results alone and together, pages shared, nothing left over.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "decode/beam/beam_test_support.h"

namespace touchstone::decode {
namespace {

void expect_same_bits(const std::vector<BeamHypothesis>& a, const std::vector<BeamHypothesis>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tokens, b[i].tokens);
    EXPECT_EQ(a[i].log_probability, b[i].log_probability);
    EXPECT_EQ(a[i].score, b[i].score);
    EXPECT_EQ(a[i].reason, b[i].reason);
    EXPECT_EQ(a[i].log_probabilities, b[i].log_probabilities);
  }
}

BeamRequest drawn_request(std::mt19937& draw) {
  const auto below = [&](int n) {
    return static_cast<std::int32_t>(draw() % static_cast<unsigned>(n));
  };
  BeamRequest r;
  r.request.prompt.assign(static_cast<std::size_t>(1 + below(9)), below(40));
  r.request.stop.max_tokens = 1 + below(8);
  r.request.stop.include_stop = true;
  r.request.top_log_probabilities = 0;
  r.options.beams = 1 + below(9);
  r.options.length_penalty = below(3) - 1;
  r.options.eos = {0};
  r.options.dialect = static_cast<BeamDialect>(below(5));
  if (below(4) == 0) r.options.eos.push_back(7);
  if (below(4) == 0) r.options.no_repeat_ngram = 1 + below(2);
  if (below(4) == 0) r.options.banned = {3, 4};
  if (below(4) == 0) r.request.stop.min_tokens = below(static_cast<int>(r.request.stop.max_tokens));
  if (below(5) == 0 && r.options.beams % 2 == 0) {
    r.options.groups = 2;
    r.options.diversity = 0.5;
  }
  return r;
}

TEST(BeamBatch, ARequestIsTheSameAloneAndInAnyBatch) {
  std::mt19937 draw(1);
  std::vector<BeamRequest> requests;
  for (int i = 0; i < 24; ++i) requests.push_back(drawn_request(draw));
  const auto table = oracle::hashed_table(8, 3);
  ToyScorer scorer(40, 64, table);
  const BeamResults together = search(scorer, requests);
  ASSERT_EQ(together.hypotheses.size(), requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same_bits(search(scorer, {requests[i]}).hypotheses.at(0), together.hypotheses[i]);
  }
  std::vector<BeamRequest> turned(requests.rbegin(), requests.rend());
  const BeamResults backwards = search(scorer, turned);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    expect_same_bits(backwards.hypotheses[requests.size() - 1 - i], together.hypotheses[i]);
  }
  EXPECT_EQ(scorer.live(), 0);
}

// The logits of a beam come from its own cache: the same search over paths that are computed anew.
TEST(BeamBatch, BeamsReadTheirOwnCacheAtAnyPageSize) {
  if (test::on_gpu()) GTEST_SKIP() << "the attention of this scorer runs on the CPU";
  BeamRequest r{.request = {.prompt = {5, 6, 7, 8, 9}, .stop = {.max_tokens = 12}},
                .options = {.beams = 6, .length_penalty = 0}};
  r.request.top_log_probabilities = 0;
  CacheScorer fresh(16, 64, 4, 64);
  Context context({.threads = 1});
  ToyScorer paths(16, 64, [&](const std::vector<std::int32_t>& path, std::span<double> logits) {
    const ScorerSequence id = fresh.create();
    const std::vector<ScoreRow> rows = chain_rows(id, 0, path);
    const std::int32_t last[] = {static_cast<std::int32_t>(rows.size()) - 1};
    std::vector<float> out(16);
    fresh.score(context,
                {.rows = rows, .logit_rows = last, .logits = make_view(out.data(), {1, 16})});
    std::ranges::copy(out, logits.begin());
    fresh.release(id);
  });
  const auto expected = search(paths, {r}).hypotheses[0];
  ASSERT_EQ(expected.size(), 6U);
  for (const std::int64_t page : {1, 2, 4, 16, 32}) {
    SCOPED_TRACE(page);
    CacheScorer scorer(16, 64, page, 6 * (17 / page + 2));
    const BeamResults got = search(scorer, {r});
    expect_same_bits(got.hypotheses[0], expected);
    const cache::Statistics after = scorer.statistics();
    EXPECT_GT(got.statistics.forks, 0);
    // A page is copied only where beams part inside it: never with one token per page, where every
    // page is full, and at most once for each fork otherwise.
    if (page == 1) {
      EXPECT_EQ(after.groups[0].copied, 0);
    }
    EXPECT_LE(after.groups[0].copied, got.statistics.forks);
    EXPECT_EQ(after.sequences, 0);
    EXPECT_EQ(after.groups[0].used, 0);
    // The prompt is stored once, and so is every common beginning.
    EXPECT_LT(after.groups[0].peak_used, 6 * ((17 + page - 1) / page) + 1);
  }
}

TEST(BeamBatch, SoManyBeams) {
  const auto table = oracle::hashed_table(2, 3);
  BeamRequest r{.request = {.prompt = {1}, .stop = {.max_tokens = 3}},
                .options = {.beams = kMaxBeams, .length_penalty = 0, .eos = {0}}};
  ToyScorer scorer(1500, 8, table);
  const BeamResults got = search(scorer, {r});
  ASSERT_EQ(got.hypotheses[0].size(), 1024U);
  for (std::size_t i = 1; i < 1024; ++i) {
    EXPECT_GE(got.hypotheses[0][i - 1].score, got.hypotheses[0][i].score);
  }
  EXPECT_EQ(scorer.most_rows(), 1024);
  EXPECT_EQ(got.statistics.steps, 3);
  EXPECT_EQ(got.statistics.logit_passes, 3);  // one read of all logits in a step
  if (test::on_gpu()) {
    EXPECT_EQ(got.statistics.read_backs, 3);
    EXPECT_EQ(got.statistics.read_back_bytes, 24 * (1500 + 2 * 2048));
  }
}

// A scorer that takes few rows at once: prompts are read in chunks, with the same results.
TEST(BeamBatch, LongPromptsAreReadInChunks) {
  class FewRows : public ToyScorer {
   public:
    FewRows(std::int64_t limit, const oracle::TableScorer::Table& table)
        : ToyScorer(30, 512, table), limit_(limit) {}
    bool fits(std::span<const RowCount> counts) const override {
      std::int64_t rows = 0;
      for (const RowCount& one : counts) rows += one.rows;
      return rows <= limit_;
    }
    void score(Context& context, const ScoreArgs& args) override {
      most = std::max(most, std::ssize(args.rows));
      ToyScorer::score(context, args);
    }
    std::int64_t most = 0;

   private:
    std::int64_t limit_;
  };
  std::vector<BeamRequest> requests(3);
  for (std::size_t i = 0; i < 3; ++i) {
    requests[i] = {.request = {.prompt = {1}, .stop = {.max_tokens = 5}},
                   .options = {.beams = 3, .eos = {0}}};
    for (std::size_t t = 0; t < 150 * i; ++t) {
      requests[i].request.prompt.push_back(static_cast<std::int32_t>((t * 7 + i) % 30));
    }
  }
  const auto table = oracle::hashed_table(5, 3);
  FewRows plenty(1000, table);
  FewRows few(40, table);
  const BeamResults expected = search(plenty, requests);
  const BeamResults got = search(few, requests);
  EXPECT_EQ(plenty.most, 256);
  EXPECT_LE(few.most, 40);
  for (std::size_t i = 0; i < 3; ++i) {
    expect_same_bits(got.hypotheses[i], expected.hypotheses[i]);
    expect_same_bits(search(plenty, {requests[i]}).hypotheses[0], expected.hypotheses[i]);
  }
  EXPECT_EQ(got.statistics.prompt_rows, 1 + 151 + 301);
  EXPECT_EQ(few.live(), 0);
}

TEST(BeamBatch, LongTextsDoNotKeepWhatDied) {
  BeamRequest r{.request = {.prompt = {1}, .stop = {.max_tokens = 600}},
                .options = {.beams = 24, .length_penalty = 1, .eos = {0}}};
  const auto inner = oracle::hashed_table(3, 2);
  const oracle::TableScorer::Table table = [inner](const std::vector<std::int32_t>& path,
                                                   std::span<double> logits) {
    inner({path.back(), static_cast<std::int32_t>(path.size())}, logits);
    logits[0] -= 6;
  };
  ToyScorer scorer(30, 1024, table);
  const auto got = search(scorer, {r}).hypotheses[0];
  ASSERT_EQ(got.size(), 24U);
  EXPECT_EQ(std::ssize(got[0].tokens), got[0].length - (got[0].finished ? 1 : 0));
}

TEST(BeamBatch, CancelledRequestsReturnWhatTheyHave) {
  BeamRequest stays{.request = {.prompt = {1}, .stop = {.max_tokens = 8}},
                    .options = {.beams = 3, .eos = {0}}};
  BeamRequest leaves = stays;
  leaves.request.cancellation = {};
  leaves.request.prompt = {2};
  int calls = 0;
  const auto inner = oracle::hashed_table(1, 3);
  ToyScorer scorer(9, 32, [&](const std::vector<std::int32_t>& path, std::span<double> logits) {
    if (path.size() == 4 && path[0] == 2) {
      ++calls;
      leaves.request.cancellation.cancel();
    }
    inner(path, logits);
  });
  const BeamResults got = search(scorer, {leaves, stays});
  EXPECT_GT(calls, 0);
  EXPECT_EQ(scorer.live(), 0);
  bool cancelled = false;
  for (const BeamHypothesis& h : got.hypotheses[0]) {
    cancelled |= h.reason == FinishReason::cancelled;
    EXPECT_LE(h.length, 4);
  }
  EXPECT_TRUE(cancelled);
  stays.request.cancellation = {};
  expect_same_bits(search(scorer, {stays}).hypotheses[0], got.hypotheses[1]);
}

}  // namespace
}  // namespace touchstone::decode
