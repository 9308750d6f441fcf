// The weighted loss of a block draft, a scalar function of its weights:
//
//   f[t] = rms_norm(fc h[t])                       of every context token, h the target's hidden states
//   x    = embedding[token]                        of every position of every block
//   per layer:  n = rms_norm(x)
//     keys, values of a block: those of f[t] for the context tokens t it attends to, and of its n
//     x += wo attention(rope(norm(wq n)), rope(norm(wk ..)), wv ..)
//     x += down (silu(gate m) * (up m))            m = rms_norm(x)
//   loss = sum over positions of weight * (log(sum exp(l)) - l[target])     l = head rms_norm(x)
//
// Each block is computed on its own. Deliberately naive and templated on the scalar; see norm.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oracle/decoder_loss.h"

namespace touchstone::oracle {

struct DraftedBlock {
  std::vector<std::int64_t> context;  // tokens that it attends to
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

namespace d = decoder_parts;

// The rows of one block after the final norm.
template <class S>
d::Rows<S> run(const DecoderLossShape& s, const BlockDraftLossBatch& batch,
               const DraftedBlock& block, const d::Rows<S>& features,
               const WeightsByName<S>& weights) {
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
    d::rotate(q, own, s.head_size, s.theta);
    d::rotate(k, all, s.head_size, s.theta);
    const d::Rows<S> mixed = d::attend(
        q, k, d::product(w("attn_v"), seen), s.head_size,
        [](std::size_t, std::size_t) { return true; }, d::keep_all);
    d::add(x, d::product(w("attn_output"), mixed));
    const d::Rows<S> m = d::normed(w("ffn_norm"), x, s.epsilon);
    const d::Rows<S> hidden = d::gated(d::product(w("ffn_gate"), m), d::product(w("ffn_up"), m));
    d::add(x, d::product(w("ffn_down"), hidden));
  }
  return d::normed(weights("output_norm.weight"), x, s.epsilon);
}

}  // namespace block_draft_loss

template <class S>
S block_draft_loss_of(const DecoderLossShape& s, const BlockDraftLossBatch& batch,
                      const WeightsByName<S>& weights) {
  using std::log;
  namespace d = decoder_parts;
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
      for (const std::vector<double>& column : batch.head) {
        S logit = 0.0;
        for (std::size_t i = 0; i < column.size(); ++i) logit += column[i] * rows[j][i];
        logits.push_back(logit);
      }
      sum += block.weights[j] * d::loss(logits, block.targets[j]);
    }
  }
  return sum;
}

}  // namespace touchstone::oracle
