// A decoder-only transformer in float64, from its tokens to its logits without any cache:
//
//   x = embedding[token]
//   per layer:  x += wo attention(rope(wq n), rope(wk n), wv n)     n = rms_norm(x)
//               x += down (silu(gate n) * (up n))                   n = rms_norm(x)
//   logits = head rms_norm(x)
//
// Grouped query heads, RoPE over halves, causal attention with optional windows and sinks. Matrices are
// [out, in], row-major. Deliberately naive: the whole path is computed anew for every token.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "oracle/attention.h"
#include "oracle/norm.h"
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
    const auto rows = static_cast<std::int64_t>(tokens.size());
    std::vector<double> x(tokens.size() * static_cast<std::size_t>(s_.width));
    for (std::int64_t t = 0; t < rows; ++t) {
      const double* from = w_.embedding.data() + tokens[static_cast<std::size_t>(t)] * s_.width;
      std::copy_n(from, s_.width, x.begin() + t * s_.width);
    }
    const auto keep_hidden = [&](std::int64_t layer) {
      std::copy_n(x.end() - s_.width, s_.width, hidden.begin() + layer * s_.width);
    };
    keep_hidden(0);
    for (std::int64_t l = 0; l < s_.layers; ++l) {
      const DecoderLayer& layer = w_.layers[static_cast<std::size_t>(l)];
      add(x, attention_block(layer, normed(x, layer.attention_norm, rows), rows, l));
      add(x, mlp_block(layer, normed(x, layer.mlp_norm, rows), rows));
      keep_hidden(l + 1);
    }
    const std::vector<double> last =
        product(w_.head, normed({x.end() - s_.width, x.end()}, w_.final_norm, 1), 1, s_.width);
    std::copy(last.begin(), last.end(), logits.begin());
  }

 private:
  static void add(std::vector<double>& x, const std::vector<double>& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  // [rows, out] of x [rows, in] and w [out, in].
  static std::vector<double> product(const std::vector<double>& w, const std::vector<double>& x,
                                     std::int64_t rows, std::int64_t in) {
    const auto out = static_cast<std::int64_t>(w.size()) / in;
    std::vector<double> y(static_cast<std::size_t>(rows * out));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (std::int64_t i = 0; i < in; ++i) {
          sum += w[static_cast<std::size_t>(o * in + i)] * x[static_cast<std::size_t>(r * in + i)];
        }
        y[static_cast<std::size_t>(r * out + o)] = sum;
      }
    }
    return y;
  }
  std::vector<double> normed(const std::vector<double>& x, const std::vector<double>& weight,
                             std::int64_t rows) const {
    std::vector<double> y(x.size());
    norm_forward<double>({.norm = Norm::rms,
                          .rows = rows,
                          .cols = s_.width,
                          .eps = s_.eps,
                          .x = x.data(),
                          .weight = weight.data(),
                          .y = y.data()});
    return y;
  }
  // [rows, heads, head_dim] to [heads, rows, head_dim], rotated by position if asked.
  std::vector<double> heads_first(const std::vector<double>& x, std::int64_t rows,
                                  std::int64_t heads, bool rotate) const {
    std::vector<double> y(x.size());
    const std::int64_t half = s_.head_dim / 2;
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const double* from = x.data() + (t * heads + h) * s_.head_dim;
        double* to = y.data() + (h * rows + t) * s_.head_dim;
        std::copy_n(from, s_.head_dim, to);
        for (std::int64_t i = 0; rotate && i < half; ++i) {
          const double exponent = -2 * static_cast<double>(i) / static_cast<double>(s_.head_dim);
          const double angle = static_cast<double>(t) * std::pow(s_.rope_base, exponent);
          to[i] = from[i] * std::cos(angle) - from[i + half] * std::sin(angle);
          to[i + half] = from[i + half] * std::cos(angle) + from[i] * std::sin(angle);
        }
      }
    }
    return y;
  }
  std::vector<double> attention_block(const DecoderLayer& layer, const std::vector<double>& x,
                                      std::int64_t rows, std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    const auto q = heads_first(product(layer.wq, x, rows, s_.width), rows, s_.query_heads, true);
    const auto k = heads_first(product(layer.wk, x, rows, s_.width), rows, s_.kv_heads, true);
    const auto v = heads_first(product(layer.wv, x, rows, s_.width), rows, s_.kv_heads, false);
    std::vector<double> output(q.size());
    attention<double>({.queries = rows,
                       .keys = rows,
                       .query_heads = s_.query_heads,
                       .kv_heads = s_.kv_heads,
                       .k_dim = s_.head_dim,
                       .v_dim = s_.head_dim,
                       .q = q.data(),
                       .k = k.data(),
                       .v = v.data(),
                       .scale = 1 / std::sqrt(static_cast<double>(s_.head_dim)),
                       .causal = true,
                       .window = s_.layer_windows.empty() ? s_.window : s_.layer_windows[at],
                       .sinks = s_.layer_sinks.empty() ? 0 : s_.layer_sinks[at],
                       .output = output.data()});
    std::vector<double> token_major(output.size());
    for (std::int64_t h = 0; h < s_.query_heads; ++h) {
      for (std::int64_t t = 0; t < rows; ++t) {
        std::copy_n(output.begin() + (h * rows + t) * s_.head_dim, s_.head_dim,
                    token_major.begin() + (t * s_.query_heads + h) * s_.head_dim);
      }
    }
    return product(layer.wo, token_major, rows, s_.query_heads * s_.head_dim);
  }
  std::vector<double> mlp_block(const DecoderLayer& layer, const std::vector<double>& x,
                                std::int64_t rows) const {
    std::vector<double> gate = product(layer.gate, x, rows, s_.width);
    const std::vector<double> up = product(layer.up, x, rows, s_.width);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return product(layer.down, gate, rows, s_.mlp_width);
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
