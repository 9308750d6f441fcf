// Layer norm, right except for one planted bug at a time. Every bug is one line, marked bug(name);
// without any the code is the known-good `tiled`. Each name becomes a set of functions,
// layer_norm_forward__<name> and so on, so that one build serves all of them.
//
// The right code works in tiles of columns with eight lanes, and in blocks of four rows whose
// partial sums of dgamma and dbeta are merged at the end: places where such bugs live.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __SSE__
#include <immintrin.h>
#endif

#define MUTANTS(MUTANT)                                                                        \
  MUTANT(none, "nothing: the right code")                                                      \
  MUTANT(tile_end, "off by one: the last column of every whole tile is not summed")            \
  MUTANT(tile_start, "off by one: the first column of every tile but the first is not summed") \
  MUTANT(tail_not_summed, "columns after the last whole tile are not summed")                  \
  MUTANT(tail_not_written, "columns after the last whole tile of dx are not written")          \
  MUTANT(lanes_dropped, "the merge looks at six of eight lanes")                               \
  MUTANT(no_epsilon, "epsilon is missing")                                                     \
  MUTANT(epsilon_outside_root, "epsilon is added after the root")                              \
  MUTANT(epsilon_fixed, "epsilon is 1e-5 whatever the caller says")                            \
  MUTANT(epsilon_twice, "epsilon is added in the forward and again in the backward")           \
  MUTANT(unbiased_variance, "the variance is divided by cols - 1")                             \
  MUTANT(variance_not_divided, "the variance is a sum, not a mean")                            \
  MUTANT(variance_one_pass, "variance as E[x^2] - E[x]^2 in float")                            \
  MUTANT(squares_overflow, "squares in float: too large or too small a deviation is lost")     \
  MUTANT(rsqrt_fast, "the root is the twelve bits of the rsqrt instruction")                   \
  MUTANT(gamma_not_in_forward, "y without gamma")                                              \
  MUTANT(beta_not_in_forward, "y without beta")                                                \
  MUTANT(beta_scaled, "beta is multiplied by gamma")                                           \
  MUTANT(gamma_not_in_dx, "dx without gamma")                                                  \
  MUTANT(gamma_after_sums, "dx sums over dy and multiplies by gamma at the end")               \
  MUTANT(dgamma_of_x, "dgamma sums dy * x")                                                    \
  MUTANT(dgamma_not_scaled, "dgamma sums dy * (x - mean) without 1 / sigma")                   \
  MUTANT(dgamma_of_y, "dgamma sums dy * gamma * xhat")                                         \
  MUTANT(dbeta_with_gamma, "dbeta sums dy * gamma")                                            \
  MUTANT(dbeta_is_mean, "dbeta is divided by the number of rows")                              \
  MUTANT(dgamma_is_mean, "dgamma is divided by the number of rows")                            \
  MUTANT(dx_no_mean, "dx without the mean of g")                                               \
  MUTANT(dx_no_projection, "dx without the projection on xhat")                                \
  MUTANT(dx_projection_sign, "dx with the projection added")                                   \
  MUTANT(dx_not_scaled, "dx without 1 / sigma")                                                \
  MUTANT(dx_scaled_by_sigma, "dx times sigma: the rescale is inverted")                        \
  MUTANT(dx_over_rows, "the means in dx are divided by rows")                                  \
  MUTANT(dgamma_adds, "dgamma is added to what was in the output")                             \
  MUTANT(dx_adds, "dx is added to what was in the output")                                     \
  MUTANT(wrong_axis, "dbeta is summed along the columns")                                      \
  MUTANT(dgamma_shifted, "dgamma is written one column late")                                  \
  MUTANT(last_row_lost, "rows after the last whole block are not in dgamma and dbeta")         \
  MUTANT(last_block_unwritten, "rows after the last whole block have no dx")                   \
  MUTANT(first_row_only, "only the first row of a block is written")                           \
  MUTANT(merge_skips_block, "the merge begins with the second block")                          \
  MUTANT(half_sums, "dgamma and dbeta accumulate in 16 bits")                                  \
  MUTANT(half_statistics, "mean and 1 / sigma are stored in 16 bits")                          \
  MUTANT(half_product, "dy * gamma is rounded to 16 bits")                                     \
  MUTANT(statistics_shared, "all rows use the statistics of row 0")                            \
  MUTANT(statistics_of_block, "all rows of a block use those of its first row")                \
  MUTANT(statistics_global, "statistics are kept in a global, not in the cache")               \
  MUTANT(nan_swallowed, "NaN in x counts as 0")                                                \
  MUTANT(nan_row_zero, "dx of a row that would be NaN is 0")                                   \
  MUTANT(infinity_clamped, "gradients are clamped to +-1e4")                                   \
  MUTANT(one_column_skipped, "a row of one column is taken for nothing to do")                 \
  MUTANT(no_rows_skipped, "no rows: dgamma and dbeta are left as they were")                   \
  MUTANT(zero_variance_skipped, "rows of zero variance get dx = 0")                            \
  MUTANT(column_16_bits, "columns are counted in 16 bits")                                     \
  MUTANT(cache_too_small, "asks for half of the cache it writes")                              \
  MUTANT(reads_past_end, "the tail is read as a whole vector")                                 \
  MUTANT(writes_past_end, "the tail of y is written as a whole vector")                        \
  MUTANT(writes_before, "dx of the first row begins one element early")                        \
  MUTANT(input_overwritten, "dy is multiplied by gamma in place")                              \
  MUTANT(seen_before, "a second call with the same shape and first value is skipped")

