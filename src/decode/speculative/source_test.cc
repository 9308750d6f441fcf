// Sources of drafts, the suffix automaton, the controller.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "decode/speculative/controller.h"
#include "decode/speculative/speculative_test_support.h"
#include "decode/speculative/suffix_automaton.h"
#include "oracle/path_scorer.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/draft_source.h"

namespace touchstone::decode {
namespace {

using test::Draws;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Tokens = std::vector<std::int32_t>;

// Occurrences of a substring in texts.
std::int64_t occurrences(const std::vector<Tokens>& texts, std::span<const std::int32_t> part) {
  std::int64_t count = 0;
  for (const Tokens& text : texts) {
    for (std::size_t i = 0; i + part.size() <= text.size(); ++i) {
      count += std::equal(part.begin(), part.end(), text.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return count;
}

TEST(SuffixAutomaton, KnowsEverySubstringAndHowOftenItOccurs) {
  Draws draws(2);
  for (int trial = 0; trial < 60; ++trial) {
    SuffixAutomaton automaton;
    std::vector<Tokens> texts(static_cast<std::size_t>(1 + draws.below(3)));
    const std::int64_t alphabet = 1 + draws.below(4);
    for (Tokens& text : texts) {
      text.resize(static_cast<std::size_t>(1 + draws.below(25)));
      for (std::int32_t& token : text) token = draws.token(alphabet);
      for (const std::int32_t token : text) automaton.extend(token);
      automaton.end_text();
    }
    for (int probe = 0; probe < 200; ++probe) {
      Tokens part(static_cast<std::size_t>(1 + draws.below(6)));
      for (std::int32_t& token : part) token = draws.token(alphabet);
      std::int32_t state = SuffixAutomaton::kRoot;
      for (const std::int32_t token : part) {
        if (state != SuffixAutomaton::kNone) state = automaton.next(state, token);
      }
      const std::int64_t count = state == SuffixAutomaton::kNone ? 0 : automaton.count(state);
      ASSERT_EQ(count, occurrences(texts, part)) << trial;
    }
  }
}

TEST(SuffixAutomaton, FindsTheLongestEndThatStoodBefore) {
  Draws draws(4);
  SuffixAutomaton automaton;
  Tokens text;
  for (int i = 0; i < 300; ++i) {
    text.push_back(draws.token(3));
    automaton.extend(text.back());
    std::int64_t longest = 0;
    for (std::size_t n = 1; n < text.size(); ++n) {
      if (occurrences({text}, std::span(text).last(n)) < 2) break;
      longest = static_cast<std::int64_t>(n);
    }
    ASSERT_EQ(automaton.length(automaton.repeated()), longest);
  }
}

TokenTree ask(DraftSource& source, const Tokens& tokens, std::int64_t nodes = 8,
              std::int64_t id = 1) {
  Context context({.threads = 1});
  SamplingControls controls;
  DraftRequest request{.id = id,
                       .tokens = tokens,
                       .controls = &controls,
                       .limits = {.max_nodes = nodes, .max_depth = 6}};
  source.draft(context, {&request, 1});
  check_draft(request.draft, 1000, request.limits);
  return request.draft.tree;
}

TEST(PromptLookup, ContinuesTheMostRecentLongestMatch) {
  const auto source = prompt_lookup_source({});
  EXPECT_THAT(ask(*source, {1, 2, 3, 9, 1, 2, 4, 8, 1, 2}).path_tokens(3), ElementsAre(4, 8, 1, 2));
  // Three tokens match at the first place, two at the later one.
  EXPECT_EQ(ask(*source, {7, 1, 2, 5, 0, 1, 2, 6, 7, 1, 2})[0].token, 5);
  EXPECT_TRUE(ask(*source, {1, 2, 3}).empty());
  EXPECT_THROW(prompt_lookup_source({.max_match = 1}), InvalidArgument);
}

TEST(Ngram, DraftsATreeByCounts) {
  const auto source = ngram_source({.min_probability = 0.01});
  const TokenTree tree = ask(*source, {1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 4, 1, 2});
  ASSERT_FALSE(tree.empty());
  EXPECT_EQ(tree[0].token, 3) << "twice, 4 only once";
  EXPECT_NE(tree.find_child(kNoNode, 4), kNoNode);
  // The table is bounded, and the sequence goes on.
  const auto small = ngram_source({.max_contexts = 16});
  Tokens tokens;
  Draws draws(8);
  for (int i = 0; i < 500; ++i) tokens.push_back(draws.token(4));
  ask(*small, tokens);
  EXPECT_THROW(ngram_source({.max_match = 1}), InvalidArgument);
}

TEST(Suffix, DraftsFromTheSequenceAndACorpus) {
  auto corpus = std::make_shared<SuffixCorpus>();
  corpus->add(Tokens{50, 51, 52, 53, 54});
  corpus->add(Tokens{51, 52, 60});
  const auto source = suffix_source({.corpus = corpus, .min_probability = 0.01});
  const TokenTree found = ask(*source, {1, 51, 52});
  EXPECT_NE(found.find_child(kNoNode, 53), kNoNode);
  EXPECT_NE(found.find_child(kNoNode, 60), kNoNode);
  EXPECT_EQ(found[0].source, 1);
  const TokenTree own = ask(*source, {7, 8, 9, 10, 7, 8}, 8, 2);
  EXPECT_THAT(own.path_tokens(3), ElementsAre(9, 10, 7, 8));
  EXPECT_TRUE(ask(*source, {3, 4, 5}, 8, 3).empty());
  // Both at once: one tree, no token twice.
  const TokenTree both = ask(*source, {51, 52, 53, 99, 51, 52}, 8, 4);
  EXPECT_EQ(both[0].token, 53);
  EXPECT_NE(both.find_child(kNoNode, 60), kNoNode);
}

TEST(Suffix, MemoryIsBoundedAndLearningSurvivesIt) {
  auto corpus = std::make_shared<SuffixCorpus>(200);
  const auto source = suffix_source({.corpus = corpus, .learn = true, .max_tokens = 64});
  Draws draws(6);
  for (std::int64_t id = 0; id < 20; ++id) {
    Tokens tokens;
    for (int i = 0; i < 150; ++i) {
      tokens.push_back(draws.token(5));
      if (i % 10 == 0) ask(*source, tokens, 8, id);
    }
    source->forget(id);
    EXPECT_LE(corpus->tokens(), 200);
  }
  EXPECT_LT(corpus->bytes(), 200 * 400);
  // What ended last is known.
  const Tokens last = {900, 901, 902, 903};
  ask(*source, last, 8, 77);
  source->forget(77);
  EXPECT_EQ(ask(*source, {5, 900, 901}, 8, 78)[0].token, 902);
  EXPECT_THROW(SuffixCorpus(0), InvalidArgument);
  EXPECT_THROW(suffix_source({.min_match = 0}), InvalidArgument);
}

TEST(ModelSource, ChainsAreTheGreedyTextOfTheModel) {
  oracle::TableScorer model(30, 200, oracle::hashed_table(3, 4));
  const auto source = model_source(model, 30);
  Context context({.threads = 1});
  Tokens tokens = {1, 2, 3};
  const auto greedy = [&](Tokens path, int count) {
    Tokens more;
    for (int i = 0; i < count; ++i) {
      std::vector<double> logits(30);
      oracle::hashed_table(3, 4)(path, logits);
      path.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
      more.push_back(path.back());
    }
    return more;
  };
  for (int round = 0; round < 4; ++round) {
    const TokenTree tree = ask(*source, tokens, 5);
    ASSERT_EQ(tree.size(), 5);
    EXPECT_EQ(tree.path_tokens(4), greedy(tokens, 5));
    // The target takes two of them and one that the model did not expect.
    tokens.push_back(tree[0].token);
    tokens.push_back(tree[1].token);
    tokens.push_back((tree[2].token + 1) % 30);
  }
  const auto wide = model_source(model, 30, {.width = 3, .branch = 2});
  const TokenTree tree = ask(*wide, tokens, 12, 9);
  EXPECT_GE(tree.size(), 8);
  EXPECT_EQ(tree[0].token, greedy(tokens, 1)[0]);
  for (std::int32_t node = 0; node < tree.size(); ++node) {
    Tokens path = tokens;
    const Tokens before = tree.path_tokens(tree[node].parent);
    path.insert(path.end(), before.begin(), before.end());
    std::vector<double> logits(30);
    oracle::hashed_table(3, 4)(path, logits);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    EXPECT_NEAR(tree[node].log_probability,
                logits[static_cast<std::size_t>(tree[node].token)] - std::log(sum), 1e-4);
  }
  wide->forget(9);
  EXPECT_THAT([&] { model_source(model, 31); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("expected the vocabulary of the target, 31 tokens, got 30")));
}

// ---- The controller, with times that are made up.

struct World {
  double row_cost = 0.1;  // of a plain step, per node
  double draft_cost = 0;
  double observe_cost = 0;  // per token
  double acceptance = 0.5;  // of a node whose parent was accepted
  double claim = 0.8;       // what the source says
  double decay = 0;         // of acceptance per token
  std::int32_t drafted = 8;
  // From so many nodes on a pass takes this many plain steps, and 2 % of one per node.
  std::int64_t wide_from = 1000;
  double wide_cost = 0;
  std::int64_t seed = 31;

  double seconds(std::int64_t nodes) const {
    const auto n = static_cast<double>(nodes);
    return nodes < wide_from ? 1 + row_cost * n : wide_cost + 0.02 * n;
  }
};

struct Outcome {
  double speed = 0;        // against plain decoding
  double last_tokens = 0;  // per pass, of the last 200 steps
  double nodes = 0;
  std::string report;
};

Outcome simulate(const World& world, int steps) {
  SpeculationController controller;
  Draws draws(world.seed);
  TokenTree chain;
  for (std::int32_t i = 0; i < world.drafted; ++i) {
    chain.add({.parent = i - 1,
               .token = 1,
               .log_probability = static_cast<float>(std::log(world.claim))});
  }
  double time = 0;
  std::int64_t tokens = 0;
  std::int64_t late = 0;
  std::int64_t nodes = 0;
  bool observed = true;  // every token so far: else there is nothing to draft from
  for (int step = 0; step < steps; ++step) {
    MeasuredStep measured{.sequences = 1};
    measured.drafted = controller.should_draft(1);
    std::int64_t accepted = 0;
    observed = observed && controller.should_observe(1);
    if (measured.drafted && observed) {
      measured.source_seconds = world.draft_cost;
      const TokenTree* const drafts[] = {&chain};
      measured.nodes = controller.choose(drafts, 1)[0];
      const double rate =
          std::max(0.0, world.acceptance - world.decay * static_cast<double>(tokens));
      while (accepted < measured.nodes && draws.uniform() < rate) ++accepted;
      for (std::int32_t i = 0; i < measured.nodes; ++i) {
        controller.note_node(chain[i].path_log_probability, i < accepted);
      }
    }
    measured.tokens = accepted + 1;
    if (observed) {
      measured.source_seconds += world.observe_cost * static_cast<double>(measured.tokens);
    }
    // 3 % of noise.
    measured.seconds =
        measured.source_seconds + world.seconds(measured.nodes) * (1 + 0.03 * draws.uniform());
    controller.note_step(measured);
    time += measured.seconds;
    tokens += measured.tokens;
    nodes += measured.nodes;
    if (step >= steps - 200) late += measured.tokens;
  }
  return {.speed = static_cast<double>(tokens) * 1.015 / time,
          .last_tokens = static_cast<double>(late) / 200,
          .nodes = static_cast<double>(nodes) / steps,
          .report = controller.report()};
}

TEST(Controller, IsNeverMuchSlowerThanPlainDecoding) {
  for (const double acceptance : {0.0, 0.05, 0.2}) {
    for (const double row_cost : {0.05, 0.3, 1.0}) {
      for (const double draft_cost : {0.0, 0.02, 0.5}) {
        const Outcome o = simulate(
            {.row_cost = row_cost, .draft_cost = draft_cost, .acceptance = acceptance}, 1000);
        EXPECT_GE(o.speed, 0.98) << acceptance << " " << row_cost << " " << draft_cost;
      }
    }
  }
  const Outcome hopeless = simulate({.row_cost = 1, .acceptance = 0}, 1000);
  EXPECT_THAT(hopeless.report, testing::AnyOf(HasSubstr("stopped"), HasSubstr("not speculating")));
  EXPECT_LT(hopeless.nodes, 0.3);
}

// Short texts, too: what a pass costs is found out in steps that a few hundred tokens can pay for.
TEST(Controller, MeasuringCostsLittleOfAShortText) {
  for (const double row_cost : {0.1, 0.3, 1.0}) {
    for (const double draft_cost : {0.0, 0.01}) {
      for (const double acceptance : {0.0, 0.1}) {
        const Outcome o = simulate(
            {.row_cost = row_cost, .draft_cost = draft_cost, .acceptance = acceptance}, 128);
        EXPECT_GE(o.speed, 0.98) << row_cost << " " << draft_cost << " " << acceptance;
      }
    }
  }
}

// Observing is paid for in every step, with drafts or without.
TEST(Controller, ObservingIsWithinTheLossToo) {
  for (const double observe_cost : {0.005, 0.03, 0.1, 0.5}) {
    for (const double acceptance : {0.0, 0.2}) {
      for (const int steps : {128, 1000}) {
        const Outcome o = simulate(
            {.row_cost = 0.3, .observe_cost = observe_cost, .acceptance = acceptance}, steps);
        EXPECT_GE(o.speed, 0.98) << observe_cost << " " << acceptance << " " << steps;
      }
    }
  }
  // A good draft pays for it.
  const Outcome good = simulate({.row_cost = 0.02, .observe_cost = 0.05, .acceptance = 0.9}, 600);
  EXPECT_GT(good.speed, 3);
  // And is not given up where its first drafts happen to be rejected.
  for (std::int64_t seed = 0; seed < 40; ++seed) {
    const Outcome unlucky = simulate({.row_cost = 0.05,
                                      .draft_cost = 0.4,
                                      .observe_cost = 0.002,
                                      .acceptance = 0.7,
                                      .seed = seed},
                                     400);
    EXPECT_GT(unlucky.speed, 1.2) << seed;
  }
}

TEST(Controller, FindsWhatPays) {
  // 8 nodes at 2 % each, 90 % accepted: 6.1 tokens per pass at 1.16 of the time.
  const Outcome good = simulate({.row_cost = 0.02, .acceptance = 0.9}, 600);
  EXPECT_GT(good.speed, 4);
  EXPECT_THAT(good.report, HasSubstr("speculating: drafts give"));
  // A row costs a third: two or three nodes are best.
  const Outcome costly = simulate({.row_cost = 0.3, .acceptance = 0.8}, 600);
  EXPECT_GT(costly.speed, 1.2);
  EXPECT_LT(costly.nodes, 5);
  // Copied text of 200 tokens and less: eight nodes, all right, are 2.6 tokens per plain step, and
  // the way up to them is short.
  const Outcome copied = simulate({.row_cost = 0.3, .acceptance = 1}, 60);
  EXPECT_GT(copied.speed, 2.2);
  EXPECT_GT(simulate({.row_cost = 0.02, .acceptance = 1}, 60).speed, 5);
  // A jump, as where another kernel takes over: 5 tokens at 3.1 of the time are worse than 3 at
  // 1.6, and 33 at 3.6 far better than either.
  const World kernels{
      .row_cost = 0.3, .acceptance = 1, .drafted = 32, .wide_from = 4, .wide_cost = 3};
  EXPECT_GT(simulate(kernels, 60).speed, 4);
}

TEST(Controller, FollowsTheDecayOfAcceptance) {
  const Outcome o = simulate({.row_cost = 0.25, .acceptance = 0.9, .decay = 0.002}, 3000);
  EXPECT_GE(o.speed, 0.98);
  EXPECT_LT(o.last_tokens, 1.1);
  EXPECT_THAT(o.report, testing::AnyOf(HasSubstr("stopped"), HasSubstr("not speculating")));
}

}  // namespace
}  // namespace touchstone::decode
