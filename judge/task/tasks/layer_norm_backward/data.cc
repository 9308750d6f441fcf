// The numbers of layer norm cases, family by family.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/layer_norm_backward/layer_norm.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::layer_norm {
namespace {

constexpr int64_t kNoEps = -99;  // eps10 of this value: eps = 0
constexpr std::array<const char*, 13> kParameters = {
    "rows",    "cols",     "eps10", "eps_digit", "scale10", "mean10", "grad10",
    "special", "relation", "grad2", "alive",     "single",  "far_end"};

// Streams of one case. Neighbors replaced by a relation come from other streams.
enum : uint64_t { kX = 1, kGamma, kBeta, kDy, kRow, kPlace, kFamily, kReplaced = 16 };

// Families whose numbers are not simply normal.
enum class Pattern {
  normal,
  heavy_tails,
  ties,
  monotone,
  sparse,
  one_hot,
  exact,
  blocks,
  parallel_gradient,
  zero_variance,
  weights
};

// In the order of Pattern, which begins with `normal`.
constexpr std::array<const char*, 10> kPatterns = {
    "heavy_tails", "ties",   "monotone",          "sparse",        "one_hot",
    "exact",       "blocks", "parallel_gradient", "zero_variance", "weights"};

Pattern pattern_of(const std::string& family) {
  const auto found = std::ranges::find(kPatterns, family);
  return static_cast<Pattern>(found == kPatterns.end() ? 0 : 1 + (found - kPatterns.begin()));
}

struct Knobs {
  std::string family;
  Pattern pattern = Pattern::normal;
  int64_t rows = 0;
  int64_t cols = 0;
  double scale = 1;
  double mean = 0;
  double grad = 1;
  bool special_in_x = true;
  bool special_in_dy = false;
  bool far_end = false;
  int64_t special_rows = 3;  // one of so many
  uint64_t seed = 0;
};

Knobs read_knobs(const CaseSpec& spec) {
  Knobs k;
  k.family = spec.family;
  k.pattern = pattern_of(spec.family);
  k.rows = parameter(spec, "rows", 0, 1 << 24);
  k.cols = parameter(spec, "cols", 1, 1 << 24);
  k.scale = k.family == "denormal" ? 1e-40 : power_of_ten(parameter_or(spec, "scale10", 0));
  if (spec.parameters.contains("mean10")) k.mean = power_of_ten(spec.parameters.at("mean10"));
  // Gradients of 2^grad2: a relation multiplies by a power of two, which no rounding notices.
  k.grad = power_of_ten(parameter_or(spec, "grad10", 0)) *
           std::ldexp(1.0, static_cast<int>(parameter_or(spec, "grad2", 0)));
  const int64_t special = parameter_or(spec, "special", 0);
  k.special_in_x = special != 1;
  k.special_in_dy = special != 0;
  k.far_end = parameter_or(spec, "far_end", 0) != 0;
  if (parameter_or(spec, "single", 0) != 0) k.special_rows = std::max<int64_t>(k.rows, 1);
  k.seed = spec.seed;
  return k;
}

// One row of x, given its number and the stream it is drawn from.
void fill_row(const Knobs& k, const Stream& random, int64_t row, float* x) {
  const Stream of_row(k.seed, kRow);
  const Pattern f = k.pattern;
  const int64_t base = row * k.cols;
  const auto count = static_cast<double>(k.cols);
  double shift = 0.5 * of_row.normal(3 * row);
  double spread = 0.5 + 1.5 * of_row.uniform(3 * row + 1);
  if (k.mean != 0) {
    // Not a round number: its roundings in a sum would all be the same.
    shift = k.mean * of_row.sign(row) * (0.5 + of_row.uniform(~row));
    spread = 1;
  }
  const int64_t chosen = of_row.index(3 * row + 2, k.cols);
  const bool constant = f == Pattern::zero_variance && row % 2 == 0;
  constexpr std::array<double, 4> kFew = {-1.0, 0.0, 0.5, 2.0};
  constexpr std::array<double, 5> kConstants = {-0.5, 0.25, 0.0, 0.125, 3.0};
  for (int64_t j = 0; j < k.cols; ++j) {
    const int64_t at = base + j;
    double value = 0;
    if (constant) {
      value = kConstants[static_cast<size_t>(row / 2 % 5)];
    } else if (f == Pattern::heavy_tails) {
      value = random.heavy(at);
    } else if (f == Pattern::ties) {
      value = kFew[static_cast<size_t>(random.index(at, 4))];
    } else if (f == Pattern::monotone) {
      // Rising and falling.
      value = (4.0 * static_cast<double>(j) / count - 2.0) * (row % 2 == 0 ? 1 : -1) + shift;
    } else if (f == Pattern::sparse) {
      value = random.bits(at) % 20 == 0 ? random.normal(at) * 3 : 0;
    } else if (f == Pattern::one_hot) {
      value = j == chosen ? 4 * random.normal(at) + 5 : 0;
    } else if (f == Pattern::exact) {
      // As many +1 as -1, in an order that the seed decides: mean 0 and variance 1, exactly.
      value = (j + chosen) % 2 == 0 ? 1 : -1;
    } else if (f == Pattern::blocks) {
      // A look at the beginning of a row, or of the tensor, says nothing about the rest.
      value =
          random.normal(at) * (4 * j >= 3 * k.cols ? 30 : 1) * (4 * row >= 3 * k.rows ? 100 : 1);
    } else {
      // Far from the mean, a last column that is left out of it shows.
      value = shift + spread * (k.far_end && j + 1 == k.cols ? 4.0 : random.normal(at));
    }
    x[j] = static_cast<float>(value * k.scale);
  }
}

// The statement makes mean(x^2) - mean(x)^2 a question of stability, not of right and wrong. With few
// columns a row may happen to lie so far from zero that this formula loses everything: such a row is
// bent, in the families that decide the verdict. In those of a few exact numbers nothing is lost.
void keep_conditioned(const Knobs& k, double eps, float* x) {
  const Pattern f = k.pattern;
  const bool asked = k.mean != 0 || k.family.starts_with("square_");
  const bool exact = f == Pattern::ties || f == Pattern::exact || f == Pattern::zero_variance;
  if (asked || exact) return;
  constexpr double kMaxLost = 1.0 / 64;  // of variance + eps
  const auto count = static_cast<double>(k.cols);
  const auto lost = [&] {
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < k.cols; ++j) sum += static_cast<double>(x[j]);
    for (int64_t j = 0; j < k.cols; ++j) {
      squares += std::pow(static_cast<double>(x[j]) - sum / count, 2);
    }
    return kUnit * std::pow(sum / count, 2) / (squares / count + eps);
  };
  if (!(lost() > kMaxLost)) return;
  if (k.cols > 1) x[0] = -x[0];
  if (eps == 0 || !(lost() > kMaxLost)) return;
  const auto most = static_cast<float>(std::sqrt(eps * kMaxLost / kUnit));
  for (int64_t j = 0; j < k.cols; ++j) x[j] = std::clamp(x[j], -most, most);
}

