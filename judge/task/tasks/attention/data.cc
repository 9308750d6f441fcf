// The queries, keys, values and gradients of attention cases, family by family.
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "judge/task/generate.h"
#include "judge/task/tasks/attention/attention.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::attention {
namespace {

constexpr std::array<const char*, 16> kParameters = {
    "batch",       "kv_heads", "group",    "queries", "keys",   "dim", "causal", "scale2",
    "scale_milli", "value10",  "relation", "values2", "grads2", "bad", "jump",   "late"};

enum Tensor : uint64_t {
  kQuery = 1,
  kKey,
  kValue,
  kGradient,
  kDirection,
  kFamily,
  kOrder,
  kReplaced = 16
};
enum Relate : int64_t { kNone, kLastKey, kNeighbors, kPermutedKeys, kPermutedBatch };

int64_t relation_of(const CaseSpec& spec) { return parameter_or(spec, "relation", kNone); }

// One number. `position` is that of the query or key, `at` counts elements of the head, `d` is the
// place within the row.
class Numbers {
 public:
  Numbers(const CaseSpec& spec, const Shape& shape, uint64_t seed)
      : family_(resolve(spec).family),
        shape_(shape),
        value_scale_(power_of_ten(parameter_or(spec, "value10", 0))),
        jump_(static_cast<double>(parameter_or(spec, "jump", 0))),
        late_(parameter_or(spec, "late", 0) != 0),
        directions_(seed, kDirection) {}

  double element(Tensor what, const Stream& random, int64_t position, int64_t at, int64_t d) const {
    const double normal = random.normal(at);
    const std::string& f = family_;
    // Whole rows of zeros, rows that begin with them, and zeros in between.
    if (what == kGradient && f == "blocks")
      return position % 4 == 1 || (at - d * (position % 2)) % 3 == 0 ? 0 : normal;
    if (what == kGradient) return normal;
    if (what == kValue) {
      if (f == "offset_values") return 30 + normal;
      if (f == "blocks" && 4 * position >= 3 * shape_.keys) return 20 * normal;
      return normal * value_scale_;
    }
    const double length = std::sqrt(static_cast<double>(shape_.dim));
    if (f == "equal_keys" && what == kKey) return directions_.normal(d);
    if (f == "zero_keys" && what == kKey) return 0;
    if (f == "step_scores" || f == "ramp_scores") return step_element(what, position, d, normal);
    if (f == "rising_scores" || f == "falling_scores") {
      // 4 / sqrt(dim): the last key scores a dozen above the first, whatever the size of a head.
      const double along = 1 + 0.25 * directions_.uniform(d);
      if (what == kQuery) return along * 4 / length;
      const auto last = static_cast<double>(std::max<int64_t>(shape_.keys - 1, 1));
      const double share = static_cast<double>(position) / last;
      return along * 3 * (f == "rising_scores" ? share : 1 - share) + 0.02 * normal;
    }
    if (f == "low_scores" || f == "huge_scores") {
      // All keys against the query, or all along it: every score is near -120 or +-5e4.
      const double along = 1 + 0.25 * directions_.uniform(d);
      const double size = f == "low_scores" ? 95 : 4e4;
      const double sign = f == "low_scores" || directions_.sign(-1) < 0 ? -1 : 1;
      if (what == kQuery) return along * std::sqrt(size) / std::sqrt(length);
      return sign * along * std::sqrt(size) / std::sqrt(length) *
             (1 + 0.02 * normal * (f == "low_scores" ? 1 : 0.01));
    }
    if (f == "large_scores") return 12 * normal;
    if (f == "one_key_met") {
      // Signs as keys; the query is along one of them, which takes nearly all the weight.
      const Stream target = directions_;
      const int64_t wanted = target.index(-position - 2, std::max<int64_t>(shape_.keys, 1));
      const int64_t row = what == kQuery ? wanted : position;
      return (what == kQuery ? 2 : 1) * directions_.sign(row * shape_.dim + d);
    }
    if (f == "last_key" && what == kKey && position == shape_.keys - 1) return 4 * normal;
    if (f == "heavy_tails") return std::clamp(random.heavy(at), -40.0, 40.0) / std::sqrt(length);
    if (f == "blocks" && 4 * position >= 3 * shape_.keys) return 3 * normal;
    return what == kQuery ? normal / value_scale_ : normal * value_scale_;
  }

