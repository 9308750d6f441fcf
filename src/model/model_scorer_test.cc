// A model as a Scorer: trees, kept paths, hidden states, memory, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/model_test_support.h"
#include "oracle/decoder.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/decode/tree.h"

namespace touchstone::model {
namespace {

using decode::KeptRows;
using decode::ScorerSequence;
using test::last_logits;
using test::random_tokens;
using testing::HasSubstr;
using testing::ThrowsMessage;

Model open_golden(Context& context, const char* name, const ModelOptions& options) {
  const Json g = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) /
                                 (std::string(name) + ".json"));
  const test::ModelFolder folder(std::string("scorer_") + name);
  folder.write(g["config"], g["tensors"]);
  return {context, io::ModelFile::open(folder.path()), options};  // stays mapped
}

// Rows of a random tree: node i hangs on an earlier one, or on the sequence.
decode::TokenTree random_tree(std::int32_t nodes, std::uint64_t seed) {
  decode::TokenTree tree;
  for (std::int32_t i = 0; i < nodes; ++i) {
    const auto parent = static_cast<std::int32_t>(test::mix(seed + static_cast<std::uint64_t>(i)) %
                                                  static_cast<std::uint64_t>(i + 1)) -
                        1;
    tree.add({.parent = parent, .token = (i * 37 + 5) % 512});
  }
  return tree;
}

TEST(ModelScorer, NodesOfATreeHaveTheBitsOfTheirPaths) {
  Context context = test::device_context();
  for (const char* name : {"llama3", "gemma2", "gpt2"}) {
    for (const std::int64_t max_rows : {256, 5}) {
      Model model =
          open_golden(context, name, {.max_length = 128, .sequences = 3, .max_rows = max_rows});
      const std::vector<std::int32_t> prompt = random_tokens(21, 512);
      const ScorerSequence sequence = model.create();
      last_logits(context, model, sequence, prompt, 4);
      const ScorerSequence other = model.create();
      const decode::TokenTree tree = random_tree(18, 3);
      auto rows = decode::tree_rows(sequence, 21, tree);
      // A second sequence in the same call, whose rows lie between those of the tree.
      const auto chain = decode::chain_rows(other, 0, std::vector<std::int32_t>{1, 2}, 18);
      rows.insert(rows.end(), chain.begin(), chain.end());
      std::vector<std::int32_t> all(rows.size());
      std::iota(all.begin(), all.end(), 0);
      Tensor scored = Tensor::empty({20, 512}, DType::f32, model.shape().device);
      model.score(context, {.rows = rows, .logit_rows = all, .logits = scored});
      const std::vector<float> logits = test::host_values(context, scored);
      for (std::int32_t node = 0; node < tree.size(); ++node) {
        const ScorerSequence path = model.create();
        std::vector<std::int32_t> tokens = prompt;
        const auto more = tree.path_tokens(node);
        tokens.insert(tokens.end(), more.begin(), more.end());
        // Scoring drops pending rows, but not the results.
        const std::vector<float> expected = last_logits(context, model, path, tokens, 5);
        model.release(path);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), logits.begin() + node * 512))
            << name << ", node " << node << ", max_rows " << max_rows;
      }
    }
  }
}

TEST(ModelScorer, KeptPathsContinueAsIfWrittenInARow) {
  Context context = test::device_context();
  for (const char* name : {"qwen3", "mistral"}) {
    Model model = open_golden(context, name, {.max_length = 128, .sequences = 3});
    const std::vector<std::int32_t> prompt = random_tokens(30, 512);
    const ScorerSequence sequence = model.create();
    last_logits(context, model, sequence, prompt, 30);
    const decode::TokenTree tree = random_tree(12, 9);
    const auto rows = decode::tree_rows(sequence, 30, tree);
    model.score(context, {.rows = rows});
    const std::vector<std::int32_t> path = tree.path(11);
    const KeptRows kept[] = {{sequence, path}};
    model.keep(kept);
    ASSERT_EQ(model.length(sequence), 30 + std::ssize(path));
    const ScorerSequence forked = model.fork(sequence);
    const std::int32_t next[] = {77};
    const std::vector<float> after = last_logits(context, model, sequence, next, 1);
    EXPECT_EQ(after, last_logits(context, model, forked, next, 1));

    std::vector<std::int32_t> tokens = prompt;
    const auto accepted = tree.path_tokens(11);
    tokens.insert(tokens.end(), accepted.begin(), accepted.end());
    tokens.push_back(77);
    const ScorerSequence plain = model.create();
    EXPECT_EQ(after, last_logits(context, model, plain, tokens, 7));
    model.truncate(plain, std::ssize(tokens) - 1);
    EXPECT_EQ(after, last_logits(context, model, plain, next, 1));
  }
}

