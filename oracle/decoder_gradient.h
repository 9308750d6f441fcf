// The gradient of decoder_loss.h by hand, in float64, with a function applied to every intermediate result
// that training in 16 bits stores: rounding it gives what such a run computes, and a random error in its
// place shows how far rounding can move a gradient (docs/design/training.md, "What bf16 costs").
//
// Deliberately naive, and written from the formulas: it shares nothing with src/train but the list of
// what is stored.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "oracle/decoder_loss.h"

namespace touchstone::oracle {

// What is stored, in the order of a step. Those of tensor cores are operands that only CUDA rounds.
enum class Stored {
  masked,       // embedding, and what a block adds, after dropout
  sum,          // the residual stream
  normed,       // of the stream, of q and k
  projected,    // q, k, v; gate, up; what a block adds
  rotated,      // q, k
  probability,  // attention's weights (tensor cores)
  mixed,        // attention's result
  hidden,       // silu(gate) * up
  dlogits,      // (tensor cores)
  dnormed,      // gradient of the input of a block or the head
  dstream,      // of the residual stream
  dmasked,      // of the stream under a mask
  dhidden,
  dgate,  // of gate and up
  dmixed,
  dscore,    // of attention's scores (tensor cores)
  dqkv,      // of rotated q and k, of v
  drotated,  // of q and k before the rotation
  dhead,     // of q and k before their norms
  // Terms of a formula, never stored by themselves: tests perturb them.
  norm_term,    // mean(w dy y') of a norm's gradient
  score_term,   // <dy, y> of attention's
  silu_term,    // gate (1 - sigmoid) of silu's slope
  stream_term,  // what reaches the stream directly
};

using Store = std::function<double(Stored what, double value)>;

struct DecoderGradient {
  double loss = 0;
  std::map<std::string, std::vector<double>> of{};  // by the names of the weights
};

class DecoderGradientPass {
 public:
  using Rows = decoder_parts::Rows<double>;
  using Weights = WeightsByName<double>;

  DecoderGradientPass(const DecoderLossShape& shape, const DecoderLossBatch& batch,
                      const Weights& weights, Store store)
      : s_(shape), batch_(batch), weights_(weights), store_(std::move(store)) {}

  DecoderGradient run() {
    Rows x = masked(
        0, 0, decoder_parts::embedded(weights_("token_embd.weight"), batch_.tokens, s_.width));
    std::vector<Layer> layers(static_cast<std::size_t>(s_.layers));
    for (std::int64_t l = 0; l < s_.layers; ++l) x = forward(l, std::move(x), layers[at(l)]);
    Rows g = head(x);
    for (std::int64_t l = s_.layers; l-- > 0;) g = backward(l, layers[at(l)], std::move(g));
    add_embedding(g);
    return std::move(result_);
  }