namespace {

#define NAME(name, what) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active = none;
bool bug(Bug name) { return active == name; }

constexpr int64_t kTile = 64, kLanes = 8, kRows = 4;

struct Statistics {
  double mean, rstd;
};
std::vector<Statistics> kept;  // of bug statistics_global

double half(double value) {  // the 8 bits of bf16
  const float f = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x8000u) & 0xffff0000u;
  float rounded;
  std::memcpy(&rounded, &bits, 4);
  return rounded;
}

// Sum over the columns of a row, tile by tile, in eight lanes.
template <class Term>
double sum_columns(int64_t cols, Term term) {
  double lanes[kLanes] = {};
  for (int64_t begin = 0; begin < cols; begin += kTile) {
    int64_t first = begin, end = std::min(cols, begin + kTile);
    if (bug(tile_end) && end == begin + kTile) --end;
    if (bug(tile_start) && begin > 0) ++first;
    if (bug(tail_not_summed) && end < begin + kTile && begin > 0) break;
    for (int64_t c = first; c < end; ++c) lanes[c % kLanes] += term(c);
  }
  double sum = 0;
  for (int64_t lane = 0; lane < (bug(lanes_dropped) ? 6 : kLanes); ++lane) sum += lanes[lane];
  return sum;
}

Statistics statistics_of(const float* x, int64_t cols, float eps) {
  const double n = static_cast<double>(cols);
  const double mean =
      sum_columns(cols,
                  [&](int64_t c) { return bug(nan_swallowed) && std::isnan(x[c]) ? 0.0 : x[c]; }) /
      n;
  double variance = sum_columns(cols, [&](int64_t c) {
    const double d = bug(nan_swallowed) && std::isnan(x[c]) ? 0.0 : x[c] - mean;
    return bug(squares_overflow) ? static_cast<float>(d) * static_cast<float>(d) : d * d;
  });
  if (!bug(variance_not_divided)) variance /= bug(unbiased_variance) ? n - 1 : n;
  if (bug(variance_one_pass)) {
    float sum = 0, squares = 0;
    for (int64_t c = 0; c < cols; ++c) sum += x[c], squares += x[c] * x[c];
    const float m = sum / static_cast<float>(cols);
    variance = squares / static_cast<float>(cols) - m * m;
  }
  double e = bug(epsilon_fixed) ? 1e-5 : eps;
  if (bug(no_epsilon) || bug(epsilon_outside_root)) e = 0;
  double rstd = 1 / std::sqrt(variance + e);
  if (bug(epsilon_outside_root)) rstd = 1 / (std::sqrt(variance) + eps);
#ifdef __SSE__
  if (bug(rsqrt_fast)) {
    rstd = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(static_cast<float>(variance + e))));
  }