TEST(ModelScorer, OpenFindsWhatOthersWrote) {
  Context context = test::device_context();
  Model model =
      open_golden(context, "llama3", {.max_length = 256, .sequences = 2, .page_tokens = 8});
  const std::vector<std::int32_t> prompt = random_tokens(60, 512);
  const ScorerSequence first = model.create();
  const std::vector<float> expected = last_logits(context, model, first, prompt, 60);
  model.release(first);
  const ScorerSequence second = model.open(std::span(prompt).first(59));
  const std::int64_t found = model.length(second);
  ASSERT_GE(found, 56);  // whole pages at least
  EXPECT_EQ(expected, last_logits(context, model, second,
                                  std::span(prompt).subspan(static_cast<std::size_t>(found)), 2));
}

// A second witness beside transformers: the float64 decoder, and its hidden states.
TEST(ModelScorer, AgreesWithTheFloat64Decoder) {
  if (::touchstone::test::on_gpu()) GTEST_SKIP() << "hidden states are given on the CPU";
  oracle::DecoderShape shape{.window = 6, .eps = 1e-5};
  oracle::DecoderWeights weights = oracle::random_decoder(shape, 3);
  const test::ModelFolder folder("decoder");
  const Json config = {{"model_type", "mistral"},
                       {"hidden_size", shape.width},
                       {"intermediate_size", shape.mlp_width},
                       {"num_hidden_layers", shape.layers},
                       {"num_attention_heads", shape.query_heads},
                       {"num_key_value_heads", shape.kv_heads},
                       {"head_dim", shape.head_dim},
                       {"vocab_size", shape.vocabulary},
                       {"max_position_embeddings", shape.max_length},
                       {"sliding_window", shape.window},
                       {"rms_norm_eps", shape.eps},
                       {"tie_word_embeddings", false}};
  std::ofstream(folder.path() / "config.json") << config.dump();
  std::vector<io::OutputTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<double>& values,
                       std::vector<std::int64_t> sizes) {
    std::vector<float> narrow(values.begin(), values.end());
    values.assign(narrow.begin(), narrow.end());
    tensors.push_back({name, "f32", std::move(sizes), [narrow](std::vector<std::byte>&) {
                         return std::as_bytes(std::span(narrow));
                       }});
  };
  const std::int64_t e = shape.width;
  const std::int64_t q = shape.query_heads * shape.head_dim;
  const std::int64_t k = shape.kv_heads * shape.head_dim;
  add("model.embed_tokens.weight", weights.embedding, {shape.vocabulary, e});
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    oracle::DecoderLayer& layer = weights.layers[i];
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    add(prefix + "input_layernorm.weight", layer.attention_norm, {e});
    add(prefix + "self_attn.q_proj.weight", layer.wq, {q, e});
    add(prefix + "self_attn.k_proj.weight", layer.wk, {k, e});
    add(prefix + "self_attn.v_proj.weight", layer.wv, {k, e});
    add(prefix + "self_attn.o_proj.weight", layer.wo, {e, q});
    add(prefix + "post_attention_layernorm.weight", layer.mlp_norm, {e});
    add(prefix + "mlp.gate_proj.weight", layer.gate, {shape.mlp_width, e});
    add(prefix + "mlp.up_proj.weight", layer.up, {shape.mlp_width, e});
    add(prefix + "mlp.down_proj.weight", layer.down, {e, shape.mlp_width});
  }
  add("model.norm.weight", weights.final_norm, {e});
  add("lm_head.weight", weights.head, {shape.vocabulary, e});
  io::write_safetensors(folder.path() / "model.safetensors", tensors);

  Context context = test::device_context();
  Model model(context, io::ModelFile::open(folder.path()));
  oracle::DecoderScorer reference(oracle::Decoder(shape, weights));
  const std::vector<std::int32_t> tokens = random_tokens(20, 40);
  std::vector<std::int32_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  const std::int32_t layers[] = {0, 1, 2};
  std::vector<double> logits[2];
  std::vector<double> hidden[2];
  decode::Scorer* const scorers[] = {&model, &reference};
  for (std::size_t i = 0; i < 2; ++i) {
    logits[i].resize(20 * 40);
    hidden[i].resize(3 * 20 * 32);
    const ScorerSequence sequence = scorers[i]->create();
    scorers[i]->score(context, {.rows = decode::chain_rows(sequence, 0, tokens),
                                .logit_rows = all,
                                .logits = make_view(logits[i].data(), {20, 40}),
                                .hidden_layers = layers,
                                .hidden = make_view(hidden[i].data(), {3, 20, 32})});
  }
  const auto expect_near = [](const std::vector<double>& a, const std::vector<double>& b) {
    double largest = 0;
    for (const double value : b) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6 * largest) << i;
  };
  expect_near(logits[0], logits[1]);
  expect_near(hidden[0], hidden[1]);
}

