// Layer norm for the reach of the judge: right code with faults that show only at sizes, scalars and
// crossings that no fixed list of cases holds, and right code that refuses what it does not have.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#define MUTANTS(MUTANT)                                                                            \
  MUTANT(negative_gamma, "a gamma below 0 counts without its sign where eps is above 1")           \
  MUTANT(rows_13, "of 13, 26, 39 rows the last is not in dgamma")                                  \
  MUTANT(columns_7, "rows of 7, 14, 21 columns, but not of 28, forget the last one in the mean")   \
  MUTANT(tall, "more than 64 rows for each column: dbeta loses the first row")                     \
  MUTANT(wide_one_row, "one row of more than 1000 columns has the variance of n - 1")              \
  MUTANT(epsilon_above_one, "eps above 1 is added to the deviation instead of the variance")       \
  MUTANT(large_beta, "a beta above 4 is added before gamma is multiplied")                         \
  MUTANT(row_of_zeros, "a row of zeros only has no beta")                                          \
  MUTANT(equal_dy, "where all of dy is the same number dx is 0")                                   \
  MUTANT(odd_square, "an odd number of columns and twice as many rows: dgamma is halved")          \
  MUTANT(columns_200000, "large", "columns from 200000 on are not summed")                         \
  MUTANT(buffer_8192, "more than 8192 columns, up to 65000: the rest is not normalized")           \
  MUTANT(backward_8192, "more than 8192 columns, up to 65000: sums of the backward stop there")    \
  MUTANT(rows_70000, "large", "rows from 70000 on are not in the gradients of the weights")        \
  MUTANT(rows_150_columns_150, "rows from 150 on lose a column when there are 150")                \
  MUTANT(rows_1000_columns_64, "from 1000 rows of more than 64 on, dbeta loses the last")          \
  MUTANT(epsilon_flushed, "eps below 1e-10 is 0")                                                  \
  MUTANT(epsilon_1e_13, "eps below 1e-13 is 1e-13")                                                \
  MUTANT(epsilon_clamped, "eps is at most 20")                                                     \
  MUTANT(epsilon_power_of_ten, "eps is rounded to a power of ten")                                 \
  MUTANT(epsilon_half, "eps goes through 16 bits, whose smallest step is 2^-24")                   \
  MUTANT(nan_first, "NaN in the first column counts as 0")                                         \
  MUTANT(nan_last, "NaN in the last column counts as 0")                                           \
  MUTANT(caches_two, "statistics of two calls are kept")                                           \
  MUTANT(caches_eight, "statistics of eight calls are kept")                                       \
  MUTANT(caches_in_order, "statistics are taken in the order they were made in")                   \
  MUTANT(cache_bytes_of_first, "the cache is as large as that of the first call")                  \
  MUTANT(rows_18_bits, "large", "rows are counted in 18 bits")                                     \
  MUTANT(row_blocks_20, "large", "blocks of 20 rows are counted in 13 bits")                       \
  MUTANT(rows_29, "large", "of 29, 58, 87 rows the last is not in dgamma")                         \
  MUTANT(rows_are_83, "large", "of 83 rows the last is not in dgamma")                             \
  MUTANT(columns_are_101, "large", "of 101 columns the last is not in the mean")                   \
  MUTANT(rows_17_bits, "large", "rows are counted in 17 bits")                                     \
  MUTANT(row_blocks_12_bits, "large", "blocks of 32 rows are counted in 12 bits")                  \
  MUTANT(columns_18_bits, "large", "columns are counted in 18 bits")                               \
  MUTANT(tiles_12_bits, "large", "tiles of 64 columns are counted in 12 bits")                     \
  MUTANT(elements_265000, "large", "elements behind the first 265000 are not written")             \
  MUTANT(square, "as many rows as columns: dbeta is summed along the rows")                        \
  MUTANT(single_number, "one row of one column is not written")                                    \
  MUTANT(columns_48, "a last tile of 47 of 48 columns loses one in the backward")                  \
  MUTANT(columns_80, "a last tile of one behind tiles of 80 columns is not summed")                \
  MUTANT(rows_24, "a last block of 23 of 24 rows loses one in dgamma")                             \
  MUTANT(xhat_64, "xhat is at most 64")                                                            \
  MUTANT(epsilon_of_last, "the backward takes the eps of the last forward")                        \
  MUTANT(negative_nan, "a NaN with a sign counts as 0")                                            \
  MUTANT(cache_once, "the backward empties the cache that it was given")                           \
  MUTANT(gamma_zero, "dgamma of a column with gamma 0 is 0")                                       \
  MUTANT(gamma_zero_y, "a column with gamma 0 has no beta")                                        \
  MUTANT(ends_equal, "a row that begins and ends with the same number counts as constant")         \
  MUTANT(row_like_before, "a row that begins like the one before has its statistics")              \
  MUTANT(kept_statistics, "statistics are made anew when address, sizes, first or last changed")   \
  MUTANT(half_gamma_far, "gamma from column 700 on is kept in 16 bits")                            \
  MUTANT(half_gradient_far, "gradients of rows from 100 on are summed in 16 bits")                 \
  MUTANT(half_large_mean, "means above 4 are kept in 16 bits")                                     \
  MUTANT(calls_400, "from the 400th call on the last row is not in dbeta")                         \
  MUTANT(helper_not_awaited,                                                                       \
         "a thread writes dx of the last of 500 rows, and nobody waits for "                       \
         "it")                                                                                     \
  MUTANT(first_gamma_one, "where the first gamma is 1 all are")                                    \
  MUTANT(first_beta_zero, "where the first beta is 0 all are")                                     \
  MUTANT(second_backward, "a second backward of the same cache adds to the dbeta of the first")    \
  MUTANT(aligned_dy, "dy on 64 bytes: dbeta loses the columns behind whole vectors of 16")         \
  MUTANT(zero_dy_row, "a row of dy that begins with 0 has no means")                               \
  MUTANT(gamma_above_16, "a gamma above 16 counts as 16")                                          \
  MUTANT(three_times_rows, "three times as many rows as columns: dbeta loses the last row")        \
  MUTANT(dy_1e30, "gradients are at most 1e30")                                                    \
  MUTANT(zero_dy, "where all of dy is 0 nothing is written")                                       \
  MUTANT(zero_gamma, "where all of gamma is 0 y is not written")                                   \
  MUTANT(equal_gammas, "where the first three gammas are equal and not 1 all are")                 \
  MUTANT(powers_of_two,                                                                            \
         "rows and columns of powers of two, more rows than columns: dbeta loses the last row")    \
  MUTANT(zero_x, "where all of x is 0 dx is 0")                                                    \
  MUTANT(narrower_call,                                                                            \
         "a call of fewer columns than the one before takes one number of the old mean")           \
  MUTANT(tiny_gradient, "gradients below 1e-25 are 0")                                             \
  MUTANT(last_dy_only, "where only the last element of a row of dy is not 0 it is not seen")       \
  MUTANT(gamma_is_beta, "where gamma and beta are the same numbers beta counts as 0")              \
  MUTANT(dy_is_x, "a row of dy with the numbers of x has dx 0")                                    \
  MUTANT(epsilon_of_same_x,                                                                        \
         "a forward of the numbers of the one before keeps its statistics, whatever eps")          \
  MUTANT(epsilon_wide, "with more than 2048 columns eps is at least 1e-5")                         \
  MUTANT(epsilon_many_rows, "with more than 256 rows eps is at most 0.1")                          \
  MUTANT(negative_infinity, "-inf in x counts as the lowest number")                               \
  MUTANT(nan_x_and_dy, "NaN in dy is not seen in dbeta where its row of x has one, too")           \
  MUTANT(infinite_dy, "-inf in dy is not in dbeta")                                                \
  MUTANT(columns_192,                                                                              \
         "a last tile of one behind tiles of 192 columns is not summed in the backward")           \
  MUTANT(rows_192, "a last block of one behind blocks of 192 rows is not in dgamma")               \
  MUTANT(falling_row, "a row of falling numbers has the variance of n - 1")                        \
  MUTANT(half_partials, "with more than 1500 rows partial sums of dbeta of 512 rows have 16 bits") \
  MUTANT(deviation_17_bits, "1 / sqrt has 17 bits")                                                \
  MUTANT(wider_in_between,                                                                         \
         "a backward after a forward of more columns than its own loses its last column of dbeta") \
  MUTANT(epsilon_zero_wide,                                                                        \
         "with eps = 0 rows of more than 512 columns have the variance of n - "                    \
         "1")

