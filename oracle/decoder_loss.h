// The mean loss of a decoder in training, a scalar function of its weights:
//
//   x = mask(embedding[token])
//   per layer:  x += mask(wo attention(rope(norm(wq n)), rope(norm(wk n)), wv n))   n = rms_norm(x)
//               x += mask(down (silu(gate n) * (up n)))                             n = rms_norm(x)
//   loss = mean over tokens with a target of log(sum exp(l)) - l[target]            l = head rms_norm(x)
//
// Attention is causal within documents; norms of q and k are optional; masks are given as factors per
// element. Deliberately naive and templated on the scalar; see layer_norm.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace touchstone::oracle {

struct DecoderLossShape {
  std::int64_t layers = 2;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t mlp_width = 0;
  std::int64_t vocabulary = 0;
  std::int64_t window = 0;  // 0 = none
  double theta = 10000;
  double epsilon = 1e-5;
  bool qk_norm = false;
  bool tied_head = false;
};

struct DecoderLossBatch {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> targets;      // below 0: no loss
  std::vector<std::int64_t> positions;    // for the rotation
  std::vector<std::int64_t> documents{};  // of each token: it sees those of its own document only
  // Factor of element (token, column) of mask 0 (embedding, layer 0), 1 (attention) or 2 (MLP).
  std::function<double(std::int64_t layer, int mask, std::int64_t token, std::int64_t column)>
      mask{};
  // Factor of the weight that a token's head gives to another token, after the softmax.
  std::function<double(std::int64_t layer, std::int64_t head, std::int64_t token, std::int64_t key)>
      weight_mask{};
};

// The weights by name, as model files name them ("blk.0.attn_q.weight").
template <class S>
using WeightsByName = std::function<std::span<const S>(const std::string& name)>;

namespace decoder_loss {

template <class S>
using Rows = std::vector<std::vector<S>>;

template <class S>
Rows<S> product(std::span<const S> weight, const Rows<S>& x) {
  const std::size_t in = x[0].size();
  const std::size_t out = weight.size() / in;
  Rows<S> y(x.size(), std::vector<S>(out, S(0.0)));
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t i = 0; i < in; ++i) y[r][o] += weight[o * in + i] * x[r][i];
    }
  }
  return y;
}

// Over `size` neighbors at a time: rows, or the heads of a row.
template <class S>
Rows<S> normed(std::span<const S> weight, const Rows<S>& x, double epsilon) {
  using std::sqrt;
  const std::size_t size = weight.size();
  Rows<S> y = x;
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t first = 0; first < x[r].size(); first += size) {
      S square = 0.0;
      for (std::size_t i = 0; i < size; ++i) square += x[r][first + i] * x[r][first + i];
      const S rstd = S(1.0) / sqrt(square / static_cast<double>(size) + epsilon);
      for (std::size_t i = 0; i < size; ++i) y[r][first + i] = x[r][first + i] * rstd * weight[i];
    }
  }
  return y;
}