  bool is_nan(Tensor what, int64_t position) const {
    return family_ == "future_nan" && (what == kKey || what == kValue) &&
           position == shape_.keys - 1;
  }

 private:
  std::string family_;
  Shape shape_;
  // Keys against one query direction of unit length: the score of a key is its first factor, scaled
  // so that with the usual scale it is what the family says.
  double step_element(Tensor what, int64_t position, int64_t d, double normal) const {
    const double length = std::sqrt(static_cast<double>(shape_.dim));
    const double along = directions_.sign(d);
    if (what == kQuery) return along;
    const auto last = static_cast<double>(std::max<int64_t>(shape_.keys - 1, 1));
    // The step is between two keys that only the seed knows; a late one has most keys before it, whose
    // weights are not lost in the roundings of the others where they are kept by mistake.
    const int64_t begin = late_ ? shape_.keys * 3 / 4 : 1;
    const int64_t at = begin + directions_.index(-3, std::max<int64_t>(shape_.keys - begin, 1));
    const double share = family_ == "step_scores" ? (position >= at ? 1.0 : 0.0)
                                                  : static_cast<double>(position) / last;
    const double score = jump_ * (jump_ > 0 ? share : share - 0.25);
    return along * (score + normal) / length;
  }

  double value_scale_;
  double jump_;
  bool late_;
  Stream directions_;
};

// One tensor of [batch, heads, length, dim].
std::vector<float> fill(const CaseSpec& spec, const Shape& s, Tensor what) {
  const bool of_keys = what == kKey || what == kValue;
  const int64_t heads = of_keys ? s.kv_heads : s.query_heads;
  const int64_t length = of_keys ? s.keys : s.queries;
  const std::vector<int64_t> items = batch_order(spec, s);
  const std::vector<int64_t> keys = key_order(spec, s);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(s.batch * heads * length * s.dim));
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t source = items[static_cast<size_t>(b)];
    for (int64_t head = 0; head < heads; ++head) {
      // Keys and queries of one group share directions, so that they meet.
      const int64_t group = of_keys ? head : head / s.group();
      const int64_t item = source < 0 ? b + s.batch : source;
      const uint64_t seed =
          derive_seed(spec.seed, static_cast<uint64_t>(item * s.kv_heads + group));
      const Numbers numbers(spec, s, seed);
      const auto own = static_cast<uint64_t>(of_keys ? 0 : head % s.group());
      const Stream random(derive_seed(seed, own), what);
      const Stream other(derive_seed(seed, own), what + kReplaced);
      for (int64_t i = 0; i < length; ++i) {
        const int64_t position = of_keys ? keys[static_cast<size_t>(i)] : i;
        const bool replaced = of_keys && changed_last_key(spec) && i == s.keys - 1;
        for (int64_t d = 0; d < s.dim; ++d) {
          double value =
              numbers.element(what, replaced ? other : random, position, position * s.dim + d, d);
          if (numbers.is_nan(what, position)) value = std::numeric_limits<double>::quiet_NaN();
          values.push_back(static_cast<float>(value));
        }
      }
    }
  }
  return values;
}

void multiply(std::vector<float>& values, int64_t power) {
  for (float& value : values) value = std::ldexp(value, static_cast<int>(power));
}

}  // namespace

bool changed_last_key(const CaseSpec& spec) { return relation_of(spec) == kLastKey; }

std::vector<int64_t> batch_order(const CaseSpec& spec, const Shape& shape) {
  const int64_t relation = relation_of(spec);
  const Moved moved = relation == kPermutedBatch ? Moved::permuted
                      : relation == kNeighbors   ? Moved::neighbors_replaced
                                                 : Moved::nowhere;
  return order_after(moved, spec.seed, shape.batch);
}