#define PARTIALS(PARTIAL)                                                             \
  PARTIAL(no_odd_columns, "lacks=odd_columns", "rows of whole vectors")               \
  PARTIAL(no_wide, "lacks=wide", "rows of 8192 at most")                              \
  PARTIAL(no_many_rows, "lacks=many_rows", "4096 rows at most")                       \
  PARTIAL(no_rows_zero, "lacks=no_rows", "at least one row")                          \
  PARTIAL(one_cache, "lacks=several_caches", "one cache at a time")                   \
  PARTIAL(no_zero_epsilon, "lacks=no_epsilon", "eps above 0")                         \
  PARTIAL(no_special, "lacks=not_finite", "finite numbers")                           \
  PARTIAL(no_dgamma, "lacks=dgamma declares=dgamma", "without the gradient of gamma") \
  PARTIAL(dx_only, "lacks=dgamma,dbeta declares=dgamma,dbeta", "without those of weights")

namespace {

#define NAME(name, ...) name,
enum Variant { MUTANTS(NAME) PARTIALS(NAME) };
#undef NAME
Variant active;
bool bug(Variant name) { return active == name; }

struct Statistics {
  double mean, rstd;
};
std::deque<std::vector<Statistics>> kept;  // of the bugs caches_*
int64_t open_caches = 0;                   // of one_cache
int64_t made = 0;

float last_eps = 0;  // of epsilon_of_last
bool single_row = false;
int64_t rows_of_call = 0, columns_of_last = 0;
int64_t calls = 0;

// As many bits as half precision keeps.
float half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x1000U) & ~0x1fffU;
  std::memcpy(&value, &bits, 4);
  return value;
}