template <class S>
void rotate(const DecoderLossShape& s, const DecoderLossBatch& batch, Rows<S>& x) {
  const auto size = static_cast<std::size_t>(s.head_size);
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t first = 0; first < x[r].size(); first += size) {
      for (std::size_t i = 0; i < size / 2; ++i) {
        const double angle =
            static_cast<double>(batch.positions[r]) *
            std::pow(s.theta, -2 * static_cast<double>(i) / static_cast<double>(size));
        const S a = x[r][first + i];
        const S b = x[r][first + i + size / 2];
        x[r][first + i] = a * std::cos(angle) - b * std::sin(angle);
        x[r][first + i + size / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
}

template <class S>
Rows<S> attend(const DecoderLossShape& s, const DecoderLossBatch& batch, std::int64_t layer,
               const Rows<S>& q, const Rows<S>& k, const Rows<S>& v) {
  using std::exp;
  const auto size = static_cast<std::size_t>(s.head_size);
  Rows<S> y(q.size(), std::vector<S>(q[0].size(), S(0.0)));
  for (std::size_t r = 0; r < q.size(); ++r) {
    for (std::size_t head = 0; head < static_cast<std::size_t>(s.heads); ++head) {
      const std::size_t own = head * size;
      const std::size_t shared = head / static_cast<std::size_t>(s.heads / s.kv_heads) * size;
      std::vector<S> weights;
      S sum = 0.0;
      for (std::size_t t = 0; t <= r; ++t) {
        const bool hidden = batch.documents[t] != batch.documents[r] ||
                            (s.window > 0 && static_cast<std::int64_t>(r - t) >= s.window);
        S score = 0.0;
        for (std::size_t i = 0; i < size; ++i) score += q[r][own + i] * k[t][shared + i];
        weights.push_back(hidden ? S(0.0)
                                 : S(exp(score / std::sqrt(static_cast<double>(s.head_size)))));
        sum += weights.back();
      }
      for (std::size_t t = 0; t <= r; ++t) {
        const double kept =
            batch.weight_mask
                ? batch.weight_mask(layer, static_cast<std::int64_t>(head),
                                    static_cast<std::int64_t>(r), static_cast<std::int64_t>(t))
                : 1;
        for (std::size_t i = 0; i < size; ++i) {
          y[r][own + i] += weights[t] / sum * kept * v[t][shared + i];
        }
      }
    }
  }
  return y;
}

template <class S>
void add_masked(const DecoderLossBatch& batch, std::int64_t layer, int mask, const Rows<S>& from,
                Rows<S>& to) {
  for (std::size_t r = 0; r < from.size(); ++r) {
    for (std::size_t c = 0; c < from[r].size(); ++c) {
      const double factor = batch.mask ? batch.mask(layer, mask, static_cast<std::int64_t>(r),
                                                    static_cast<std::int64_t>(c))
                                       : 1;
      to[r][c] += from[r][c] * factor;
    }
  }
}

}  // namespace decoder_loss

// The logits [tokens][vocabulary].
template <class S>
std::vector<std::vector<S>> decoder_logits(const DecoderLossShape& s, const DecoderLossBatch& batch,
                                           const WeightsByName<S>& weights) {
  using std::exp;
  namespace d = decoder_loss;
  const auto width = static_cast<std::size_t>(s.width);
  const std::span<const S> table = weights("token_embd.weight");
  d::Rows<S> rows;
  for (const std::int64_t token : batch.tokens) {
    const S* const from = table.data() + static_cast<std::size_t>(token) * width;
    rows.emplace_back(from, from + width);
  }
  d::Rows<S> x(rows.size(), std::vector<S>(width, S(0.0)));
  d::add_masked(batch, 0, 0, rows, x);
  for (std::int64_t l = 0; l < s.layers; ++l) {
    const auto w = [&](const char* name) {
      return weights("blk." + std::to_string(l) + "." + name + ".weight");
    };
    d::Rows<S> n = d::normed(w("attn_norm"), x, s.epsilon);
    d::Rows<S> q = d::product(w("attn_q"), n);
    d::Rows<S> k = d::product(w("attn_k"), n);
    if (s.qk_norm) {
      q = d::normed(w("attn_q_norm"), q, s.epsilon);
      k = d::normed(w("attn_k_norm"), k, s.epsilon);
    }
    d::rotate(s, batch, q);
    d::rotate(s, batch, k);
    const d::Rows<S> mixed = d::attend(s, batch, l, q, k, d::product(w("attn_v"), n));
    d::add_masked(batch, l, 1, d::product(w("attn_output"), mixed), x);
    n = d::normed(w("ffn_norm"), x, s.epsilon);
    d::Rows<S> hidden = d::product(w("ffn_gate"), n);
    const d::Rows<S> up = d::product(w("ffn_up"), n);
    for (std::size_t r = 0; r < hidden.size(); ++r) {
      for (std::size_t i = 0; i < hidden[r].size(); ++i) {
        hidden[r][i] = hidden[r][i] / (S(1.0) + exp(-hidden[r][i])) * up[r][i];
      }
    }
    d::add_masked(batch, l, 2, d::product(w("ffn_down"), hidden), x);
  }
  return d::product(weights(s.tied_head ? "token_embd.weight" : "output.weight"),
                    d::normed(weights("output_norm.weight"), x, s.epsilon));
}

template <class S>
S decoder_mean_loss(const DecoderLossShape& s, const DecoderLossBatch& batch,
                    const WeightsByName<S>& weights) {
  using std::exp;
  using std::log;
  const std::vector<std::vector<S>> logits = decoder_logits<S>(s, batch, weights);
  S sum = 0.0;
  double counted = 0;
  for (std::size_t r = 0; r < logits.size(); ++r) {
    if (batch.targets[r] < 0) continue;
    S total = 0.0;
    for (const S& logit : logits[r]) total += exp(logit);
    sum += log(total) - logits[r][static_cast<std::size_t>(batch.targets[r])];
    counted += 1;
  }
  return sum / counted;
}

}  // namespace touchstone::oracle
