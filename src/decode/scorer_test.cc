// The interface of a model, by a table and by the float64 decoder behind it.
#include "touchstone/decode/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numeric>
#include <random>

#include "oracle/decoder.h"
#include "oracle/path_scorer.h"
#include "touchstone/core/error.h"

namespace touchstone::decode {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kVocabulary = 7;

oracle::TableScorer toy() { return {kVocabulary, 64, oracle::hashed_table(3, 4)}; }

std::vector<double> logits_of(Scorer& scorer, std::span<const ScoreRow> rows,
                              std::vector<std::int32_t> wanted) {
  Context context;
  const auto count = static_cast<std::int64_t>(wanted.size());
  Tensor logits = Tensor::empty({count, scorer.shape().vocabulary}, DType::f64);
  scorer.score(context, {.rows = rows, .logit_rows = wanted, .logits = logits});
  const auto values = logits.values<double>();
  return {values.begin(), values.end()};
}

// The logits after `tokens`, given to a new sequence in chunks and kept.
std::vector<double> plain_logits(Scorer& scorer, std::span<const std::int32_t> tokens,
                                 std::size_t chunk) {
  const ScorerSequence id = scorer.create();
  std::vector<double> logits;
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    const auto part = tokens.subspan(at, std::min(chunk, tokens.size() - at));
    const auto rows = chain_rows(id, static_cast<std::int64_t>(at), part);
    std::vector<std::int32_t> all(rows.size());
    std::iota(all.begin(), all.end(), 0);
    logits = logits_of(scorer, rows, {all.back()});
    const KeptRows kept{id, all};
    scorer.keep({&kept, 1});
  }
  scorer.release(id);
  return logits;
}

TEST(Scorer, EveryTokenOfThePathChangesTheLogits) {
  oracle::TableScorer scorer = toy();
  const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6, 0, 1};
  const std::vector<double> logits = plain_logits(scorer, tokens, 8);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::vector<std::int32_t> changed = tokens;
    changed[i] = static_cast<std::int32_t>((changed[i] + 1) % kVocabulary);
    EXPECT_NE(plain_logits(scorer, changed, 8), logits) << "token " << i;
  }
}

template <class S>
void check_chunks_and_trees(S& scorer, std::int64_t vocabulary) {
  std::mt19937 random(11);
  std::vector<std::int32_t> prompt(9);
  for (std::int32_t& token : prompt) {
    token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  }
  const std::vector<double> whole = plain_logits(scorer, prompt, prompt.size());
  for (const std::size_t chunk : {1, 2, 5}) EXPECT_EQ(plain_logits(scorer, prompt, chunk), whole);

  const ScorerSequence id = scorer.create();
  const auto rows = chain_rows(id, 0, prompt);
  std::vector<std::int32_t> all(prompt.size());
  std::iota(all.begin(), all.end(), 0);
  logits_of(scorer, rows, {});
  const KeptRows kept{id, all};
  scorer.keep({&kept, 1});
  for (int trial = 0; trial < 5; ++trial) {
    TokenTree tree;
    for (int i = 0; i < 10; ++i) {
      tree.add({.parent = static_cast<std::int32_t>(random() % (static_cast<unsigned>(i) + 1)) - 1,
                .token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary))});
    }
    std::vector<std::int32_t> nodes(10);
    std::iota(nodes.begin(), nodes.end(), 0);
    const auto logits = logits_of(scorer, tree_rows(id, 9, tree), nodes);
    for (std::int32_t node = 0; node < tree.size(); ++node) {
      std::vector<std::int32_t> path = prompt;
      for (const std::int32_t token : tree.path_tokens(node)) path.push_back(token);
      const auto expected = plain_logits(scorer, path, path.size());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), logits.begin() + node * vocabulary))
          << node;
    }
    EXPECT_EQ(scorer.length(id), 9);
  }
}

TEST(Scorer, ChunksAndTreesGiveTheLogitsOfThePath) {
  oracle::TableScorer table = toy();
  check_chunks_and_trees(table, kVocabulary);
  oracle::DecoderShape shape{.layers = 2, .width = 16, .query_heads = 2, .kv_heads = 1};
  oracle::DecoderScorer decoder(oracle::Decoder(shape, oracle::random_decoder(shape, 5)));
  check_chunks_and_trees(decoder, shape.vocabulary);
}