double epsilon_of(float eps) {
  double e = eps;
  if (bug(epsilon_flushed) && e < 1e-10) e = 0;
  if (bug(epsilon_1e_13) && e > 0 && e < 1e-13) e = 1e-13;
  if (bug(epsilon_clamped)) e = std::min(e, 20.0);
  if (bug(epsilon_power_of_ten) && e > 0) e = std::pow(10, std::floor(std::log10(e) + 1e-6));
  if (bug(epsilon_half)) e = e < 0x1p-14 ? std::nearbyint(e * 0x1p24) * 0x1p-24 : e;
  return e;
}

int64_t summed(int64_t cols) {
  if (bug(columns_200000)) return std::min<int64_t>(cols, 200000);
  if (bug(columns_18_bits)) return cols > 1 << 18 ? cols & ((1 << 18) - 1) : cols;
  if (bug(tiles_12_bits)) return std::min<int64_t>(cols, 4096 * 64);
  return cols;
}

float seen(const float* x, int64_t c, int64_t cols) {
  if (bug(negative_nan) && std::isnan(x[c]) && std::signbit(x[c])) return 0;
  if (bug(negative_infinity) && std::isinf(x[c]) && x[c] < 0) return -3.4028235e38f;
  const bool end = (bug(nan_first) && c == 0) || (bug(nan_last) && c == cols - 1);
  return end && cols > 1 && std::isnan(x[c]) ? 0 : x[c];
}