void fill_weights(const Knobs& k, Problem& p) {
  const Stream gammas(k.seed, kGamma);
  const Stream betas(k.seed, kBeta);
  const bool dyadic = k.pattern == Pattern::exact || k.pattern == Pattern::parallel_gradient;
  for (int64_t j = 0; j < k.cols; ++j) {
    const auto at = static_cast<size_t>(j);
    double gamma = (0.5 + gammas.uniform(2 * j)) * gammas.sign(2 * j + 1);
    double beta = betas.normal(j);
    if (dyadic) {
      gamma = std::ldexp(gammas.sign(2 * j + 1), static_cast<int>(gammas.index(2 * j, 3)));
      beta = static_cast<double>(betas.index(j, 9)) - 4;
    } else if (k.pattern == Pattern::weights) {
      const auto exponent = static_cast<int>(gammas.index(4 * j + 3, 21)) - 10;
      gamma = gammas.index(2 * j, 8) == 0 ? 0 : std::ldexp(gamma, exponent);
      beta *= 10;
    } else if (k.pattern == Pattern::blocks && 4 * j < k.cols) {
      gamma = 1;
      beta = 0;
    }
    p.gamma[at] = static_cast<float>(gamma);
    p.beta[at] = static_cast<float>(beta);
  }
}

void fill_gradient(const Knobs& k, const Stream& random, int64_t row, int64_t source, Problem& p) {
  for (int64_t j = 0; j < k.cols; ++j) {
    const auto at = static_cast<size_t>(row * k.cols + j);
    const int64_t drawn = source * k.cols + j;
    double value = random.normal(drawn);
    if (k.pattern == Pattern::exact) value = static_cast<double>(random.index(drawn, 9)) - 4;
    if (k.pattern == Pattern::parallel_gradient) {
      // g = dy * gamma is parallel to x, to ones, or zero: dx is what rounding leaves. gamma is a
      // power of two, so dividing by it costs nothing.
      const auto x = static_cast<double>(p.x[at]);
      const double g = source % 4 == 0 ? x : source % 4 == 1 ? 1.5 : 0.0;
      value = g / static_cast<double>(p.gamma[static_cast<size_t>(j)]);
      // The gradient of a sum: dy itself is the same number everywhere.
      if (source % 4 == 3) value = 1.5;
    } else if (k.pattern == Pattern::blocks && 2 * row >= k.rows) {
      value *= 50;
    }
    p.dy[at] = static_cast<float>(value * k.grad);
  }
}

