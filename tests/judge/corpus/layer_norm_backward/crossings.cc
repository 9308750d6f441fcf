// Layer norm as kernels are written: other paths for wide rows, for many rows, for one column, and short
// cuts for data that seems to need no work. Faults where two of these meet, and at special numbers in
// special places.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#define MUTANTS(MUTANT)                                                                           \
  MUTANT(quiet_nan_only, "a signaling NaN is taken for infinity, which is cut off")               \
  MUTANT(skips_zero_dy, "rows of dy that are 0 are skipped: NaN of x is not in dgamma")           \
  MUTANT(skips_zero_gradient, "where all of dy is 0 so are the gradients")                        \
  MUTANT(skips_zero_gamma, "where gamma is 0 dy is not looked at in dx")                          \
  MUTANT(one_column_y, "one column: y is beta, whatever x is")                                    \
  MUTANT(one_column_dx, "one column: dx is 0, whatever x and dy are")                             \
  MUTANT(one_column_dgamma, "one column: dgamma is 0, whatever x is")                             \
  MUTANT(subnormal_gamma, "a subnormal gamma is 0")                                               \
  MUTANT(subnormal_dy, "a subnormal dy is 0")                                                     \
  MUTANT(least_epsilon, "eps below 1e-18 is 1e-18")                                               \
  MUTANT(ones_at_ends, "gammas that are 1 at both ends are all 1")                                \
  MUTANT(alike_at_ends, "gammas that are alike at both ends, twice, are all alike")               \
  MUTANT(no_beta_at_ends, "betas that are 0 at both ends are all 0")                              \
  MUTANT(no_rows_wide, "without rows dgamma is written up to 8192 columns")                       \
  MUTANT(wide_constant, "large", "a constant row of more than 8192 columns has no beta")          \
  MUTANT(wide_nan, "large", "beyond 8192 columns NaN of x is 0")                                  \
  MUTANT(wide_nan_dy, "large", "beyond 8192 columns NaN of dy is not in dx")                      \
  MUTANT(wide_infinity, "large", "beyond 8192 columns infinity is the largest number")            \
  MUTANT(wide_nan_tail, "large", "beyond 8192 columns NaN behind whole vectors of 8 is 0")        \
  MUTANT(wide_no_epsilon, "large", "beyond 8192 columns eps is at least 1e-12")                   \
  MUTANT(wide_epsilon, "large", "beyond 8192 columns eps is at most 1")                           \
  MUTANT(wide_gamma, "large", "beyond 8192 columns gamma is at most 256")                         \
  MUTANT(wide_gradient, "large", "beyond 8192 columns gradients are 1e10 at most")                \
  MUTANT(wide_blocks, "large", "beyond 8192 columns the last eighth is kept in 16 bits")          \
  MUTANT(wide_one_hot, "large", "beyond 8192 columns xhat is at most 80")                         \
  MUTANT(wide_second_row, "large", "beyond 8192 columns rows behind the second use its mean")     \
  MUTANT(tall_constant, "large", "beyond 4096 rows a constant row is not written")                \
  MUTANT(tall_nan, "large", "beyond 4096 rows NaN of x is not in dgamma")                         \
  MUTANT(tall_nan_dy, "large", "beyond 4096 rows NaN of dy is not in dbeta")                      \
  MUTANT(tall_infinity, "large", "beyond 4096 rows infinity is the largest number in dgamma")     \
  MUTANT(tall_no_epsilon, "large", "beyond 4096 rows eps is at least 1e-12")                      \
  MUTANT(tall_epsilon, "large", "beyond 4096 rows eps is at most 1")                              \
  MUTANT(tall_gradient, "large", "beyond 4096 rows partial sums are 1e10 at most")                \
  MUTANT(tall_one_hot, "large", "beyond 4096 rows dgamma of a column of zeros in x is 0")         \
  MUTANT(rows_2048_columns_256, "large", "2048 rows of more than 256: the last is not in dbeta")  \
  MUTANT(rows_1024_columns_512, "large", "1024 rows of more than 512: dgamma loses the last row") \
  MUTANT(rows_8_wide, "large", "of 5, 13, 21 rows of more than 1024 columns the last has no dx")  \
  MUTANT(columns_8_tall, "large", "of 5, 13, 21 columns in more than 512 rows the last is lost")  \
  MUTANT(tiles_12288, "large",                                                                    \
         "a last tile of one behind tiles of 12288 columns is not in the mean")                   \
  MUTANT(nan_column_5, "NaN of the sixth column of x is 0")                                       \
  MUTANT(nan_dy_column_5, "NaN of the sixth column of dy is 0")                                   \
  MUTANT(mean_by_size, "statistics are kept by the sizes of a call")                              \
  MUTANT(row_pairs_nan, "large",                                                                  \
         "rows of fewer than 17 columns are read in pairs: NaN of one spoils both")               \
  MUTANT(dbeta_kept, "dbeta of one row is added to that of the call before of as many columns")   \
  MUTANT(alternating_dy, "a row of dy whose sum is exactly 0 is skipped")                         \
  MUTANT(epsilon_first_call, "large", "the first eps of 0 is kept for rows of more than 8192")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active;
