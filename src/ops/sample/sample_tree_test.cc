// Rows that are nodes of draft trees: each draws what its path decoded without a tree draws.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "ops/sample/sample_test_support.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/tree.h"

namespace touchstone::test {
namespace {

// Trees on top of sequences, one arena each, as the rows of one call.
struct TreeBatch {
  Batch plain{};  // every row with its whole history
  std::vector<double> prefixes{};
  std::int64_t sequences = 0;
  std::int64_t prefix_length = 0;
  std::vector<double> history_row{}, parent{}, token{};
  std::int64_t max_depth = 0;
};

TreeBatch make_trees(std::int64_t sequences, std::int64_t nodes, std::int64_t vocabulary,
                     std::int64_t prefix_length, DType dtype) {
  TreeBatch trees{.sequences = sequences, .prefix_length = prefix_length};
  trees.plain.dtype = dtype;
  const Random random(static_cast<std::uint64_t>(vocabulary));
  std::int64_t draws = 0;
  const auto pick = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random.bits(draws++) % static_cast<std::uint64_t>(n));
  };
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    std::vector<std::int64_t> prefix;
    for (std::int64_t i = 0; i < prefix_length; ++i) prefix.push_back(pick(vocabulary + 1) - 1);
    trees.prefixes.insert(trees.prefixes.end(), prefix.begin(), prefix.end());
    const std::int64_t prompt = pick(prefix_length + 1);
    decode::TokenTree tree;
    const std::int64_t first = std::ssize(trees.plain.rows);
    for (std::int64_t node = 0; node < nodes; ++node) {
      const auto parent = static_cast<std::int32_t>(pick(node + 1) - 1);
      // Tokens that repeat those of the prefix and of the path.
      const auto token = static_cast<std::int32_t>(pick(std::min<std::int64_t>(vocabulary, 5)));
      tree.add({.parent = parent, .token = token});
      TestRow row;
      row.logits = random_logits(vocabulary, 2, dtype, static_cast<std::uint64_t>(first + node));
      row.token_mask.resize(static_cast<std::size_t>(vocabulary));
      for (std::size_t i = 0; i < row.token_mask.size(); ++i) row.token_mask[i] = pick(8) != 0;
      row.token_mask[0] = true;
      row.history = prefix;
      for (const std::int32_t t : tree.path_tokens(static_cast<std::int32_t>(node))) {
        row.history.push_back(t);
      }
      row.prompt_length = prompt;
      row.repetition_penalty = static_cast<double>(1.3F);
      row.frequency_penalty = 0.5;
      row.presence_penalty = node % 2 == 0 ? 0.25 : 0;
      row.temperature = node % 3 == 0 ? 0 : 1;
      row.top_k = node % 4 == 1 ? 5 : 0;
      row.position = prefix_length + tree[static_cast<std::int32_t>(node)].depth;
      row.seed = sequence;
      trees.plain.rows.push_back(row);
      trees.history_row.push_back(static_cast<double>(sequence));
      trees.parent.push_back(static_cast<double>(parent < 0 ? -1 : first + parent));
      trees.token.push_back(token);
    }
    trees.max_depth = std::max<std::int64_t>(trees.max_depth, tree.max_depth());
  }
  return trees;
}

// The call with trees, beside buffers of its own.
struct TreeRun {
  explicit TreeRun(const TreeBatch& trees) : run(trees.plain) {
    const std::vector<std::int64_t> rows{std::ssize(trees.plain.rows)};
    prefixes =
        Guarded(test_device(), DType::i32, {trees.sequences, trees.prefix_length}, trees.prefixes);
    history_row = Guarded(test_device(), DType::i32, rows, trees.history_row);
    parent = Guarded(test_device(), DType::i32, rows, trees.parent);
    token = Guarded(test_device(), DType::i32, rows, trees.token);
    run.args.history = prefixes;
    run.args.history_row = history_row;
    run.args.parent = parent;
    run.args.tree_token = token;
    run.args.max_depth = trees.max_depth;
  }
  SampleRun run;
  Guarded prefixes, history_row, parent, token;
};

