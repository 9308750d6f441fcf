#include "ops/sample/sample_output.h"

#include <algorithm>
#include <limits>

namespace touchstone::sampling {
namespace {

void store_token(DType dtype, void* tokens, std::int64_t at, std::int64_t token) {
  if (dtype == DType::i32) {
    static_cast<std::int32_t*>(tokens)[at] = static_cast<std::int32_t>(token);
  } else {
    static_cast<std::int64_t*>(tokens)[at] = token;
  }
}

// A token that occurs in a history, and how often in its output part.
struct HistoryToken {
  std::int64_t token = 0;
  std::int64_t in_output = 0;
};

// The distinct tokens of the row's history, ascending; padding and what is no token left out.
std::vector<HistoryToken> distinct_history(const SampleProblem& p, std::int64_t row) {
  std::vector<HistoryToken> tokens;
  const RowHistory history = row_history(p, row);
  for (std::int64_t i = 0; i < history.entries; ++i) {
    const std::int64_t token = history.token(i);
    if (token < 0 || token >= p.vocabulary) continue;
    tokens.push_back({token, history.is_output(i) ? 1 : 0});
  }
  std::ranges::sort(tokens, {}, &HistoryToken::token);
  // Runs of one token become one entry.
  std::size_t used = 0;
  for (const HistoryToken& entry : tokens) {
    if (used > 0 && tokens[used - 1].token == entry.token) {
      tokens[used - 1].in_output += entry.in_output;
    } else {
      tokens[used++] = entry;
    }
  }
  tokens.resize(used);
  return tokens;
}

}  // namespace

void read_values(const SampleProblem& p, std::int64_t row, std::span<float> values) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    const T* const logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = convert<float>(logits[i]);
  });
  if (p.bias != nullptr) {
    const float* const bias = p.bias + row * p.bias_stride;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += bias[i];
  }
  if (p.token_mask != nullptr) {
    const std::uint32_t* const token_mask = p.token_mask + row * p.token_mask_stride;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!is_unmasked(token_mask, static_cast<std::int64_t>(i))) values[i] = kMinusInfinity;
    }
  }
}

float value_of(const SampleProblem& p, std::int64_t row, std::int64_t token) {
  const std::uint32_t* const token_mask =
      p.token_mask == nullptr ? nullptr : p.token_mask + row * p.token_mask_stride;
  if (!is_unmasked(token_mask, token)) return kMinusInfinity;
  const float logit = visit_float_dtype(p.dtype, [&]<class T>() {
    return convert<float>(static_cast<const T*>(p.logits)[row * p.logits_stride + token]);
  });
  return p.bias == nullptr ? logit : logit + p.bias[row * p.bias_stride + token];
}

void penalize(const SampleProblem& p, std::int64_t row, const RowControls& controls,
              std::span<float> values) {
  if (!controls.penalizes() || p.history_length == 0) return;
  for (const HistoryToken& seen : distinct_history(p, row)) {
    float& value = values[static_cast<std::size_t>(seen.token)];
    value = penalized(value, controls, seen.in_output);
  }
}

RowStatus row_status(const SampleProblem& p, bool nan, float largest, std::int64_t above) {
  if (nan) return RowStatus::has_nan;
  RowStatus status = RowStatus::ok;
  if (largest == std::numeric_limits<float>::infinity()) status |= RowStatus::has_infinity;
  if (above == 0) status |= RowStatus::all_masked;
  if (above < p.top_count) status |= RowStatus::fewer_than_k;
  return status;
}

void write_token(const SampleProblem& p, std::int64_t row, std::int64_t token,
                 float log_probability, RowStatus status) {
  store_token(p.token_dtype, p.token, row, token);
  if (p.log_probability != nullptr) p.log_probability[row] = log_probability;
  if (p.status != nullptr) p.status[row] = to_int(status);
}

void write_top(const SampleProblem& p, std::int64_t row, std::int64_t rank, std::int64_t token,
               float log_probability) {
  const std::int64_t at = row * p.top_count + rank;
  store_token(p.top_token_dtype, p.top_tokens, at, token);
  p.top_log_probabilities[at] = log_probability;
}

void store_invalid_row(const SampleProblem& p, std::int64_t row, RowStatus status) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  write_token(p, row, -1, kNan, status);
  for (std::int64_t rank = 0; rank < p.top_count; ++rank) write_top(p, row, rank, -1, kNan);
}

}  // namespace touchstone::sampling
