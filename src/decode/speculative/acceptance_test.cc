// Acceptance: which path is taken, and that rejection sampling changes no distribution.
#include "touchstone/decode/acceptance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "decode/speculative/distribution.h"
#include "decode/speculative/rejection.h"
#include "decode/speculative/speculative_test_support.h"
#include "oracle/sample.h"
#include "tests/support/chi_square.h"
#include "touchstone/core/error.h"

namespace touchstone::decode {
namespace {

using test::Draws;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TokenDistribution random_distribution(Draws& draws, std::int64_t vocabulary) {
  TokenDistribution d;
  double sum = 0;
  for (std::int32_t t = 0; t < vocabulary; ++t) {
    if (draws.below(4) == 0) continue;
    d.tokens.push_back(t);
    d.probabilities.push_back(-std::log(draws.uniform()));
    sum += d.probabilities.back();
  }
  if (d.tokens.empty()) return {.tokens = {0}, .probabilities = {1}};
  for (double& p : d.probabilities) p /= sum;
  return d;
}

TEST(TargetDistribution, IsWhatSampleDrawsFrom) {
  Draws draws(1);
  for (int trial = 0; trial < 400; ++trial) {
    const std::int64_t vocabulary = 2 + draws.below(12);
    std::vector<float> logits(static_cast<std::size_t>(vocabulary));
    for (float& logit : logits) logit = static_cast<float>(6 * draws.uniform() - 3);
    SamplingControls c;
    const double greedy = trial % 2 == 0 ? 0 : 1e-46;  // 0 in f32
    c.temperature = draws.below(4) == 0 ? greedy : 0.3 + draws.uniform();
    c.top_k = static_cast<std::int32_t>(draws.below(vocabulary + 2));
    c.top_p = draws.below(2) == 0 ? 1 : draws.uniform();
    c.min_p = draws.below(2) == 0 ? 0 : 0.3 * draws.uniform();
    c.repetition_penalty = draws.below(2) == 0 ? 1 : 1.5;
    c.frequency_penalty = draws.below(2) == 0 ? 0 : 0.5;
    c.presence_penalty = draws.below(2) == 0 ? 0 : 0.25;
    std::vector<std::int32_t> history(static_cast<std::size_t>(draws.below(8)));
    for (std::int32_t& token : history) token = draws.token(vocabulary);
    const std::int64_t prompt = draws.below(std::ssize(history) + 1);
    std::vector<std::int32_t> mask = {draws.below(2) == 0 ? -1 : 0x5555};
    oracle::SampleRow row{.logits = {logits.begin(), logits.end()},
                          .bias = {},
                          .token_mask = {},
                          .history = {history.begin(), history.end()},
                          .prompt_length = prompt,
                          .temperature = static_cast<double>(static_cast<float>(c.temperature)),
                          .top_p = static_cast<double>(static_cast<float>(c.top_p)),
                          .min_p = static_cast<double>(static_cast<float>(c.min_p)),
                          .repetition_penalty = c.repetition_penalty,
                          .frequency_penalty = c.frequency_penalty,
                          .presence_penalty = c.presence_penalty,
                          .top_k = c.top_k};
    for (std::int64_t t = 0; t < vocabulary; ++t) row.token_mask.push_back((mask[0] >> t & 1) != 0);
    const oracle::SampleDistribution expected = oracle::sample_distribution(row);
    const TargetDistribution found = target_distribution({.logits = logits,
                                                          .controls = &c,
                                                          .tokens = history,
                                                          .prompt_length = prompt,
                                                          .mask = mask});
    for (std::int32_t t = 0; t < vocabulary; ++t) {
      ASSERT_NEAR(found.drawn.probability(t), expected.probability[static_cast<std::size_t>(t)],
                  1e-12)
          << trial << " token " << t;
      const double log_p = expected.log_probability[static_cast<std::size_t>(t)];
      if (std::isfinite(log_p)) {
        ASSERT_NEAR(found.log_probability(t), log_p, 1e-9);
      }
    }
  }
}

// ---- Exact enumeration: every draft that can be drawn, every decision, with its probability.

// Scripted decisions that record their probabilities.
class ScriptedChance : public RejectionChance {
 public:
  bool accepts(double share, std::int32_t /*sibling*/) override {
    return branch({share, 1 - share}) == 0;
  }
  std::int32_t draw(const TokenDistribution& residual) override {
    return residual.tokens[branch(residual.probabilities)];
  }
  // The next sequence of decisions; false when all were seen.
  bool next() {
    while (!script_.empty()) {
      if (++script_.back().first < script_.back().second) break;
      script_.pop_back();
    }
    at_ = 0;
    probability = 1;
    return !script_.empty();
  }
  double probability = 1;