TEST(SampleTree, NodesDrawWhatTheirPathsDraw) {
  for (const DType dtype : kLogitDTypes) {
    for (const std::int64_t vocabulary : {3, 200, 5000}) {
      const TreeBatch trees = make_trees(3, 20, vocabulary, 40, dtype);
      SampleRun plain(trees.plain);
      TreeRun tree(trees);
      for_each_runner(plain.accepting(), [&](Runner& context) {
        plain.run(context);
        tree.run.run(context);
        EXPECT_EQ(tree.run.tokens(), plain.tokens()) << "V " << vocabulary;
        EXPECT_EQ(tree.run.log_probability.bytes(), plain.log_probability.bytes());
        EXPECT_EQ(tree.run.statuses(), plain.statuses());
        for (const Guarded* input :
             {&tree.prefixes, &tree.history_row, &tree.parent, &tree.token}) {
          EXPECT_TRUE(input->unchanged());
        }
      });
    }
  }
}

// Histories too long for a hash table, and a chain as deep as there are rows.
TEST(SampleTree, LongHistoriesAndChains) {
  TreeBatch trees = make_trees(1, 30, 300, 5000, DType::f32);
  SampleRun plain(trees.plain);
  TreeRun tree(trees);
  tree.run.args.max_depth = 30;
  for_each_runner(plain.accepting(), [&](Runner& context) {
    plain.run(context);
    tree.run.run(context);
    EXPECT_EQ(tree.run.tokens(), plain.tokens());
    EXPECT_EQ(tree.run.log_probability.bytes(), plain.log_probability.bytes());
  });
}

// Rows of one sequence may share its history without a tree.
TEST(SampleTree, RowsMayShareAHistory) {
  TreeBatch trees = make_trees(2, 6, 100, 30, DType::bf16);
  for (TestRow& row : trees.plain.rows) row.history.resize(30);
  SampleRun plain(trees.plain);
  TreeRun shared(trees);
  shared.run.args.parent = shared.run.args.tree_token = {};
  shared.run.args.max_depth = 0;
  for_each_runner(plain.accepting(), [&](Runner& context) {
    plain.run(context);
    shared.run.run(context);
    EXPECT_EQ(shared.run.tokens(), plain.tokens());
  });
}

TEST(SampleTree, MistakesAreRefusedByName) {
  const TreeBatch trees = make_trees(2, 5, 50, 10, DType::f32);
  struct Mistake {
    const char* named;
    std::function<void(TreeBatch&)> in_values;
    std::function<void(SampleArgs&)> in_args;
  };
  const std::vector<Mistake> mistakes = {
      {"tree_token", {}, [](SampleArgs& a) { a.tree_token = {}; }},
      {"parent", {}, [](SampleArgs& a) { a.parent = {}; }},
      {"max_depth", {}, [](SampleArgs& a) { a.max_depth = 0; }},
      {"max_depth", {}, [](SampleArgs& a) { a.max_depth = 11; }},
      {"max_depth", {}, [](SampleArgs& a) { a.parent = a.tree_token = {}; }},
      {"parent", {}, [](SampleArgs& a) { a.parent.dtype = DType::f32; }},
      {"history_row", {}, [](SampleArgs& a) { a.history_row.shape[0] = 9; }},
      {"history", {}, [](SampleArgs& a) { a.history_row = {}; }},
      {"history_row", [](TreeBatch& t) { t.history_row[3] = 2; }, {}},
      {"history_row", [](TreeBatch& t) { t.history_row[3] = -1; }, {}},
      {"parent", [](TreeBatch& t) { t.parent[4] = 4; }, {}},
      {"parent", [](TreeBatch& t) { t.parent[4] = -2; }, {}},
      {"max_depth", [](TreeBatch& t) { t.parent = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8}; }, {}},
  };
  Runner context({.device = test_device()});
  for (const Mistake& mistake : mistakes) {
    if (mistake.in_values && on_gpu()) continue;  // what arrays hold is not checked there
    TreeBatch wrong = trees;
    if (mistake.in_values) mistake.in_values(wrong);
    TreeRun tree(wrong);
    if (mistake.in_args) mistake.in_args(tree.run.args);
    for (Guarded* output : tree.run.outputs()) output->poison();
    try {
      sample(context, tree.run.args);
      ADD_FAILURE() << mistake.named << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(mistake.named), std::string::npos) << error.what();
    }
    EXPECT_TRUE(tree.run.token.unchanged());
  }
}

}  // namespace
}  // namespace touchstone::test
