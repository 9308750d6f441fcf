// What depends on the position of a node, together: masks of a constraint, tokens that are
// forbidden before min_tokens, tokens that end the text, and penalties over the history of the
// path.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "decode/continuation.h"
#include "decode/speculative/rejection.h"
#include "decode/speculative/speculative_test_support.h"
#include "decode/speculative/verification_rows.h"
#include "oracle/path_scorer.h"
#include "oracle/sample.h"

namespace touchstone::decode {
namespace {

using test::Draws;
using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kEnd = 0;

// Which tokens may follow depends on the last one; the end always may. Not to be used after the
// end.
class Wheel : public TokenConstraint {
 public:
  explicit Wheel(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  std::unique_ptr<TokenConstraint> start() const override {
    return std::make_unique<Wheel>(vocabulary_);
  }
  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<Wheel>(*this); }
  static bool allows(std::int32_t last, std::int32_t token) {
    return token == kEnd || (3 * token + 5 * last + 1) % 4 != 0;
  }
  void allowed(std::span<std::int32_t> mask) const override {
    EXPECT_FALSE(ended_);
    std::ranges::fill(mask, 0);
    for (std::int32_t t = 0; t < vocabulary_; ++t) {
      if (allows(last_, t)) mask[static_cast<std::size_t>(t / 32)] |= 1 << (t % 32);
    }
  }
  void accept(std::int32_t token) override {
    EXPECT_TRUE(allows(last_, token) && !ended_);
    last_ = token;
    ended_ = token == kEnd;
  }

 private:
  std::int64_t vocabulary_;
  std::int32_t last_ = 1;
  bool ended_ = false;
};

// Decisions in the order of a script, with their probabilities; every script once.
class Script {
 public:
  std::size_t branch(const std::vector<double>& weights) {
    if (at_ == script_.size()) script_.emplace_back(0, weights.size());
    const std::size_t choice = script_[at_++].first;
    probability *= weights[choice];
    return choice;
  }
  bool next() {
    while (!script_.empty() && ++script_.back().first == script_.back().second) script_.pop_back();
    at_ = 0;
    probability = 1;
    return !script_.empty();
  }
  double probability = 1;

 private:
  std::vector<std::pair<std::size_t, std::size_t>> script_;
  std::size_t at_ = 0;
};

class ScriptChance : public RejectionChance {
 public:
  explicit ScriptChance(Script& script) : script_(script) {}
  bool accepts(double share, std::int32_t /*sibling*/) override {
    return script_.branch({share, 1 - share}) == 0;
  }
  std::int32_t draw(const TokenDistribution& residual) override {
    return residual.tokens[script_.branch(residual.probabilities)];
  }

 private:
  Script& script_;
};

struct Setting {
  std::int64_t vocabulary;
  std::int64_t depth;
  std::int64_t branch;
  ProposalKind kind;
  std::int64_t min_tokens;
};

// A request with every control, its logits, and what plain decoding draws from after a text.
struct Target {
  explicit Target(const Setting& setting, std::int64_t seed)
      : s(setting), table(oracle::hashed_table(seed, 2)) {
    request.prompt = {1, 2, 1};
    request.sampling = {.temperature = 0.75,
                        .top_p = 0.9375,
                        .repetition_penalty = 1.5,
                        .frequency_penalty = 0.5,
                        .presence_penalty = 0.25};
    request.stop = {.max_tokens = s.depth + 1, .min_tokens = s.min_tokens, .tokens = {kEnd}};
    request.constraint = std::make_shared<Wheel>(s.vocabulary);
  }
  std::vector<float> logits(const Tokens& text) const {
    Tokens path = request.prompt;
    path.insert(path.end(), text.begin(), text.end());
    std::vector<double> values(static_cast<std::size_t>(s.vocabulary));
    table(path, values);
    return {values.begin(), values.end()};
  }
  // By the oracle of sample(), with masks written out.
  std::vector<double> distribution(const Tokens& text) const {
    Tokens path = request.prompt;
    path.insert(path.end(), text.begin(), text.end());
    const std::vector<float> values = logits(text);
    const SamplingControls& c = request.sampling;
    oracle::SampleRow row{.logits = {values.begin(), values.end()},
                          .bias = {},
                          .token_mask = {},
                          .history = {path.begin(), path.end()},
                          .prompt_length = 3,
                          .temperature = c.temperature,
                          .top_p = c.top_p,
                          .repetition_penalty = c.repetition_penalty,
                          .frequency_penalty = c.frequency_penalty,
                          .presence_penalty = c.presence_penalty};
    const std::int32_t last = text.empty() ? 1 : text.back();
    for (std::int32_t t = 0; t < s.vocabulary; ++t) {
      const bool early = t == kEnd && std::ssize(text) < s.min_tokens;
      row.token_mask.push_back(Wheel::allows(last, t) && !early);
    }
    return oracle::sample_distribution(row).probability;
  }