 private:
  struct Layer {
    Rows x1, n1, q_raw, k_raw, q, k, v, mixed, x2, n2, gate, up, hidden;
    std::vector<std::vector<std::vector<double>>> p;  // [token][head][key]
  };

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static std::string name(std::int64_t layer, const char* part) {
    return "blk." + std::to_string(layer) + "." + part + ".weight";
  }
  Rows stored(Stored what, Rows x) const {
    for (auto& row : x) {
      for (double& value : row) value = store_(what, value);
    }
    return x;
  }
  double factor(std::int64_t layer, int mask, std::size_t row, std::size_t column) const {
    return batch_.mask(layer, mask, static_cast<std::int64_t>(row),
                       static_cast<std::int64_t>(column));
  }
  Rows masked(std::int64_t layer, int mask, Rows x, Stored what = Stored::masked) const {
    if (!batch_.mask) return x;
    for (std::size_t r = 0; r < x.size(); ++r) {
      for (std::size_t c = 0; c < x[r].size(); ++c) x[r][c] *= factor(layer, mask, r, c);
    }
    return stored(what, std::move(x));
  }
  Rows linear(const std::string& weight, const Rows& x) const {
    return stored(Stored::projected, decoder_parts::product(weights_(weight), x));
  }
  // W^T dy; adds dy x^T to the gradient of W.
  Rows linear_back(const std::string& weight, const Rows& dy, const Rows& x) {
    const std::span<const double> w = weights_(weight);
    std::vector<double>& dw = gradient(weight);
    Rows dx(x.size(), std::vector<double>(x[0].size()));
    for (std::size_t r = 0; r < x.size(); ++r) {
      for (std::size_t o = 0; o < dy[r].size(); ++o) {
        for (std::size_t i = 0; i < x[r].size(); ++i) {
          dx[r][i] += dy[r][o] * w[o * x[r].size() + i];
          dw[o * x[r].size() + i] += dy[r][o] * x[r][i];
        }
      }
    }
    return dx;
  }
  Rows norm(const std::string& weight, const Rows& x) const {
    return stored(Stored::normed, decoder_parts::normed(weights_(weight), x, s_.epsilon));
  }
  // Of y = w x / rms: dx = (w dy - y' mean(w dy y')) / rms with y' = x / rms.
  Rows norm_back(const std::string& weight, const Rows& dy, const Rows& x) {
    const std::span<const double> w = weights_(weight);
    std::vector<double>& dw = gradient(weight);
    Rows dx = x;
    for (std::size_t r = 0; r < x.size(); ++r) {
      for (std::size_t first = 0; first < x[r].size(); first += w.size()) {
        double square = 0;
        for (std::size_t i = 0; i < w.size(); ++i) square += x[r][first + i] * x[r][first + i];
        const double rms = std::sqrt(square / static_cast<double>(w.size()) + s_.epsilon);
        double mean = 0;
        for (std::size_t i = 0; i < w.size(); ++i) {
          mean += w[i] * dy[r][first + i] * x[r][first + i] / rms / static_cast<double>(w.size());
        }
        mean = store_(Stored::norm_term, mean);
        for (std::size_t i = 0; i < w.size(); ++i) {
          const double unit = x[r][first + i] / rms;
          dx[r][first + i] = (w[i] * dy[r][first + i] - unit * mean) / rms;
          dw[i] += dy[r][first + i] * unit;
        }
      }
    }
    return dx;
  }
  static Rows plus(Rows a, const Rows& b) {
    decoder_parts::add(a, b);
    return a;
  }
  std::vector<double>& gradient(const std::string& weight) {
    std::vector<double>& values = result_.of[weight];
    values.resize(weights_(weight).size());
    return values;
  }
  // The rotation's transpose is the rotation by minus the angle.
  Rows rotated_back(Rows x) const {
    std::vector<std::int64_t> reverse = batch_.positions;
    for (std::int64_t& position : reverse) position = -position;
    decoder_parts::rotate(x, reverse, s_.head_size, s_.theta);
    return stored(Stored::drotated, std::move(x));
  }

  void add_embedding(const Rows& g) {
    const Rows dx = masked(0, 0, g, Stored::dmasked);
    std::vector<double>& table = gradient("token_embd.weight");
    for (std::size_t r = 0; r < dx.size(); ++r) {
      for (std::size_t c = 0; c < dx[r].size(); ++c) {
        table[at(batch_.tokens[r] * s_.width) + c] += dx[r][c];
      }
    }
  }

  std::size_t shared(std::size_t head) const { return head / at(s_.heads / s_.kv_heads); }
  double dot(const Rows& a, std::size_t row_a, std::size_t head_a, const Rows& b, std::size_t row_b,
             std::size_t head_b) const {
    double sum = 0;
    for (std::size_t i = 0; i < at(s_.head_size); ++i) {
      sum += a[row_a][head_a * at(s_.head_size) + i] * b[row_b][head_b * at(s_.head_size) + i];
    }
    return sum;
  }
  // to[row][head] += factor * from[..]
  void add(double factor, const Rows& from, std::size_t row_from, std::size_t head_from, Rows& to,
           std::size_t row_to, std::size_t head_to) const {
    for (std::size_t i = 0; i < at(s_.head_size); ++i) {
      to[row_to][head_to * at(s_.head_size) + i] +=
          factor * from[row_from][head_from * at(s_.head_size) + i];
    }
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(s_.head_size)); }