// NaN or infinity in every third row, or in the first one, in a column drawn from the seed.
void plant_special(const Knobs& k, Problem& p) {
  const auto nan = [](int64_t row) { return special_nan(row + row / 4); };
  if (k.family == "nan_ends") {
    // Only the first or only the last column of a row.
    std::vector<float>& target = k.special_in_x ? p.x : p.dy;
    for (int64_t row = 0; row < k.rows; row += 2) {
      const int64_t column = row % 4 == 0 ? k.cols - 1 : 0;
      target[static_cast<size_t>(row * k.cols + column)] = nan(row);
    }
    return;
  }
  if (k.family != "nan" && k.family != "infinity") return;
  const Stream random(k.seed, kPlace);
  for (int64_t row = 0; row < k.rows; row += k.special_rows) {
    // Infinities of both signs.
    const float sign = row % 6 == 0 ? -1.0F : 1.0F;
    const float value =
        k.family == "nan" ? nan(row) : sign * std::numeric_limits<float>::infinity();
    // NaN walks through the columns.
    const auto place = [&](int64_t draw) {
      const bool walks = k.family == "nan";
      const int64_t column = walks ? (random.index(draw < 0 ? 1 : 0, k.cols) + row / 3) % k.cols
                                   : random.index(draw, k.cols);
      return static_cast<size_t>(row * k.cols + column);
    };
    if (k.special_in_x) p.x[place(row)] = value;
    if (k.special_in_dy) p.dy[place(k.special_in_x ? ~row : row)] = value;
  }
}

double eps_of(const CaseSpec& spec) {
  if (spec.family == "exact") return 3;  // 1 / sqrt(1 + 3) is exact
  const int64_t eps10 = parameter_or(spec, "eps10", -5);
  const auto digit = static_cast<double>(parameter_or(spec, "eps_digit", 1));
  return eps10 == kNoEps ? 0 : digit * power_of_ten(eps10);
}

Problem make_problem(const CaseSpec& spec) {
  const Knobs k = read_knobs(spec);
  Problem p;
  p.rows = k.rows;
  p.cols = k.cols;
  p.eps = static_cast<float>(eps_of(spec));
  const auto elements = static_cast<size_t>(k.rows * k.cols);
  p.x.resize(elements);
  p.dy.resize(elements);
  p.gamma.resize(static_cast<size_t>(k.cols));
  p.beta.resize(static_cast<size_t>(k.cols));
  fill_weights(k, p);
  const std::vector<int64_t> order = row_order(spec, k.rows);
  for (int64_t row = 0; row < k.rows; ++row) {
    const int64_t source = order[static_cast<size_t>(row)];
    const uint64_t set = source < 0 ? uint64_t{kReplaced} : 0;
    Knobs of_row = k;
    if (source < 0) of_row.scale *= 100;
    const int64_t drawn = source < 0 ? row : source;
    fill_row(of_row, Stream(k.seed, kX + set), drawn, p.x.data() + row * k.cols);
    keep_conditioned(k, static_cast<double>(p.eps), p.x.data() + row * k.cols);
    fill_gradient(k, Stream(k.seed, kDy + set), row, drawn, p);
  }
  plant_special(k, p);
  return p;
}

}  // namespace

