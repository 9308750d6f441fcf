// Draws one token per row with the controls of its request: the arrays that sample() takes, built from
// requests, and its results on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/step_arrays.h"
#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/decode/request.h"
#include "touchstone/ops/row_status.h"
#include "touchstone/ops/sample.h"

namespace touchstone::inline v0::decode {

struct SampleRow {
  const Request* request = nullptr;
  std::int64_t seed = 0;
  std::span<const std::int32_t> tokens{};     // prompt and output so far
  std::span<const std::int32_t> forbidden{};  // that may not be chosen now
  const TokenConstraint* constraint = nullptr;
};

struct SampledToken {
  std::int32_t token = -1;
  RowStatus status = RowStatus::ok;
  TokenLogProbabilities log_probabilities{};  // where the request asks for them
};

class Sampler {
 public:
  explicit Sampler(std::int64_t vocabulary) : vocabulary_(vocabulary) {}

  // logits [rows, vocabulary] f32 on the device of the context. Waits for the result.
  std::vector<SampledToken> run(Context& context, const ConstTensorView& logits,
                                std::span<const SampleRow> rows);

 private:
  // All but the logits and the results.
  SampleArgs build(Context& context, std::span<const SampleRow> rows);
  std::vector<std::int32_t> masks(std::span<const SampleRow> rows) const;

  std::int64_t vocabulary_;
  StepArrays arrays_{};
  Tensor
      results_{};  // bytes: tokens, status, log-probabilities, top tokens, their log-probabilities
  std::vector<std::byte> host_{};
};

}  // namespace touchstone::inline v0::decode
