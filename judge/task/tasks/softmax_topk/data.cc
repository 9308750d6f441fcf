// The logits of softmax_topk cases, family by family.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/softmax_topk/softmax_topk.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::softmax_topk {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::array<const char*, 10> kParameters = {
    "rows", "vocab", "k", "scale10", "shift10", "stride", "parts", "grid", "relation", "add"};

enum : uint64_t { kLogit = 1, kRow, kPlace, kFamily, kOrder, kReplaced = 16 };
constexpr int64_t kPermutedVocabulary = 3;  // of `relation`, beside those of order_after()

// Families whose numbers are not simply normal.
enum class Pattern {
  normal,
  heavy_tails,
  blocks,
  ties,
  signed_zeros,
  all_equal,
  exact,
  denormal,
  sparse,
  one_hot,
  ascending,
  descending,
  small_probabilities,
  extreme,
  masked,
  masked_row,
  clustered,
  last_tile,
  one_tile,
  tile_borders,
  near_ties,
  border_ties,
  few_left,
  nan,
  nan_ends,
  nan_masked,
  extreme_masked,
  lowest,
  all_lowest,
  one_negative_zero
};

// In the order of Pattern, which begins with `normal`.
constexpr std::array<const char*, 29> kPatterns = {
    "heavy_tails",      "blocks",         "ties",         "signed_zeros",
    "all_equal",        "exact",          "denormal",     "sparse",
    "one_hot",          "ascending",      "descending",   "small_probabilities",
    "extreme",          "masked",         "masked_row",   "clustered",
    "last_tile",        "one_tile",       "tile_borders", "near_ties",
    "border_ties",      "few_left",       "nan",          "nan_ends",
    "nan_masked",       "extreme_masked", "lowest",       "all_lowest",
    "one_negative_zero"};

Pattern pattern_of(const std::string& family) {
  const auto found = std::ranges::find(kPatterns, family);
  return static_cast<Pattern>(found == kPatterns.end() ? 0 : 1 + (found - kPatterns.begin()));
}

struct Knobs {
  std::string family;
  Pattern pattern = Pattern::normal;
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t k = 0;
  int64_t stride = 256;
  int64_t parts = 1;
  double scale = 1;
  double shift = 0;
  double add = 0;
  bool grid = false;
  uint64_t seed = 0;
};

Knobs read_knobs(const CaseSpec& spec) {
  Knobs knobs;
  knobs.family = spec.family;
  knobs.pattern = pattern_of(spec.family);
  knobs.rows = parameter(spec, "rows", 0, 1 << 24);
  knobs.vocab = parameter(spec, "vocab", 1, 1 << 24);
  const bool bad = spec.family == "bad_k";
  knobs.k = parameter(spec, "k", bad ? -64 : 1, bad ? knobs.vocab + 64 : knobs.vocab);
  knobs.stride = parameter_or(spec, "stride", 256);
  knobs.parts = parameter_or(spec, "parts", 1);
  knobs.scale = power_of_ten(parameter_or(spec, "scale10", 0));
  knobs.shift = shift_of(spec);
  knobs.add = static_cast<double>(parameter_or(spec, "add", 0));
  knobs.grid = parameter_or(spec, "grid", 0) != 0;
  knobs.seed = spec.seed;
  return knobs;
}

// Whether a column is one of those that hold the maxima of its row.
bool is_chosen(const Knobs& n, const Stream& of_row, int64_t row, int64_t j) {
  const int64_t wanted = std::min(n.k + 2, n.vocab);
  if (n.pattern == Pattern::clustered) return j % n.stride == of_row.index(row, n.stride);
  if (n.pattern == Pattern::last_tile) return j >= n.vocab - wanted;
  if (n.pattern == Pattern::one_tile) {
    const int64_t start = of_row.index(row, std::max<int64_t>(1, n.vocab - wanted + 1));
    return j >= start && j < start + wanted;
  }
  if (n.pattern == Pattern::tile_borders) {
    return n.parts == 1 && (j % 128 == 0 || j % 128 == 127);
  }
  return false;
}