  std::size_t branch(const std::vector<double>& weights) {
    if (at_ == script_.size()) script_.emplace_back(0, weights.size());
    const std::size_t choice = script_[at_++].first;
    probability *= weights[choice];
    return choice;
  }

 private:
  std::vector<std::pair<std::size_t, std::size_t>> script_;
  std::size_t at_ = 0;
};

using Rule = RejectionResult (*)(TokenDistribution, const Proposal&, std::span<const std::int32_t>,
                                 RejectionChance&);

// Accepts a child when it equals a sample of the target drawn for it alone: the classical fault.
RejectionResult naive_rule(TokenDistribution target, const Proposal& /*proposal*/,
                           std::span<const std::int32_t> children, RejectionChance& chance) {
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (chance.accepts(target.probability(children[i]), static_cast<std::int32_t>(i))) {
      return {.child = static_cast<std::int32_t>(i), .token = children[i]};
    }
  }
  return {.token = chance.draw(target)};
}

struct Enumeration {
  std::int64_t vocabulary;
  std::int64_t depth;
  std::int64_t branch;
  ProposalKind kind;
};

// p and q after any prefix.
struct Conditionals {
  std::map<std::vector<std::int32_t>, TokenDistribution> target;
  std::map<std::vector<std::int32_t>, TokenDistribution> draft;
};

const TokenDistribution& at_prefix(std::map<std::vector<std::int32_t>, TokenDistribution>& map,
                                   const std::vector<std::int32_t>& prefix, Draws& draws,
                                   std::int64_t vocabulary) {
  const auto found = map.find(prefix);
  if (found != map.end()) return found->second;
  return map.emplace(prefix, random_distribution(draws, vocabulary)).first->second;
}

// The largest difference between the distribution of the first depth + 1 tokens and the target's.
double enumerate(const Enumeration& e, Rule rule, std::int64_t seed) {
  Draws draws(seed);
  Conditionals c;
  std::map<std::vector<std::int32_t>, double> found;
  ScriptedChance chance;
  const auto p = [&](const std::vector<std::int32_t>& prefix) -> const TokenDistribution& {
    return at_prefix(c.target, prefix, draws, e.vocabulary);
  };
  do {
    std::vector<std::int32_t> text;
    // The children of the node that the walk has reached; what it does not reach changes nothing.
    for (std::int64_t depth = 0; std::ssize(text) == depth && depth <= e.depth; ++depth) {
      Proposal proposal{.kind = e.kind};
      std::vector<std::int32_t> children;
      if (depth < e.depth) {
        TokenDistribution q = at_prefix(c.draft, text, draws, e.vocabulary);
        if (e.kind != ProposalKind::chosen) proposal.distribution = q;
        for (std::int64_t i = 0; i < e.branch && !q.tokens.empty(); ++i) {
          // Chosen children are the same ones each time.
          const std::int32_t token = e.kind == ProposalKind::chosen
                                         ? q.tokens[static_cast<std::size_t>(i) % q.tokens.size()]
                                         : q.tokens[chance.branch(q.probabilities)];
          children.push_back(token);
          if (e.kind == ProposalKind::without_replacement) remove_token(q, token);
        }
      }
      const RejectionResult result = rule(p(text), proposal, children, chance);
      text.push_back(result.token);
      if (result.child < 0) break;
    }
    // The pass is over; plain decoding completes the text.
    while (std::ssize(text) <= e.depth) text.push_back(chance.draw(p(text)));
    found[text] += chance.probability;
  } while (chance.next());
  double worst = 0;
  double total = 0;
  for (const auto& [text, probability] : found) {
    double expected = 1;
    for (std::size_t i = 0; i < text.size(); ++i) {
      expected *=
          p({text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i)}).probability(text[i]);
    }
    worst = std::max(worst, std::abs(expected - probability));
    total += expected;
  }
  return std::max(worst, std::abs(1 - total));
}