#endif
  if (bug(half_statistics)) return {half(mean), half(rstd)};
  return {mean, rstd};
}

int64_t cache_bytes(int64_t rows, int64_t) {
  const int64_t bytes = rows * static_cast<int64_t>(sizeof(Statistics));
  return bug(cache_too_small) ? bytes / 2 : bytes;
}

int forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
            const float* beta, float* y, void* cache) {
  auto* statistics = static_cast<Statistics*>(cache);
  if (bug(statistics_global)) kept.resize(rows), statistics = kept.data();
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * cols;
    const Statistics s = statistics[r] = statistics_of(row, cols, eps);
    for (int64_t c = 0; c < cols; ++c) {
      const double xhat = (row[c] - s.mean) * s.rstd;
      const double g = bug(gamma_not_in_forward) ? 1 : gamma[c];
      const double b = bug(beta_not_in_forward) ? 0 : bug(beta_scaled) ? beta[c] * g : beta[c];
      y[r * cols + c] = static_cast<float>(xhat * g + b);
    }
  }
  if (bug(writes_past_end) && rows * cols % kLanes) {
    for (int64_t i = rows * cols; i % kLanes; ++i) y[i] = 0;
  }
  return 0;
}

// One row of dx, and its part of the sums of its block.
void backward_row(int64_t rows, int64_t cols, const Statistics& s, const float* dy, const float* x,
                  const float* gamma, float* dx, double* dgamma, double* dbeta) {
  const double n = static_cast<double>(bug(dx_over_rows) ? rows : cols);
  const auto xhat = [&](int64_t c) { return (x[c] - s.mean) * s.rstd; };
  const auto g = [&](int64_t c) {
    if (bug(gamma_not_in_dx) || bug(gamma_after_sums)) return double{dy[c]};
    const double product = double{dy[c]} * gamma[c];
    return bug(half_product) ? half(product) : product;
  };
  double mean_g = sum_columns(cols, g) / n;
  double mean_gx = sum_columns(cols, [&](int64_t c) { return g(c) * xhat(c); }) / n;
  if (bug(dx_no_mean)) mean_g = 0;
  if (bug(dx_no_projection)) mean_gx = 0;
  if (bug(dx_projection_sign)) mean_gx = -mean_gx;
  const double scale = bug(dx_not_scaled) ? 1 : bug(dx_scaled_by_sigma) ? 1 / s.rstd : s.rstd;
  const int64_t written = bug(tail_not_written) ? cols / kTile * kTile : cols;
  for (int64_t c = 0; c < (dx ? written : 0); ++c) {
    double value = scale * (g(c) - mean_g - xhat(c) * mean_gx);
    if (bug(gamma_after_sums)) value *= gamma[c];
    if (bug(dx_adds)) value += dx[c];
    if (bug(nan_row_zero) && std::isnan(value)) value = 0;
    if (bug(infinity_clamped)) value = std::clamp(value, -1e4, 1e4);
    if (bug(zero_variance_skipped) && std::all_of(x, x + cols, [&](float v) { return v == x[0]; }))
      value = 0;
    dx[c] = static_cast<float>(value);
  }
  for (int64_t c = 0; c < cols; ++c) {
    double factor = xhat(c);
    if (bug(dgamma_of_x)) factor = x[c];
    if (bug(dgamma_not_scaled)) factor = x[c] - s.mean;
    if (bug(dgamma_of_y)) factor *= gamma[c];
    dgamma[bug(dgamma_shifted) ? (c + 1) % cols : c] += dy[c] * factor;
    dbeta[bug(wrong_axis) ? 0 : c] += bug(dbeta_with_gamma) ? dy[c] * gamma[c] : dy[c];
    if (bug(half_sums)) dgamma[c] = half(dgamma[c]), dbeta[c] = half(dbeta[c]);
  }
}

