// A second witness beside transformers: the float64 decoder, its logits and hidden states, with windows
// and attention sinks per layer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/model_test_support.h"
#include "oracle/decoder.h"

namespace touchstone::model {
namespace {

using decode::KeptRows;
using decode::ScorerSequence;

// Writes the folder of a decoder, whose weights are rounded to f32.
void write_decoder(const test::ModelFolder& folder, const oracle::DecoderShape& shape,
                   oracle::DecoderWeights& weights) {
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
}

struct DecoderOutput {
  std::vector<float> logits;  // [tokens, vocabulary]
  std::vector<float> hidden;  // [layers + 1, tokens, width]
};

// Of a chain of tokens, in calls of `chunk` rows.
DecoderOutput output_of(Context& context, decode::Scorer& scorer,
                        std::span<const std::int32_t> tokens, std::size_t chunk) {
  const decode::ScorerShape& shape = scorer.shape();
  std::vector<std::int32_t> layers(static_cast<std::size_t>(shape.layers + 1));
  std::iota(layers.begin(), layers.end(), 0);
  const auto width = static_cast<std::size_t>(shape.hidden_size);
  DecoderOutput output;
  output.hidden.resize(layers.size() * tokens.size() * width);
  const ScorerSequence sequence = scorer.create();
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    const auto part = tokens.subspan(first, std::min(chunk, tokens.size() - first));
    const auto rows = decode::chain_rows(sequence, static_cast<std::int64_t>(first), part);
    std::vector<std::int32_t> all(part.size());
    std::iota(all.begin(), all.end(), 0);
    Tensor logits = Tensor::empty({std::ssize(part), shape.vocabulary}, DType::f32, shape.device);
    Tensor hidden = Tensor::empty({std::ssize(layers), std::ssize(part), shape.hidden_size},
                                  DType::f32, shape.device);
    scorer.score(context, {.rows = rows,
                           .logit_rows = all,
                           .logits = logits,
                           .hidden_layers = layers,
                           .hidden = hidden});
    const KeptRows kept[] = {{sequence, all}};
    scorer.keep(kept);
    const std::vector<float> values = test::host_values(context, logits);
    output.logits.insert(output.logits.end(), values.begin(), values.end());
    const std::vector<float> states = test::host_values(context, hidden);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      std::copy_n(states.begin() + static_cast<std::ptrdiff_t>(layer * part.size() * width),
                  part.size() * width,
                  output.hidden.begin() +
                      static_cast<std::ptrdiff_t>((layer * tokens.size() + first) * width));
    }
  }
  scorer.release(sequence);
  return output;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  double difference = 0;
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
    difference =
        std::max(difference, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return difference / largest;
}

TEST(ModelOracle, AgreesWithTheFloat64Decoder) {
  struct Case {
    std::vector<std::int64_t> windows;
    std::vector<std::int64_t> sinks;
  };
  const Case cases[] = {
      {{6, 6}, {0, 0}}, {{6, 6}, {3, 3}}, {{6, 6}, {0, 5}}, {{0, 9}, {0, 4}}, {{5, 9}, {2, 1}}};
  Context context = test::device_context();
  const std::vector<std::int32_t> tokens = test::random_tokens(40, 40);
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::PrintToString(one.windows) + " sinks " +
                 testing::PrintToString(one.sinks));
    oracle::DecoderShape shape{.eps = 1e-5, .layer_windows = one.windows, .layer_sinks = one.sinks};
    oracle::DecoderWeights weights = oracle::random_decoder(shape, 3);
    const test::ModelFolder folder("decoder");
    write_decoder(folder, shape, weights);
    const io::ModelFile file = io::ModelFile::open(folder.path());
    io::ModelDescription description = file.description();
    for (std::size_t i = 0; i < one.windows.size(); ++i) {
      description.layers[i].window = one.windows[i];
      description.layers[i].sinks = one.sinks[i];
    }
    oracle::DecoderScorer reference(oracle::Decoder(shape, weights));
    const DecoderOutput expected = output_of(context, reference, tokens, tokens.size());
    DecoderOutput whole;
    for (const std::int64_t page : {4, 16}) {
      Model model(context, description, io::upload_weights(context, file),
                  {.max_length = 64, .page_tokens = page, .max_rows = 40});
      const DecoderOutput got = output_of(context, model, tokens, tokens.size());
      EXPECT_LT(largest_difference(got.logits, expected.logits), 2e-6);
      EXPECT_LT(largest_difference(got.hidden, expected.hidden), 2e-6);
      if (whole.logits.empty()) whole = got;
      // Pages behind a window are freed between calls, those of sinks are not.
      for (const std::size_t chunk : {std::size_t{40}, std::size_t{1}, std::size_t{7}}) {
        const DecoderOutput again = output_of(context, model, tokens, chunk);
        EXPECT_EQ(again.logits, whole.logits) << page << ", chunks of " << chunk;
        EXPECT_EQ(again.hidden, whole.hidden) << page << ", chunks of " << chunk;
      }
    }
    if (one.sinks[1] == 0) continue;
    // They are seen: without them the logits differ.
    for (io::LayerDescription& layer : description.layers) layer.sinks = 0;
    Model plain(context, description, io::upload_weights(context, file), {.max_length = 64});
    EXPECT_GT(largest_difference(output_of(context, plain, tokens, 40).logits, expected.logits),
              1e-3);
  }
}

}  // namespace
}  // namespace touchstone::model
