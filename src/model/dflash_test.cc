// The block draft against a float64 reference, and as a source of drafts.
#include "touchstone/model/dflash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "decode/speculative/speculative_test_support.h"
#include "model/model_test_support.h"
#include "touchstone/core/error.h"

namespace touchstone::model {
namespace {

using decode::ScorerSequence;
using test::random_tokens;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Vector = std::vector<double>;

constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kVocabulary = 512;
constexpr std::int64_t kBlock = 6;

Json draft_config() {
  return Json::parse(R"({
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "vocab_size": 512, "block_size": 6,
    "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "hidden_act": "silu", "attention_bias": false,
    "dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 1]}})");
}

Json draft_tensors() {
  Json list = Json::array();
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const bool norm = shape.size() == 1;
    const double scale = norm ? 0.3 : std::sqrt(3.0 / static_cast<double>(shape[1]));
    list.push_back(
        Json{{"name", name}, {"shape", shape}, {"scale", scale}, {"shift", norm ? 1.0 : 0.0}});
  };
  add("fc.weight", {kWidth, 2 * kWidth});
  add("hidden_norm.weight", {kWidth});
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    add(layer + "input_layernorm.weight", {kWidth});
    add(layer + "self_attn.q_proj.weight", {64, kWidth});
    add(layer + "self_attn.k_proj.weight", {32, kWidth});
    add(layer + "self_attn.v_proj.weight", {32, kWidth});
    add(layer + "self_attn.o_proj.weight", {kWidth, 64});
    add(layer + "self_attn.q_norm.weight", {16});
    add(layer + "self_attn.k_norm.weight", {16});
    add(layer + "post_attention_layernorm.weight", {kWidth});
    add(layer + "mlp.gate_proj.weight", {96, kWidth});
    add(layer + "mlp.up_proj.weight", {96, kWidth});
    add(layer + "mlp.down_proj.weight", {kWidth, 96});
  }
  add("norm.weight", {kWidth});
  return list;
}

Model open_target(Context& context, const ModelOptions& options) {
  const Json g = test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / "llama3.json");
  const test::ModelFolder folder("dflash_target");
  folder.write(g["config"], g["tensors"]);
  return {context, io::ModelFile::open(folder.path()), options};
}

// The draft in float64, from the features of all tokens, without any cache.
class Reference {
 public:
  Reference() {
    const Json tensors = draft_tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto shape = tensors[i]["shape"].get<std::vector<std::int64_t>>();
      const std::int64_t count =
          std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
      const auto values = test::random_values(i, count, tensors[i]["scale"].get<double>(),
                                              tensors[i]["shift"].get<double>());
      weights_[tensors[i]["name"].get<std::string>()] = {values.begin(), values.end()};
    }
  }

  // hidden: [taps][tokens][width]; block: embeddings of its positions. Rows after the final norm.
  std::vector<Vector> run(const std::vector<std::vector<Vector>>& hidden,
                          std::vector<Vector> block) const {
    std::vector<Vector> features;
    for (std::size_t t = 0; t < hidden[0].size(); ++t) {
      Vector all;
      for (const auto& tap : hidden) all.insert(all.end(), tap[t].begin(), tap[t].end());
      features.push_back(norm(times("fc.weight", all), "hidden_norm.weight"));
    }
    const std::size_t context = features.size();
    for (const std::string layer : {"layers.0.", "layers.1."}) {
      std::vector<Vector> inputs;
      for (const Vector& x : block) inputs.push_back(norm(x, layer + "input_layernorm.weight"));
      std::vector<Vector> keys;
      std::vector<Vector> values;
      for (std::size_t t = 0; t < context + block.size(); ++t) {
        const Vector& from = t < context ? features[t] : inputs[t - context];
        keys.push_back(rotated(times(layer + "self_attn.k_proj.weight", from),
                               layer + "self_attn.k_norm.weight", t));
        values.push_back(times(layer + "self_attn.v_proj.weight", from));
      }
      for (std::size_t b = 0; b < block.size(); ++b) {
        const Vector q = rotated(times(layer + "self_attn.q_proj.weight", inputs[b]),
                                 layer + "self_attn.q_norm.weight", context + b);
        add(block[b], times(layer + "self_attn.o_proj.weight", attend(q, keys, values)));
      }
      for (Vector& x : block) {
        const Vector in = norm(x, layer + "post_attention_layernorm.weight");
        Vector gate = times(layer + "mlp.gate_proj.weight", in);
        const Vector up = times(layer + "mlp.up_proj.weight", in);
        for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        add(x, times(layer + "mlp.down_proj.weight", gate));
      }
    }
    for (Vector& x : block) x = norm(x, "norm.weight");
    return block;
  }

 private:
  static void add(Vector& x, const Vector& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  Vector times(const std::string& name, const Vector& x) const {
    const Vector& w = weights_.at(name);
    Vector y;
    for (auto row = w.begin(); row != w.end(); row += static_cast<std::ptrdiff_t>(x.size())) {
      y.push_back(std::inner_product(x.begin(), x.end(), row, 0.0));
    }
    return y;
  }
  Vector norm(const Vector& x, const std::string& name) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    Vector y = weights_.at(name);
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] *= x[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    }
    return y;
  }
  Vector rotated(const Vector& x, const std::string& name, std::size_t position) const {
    Vector y;
    for (std::size_t head = 0; head < x.size(); head += 16) {
      const auto from = x.begin() + static_cast<std::ptrdiff_t>(head);
      const Vector even = norm({from, from + 16}, name);
      Vector turned(16);
      for (std::size_t i = 0; i < 8; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(5000.0, -static_cast<double>(i) / 8);
        turned[i] = even[i] * std::cos(angle) - even[i + 8] * std::sin(angle);
        turned[i + 8] = even[i + 8] * std::cos(angle) + even[i] * std::sin(angle);
      }
      y.insert(y.end(), turned.begin(), turned.end());
    }
    return y;
  }
  // Four heads of queries, two of keys; every position is seen.
  static Vector attend(const Vector& q, const std::vector<Vector>& keys,
                       const std::vector<Vector>& values) {
    Vector out(64, 0.0);
    for (std::size_t head = 0; head < 4; ++head) {
      const std::size_t kv = head / 2 * 16;
      Vector weights;
      double total = 0;
      for (const Vector& k : keys) {
        double dot = 0;
        for (std::size_t i = 0; i < 16; ++i) dot += q[head * 16 + i] * k[kv + i];
        weights.push_back(std::exp(dot / 4));
        total += weights.back();
      }
      for (std::size_t t = 0; t < keys.size(); ++t) {
        for (std::size_t i = 0; i < 16; ++i) {
          out[head * 16 + i] += weights[t] / total * values[t][kv + i];
        }
      }
    }
    return out;
  }

  std::map<std::string, Vector> weights_;
};

