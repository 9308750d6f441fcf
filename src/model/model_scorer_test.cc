// A model as a Scorer: trees, kept paths, hidden states, memory, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/model_test_support.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/decode/tree.h"
#include "touchstone/io/convert.h"
#include "touchstone/model/random_weights.h"

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

// The outputs of `layers` for a chain of tokens, [layers, tokens, width], in calls of `chunk` rows that
// lie between the rows of another sequence.
std::vector<float> hidden_of(Context& context, Model& model, std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> layers, std::size_t chunk,
                             bool neighbors) {
  const auto width = static_cast<std::size_t>(model.shape().hidden_size);
  std::vector<float> all(layers.size() * tokens.size() * width);
  const ScorerSequence own = model.create();
  const ScorerSequence other = model.create();
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const std::size_t count = std::min(chunk, tokens.size() - begin);
    std::vector<decode::ScoreRow> rows;
    std::vector<std::int32_t> own_rows;
    std::vector<std::int32_t> other_rows;
    for (std::size_t i = 0; i < count; ++i) {
      for (const bool mine : neighbors ? std::vector{false, true} : std::vector{true}) {
        auto& list = mine ? own_rows : other_rows;
        rows.push_back({.sequence = mine ? own : other,
                        .token = mine ? tokens[begin + i] : 7,
                        .position = static_cast<std::int64_t>(begin + i),
                        .parent = list.empty() ? decode::kNoNode : list.back()});
        list.push_back(static_cast<std::int32_t>(rows.size()) - 1);
      }
    }
    const auto n = static_cast<std::int64_t>(rows.size());
    Tensor hidden = Tensor::empty({std::ssize(layers), n, model.shape().hidden_size}, DType::f32,
                                  model.shape().device);
    model.score(context, {.rows = rows, .hidden_layers = layers, .hidden = hidden});
    const std::vector<float> values = test::host_values(context, hidden);
    std::vector<KeptRows> kept = {{own, own_rows}};
    if (neighbors) kept.push_back({other, other_rows});
    model.keep(kept);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t row = layer * rows.size() + static_cast<std::size_t>(own_rows[i]);
        std::copy_n(
            values.begin() + static_cast<std::ptrdiff_t>(row * width), width,
            all.begin() + static_cast<std::ptrdiff_t>((layer * tokens.size() + begin + i) * width));
      }
    }
  }
  model.release(own);
  model.release(other);
  return all;
}

// On CUDA decode steps are graphs: those that keep the outputs of layers too.
TEST(ModelScorer, HiddenStatesHaveTheSameBitsInAnyCall) {
  Context context = test::device_context();
  for (const char* name : {"llama3", "gemma2", "gpt_neox"}) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      const ModelOptions options{
          .compute = compute, .max_length = 64, .sequences = 4, .max_rows = 16};
      Model model = open_golden(context, name, options);
      const std::vector<std::int32_t> tokens = random_tokens(24, 512);
      const std::int32_t layers[] = {0, static_cast<std::int32_t>(model.shape().layers)};
      const std::vector<float> expected = hidden_of(context, model, tokens, layers, 24, false);
      EXPECT_NE(*std::ranges::max_element(expected), 0) << name;
      for (const std::size_t chunk : {std::size_t{1}, std::size_t{5}}) {
        for (const bool neighbors : {false, true}) {
          EXPECT_EQ(expected, hidden_of(context, model, tokens, layers, chunk, neighbors))
              << name << ", " << name_of(compute) << ", chunks of " << chunk;
        }
      }
      // One layer of those alone, recorded apart.
      const std::vector<float> last =
          hidden_of(context, model, tokens, std::span(layers).last(1), 1, false);
      EXPECT_TRUE(std::equal(last.begin(), last.end(), expected.end() - std::ssize(last)));
      if (::touchstone::test::on_gpu()) {
        EXPECT_GT(model.graph_replays(), 60);
      }
    }
  }
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