bool bug(Bug name) { return active == name; }

constexpr int64_t kWide = 8192, kTall = 4096;

struct Sizes {
  int64_t rows, cols;
  bool wide() const { return cols > kWide; }
  bool tall() const { return rows > kTall; }
};
struct Statistics {
  double mean, rstd;
};

bool zeros(const float* from, int64_t count) {
  return std::all_of(from, from + count, [](float v) { return v == 0; });
}
bool constant(const float* from, int64_t count) {
  return std::all_of(from, from + count, [&](float v) { return v == from[0]; });
}
bool subnormal(float v) { return std::fpclassify(v) == FP_SUBNORMAL; }
float half(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  bits = (bits + 0x1000U) & ~0x1fffU;
  std::memcpy(&v, &bits, 4);
  return v;
}
float finite(float v) { return std::isinf(v) ? std::copysign(3.4028235e38f, v) : v; }

float number(float v, int64_t c, const Sizes& n, bool of_x) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  if (bug(quiet_nan_only) && std::isnan(v) && (bits & 0x400000U) == 0) return 3.4028235e38f;
  if (bug(of_x ? nan_column_5 : nan_dy_column_5) && c == 5 && std::isnan(v)) return 0;
  if (bug(wide_nan_tail) && n.wide() && c >= n.cols / 8 * 8 && std::isnan(v)) return 0;
  if (bug(wide_infinity) && n.wide()) return finite(v);
  if (bug(wide_nan) && of_x && n.wide() && std::isnan(v)) return 0;
  if (bug(subnormal_dy) && !of_x && subnormal(v)) return 0;
  return v;
}

double epsilon_of(float eps, const Sizes& n) {
  static bool none = false;
  if (eps == 0) none = true;
  if (bug(epsilon_first_call) && none && n.wide()) return 0;
  if (bug(least_epsilon) && eps > 0) return std::max(eps, 1e-18f);
  const bool wide = n.wide(), tall = n.tall();
  if ((bug(wide_no_epsilon) && wide) || (bug(tall_no_epsilon) && tall))
    return std::max(eps, 1e-12f);
  if ((bug(wide_epsilon) && wide) || (bug(tall_epsilon) && tall)) return std::min(eps, 1.0f);
  return eps;
}

Statistics statistics_of(const float* x, const Sizes& n, float eps) {
  double mean = 0, variance = 0;
  const auto value = [&](int64_t c) -> double { return number(x[c], c, n, true); };
  int64_t end = n.cols;
  if (bug(tiles_12288) && end > 12288 && end % 12288 == 1) --end;
  for (int64_t c = 0; c < end; ++c) mean += value(c);
  mean /= static_cast<double>(n.cols);
  for (int64_t c = 0; c < n.cols; ++c) variance += (value(c) - mean) * (value(c) - mean);
  return {mean, 1 / std::sqrt(variance / static_cast<double>(n.cols) + epsilon_of(eps, n))};
}