TEST(Scorer, KeepCommitsThePathAndDropsTheRest) {
  oracle::TableScorer scorer = toy();
  const ScorerSequence a = scorer.create();
  const ScorerSequence b = scorer.create();
  TokenTree tree;
  tree.add({.token = 1});
  tree.add({.parent = 0, .token = 2});
  tree.add({.parent = 0, .token = 3});
  std::vector<ScoreRow> rows = tree_rows(a, 0, tree);
  const auto more = tree_rows(b, 0, tree, 3);
  rows.insert(rows.end(), more.begin(), more.end());
  logits_of(scorer, rows, {2, 5});
  const std::vector<std::int32_t> of_a = {0, 2};
  const KeptRows kept{a, of_a};
  scorer.keep({&kept, 1});
  EXPECT_EQ(scorer.tokens(a), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(scorer.length(b), 0);
  const ScorerSequence c = scorer.fork(a);
  scorer.truncate(a, 1);
  EXPECT_EQ(scorer.length(a), 1);
  EXPECT_EQ(scorer.tokens(c), (std::vector<std::int32_t>{1, 3}));
  EXPECT_THROW(scorer.keep({&kept, 1}), InvalidArgument) << "nothing is pending";
  scorer.release(c);
  EXPECT_THROW(scorer.length(c), InvalidArgument);
}

TEST(Scorer, RefusesRowsThatDoNotFit) {
  oracle::TableScorer scorer = toy();
  Context context;
  const ScorerSequence id = scorer.create();
  const ScorerSequence other = scorer.create();
  Tensor logits = Tensor::empty({1, kVocabulary}, DType::f32);
  const auto refused = [&](const std::string& message, std::vector<ScoreRow> rows,
                           std::vector<std::int32_t> wanted) {
    EXPECT_THAT(
        [&] { scorer.score(context, {.rows = rows, .logit_rows = wanted, .logits = logits}); },
        ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused("row 0: token 7 is outside [0, 7)", {{.sequence = id, .token = 7}}, {0});
  refused("row 0: expected position 0, got 1", {{.sequence = id, .position = 1}}, {0});
  // The depth decides, not the index.
  refused("row 2: expected position 1, got 2",
          {{.sequence = id},
           {.sequence = id, .position = 1, .parent = 0},
           {.sequence = id, .position = 2, .parent = 0}},
          {0});
  refused("row 1: parent 0 is not an earlier row of its sequence",
          {{.sequence = other}, {.sequence = id, .position = 1, .parent = 0}}, {0});
  refused("row 0: parent 0", {{.sequence = id, .position = 1, .parent = 0}}, {0});
  refused("no sequence 99", {{.sequence = {99}}}, {0});
  refused("logit_rows", {{.sequence = id}}, {1});
  refused("logits", {{.sequence = id}, {.sequence = other}}, {0, 1});
  std::vector<std::int32_t> tokens(65, 1);
  const auto chain = chain_rows(id, 0, tokens);
  refused("position 64 is beyond the context of 64", chain, {0});
  EXPECT_EQ(scorer.length(id), 0);
  const std::vector<std::int32_t> layers = {0};
  EXPECT_THAT(
      [&] {
        scorer.score(context, {.rows = chain_rows(id, 0, std::vector<std::int32_t>{1}),
                               .hidden_layers = layers});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("hidden_layers")));
}

TEST(Scorer, RefusesToKeepWhatIsNoPath) {
  const ScorerSequence id{0};
  const std::vector<ScoreRow> rows = {{.sequence = id},
                                      {.sequence = id, .position = 1, .parent = 0},
                                      {.sequence = id, .position = 1, .parent = 0},
                                      {.sequence = {1}}};
  const auto refused = [&](const std::string& message, std::vector<std::int32_t> kept) {
    const KeptRows one{id, kept};
    EXPECT_THAT(
        [&] {
          check_kept_rows(rows, {&one, 1});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused("row 1: its parent 0 is not the row kept before it, -1", {1});
  refused("row 2: its parent 0 is not the row kept before it, 1", {0, 1, 2});
  refused("row 3 is not a pending row of sequence 0", {0, 3});
  refused("row 4 is not a pending row", {4});
  const std::vector<KeptRows> twice = {{id, {}}, {id, {}}};
  EXPECT_THAT([&] { check_kept_rows(rows, twice); },
              ThrowsMessage<InvalidArgument>(HasSubstr("appears twice")));
}

// A second derivation of the decoder: one token at a time with lists of keys and values, rotation by
// complex numbers, softmax without a maximum.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const oracle::Decoder& decoder)
      : s_(decoder.shape()),
        w_(decoder.weights()),
        keys_(w_.layers.size()),
        values_(keys_.size()) {}

  std::vector<double> step(std::int32_t token) {
    std::vector<double> x(w_.embedding.begin() + token * s_.width,
                          w_.embedding.begin() + (token + 1) * s_.width);
    for (std::size_t l = 0; l < w_.layers.size(); ++l) {
      const oracle::DecoderLayer& layer = w_.layers[l];
      const auto n = norm(x, layer.attention_norm);
      keys_[l].push_back(rotated(times(layer.wk, n)));
      values_[l].push_back(times(layer.wv, n));
      add(x, times(layer.wo, attend(l, rotated(times(layer.wq, n)))));
      const auto m = norm(x, layer.mlp_norm);
      auto gate = times(layer.gate, m);
      const auto up = times(layer.up, m);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        gate[i] = gate[i] * 0.5 * (1 + std::tanh(gate[i] / 2)) * up[i];
      }
      add(x, times(layer.down, gate));
    }
    ++position_;
    return times(w_.head, norm(x, w_.final_norm));
  }

 private:
  using Vector = std::vector<double>;
  static void add(Vector& x, const Vector& y) {
    std::transform(x.begin(), x.end(), y.begin(), x.begin(), std::plus<>());
  }
  static Vector times(const Vector& w, const Vector& x) {
    Vector y;
    for (auto row = w.begin(); row != w.end(); row += static_cast<std::ptrdiff_t>(x.size())) {
      y.push_back(std::inner_product(x.begin(), x.end(), row, 0.0));
    }
    return y;
  }
  Vector norm(const Vector& x, const Vector& weight) const {
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    Vector y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back(weight[i] * x[i] / std::sqrt(squares / static_cast<double>(x.size()) + s_.eps));
    }
    return y;
  }
  Vector rotated(Vector x) const {
    const auto dim = static_cast<std::size_t>(s_.head_dim);
    for (std::size_t head = 0; head < x.size(); head += dim) {
      for (std::size_t i = 0; i < dim / 2; ++i) {
        const double angle =
            static_cast<double>(position_) /
            std::pow(s_.rope_base, static_cast<double>(2 * i) / static_cast<double>(dim));
        const std::complex<double> turned =
            std::complex(x[head + i], x[head + i + dim / 2]) * std::polar(1.0, angle);
        x[head + i] = turned.real();
        x[head + i + dim / 2] = turned.imag();
      }
    }
    return x;
  }
  Vector attend(std::size_t layer, const Vector& q) const {
    const auto dim = static_cast<std::size_t>(s_.head_dim);
    const auto group = static_cast<std::size_t>(s_.query_heads / s_.kv_heads);
    Vector output(q.size(), 0);
    for (std::size_t head = 0; head * dim < q.size(); ++head) {
      const std::size_t kv = head / group * dim;
      double total = 0;
      for (std::size_t t = 0; t < keys_[layer].size(); ++t) {
        if (s_.window > 0 && position_ - static_cast<std::int64_t>(t) >= s_.window) continue;
        double dot = 0;
        for (std::size_t d = 0; d < dim; ++d) dot += q[head * dim + d] * keys_[layer][t][kv + d];
        const double weight = std::exp(dot / std::sqrt(static_cast<double>(dim)));
        total += weight;
        for (std::size_t d = 0; d < dim; ++d) {
          output[head * dim + d] += weight * values_[layer][t][kv + d];
        }
      }
      for (std::size_t d = 0; d < dim; ++d) output[head * dim + d] /= total;
    }
    return output;
  }

  const oracle::DecoderShape& s_;
  const oracle::DecoderWeights& w_;
  std::vector<std::vector<Vector>> keys_, values_;
  std::int64_t position_ = 0;
};

TEST(OracleDecoder, EqualsItsSecondDerivation) {
  for (const std::int64_t window : {0, 3}) {
    const oracle::DecoderShape shape{.layers = 3, .window = window};
    const oracle::Decoder decoder(shape, oracle::random_decoder(shape, 17));
    IncrementalDecoder incremental(decoder);
    std::vector<std::int32_t> tokens;
    std::vector<double> logits(static_cast<std::size_t>(shape.vocabulary));
    std::vector<double> hidden(static_cast<std::size_t>((shape.layers + 1) * shape.width));
    for (std::int32_t t = 0; t < 12; ++t) {
      tokens.push_back(t * 13 % 40);
      decoder.run(tokens, logits, hidden);
      const std::vector<double> expected = incremental.step(tokens.back());
      double largest = 0;
      for (std::size_t i = 0; i < logits.size(); ++i) {
        EXPECT_NEAR(logits[i], expected[i], 1e-11);
        largest = std::max(largest, std::abs(logits[i]));
      }
      EXPECT_GT(largest, 0.5) << "every logit nearly zero would prove nothing";
    }
  }
}

TEST(OracleDecoder, HiddenStatesReachTheCaller) {
  const oracle::DecoderShape shape{.layers = 2, .width = 16, .query_heads = 2, .kv_heads = 1};
  const oracle::Decoder decoder(shape, oracle::random_decoder(shape, 2));
  oracle::DecoderScorer scorer(decoder);
  Context context;
  const ScorerSequence id = scorer.create();
  const std::vector<std::int32_t> tokens = {3, 1, 4};
  const std::vector<std::int32_t> layers = {0, 2};
  Tensor hidden = Tensor::empty({2, 3, 16}, DType::f64);
  scorer.score(context,
               {.rows = chain_rows(id, 0, tokens), .hidden_layers = layers, .hidden = hidden});
  std::vector<double> logits(40);
  std::vector<double> expected(48);
  for (std::size_t t = 0; t < 3; ++t) {
    decoder.run(std::span(tokens).first(t + 1), logits, expected);
    for (std::size_t j = 0; j < 2; ++j) {
      for (std::size_t d = 0; d < 16; ++d) {
        EXPECT_EQ(hidden.values<double>()[(j * 3 + t) * 16 + d],
                  expected[static_cast<std::size_t>(layers[j]) * 16 + d]);
      }
    }
  }
}

}  // namespace
}  // namespace touchstone::decode