  void attend(std::int64_t l, Layer& a) const {
    const std::size_t n = a.q.size();
    a.p.assign(n, std::vector<std::vector<double>>(at(s_.heads), std::vector<double>(n)));
    a.mixed.assign(n, std::vector<double>(at(s_.heads * s_.head_size)));
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t h = 0; h < at(s_.heads); ++h) {
        std::vector<double>& p = a.p[r][h];
        double sum = 0;
        for (std::size_t t = 0; t <= r; ++t) {
          p[t] = decoder_loss::attends_to(s_, batch_, r, t)
                     ? std::exp(dot(a.q, r, h, a.k, t, shared(h)) * scale())
                     : 0;
          sum += p[t];
        }
        for (std::size_t t = 0; t <= r; ++t) {
          p[t] /= sum;
          add(store_(Stored::probability, p[t] * decoder_loss::kept(batch_, l, h, r, t)), a.v, t,
              shared(h), a.mixed, r, h);
        }
      }
    }
    a.mixed = stored(Stored::mixed, std::move(a.mixed));
  }
  // ds = p (dp - <dy, y>), dp = kept <dy, v>.
  void attend_back(std::int64_t l, const Layer& a, const Rows& dy, Rows& dq, Rows& dk,
                   Rows& dv) const {
    dq.assign(a.q.size(), std::vector<double>(a.q[0].size()));
    dk.assign(a.k.size(), std::vector<double>(a.k[0].size()));
    dv = dk;
    for (std::size_t r = 0; r < a.q.size(); ++r) {
      for (std::size_t h = 0; h < at(s_.heads); ++h) {
        const double mean = store_(Stored::score_term, dot(dy, r, h, a.mixed, r, h));
        for (std::size_t t = 0; t <= r; ++t) {
          const double keep = decoder_loss::kept(batch_, l, h, r, t);
          const double p = a.p[r][h][t];
          add(store_(Stored::probability, p * keep), dy, r, h, dv, t, shared(h));
          const double dp = keep * dot(dy, r, h, a.v, t, shared(h));
          const double ds = store_(Stored::dscore, p * (dp - mean)) * scale();
          add(ds, a.k, t, shared(h), dq, r, h);
          add(ds, a.q, r, h, dk, t, shared(h));
        }
      }
    }
    for (Rows* rows : {&dq, &dk, &dv}) *rows = stored(Stored::dqkv, std::move(*rows));
  }

  Rows forward(std::int64_t l, Rows x, Layer& a) {
    a.x1 = std::move(x);
    a.n1 = norm(name(l, "attn_norm"), a.x1);
    a.q = a.q_raw = linear(name(l, "attn_q"), a.n1);
    a.k = a.k_raw = linear(name(l, "attn_k"), a.n1);
    a.v = linear(name(l, "attn_v"), a.n1);
    if (s_.qk_norm) {
      a.q = norm(name(l, "attn_q_norm"), a.q_raw);
      a.k = norm(name(l, "attn_k_norm"), a.k_raw);
    }
    for (Rows* rows : {&a.q, &a.k}) {
      decoder_parts::rotate(*rows, batch_.positions, s_.head_size, s_.theta);
      *rows = stored(Stored::rotated, std::move(*rows));
    }
    attend(l, a);
    a.x2 = stored(Stored::sum, plus(masked(l, 1, linear(name(l, "attn_output"), a.mixed)), a.x1));
    a.n2 = norm(name(l, "ffn_norm"), a.x2);
    a.gate = linear(name(l, "ffn_gate"), a.n2);
    a.up = linear(name(l, "ffn_up"), a.n2);
    a.hidden = stored(Stored::hidden, decoder_parts::gated(a.gate, a.up));
    return stored(Stored::sum, plus(masked(l, 2, linear(name(l, "ffn_down"), a.hidden)), a.x2));
  }

  // The loss; returns the gradient of the stream after the last layer.
  Rows head(const Rows& x) {
    const std::string weight = s_.tied_head ? "token_embd.weight" : "output.weight";
    const Rows n = norm("output_norm.weight", x);
    Rows logits = decoder_parts::product(weights_(weight), n);
    double counted = 0;
    for (const std::int64_t target : batch_.targets) counted += target < 0 ? 0 : 1;
    for (std::size_t r = 0; r < logits.size(); ++r) {
      double total = 0;
      for (const double logit : logits[r]) total += std::exp(logit);
      const std::int64_t target = batch_.targets[r];
      if (target >= 0) result_.loss += (std::log(total) - logits[r][at(target)]) / counted;
      for (std::size_t i = 0; i < logits[r].size(); ++i) {
        const double dl = std::exp(logits[r][i]) / total - (i == at(target) ? 1 : 0);
        logits[r][i] = target < 0 ? 0 : store_(Stored::dlogits, dl / counted);
      }
    }
    const Rows dn = stored(Stored::dnormed, linear_back(weight, logits, n));
    return stored(Stored::dstream, norm_back("output_norm.weight", dn, x));
  }

  Rows backward(std::int64_t l, const Layer& a, Rows g) {
    const Rows dy = masked(l, 2, g, Stored::dmasked);
    const Rows dhidden = stored(Stored::dhidden, linear_back(name(l, "ffn_down"), dy, a.hidden));
    Rows dgate = a.gate;
    Rows dup = a.up;
    for (std::size_t r = 0; r < dgate.size(); ++r) {
      for (std::size_t i = 0; i < dgate[r].size(); ++i) {
        const double sigmoid = 1 / (1 + std::exp(-a.gate[r][i]));
        const double slope =
            sigmoid * (1 + store_(Stored::silu_term, a.gate[r][i] * (1 - sigmoid)));
        dgate[r][i] = store_(Stored::dgate, dhidden[r][i] * a.up[r][i] * slope);
        dup[r][i] = store_(Stored::dgate, dhidden[r][i] * a.gate[r][i] * sigmoid);
      }
    }
    const Rows dn2 = stored(Stored::dnormed, plus(linear_back(name(l, "ffn_gate"), dgate, a.n2),
                                                  linear_back(name(l, "ffn_up"), dup, a.n2)));
    g = stored(Stored::dstream,
               plus(norm_back(name(l, "ffn_norm"), dn2, a.x2), stored(Stored::stream_term, g)));
    const Rows dmixed =
        stored(Stored::dmixed,
               linear_back(name(l, "attn_output"), masked(l, 1, g, Stored::dmasked), a.mixed));
    Rows dq;
    Rows dk;
    Rows dv;
    attend_back(l, a, dmixed, dq, dk, dv);
    dq = rotated_back(std::move(dq));
    dk = rotated_back(std::move(dk));
    if (s_.qk_norm) {
      dq = stored(Stored::dhead, norm_back(name(l, "attn_q_norm"), dq, a.q_raw));
      dk = stored(Stored::dhead, norm_back(name(l, "attn_k_norm"), dk, a.k_raw));
    }
    const Rows dn1 = stored(Stored::dnormed, plus(linear_back(name(l, "attn_q"), dq, a.n1),
                                                  plus(linear_back(name(l, "attn_k"), dk, a.n1),
                                                       linear_back(name(l, "attn_v"), dv, a.n1))));
    return stored(Stored::dstream,
                  plus(norm_back(name(l, "attn_norm"), dn1, a.x1), stored(Stored::stream_term, g)));
  }

  const DecoderLossShape& s_;
  const DecoderLossBatch& batch_;
  const Weights& weights_;
  Store store_;
  DecoderGradient result_;
};

inline DecoderGradient decoder_gradient(const DecoderLossShape& shape,
                                        const DecoderLossBatch& batch,
                                        const WeightsByName<double>& weights, Store store) {
  return DecoderGradientPass(shape, batch, weights, std::move(store)).run();
}

}  // namespace touchstone::oracle
