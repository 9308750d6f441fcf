// How well a model predicts a text: the log-probability of every token after those before it.
//
// Windows     Of `window` tokens, `stride` apart: each predicts its tokens from its own beginning.
//             A token is scored once, in the first window that has it, and the first token of a
//             window never: it has nothing before it. With stride = window the first token of every
//             window is left out; a smaller stride leaves out that of the text alone and gives
//             every later token at least window - stride tokens before it.
// Guards      Logits of row t predict token t + 1. check_causality() scores a text twice with
//             another last token: if a logit before it changes, what is scored is not a prediction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/decode/scorer.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::inline v0::decode {

struct PerplexityOptions {
  std::int64_t window = 512;  // tokens, at least 2
  std::int64_t stride = 0;    // 1 to window; 0 = window
  std::int64_t max_rows = 64;
};

struct TOUCHSTONE_API Perplexity {
  struct Window {
    std::int64_t tokens = 0;  // scored in it
    double loss = 0;          // the sum of -log p
  };
  std::vector<float> log_probabilities{};  // of every token of the text; NaN where it is not scored
  std::vector<Window> windows{};

  std::int64_t tokens() const;  // scored
  double loss() const;          // the sum of -log p, in nats
  double value() const;         // exp(loss / tokens)
  // Half of the 95 % interval of the mean loss: windows as clusters, or tokens where there is one
  // window. exp(mean +- this) bounds the perplexity.
  double half_interval() const;
};

// InvalidArgument for fewer than two tokens, tokens outside the vocabulary, or a window that the
// scorer has no length for. CorruptData where logits are NaN.
TOUCHSTONE_API Perplexity perplexity(Context& context, Scorer& scorer,
                                     std::span<const std::int32_t> tokens,
                                     const PerplexityOptions& options = {});

// Bytes of text that the scored tokens stand for, the divisor of bits per byte. A character that
// several tokens spell belongs to the last of them.
TOUCHSTONE_API std::int64_t scored_bytes(const io::Tokenizer& tokenizer,
                                         std::span<const std::int32_t> tokens,
                                         const Perplexity& result);

// Whether the logits of every row but the last stay, to the bit, when the last token changes. True
// where there is no other row.
TOUCHSTONE_API bool check_causality(Context& context, Scorer& scorer,
                                    std::span<const std::int32_t> tokens);

}  // namespace touchstone::inline v0::decode