Statistics statistics_of(const float* x, int64_t cols, float eps) {
  int64_t n = summed(cols);
  if (bug(columns_80) && cols > 80 && cols % 80 == 1) --n;
  const bool left_out =
      (bug(columns_7) && cols % 7 == 0 && cols % 4 != 0) || (bug(columns_are_101) && cols == 101);
  if (bug(ends_equal) && cols > 2 && x[0] == x[cols - 1]) {
    return {x[0], 1 / std::sqrt(epsilon_of(eps))};
  }
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < n - (left_out ? 1 : 0); ++c) mean += seen(x, c, cols);
  if (bug(narrower_call)) {
    static int64_t before = 0;
    static double old = 0;
    if (cols < before) mean += old;
    before = cols, old = x[cols - 1];
  }
  mean /= static_cast<double>(cols);
  if (bug(half_large_mean) && std::fabs(mean) > 4) mean = half(static_cast<float>(mean));
  for (int64_t c = 0; c < n; ++c) {
    const double d = seen(x, c, cols) - mean;
    variance += d * d;
  }
  const bool falling =
      cols > 8 && x[0] > x[cols - 1] && std::is_sorted(x, x + cols, std::greater<>());
  if ((bug(falling_row) && falling) || (bug(epsilon_zero_wide) && eps == 0 && cols > 512)) {
    variance *= static_cast<double>(cols) / static_cast<double>(cols - 1);
  }
  if (bug(epsilon_wide) && cols > 2048) eps = std::max(eps, 1e-5f);
  if (bug(epsilon_many_rows) && rows_of_call > 256) eps = std::min(eps, 0.1f);
  if (bug(deviation_17_bits)) {
    const double exact = 1 / std::sqrt(variance / static_cast<double>(cols) + eps);
    const double step = std::ldexp(1.0, std::ilogb(exact) - 16);
    return {mean, std::floor(exact / step) * step};
  }
  if (bug(wide_one_row) && single_row && cols > 1000) {
    variance *= static_cast<double>(cols) / static_cast<double>(cols - 1);
  }
  if (bug(epsilon_above_one) && eps > 1) {
    return {mean, 1 / (std::sqrt(variance / static_cast<double>(cols)) + eps)};
  }
  return {mean, 1 / std::sqrt(variance / static_cast<double>(cols) + epsilon_of(eps))};
}

int64_t cache_bytes(int64_t rows) {
  static int64_t first = -1;
  const int64_t bytes = rows * static_cast<int64_t>(sizeof(Statistics));
  if (first < 0) first = bytes;
  return bug(cache_bytes_of_first) ? first : bytes;
}

bool refuses(int64_t rows, int64_t cols, float eps, const float* x) {
  if (bug(no_odd_columns) && cols % 4 != 0) return true;
  if (bug(no_wide) && cols > 8192) return true;
  if (bug(no_many_rows) && rows > 4096) return true;
  if (bug(no_rows_zero) && rows == 0) return true;
  if (bug(no_zero_epsilon) && eps == 0) return true;
  return bug(no_special) &&
         std::any_of(x, x + rows * cols, [](float v) { return !std::isfinite(v); });
}

// The statistics of the last call, as long as nothing tells that x is another.
std::vector<Statistics> kept_or_new(int64_t rows, int64_t cols, float eps, const float* x) {
  static std::vector<Statistics> known;
  static const float* from = nullptr;
  static float first = 0, last = 0;
  static int64_t width = 0;
  const int64_t count = rows * cols;
  const bool same = count > 0 && from == x && width == cols && first == x[0] &&
                    last == x[count - 1] && known.size() == static_cast<size_t>(rows);
  if (!same) {
    known.clear();
    for (int64_t r = 0; r < rows; ++r) known.push_back(statistics_of(x + r * cols, cols, eps));
  }
  if (count > 0) first = x[0], last = x[count - 1];
  from = x, width = cols;
  return known;
}

float weight(const float* gamma, int64_t c) {
  const bool alike = bug(equal_gammas) && c > 2 && gamma[0] == gamma[1] && gamma[1] == gamma[2];
  if (alike && gamma[0] != 1) return gamma[0];
  if (bug(gamma_above_16)) return std::min(gamma[c], 16.0f);
  if (bug(first_gamma_one) && gamma[0] == 1) return 1;
  if (bug(negative_gamma) && last_eps > 1) return std::fabs(gamma[c]);
  return bug(half_gamma_far) && c >= 700 ? half(gamma[c]) : gamma[c];
}