double element(const Knobs& n, const Stream& random, const Stream& of_row, int64_t row, int64_t j) {
  const Pattern f = n.pattern;
  const int64_t at = row * n.vocab + j;
  const double normal = random.normal(at);
  if (f == Pattern::heavy_tails) return std::clamp(random.heavy(at), -60.0, 60.0);
  if (f == Pattern::blocks) {
    // The end of the last rows is beyond what exp can take without the maximum: no look at the
    // beginning of a row tells.
    return normal * (4 * j >= 3 * n.vocab ? 5 : 1) *
           (4 * row >= 3 * n.rows && 4 * j >= 3 * n.vocab ? 9 : 1);
  }
  if (f == Pattern::ties) return 0.5 * static_cast<double>(random.index(at, 6));
  if (f == Pattern::signed_zeros) {
    const uint64_t which = random.bits(at) % 3;
    return which == 0 ? -0.0 : which == 1 ? 0.0 : -1.0;
  }
  if (f == Pattern::all_equal) return of_row.normal(row) * 3;
  if (f == Pattern::exact) return (j + row) % 2 == 0 ? 1.5 : -static_cast<double>(kInfinity);
  if (f == Pattern::denormal) return normal * 1e-40;
  if (f == Pattern::sparse) return random.bits(at) % 20 == 0 ? 3 * normal : 0;
  if (f == Pattern::one_hot) return j == of_row.index(row, n.vocab) ? 20 : 0.1 * normal;
  if (f == Pattern::ascending) return 0.01 * static_cast<double>(j);
  if (f == Pattern::descending) return -0.01 * static_cast<double>(j);
  if (f == Pattern::small_probabilities) return -0.29 * static_cast<double>(j);
  if (f == Pattern::extreme_masked && random.bits(at) % 5 < 2 && j != of_row.index(row, n.vocab)) {
    return -static_cast<double>(kInfinity);
  }
  if (f == Pattern::extreme || f == Pattern::extreme_masked) {
    return 3e38 * random.sign(at) * (1 - 0.5 * random.uniform(~at));
  }
  // Nothing but the lowest number, with one above it in `lowest`.
  if (f == Pattern::lowest || f == Pattern::all_lowest) {
    const bool above = f == Pattern::lowest && j == of_row.index(row, n.vocab);
    return above ? -3e38 : -static_cast<double>(std::numeric_limits<float>::max());
  }
  if (f == Pattern::one_negative_zero) {
    const bool chosen = j == of_row.index(row, n.vocab);
    return chosen ? -0.0 : row % 2 == 0 ? -1.0 - random.uniform(at) : 0.0;
  }
  const bool masks = f == Pattern::masked || f == Pattern::nan_masked;
  if (masks && random.bits(at) % 5 < 2) return -static_cast<double>(kInfinity);
  // Two neighbors are masked.
  if (f == Pattern::masked_row && (row % 4 == 1 || row % 4 == 2 || n.rows == 1))
    return -static_cast<double>(kInfinity);
  const bool chosen = is_chosen(n, of_row, row, j);
  // Maxima of one lane of any vector or tile, tied in every other row.
  if (chosen && f == Pattern::clustered && row % 2 == 1) return 14;
  return 2 * normal + (chosen ? 14 : of_row.normal(~row) * 0.5);
}

// Families in which the order of a row is drawn as a whole.
bool fill_by_rank(const Knobs& n, int64_t row, float* logits) {
  const bool near = n.pattern == Pattern::near_ties;
  const bool border = n.pattern == Pattern::border_ties;
  const bool few = n.pattern == Pattern::few_left;
  if (!near && !border && !few) return false;
  const std::vector<int64_t> rank =
      permutation(derive_seed(n.seed, 1000 + static_cast<uint64_t>(row)), n.vocab);
  const int64_t above = few ? std::max<int64_t>(1, n.k / 2) : n.k / 2;
  for (int64_t j = 0; j < n.vocab; ++j) {
    const auto r = static_cast<double>(rank[static_cast<size_t>(j)]);
    // Steps that bf16 and TF32 do not see; beside 1000 they are of a single rounding.
    double value = 4 - r * 0x1p-14 + (near ? n.shift * Stream(n.seed, kRow).sign(row) : 0);
    if (border)
      value = r < static_cast<double>(above)     ? 4 - r * 0x1p-8
              : r < static_cast<double>(n.k + 7) ? 1.0
                                                 : -r * 0x1p-8;
    if (few && r >= static_cast<double>(above)) value = -static_cast<double>(kInfinity);
    logits[j] = static_cast<float>(value);
  }
  return true;
}

float nan_of(int64_t row) { return special_nan(row + row / 4); }

// Rows of five kinds, each behind each of the others and behind one of its own: some masked, all masked,
// NaN beside masks, NaN only, all masked but one NaN. What a row leaves behind meets every other kind.
void fill_special_row(const Knobs& n, int64_t row, std::array<int64_t, 2> places, float* logits) {
  constexpr std::string_view kKinds = "nmnanbnpmmambmpaabapbbppn";
  static_assert(kKinds.size() == 25);
  const char kind = kKinds[static_cast<size_t>(row) % kKinds.size()];
  if (kind == 'm' || kind == 'b') std::fill(logits, logits + n.vocab, -kInfinity);
  if (kind == 'a') std::fill(logits, logits + n.vocab, nan_of(row));
  if (kind == 'n' || kind == 'b') logits[places[0]] = nan_of(row);
  if (kind == 'n' && row % 2 == 0) logits[places[1]] = nan_of(row);
}

// The first and the last column of every part, where a row is taken in 2, 3, ... `parts` equal ones.
void raise_part_borders(const Knobs& n, const Stream& random, int64_t row, float* logits) {
  for (int64_t parts = 2; parts <= n.parts; ++parts) {
    const int64_t width = (n.vocab + parts - 1) / parts;
    for (int64_t begin = width; begin < n.vocab; begin += width) {
      for (const int64_t j : {begin - 1, begin}) {
        logits[j] = static_cast<float>(14 + 2 * random.normal(row * n.vocab + j));
      }
    }
  }
}