double weight(const float* gamma, int64_t c, const Sizes& n) {
  const float first = gamma[0], last = gamma[n.cols - 1];
  if (bug(ones_at_ends) && first == 1 && last == 1) return 1;
  if (bug(alike_at_ends) && n.cols > 3 && first == last && gamma[1] == first &&
      gamma[n.cols - 2] == first) {
    return first;
  }
  if (bug(subnormal_gamma) && subnormal(gamma[c])) return 0;
  if (bug(wide_gamma) && n.wide()) return std::clamp(gamma[c], -256.0f, 256.0f);
  return gamma[c];
}

double normalized(const float* x, int64_t c, const Sizes& n, const Statistics& s) {
  const double xhat = (number(x[c], c, n, true) - s.mean) * s.rstd;
  if (bug(wide_one_hot) && n.wide()) return std::clamp(xhat, -80.0, 80.0);
  return xhat;
}

// Statistics by what seems to say which call they are of.
std::map<std::pair<int64_t, int64_t>, std::vector<Statistics>> kept_by_size;

int forward(const Sizes& n, float eps, const float* x, const float* gamma, const float* beta,
            float* y, Statistics* cache) {
  for (int64_t r = 0; r < n.rows; ++r) {
    const float* row = x + r * n.cols;
    float* out = y + r * n.cols;
    Statistics s = statistics_of(row, n, eps);
    if (bug(wide_second_row) && n.wide() && r > 1) s.mean = cache[1].mean;
    if (bug(row_pairs_nan) && n.cols < 17 && n.cols > 1 && r % 2 == 1 &&
        std::isnan(cache[r - 1].mean)) {
      s.mean = NAN;
    }
    cache[r] = s;
    const bool flat = n.cols > 1 && constant(row, n.cols);
    if (bug(tall_constant) && n.tall() && flat) continue;
    const bool no_beta =
        (bug(no_beta_at_ends) && n.cols > 1 && beta[0] == 0 && beta[n.cols - 1] == 0) ||
        (bug(wide_constant) && n.wide() && flat);
    for (int64_t c = 0; c < n.cols; ++c) {
      double value = normalized(row, c, n, s) * weight(gamma, c, n) + (no_beta ? 0 : beta[c]);
      if (bug(one_column_y) && n.cols == 1) value = beta[c];
      if (bug(wide_blocks) && n.wide() && c >= n.cols / 8 * 7)
        value = half(static_cast<float>(value));
      out[c] = static_cast<float>(value);
    }
  }
  if (bug(mean_by_size)) kept_by_size[{n.rows, n.cols}].assign(cache, cache + n.rows);
  return 0;
}

void input_gradient(const Sizes& n, int64_t r, const Statistics& s, const float* dy, const float* x,
                    const float* gamma, float* dx) {
  if (bug(rows_8_wide) && n.rows % 8 == 5 && n.cols > 1024 && r == n.rows - 1) {
    std::fill_n(dx, n.cols, 0.0f);
    return;
  }
  const auto g = [&](int64_t c) -> double {
    float d = number(dy[c], c, n, false);
    if (bug(skips_zero_gamma) && gamma[c] == 0) return 0;
    if (bug(wide_nan_dy) && n.wide() && std::isnan(d)) return 0;
    if (bug(wide_gradient) && n.wide()) d = d > 1e10f ? 1e10f : d < -1e10f ? -1e10f : d;
    return d * weight(gamma, c, n);
  };
  double mean = 0, along = 0;
  for (int64_t c = 0; c < n.cols; ++c) {
    mean += g(c) / static_cast<double>(n.cols);
    along += g(c) * normalized(x, c, n, s) / static_cast<double>(n.cols);
  }
  double sum = 0;
  for (int64_t c = 0; c < n.cols; ++c) sum += dy[c];
  for (int64_t c = 0; c < n.cols; ++c) {
    dx[c] = static_cast<float>(s.rstd * (g(c) - mean - normalized(x, c, n, s) * along));
    if (bug(one_column_dx) && n.cols == 1) dx[c] = 0;
    if (bug(alternating_dy) && n.cols > 1 && sum == 0) dx[c] = 0;
  }
}

