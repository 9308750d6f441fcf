// Speculation on models: logits of nodes to the bit, tokens of plain decoding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "decode/speculative/speculative_test_support.h"
#include "model/model_test_support.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/io/convert.h"
#include "touchstone/model/random_weights.h"

namespace touchstone::model {
namespace {

using decode::KeptRows;
using decode::ScorerSequence;
using test::last_logits;
using test::random_tokens;

// A golden model with a longer context.
Model open_long(Context& context, const char* name, ModelOptions options) {
  Json g = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) /
                           (std::string(name) + ".json"));
  if (g["config"].contains("max_position_embeddings")) {
    g["config"]["max_position_embeddings"] = 4096;
  }
  const test::ModelFolder folder(std::string("speculative_") + name);
  folder.write(g["config"], g["tensors"]);
  if (options.max_length == 0) options.max_length = 2200;
  return {context, io::ModelFile::open(folder.path()), options};
}

struct Setting {
  const char* model;
  bool int8;
};

ModelOptions with_cache(const Setting& setting, ModelOptions options) {
  if (setting.int8) options.keys = options.values = QuantFormat{.dtype = DType::i8};
  return options;
}

// The row of the last token and the nodes below it, in one call, against each path token by token.
TEST(ModelSpeculation, NodesHaveTheLogitsOfPlainDecoding) {
  Context context = test::device_context();
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 505; n <= 515; ++n) lengths.push_back(n);
  for (std::int64_t n = 1020; n <= 1030; ++n) lengths.push_back(n);
  for (std::int64_t n = 2040; n <= 2055; ++n) lengths.push_back(n);
  decode::test::Draws draws(4);
  for (const Setting& setting :
       {Setting{"llama3", false}, Setting{"llama3", true}, Setting{"mistral", false}}) {
    Model model = open_long(context, setting.model, with_cache(setting, {.sequences = 3}));
    const std::vector<std::int32_t> text = random_tokens(2100, 512);
    const ScorerSequence base = model.create();
    std::int64_t known = 0;
    for (const std::int64_t length : lengths) {
      // All but the last token, which is the row of the call.
      const auto more = std::span(text).subspan(static_cast<std::size_t>(known),
                                                static_cast<std::size_t>(length - 1 - known));
      last_logits(context, model, base, more, 128);
      known = length - 1;
      decode::TokenTree tree = decode::chain_tree(
          {.tokens = std::span(text).subspan(static_cast<std::size_t>(known), 1)});
      for (int i = 0; i < 7; ++i) {
        tree.add({.parent = static_cast<std::int32_t>(draws.below(tree.size())),
                  .token = draws.token(512)});
      }
      const auto rows = decode::tree_rows(base, known, tree);
      std::vector<std::int32_t> all(rows.size());
      std::iota(all.begin(), all.end(), 0);
      Tensor scored = Tensor::empty({tree.size(), 512}, DType::f32, model.shape().device);
      model.score(context, {.rows = rows, .logit_rows = all, .logits = scored});
      const std::vector<float> logits = test::host_values(context, scored);
      for (std::int32_t node = 0; node < tree.size(); ++node) {
        if (tree[node].first_child != decode::kNoNode && node % 2 == 1) continue;
        const ScorerSequence path = model.fork(base);
        const std::vector<float> expected =
            last_logits(context, model, path, tree.path_tokens(node), 1);
        model.release(path);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), logits.begin() + node * 512))
            << setting.model << (setting.int8 ? " int8" : "") << ", length " << length << ", node "
            << node;
      }
    }
  }
}

// Two layers with windows and sinks of their own.
io::ModelDescription windowed(std::int64_t window0, std::int64_t sinks0, std::int64_t window1,
                              std::int64_t sinks1) {
  io::ModelDescription d;
  d.width = 64;
  d.ffn_width = 96;
  d.heads = 4;
  d.kv_heads = 2;
  d.head_size = d.rope.dims = 16;
  d.attention_scale = 0.25;
  d.vocabulary = 64;
  d.context = 256;
  d.layers.resize(2);
  d.layers[0].window = window0;
  d.layers[0].sinks = sinks0;
  d.layers[1].window = window1;
  d.layers[1].sinks = sinks1;
  d.tied_head = true;
  return d;
}

