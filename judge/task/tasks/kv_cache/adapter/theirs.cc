#include "theirs.h"

#include <algorithm>
#include <cmath>

void TokenStore::push(const float* key, const float* value) {
  keys_.insert(keys_.end(), key, key + heads_ * width_);
  values_.insert(values_.end(), value, value + heads_ * width_);
}

void TokenStore::clear() {
  keys_.clear();
  values_.clear();
}

void TokenStore::look(const float* query, int head, std::size_t seen, float scale,
                      float* out) const {
  const std::size_t step = std::size_t(heads_) * width_;
  std::vector<double> weights(seen);
  for (std::size_t j = 0; j < seen; ++j) {
    const float* key = keys_.data() + j * step + std::size_t(head) * width_;
    double dot = 0;
    for (int d = 0; d < width_; ++d) dot += double{query[d]} * key[d];
    weights[j] = dot * scale;
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - top);
  std::vector<double> mixed(width_);
  for (std::size_t j = 0; j < seen; ++j) {
    const float* value = values_.data() + j * step + std::size_t(head) * width_;
    for (int d = 0; d < width_; ++d) mixed[d] += weights[j] / sum * value[d];
  }
  for (int d = 0; d < width_; ++d) out[d] = static_cast<float>(mixed[d]);
}
