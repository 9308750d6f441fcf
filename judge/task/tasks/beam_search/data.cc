// The tables of beam_search cases, family by family.
//
// States are in layers, one for each place of a text, so that no two texts meet the same rows in
// another order: sums are equal only where every term is.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/beam_search/beam_search.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::beam_search {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array<const char*, 13> kParameters = {
    "prompts",  "width",   "vocab", "beams", "tokens",   "min", "eos",
    "alpha100", "shift10", "parts", "grid",  "relation", "add"};
constexpr std::array<const char*, 5> kHostile = {"masked", "ties", "eos_first", "dead_ends",
                                                 "scale"};

enum : uint64_t { kLogit = 1, kNext, kStart, kPrompt, kPlace, kFamily, kOrder, kTry = 100 };
constexpr int64_t kMaxTries = 60;
constexpr int64_t kMaxDrawn = 1 << 24;  // logits, over all tries

struct Knobs {
  std::string family;
  int64_t prompts = 1, width = 1, vocab = 1, beams = 1, tokens = 1, min = 0, eos = 0, parts = 1;
  double alpha = 0, shift = 0, add = 0;
  bool grid = false;
};

Knobs read_knobs(const CaseSpec& spec) {
  Knobs k;
  k.family = spec.family;
  const bool bad = spec.family == "bad_arguments";
  k.prompts = parameter(spec, "prompts", 0, 4096);
  k.width = parameter(spec, "width", 1, 4096);
  k.vocab = parameter(spec, "vocab", 1, 1 << 20);
  k.beams = parameter(spec, "beams", bad ? 0 : 1, 1024);
  k.tokens = parameter(spec, "tokens", 1, 256);
  k.min = optional_parameter(spec, "min", 0, k.tokens);
  k.eos = optional_parameter(spec, "eos", 0, std::min<int64_t>(k.vocab, 64), 1);
  k.alpha = static_cast<double>(optional_parameter(spec, "alpha100", -2000, 2000, 100)) / 100;
  k.parts = optional_parameter(spec, "parts", 1, 64, 1);
  k.shift = shift_of(spec);
  k.add = static_cast<double>(parameter_or(spec, "add", 0));
  k.grid = parameter_or(spec, "grid", 0) != 0;
  if (k.tokens * k.width * k.vocab > int64_t{1} << 24) {
    throw InvalidArgument("case: tokens * width * vocab is above 2^24");
  }
  return k;
}

// Ending tokens are spread over the vocabulary, in no order.
std::vector<int32_t> ending_tokens(const Knobs& k, uint64_t seed) {
  std::vector<int32_t> eos;
  for (const int64_t token : permutation(derive_seed(seed, kPlace), k.vocab)) {
    if (static_cast<int64_t>(eos.size()) < k.eos) eos.push_back(static_cast<int32_t>(token));
  }
  // Of several one may be there twice.
  if (k.eos > 2 && lists_one_twice(seed)) eos.back() = eos.front();
  return eos;
}

// How likely endings are: at once, never for a long time, or all the time.
double end_bias(const std::string& family, int64_t layer) {
  if (family == "eos_first" || family == "early_finish") return layer == 0 ? 7 : -1;
  if (family == "late_finish") return -4;
  // What ends as early as it may is among the best, whatever else is drawn.
  if (family == "min_tokens") return 6;
  return family == "long" ? -9 : 3;
}

// One way on is likely in every state and the end unlikely, until each beam had a chance to end. What
// ends then is better than the worst that ended before, though much less than what is possible at the
// longest length would say with a negative penalty.
double slow_finish_logit(const Knobs& k, const Stream& random, int64_t state, int64_t token,
                         bool ends) {
  if (ends) return state / k.width == k.beams ? 8 : 2.5;
  const bool likely =
      static_cast<int64_t>(random.bits(~state) % static_cast<uint64_t>(k.vocab)) == token;
  return random.normal(state * k.vocab + token) + (likely ? 4.6 : 0);
}

