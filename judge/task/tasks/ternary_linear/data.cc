// The numbers of ternary_linear cases, family by family.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "judge/task/generate.h"
#include "judge/task/tasks/ternary_linear/ternary_linear.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::ternary_linear {
namespace {

constexpr std::array<const char*, 11> kParameters = {"rows",   "outputs", "inputs", "group",
                                                     "absmax", "int8",    "power",  "relation",
                                                     "defect", "signs",   "tens"};
constexpr std::array<const char*, 4> kHostile = {"heavy_tails", "zero_groups", "one_sided", "tiny"};

enum : uint64_t { kWeight = 1, kX, kGradient, kPlace, kFamily, kOrder, kSigns };
enum Defect : int64_t { kNanWeight, kInfiniteWeight, kSmallGroup, kLargeGroup, kBadCode, kLast };
constexpr int kTries = 200;

struct Knobs {
  std::string family;
  int64_t rows = 0, outputs = 1, inputs = 1, group = 64, power = 0, defect = 0, tens = 0;
  bool absmax = false, int8 = false, other_signs = false;

  bool is(const char* name) const { return family == name; }
};

Knobs read_knobs(const CaseSpec& spec) {
  Knobs k;
  k.family = spec.family;
  k.rows = parameter(spec, "rows", 0, 1 << 16);
  k.outputs = parameter(spec, "outputs", 1, 1 << 16);
  k.inputs = parameter(spec, "inputs", 1, 1 << 18);
  k.group = parameter(spec, "group", k.is("bad_input") ? -(1 << 12) : 0, 1 << 12);
  k.absmax = optional_parameter(spec, "absmax", 0, 1) != 0;
  k.int8 = optional_parameter(spec, "int8", 0, 1) != 0;
  k.power = optional_parameter(spec, "power", -20, 20);
  k.defect = optional_parameter(spec, "defect", 0, kLast);
  k.other_signs = optional_parameter(spec, "signs", 0, 1) != 0;
  k.tens = optional_parameter(spec, "tens", -37, 37);
  if (k.outputs * k.inputs > int64_t{1} << 24 || k.rows * (k.inputs + k.outputs) > int64_t{1}
                                                                                       << 24) {
    throw InvalidArgument("case: a matrix has more than 2^24 numbers");
  }
  if (k.rows * k.outputs * k.inputs > int64_t{1} << 28) {
    throw InvalidArgument("case: more than 2^28 products");
  }
  const bool legal = k.group == 0 || (k.group >= 32 && k.group <= 256);
  if (!legal && !k.is("bad_input")) throw InvalidArgument("case: group: expected 0 or 32 to 256");
  return k;
}

double weight_of(const Knobs& k, const Stream& random, int64_t element) {
  if (k.is("constant")) return 0.02;
  double value = 0.02 * random.normal(element);
  if (k.is("heavy_tails")) value = 0.01 * random.heavy(element);
  if (k.is("one_sided")) value = std::abs(value) + 0.001;
  if (k.is("sparse") && random.bits(~element) % 8 != 0) value = 0;
  if (k.is("tiny")) value *= 5e-8;  // scales of 1e-9, below every half
  if (k.is("denormal")) value *= 1e-38;
  if (k.is("small_scales")) value *= 3e-4;  // scales that are subnormal halves
  if (k.is("huge")) value *= 1e8;           // scales above every half
  return std::ldexp(value, static_cast<int>(k.power));
}

// Moves weights of a group until no code and no scale hangs on rounding.
void keep_distance(std::span<float> group, bool absmax) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const double scale = scale_of(group, absmax);
    bool moved = false;
    for (float& w : group) {
      const double twice = 2 * std::abs(static_cast<double>(w));
      if (scale == 0 || std::abs(twice - scale) > 2e-4 * scale) continue;
      w *= 1.01F;
      moved = true;
    }
    if (moved) continue;
    if (stored_scale(scale * (1 - 4e-5)) == stored_scale(scale * (1 + 4e-5))) return;
    for (float& w : group) w *= 1.0002F;
  }
}