std::vector<int64_t> key_order(const CaseSpec& spec, const Shape& shape) {
  if (relation_of(spec) == kPermutedKeys) {
    return permutation(derive_seed(spec.seed, kOrder), shape.keys);
  }
  std::vector<int64_t> order(static_cast<size_t>(shape.keys));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

CaseSpec resolve(const CaseSpec& spec) {
  if (spec.family != "mixed") return spec;
  constexpr std::array<const char*, 4> kHostile = {"blocks", "rising_scores", "falling_scores",
                                                   "last_key"};
  return drawn_family(spec, kFamily, kHostile);
}

Shape shape_of(const CaseSpec& spec) {
  check_parameter_names(spec, kParameters);
  Shape s;
  s.batch = parameter(spec, "batch", 0, 1 << 12);
  s.kv_heads = parameter(spec, "kv_heads", 1, 256);
  s.query_heads = s.kv_heads * parameter(spec, "group", 1, 256);
  s.queries = parameter(spec, "queries", 0, 1 << 16);
  s.keys = parameter(spec, "keys", 0, 1 << 16);
  s.dim = parameter(spec, "dim", 1, 1024);
  s.causal = parameter(spec, "causal", 0, 1) == 1;
  optional_parameter(spec, "value10", -6, 6);
  optional_parameter(spec, "relation", kNone, kPermutedBatch);
  optional_parameter(spec, "values2", -80, 80);
  optional_parameter(spec, "grads2", -80, 80);
  const double usual = 1 / std::sqrt(static_cast<double>(s.dim));
  const bool given = spec.parameters.contains("scale2");
  const auto power = static_cast<int>(optional_parameter(spec, "scale2", -10, 10));
  double scale = given ? std::ldexp(1.0, power) : usual;
  // In thousandths, zero and negative ones included: the scale is the caller's.
  if (spec.parameters.contains("scale_milli")) {
    scale = static_cast<double>(optional_parameter(spec, "scale_milli", -1000000, 1000000)) / 1000;
  }
  s.scale = static_cast<double>(static_cast<float>(scale));
  optional_parameter(spec, "jump", -4000, 4000);
  optional_parameter(spec, "late", 0, 1);
  const bool bad = spec.family == "bad_arguments";
  if (optional_parameter(spec, "bad", 1, 4) != 0 && !bad) {
    throw InvalidArgument("case: bad: only in bad_arguments");
  }
  if (bad && parameter(spec, "bad", 1, 4) == 1 && s.kv_heads < 2) {
    throw InvalidArgument("case: bad_arguments: kv_heads: expected at least 2");
  }
  if (relation_of(spec) == kPermutedKeys && s.causal) {
    throw InvalidArgument("case: keys can be exchanged only without a causal mask");
  }
  if ((spec.family == "future_nan" || changed_last_key(spec)) &&
      (!s.causal || s.queries < 2 || s.keys < 1)) {
    throw InvalidArgument("case: a key that nobody sees needs a causal mask and two queries");
  }
  if (spec.family == "one_key_met" && s.dim < 32) {
    throw InvalidArgument("case: one_key_met: dim: expected at least 32");
  }
  const double work = s.pairs() * static_cast<double>(s.dim);
  if (work > 4e9) throw InvalidArgument("case: more work than a judgement has time for");
  return s;
}

Problem make_problem(const CaseSpec& spec, bool backward) {
  Problem p;
  p.shape = shape_of(spec);
  p.q = fill(spec, p.shape, kQuery);
  p.k = fill(spec, p.shape, kKey);
  p.v = fill(spec, p.shape, kValue);
  multiply(p.v, parameter_or(spec, "values2", 0));
  if (!backward) return p;
  p.dout = fill(spec, p.shape, kGradient);
  multiply(p.dout, parameter_or(spec, "grads2", 0));
  return p;
}

}  // namespace touchstone::judge::attention
