#include "touchstone/decode/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "touchstone/core/error.h"

namespace touchstone::decode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// The tree that the header draws: a(b, c), d.
TokenTree drawn_tree() {
  return TokenTree::from_parents(std::vector<std::int32_t>{10, 11, 12, 13},
                                 std::vector<std::int32_t>{-1, 0, 0, -1}, 20, 4);
}

TEST(TokenTree, DepthsPathsAndPositions) {
  const TokenTree tree = drawn_tree();
  EXPECT_EQ(tree.size(), 4);
  EXPECT_EQ(tree.max_depth(), 2);
  EXPECT_THAT(tree.path(2), ElementsAre(0, 2));
  EXPECT_THAT(tree.path_tokens(2), ElementsAre(10, 12));
  EXPECT_TRUE(tree.path(kNoNode).empty());
  // Siblings share a position, whatever their index.
  EXPECT_THAT(tree.positions(3), ElementsAre(3, 4, 4, 3));
  EXPECT_EQ(tree.first_root(), 0);
  EXPECT_EQ(tree[0].next_sibling, 3);
  EXPECT_EQ(tree[0].first_child, 1);
  EXPECT_EQ(tree[1].next_sibling, 2);
}

TEST(TokenTree, AttentionBitsAreAncestorsAndSelf) {
  EXPECT_THAT(drawn_tree().attention_bits(), ElementsAre(0b0001, 0b0011, 0b0101, 0b1000));
}

TEST(TokenTree, AttentionBitsOfMoreThanOneWord) {
  TokenTree tree;
  std::int32_t last = kNoNode;
  for (int i = 0; i < 130; ++i)
    last = tree.add({.parent = i % 3 == 2 ? kNoNode : last, .token = i});
  const std::vector<std::int64_t> bits = tree.attention_bits();
  ASSERT_EQ(tree.attention_words(), 3);
  for (std::int32_t i = 0; i < tree.size(); ++i) {
    const std::vector<std::int32_t> path = tree.path(i);
    for (std::int32_t j = 0; j < tree.size(); ++j) {
      const bool attends =
          (static_cast<std::uint64_t>(bits[static_cast<std::size_t>(i * 3 + j / 64)]) >> (j % 64) &
           1) != 0;
      EXPECT_EQ(attends, std::ranges::find(path, j) != path.end()) << i << " " << j;
    }
  }
}

TEST(TokenTree, DuplicatesAreFolded) {
  TokenTree tree;
  const std::int32_t a = tree.add_or_find({.token = 5, .log_probability = -1, .source = 1});
  const std::int32_t b = tree.add_or_find({.parent = a, .token = 6, .log_probability = -2});
  EXPECT_EQ(tree.add_or_find({.token = 5, .log_probability = -9, .source = 2}), a);
  EXPECT_EQ(tree.add_or_find({.parent = a, .token = 6}), b);
  EXPECT_EQ(tree.size(), 2);
  EXPECT_EQ(tree[a].source, 1);
  EXPECT_DOUBLE_EQ(tree[b].path_log_probability, -3);
  EXPECT_EQ(tree.add({.token = 5}), 2) << "add() does not fold";
}

TEST(TokenTree, CompactKeepsAncestorsOfTheLive) {
  TokenTree tree = drawn_tree();
  const std::vector<std::int32_t> live = {2};
  EXPECT_THAT(tree.compact(live), ElementsAre(0, kNoNode, 1, kNoNode));
  EXPECT_EQ(tree.size(), 2);
  EXPECT_THAT(tree.path_tokens(1), ElementsAre(10, 12));
  EXPECT_EQ(tree[0].next_sibling, kNoNode);
  EXPECT_EQ(tree[0].first_child, 1);
}

// Beams: at every step some leaves grow and the others die. Paths stay what they were.
TEST(TokenTree, CompactOverRandomBeams) {
  std::mt19937 random(7);
  TokenTree tree;
  std::vector<std::vector<std::int32_t>> texts(6);
  std::vector<std::int32_t> beams(6, kNoNode);
  for (int step = 0; step < 200; ++step) {
    std::vector<std::vector<std::int32_t>> next_texts;
    std::vector<std::int32_t> next;
    for (std::size_t b = 0; b < beams.size(); ++b) {
      const std::size_t from = random() % beams.size();
      const auto token = static_cast<std::int32_t>(random() % 100);
      next.push_back(tree.add({.parent = beams[from], .token = token}));
      next_texts.push_back(texts[from]);
      next_texts.back().push_back(token);
    }
    const std::vector<std::int32_t> moved = tree.compact(next);
    for (std::int32_t& beam : next) beam = moved[static_cast<std::size_t>(beam)];
    beams = next;
    texts = next_texts;
    for (std::size_t b = 0; b < beams.size(); ++b) ASSERT_EQ(tree.path_tokens(beams[b]), texts[b]);
  }
  EXPECT_LT(tree.size(), 6 * 200);
}

TEST(TokenTree, RefusesWhatIsNoTree) {
  const auto from = [](std::vector<std::int32_t> tokens, std::vector<std::int32_t> parents) {
    return [=] { TokenTree::from_parents(tokens, parents, 20, 3); };
  };
  EXPECT_THAT(from({1, 2}, {1, 0}),
              ThrowsMessage<InvalidArgument>(HasSubstr("node 0: parent 1 is not an earlier node")));
  EXPECT_THAT(from({1, 2}, {-1, 1}), ThrowsMessage<InvalidArgument>(HasSubstr("node 1: parent 1")));
  EXPECT_THAT(from({1, 2}, {-1, -2}),
              ThrowsMessage<InvalidArgument>(HasSubstr("node 1: parent -2")));
  EXPECT_THAT(from({1, 20}, {-1, 0}),
              ThrowsMessage<InvalidArgument>(HasSubstr("node 1: token 20 is outside [0, 20)")));
  EXPECT_THAT(from({1, -1}, {-1, 0}), ThrowsMessage<InvalidArgument>(HasSubstr("token -1")));
  EXPECT_THAT(from({1, 2, 3, 4}, {-1, 0, 1, 2}),
              ThrowsMessage<InvalidArgument>(HasSubstr("4 nodes exceed the budget of 3")));
  EXPECT_THAT(from({1, 2}, {-1}), ThrowsMessage<InvalidArgument>(HasSubstr("expected 2 entries")));
  TokenTree tree;
  EXPECT_THROW(tree.add({.parent = 0, .token = 1}), InvalidArgument);
  EXPECT_THROW(tree.add_or_find({.parent = -2, .token = 1}), InvalidArgument);
  EXPECT_TRUE(tree.empty());
  tree.add({.token = 1});
  const std::vector<std::int32_t> live = {1};
  EXPECT_THROW(tree.compact(live), InvalidArgument);
  EXPECT_EQ(tree.size(), 1);
}

TEST(TokenTree, RefusesNodesThatAreNotThere) {
  TokenTree tree;
  tree.add({.token = 3});
  EXPECT_EQ(tree.path(kNoNode).size(), 0U);
  EXPECT_EQ(tree.find_child(kNoNode, 3), 0);
  for (const std::int32_t node : {-2, 1, 1000000}) {
    const std::string message = "tree: node " + std::to_string(node) + " is not one of 1 nodes";
    EXPECT_THAT([&] { tree.path(node); }, ThrowsMessage<InvalidArgument>(message));
    EXPECT_THAT([&] { tree.path_tokens(node); }, ThrowsMessage<InvalidArgument>(message));
    EXPECT_THAT([&] { tree.find_child(node, 3); }, ThrowsMessage<InvalidArgument>(message));
  }
}

}  // namespace
}  // namespace touchstone::decode