// -1: a row of its own, which the first case does not have.
std::vector<int64_t> row_order(const CaseSpec& spec, int64_t rows) {
  return order_after(spec, spec.seed, rows);
}

CaseSpec resolve(const CaseSpec& spec) {
  if (spec.family != "mixed") return spec;
  constexpr std::array<const char*, 8> kHostile = {"heavy_tails", "blocks", "weights",  "sparse",
                                                   "scale",       "ties",   "monotone", "epsilon"};
  CaseSpec resolved = drawn_family(spec, kFamily, kHostile);
  const Stream random(spec.seed, kFamily);
  if (resolved.family == "scale") resolved.parameters["scale10"] = random.index(2, 9) - 4;
  if (resolved.family == "epsilon") resolved.parameters["eps10"] = -random.index(2, 3);
  return resolved;
}

void check_spec(const CaseSpec& spec) {
  check_parameter_names(spec, kParameters);
  const Knobs k = read_knobs(spec);
  if (k.rows * k.cols > int64_t{1} << 27) {
    throw InvalidArgument("case: rows * cols: expected at most 2^27");
  }
  optional_parameter(spec, "scale10", -30, 30);
  optional_parameter(spec, "mean10", 0, 7);
  optional_parameter(spec, "grad10", -40, 35);
  optional_parameter(spec, "grad2", -20, 20);
  optional_parameter(spec, "special", 0, 2);
  optional_parameter(spec, "single", 0, 1);
  optional_parameter(spec, "far_end", 0, 1);
  optional_parameter(spec, "relation", 0, 2);
  optional_parameter(spec, "eps_digit", 1, 9);
  if (spec.family == "many_caches") {
    parameter(spec, "alive", 2, 64);
  } else if (spec.parameters.contains("alive")) {
    throw InvalidArgument("case: alive: only in many_caches");
  }
  if (spec.parameters.contains("eps10") && spec.parameters.at("eps10") != kNoEps) {
    optional_parameter(spec, "eps10", -30, 3);
  }
  if (spec.family == "exact" && k.cols % 2 != 0) {
    throw InvalidArgument("case: exact: cols: expected an even number");
  }
}

std::vector<Problem> make_problems(const CaseSpec& spec) {
  check_spec(spec);
  const CaseSpec resolved = resolve(spec);
  std::vector<Problem> problems{make_problem(resolved)};
  const bool many = resolved.family == "many_caches";
  const int64_t alive = many                               ? parameter(spec, "alive", 2, 64)
                        : resolved.family == "interleaved" ? 2
                                                           : 1;
  for (int64_t i = 1; i < alive; ++i) {
    CaseSpec other = resolved;
    other.seed = derive_seed(spec.seed, static_cast<uint64_t>(i) + 1);
    if (many) {
      // Caches of different sizes: none fits into the place of another by chance.
      const Stream random(other.seed, kRow);
      other.parameters["eps10"] = random.index(2, 7) - 6;
      other.parameters["rows"] = 1 + random.index(0, parameter(spec, "rows", 0, 1 << 24) + 1);
      // Whole vectors stay whole vectors: what a case needs is told by its parameters.
      const int64_t cols = parameter(spec, "cols", 1, 1 << 24);
      const int64_t step = cols % 4 == 0 ? 4 : 1;
      other.parameters["cols"] = step * (1 + random.index(1, cols / step));
    }
    problems.push_back(make_problem(other));
  }
  return problems;
}

}  // namespace touchstone::judge::layer_norm