double incoming(float dy) {
  if (bug(tiny_gradient) && std::fabs(dy) < 1e-25f) return 0;
  return bug(dy_1e30) ? std::clamp<double>(dy, -1e30, 1e30) : dy;
}

bool zeros(const float* from, int64_t count) {
  return std::all_of(from, from + count, [](float v) { return v == 0; });
}

bool too_wide(Variant name, int64_t cols) { return bug(name) && cols > 8192 && cols <= 65000; }

int forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
            const float* beta, float* y, void* cache) {
  if (refuses(rows, cols, eps, x)) return 1;
  if (bug(one_cache) && open_caches > 0) return 1;
  ++open_caches;
  ++calls;
  last_eps = eps;
  single_row = rows == 1;
  rows_of_call = rows, columns_of_last = cols;
  if (bug(single_number) && rows * cols == 1) return 0;
  if (bug(zero_gamma) && zeros(gamma, cols) && rows > 0) {
    for (int64_t r = 0; r < rows; ++r) {
      static_cast<Statistics*>(cache)[r] = statistics_of(x + r * cols, cols, eps);
    }
    return 0;
  }
  std::vector<Statistics> known;
  if (bug(kept_statistics)) known = kept_or_new(rows, cols, eps, x);
  static std::vector<float> x_before;
  static std::vector<Statistics> statistics_before;
  const bool same_x = bug(epsilon_of_same_x) && rows > 0 &&
                      std::equal(x, x + rows * cols, x_before.begin(), x_before.end()) &&
                      statistics_before.size() == static_cast<size_t>(rows);
  const bool same_weights = bug(gamma_is_beta) && cols > 1 && std::equal(gamma, gamma + cols, beta);
  auto* statistics = static_cast<Statistics*>(cache);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * cols;
    Statistics s =
        bug(kept_statistics) ? known[static_cast<size_t>(r)] : statistics_of(row, cols, eps);
    const bool like = bug(row_like_before) && r > 0 && cols > 3 &&
                      std::memcmp(row, row - cols, 4 * sizeof(float)) == 0;
    if (like) s = statistics[r - 1];
    if (same_x) s = statistics_before[static_cast<size_t>(r)];
    statistics[r] = s;
    for (int64_t c = 0; c < cols; ++c) {
      if (bug(elements_265000) && r * cols + c >= 265000) break;
      double xhat = (seen(row, c, cols) - s.mean) * s.rstd;
      if (too_wide(buffer_8192, cols) && c >= 8192) xhat = row[c];
      if (bug(xhat_64)) xhat = std::clamp(xhat, -64.0, 64.0);
      const bool zeros = bug(row_of_zeros) && cols > 1 &&
                         std::all_of(row, row + cols, [](float v) { return v == 0; });
      const bool empty = zeros || (bug(gamma_zero_y) && gamma[c] == 0);
      y[r * cols + c] = empty ? 0 : static_cast<float>(xhat * weight(gamma, c) + beta[c]);
      if (bug(first_beta_zero) && beta[0] == 0) {
        y[r * cols + c] = static_cast<float>(xhat * weight(gamma, c));
      }
      if (same_weights) y[r * cols + c] = static_cast<float>(xhat * weight(gamma, c));
      if (bug(large_beta) && beta[c] > 4) {
        y[r * cols + c] = static_cast<float>((xhat + beta[c]) * weight(gamma, c));
      }
    }
  }
  if (bug(epsilon_of_same_x)) {
    x_before.assign(x, x + rows * cols);
    statistics_before.assign(statistics, statistics + rows);
  }
  if (bug(caches_two) || bug(caches_eight) || bug(caches_in_order)) {
    kept.emplace_back(statistics, statistics + rows);
    // The handle is a number; what it stands for is what was made last.
    if (rows > 0) statistics[0].mean = static_cast<double>(made);
    ++made;
  }
  return 0;
}

