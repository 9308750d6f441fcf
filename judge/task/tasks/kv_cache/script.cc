#include "judge/task/tasks/kv_cache/script.h"

#include <limits>
#include <string>

namespace touchstone::judge::kv_cache {

// `at` counts elements of one head; heads share directions so that grouped heads meet their keys.
double Script::element(uint64_t what, const Stream& random, const Stream& directions,
                       int64_t position, int64_t at, double normal) const {
  const std::string& f = s_.family;
  const int64_t d = at % s_.head_dim;
  if (f == "exact" || f == "long_memory") {
    // Signs as keys; the query is twice the key it is to meet, and scores it far above all others.
    if (what == kValue) return static_cast<double>(random.index(at, 129) - 64) / 16;
    const int64_t target = f == "long_memory" ? 0 : random.index(-position - 1, position + 1);
    const int64_t row = what == kQuery ? target : position;
    return (what == kQuery ? 2 : 1) * directions.sign(row * s_.head_dim + d);
  }
  if (f == "equal_keys" && what == kKey) return directions.normal(d);
  if (f == "rising_scores" && what != kValue) {
    const double along = 1 + 0.25 * directions.uniform(d);
    return what == kQuery ? along : along * 0.02 * static_cast<double>(position);
  }
  if ((f == "step_scores" || f == "ramp_scores") && what != kValue) {
    // One direction for all: the score of a key is the factor it has, whatever the size of a head.
    const double along = directions.sign(d);
    if (what == kQuery) return along;
    const auto last = static_cast<double>(std::max<int64_t>(s_.prompt - 1, 1));
    const int64_t step = 1 + directions.index(-3, std::max<int64_t>(s_.prompt - 1, 1));
    const double share =
        f == "step_scores" ? (position >= step ? 1.0 : 0.0) : static_cast<double>(position) / last;
    const double score = s_.jump * (s_.jump > 0 ? share : share - 0.25);
    return along * (score + normal) / std::sqrt(static_cast<double>(s_.head_dim));
  }
  if (f == "low_scores" && what != kValue) {
    // Keys against the query: exp of every score is 0 unless the maximum is taken off first.
    const double along = 1 + 0.25 * directions.uniform(d);
    if (what == kKey) return -along * (1 + 0.05 * normal);
    return along * 118 / std::sqrt(static_cast<double>(s_.head_dim));
  }
  if (f == "large_scores" && what != kValue) return normal * 12;
  if (f == "blocks" && 4 * position >= 3 * s_.prompt) return normal * (what == kValue ? 50 : 3);
  if (what == kQuery) return normal / s_.value_scale;
  return normal * s_.value_scale;
}

void Script::fill(uint64_t what, int state, int64_t layer, int64_t sequence, int64_t position,
                  int64_t heads, std::vector<float>& to) const {
  const bool exists = sequence >= 0 && sequence < s_.sequences;
  const int64_t source = exists ? source_[static_cast<size_t>(sequence)] : 0;
  uint64_t seed = derive_seed(s_.seed, static_cast<uint64_t>(state * 64 + layer));
  seed = derive_seed(seed, static_cast<uint64_t>(source));
  const bool replaced = (s_.changed_future && position == s_.prompt - 1 && what != kQuery) ||
                        (s_.changed_neighbors && sequence != 0);
  const Stream random(replaced ? derive_seed(seed, 77) : seed, what);
  const Stream directions(seed, kTarget);
  const bool future_nan = s_.family == "future_nan" && position == s_.prompt - 1 && what != kQuery;
  // Until the sequence is freed: what comes then are numbers.
  const bool other_nan = s_.family == "other_nan" && sequence == 1 && source == 1 && what == kValue;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t d = 0; d < s_.head_dim; ++d) {
      const int64_t at = (position * heads + head) * s_.head_dim + d;
      double value = element(what, random, directions, position, at, random.normal(at));
      if (future_nan || other_nan) value = std::numeric_limits<double>::quiet_NaN();
      to.push_back(static_cast<float>(value));
    }
  }
}

}  // namespace touchstone::judge::kv_cache