int backward(int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
             const float* gamma, const void* cache, float* dx, float* dgamma, float* dbeta) {
  if (bug(one_column_skipped) && cols == 1) return 0;
  if (bug(no_rows_skipped) && rows == 0) return 0;
  if (bug(column_16_bits)) cols = static_cast<uint16_t>(cols);
  static int64_t last_rows = -1, last_cols = -1;
  static float last_first = 0;
  const bool seen =
      rows * cols > 0 && rows == last_rows && cols == last_cols && dy[0] == last_first;
  if (bug(seen_before) && seen) return 0;
  if (rows * cols > 0) last_rows = rows, last_cols = cols, last_first = dy[0];
  const auto* statistics = static_cast<const Statistics*>(cache);
  if (bug(statistics_global)) statistics = kept.data();
  if (bug(input_overwritten)) {
    for (int64_t i = 0; i < rows * cols; ++i) const_cast<float*>(dy)[i] *= gamma[i % cols];
  }
  if (bug(reads_past_end)) {
    volatile float sink = 0;
    for (int64_t i = rows * cols; i % kLanes; ++i) sink = sink + dy[i];
  }
  const int64_t blocks = bug(last_row_lost) ? rows / kRows : (rows + kRows - 1) / kRows;
  std::vector<double> sums(static_cast<size_t>(std::max<int64_t>(blocks, 1) * 2 * cols));
  for (int64_t r = 0; r < (bug(last_row_lost) ? rows / kRows * kRows : rows); ++r) {
    const int64_t block = r / kRows;
    Statistics s = statistics[bug(statistics_shared)     ? 0
                              : bug(statistics_of_block) ? block * kRows
                                                         : r];
    if (bug(epsilon_twice)) s.rstd = 1 / std::sqrt(1 / (s.rstd * s.rstd) + eps);
    double* partial = sums.data() + block * 2 * cols;
    const bool skipped = (bug(first_row_only) && r % kRows != 0) ||
                         (bug(last_block_unwritten) && r >= rows / kRows * kRows);
    float* out = skipped ? nullptr : dx + r * cols - (bug(writes_before) && r == 0 ? 1 : 0);
    backward_row(rows, cols, s, dy + r * cols, x + r * cols, gamma, out, partial, partial + cols);
  }
  for (int64_t c = 0; c < cols; ++c) {
    double g = bug(dgamma_adds) ? dgamma[c] : 0, b = 0;
    for (int64_t block = bug(merge_skips_block) && blocks > 1; block < blocks; ++block) {
      g += sums[block * 2 * cols + c], b += sums[block * 2 * cols + cols + c];
    }
    dgamma[c] = static_cast<float>(bug(dgamma_is_mean) ? g / static_cast<double>(rows) : g);
    dbeta[c] = static_cast<float>(bug(dbeta_is_mean) ? b / static_cast<double>(rows) : b);
  }
  return 0;
}

}  // namespace

#define EXPORT(name, what)                                                                         \
  extern "C" int64_t layer_norm_cache_bytes__##name(int64_t rows, int64_t cols) {                  \
    active = name;                                                                                 \
    return cache_bytes(rows, cols);                                                                \
  }                                                                                                \
  extern "C" int layer_norm_forward__##name(int64_t rows, int64_t cols, float eps, const float* x, \
                                            const float* gamma, const float* beta, float* y,       \
                                            void* cache) {                                         \
    active = name;                                                                                 \
    return forward(rows, cols, eps, x, gamma, beta, y, cache);                                     \
  }                                                                                                \
  extern "C" int layer_norm_backward__##name(                                                      \
      int64_t rows, int64_t cols, float eps, const float* dy, const float* x, const float* gamma,  \
      const void* cache, float* dx, float* dgamma, float* dbeta) {                                 \
    active = name;                                                                                 \
    return backward(rows, cols, eps, dy, x, gamma, cache, dx, dgamma, dbeta);                      \
  }
MUTANTS(EXPORT)
