// The likeliest tokens of rows of logits, on the host: what drafts of models are built from.
#pragma once

#include <cstdint>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/decode/draft.h"

namespace touchstone::inline v0::decode {

class LikeliestTokens {
 public:
  // The k likeliest of each row of logits [rows, vocabulary], which lie on the device of the
  // context, by softmax_topk. A row with NaN has none. Waits for the result.
  std::vector<std::vector<TokenCandidate>> run(Context& context, const ConstTensorView& logits,
                                               std::int64_t k);

 private:
  Tensor results_{};  // probabilities, tokens, log-probabilities, one after the other
};

}  // namespace touchstone::inline v0::decode