void backward_row(int64_t r, int64_t rows, int64_t cols, const Statistics& s, const float* dy,
                  const float* x, const float* gamma, float* dx, double* dgamma, double* dbeta) {
  const double n = static_cast<double>(cols);
  int64_t end = summed(cols);
  if (too_wide(backward_8192, cols)) end = 8192;
  if (bug(rows_150_columns_150) && r >= 150 && cols >= 150) --end;
  if (bug(columns_48) && cols % 48 == 47) --end;
  if (bug(columns_80) && cols > 80 && cols % 80 == 1) --end;
  if (bug(columns_192) && cols > 192 && cols % 192 == 1) --end;
  double mean_g = 0, mean_gx = 0;
  for (int64_t c = 0; c < end; ++c) {
    const double g = incoming(dy[c]) * weight(gamma, c);
    mean_g += g / n;
    mean_gx += g * (seen(x, c, cols) - s.mean) * s.rstd / n;
  }
  if (bug(last_dy_only) && cols > 1 && zeros(dy, cols - 1)) mean_g = mean_gx = 0;
  if (bug(zero_dy_row) && cols > 1 && dy[0] == 0) mean_g = mean_gx = 0;
  const bool flat = (bug(equal_dy) && cols > 2 &&
                     std::all_of(dy, dy + cols, [&](float v) { return v == dy[0]; })) ||
                    (bug(dy_is_x) && cols > 1 && std::equal(dy, dy + cols, x));
  const bool nan_x = std::any_of(x, x + cols, [](float v) { return std::isnan(v); });
  const bool counted = !(bug(rows_70000) && r >= 70000) && !(bug(rows_17_bits) && r >= 1 << 17) &&
                       !(bug(row_blocks_12_bits) && r / 32 >= 1 << 12) &&
                       !(bug(rows_18_bits) && r >= 1 << 18) &&
                       !(bug(row_blocks_20) && r / 20 >= 1 << 13);
  const bool lost = bug(rows_1000_columns_64) && rows >= 1000 && cols > 64 && r == rows - 1;
  const bool alone = r == rows - 1 && rows > 1;
  std::vector<float> late;
  for (int64_t c = 0; c < cols; ++c) {
    const double xhat = (seen(x, c, cols) - s.mean) * s.rstd;
    const double g = incoming(dy[c]) * weight(gamma, c);
    if (bug(helper_not_awaited) && alone && rows >= 500) {
      late.push_back(static_cast<float>(s.rstd * (g - mean_g - xhat * mean_gx)));
    } else if (!(bug(elements_265000) && r * cols + c >= 265000)) {
      dx[c] = flat ? 0 : static_cast<float>(s.rstd * (g - mean_g - xhat * mean_gx));
    }
    if (!counted) continue;
    const double d = bug(half_gradient_far) && r >= 100 ? half(dy[c]) : incoming(dy[c]);
    const bool left_out =
        alone &&
        ((bug(rows_13) && rows % 13 == 0) || (bug(rows_29) && rows % 29 == 0) ||
         (bug(rows_are_83) && rows == 83) || (bug(rows_192) && rows > 192 && rows % 192 == 1));
    if (!(bug(rows_24) && alone && rows % 24 == 23) && !left_out &&
        !(bug(gamma_zero) && gamma[c] == 0)) {
      const bool halved = bug(odd_square) && cols % 2 == 1 && rows == 2 * cols;
      dgamma[c] += d * xhat * (halved ? 0.5 : 1);
    }
    if (bug(three_times_rows) && rows == 3 * cols && alone && cols > 1) continue;
    const bool tall_first = bug(tall) && r == 0 && rows > 64 * cols;
    if (bug(nan_x_and_dy) && nan_x && std::isnan(dy[c])) continue;
    if (bug(infinite_dy) && std::isinf(dy[c]) && dy[c] < 0) continue;
    if (bug(half_partials) && rows > 1500 && r % 512 == 0) {
      dbeta[c] = half(static_cast<float>(dbeta[c]));
    }
    if (!tall_first && !lost && !(bug(calls_400) && calls >= 400 && alone)) dbeta[c] += d;
  }
  if (late.empty()) return;
  std::thread([late, dx] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::copy(late.begin(), late.end(), dx);
  }).detach();
}