// Magnitudes of 1, 2 and 3 with a mean of 2: ones are ties, and everything is a small integer. With
// absmax the largest is 4, twos are ties. A group that has an odd weight too many has a zero less.
void fill_exact(const Knobs& k, const Stream& random, int64_t first, std::span<float> group) {
  for (size_t i = 0; i < group.size(); ++i) {
    const int64_t at = first + static_cast<int64_t>(i);
    int magnitude = 2;
    // Pairs of 1 and 3 keep the mean.
    const size_t pair = i / 2 * 2;
    const bool whole = pair + 1 < group.size();
    if (whole && random.bits(first + static_cast<int64_t>(pair)) % 3 != 0) {
      magnitude = i % 2 == 0 ? 1 : 3;
    }
    if (k.absmax) magnitude = i == 0 ? 4 : magnitude;
    group[i] =
        static_cast<float>(std::ldexp(magnitude * random.sign(~at), static_cast<int>(k.power)));
  }
}

// The mean of equal magnitudes halfway between two halves, subnormal ones too: to even, down in one
// group and up in the next.
void fill_halfway(const Knobs& k, const Stream& random, int64_t group_index, int64_t first,
                  std::span<float> group) {
  const double step = std::max(0x1p-10, std::ldexp(0x1p-24, static_cast<int>(-k.power)));
  const double magnitude = 1 + step / 2 * (group_index % 2 == 0 ? 1 : 3);
  for (size_t i = 0; i < group.size(); ++i) {
    const double sign = random.sign(~(first + static_cast<int64_t>(i)));
    group[i] = static_cast<float>(std::ldexp(sign * magnitude, static_cast<int>(k.power)));
  }
}

void fill_weights(const Knobs& k, uint64_t seed, Problem& p) {
  const Stream random(seed, kWeight);
  const Stream place(seed, kPlace);
  p.weight.resize(static_cast<size_t>(p.outputs * p.inputs));
  const int64_t size = p.group_size();
  int64_t index = 0;
  for (int64_t o = 0; o < p.outputs; ++o) {
    for (int64_t begin = 0; begin < p.inputs; begin += size, ++index) {
      const int64_t first = o * p.inputs + begin;
      const auto group = std::span(p.weight).subspan(
          static_cast<size_t>(first), static_cast<size_t>(std::min(size, p.inputs - begin)));
      if (k.is("exact")) {
        fill_exact(k, random, first, group);
        continue;
      }
      if (k.is("halfway")) {
        fill_halfway(k, random, index, first, group);
        continue;
      }
      for (size_t i = 0; i < group.size(); ++i) {
        group[i] = static_cast<float>(weight_of(k, random, first + static_cast<int64_t>(i)));
      }
      if (k.is("zero_groups") && (index == 0 || place.bits(index) % 2 == 0)) {
        for (float& w : group) w = place.sign(first) > 0 ? 0.0F : -0.0F;
        continue;
      }
      // Groups that are not empty and begin as if they were.
      if (k.is("sparse") && index % 2 == 0) {
        const size_t begin_of_none = std::min<size_t>(group.size() / 2, 40);
        std::fill_n(group.begin(), begin_of_none, 0.0F);
      }
      if (!k.is("constant")) keep_distance(group, k.absmax);
      // The same scales with other codes.
      for (size_t i = 0; k.other_signs && i < group.size(); ++i) {
        group[i] *= static_cast<float>(Stream(seed, kSigns).sign(first + static_cast<int64_t>(i)));
      }
      if (k.is("alike") && o % 2 == 1) {
        const float* const before = p.weight.data() + first - p.inputs;
        for (size_t i = 0; i < group.size(); ++i) group[i] = 2 * before[i];
      }
    }
  }
}