TEST(Rejection, EveryTextHasTheProbabilityOfTheTarget) {
  double worst = 0;
  double naive = 0;
  for (const ProposalKind kind :
       {ProposalKind::chosen, ProposalKind::with_replacement, ProposalKind::without_replacement}) {
    std::int64_t seed = 0;
    const Enumeration cases[] = {{8, 1, 1, kind}, {8, 1, 2, kind}, {6, 1, 3, kind},
                                 {5, 2, 2, kind}, {8, 2, 1, kind}, {4, 3, 1, kind},
                                 {3, 3, 2, kind}, {2, 3, 3, kind}};
    for (const Enumeration& e : cases) {
      for (int trial = 0; trial < 3; ++trial) {
        worst = std::max(worst, enumerate(e, reject_children, 100 * ++seed));
        naive = std::max(naive, enumerate(e, naive_rule, 100 * seed));
      }
    }
  }
  EXPECT_LE(worst, 1e-6);
  EXPECT_LT(worst, 1e-12);
  EXPECT_GT(naive, 1e-3) << "the same test has to see a wrong rule";
}

// ---- The same through Acceptor, by counting, on a vocabulary of 49152.

TEST(Rejection, ChiSquareOfAMillionDrawsOnARealVocabulary) {
  constexpr std::int64_t kVocabulary = 49152;
  constexpr std::int64_t kDraws = 1'000'000;
  Draws draws(9);
  std::vector<float> logits(kVocabulary);
  std::vector<float> draft_logits(kVocabulary);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(-1.2 * std::log(-std::log(draws.uniform())));
    draft_logits[i] = logits[i] + static_cast<float>(2 * draws.uniform() - 1);
  }
  SamplingControls controls{.temperature = 0.7, .top_k = 200};
  const TokenDistribution p = target_distribution({.logits = logits, .controls = &controls}).drawn;
  const TokenDistribution q =
      target_distribution({.logits = draft_logits, .controls = &controls}).drawn;
  const Proposal proposal{.kind = ProposalKind::without_replacement, .distribution = q};
  std::vector<double> expected(kVocabulary);
  for (std::size_t i = 0; i < p.tokens.size(); ++i) {
    expected[static_cast<std::size_t>(p.tokens[i])] = p.probabilities[i];
  }
  for (const bool planted : {false, true}) {
    std::vector<std::int64_t> found(kVocabulary);
    const std::int64_t count = planted ? kDraws / 5 : kDraws;
    for (std::int64_t i = 0; i < count; ++i) {
      // Every draw is the first position of a request of its own.
      TokenDistribution left = q;
      std::vector<std::int32_t> children;
      for (std::uint32_t k = 0; k < 2; ++k) {
        children.push_back(token_at(left, random_uniform(i, 40, RandomPurpose::draft, k)));
        if (k == 0) remove_token(left, children[0]);
      }
      PositionChance chance(i, 40);
      const RejectionResult result = planted ? naive_rule(p, proposal, children, chance)
                                             : reject_children(p, proposal, children, chance);
      ++found[static_cast<std::size_t>(result.token)];
    }
    const double by_chance = touchstone::test::chi_square_p(found, expected);
    if (planted) {
      EXPECT_LT(by_chance, 1e-12) << "the planted rule must be found";
    } else {
      EXPECT_GT(by_chance, 1e-4);
    }
  }
}

// ---- Paths.

constexpr std::int64_t kTokens = 6;