  Setting s;
  oracle::TableScorer::Table table;
  Request request;
};

TokenDistribution random_draft_distribution(Draws& draws, std::int64_t vocabulary) {
  TokenDistribution d;
  double sum = 0;
  for (std::int32_t t = 0; t < vocabulary; ++t) {
    if (draws.below(3) == 0 && t + 1 < vocabulary) continue;
    d.tokens.push_back(t);
    d.probabilities.push_back(0.1 + draws.uniform());
    sum += d.probabilities.back();
  }
  for (double& p : d.probabilities) p /= sum;
  return d;
}

// A whole tree, its tokens drawn by the script.
Draft scripted_draft(const Setting& s, Script& script, std::map<Tokens, TokenDistribution>& known,
                     Draws& draws) {
  Draft draft;
  std::vector<std::pair<std::int32_t, Tokens>> level = {{kNoNode, {}}};
  draft.proposals.push_back({.kind = s.kind});
  for (std::int64_t depth = 0; depth < s.depth; ++depth) {
    std::vector<std::pair<std::int32_t, Tokens>> next;
    for (const auto& [parent, text] : level) {
      if (!known.contains(text)) known[text] = random_draft_distribution(draws, s.vocabulary);
      TokenDistribution q = known[text];
      Proposal& proposal = draft.proposals[static_cast<std::size_t>(parent + 1)];
      proposal.kind = s.kind;
      if (s.kind != ProposalKind::chosen) proposal.distribution = q;
      for (std::int64_t i = 0; i < s.branch && !q.tokens.empty(); ++i) {
        const std::int32_t token = s.kind == ProposalKind::chosen
                                       ? q.tokens[static_cast<std::size_t>(i) % q.tokens.size()]
                                       : q.tokens[script.branch(q.probabilities)];
        Tokens longer = text;
        longer.push_back(token);
        next.emplace_back(draft.tree.add({.parent = parent, .token = token}), std::move(longer));
        draft.proposals.push_back({});
        if (s.kind == ProposalKind::without_replacement) remove_token(q, token);
      }
    }
    level = std::move(next);
  }
  return draft;
}

// The largest difference between the probability of a text and the target's, over all texts.
double worst_difference(const Setting& s, std::int64_t seed) {
  const Target target(s, seed);
  Draws draws(seed);
  std::map<Tokens, TokenDistribution> known;
  std::map<Tokens, double> found;
  Script script;
  Context context({.threads = 1});
  Acceptor acceptor(s.vocabulary);
  AcceptorChance::set(acceptor,
                      [&](std::int64_t) { return std::make_unique<ScriptChance>(script); });
  do {
    Draft draft = scripted_draft(s, script, known, draws);
    const Tokens ends = {kEnd};
    const auto constraint = target.request.constraint->start();
    mask_draft(draft, {.constraint = constraint.get(),
                       .forbidden = ends,
                       .forbidden_depth = s.min_tokens,
                       .ends = ends,
                       .vocabulary = s.vocabulary});
    std::vector<float> logits = target.logits({});
    for (std::int32_t node = 0; node < draft.tree.size(); ++node) {
      Tokens text;
      for (const std::int32_t step : draft.tree.path(node)) {
        text.push_back(draft.tree[step].token);
      }
      const std::vector<float> row = target.logits(text);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    const DraftedSequence sequence{
        .request = &target.request, .tokens = target.request.prompt, .draft = &draft};
    const Acceptance a =
        acceptor.run(context, make_view(logits.data(), {draft.tree.size() + 1, s.vocabulary}),
                     {&sequence, 1}, AcceptanceRule::rejection)[0];
    Tokens text;
    const auto ended = [&] { return !text.empty() && text.back() == kEnd; };
    for (const std::int32_t token : a.tokens) {
      if (ended() || token < 0) break;
      text.push_back(token);
    }
    // The pass is over; plain decoding completes the text.
    while (!ended() && std::ssize(text) <= s.depth) {
      text.push_back(static_cast<std::int32_t>(script.branch(target.distribution(text))));
      if (script.probability == 0) break;
    }
    if (script.probability > 0) found[text] += script.probability;
  } while (script.next());
  double worst = 0;
  double total = 0;
  for (const auto& [text, probability] : found) {
    double expected = 1;
    for (std::size_t i = 0; i < text.size(); ++i) {
      expected *= target.distribution(
          {text.begin(),
           text.begin() + static_cast<std::ptrdiff_t>(i)})[static_cast<std::size_t>(text[i])];
    }
    worst = std::max(worst, std::abs(expected - probability));
    total += expected;
  }
  return std::max(worst, std::abs(1 - total));
}

TEST(Enumeration, MasksAndPenaltiesTogetherLeaveTheDistribution) {
  std::int64_t seed = 0;
  double worst = 0;
  for (const ProposalKind kind :
       {ProposalKind::chosen, ProposalKind::with_replacement, ProposalKind::without_replacement}) {
    const Setting settings[] = {{8, 1, 1, kind, 0}, {8, 1, 2, kind, 1}, {5, 1, 3, kind, 2},
                                {6, 2, 1, kind, 1}, {4, 3, 1, kind, 2}, {3, 2, 2, kind, 1},
                                {3, 3, 1, kind, 4}};
    for (const Setting& s : settings) {
      for (int trial = 0; trial < 2; ++trial) {
        const double difference = worst_difference(s, ++seed);
        EXPECT_LT(difference, 1e-6) << "seed " << seed;
        worst = std::max(worst, difference);
      }
    }
  }
  EXPECT_LT(worst, 1e-6);
  RecordProperty("worst", std::to_string(worst));
}

// Rows that judge a draft are those of plain decoding after the same tokens: what they forbid, the
// kernel that masks ask for, the position and the history. min_tokens ends inside of every draft.
TEST(Enumeration, RowsOfADraftAreThoseOfPlainDecoding) {
  constexpr std::int64_t kVocabulary = 40;
  SchedulerOptions options{.eos_tokens = {kEnd, 33}};
  Draws draws(4);
  int masked = 0;
  int open = 0;
  for (int trial = 0; trial < 60; ++trial) {
    Request request{.prompt = {3, 4},
                    .sampling = {.temperature = 0.8, .repetition_penalty = 1.2, .seed = trial},
                    .stop = {.max_tokens = 20, .min_tokens = 1 + draws.below(4), .tokens = {7}},
                    .top_log_probabilities = 2};
    if (trial % 4 == 0) request.constraint = std::make_shared<Wheel>(kVocabulary);
    const Continuation start({}, request, 0, options, 100);
    Draft draft{.tree = test::random_draft(draws, {}, kVocabulary, {.max_nodes = 12})};
    start.mask(draft, kVocabulary);
    const DraftedSequence sequence{
        .request = &request, .seed = start.seed(), .tokens = start.tokens(), .draft = &draft};
    VerificationRows rows;
    add_verification_rows(sequence, kVocabulary, rows);
    ASSERT_EQ(std::ssize(rows.rows), draft.tree.size() + 1);
    std::vector<float> logits;
    std::vector<SampledToken> expected;
    Context context({.threads = 1});
    Sampler sampler(kVocabulary);
    for (std::int32_t node = kNoNode; node < draft.tree.size(); ++node) {
      Continuation plain({}, request, 0, options, 100);
      if (node != kNoNode) {
        for (const std::int32_t step : draft.tree.path(node)) {
          plain.take({.token = draft.tree[step].token});
        }
      }
      std::vector<float> row(kVocabulary);
      for (float& value : row) value = static_cast<float>(4 * draws.uniform());
      logits.insert(logits.end(), row.begin(), row.end());
      if (plain.finished()) {  // never drawn from
        expected.push_back({});
        continue;
      }
      const SampleRow plain_row = plain.sample_row();
      const SampleRow& own = rows.rows[static_cast<std::size_t>(node + 1)];
      EXPECT_EQ(Sampler::kind_of(own), Sampler::kind_of(plain_row)) << trial << " node " << node;
      EXPECT_EQ(std::ssize(own.tokens) + own.depth, std::ssize(plain_row.tokens));
      (own.mask.empty() ? open : masked) += 1;
      const SampleRow one[] = {plain_row};
      expected.push_back(sampler.run(context, make_view(row.data(), {1, kVocabulary}), one)[0]);
    }
    const std::vector<SampledToken> found = sampler.run(
        context, make_view(logits.data(), {draft.tree.size() + 1, kVocabulary}), rows.rows);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (expected[i].token < 0) continue;
      EXPECT_EQ(found[i].token, expected[i].token) << trial << " row " << i;
      EXPECT_EQ(found[i].log_probabilities.own, expected[i].log_probabilities.own);
      EXPECT_EQ(found[i].log_probabilities.top, expected[i].log_probabilities.top);
    }
  }
  EXPECT_GT(masked, 60);
  EXPECT_GT(open, 60);
}

}  // namespace
}  // namespace touchstone::decode