// A model of random weights is one like any other, and the same whenever it is made.
TEST(ModelScorer, RandomWeightsMakeAModel) {
  Context context = test::device_context();
  io::ModelDescription shape = shape_by_name("smollm2-135m");
  shape.layers.resize(2);
  shape.width = 96;
  shape.ffn_width = 160;
  shape.heads = 6;
  shape.kv_heads = 2;
  shape.head_size = 16;
  shape.rope.dims = 16;
  shape.attention_scale = 0.25;
  shape.vocabulary = 300;
  const std::vector<std::int32_t> tokens = random_tokens(30, 300);
  for (const char* const format : {"bf16", "f32", "q8_0"}) {
    std::vector<float> logits[2];
    for (std::vector<float>& result : logits) {
      Model model(context, shape, random_weights(context, shape, format, 5), {.max_length = 64});
      result = last_logits(context, model, model.create(), tokens, 7);
      EXPECT_THROW(model.file(), InvalidArgument);
      EXPECT_EQ(model.find_nonfinite_weight(), "");
    }
    EXPECT_EQ(logits[0], logits[1]);
    float largest = 0;
    for (const float value : logits[0]) largest = std::max(largest, std::abs(value));
    EXPECT_GT(largest, 0.1F);
    EXPECT_LT(largest, 100.0F);
  }
  EXPECT_THROW(shape_by_name("llama9"), InvalidArgument);
  std::vector<io::UploadedWeight> weights = random_weights(context, shape, "f32", 5);
  weights.pop_back();
  EXPECT_THAT([&] { Model(context, shape, std::move(weights)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("blk.1.ffn_down.weight': is missing")));
  weights = random_weights(context, shape, "f32", 5);
  weights[0].info.format = &weight_format(WeightFormatId::f64);
  EXPECT_THAT(
      [&] { Model(context, shape, std::move(weights)); },
      ThrowsMessage<Unsupported>(HasSubstr("token_embd.weight': models do not run from f64 on ")));
}

// Away and back, while another sequence takes the pages.
TEST(ModelScorer, SwappedSequencesComeBackToTheBit) {
  Context context = test::device_context();
  for (const char* const name : {"llama3", "gemma2"}) {
    Model model = open_golden(
        context, name,
        {.max_length = 64, .sequences = 1, .host_sequences = 1, .share_prefixes = false});
    const std::vector<std::int32_t> tokens = random_tokens(40, 512);
    const std::int32_t next[] = {9};
    const ScorerSequence a = model.create();
    last_logits(context, model, a, tokens, 40);
    const std::vector<float> expected = last_logits(context, model, a, next, 1);
    model.truncate(a, 40);
    const ScorerSequence b = model.create();
    ASSERT_TRUE(model.swap_out(a));
    EXPECT_EQ(model.length(a), 40);
    EXPECT_THROW(model.truncate(a, 3), InvalidArgument);
    EXPECT_THROW(model.fork(a), InvalidArgument);
    EXPECT_THROW(model.swap_out(a), InvalidArgument);
    EXPECT_THROW(last_logits(context, model, a, next, 1), InvalidArgument);
    last_logits(context, model, b, random_tokens(50, 512), 50);
    const decode::RowCount count[] = {{a, 1}};
    EXPECT_FALSE(model.fits(count));
    EXPECT_FALSE(model.swap_in(a));
    EXPECT_FALSE(model.swap_out(b));  // the host has pages for one
    model.release(b);
    EXPECT_TRUE(model.fits(count));
    ASSERT_TRUE(model.swap_in(a));
    EXPECT_EQ(expected, last_logits(context, model, a, next, 1));
    EXPECT_THROW(model.swap_in(a), InvalidArgument);
    ASSERT_TRUE(model.swap_out(a));
    model.release(a);
    EXPECT_EQ(model.cache_statistics().sequences, 0);
  }
  Model plain = open_golden(context, "llama3", {.max_length = 64});
  EXPECT_FALSE(plain.swap_out(plain.create()));
}

// Blocks that are decoded when they are loaded hold the values of the blocks.
TEST(ModelScorer, ExpandedWeightsAreTheValuesOfTheFile) {
  Context context = test::device_context();
  const Json g = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "llama3.json");
  const test::ModelFolder folder("expanded");
  folder.write(g["config"], g["tensors"]);
  const std::filesystem::path file = folder.path() / "blocks.gguf";
  io::convert_model(folder.path(), file, {.format = &weight_format(WeightFormatId::q8_0)});
  const std::vector<std::int32_t> tokens = random_tokens(12, 512);
  std::vector<float> logits[2];
  std::int64_t bytes[2] = {};
  for (std::size_t i = 0; i < 2; ++i) {
    Model model(context, io::ModelFile::open(file), {.max_length = 32, .expand_weights = i == 1});
    logits[i] = last_logits(context, model, model.create(), tokens, 5);
    bytes[i] = model.weight_bytes();
  }
  EXPECT_GT(bytes[1], 2 * bytes[0]);
  float largest = 0;
  for (const float value : logits[0]) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < logits[0].size(); ++i) {
    ASSERT_NEAR(logits[0][i], logits[1][i], 1e-5F * largest) << i;
  }
}