// A tree whose paths are longer than the windows, beside a prompt that is, in one call.
TEST(ModelSpeculation, NodesSeeTheWindowsOfTheirPaths) {
  Context context = test::device_context();
  decode::test::Draws draws(9);
  for (const io::ModelDescription& description :
       {windowed(6, 0, 6, 0), windowed(0, 0, 9, 0), windowed(5, 2, 9, 1), windowed(6, 3, 6, 3),
        windowed(1, 0, 0, 0)}) {
    for (const std::int64_t max_rows : {128, 7}) {
      Model model(context, description, random_weights(context, description, "f32", 1),
                  {.max_length = 160, .sequences = 16, .page_tokens = 4, .max_rows = max_rows});
      for (const std::int64_t length : {1, 3, 40}) {
        const std::vector<std::int32_t> text =
            random_tokens(static_cast<std::uint64_t>(length + 50), 64);
        const ScorerSequence base = model.create();
        last_logits(context, model, base, std::span(text).first(static_cast<std::size_t>(length)),
                    5);
        decode::TokenTree tree;
        for (std::int32_t i = 0; i < 40; ++i) {
          const bool deeper = draws.below(8) != 0;
          const auto parent = deeper ? i - 1 : static_cast<std::int32_t>(draws.below(i + 1)) - 1;
          tree.add({.parent = parent, .token = draws.token(64)});
        }
        ASSERT_GT(tree.max_depth(), 10);  // more than a window
        const ScorerSequence prompt = model.create();
        const auto tokens = std::span(text).last(50);
        auto rows = decode::tree_rows(base, length, tree);
        const auto chain = decode::chain_rows(prompt, 0, tokens, tree.size());
        rows.insert(rows.end(), chain.begin(), chain.end());
        std::vector<std::int32_t> all(rows.size());
        std::iota(all.begin(), all.end(), 0);
        Tensor scored = Tensor::empty({std::ssize(rows), 64}, DType::f32, model.shape().device);
        model.score(context, {.rows = rows, .logit_rows = all, .logits = scored});
        const std::vector<float> logits = test::host_values(context, scored);
        const auto same = [&](const std::vector<float>& expected, std::int64_t row) {
          return std::equal(expected.begin(), expected.end(), logits.begin() + row * 64);
        };
        for (std::int32_t node = 0; node < tree.size(); ++node) {
          const ScorerSequence path = model.fork(base);
          EXPECT_TRUE(same(last_logits(context, model, path, tree.path_tokens(node), 1), node))
              << "length " << length << ", node " << node << " of depth " << tree[node].depth;
          model.release(path);
        }
        const ScorerSequence alone = model.create();
        for (std::int32_t i = 0; i < 50; ++i) {
          const auto next = tokens.subspan(static_cast<std::size_t>(i), 1);
          EXPECT_TRUE(same(last_logits(context, model, alone, next, 1), tree.size() + i)) << i;
        }
        for (const ScorerSequence sequence : {base, prompt, alone}) model.release(sequence);
      }
    }
  }
}

decode::Request request_for(std::int64_t length, std::int64_t index, double temperature) {
  decode::Request request{.prompt = random_tokens(static_cast<std::uint64_t>(length), 512),
                          .sampling = {.temperature = temperature, .seed = index},
                          .stop = {.max_tokens = 10 + index % 5},
                          .top_log_probabilities = 1};
  request.prompt.back() = static_cast<std::int32_t>(index);
  if (index % 2 == 1) {
    request.sampling.top_p = 0.9;
    request.sampling.repetition_penalty = 1.1;
    request.sampling.frequency_penalty = 0.2;
  }
  if (index % 3 == 2) {  // ends inside of a draft: rows with a mask and rows without in one tree
    request.stop.min_tokens = 6;
    request.stop.tokens = {static_cast<std::int32_t>(index % 512), 17};
  }
  return request;
}

