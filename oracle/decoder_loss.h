// The mean loss of a decoder in training, a scalar function of its weights:
//
//   x = mask(embedding[token])
//   per layer:  x += mask(wo attention(rope(norm(wq n)), rope(norm(wk n)), wv n))   n = rms_norm(x)
//               x += mask(down (silu(gate n) * (up n)))                             n = rms_norm(x)
//   loss = mean over tokens with a target of log(sum exp(l)) - l[target]            l = head rms_norm(x)
//
// Attention is causal within documents; norms of q and k are optional; masks are given as factors per
// element. Deliberately naive and templated on the scalar; see norm.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "oracle/decoder_parts.h"

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
  std::vector<std::int64_t> documents{};  // of each token: it attends to its own document only
  // Factor of element (token, column) of mask 0 (embedding, layer 0), 1 (attention) or 2 (MLP).
  std::function<double(std::int64_t layer, int mask, std::int64_t token, std::int64_t column)>
      mask{};
  // Factor of the attention weight of a head for a query and a key, after the softmax.
  std::function<double(std::int64_t layer, std::int64_t head, std::int64_t token, std::int64_t key)>
      weight_mask{};
};

// The weights by name, as model files name them ("blk.0.attn_q.weight").
template <class S>
using WeightsByName = std::function<std::span<const S>(const std::string& name)>;

namespace decoder_loss {

inline bool attends_to(const DecoderLossShape& s, const DecoderLossBatch& batch, std::size_t query,
                       std::size_t key) {
  return key <= query && batch.documents[key] == batch.documents[query] &&
         (s.window == 0 || static_cast<std::int64_t>(query - key) < s.window);
}

inline double kept(const DecoderLossBatch& batch, std::int64_t layer, std::size_t head,
                   std::size_t query, std::size_t key) {
  return batch.weight_mask
             ? batch.weight_mask(layer, static_cast<std::int64_t>(head),
                                 static_cast<std::int64_t>(query), static_cast<std::int64_t>(key))
             : 1;
}

template <class S>
void add_masked(const DecoderLossBatch& batch, std::int64_t layer, int mask,
                const decoder_parts::Rows<S>& from, decoder_parts::Rows<S>& to) {
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
  namespace d = decoder_parts;
  const d::Rows<S> chosen = d::embedded<S>(weights("token_embd.weight"), batch.tokens, s.width);
  d::Rows<S> x(chosen.size(), std::vector<S>(chosen[0].size(), S(0.0)));
  decoder_loss::add_masked(batch, 0, 0, chosen, x);
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
    for (d::Rows<S>* rows : {&q, &k}) d::rotate(*rows, batch.positions, s.head_size, s.theta);
    const d::Rows<S> mixed = d::attend(
        q, k, d::product(w("attn_v"), n), s.head_size,
        [&](std::size_t query, std::size_t key) {
          return decoder_loss::attends_to(s, batch, query, key);
        },
        [&](std::size_t query, std::size_t head, std::size_t key) {
          return decoder_loss::kept(batch, l, head, query, key);
        });
    decoder_loss::add_masked(batch, l, 1, d::product(w("attn_output"), mixed), x);
    n = d::normed(w("ffn_norm"), x, s.epsilon);
    const d::Rows<S> hidden = d::gated(d::product(w("ffn_gate"), n), d::product(w("ffn_up"), n));
    decoder_loss::add_masked(batch, l, 2, d::product(w("ffn_down"), hidden), x);
  }
  return d::product(weights(s.tied_head ? "token_embd.weight" : "output.weight"),
                    d::normed(weights("output_norm.weight"), x, s.epsilon));
}

template <class S>
S decoder_mean_loss(const DecoderLossShape& s, const DecoderLossBatch& batch,
                    const WeightsByName<S>& weights) {
  const std::vector<std::vector<S>> logits = decoder_logits<S>(s, batch, weights);
  S sum = 0.0;
  double counted = 0;
  for (std::size_t r = 0; r < logits.size(); ++r) {
    if (batch.targets[r] < 0) continue;
    sum += decoder_parts::loss(logits[r], batch.targets[r]);
    counted += 1;
  }
  return sum / counted;
}

}  // namespace touchstone::oracle
