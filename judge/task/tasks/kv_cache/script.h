// Writes the calls of a session. Every token's key, value and query depend only on (layer, sequence,
// position), so that two ways through the same tokens can be compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "judge/task/generate.h"
#include "judge/task/tasks/kv_cache/kv_cache.h"

namespace touchstone::judge::kv_cache {

// The streams that a session draws from.
enum : uint64_t { kKey = 1, kValue, kQuery, kScript, kFamily, kTarget };

struct Part {  // tokens of one sequence in one call
  int64_t sequence = 0;
  int64_t tokens = 0;
};

// Writes calls, keeping count of the lengths so that every token gets its position.
class Script {
 public:
  explicit Script(const Session& session)
      : s_(session),
        length_(static_cast<size_t>(session.layers * session.sequences), 0),
        source_(static_cast<size_t>(session.sequences)) {
    for (int64_t i = 0; i < s_.sequences; ++i) source_[static_cast<size_t>(i)] = i;
    next_source_ = s_.sequences;
  }

  void create(int state, int64_t bits = 0) {
    Call call;
    call.function = bits == 0 ? "kv_cache_create" : "kv_cache_create_quantised";
    call.scalars = {s_.layers, s_.sequences, s_.kv_heads, s_.head_dim, s_.max_tokens};
    if (bits != 0) call.scalars.emplace_back(bits);
    call.state = state;
    call.timed = false;
    calls.push_back(std::move(call));
  }

  void destroy(int state) { plain("kv_cache_destroy", {}, state); }

  // With `fits` false the lengths stay as they are: the call is one that must be refused.
  void append(int64_t layer, const std::vector<Part>& parts, bool fits = true, int state = 0) {
    std::vector<float> k, v;
    for (const Part& part : parts) {
      for (int64_t t = 0; t < part.tokens; ++t) {
        const int64_t position = length(layer, part.sequence) + t;
        fill(kKey, state, layer, part.sequence, position, s_.kv_heads, k);
        fill(kValue, state, layer, part.sequence, position, s_.kv_heads, v);
      }
      if (fits) length(layer, part.sequence) += part.tokens;
    }
    Call call = tokens_call("kv_cache_append", layer, parts, state);
    const int64_t total = call.whole(2);
    call.inputs.push_back(f32_input("k", {total, s_.kv_heads, s_.head_dim}, k));
    call.inputs.push_back(f32_input("v", {total, s_.kv_heads, s_.head_dim}, v));
    calls.push_back(std::move(call));
  }

  void attend(int64_t layer, const std::vector<Part>& parts, int state = 0) {
    attend(layer, parts, state, s_.query_heads(), 1);
  }

  // Heads and scale are the caller's in every call; `factor` is on top of the usual scale.
  void attend(int64_t layer, const std::vector<Part>& parts, int state, int64_t heads,
              double factor) {
    std::vector<float> q;
    for (const Part& part : parts) {
      for (int64_t t = 0; t < part.tokens; ++t) {
        const int64_t position =
            std::max<int64_t>(0, length(layer, part.sequence) - part.tokens + t);
        fill(kQuery, state, layer, part.sequence, position, heads, q);
      }
    }
    Call call = tokens_call("kv_cache_attend", layer, parts, state);
    const int64_t total = call.whole(2);
    call.scalars.emplace_back(heads);
    // The number as the contender gets it, in f32.
    call.scalars.emplace_back(static_cast<double>(static_cast<float>(factor * score_scale())));
    call.inputs.push_back(f32_input("q", {total, heads, s_.head_dim}, q));
    call.outputs = {{"out", DType::f32, {total, heads, s_.head_dim}}};
    calls.push_back(std::move(call));
  }

  void both(int64_t layer, const std::vector<Part>& parts, int state = 0) {
    append(layer, parts, true, state);
    attend(layer, parts, state);
  }

  void fork(int64_t parent, int64_t child) {
    plain("kv_cache_fork", {number(parent), number(child)}, 0);
    for (int64_t layer = 0; layer < s_.layers; ++layer) {
      length(layer, child) = length(layer, parent);
    }
    source_[static_cast<size_t>(child)] = next_source_++;  // from here on, tokens of its own
  }

  void free(int64_t sequence) {
    plain("kv_cache_free", {number(sequence)}, 0);
    for (int64_t layer = 0; layer < s_.layers; ++layer) length(layer, sequence) = 0;
    source_[static_cast<size_t>(sequence)] = next_source_++;
  }

  void ask_lengths(int state = 0) {
    for (int64_t layer = 0; layer < s_.layers; ++layer) {
      for (int64_t i = 0; i < s_.sequences; ++i) {
        plain("kv_cache_length", {layer, number(i)}, state);
      }
    }
  }

  void plain(const char* function, std::vector<Scalar> scalars, int state) {
    Call call;
    call.function = function;
    call.scalars = std::move(scalars);
    call.state = state;
    call.timed = false;
    calls.push_back(std::move(call));
  }

  // Every sequence with this many tokens.
  std::vector<Part> all(int64_t tokens) const {
    std::vector<Part> parts;
    for (int64_t i = 0; i < s_.sequences; ++i) parts.push_back({i, tokens});
    return parts;
  }

  int64_t& length(int64_t layer, int64_t sequence) {
    // What is out of range is asked for in calls that must be refused.
    if (layer < 0 || layer >= s_.layers || sequence < 0 || sequence >= s_.sequences) {
      return nowhere_ = 0;
    }
    return length_[static_cast<size_t>(layer * s_.sequences + sequence)];
  }

  std::vector<Call> calls;

 private:
  int64_t number(int64_t sequence) const {
    return s_.renumbered ? s_.sequences - 1 - sequence : sequence;
  }

  double score_scale() const {
    if (s_.given_scale) return s_.scale;
    const bool plain = s_.family == "exact" || s_.family == "long_memory";
    return plain ? 1.0 : 1.0 / std::sqrt(static_cast<double>(s_.head_dim));
  }

  Call tokens_call(const char* function, int64_t layer, const std::vector<Part>& parts,
                   int state) const {
    std::vector<int32_t> sequence, tokens;
    int64_t total = 0;
    for (const Part& part : parts) {
      sequence.push_back(static_cast<int32_t>(number(part.sequence)));
      tokens.push_back(static_cast<int32_t>(part.tokens));
      total += part.tokens;
    }
    const auto count = static_cast<int64_t>(parts.size());
    Call call;
    call.function = function;
    call.scalars = {layer, count, total};
    call.inputs = {i32_input("sequence", {count}, sequence), i32_input("tokens", {count}, tokens)};
    call.state = state;
    return call;
  }

  void fill(uint64_t what, int state, int64_t layer, int64_t sequence, int64_t position,
            int64_t heads, std::vector<float>& to) const;
  double element(uint64_t what, const Stream& random, const Stream& directions, int64_t position,
                 int64_t at, double normal) const;

  const Session& s_;
  std::vector<int64_t> length_;  // [layers, sequences]
  std::vector<int64_t> source_;  // [sequences]: whose tokens come next
  int64_t next_source_ = 0;
  int64_t nowhere_ = 0;
};

}  // namespace touchstone::judge::kv_cache