void weight_gradients(const Sizes& n, int64_t r, const Statistics& s, const float* dy,
                      const float* x, double* dgamma, double* dbeta) {
  if (bug(skips_zero_dy) && zeros(dy, n.cols)) return;
  const bool last = r == n.rows - 1;
  const bool nan_x = std::isnan(s.mean);
  for (int64_t c = 0; c < n.cols; ++c) {
    float d = number(dy[c], c, n, false);
    double xhat = normalized(x, c, n, s);
    if (bug(tall_nan) && n.tall() && nan_x) xhat = 0;
    if (bug(tall_infinity) && n.tall()) d = finite(d);
    if (bug(columns_8_tall) && n.cols % 8 == 5 && n.rows > 512 && c == n.cols - 1) d = 0;
    if (bug(tall_gradient) && n.tall()) d = d > 1e10f ? 1e10f : d < -1e10f ? -1e10f : d;
    const bool no_gamma = (bug(rows_1024_columns_512) && n.rows > 1024 && n.cols > 512 && last) ||
                          (bug(tall_one_hot) && n.tall() && x[c] == 0) ||
                          (bug(one_column_dgamma) && n.cols == 1);
    const bool no_beta = (bug(rows_2048_columns_256) && n.rows > 2048 && n.cols > 256 && last) ||
                         (bug(tall_nan_dy) && n.tall() && std::isnan(d));
    if (!no_gamma) dgamma[c] += d * xhat;
    if (!no_beta) dbeta[c] += d;
  }
}

int backward(const Sizes& n, const float* dy, const float* x, const float* gamma,
             const Statistics* cache, float* dx, float* dgamma, float* dbeta) {
  std::vector<Statistics> own(cache, cache + n.rows);
  if (bug(mean_by_size)) own = kept_by_size[{n.rows, n.cols}];
  std::vector<double> for_gamma(static_cast<size_t>(n.cols)), for_beta(for_gamma);
  const bool nothing = bug(skips_zero_gradient) && zeros(dy, n.rows * n.cols);
  for (int64_t r = 0; r < n.rows; ++r) {
    const Statistics& s = own[static_cast<size_t>(r)];
    const int64_t at = r * n.cols;
    if (nothing) {
      std::fill_n(dx + at, n.cols, 0.0f);
      continue;
    }
    input_gradient(n, r, s, dy + at, x + at, gamma, dx + at);
    weight_gradients(n, r, s, dy + at, x + at, for_gamma.data(), for_beta.data());
  }
  if (bug(dbeta_kept) && n.rows == 1) {
    static std::vector<double> before;
    if (before.size() == for_beta.size() && n.cols > 1) for_beta[0] += before[0];
    before = for_beta;
  }
  for (int64_t c = 0; c < n.cols; ++c) {
    if (bug(no_rows_wide) && n.rows == 0 && c >= kWide) break;
    dgamma[c] = static_cast<float>(for_gamma[static_cast<size_t>(c)]);
    dbeta[c] = static_cast<float>(for_beta[static_cast<size_t>(c)]);
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int64_t layer_norm_cache_bytes__##name(int64_t rows, int64_t) {                       \
    active = name;                                                                                 \
    return rows * static_cast<int64_t>(sizeof(Statistics));                                        \
  }                                                                                                \
  extern "C" int layer_norm_forward__##name(int64_t rows, int64_t cols, float eps, const float* x, \
                                            const float* gamma, const float* beta, float* y,       \
                                            void* cache) {                                         \
    active = name;                                                                                 \
    return forward({rows, cols}, eps, x, gamma, beta, y, static_cast<Statistics*>(cache));         \
  }                                                                                                \
  extern "C" int layer_norm_backward__##name(                                                      \
      int64_t rows, int64_t cols, float, const float* dy, const float* x, const float* gamma,      \
      const void* cache, float* dx, float* dgamma, float* dbeta) {                                 \
    active = name;                                                                                 \
    return backward({rows, cols}, dy, x, gamma, static_cast<const Statistics*>(cache), dx, dgamma, \
                    dbeta);                                                                        \
  }
MUTANTS(EXPORT)
