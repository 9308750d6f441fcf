// Layer norm for the reach of the judge: right code with faults that show only at sizes, scalars and
// crossings that no fixed list of cases holds, and right code that refuses what it does not have.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <vector>

#define MUTANTS(MUTANT)                                                                         \
  MUTANT(columns_200000, "large", "columns from 200000 on are not summed")                      \
  MUTANT(buffer_8192, "more than 8192 columns, up to 65000: the rest is not normalized")        \
  MUTANT(backward_8192, "more than 8192 columns, up to 65000: sums of the backward stop there") \
  MUTANT(rows_70000, "large", "rows from 70000 on are not in the gradients of the weights")     \
  MUTANT(rows_150_columns_150, "rows from 150 on lose a column when there are 150")             \
  MUTANT(rows_1000_columns_64, "from 1000 rows of more than 64 on, dbeta loses the last")       \
  MUTANT(epsilon_flushed, "eps below 1e-10 is 0")                                               \
  MUTANT(epsilon_1e_13, "eps below 1e-13 is 1e-13")                                             \
  MUTANT(epsilon_clamped, "eps is at most 20")                                                  \
  MUTANT(epsilon_power_of_ten, "eps is rounded to a power of ten")                              \
  MUTANT(epsilon_half, "eps goes through 16 bits, whose smallest step is 2^-24")                \
  MUTANT(nan_first, "NaN in the first column counts as 0")                                      \
  MUTANT(nan_last, "NaN in the last column counts as 0")                                        \
  MUTANT(caches_two, "statistics of two calls are kept")                                        \
  MUTANT(caches_eight, "statistics of eight calls are kept")                                    \
  MUTANT(caches_in_order, "statistics are taken in the order they were made in")                \
  MUTANT(cache_bytes_of_first, "the cache is as large as that of the first call")               \
  MUTANT(rows_17_bits, "large", "rows are counted in 17 bits")                                  \
  MUTANT(row_blocks_12_bits, "large", "blocks of 32 rows are counted in 12 bits")               \
  MUTANT(columns_18_bits, "large", "columns are counted in 18 bits")                            \
  MUTANT(tiles_12_bits, "large", "tiles of 64 columns are counted in 12 bits")                  \
  MUTANT(elements_265000, "large", "elements behind the first 265000 are not written")

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
  const bool end = (bug(nan_first) && c == 0) || (bug(nan_last) && c == cols - 1);
  return end && cols > 1 && std::isnan(x[c]) ? 0 : x[c];
}

Statistics statistics_of(const float* x, int64_t cols, float eps) {
  const int64_t n = summed(cols);
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < n; ++c) mean += seen(x, c, cols);
  mean /= static_cast<double>(cols);
  for (int64_t c = 0; c < n; ++c) {
    const double d = seen(x, c, cols) - mean;
    variance += d * d;
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

bool too_wide(Variant name, int64_t cols) { return bug(name) && cols > 8192 && cols <= 65000; }

int forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
            const float* beta, float* y, void* cache) {
  if (refuses(rows, cols, eps, x)) return 1;
  if (bug(one_cache) && open_caches > 0) return 1;
  ++open_caches;
  auto* statistics = static_cast<Statistics*>(cache);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * cols;
    const Statistics s = statistics_of(row, cols, eps);
    statistics[r] = s;
    for (int64_t c = 0; c < cols; ++c) {
      if (bug(elements_265000) && r * cols + c >= 265000) break;
      double xhat = (seen(row, c, cols) - s.mean) * s.rstd;
      if (too_wide(buffer_8192, cols) && c >= 8192) xhat = row[c];
      y[r * cols + c] = static_cast<float>(xhat * gamma[c] + beta[c]);
    }
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
  double mean_g = 0, mean_gx = 0;
  for (int64_t c = 0; c < end; ++c) {
    const double g = static_cast<double>(dy[c]) * gamma[c];
    mean_g += g / n;
    mean_gx += g * (seen(x, c, cols) - s.mean) * s.rstd / n;
  }
  const bool counted = !(bug(rows_70000) && r >= 70000) && !(bug(rows_17_bits) && r >= 1 << 17) &&
                       !(bug(row_blocks_12_bits) && r / 32 >= 1 << 12);
  const bool lost = bug(rows_1000_columns_64) && rows >= 1000 && cols > 64 && r == rows - 1;
  for (int64_t c = 0; c < cols; ++c) {
    const double xhat = (seen(x, c, cols) - s.mean) * s.rstd;
    const double g = static_cast<double>(dy[c]) * gamma[c];
    if (!(bug(elements_265000) && r * cols + c >= 265000)) {
      dx[c] = static_cast<float>(s.rstd * (g - mean_g - xhat * mean_gx));
    }
    if (!counted) continue;
    dgamma[c] += dy[c] * xhat;
    if (!lost) dbeta[c] += dy[c];
  }
}

int backward(int64_t rows, int64_t cols, const float* dy, const float* x, const float* gamma,
             const void* cache, float* dx, float* dgamma, float* dbeta) {
  if (bug(no_special) &&
      std::any_of(dy, dy + rows * cols, [](float v) { return !std::isfinite(v); })) {
    return 1;
  }
  open_caches = 0;
  const auto* statistics = static_cast<const Statistics*>(cache);
  std::vector<Statistics> own(statistics, statistics + rows);
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
      int64_t rows, int64_t cols, float, const float* dy, const float* x, const float* gamma,      \
      const void* cache, float* dx, float* dgamma, float* dbeta) {                                 \
    active = name;                                                                                 \
    return backward(rows, cols, dy, x, gamma, cache, dx, dgamma, dbeta);                           \
  }
MUTANTS(EXPORT)
PARTIALS(EXPORT)