double logit(const Knobs& k, const Stream& random, int64_t state, int64_t token, bool ends) {
  if (k.family == "slow_finish") return slow_finish_logit(k, random, state, token, ends);
  const int64_t at = state * k.vocab + token;
  double value = 2 * random.normal(at);
  if (k.family == "scale") value *= 0.05;
  // Not so far that a probability is 1 to the last digit: its logarithm would have none.
  if (k.family == "peaked") value = std::clamp(2 * random.heavy(at), -9.0, 9.0);
  if (ends) value += end_bias(k.family, state / k.width);
  // A large vocabulary has a few hundred tokens that count: what all others add to a sum is lost in it.
  if (k.family == "large" && !ends && random.bits(~at) % 200 != 0) value -= 45;
  if (k.family == "masked" && random.bits(~at) % 5 < 2) return -static_cast<double>(kInfinity);
  return std::clamp(value, -60.0, 60.0);
}

void fill_row(const Knobs& k, const Stream& random, const std::vector<int32_t>& eos, int64_t state,
              float* row) {
  for (int64_t v = 0; v < k.vocab; ++v) {
    const bool ends = std::find(eos.begin(), eos.end(), static_cast<int32_t>(v)) != eos.end();
    double value = logit(k, random, state, v, ends);
    if (k.grid) value = std::isinf(value) ? value : std::round(value * 0x1p14) * 0x1p-14;
    row[v] = static_cast<float>(value + k.shift + k.add);
  }
  // The first and the last token of every part, where a row is taken in 2, 3, ... equal ones, are better
  // than all others.
  for (int64_t parts = 2; parts <= k.parts; ++parts) {
    const int64_t size = (k.vocab + parts - 1) / parts;
    for (int64_t begin = size; begin < k.vocab; begin += size) {
      for (const int64_t v : {begin - 1, begin}) {
        row[v] = static_cast<float>(14 + random.normal(state * k.vocab + v) + k.shift + k.add);
      }
    }
  }
  // Pairs of tokens of one probability; see twin_states().
  if (k.family == "ties" || k.family == "all_tied") {
    for (int64_t v = 0; v + 1 < k.vocab; v += 2) row[v + 1] = row[v];
  }
  // One number for all states of a layer: texts are tied because they add the same numbers.
  if (k.family == "all_tied") {
    std::fill(row, row + k.vocab, static_cast<float>(random.normal(state / k.width)));
  }
  // After the first token nothing but the end: a text that ends at once, and another that is as good
  // and ends later.
  if (k.family == "tied_lengths" && !eos.empty()) {
    const auto end = static_cast<size_t>(eos.front());
    const size_t twin =
        end % 2 == 0 && k.vocab > static_cast<int64_t>(end) + 1 ? end + 1 : end - end % 2;
    row[twin] = row[end];
    if (state >= k.width) {
      std::fill(row, row + k.vocab, -kInfinity);
      row[end] = 1;
    }
  }
  // A state without a way on, and one with a single way.
  if (k.family == "dead_ends" && random.bits(state) % 3 == 0) {
    std::fill(row, row + k.vocab, -kInfinity);
    if (state % 2 == 0) row[random.index(state, k.vocab)] = 1;
  }
}

// Equal tokens lead to states with equal rows and different names: their texts stay tied, and only
// the order of parents and tokens decides.
void twin_states(const Knobs& k, Problem& p) {
  const auto vocab = static_cast<size_t>(k.vocab);
  for (int64_t s = 0; s < p.states; ++s) {
    if (s % k.width % 2 == 0) continue;
    const auto from = p.logits.begin() + (s - 1) * k.vocab;
    std::copy(from, from + k.vocab, p.logits.begin() + s * k.vocab);
    std::copy(p.next.begin() + (s - 1) * k.vocab, p.next.begin() + s * k.vocab,
              p.next.begin() + s * k.vocab);
  }
  for (size_t i = 0; i + 1 < p.next.size(); ++i) {
    if (i % vocab % 2 == 1 || i % vocab + 1 == vocab) continue;
    const auto layer = static_cast<int64_t>(p.next[i]) / k.width;
    const int64_t own = p.next[i] % k.width / 2 * 2;
    p.next[i] = static_cast<int32_t>(layer * k.width + own);
    p.next[i + 1] = static_cast<int32_t>(layer * k.width + std::min(own + 1, k.width - 1));
  }
  // An odd width leaves the last state without a twin.
  if (k.width % 2 == 0) return;
  for (int32_t& state : p.next) {
    if (state % k.width == k.width - 1 && k.width > 1) state -= 1;
  }
}