void compare(Context& context, Model& model, const std::vector<decode::Request>& requests,
             std::int64_t seed, double& accepted) {
  const decode::test::Served plain = decode::test::serve(model, context, requests, {});
  decode::SchedulerOptions options;
  options.speculation.source = std::make_shared<decode::test::RandomSource>(
      seed, 512, decode::test::future_of(decode::test::texts_of(requests, plain)));
  options.speculation.adaptive = false;
  const decode::test::Served drafted = decode::test::serve(model, context, requests, options);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(plain.completions[i][0].tokens, drafted.completions[i][0].tokens) << i;
    EXPECT_TRUE(decode::test::same(plain.completions[i][0], drafted.completions[i][0])) << i;
  }
  EXPECT_EQ(plain.events, drafted.events);
  accepted += static_cast<double>(drafted.speculation.tokens - drafted.speculation.passes);
}

TEST(ModelSpeculation, TokensAreThoseOfPlainDecoding) {
  Context context = test::device_context();
  double accepted = 0;
  std::int64_t seed = 0;
  for (const Setting& setting : {Setting{"qwen3", false}, Setting{"llama3", true},
                                 Setting{"mistral", false}, Setting{"gemma2", true}}) {
    Model model = open_long(context, setting.model,
                            with_cache(setting, {.max_length = 400, .sequences = 33}));
    for (const double temperature : {0.0, 0.7, 1.5}) {
      for (const std::int64_t batch : {1, 3, 32}) {
        std::vector<decode::Request> requests;
        for (std::int64_t i = 0; i < batch; ++i) {
          requests.push_back(request_for(5 + i * 3 % 40, i, temperature));
        }
        compare(context, model, requests, ++seed, accepted);
      }
    }
  }
  EXPECT_GT(accepted, 300);
}

TEST(ModelSpeculation, LongPromptsAndCachesOfFewBits) {
  Context context = test::device_context();
  double accepted = 0;
  for (const Setting& setting : {Setting{"llama3", true}, Setting{"mistral", false}}) {
    Model model = open_long(context, setting.model, with_cache(setting, {.sequences = 3}));
    std::int64_t seed = 100;
    for (const std::int64_t length : {508, 511, 1022, 1024, 2044, 2050}) {
      compare(context, model, {request_for(length, ++seed, 0.7), request_for(length - 3, seed, 0)},
              seed, accepted);
    }
  }
  EXPECT_GT(accepted, 20);
}

// How a target computes: dtype, cache, activations, format of the weights ("" = as they are).
struct Arithmetic {
  const char* name;
  ModelOptions options{};
  const char* weights = "";
};

std::vector<Arithmetic> arithmetics() {
  const auto cache = [](DType compute, DType stored) {
    ModelOptions options{.compute = compute};
    options.keys = options.values = QuantFormat{.dtype = stored};
    return options;
  };
  return {{"bf16", {.compute = DType::bf16}},
          {"f16", {.compute = DType::f16}},
          {"f32 int4", cache(DType::f32, DType::i4)},
          {"bf16 fp8", cache(DType::bf16, DType::f8_e4m3)},
          {"q8_0 int8 activations", {.int8_activations = true}, "q8_0"},
          {"ternary", {}, "ternary_g32"},
          {"ternary int8 activations", {.int8_activations = true}, "ternary_g32"},
          {"ternary bf16 int8", {.compute = DType::bf16, .int8_activations = true}, "ternary_g32"}};
}

