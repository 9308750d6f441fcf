// Key by key in the log domain: the output is a mean that moves towards each value by its share, and the
// sum is only known by its logarithm. Threads take rows by a counter.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

namespace {

template <class Real>
class RunningMean {
 public:
  explicit RunningMean(int64_t dim) : mean_(static_cast<size_t>(dim)) {}

  void add(Real score, const float* value) {
    if (std::isinf(log_sum_)) {
      log_sum_ = score;
      for (size_t d = 0; d < mean_.size(); ++d) mean_[d] = value[d];
      return;
    }
    const Real above = std::max(log_sum_, score), below = std::min(log_sum_, score);
    const Real both = above + std::log1p(std::exp(below - above));
    const Real share = std::exp(score - both), kept = std::exp(log_sum_ - both);
    for (size_t d = 0; d < mean_.size(); ++d) mean_[d] = mean_[d] * kept + share * value[d];
    log_sum_ = both;
  }
  void write(float* out, float* lse) const {
    for (size_t d = 0; d < mean_.size(); ++d) out[d] = static_cast<float>(mean_[d]);
    *lse = static_cast<float>(log_sum_);
  }

 private:
  std::vector<Real> mean_;
  Real log_sum_ = -std::numeric_limits<Real>::infinity();
};

}  // namespace

extern "C" int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                       int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                       float scale, const float* q, const float* k, const float* v,
                                       float* out, float* lse) {
  if (kv_heads < 1 || dim < 1 || query_heads % kv_heads) return -1;
  const int64_t rows = batch * query_heads * queries;
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t row = next++; row < rows; row = next++) {
      const int64_t i = row % queries, head = row / queries % query_heads;
      const int64_t item = row / queries / query_heads;
      const int64_t from = (item * kv_heads + head / (query_heads / kv_heads)) * keys;
      const int64_t last = causal ? i + keys - queries : keys - 1;
      RunningMean<long double> mean(dim);
      for (int64_t t = from; t <= from + last; ++t) {
        long double score = 0;
        for (int64_t d = 0; d < dim; ++d) {
          score += static_cast<long double>(q[row * dim + d]) * k[t * dim + d];
        }
        mean.add(score * scale, v + t * dim);
      }
      mean.write(out + row * dim, lse + row);
    }
  };
  if (rows < 64) {
    work();
    return 0;
  }
  std::thread helper(work);
  work();
  helper.join();
  return 0;
}