std::vector<Vector> rows_of(const std::vector<float>& values, std::int64_t columns) {
  std::vector<Vector> rows;
  for (auto at = values.begin(); at != values.end(); at += columns) {
    rows.emplace_back(at, at + columns);
  }
  return rows;
}

TEST(DFlash, BlockLogitsAreThoseOfTheReference) {
  Context context = test::device_context();
  Model target = open_target(context, {.max_length = 128});
  const test::ModelFolder folder("dflash");
  folder.write(draft_config(), draft_tensors());
  DFlash draft(context, folder.path(), target);
  EXPECT_THAT(draft.hidden_layers(), testing::ElementsAre(1, 2));
  const std::vector<std::int32_t> tokens = random_tokens(23, kVocabulary);
  const ScorerSequence sequence = target.create();
  const auto rows = decode::chain_rows(sequence, 0, tokens);
  Tensor hidden = Tensor::empty({2, 23, kWidth}, DType::f32, target.shape().device);
  target.score(context, {.rows = rows, .hidden_layers = draft.hidden_layers(), .hidden = hidden});
  // In pieces that are no neighbors of each other: 0-9, then 10-21 as single rows and pairs.
  std::vector<std::int32_t> all(22);
  std::iota(all.begin(), all.end(), 0);
  draft.observe(context, {.id = 3, .rows = std::span(all).first(10), .hidden = hidden});
  draft.observe(context,
                {.id = 3, .position = 10, .rows = std::span(all).subspan(10), .hidden = hidden});
  EXPECT_EQ(draft.observed(3), 22);
  Tensor logits = Tensor::empty({kBlock - 1, kVocabulary}, DType::f32, target.shape().device);
  draft.block_logits(context, 3, tokens[22], logits);
  const std::vector<float> found = test::host_values(context, logits);

  const std::vector<Vector> states = rows_of(test::host_values(context, hidden), kWidth);
  std::vector<std::vector<Vector>> taps(2);
  for (std::size_t tap = 0; tap < 2; ++tap) {
    taps[tap] = {states.begin() + static_cast<std::ptrdiff_t>(23 * tap),
                 states.begin() + static_cast<std::ptrdiff_t>(23 * tap + 22)};
  }
  Tensor ids = Tensor::empty({kBlock}, DType::i32);
  std::ranges::fill(ids.values<std::int32_t>(), 7);
  ids.values<std::int32_t>()[0] = tokens[22];
  const Tensor there = ids.to(context.device());
  Tensor embedded = Tensor::empty({kBlock, kWidth}, DType::f32, target.shape().device);
  target.embed(context, there, embedded);
  const std::vector<Vector> last =
      Reference().run(taps, rows_of(test::host_values(context, embedded), kWidth));
  Tensor narrow = Tensor::empty({kBlock - 1, kWidth}, DType::f32);
  for (std::size_t i = 1; i < last.size(); ++i) {
    std::ranges::copy(
        last[i], narrow.values<float>().begin() + static_cast<std::ptrdiff_t>((i - 1) * kWidth));
  }
  const Tensor on_device = narrow.to(context.device());
  Tensor expected = Tensor::empty({kBlock - 1, kVocabulary}, DType::f32, target.shape().device);
  target.head(context, on_device, expected);
  const std::vector<float> reference = test::host_values(context, expected);
  float largest = 0;
  for (const float value : reference) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < reference.size(); ++i) {
    ASSERT_NEAR(found[i], reference[i], 2e-5F * largest) << i;
  }
  // A block leaves no trace: the same again, and after it was computed anew from token 15 on.
  draft.block_logits(context, 3, tokens[22], logits);
  EXPECT_EQ(test::host_values(context, logits), found);
  draft.observe(context,
                {.id = 3, .position = 15, .rows = std::span(all).subspan(15), .hidden = hidden});
  draft.block_logits(context, 3, tokens[22], logits);
  EXPECT_EQ(test::host_values(context, logits), found);
  draft.copy(context, 3, 4);
  draft.block_logits(context, 4, tokens[22], logits);
  EXPECT_EQ(test::host_values(context, logits), found);
  // Hidden states are buffered and projected in batches: the same bits for any batch, of more rows
  // than the buffer holds too.
  std::vector<std::int32_t> many;
  for (std::int32_t i = 0; i < 600; ++i) many.push_back(i * 5 % 23);
  draft.observe(context, {.id = 5, .rows = many, .hidden = hidden});
  draft.block_logits(context, 5, tokens[22], logits);
  const std::vector<float> at_once = test::host_values(context, logits);
  for (std::size_t first = 0; first < many.size(); first += 25) {
    draft.observe(context, {.id = 6,
                            .position = static_cast<std::int64_t>(first),
                            .rows = std::span(many).subspan(first, 25),
                            .hidden = hidden});
    if (first % 50 == 0 && first < 200) draft.block_logits(context, 6, tokens[22], logits);
    // Scored again after a preemption: from among the buffered rows, and from before them.
    if (first == 75 || first == 325) {
      const std::size_t again = first == 75 ? 90 : 30;
      draft.observe(context, {.id = 6,
                              .position = static_cast<std::int64_t>(again),
                              .rows = std::span(many).subspan(again, first + 25 - again),
                              .hidden = hidden});
    }
    EXPECT_EQ(draft.observed(6), static_cast<std::int64_t>(first + 25));
  }
  draft.block_logits(context, 6, tokens[22], logits);
  EXPECT_EQ(test::host_values(context, logits), at_once);
  EXPECT_THROW(draft.observe(context, {.id = 9, .position = 4, .hidden = hidden}), InvalidArgument);
}