TEST(ModelScorer, NamesTheWeightThatIsNotFinite) {
  const Json g = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "llama3.json");
  Json tensors = g["tensors"];
  ASSERT_EQ(tensors[2]["name"], "model.layers.0.self_attn.k_proj.weight");
  tensors[2]["shift"] = std::numeric_limits<double>::quiet_NaN();
  const test::ModelFolder folder("nonfinite");
  folder.write(g["config"], tensors);
  Context context = test::device_context();
  Model model(context, io::ModelFile::open(folder.path()), {.max_length = 64});
  EXPECT_EQ(model.find_nonfinite_weight(), "blk.0.attn_k.weight");
  EXPECT_EQ(open_golden(context, "llama3", {}).find_nonfinite_weight(), "");
  decode::Scheduler scheduler(model, {});
  const decode::RequestId id = scheduler.submit({.prompt = {1, 2, 3}});
  EXPECT_THROW(scheduler.step(context), CorruptData);
  EXPECT_TRUE(scheduler.finished(id));
}

TEST(ModelScorer, RefusesByName) {
  Context context = test::device_context();
  const auto refused = [&](const ModelOptions& options, const char* message) {
    EXPECT_THAT([&] { open_golden(context, "llama3", options); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused({.max_length = 4000},
          "max_length: expected 1 to 2048, the context of the model, got 4000");
  refused({.sequences = 0}, "sequences: expected at least 1");
  refused({.max_rows = 0}, "max_rows: expected at least 1");
  refused({.compute = DType::f64}, "compute: expected f32, bf16 or f16, got f64");
  Model model = open_golden(context, "llama3", {.max_length = 32});
  const ScorerSequence a = model.create();
  const ScorerSequence b = model.create();
  last_logits(context, model, a, random_tokens(20, 512), 20);
  // Pages for 32 tokens, 20 of which are taken: nothing changes.
  EXPECT_THROW(last_logits(context, model, b, random_tokens(30, 512), 30), OutOfMemory);
  EXPECT_EQ(model.length(b), 0);
  EXPECT_EQ(model.length(a), 20);
  EXPECT_THROW(model.length({99}), InvalidArgument);
  const decode::RowCount counts[] = {{b, 30}};
  EXPECT_FALSE(model.fits(counts));
}

}  // namespace
}  // namespace touchstone::model
