// Decisions that are the same in every implementation and on every device: the controls of a row,
// which of them are legal, and the effect of a penalty. constexpr, hence usable in device code.
#pragma once

#include <cstdint>
#include <limits>

#include "ops/sample/sample_problem.h"

namespace touchstone::sampling {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

constexpr bool is_finite(float value) { return value - value == 0; }

struct RowControls {
  float temperature = 1;
  std::int64_t top_k = 0;  // 1 .. vocabulary; "all" is the vocabulary
  float top_p = 1;
  float min_p = 0;
  float repetition = 1;
  float frequency = 0;
  float presence = 0;
  bool legal = true;

  constexpr bool greedy() const { return temperature == 0; }
  constexpr bool penalizes() const { return repetition != 1 || frequency != 0 || presence != 0; }
  // Whether the draw runs in order (by value) rather than by token.
  constexpr bool cuts(std::int64_t vocabulary) const {
    return top_k < vocabulary || top_p < 1 || min_p > 0;
  }
};

constexpr RowControls row_controls(const SampleProblem& p, std::int64_t row) {
  RowControls c;
  if (p.temperature != nullptr) c.temperature = p.temperature[row];
  if (p.top_k != nullptr) c.top_k = p.top_k[row];
  if (p.top_p != nullptr) c.top_p = p.top_p[row];
  if (p.min_p != nullptr) c.min_p = p.min_p[row];
  if (p.repetition_penalty != nullptr) c.repetition = p.repetition_penalty[row];
  if (p.frequency_penalty != nullptr) c.frequency = p.frequency_penalty[row];
  if (p.presence_penalty != nullptr) c.presence = p.presence_penalty[row];
  // Written so that NaN is illegal.
  c.legal = is_finite(c.temperature) && c.temperature >= 0 && c.top_k >= 0 && c.top_p >= 0 &&
            c.top_p <= 1 && c.min_p >= 0 && c.min_p <= 1 && is_finite(c.repetition) &&
            c.repetition > 0 && is_finite(c.frequency) && is_finite(c.presence);
  if (c.top_k == 0 || c.top_k > p.vocabulary) c.top_k = p.vocabulary;
  return c;
}

// How many entries of the row's history are prompt.
constexpr std::int64_t prompt_entries(const SampleProblem& p, std::int64_t row) {
  if (p.prompt_length == nullptr || p.prompt_length[row] < 0) return 0;
  const std::int64_t length = p.prompt_length[row];
  return length < p.history_length ? length : p.history_length;
}

// The tokens before a row: its entries of the history, and in a tree those of its path, from the row
// itself up.
struct RowHistory {
  const std::int32_t* tokens = nullptr;  // null: none
  std::int64_t length = 0;
  std::int64_t prompt = 0;  // entries that are prompt
  std::int64_t entries = 0;
  const std::int32_t* parent = nullptr;
  const std::int32_t* tree_token = nullptr;
  std::int64_t row = 0;

  constexpr bool is_output(std::int64_t i) const { return i >= prompt; }
  // Negative where there is none.
  constexpr std::int32_t token(std::int64_t i) const {
    if (i < length) return tokens == nullptr ? -1 : tokens[i];
    std::int64_t node = row;
    for (; i > length; --i) {
      const std::int64_t next = parent[node];
      if (next < 0 || next >= node) return -1;
      node = next;
    }
    return tree_token[node];
  }
};

constexpr RowHistory row_history(const SampleProblem& p, std::int64_t row) {
  RowHistory history;
  const std::int64_t from = p.history_row == nullptr ? row : p.history_row[row];
  if (from >= 0 && from < p.history_rows) history.tokens = p.history + from * p.history_stride;
  history.length = p.history_length;
  history.prompt = prompt_entries(p, row);
  history.entries = p.history_entries();
  history.parent = p.parent;
  history.tree_token = p.tree_token;
  history.row = row;
  return history;
}

// A product that is not contracted into a fused multiply-add.
constexpr float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// The value of a token of the history, `in_output` of whose occurrences are output. A masked token
// stays masked whatever the penalties.
constexpr float penalized(float value, const RowControls& c, std::int64_t in_output) {
  if (value == kMinusInfinity) return value;
  value = value > 0 ? value / c.repetition : rounded_product(value, c.repetition);
  if (in_output == 0) return value;
  const float frequency = rounded_product(static_cast<float>(in_output), c.frequency);
  value = value - frequency;
  return value - c.presence;
}

// Bit `token` of a packed mask.
constexpr bool is_unmasked(const std::uint32_t* mask, std::int64_t token) {
  return mask == nullptr || (mask[token / 32] >> (token % 32) & 1U) != 0;
}

}  // namespace touchstone::sampling
