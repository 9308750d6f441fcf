// Builders of drafts, and what is refused.
#include "touchstone/decode/draft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "decode/speculative/speculative_test_support.h"
#include "touchstone/core/error.h"

namespace touchstone::decode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::int32_t> tokens_of(const TokenTree& tree) {
  std::vector<std::int32_t> tokens;
  for (const TreeNode& node : tree.nodes()) tokens.push_back(node.token);
  return tokens;
}

std::vector<std::int32_t> parents_of(const TokenTree& tree) {
  std::vector<std::int32_t> parents;
  for (const TreeNode& node : tree.nodes()) parents.push_back(node.parent);
  return parents;
}

// Node 0 is the best root, 1 its best child, and so on: what keep() finds in place.
void expect_likeliest_first(const TokenTree& tree) {
  std::int32_t node = kNoNode;
  std::int32_t expected = 0;
  while (true) {
    std::int32_t best = kNoNode;
    std::int32_t child = node == kNoNode ? tree.first_root() : tree[node].first_child;
    for (; child != kNoNode; child = tree[child].next_sibling) {
      if (best == kNoNode || tree[child].path_log_probability > tree[best].path_log_probability) {
        best = child;
      }
    }
    if (best == kNoNode) return;
    EXPECT_EQ(best, expected++);
    node = best;
  }
}

TEST(Draft, ChainIsCutByItsLimits) {
  const std::vector<std::int32_t> tokens = {4, 5, 6};
  EXPECT_THAT(tokens_of(chain_tree({.tokens = tokens})), ElementsAre(4, 5, 6));
  EXPECT_THAT(parents_of(chain_tree({.tokens = tokens})), ElementsAre(-1, 0, 1));
  EXPECT_EQ(chain_tree({.tokens = tokens}, {.max_nodes = 2}).size(), 2);
  EXPECT_EQ(chain_tree({.tokens = tokens}, {.max_depth = 1}).size(), 1);
  EXPECT_TRUE(chain_tree({}).empty());
  const std::vector<float> one = {-1};
  EXPECT_THROW(chain_tree({.tokens = tokens, .log_probabilities = one}), InvalidArgument);
}