void fill_row(const Knobs& n, const Stream& random, int64_t row, float* logits) {
  if (fill_by_rank(n, row, logits)) return;
  const Stream of_row(n.seed, kRow);
  const double shift = n.shift * of_row.sign(row);
  for (int64_t j = 0; j < n.vocab; ++j) {
    double value = element(n, random, of_row, row, j) * n.scale;
    // Adding nothing would turn -0 into +0.
    if (n.shift != 0) value += shift;
    // On a coarse grid a constant can be added without rounding.
    if (n.grid) value = std::nearbyint(value * 1024) / 1024;
    logits[j] = static_cast<float>(n.add == 0 ? value : value + n.add);
  }
  if (n.pattern == Pattern::masked) {
    // A row that happens to be masked whole belongs to another family.
    const int64_t j = of_row.index(7 * row, n.vocab);
    logits[j] = std::isinf(logits[j]) ? 0.25F : logits[j];
  }
  if (n.pattern == Pattern::tile_borders) raise_part_borders(n, random, row, logits);
  if (n.pattern == Pattern::nan_ends && row % 2 == 0) {
    logits[row % 4 == 0 ? n.vocab - 1 : 0] = nan_of(row);
  }
  // Those of `nan` walk through the columns.
  const int64_t place = n.pattern == Pattern::nan ? (of_row.index(5, n.vocab) + row / 3) % n.vocab
                                                  : of_row.index(5 * row, n.vocab);
  const int64_t second = (place + 1 + of_row.index(~row, n.vocab)) % n.vocab;
  if (n.pattern == Pattern::nan && row % 3 == 0) {
    logits[place] = nan_of(row);
    if (row % 6 == 3) logits[second] = nan_of(row);
  }
  if (n.pattern == Pattern::nan_masked) fill_special_row(n, row, {place, second}, logits);
}

}  // namespace

std::vector<int64_t> row_order(const CaseSpec& spec, int64_t rows) {
  return order_after(spec, spec.seed, rows);
}

CaseSpec resolve(const CaseSpec& spec) {
  if (spec.family != "mixed") return spec;
  constexpr std::array<const char*, 8> kHostile = {
      "ties", "blocks", "clustered", "last_tile", "ascending", "sparse", "masked", "heavy_tails"};
  return drawn_family(spec, kFamily, kHostile);
}

void check_spec(const CaseSpec& spec) {
  check_parameter_names(spec, kParameters);
  const Knobs n = read_knobs(spec);
  if (n.rows * n.vocab > int64_t{1} << 27) {
    throw InvalidArgument("case: rows * vocab: expected at most 2^27");
  }
  optional_parameter(spec, "scale10", -30, 30);
  optional_parameter(spec, "stride", 1, 1 << 20);
  optional_parameter(spec, "parts", 1, 256);
  optional_parameter(spec, "grid", 0, 1);
  optional_parameter(spec, "relation", 0, 3);
  optional_parameter(spec, "add", -4096, 4096);
  if (n.family == "small_probabilities" && n.vocab > 300) {
    throw InvalidArgument("case: small_probabilities: vocab: expected at most 300");
  }
  if (n.family == "bad_k" && n.k >= 1 && n.k <= n.vocab) {
    throw InvalidArgument("case: bad_k: k: expected below 1 or more than vocab");
  }
}

Problem make_problem(const CaseSpec& spec) {
  check_spec(spec);
  const Knobs n = read_knobs(resolve(spec));
  Problem p{n.rows, n.vocab, n.k, std::vector<float>(static_cast<size_t>(n.rows * n.vocab))};
  const std::vector<int64_t> order = row_order(spec, n.rows);
  for (int64_t row = 0; row < n.rows; ++row) {
    const int64_t source = order[static_cast<size_t>(row)];
    const uint64_t stream = kLogit + (source < 0 ? uint64_t{kReplaced} : 0);
    Knobs of_row = n;
    if (source < 0) of_row.scale *= 10;
    fill_row(of_row, Stream(n.seed, stream), source < 0 ? row : source,
             p.logits.data() + row * n.vocab);
  }
  if (parameter_or(spec, "relation", 0) == kPermutedVocabulary) {
    const std::vector<int64_t> columns = permutation(derive_seed(n.seed, kOrder), n.vocab);
    std::vector<float> moved(static_cast<size_t>(n.vocab));
    for (int64_t row = 0; row < n.rows; ++row) {
      float* logits = p.logits.data() + row * n.vocab;
      for (size_t j = 0; j < moved.size(); ++j) moved[j] = logits[columns[j]];
      std::ranges::copy(moved, logits);
    }
  }
  return p;
}

}  // namespace touchstone::judge::softmax_topk