int backward(int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
             const float* gamma, const void* cache, float* dx, float* dgamma, float* dbeta) {
  if (bug(no_special) &&
      std::any_of(dy, dy + rows * cols, [](float v) { return !std::isfinite(v); })) {
    return 1;
  }
  open_caches = 0;
  ++calls;
  if (bug(single_number) && rows * cols == 1) return 0;
  if (bug(zero_dy) && rows > 0 && zeros(dy, rows * cols)) return 0;
  const auto* statistics = static_cast<const Statistics*>(cache);
  std::vector<Statistics> own(statistics, statistics + rows);
  if (bug(epsilon_of_last)) {
    for (Statistics& s : own) {
      s.rstd = 1 / std::sqrt(1 / (s.rstd * s.rstd) - eps + last_eps);
    }
  }
  if (bug(cache_once) && rows > 0) {
    std::fill_n(static_cast<Statistics*>(const_cast<void*>(cache)), rows, Statistics{});
  }
  const bool ring = bug(caches_two) || bug(caches_eight) || bug(caches_in_order);
  if (bug(caches_in_order) && rows == 0) kept.pop_front();
  if (ring && rows > 0) {
    auto number =
        static_cast<int64_t>(statistics[0].mean) - (made - static_cast<int64_t>(kept.size()));
    const int64_t most = bug(caches_two) ? 2 : 8;
    if (bug(caches_in_order)) number = 0;
    if (!bug(caches_in_order) && static_cast<int64_t>(kept.size()) > most) {
      number = std::max<int64_t>(number, static_cast<int64_t>(kept.size()) - most);
    }
    const std::vector<Statistics>& found = kept[static_cast<size_t>(number)];
    for (size_t r = 0; r < own.size(); ++r) own[r] = found[std::min(r, found.size() - 1)];
    if (bug(caches_in_order) || kept.size() > 64) kept.pop_front();
  }
  std::vector<double> for_gamma(static_cast<size_t>(cols)), for_beta(for_gamma);
  for (int64_t r = 0; r < rows; ++r) {
    backward_row(r, rows, cols, own[static_cast<size_t>(r)], dy + r * cols, x + r * cols, gamma,
                 dx + r * cols, for_gamma.data(), for_beta.data());
  }
  if (bug(second_backward)) {
    static const void* before = nullptr;
    static std::vector<double> sums;
    if (before == cache && sums.size() == for_beta.size() && rows > 1) {
      for (size_t c = 0; c < sums.size(); ++c) for_beta[c] += sums[c];
    }
    before = cache, sums = for_beta;
  }
  if (bug(aligned_dy) && reinterpret_cast<uintptr_t>(dy) % 64 == 0 && rows > 0) {
    std::fill(for_beta.begin() + cols / 16 * 16, for_beta.end(), 0.0);
  }
  if (bug(wider_in_between) && columns_of_last > cols && rows > 0) for_beta.back() = 0;
  if (bug(zero_x) && rows > 0 && zeros(x, rows * cols)) std::fill_n(dx, rows * cols, 0.0f);
  const bool powers = (rows & (rows - 1)) == 0 && (cols & (cols - 1)) == 0;
  for (int64_t c = 0; c < cols && bug(powers_of_two) && powers && rows > cols && cols > 1; ++c) {
    for_beta[static_cast<size_t>(c)] -= dy[(rows - 1) * cols + c];
  }
  if (bug(square) && rows == cols && rows > 1) {
    for (int64_t c = 0; c < cols; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += dy[c * cols + r];
      for_beta[static_cast<size_t>(c)] = sum;
    }
  }
  const bool no_gamma = bug(no_dgamma) || bug(dx_only);
  for (int64_t c = 0; c < cols; ++c) {
    if (!no_gamma) dgamma[c] = static_cast<float>(for_gamma[static_cast<size_t>(c)]);
    if (!bug(dx_only)) dbeta[c] = static_cast<float>(for_beta[static_cast<size_t>(c)]);
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int64_t layer_norm_cache_bytes__##name(int64_t rows, int64_t) {                       \
    active = name;                                                                                 \
    return cache_bytes(rows);                                                                      \
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
PARTIALS(EXPORT)