TEST(DFlash, TokensAreThoseOfPlainDecoding) {
  Context context = test::device_context();
  Model target = open_target(context, {.max_length = 96, .sequences = 6});
  const test::ModelFolder folder("dflash_source");
  folder.write(draft_config(), draft_tensors());
  std::vector<decode::Request> requests;
  for (std::int64_t i = 0; i < 4; ++i) {
    decode::Request request{.prompt = random_tokens(static_cast<std::uint64_t>(9 + i), kVocabulary),
                            .sampling = {.temperature = i % 2 == 0 ? 0 : 0.8, .seed = i},
                            .stop = {.max_tokens = 12}};
    request.samples = i == 1 ? 2 : 1;
    requests.push_back(std::move(request));
  }
  const decode::test::Served plain = decode::test::serve(target, context, requests, {});
  decode::SchedulerOptions options{.max_rows = 16};
  options.speculation.source = std::make_shared<DFlash>(context, folder.path(), target);
  options.speculation.adaptive = false;
  const decode::test::Served drafted = decode::test::serve(target, context, requests, options);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::size_t s = 0; s < plain.completions[i].size(); ++s) {
      EXPECT_TRUE(decode::test::same(plain.completions[i][s], drafted.completions[i][s])) << i;
    }
  }
  EXPECT_GT(drafted.speculation.nodes, 100);
}

TEST(DFlash, RefusesByName) {
  Context context = test::device_context();
  Model target = open_target(context, {.max_length = 64});
  const auto refused = [&](const char* key, const Json& value, const char* message) {
    const test::ModelFolder folder("dflash_bad");
    Json config = draft_config();
    config[key] = value;
    folder.write(config, draft_tensors());
    try {
      DFlash draft(context, folder.path(), target);
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  refused("vocab_size", 500, "vocabulary: expected 512, that of the target, got 500");
  refused("hidden_size", 32, "width: expected 64, that of the target, got 32");
  refused("hidden_act", "gelu", "expected silu, got gelu");
  refused("block_size", 1, "block_size: expected 2 to 256, got 1");
  refused("intermediate_size", 95, "mlp.gate_proj.weight: expected weights of shape [95, 64]");
  refused("layer_types", Json::parse(R"(["sliding_attention"])"), "expected full_attention");
  refused("dflash_config", Json::parse(R"({"mask_token_id": 7, "target_layer_ids": [1, 5]})"),
          "layer 5 is not one of 2 layers");
  refused("dflash_config", Json::parse(R"({"target_layer_ids": [1]})"), "mask_token_id");
}

}  // namespace
}  // namespace touchstone::model