// Rows of logits of a draft: after the sequence, then after each node; the largest logit is given.
struct Case {
  Draft draft;
  Request request{.prompt = {1}};
  std::vector<std::int32_t> best;  // per row
  std::vector<float> logits() const {
    std::vector<float> values(best.size() * kTokens, 0.0F);
    for (std::size_t i = 0; i < best.size(); ++i) {
      values[i * kTokens + static_cast<std::size_t>(best[i])] = 5;
    }
    return values;
  }
};

Acceptance accept_one(const Case& c, AcceptanceRule rule = AcceptanceRule::target_only) {
  Context context({.threads = 1});
  Acceptor acceptor(kTokens);
  const std::vector<std::int32_t> tokens = {1, 2};
  const DraftedSequence sequence{.request = &c.request, .tokens = tokens, .draft = &c.draft};
  const std::vector<float> logits = c.logits();
  return acceptor.run(context, make_view(logits.data(), {std::ssize(c.best), kTokens}),
                      {&sequence, 1}, rule)[0];
}

Case case_of(std::vector<std::int32_t> tokens, std::vector<std::int32_t> parents,
             std::vector<std::int32_t> best) {
  Case c;
  c.draft.tree = TokenTree::from_parents(tokens, parents, kTokens, 100);
  c.best = std::move(best);
  return c;
}

TEST(Acceptance, TheParentsLogitsJudge) {
  for (const AcceptanceRule rule :
       {AcceptanceRule::greedy, AcceptanceRule::target_only, AcceptanceRule::rejection}) {
    // A chain, accepted as a whole, with a bonus.
    Acceptance a = accept_one(case_of({3, 4}, {-1, 0}, {3, 4, 5}), rule);
    EXPECT_THAT(a.nodes, ElementsAre(0, 1));
    EXPECT_THAT(a.tokens, ElementsAre(3, 4, 5));
    // A wrong root whose child would match: nothing is accepted.
    a = accept_one(case_of({2, 4}, {-1, 0}, {3, 4, 4}), rule);
    EXPECT_TRUE(a.nodes.empty());
    EXPECT_THAT(a.tokens, ElementsAre(3));
    EXPECT_EQ(a.verdicts[0].state, NodeState::rejected);
    EXPECT_EQ(a.verdicts[0].target_token, 3);
    EXPECT_EQ(a.verdicts[1].state, NodeState::skipped);
    // The second sibling, and its child by its own row: not by the row of that depth.
    a = accept_one(case_of({2, 3, 4, 5}, {-1, -1, 0, 1}, {3, 4, 5, 1, 0}), rule);
    EXPECT_THAT(a.nodes, ElementsAre(1, 3));
    EXPECT_THAT(a.tokens, ElementsAre(3, 5, 0));
    // Siblings in the other order.
    a = accept_one(case_of({3, 2, 5, 4}, {-1, -1, 0, 1}, {3, 5, 4, 0, 1}), rule);
    EXPECT_THAT(a.nodes, ElementsAre(0, 2));
    EXPECT_THAT(a.tokens, ElementsAre(3, 5, 0));
    // No draft.
    a = accept_one(case_of({}, {}, {4}), rule);
    EXPECT_THAT(a.tokens, ElementsAre(4));
  }
  // Siblings with the same token: the branch that goes on.
  const Acceptance a = accept_one(case_of({3, 3, 2, 5}, {-1, -1, 0, 1}, {3, 5, 5, 0, 1}));
  EXPECT_THAT(a.nodes, ElementsAre(1, 3));
  EXPECT_THAT(a.tokens, ElementsAre(3, 5, 1));
}

