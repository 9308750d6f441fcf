// The weighted loss of a block draft, a scalar function of its weights:
//
//   f[t] = rms_norm(fc h[t])                       of every context token, h the target's hidden states
//   x    = embedding[token]                        of every position of every block
//   per layer:  n = rms_norm(x)
//     keys, values of a block: those of f[t] for the context tokens t it sees, and of its own n
//     x += wo attention(rope(norm(wq n)), rope(norm(wk ..)), wv ..)
//     x += down (silu(gate m) * (up m))            m = rms_norm(x)
//   loss = sum over positions of weight * (log(sum exp(l)) - l[target])     l = head rms_norm(x)
//
// Each block is computed on its own. Deliberately naive and templated on the scalar; see layer_norm.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "oracle/decoder_loss.h"

namespace touchstone::oracle {

struct DraftedBlock {
  std::vector<std::int64_t> context;  // tokens it sees
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> targets;  // below 0: no loss
  std::vector<double> weights;
  std::int64_t position = 0;  // of its first token
};

struct BlockDraftLossBatch {
  std::vector<std::vector<double>> hidden;      // [context tokens][taps * width]
  std::vector<std::int64_t> context_positions;  // of the context tokens
  std::vector<DraftedBlock> blocks;
  std::vector<std::vector<double>> embedding, head;  // [vocabulary][width]
};

namespace block_draft_loss {

namespace d = decoder_loss;

template <class S>
void rotate_at(const DecoderLossShape& s, std::vector<std::int64_t> positions, d::Rows<S>& x) {
  DecoderLossBatch batch;
  batch.positions = std::move(positions);
  d::rotate(s, batch, x);
}

// Every row of q sees every row of k.
template <class S>
d::Rows<S> see_all(const DecoderLossShape& s, const d::Rows<S>& q, const d::Rows<S>& k,
                   const d::Rows<S>& v) {
  using std::exp;
  const auto size = static_cast<std::size_t>(s.head_size);
  d::Rows<S> y(q.size(), std::vector<S>(q[0].size(), S(0.0)));
  for (std::size_t r = 0; r < q.size(); ++r) {
    for (std::size_t own = 0; own < q[r].size(); own += size) {
      const std::size_t shared = own / size / static_cast<std::size_t>(s.heads / s.kv_heads) * size;
      std::vector<S> weights;
      S sum = 0.0;
      for (const std::vector<S>& key : k) {
        S score = 0.0;
        for (std::size_t i = 0; i < size; ++i) score += q[r][own + i] * key[shared + i];
        weights.push_back(exp(score / std::sqrt(static_cast<double>(s.head_size))));
        sum += weights.back();
      }
      for (std::size_t t = 0; t < k.size(); ++t) {
        for (std::size_t i = 0; i < size; ++i) {
          y[r][own + i] += weights[t] / sum * v[t][shared + i];
        }
      }
    }
  }
  return y;
}

template <class S>
void add(d::Rows<S>& to, const d::Rows<S>& from) {
  for (std::size_t r = 0; r < to.size(); ++r) {
    for (std::size_t c = 0; c < to[r].size(); ++c) to[r][c] += from[r][c];
  }
}

// The rows of one block after the final norm.
template <class S>
d::Rows<S> run(const DecoderLossShape& s, const BlockDraftLossBatch& batch,
               const DraftedBlock& block, const d::Rows<S>& features,
               const WeightsByName<S>& weights) {
  using std::exp;
  d::Rows<S> x;
  std::vector<std::int64_t> own, all;
  for (const std::int64_t t : block.context) {
    all.push_back(batch.context_positions[static_cast<std::size_t>(t)]);
  }
  for (std::size_t j = 0; j < block.tokens.size(); ++j) {
    const std::vector<double>& row = batch.embedding[static_cast<std::size_t>(block.tokens[j])];
    x.emplace_back(row.begin(), row.end());
    own.push_back(block.position + static_cast<std::int64_t>(j));
  }
  all.insert(all.end(), own.begin(), own.end());
  for (std::int64_t l = 0; l < s.layers; ++l) {
    const auto w = [&](const char* name) {
      return weights("blk." + std::to_string(l) + "." + name + ".weight");
    };
    const d::Rows<S> n = d::normed(w("attn_norm"), x, s.epsilon);
    d::Rows<S> seen;
    for (const std::int64_t t : block.context) {
      seen.push_back(features[static_cast<std::size_t>(t)]);
    }
    seen.insert(seen.end(), n.begin(), n.end());
    d::Rows<S> q = d::normed(w("attn_q_norm"), d::product(w("attn_q"), n), s.epsilon);
    d::Rows<S> k = d::normed(w("attn_k_norm"), d::product(w("attn_k"), seen), s.epsilon);
    rotate_at(s, own, q);
    rotate_at(s, all, k);
    add(x, d::product(w("attn_output"), see_all(s, q, k, d::product(w("attn_v"), seen))));
    const d::Rows<S> m = d::normed(w("ffn_norm"), x, s.epsilon);
    d::Rows<S> hidden = d::product(w("ffn_gate"), m);
    const d::Rows<S> up = d::product(w("ffn_up"), m);
    for (std::size_t r = 0; r < hidden.size(); ++r) {
      for (std::size_t i = 0; i < hidden[r].size(); ++i) {
        hidden[r][i] = hidden[r][i] / (S(1.0) + exp(-hidden[r][i])) * up[r][i];
      }
    }
    add(x, d::product(w("ffn_down"), hidden));
  }
  return d::normed(weights("output_norm.weight"), x, s.epsilon);
}

}  // namespace block_draft_loss

template <class S>
S block_draft_loss_of(const DecoderLossShape& s, const BlockDraftLossBatch& batch,
                      const WeightsByName<S>& weights) {
  using std::exp;
  using std::log;
  namespace d = decoder_loss;
  d::Rows<S> features;
  for (const std::vector<double>& h : batch.hidden) features.emplace_back(h.begin(), h.end());
  if (!features.empty()) {
    features = d::normed(weights("hidden_norm.weight"), d::product(weights("fc.weight"), features),
                         s.epsilon);
  }
  S sum = 0.0;
  for (const DraftedBlock& block : batch.blocks) {
    const d::Rows<S> rows = block_draft_loss::run<S>(s, batch, block, features, weights);
    for (std::size_t j = 0; j < rows.size(); ++j) {
      if (block.targets[j] < 0) continue;
      std::vector<S> logits;
      S total = 0.0;
      for (const std::vector<double>& column : batch.head) {
        S logit = 0.0;
        for (std::size_t i = 0; i < column.size(); ++i) logit += column[i] * rows[j][i];
        logits.push_back(logit);
        total += exp(logit);
      }
      sum += block.weights[j] * (log(total) - logits[static_cast<std::size_t>(block.targets[j])]);
    }
  }
  return sum;
}

}  // namespace touchstone::oracle