// Ways to any state, a likely one to the state itself, and every second row is that of the state before,
// whose ways are others.
void let_states_come_again(const Knobs& k, const Stream& random, Problem& p) {
  for (int64_t s = 0; s < p.states; ++s) {
    const auto row = p.logits.begin() + s * k.vocab;
    const int64_t own = random.index(~s, k.vocab);
    for (int64_t v = 0; v < k.vocab; ++v) {
      const auto at = static_cast<size_t>(s * k.vocab + v);
      p.next[at] = static_cast<int32_t>(random.index(static_cast<int64_t>(~at), p.states));
    }
    p.next[static_cast<size_t>(s * k.vocab + own)] = static_cast<int32_t>(s);
    row[own] += 2.5F;
    if (s % 2 == 1) std::copy(row - k.vocab, row, row);
  }
}

void fill_tables(const Knobs& k, uint64_t seed, Problem& p) {
  const Stream random(seed, kLogit);
  const Stream way(seed, kNext);
  p.logits.resize(static_cast<size_t>(p.states * k.vocab));
  p.next.resize(p.logits.size());
  for (int64_t s = 0; s < p.states; ++s) {
    fill_row(k, random, p.eos, s, p.logits.data() + s * k.vocab);
    const int64_t layer = s / k.width + 1;
    for (int64_t v = 0; v < k.vocab; ++v) {
      const int64_t at = s * k.vocab + v;
      p.next[static_cast<size_t>(at)] =
          layer == k.tokens ? 0 : static_cast<int32_t>(layer * k.width + way.index(at, k.width));
    }
  }
  if (k.family == "ties" || k.family == "all_tied") twin_states(k, p);
  if (k.family == "cyclic") let_states_come_again(k, random, p);
}

// The states that the search of one prompt looks at and no other does; where there are none, all of it.
std::vector<int32_t> own_states(const std::vector<Answer>& answers, size_t prompt) {
  std::vector<int32_t> own;
  for (const int32_t state : answers[prompt].visited) {
    bool shared = false;
    for (size_t i = 0; i < answers.size(); ++i) {
      shared = shared || (i != prompt && std::ranges::count(answers[i].visited, state) > 0);
    }
    if (!shared) own.push_back(state);
  }
  return own.empty() ? answers[prompt].visited : own;
}

// NaN, of a kind by the number of ending tokens, in a row that the search of the last prompt looks at, or of the
// first where that number is even, at its first step or at a later one; or in all rows that no search looks at.
void place_nan(const Knobs& k, uint64_t seed, Problem& p) {
  if (k.family == "nan" && !p.start.empty()) {
    const Stream place(seed, kPlace);
    const std::vector<Answer> answers = search(p, {});
    const std::vector<int32_t> states =
        own_states(answers, k.eos % 2 == 0 ? 0 : answers.size() - 1);
    const int32_t state = states[static_cast<size_t>(place.index(0, std::ssize(states)))];
    p.logits[static_cast<size_t>(state * k.vocab + place.index(1, k.vocab))] = special_nan(k.eos);
  }
  if (k.family != "nan_elsewhere") return;
  std::vector<bool> seen(static_cast<size_t>(p.states));
  for (const Answer& answer : search(p, {})) {
    for (const int32_t s : answer.visited) seen[static_cast<size_t>(s)] = true;
  }
  for (size_t s = 0; s < seen.size(); ++s) {
    if (!seen[s]) p.logits[s * static_cast<size_t>(k.vocab)] = kNan;
  }
}

