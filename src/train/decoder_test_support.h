// A decoder on random weights, and the same model as the oracle describes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "oracle/decoder_loss.h"
#include "touchstone/core/random.h"
#include "touchstone/gradcheck.h"
#include "train/train_test_support.h"

namespace touchstone::test {

using train::StepSeed;

struct DecoderVariant {
  bool qk_norm = false;
  bool tied = false;
  std::int64_t document = 0;
  std::int64_t window = 0;
  double dropout = 0;
  double attention_dropout = 0;
};

inline oracle::DecoderLossShape oracle_shape(const io::ModelDescription& d) {
  return {.layers = std::ssize(d.layers),
          .width = d.width,
          .heads = d.heads,
          .kv_heads = d.kv_heads,
          .head_size = d.head_size,
          .mlp_width = d.ffn_width,
          .vocabulary = d.vocabulary,
          .window = d.layers[0].window,
          .theta = d.rope.theta,
          .epsilon = d.norm_epsilon,
          .qk_norm = d.qk_norm,
          .tied_head = d.tied_head};
}

// What DropoutMask says, written out once more.
inline double mask_factor(const StepSeed& seed, double probability, std::int64_t width,
                          std::int64_t layer, int mask, std::int64_t token, std::int64_t column) {
  const auto dropped = static_cast<std::uint32_t>(std::nearbyint(probability * 65536));
  const std::int64_t draws = (width + 7) / 8;
  const PhiloxWords words =
      random_words(seed.seed, (seed.step << 40) + (seed.first_token + token) * draws + column / 8,
                   RandomPurpose::dropout, static_cast<std::uint32_t>(layer * 4 + mask));
  const std::uint32_t word = words.word[column % 8 / 2];
  const std::uint32_t bits = column % 2 == 0 ? word & 0xffff : word >> 16;
  return bits < dropped ? 0 : 65536.0 / (65536.0 - dropped);
}

// What AttentionDropout says; keys count within their document.
inline double weight_factor(const StepSeed& seed, double probability, const OwnedBatch& b,
                            std::int64_t layer, std::int64_t head, std::int64_t token,
                            std::int64_t key) {
  const auto dropped = static_cast<std::uint32_t>(std::nearbyint(probability * 65536));
  const std::int64_t at = b.host_positions[static_cast<std::size_t>(key)];
  const PhiloxWords words = random_words(
      seed.seed, (seed.step << 40) + ((seed.first_token + token) << 13) + at / 8,
      RandomPurpose::dropout, static_cast<std::uint32_t>(layer * 4 + 3 + (head << 16)));
  const std::uint32_t word = words.word[at % 8 / 2];
  const std::uint32_t bits = at % 2 == 0 ? word & 0xffff : word >> 16;
  return bits < dropped ? 0
                        : static_cast<double>(static_cast<float>(65536.0 / (65536.0 - dropped)));
}

inline oracle::DecoderLossBatch oracle_batch(const OwnedBatch& b, const StepSeed& seed,
                                             const DecoderVariant& v, std::int64_t width) {
  const double dropout = v.dropout;
  oracle::DecoderLossBatch batch{.tokens = b.host_tokens,
                                 .targets = b.host_targets,
                                 .positions = b.host_positions,
                                 .documents = b.host_documents};
  if (dropout > 0) {
    batch.mask = [=](std::int64_t layer, int mask, std::int64_t token, std::int64_t column) {
      return mask_factor(seed, dropout, width, layer, mask, token, column);
    };
  }
  if (v.attention_dropout > 0) {
    batch.weight_mask = [&b, seed, share = v.attention_dropout](
                            std::int64_t layer, std::int64_t head, std::int64_t token,
                            std::int64_t key) {
      return weight_factor(seed, share, b, layer, head, token, key);
    };
  }
  return batch;
}

// A decoder on random weights that keep every layer alive, norms included.
struct RandomDecoder {
  Context context;
  train::Decoder decoder;
  RandomDecoder(const io::ModelDescription& d, const train::DecoderOptions& options,
                Device device = test_device())
      : context({.device = device}), decoder(context, d, options) {
    train::Parameters& p = decoder.parameters();
    std::vector<double> values(static_cast<std::size_t>(p.elements()));
    const std::vector<double> noise = gradcheck::random_values(p.elements(), 3);
    for (const train::Parameter& parameter : p.list()) {
      std::int64_t count = 1;
      for (const std::int64_t extent : parameter.shape) count *= extent;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(parameter.offset + i);
        values[at] = parameter.matrix ? 0.2 * noise[at] : 1 + 0.2 * noise[at];
      }
    }
    Tensor host = p.options().master == DType::f64 ? Tensor::empty({p.elements()}, DType::f64)
                                                   : Tensor::empty({p.elements()}, DType::f32);
    if (host.dtype() == DType::f64) {
      std::copy(values.begin(), values.end(), host.values<double>().begin());
    } else {
      std::transform(values.begin(), values.end(), host.values<float>().begin(),
                     [](double v) { return static_cast<float>(v); });
    }
    const StreamLocation here{device, context.stream()};
    queue_copy(here, p.weights().data, {}, host.data(), host.bytes());
    wait_for(here);
    p.prepare(context);
  }
};

}  // namespace touchstone::test