// Tokens per pass: the longest path that agrees with the target, and one.
TEST(Acceptance, TakesTheLongestMatchingPathOfRandomTrees) {
  Context context({.threads = 1});
  Acceptor acceptor(5);
  Draws draws(17);
  std::int64_t accepted = 0;
  for (int trial = 0; trial < 10000; ++trial) {
    std::vector<std::int32_t> future(4);
    for (std::int32_t& token : future) token = draws.token(5);
    Draft draft{.tree = test::random_draft(draws, future, 5, {.max_nodes = 12})};
    Request request{.prompt = {1}};
    const std::vector<std::int32_t> tokens = {1, 2, 3};
    // Rows with the same tokens on their path have the same logits.
    std::map<std::vector<std::int32_t>, std::int32_t> best;
    std::vector<float> logits(static_cast<std::size_t>(draft.tree.size() + 1) * 5, 0.0F);
    const auto target = [&](const std::vector<std::int32_t>& path) {
      // The given future along its path, anything elsewhere.
      const auto [found, added] = best.try_emplace(path, draws.token(5));
      if (added && path.size() < future.size() &&
          std::equal(path.begin(), path.end(), future.begin())) {
        found->second = future[path.size()];
      }
      return found->second;
    };
    std::size_t longest = 0;
    for (std::int32_t row = 0; row <= draft.tree.size(); ++row) {
      const std::vector<std::int32_t> path = draft.tree.path_tokens(row - 1);
      logits[static_cast<std::size_t>(row * 5 + target(path))] = 3;
    }
    for (std::int32_t node = 0; node < draft.tree.size(); ++node) {
      const std::vector<std::int32_t> path = draft.tree.path_tokens(node);
      bool matches = true;
      for (std::size_t i = 0; i < path.size(); ++i) {
        matches &= target({path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i)}) == path[i];
      }
      if (matches) longest = std::max(longest, path.size());
    }
    const DraftedSequence sequence{.request = &request, .tokens = tokens, .draft = &draft};
    const Acceptance a = acceptor.run(context, make_view(logits.data(), {draft.tree.size() + 1, 5}),
                                      {&sequence, 1})[0];
    ASSERT_EQ(a.tokens.size(), longest + 1);
    ASSERT_EQ(a.nodes.size(), longest);
    accepted += std::ssize(a.nodes);
  }
  EXPECT_GT(accepted, 5000);
}

TEST(Acceptance, DoesNotDependOnTheBatch) {
  Context context({.threads = 2});
  constexpr std::int64_t kVocabulary = 50;
  Acceptor acceptor(kVocabulary);
  Draws draws(23);
  for (const AcceptanceRule rule : {AcceptanceRule::target_only, AcceptanceRule::rejection}) {
    std::vector<Request> requests(32);
    std::vector<Draft> drafts(32);
    std::vector<std::vector<std::int32_t>> tokens(32);
    std::vector<DraftedSequence> sequences;
    std::vector<float> logits;
    for (std::size_t i = 0; i < 32; ++i) {
      requests[i].prompt = {1};
      requests[i].sampling = {.temperature = 0.7,
                              .top_p = 0.9,
                              .repetition_penalty = i % 2 == 0 ? 1.2 : 1.0,
                              .frequency_penalty = i % 3 == 0 ? 0.4 : 0.0};
      requests[i].top_log_probabilities = 2;
      tokens[i].resize(1 + i);
      for (std::int32_t& token : tokens[i]) token = draws.token(kVocabulary);
      drafts[i].tree = test::random_draft(draws, {}, 5, {.max_nodes = 8});
      for (std::int64_t j = 0; j < (drafts[i].tree.size() + 1) * kVocabulary; ++j) {
        logits.push_back(static_cast<float>(3 * draws.uniform() + (j % kVocabulary < 5 ? 3 : 0)));
      }
      sequences.push_back({.request = &requests[i],
                           .seed = static_cast<std::int64_t>(i),
                           .tokens = tokens[i],
                           .draft = &drafts[i]});
    }
    const std::int64_t rows = std::ssize(logits) / kVocabulary;
    const std::vector<Acceptance> all =
        acceptor.run(context, make_view(logits.data(), {rows, kVocabulary}), sequences, rule);
    std::int64_t first = 0;
    std::int64_t accepted = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      const std::int64_t count = drafts[i].tree.size() + 1;
      const Acceptance alone = acceptor.run(
          context, make_view(logits.data() + first * kVocabulary, {count, kVocabulary}),
          std::span(sequences).subspan(i, 1), rule)[0];
      EXPECT_EQ(alone.tokens, all[i].tokens);
      EXPECT_EQ(alone.nodes, all[i].nodes);
      for (std::size_t t = 0; t < alone.tokens.size(); ++t) {
        EXPECT_EQ(alone.log_probabilities[t].own, all[i].log_probabilities[t].own);
        EXPECT_EQ(alone.log_probabilities[t].top, all[i].log_probabilities[t].top);
      }
      first += count;
      accepted += std::ssize(alone.nodes);
    }
    EXPECT_GT(accepted, 5);
  }
}