// The starts of the prompts; those that a relation replaces are drawn anew.
void fill_prompts(const Knobs& k, const CaseSpec& spec, Problem& p) {
  const Stream place(spec.seed, kStart);
  const Stream length(spec.seed, kPrompt);
  const std::vector<int64_t> order = prompt_order(spec, k.prompts);
  for (int64_t i = 0; i < k.prompts; ++i) {
    const int64_t from =
        order[static_cast<size_t>(i)] < 0 ? i + 5000 : order[static_cast<size_t>(i)];
    p.start.push_back(static_cast<int32_t>(place.index(from, k.width)));
    // None and very many, too: nothing depends on it.
    const int64_t most = from % 5 == 2 ? 1 << 20 : 300;
    p.prompt_tokens.push_back(from % 5 == 3 ? 0
                                            : static_cast<int32_t>(1 + length.index(from, most)));
  }
}

// Of all searches of a case, and where states are few of every search that a relation may ask for.
// A tie outside of the families of ties is two sums that are equal by chance, and in no other order.
double margin_of(Problem& p, int64_t width, bool ties) {
  std::vector<int32_t> asked = p.start;
  if (width <= 8) {
    p.start.clear();
    for (int64_t s = 0; s < width; ++s) p.start.push_back(static_cast<int32_t>(s));
  }
  double margin = std::numeric_limits<double>::infinity();
  for (const Answer& answer : search(p, {})) {
    margin = std::min(margin, answer.tied && !ties ? 0 : answer.margin);
  }
  p.start = std::move(asked);
  return margin;
}

}  // namespace

CaseSpec resolve(const CaseSpec& spec) {
  return spec.family == "mixed" ? drawn_family(spec, kFamily, kHostile) : spec;
}

void check_spec(const CaseSpec& spec) {
  check_parameter_names(spec, kParameters);
  read_knobs(spec);
}

std::vector<int64_t> prompt_order(const CaseSpec& spec, int64_t prompts) {
  return order_after(spec, derive_seed(spec.seed, kOrder), prompts);
}

Problem make_problem(const CaseSpec& spec) {
  const CaseSpec resolved = resolve(spec);
  const Knobs k = read_knobs(resolved);
  Problem p;
  p.prompts = k.prompts;
  p.states = k.tokens * k.width;
  p.vocab = k.vocab;
  p.beams = k.beams;
  p.max_tokens = k.tokens;
  p.min_tokens = k.min;
  p.length_penalty = static_cast<float>(k.alpha);
  p.eos = ending_tokens(k, spec.seed);
  fill_prompts(k, resolved, p);
  // What decides must not be a matter of rounding: the draw with the largest margin, or the first
  // whose margin suffices. A constant that is added does not change which one that is.
  Knobs plain = k;
  plain.add = 0;
  double best = -1;
  uint64_t chosen = 0;
  const int64_t tries =
      std::clamp(kMaxDrawn / std::max<int64_t>(1, p.states * k.vocab), int64_t{4}, kMaxTries);
  for (uint64_t t = 0; t < static_cast<uint64_t>(tries) && best < kMargin; ++t) {
    fill_tables(plain, derive_seed(spec.seed, kTry + t), p);
    const bool ties = k.family == "ties" || k.family == "all_tied" || k.family == "tied_lengths";
    double margin = margin_of(p, k.width, ties);
    // In this family it must matter, too, when a search ends.
    if (k.family == "slow_finish" && !tells_stops_apart(p)) margin = std::min(margin, kMargin) / 2;
    if (margin <= best) continue;
    best = margin;
    chosen = t;
  }
  fill_tables(k, derive_seed(spec.seed, kTry + chosen), p);
  place_nan(k, spec.seed, p);
  return p;
}

}  // namespace touchstone::judge::beam_search