// No rounding ties in int8 activations: values near a half are moved to the nearest integer.
void keep_integers(std::span<float> row) {
  double most = 0;
  for (const float v : row) most = std::max(most, std::abs(static_cast<double>(v)));
  if (most == 0) return;
  for (float& v : row) {
    const double scaled = static_cast<double>(v) * 127 / most;
    if (std::abs(std::abs(scaled - std::trunc(scaled)) - 0.5) < 2e-3) {
      v = static_cast<float>(std::trunc(scaled) * most / 127);
    }
  }
}

// From 1e-30 to 1e30, or of every second row the one that is given.
double row_size(const Knobs& k, int64_t row) {
  if (k.tens == 0) return power_of_ten(10 * ((row + 1) % 7) - 30);
  return row % 2 == 0 ? 0.8 * power_of_ten(k.tens) : 1;
}

void fill_rows(const Knobs& k, const CaseSpec& spec, Problem& p) {
  const Stream random(spec.seed, kX);
  const Stream gradient(spec.seed, kGradient);
  for (const int64_t source : row_order(spec, p.rows)) {
    const int64_t from =
        source < 0 ? std::ssize(p.x) / std::max<int64_t>(1, p.inputs) + 7000 : source;
    const bool zero = k.is("zero_rows") && from % 3 == 0;
    const size_t begin = p.x.size();
    for (int64_t c = 0; c < p.inputs; ++c) {
      const int64_t at = from * p.inputs + c;
      double value = random.normal(at);
      if (is_exact(k.family)) value = static_cast<double>(random.index(at, 15)) - 7;
      // A largest magnitude of 127 makes the scale of 8-bit activations 1.
      if (is_exact(k.family) && p.int8 && c == 0) value = 127;
      // By turns among the last columns and among the first.
      const int64_t place = from % p.inputs;
      const int64_t outlier = from % 2 == 0 ? p.inputs - 1 - place : place;
      if (k.is("outlier_rows") && c == outlier) value = 300;
      if (k.is("scaled_rows")) value *= row_size(k, from);
      p.x.push_back(zero ? 0.0F : static_cast<float>(value));
    }
    if (p.int8 && !is_exact(k.family)) keep_integers(std::span(p.x).subspan(begin));
    for (int64_t o = 0; o < p.outputs; ++o) {
      const int64_t at = from * p.outputs + o;
      double value =
          is_exact(k.family) ? static_cast<double>(gradient.index(at, 9)) - 4 : gradient.normal(at);
      // The other way: every row has its part in dweight.
      if (k.is("scaled_rows")) value /= std::max(row_size(k, from), 1e-30);
      p.dy.push_back(static_cast<float>(value));
    }
  }
}

void place_defect(const Knobs& k, Problem& p) {
  if (!k.is("bad_input")) return;
  if (k.defect == kNanWeight) p.weight.back() = std::numeric_limits<float>::quiet_NaN();
  if (k.defect == kInfiniteWeight) p.weight.back() = -std::numeric_limits<float>::infinity();
}

}  // namespace

bool is_exact(const std::string& family) { return family == "exact"; }

CaseSpec resolve(const CaseSpec& spec) {
  return spec.family == "mixed" ? drawn_family(spec, kFamily, kHostile) : spec;
}

void check_spec(const CaseSpec& spec) {
  check_parameter_names(spec, kParameters);
  read_knobs(spec);
}

std::vector<int64_t> row_order(const CaseSpec& spec, int64_t rows) {
  return order_after(spec, derive_seed(spec.seed, kOrder), rows);
}

Problem make_problem(const CaseSpec& spec) {
  const CaseSpec resolved = resolve(spec);
  const Knobs k = read_knobs(resolved);
  Problem p;
  p.rows = k.rows;
  p.outputs = k.outputs;
  p.inputs = k.inputs;
  p.group = k.group;
  p.absmax = k.absmax;
  p.int8 = k.int8;
  p.garbage = k.is("padding");
  fill_weights(k, spec.seed, p);
  fill_rows(k, resolved, p);
  place_defect(k, p);
  return p;
}

}  // namespace touchstone::judge::ternary_linear