TEST(Acceptance, ReportsNanAndRefuses) {
  Case c = case_of({3}, {-1}, {3, 4});
  Context context({.threads = 1});
  Acceptor acceptor(kTokens);
  const std::vector<std::int32_t> tokens = {1, 2};
  DraftedSequence sequence{.request = &c.request, .tokens = tokens, .draft = &c.draft};
  std::vector<float> logits = c.logits();
  logits[kTokens] = std::numeric_limits<float>::quiet_NaN();
  for (const AcceptanceRule rule : {AcceptanceRule::target_only, AcceptanceRule::rejection}) {
    const Acceptance a =
        acceptor.run(context, make_view(logits.data(), {2, kTokens}), {&sequence, 1}, rule)[0];
    EXPECT_THAT(a.tokens, ElementsAre(3, -1));
    EXPECT_TRUE(a.nan);
  }
  EXPECT_THAT(
      [&] {
        acceptor.run(context, make_view(logits.data(), {1, kTokens}), {&sequence, 1});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("shape [2, 6]")));
  c.request.sampling.temperature = 1;
  EXPECT_THAT(
      [&] {
        acceptor.run(context, make_view(logits.data(), {2, kTokens}), {&sequence, 1},
                     AcceptanceRule::greedy);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("greedy takes temperature 0, got 1")));
  c.request.sampling.temperature = 1e39;
  EXPECT_THAT(
      [&] {
        acceptor.run(context, make_view(logits.data(), {2, kTokens}), {&sequence, 1});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("temperature")));
  c.request.sampling.temperature = 1;
  c.draft.tree.add({.token = 6});
  EXPECT_THAT(
      [&] {
        acceptor.run(context, make_view(logits.data(), {3, kTokens}), {&sequence, 1});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("token 6 is outside")));
  EXPECT_EQ(parse_acceptance_rule("rejection"), AcceptanceRule::rejection);
  EXPECT_THROW(parse_acceptance_rule("typical"), InvalidArgument);
}

TEST(Acceptance, TraceShowsTheTree) {
  const Case c = case_of({2, 3, 4, 5}, {-1, -1, 0, 1}, {3, 4, 5, 1, 0});
  const std::string trace = format_trace(c.draft.tree, accept_one(c), [](std::int32_t token) {
    return std::string(1, static_cast<char>('a' + token));
  });
  EXPECT_THAT(trace, HasSubstr("- 0 2 'c' log q 0.00 source 0, rejected: target 3 'd' log p"));
  EXPECT_THAT(trace, HasSubstr("    2 4 'e' log q 0.00 source 0, skipped"));
  EXPECT_THAT(trace, HasSubstr("+   3 5 'f' log q 0.00 source 0, accepted: target 5 'f'"));
  EXPECT_THAT(trace, HasSubstr("= 2 accepted, then 0 'a'"));
}

// What is outside of the vocabulary would be written outside of the mask.
TEST(Acceptance, MasksAndTracesRefuseWhatDoesNotFit) {
  for (const std::int32_t token : {-1, 40, 1 << 30}) {
    const std::vector<std::int32_t> forbidden = {3, token};
    Draft draft;
    EXPECT_THROW(
        mask_draft(draft, {.forbidden = forbidden, .forbidden_depth = 1, .vocabulary = 40}),
        InvalidArgument);
    EXPECT_TRUE(draft.token_masks.empty());
    draft.tree.add({.token = token});
    EXPECT_THROW(mask_draft(draft, {.vocabulary = 40}), InvalidArgument);
  }
  TokenTree tree;
  tree.add({});
  EXPECT_THROW(format_trace(tree, {}, [](std::int32_t) { return std::string(); }), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::decode