// Logits of a tree against each path token by token, then whole texts.
TEST(ModelSpeculation, EveryArithmeticIsIdenticalToItself) {
  Context context = test::device_context();
  Json g = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "llama3.json");
  // Rows of whole groups of 32.
  const auto width = g["config"]["intermediate_size"].get<std::int64_t>();
  g["config"]["intermediate_size"] = 192;
  for (std::size_t i = 0; i < g["tensors"].size(); ++i) {
    auto shape = g["tensors"][i]["shape"].get<std::vector<std::int64_t>>();
    std::ranges::replace(shape, width, 192);
    g["tensors"][i]["shape"] = shape;
  }
  const test::ModelFolder folder("speculative_arithmetic");
  folder.write(g["config"], g["tensors"]);
  decode::test::Draws draws(6);
  double accepted = 0;
  std::int64_t seed = 500;
  for (Arithmetic& setting : arithmetics()) {
    SCOPED_TRACE(setting.name);
    std::filesystem::path path = folder.path();
    if (*setting.weights != '\0') {
      const WeightFormat& format = weight_format(setting.weights);
      io::ConvertOptions convert{.format = &format};
      if (format.ternary) convert.project = TernaryScaleRule::mean;
      path = folder.path() / (std::string(setting.weights) + ".gguf");
      if (!std::filesystem::exists(path)) io::convert_model(folder.path(), path, convert);
    }
    setting.options.max_length = 120;
    setting.options.sequences = 6;
    Model model(context, io::ModelFile::open(path), setting.options);
    const ScorerSequence base = model.create();
    last_logits(context, model, base, random_tokens(70, 512), 32);
    decode::TokenTree tree = decode::chain_tree({.tokens = std::vector<std::int32_t>{9}});
    for (int i = 0; i < 11; ++i) {
      tree.add({.parent = static_cast<std::int32_t>(draws.below(tree.size())),
                .token = draws.token(512)});
    }
    std::vector<std::int32_t> all(static_cast<std::size_t>(tree.size()));
    std::iota(all.begin(), all.end(), 0);
    Tensor scored = Tensor::empty({tree.size(), 512}, DType::f32, model.shape().device);
    model.score(context,
                {.rows = decode::tree_rows(base, 70, tree), .logit_rows = all, .logits = scored});
    const std::vector<float> logits = test::host_values(context, scored);
    for (std::int32_t node = 0; node < tree.size(); ++node) {
      const ScorerSequence sequence = model.fork(base);
      const std::vector<float> expected =
          last_logits(context, model, sequence, tree.path_tokens(node), 1);
      model.release(sequence);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), logits.begin() + node * 512))
          << "node " << node;
    }
    model.release(base);
    std::vector<decode::Request> requests;
    for (std::int64_t i = 0; i < 5; ++i)
      requests.push_back(request_for(9 + 7 * i, i, i < 2 ? 0 : 0.8));
    compare(context, model, requests, ++seed, accepted);
  }
  EXPECT_GT(accepted, 80);
}

// A model that drafts for another one, each with its own cache.
TEST(ModelSpeculation, ADraftModelOfTheSameVocabulary) {
  Context context = test::device_context();
  Model model = open_long(context, "qwen3", {.max_length = 200, .sequences = 4});
  Model draft = open_long(context, "llama3", {.max_length = 200, .sequences = 9});
  std::vector<decode::Request> requests;
  for (std::int64_t i = 0; i < 4; ++i) requests.push_back(request_for(20 + i, i, i < 2 ? 0 : 0.8));
  const decode::test::Served plain = decode::test::serve(model, context, requests, {});
  for (const std::int64_t width : {1, 3}) {
    decode::SchedulerOptions options;
    options.speculation.source =
        decode::model_source(draft, 512, {.width = width, .branch = width});
    options.speculation.adaptive = false;
    const decode::test::Served drafted = decode::test::serve(model, context, requests, options);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(decode::test::same(plain.completions[i][0], drafted.completions[i][0])) << i;
    }
    EXPECT_GT(drafted.speculation.nodes, 10);
  }
  // The same model, in a cache of its own: every greedy draft is accepted.
  Model twin = open_long(context, "qwen3", {.max_length = 200, .sequences = 9});
  decode::SchedulerOptions options;
  options.speculation = {
      .source = decode::model_source(twin, 512), .tree_nodes = 4, .adaptive = false};
  const decode::test::Served drafted = decode::test::serve(model, context, {requests[0]}, options);
  EXPECT_TRUE(decode::test::same(plain.completions[0][0], drafted.completions[0][0]));
  const decode::SpeculationStatistics& s = drafted.speculation;
  EXPECT_EQ(s.accepted[0], s.offered[0]);
  EXPECT_GE(static_cast<double>(s.tokens) / static_cast<double>(s.passes), 4);
}

}  // namespace
}  // namespace touchstone::model
