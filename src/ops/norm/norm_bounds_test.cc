// The bounds of the norm tests have teeth: wrong implementations, written the ways people get norms
// wrong, fall outside them, and a plain right one stays inside.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ops/norm/norm_test_support.h"

namespace touchstone::test {
namespace {

struct RowResult {
  float mean = 0;
  float rstd = 0;
};

// One row of layer norm in f32 with the faults below.
struct Faults {
  bool mean_of_squares = false;  // variance as E[h^2] - E[h]^2
  bool no_recentring = false;    // the rounded mean, its residual forgotten
  bool unbiased = false;         // D - 1 in the variance
  bool eps_outside = false;      // 1 / (sqrt(var) + eps)
  bool skip_tail = false;        // the last D % 8 elements left out of the sums
  bool bf16_sum = false;         // sums kept in bf16
  bool weight_shifted = false;   // weight[j + 1]
  bool neighbor = false;         // statistics of the row before
  bool round_twice = false;      // through bf16
  std::int64_t one_wrong = -1;   // this element off by 1e-4
};

// f64 accumulation keeps the right version right without any cleverness.
RowResult statistics(const float* h, std::int64_t cols, double eps, const Faults& faults) {
  const std::int64_t end = faults.skip_tail ? cols / 8 * 8 : cols;
  double sum = 0;
  float narrow_sum = 0;
  for (std::int64_t j = 0; j < end; ++j) {
    sum += static_cast<double>(h[j]);
    narrow_sum = static_cast<float>(Bf16(narrow_sum + h[j]));
  }
  const auto count = static_cast<double>(cols);
  const double mean = faults.bf16_sum ? static_cast<double>(narrow_sum) / count : sum / count;
  const auto rounded_mean = static_cast<double>(static_cast<float>(mean));
  const double center = faults.no_recentring ? rounded_mean : mean;
  double squares = 0;
  float raw = 0;
  for (std::int64_t j = 0; j < end; ++j) {
    const double c = static_cast<double>(h[j]) - center;
    squares += c * c;
    raw += h[j] * h[j];
  }
  double variance = squares / (faults.unbiased ? count - 1 : count);
  if (faults.mean_of_squares) {
    const auto m = static_cast<float>(mean);
    variance = static_cast<double>(raw / static_cast<float>(cols) - m * m);
  }
  const double rstd =
      faults.eps_outside ? 1 / (std::sqrt(variance) + eps) : 1 / std::sqrt(variance + eps);
  return {static_cast<float>(mean), static_cast<float>(rstd)};
}

std::vector<double> faulty_layer_norm(const Problem& p, const Data& data, const Faults& faults) {
  std::vector<float> h(data.h.begin(), data.h.end());
  std::vector<double> y(h.size());
  for (std::int64_t r = 0; r < p.rows(); ++r) {
    const std::int64_t source = faults.neighbor && r > 0 ? r - 1 : r;
    const RowResult s = statistics(h.data() + source * p.cols, p.cols, p.eps, faults);
    double exact_mean = 0;
    for (std::int64_t j = 0; j < p.cols; ++j) {
      exact_mean += data.h[static_cast<std::size_t>(source * p.cols + j)];
    }
    exact_mean /= static_cast<double>(p.cols);
    const bool rounded_mean = faults.no_recentring || faults.bf16_sum || faults.skip_tail;
    const double mean = rounded_mean ? static_cast<double>(s.mean) : exact_mean;
    for (std::int64_t j = 0; j < p.cols; ++j) {
      const auto i = static_cast<std::size_t>(r * p.cols + j);
      const auto k = static_cast<std::size_t>(faults.weight_shifted ? (j + 1) % p.cols : j);
      const auto xhat = static_cast<float>(data.h[i] - mean) * s.rstd;
      const float value = xhat * static_cast<float>(data.weight[k]) +
                          static_cast<float>(data.bias[static_cast<std::size_t>(j)]);
      y[i] = static_cast<double>(faults.round_twice ? static_cast<float>(Bf16(value)) : value);
    }
  }
  if (faults.one_wrong >= 0) y[static_cast<std::size_t>(faults.one_wrong)] += 1e-4;
  return y;
}

bool caught(const Faults& faults, std::int64_t cols, double center) {
  const Problem p{.lead = {5}, .cols = cols, .x = {.center = center}};
  const Data data = make_data(p);
  const Expected expected = expected_forward(p, data).y;
  return !close(faulty_layer_norm(p, data, faults), expected, DType::f32, cols);
}

TEST(NormBounds, RightImplementationIsAccepted) {
  for (const std::int64_t cols : {1, 2, 7, 65, 1023, 4096, 65537}) {
    for (const double center : {0.0, 3.0, 100.0, 1e4}) {
      EXPECT_FALSE(caught({}, cols, center)) << cols << " columns, center " << center;
    }
  }
}

TEST(NormBounds, WrongImplementationsAreCaught) {
  for (const std::int64_t cols : {65, 1023, 4097}) {
    SCOPED_TRACE(cols);
    EXPECT_TRUE(caught({.mean_of_squares = true}, cols, 100));
    EXPECT_TRUE(caught({.unbiased = true}, cols, 0));
    EXPECT_TRUE(caught({.eps_outside = true}, cols, 0));
    EXPECT_TRUE(caught({.skip_tail = true}, cols, 0));
    EXPECT_TRUE(caught({.bf16_sum = true}, cols, 3));
    EXPECT_TRUE(caught({.weight_shifted = true}, cols, 0));
    EXPECT_TRUE(caught({.neighbor = true}, cols, 0));
    EXPECT_TRUE(caught({.round_twice = true}, cols, 0));
    EXPECT_TRUE(caught({.one_wrong = 4 * cols + 3}, cols, 0));
    EXPECT_TRUE(caught({.no_recentring = true}, cols, 12345.678));
  }
}

// Gradients with one term missing, doubled or of the wrong sign.
TEST(NormBounds, WrongGradientsAreCaught) {
  const Problem p{.lead = {33}, .cols = 257};
  const Data data = make_data(p);
  const ExpectedBackward expected = expected_backward(p, data);
  const auto refuses = [&](const std::function<void(std::vector<double>&)>& spoil,
                           const Expected& e) {
    std::vector<double> values = rounded(e.value, DType::f32);
    EXPECT_TRUE(close(values, e, DType::f32));
    spoil(values);
    return !close(values, e, DType::f32);
  };
  EXPECT_TRUE(refuses([](auto& v) { v[4000] *= 1 + 1e-4; }, expected.dx));
  EXPECT_TRUE(refuses([](auto& v) { v[8480] = 0; }, expected.dx));
  EXPECT_TRUE(refuses(
      [&](auto& v) {  // the last row left out of the column sums
        const Statistics s = oracle_statistics(p, data);
        for (std::size_t c = 0; c < 257; ++c) {
          v[c] -= data.dy[32 * 257 + c] * (data.h[32 * 257 + c] - s.mean[32]) * s.rstd[32];
        }
      },
      expected.dweight));
  EXPECT_TRUE(refuses(
      [&](auto& v) {
        for (std::size_t c = 0; c < 257; ++c) v[c] -= data.dy[c];
      },
      expected.dbias));
  EXPECT_TRUE(refuses([](auto& v) { v = rounded(v, DType::bf16); }, expected.dweight));
}

}  // namespace
}  // namespace touchstone::test
