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
  std::span<const std::int32_t> mask{};  // words of allowed tokens, instead of the two before
  // Nodes of a draft: the path follows `tokens`, which the rows of a draft share.
  std::int32_t depth = 0;    // 0: no node
  std::int32_t parent = -1;  // row of the parent, or of the sequence
  std::int32_t token = -1;
};

struct SampledToken {
  std::int32_t token = -1;
  RowStatus status = RowStatus::ok;
  TokenLogProbabilities log_probabilities{};  // where requested
};

class Sampler {
 public:
  explicit Sampler(std::int64_t vocabulary) : vocabulary_(vocabulary) {}

  // logits [rows, vocabulary] on the device of the context. Waits for the result.
  std::vector<SampledToken> run(Context& context, const ConstTensorView& logits,
                                std::span<const SampleRow> rows);

  // Rows of different kinds are drawn in calls of their own.
  static std::int32_t kind_of(const SampleRow& row);

 private:
  // Rows of one kind.
  std::vector<SampledToken> run_alike(Context& context, const ConstTensorView& logits,
                                      std::span<const SampleRow> rows);
  // All but the logits and the results.
  SampleArgs build(Context& context, std::span<const SampleRow> rows);
  std::vector<std::int32_t> masks(std::span<const SampleRow> rows) const;
  // Indices of arrays.
  struct Histories {
    std::size_t tokens = 0;
    std::size_t row = 0;
    std::size_t parent = 0;
    std::size_t tree_token = 0;
  };
  Histories add_histories(std::span<const SampleRow> rows, std::int64_t longest,
                          std::int64_t deepest);

  std::int64_t vocabulary_;
  StepArrays arrays_{};
  Tensor
      results_{};  // bytes: tokens, status, log-probabilities, top tokens, their log-probabilities
  std::vector<std::byte> host_{};
  Tensor gathered_{};  // bytes: the logits of a kind
};

}  // namespace touchstone::inline v0::decode