TEST(ModelScorer, CopiedWeightsHaveTheBitsOfTheFile) {
  Context context = test::device_context();
  const Json g = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "llama3.json");
  const test::ModelFolder folder("copied");
  folder.write(g["config"], g["tensors"]);
  const std::vector<std::int32_t> tokens = random_tokens(12, 512);
  std::vector<float> logits[2];
  for (std::size_t i = 0; i < 2; ++i) {
    Model model(context, io::ModelFile::open(folder.path()),
                {.max_length = 32, .copy_weights = i == 1});
    logits[i] = last_logits(context, model, model.create(), tokens, 5);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

// Activations are never f64: weights of f64 are narrowed when they are loaded.
TEST(ModelScorer, RunsFromWeightsOfF64) {
  Context context = test::device_context();
  const Json g = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "llama3.json");
  const test::ModelFolder folder("narrow");
  folder.write(g["config"], g["tensors"]);
  const std::filesystem::path wide = folder.path() / "wide.gguf";
  io::convert_model(folder.path(), wide, {.format = &weight_format("f64")});
  const std::vector<std::int32_t> tokens = random_tokens(12, 512);
  for (const DType compute : {DType::f32, DType::bf16}) {
    std::vector<float> logits[3];
    for (std::size_t i = 0; i < 3; ++i) {
      Model model(context, io::ModelFile::open(i == 0 ? folder.path() : wide),
                  {.compute = compute, .max_length = 32, .copy_weights = i == 2});
      logits[i] = last_logits(context, model, model.create(), tokens, 5);
    }
    EXPECT_EQ(logits[1], logits[0]) << name_of(compute);
    EXPECT_EQ(logits[2], logits[0]) << name_of(compute);
  }
}

TEST(ModelScorer, ProfilesTheOperatorsOfAStep) {
  Context context = test::device_context();
  Model model = open_golden(context, "llama3", {.max_length = 64, .sequences = 2});
  const ScorerSequence a = model.create();
  const std::vector<float> before = last_logits(context, model, a, random_tokens(20, 512), 20);
  const ScorerSequence sequences[] = {a, model.fork(a)};
  const std::vector<StepPart> parts = model.profile_step(context, sequences);
  std::int64_t bytes = 0;
  for (const StepPart& part : parts) {
    EXPECT_GT(part.us, 0) << part.name;
    EXPECT_GT(part.calls, 0) << part.name;
    bytes += part.bytes;
  }
  EXPECT_EQ(parts.front().name, "embedding");
  EXPECT_EQ(parts[parts.size() - 2].name, "head");
  EXPECT_EQ(parts.back().name, "whole step");
  EXPECT_GT(bytes, model.weight_bytes());
  EXPECT_EQ(model.length(a), 20);
  const std::int32_t next[] = {5};
  const std::vector<float> after = last_logits(context, model, a, next, 1);
  EXPECT_EQ(after, last_logits(context, model, sequences[1], next, 1));
  EXPECT_THROW(model.profile_step(context, {}), InvalidArgument);
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
