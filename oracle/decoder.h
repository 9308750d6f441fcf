// A decoder-only transformer in float64, from its tokens to its logits without any cache:
//
//   x = embedding[token]
//   per layer:  x += wo attention(rope(wq n), rope(wk n), wv n)     n = rms_norm(x)
//               x += down (silu(gate n) * (up n))                   n = rms_norm(x)
//   logits = head rms_norm(x)
//
// Grouped query heads, RoPE over halves, causal attention with optional windows and sinks.
// Deliberately naive: the whole path is computed anew for every token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "oracle/decoder_parts.h"
#include "oracle/path_scorer.h"

namespace touchstone::oracle {

struct DecoderShape {
  std::int64_t layers = 2;
  std::int64_t width = 32;
  std::int64_t query_heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 8;
  std::int64_t mlp_width = 48;
  std::int64_t vocabulary = 40;
  std::int64_t max_length = 256;
  std::int64_t window = 0;  // 0 = none
  double rope_base = 10000;
  double eps = 1e-5;
  // Instead of `window`, one per layer; sinks are the first positions that a window keeps.
  std::vector<std::int64_t> layer_windows{};
  std::vector<std::int64_t> layer_sinks{};
};

struct DecoderLayer {
  std::vector<double> attention_norm, wq, wk, wv, wo, mlp_norm, gate, up, down;
};

struct DecoderWeights {
  std::vector<double> embedding, final_norm, head;
  std::vector<DecoderLayer> layers;
};

// Weights of a size that keeps every layer alive: uniform in +-sqrt(3 / in), norms around one.
inline DecoderWeights random_decoder(const DecoderShape& s, std::int64_t seed) {
  std::int64_t index = 0;
  const auto matrix = [&](std::int64_t out, std::int64_t in) {
    std::vector<double> values(static_cast<std::size_t>(out * in));
    for (double& value : values) {
      value = std::sqrt(3.0 / static_cast<double>(in)) *
              (2 * random_uniform(seed, index++, RandomPurpose::initialize) - 1);
    }
    return values;
  };
  const auto norm = [&] {
    std::vector<double> values = matrix(1, s.width);
    for (double& value : values) value += 1;
    return values;
  };
  DecoderWeights w;
  w.embedding = matrix(s.vocabulary, s.width);
  for (double& value : w.embedding) value *= std::sqrt(static_cast<double>(s.width));
  const std::int64_t q = s.query_heads * s.head_dim;
  const std::int64_t kv = s.kv_heads * s.head_dim;
  for (std::int64_t l = 0; l < s.layers; ++l) {
    DecoderLayer& layer = w.layers.emplace_back();
    layer.attention_norm = norm();
    layer.wq = matrix(q, s.width);
    layer.wk = matrix(kv, s.width);
    layer.wv = matrix(kv, s.width);
    layer.wo = matrix(s.width, q);
    layer.mlp_norm = norm();
    layer.gate = matrix(s.mlp_width, s.width);
    layer.up = matrix(s.mlp_width, s.width);
    layer.down = matrix(s.width, s.mlp_width);
  }
  w.final_norm = norm();
  w.head = matrix(s.vocabulary, s.width);
  for (double& value : w.head) value *= 2;
  return w;
}

class Decoder {
 public:
  Decoder(DecoderShape shape, DecoderWeights weights) : s_(shape), w_(std::move(weights)) {}

  const DecoderShape& shape() const { return s_; }
  const DecoderWeights& weights() const { return w_; }

  // Logits [vocabulary] after the last token, and its hidden states [layers + 1, width].
  void run(std::span<const std::int32_t> tokens, std::span<double> logits,
           std::span<double> hidden) const {
    Rows x = decoder_parts::embedded<double>(w_.embedding, tokens, s_.width);
    const auto keep_hidden = [&](std::int64_t layer) {
      std::ranges::copy(x.back(), hidden.begin() + layer * s_.width);
    };
    keep_hidden(0);
    for (std::int64_t l = 0; l < s_.layers; ++l) {
      const DecoderLayer& layer = w_.layers[static_cast<std::size_t>(l)];
      decoder_parts::add(x, attention_block(layer, normed(x, layer.attention_norm), l));
      decoder_parts::add(x, mlp_block(layer, normed(x, layer.mlp_norm)));
      keep_hidden(l + 1);
    }
    std::ranges::copy(product(w_.head, normed({x.back()}, w_.final_norm))[0], logits.begin());
  }

 private:
  using Rows = decoder_parts::Rows<double>;

  static Rows product(const std::vector<double>& w, const Rows& x) {
    return decoder_parts::product<double>(w, x);
  }
  Rows normed(const Rows& x, const std::vector<double>& weight) const {
    return decoder_parts::normed<double>(weight, x, s_.eps);
  }
  Rows attention_block(const DecoderLayer& layer, const Rows& x, std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    const std::int64_t window = s_.layer_windows.empty() ? s_.window : s_.layer_windows[at];
    const std::int64_t sinks = s_.layer_sinks.empty() ? 0 : s_.layer_sinks[at];
    std::vector<std::int64_t> positions(x.size());
    std::iota(positions.begin(), positions.end(), 0);
    Rows q = product(layer.wq, x);
    Rows k = product(layer.wk, x);
    for (Rows* rows : {&q, &k}) {
      decoder_parts::rotate(*rows, positions, s_.head_dim, s_.rope_base);
    }
    const auto attends_to = [&](std::size_t query, std::size_t key) {
      const auto back = static_cast<std::int64_t>(query) - static_cast<std::int64_t>(key);
      const bool in_window = window == 0 || back < window || static_cast<std::int64_t>(key) < sinks;
      return back >= 0 && in_window;
    };
    return product(layer.wo, decoder_parts::attend(q, k, product(layer.wv, x), s_.head_dim,
                                                   attends_to, decoder_parts::keep_all));
  }
  static Rows mlp_block(const DecoderLayer& layer, const Rows& x) {
    return product(layer.down, decoder_parts::gated(product(layer.gate, x), product(layer.up, x)));
  }

  DecoderShape s_;
  DecoderWeights w_;
};

// The decoder behind the interface of a model.
class DecoderScorer : public PathScorer {
 public:
  explicit DecoderScorer(Decoder decoder)
      : PathScorer({.vocabulary = decoder.shape().vocabulary,
                    .max_length = decoder.shape().max_length,
                    .layers = decoder.shape().layers,
                    .hidden_size = decoder.shape().width}),
        decoder_(std::move(decoder)) {}

 private:
  void score_path(const std::vector<std::int32_t>& path, std::span<double> logits,
                  std::span<double> hidden) override {
    decoder_.run(path, logits, hidden);
  }

  Decoder decoder_;
};

}  // namespace touchstone::oracle