// Against all paths, sorted: the best N are what the builder takes.
TEST(Draft, BestFirstTakesTheLikeliestPaths) {
  test::Draws draws(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::vector<TokenCandidate>> positions(
        static_cast<std::size_t>(1 + draws.below(4)));
    for (auto& candidates : positions) {
      const std::int64_t count = 1 + draws.below(4);
      for (std::int32_t t = 0; t < count; ++t) {
        candidates.push_back({t, static_cast<float>(std::log(0.02 + 0.98 * draws.uniform()))});
      }
    }
    const std::int64_t budget = 1 + draws.below(12);
    std::vector<double> all;
    std::vector<double> level = {0};
    for (const auto& candidates : positions) {
      std::vector<double> next;
      for (const double path : level) {
        for (const TokenCandidate& c : candidates) {
          next.push_back(path + static_cast<double>(c.log_probability));
        }
      }
      all.insert(all.end(), next.begin(), next.end());
      level = next;
    }
    std::ranges::sort(all, std::greater<>());
    all.resize(std::min(all.size(), static_cast<std::size_t>(budget)));
    const TokenTree tree = best_first_tree(positions, {.max_nodes = budget});
    std::vector<double> found;
    for (const TreeNode& node : tree.nodes()) found.push_back(node.path_log_probability);
    std::ranges::sort(found, std::greater<>());
    ASSERT_EQ(found.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(found[i], all[i], 1e-6);
    expect_likeliest_first(tree);
  }
}

TEST(Draft, BeamTreeExpandsTheLikeliestNodesOfALevel) {
  std::vector<std::size_t> asked;
  const ExpandNodes expand = [&](const TokenTree& tree, std::span<const std::int32_t> nodes) {
    asked.push_back(nodes.size());
    std::vector<std::vector<TokenCandidate>> found;
    for (const std::int32_t node : nodes) {
      const auto base = node == kNoNode ? 0 : tree[node].token * 10;
      found.push_back({{base + 1, -0.9F}, {base + 2, -0.6F}, {base + 3, -3.0F}});
    }
    return found;
  };
  const TokenTree tree =
      beam_tree({.width = 2, .branch = 2}, expand, {.max_nodes = 5, .max_depth = 3});
  EXPECT_THAT(asked, ElementsAre(1U, 2U, 2U));
  EXPECT_THAT(tokens_of(tree), ElementsAre(2, 22, 21, 1, 12));
  expect_likeliest_first(tree);
  asked.clear();
  EXPECT_TRUE(beam_tree({}, expand, {.max_nodes = 0, .max_depth = 3}).empty());
  EXPECT_TRUE(asked.empty());
}

TEST(Draft, MergeFoldsDuplicates) {
  TokenTree a;
  a.add({.token = 1, .log_probability = -0.5F, .source = 7});
  a.add({.parent = 0, .token = 2, .log_probability = -0.5F, .source = 7});
  TokenTree b;
  b.add({.token = 9, .log_probability = -2, .source = 8});
  b.add({.token = 1, .log_probability = -0.1F, .source = 8});
  b.add({.parent = 1, .token = 3, .log_probability = -0.2F, .source = 8});
  b.add({.parent = 1, .token = 2, .log_probability = -3, .source = 8});
  const TokenTree* const trees[] = {&a, &b};
  const TokenTree merged = merge_trees(trees, {});
  EXPECT_THAT(tokens_of(merged), ElementsAre(1, 3, 2, 9));
  EXPECT_THAT(parents_of(merged), ElementsAre(-1, 0, 0, -1));
  EXPECT_EQ(merged[0].source, 8);
  EXPECT_EQ(merged[2].source, 7) << "the likelier of the two";
  EXPECT_EQ(merge_trees(trees, {.max_nodes = 2}).size(), 2);
  EXPECT_TRUE(merge_trees({}, {}).empty());
}

TEST(Draft, RandomTreesKeepTheirPathsWhenTrimmed) {
  test::Draws draws(5);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<std::int32_t> future = {1, 2, 3, 1};
    const TokenTree tree = test::random_draft(draws, future, 4, {});
    const std::int64_t budget = draws.below(17);
    const TokenTree trimmed = trim_tree(tree, {.max_nodes = budget, .max_depth = 3});
    EXPECT_LE(trimmed.size(), budget);
    EXPECT_LE(trimmed.max_depth(), 3);
    expect_likeliest_first(trimmed);
    std::multiset<std::vector<std::int32_t>> paths;
    for (std::int32_t i = 0; i < tree.size(); ++i) paths.insert(tree.path_tokens(i));
    for (std::int32_t i = 0; i < trimmed.size(); ++i) {
      const auto found = paths.find(trimmed.path_tokens(i));
      ASSERT_NE(found, paths.end());
      paths.erase(found);
    }
    const TokenTree folded = merge_trees(std::vector<const TokenTree*>{&tree}, {});
    std::set<std::vector<std::int32_t>> distinct;
    for (std::int32_t i = 0; i < tree.size(); ++i) distinct.insert(tree.path_tokens(i));
    EXPECT_EQ(folded.size(), std::ssize(distinct));
  }
}

TEST(Draft, Refuses) {
  const auto refused = [](const Draft& draft, const DraftLimits& limits, const char* message) {
    EXPECT_THAT([&] { check_draft(draft, 10, limits); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  const std::vector<std::int32_t> chain = {1, 2, 3};
  refused({.tree = chain_tree({.tokens = chain})}, {.max_nodes = 2},
          "3 nodes exceed the budget of 2");
  refused({.tree = chain_tree({.tokens = chain})}, {.max_depth = 2},
          "node 2: depth 3 exceeds the limit of 2");
  const std::vector<std::int32_t> outside = {1, 10};
  refused({.tree = chain_tree({.tokens = outside})}, {}, "node 1: token 10 is outside [0, 10)");
  const std::vector<std::int32_t> negative = {-1};
  refused({.tree = chain_tree({.tokens = negative})}, {}, "node 0: token -1");
  Draft nan;
  nan.tree.add({.token = 1, .log_probability = std::numeric_limits<float>::quiet_NaN()});
  refused(nan, {}, "expected a log-probability of at most 0");
  refused({.tree = chain_tree({.tokens = chain}), .proposals = {{}}}, {}, "proposals");
  refused({.tree = chain_tree({.tokens = chain}), .token_masks = {1}}, {}, "token_masks");
  const std::vector<std::int32_t> tokens = {1, 2};
  EXPECT_THAT(
      [&] {
        TokenTree::from_parents(tokens, std::vector<std::int32_t>{1, 0}, 10, 8);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("node 0: parent 1 is not an earlier node")));
}

}  // namespace
}  // namespace touchstone::decode
