// From the specification of a case to its calls. Every token's key, value and query depend only on
// (layer, sequence, position), so that two ways through the same tokens can be compared.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/kv_cache/kv_cache.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::kv_cache {
namespace {

constexpr std::array<const char*, 14> kParameters = {
    "layers",  "sequences", "kv_heads",  "group",    "head_dim", "prompt",      "steps",
    "scale10", "future",    "neighbour", "renumber", "room",     "scale_milli", "jump"};

enum : uint64_t { kKey = 1, kValue, kQuery, kScript, kFamily, kTarget };

struct Part {  // tokens of one sequence in one call
  int64_t sequence = 0;
  int64_t tokens = 0;
};

// Writes calls, keeping count of the lengths so that every token gets its position.
class Script {
 public:
  explicit Script(const Session& session)
      : s_(session),
        length_(static_cast<size_t>(session.layers * session.sequences), 0),
        source_(static_cast<size_t>(session.sequences)) {
    for (int64_t i = 0; i < s_.sequences; ++i) source_[static_cast<size_t>(i)] = i;
    next_source_ = s_.sequences;
  }

  void create(int state, int64_t bits = 0) {
    Call call;
    call.function = bits == 0 ? "kv_cache_create" : "kv_cache_create_quantised";
    call.scalars = {s_.layers, s_.sequences, s_.kv_heads, s_.head_dim, s_.max_tokens};
    if (bits != 0) call.scalars.emplace_back(bits);
    call.state = state;
    call.timed = false;
    calls.push_back(std::move(call));
  }

  void destroy(int state) { plain("kv_cache_destroy", {}, state); }

  // With `fits` false the lengths stay as they are: the call is one that must be refused.
  void append(int64_t layer, const std::vector<Part>& parts, bool fits = true, int state = 0) {
    std::vector<float> k, v;
    for (const Part& part : parts) {
      for (int64_t t = 0; t < part.tokens; ++t) {
        const int64_t position = length(layer, part.sequence) + t;
        fill(kKey, state, layer, part.sequence, position, s_.kv_heads, k);
        fill(kValue, state, layer, part.sequence, position, s_.kv_heads, v);
      }
      if (fits) length(layer, part.sequence) += part.tokens;
    }
    Call call = tokens_call("kv_cache_append", layer, parts, state);
    const int64_t total = std::get<int64_t>(call.scalars[2]);
    call.inputs.push_back(f32_input("k", {total, s_.kv_heads, s_.head_dim}, k));
    call.inputs.push_back(f32_input("v", {total, s_.kv_heads, s_.head_dim}, v));
    calls.push_back(std::move(call));
  }

  void attend(int64_t layer, const std::vector<Part>& parts, int state = 0) {
    std::vector<float> q;
    for (const Part& part : parts) {
      for (int64_t t = 0; t < part.tokens; ++t) {
        const int64_t position =
            std::max<int64_t>(0, length(layer, part.sequence) - part.tokens + t);
        fill(kQuery, state, layer, part.sequence, position, s_.query_heads(), q);
      }
    }
    Call call = tokens_call("kv_cache_attend", layer, parts, state);
    const int64_t total = std::get<int64_t>(call.scalars[2]);
    call.scalars.emplace_back(s_.query_heads());
    // The number as the contender gets it, in f32.
    call.scalars.emplace_back(static_cast<double>(static_cast<float>(score_scale())));
    call.inputs.push_back(f32_input("q", {total, s_.query_heads(), s_.head_dim}, q));
    call.outputs = {{"out", DType::f32, {total, s_.query_heads(), s_.head_dim}}};
    calls.push_back(std::move(call));
  }

  void both(int64_t layer, const std::vector<Part>& parts, int state = 0) {
    append(layer, parts, true, state);
    attend(layer, parts, state);
  }

  void fork(int64_t parent, int64_t child) {
    plain("kv_cache_fork", {number(parent), number(child)}, 0);
    for (int64_t layer = 0; layer < s_.layers; ++layer) {
      length(layer, child) = length(layer, parent);
    }
    source_[static_cast<size_t>(child)] = next_source_++;  // from here on, tokens of its own
  }

  void free(int64_t sequence) {
    plain("kv_cache_free", {number(sequence)}, 0);
    for (int64_t layer = 0; layer < s_.layers; ++layer) length(layer, sequence) = 0;
    source_[static_cast<size_t>(sequence)] = next_source_++;
  }

  void ask_lengths(int state = 0) {
    for (int64_t layer = 0; layer < s_.layers; ++layer) {
      for (int64_t i = 0; i < s_.sequences; ++i) {
        plain("kv_cache_length", {layer, number(i)}, state);
      }
    }
  }

  void plain(const char* function, std::vector<Scalar> scalars, int state) {
    Call call;
    call.function = function;
    call.scalars = std::move(scalars);
    call.state = state;
    call.timed = false;
    calls.push_back(std::move(call));
  }

  // Every sequence with this many tokens.
  std::vector<Part> all(int64_t tokens) const {
    std::vector<Part> parts;
    for (int64_t i = 0; i < s_.sequences; ++i) parts.push_back({i, tokens});
    return parts;
  }

  int64_t& length(int64_t layer, int64_t sequence) {
    // What is out of range is asked for in calls that must be refused.
    if (layer < 0 || layer >= s_.layers || sequence < 0 || sequence >= s_.sequences) {
      return nowhere_ = 0;
    }
    return length_[static_cast<size_t>(layer * s_.sequences + sequence)];
  }

  std::vector<Call> calls;

 private:
  int64_t number(int64_t sequence) const {
    return s_.renumbered ? s_.sequences - 1 - sequence : sequence;
  }

  double score_scale() const {
    if (s_.given_scale) return s_.scale;
    const bool plain = s_.family == "exact" || s_.family == "long_memory";
    return plain ? 1.0 : 1.0 / std::sqrt(static_cast<double>(s_.head_dim));
  }

  Call tokens_call(const char* function, int64_t layer, const std::vector<Part>& parts,
                   int state) const {
    std::vector<int32_t> sequence, tokens;
    int64_t total = 0;
    for (const Part& part : parts) {
      sequence.push_back(static_cast<int32_t>(number(part.sequence)));
      tokens.push_back(static_cast<int32_t>(part.tokens));
      total += part.tokens;
    }
    const auto count = static_cast<int64_t>(parts.size());
    Call call;
    call.function = function;
    call.scalars = {layer, count, total};
    call.inputs = {i32_input("sequence", {count}, sequence), i32_input("tokens", {count}, tokens)};
    call.state = state;
    return call;
  }

  void fill(uint64_t what, int state, int64_t layer, int64_t sequence, int64_t position,
            int64_t heads, std::vector<float>& to) const;
  double element(uint64_t what, const Stream& random, const Stream& directions, int64_t position,
                 int64_t at, double normal) const;

  const Session& s_;
  std::vector<int64_t> length_;  // [layers, sequences]
  std::vector<int64_t> source_;  // [sequences]: whose tokens come next
  int64_t next_source_ = 0;
  int64_t nowhere_ = 0;
};

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
  const bool other_nan = s_.family == "other_nan" && sequence == 1 && what == kValue;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t d = 0; d < s_.head_dim; ++d) {
      const int64_t at = (position * heads + head) * s_.head_dim + d;
      double value = element(what, random, directions, position, at, random.normal(at));
      if (future_nan || other_nan) value = std::numeric_limits<double>::quiet_NaN();
      to.push_back(static_cast<float>(value));
    }
  }
}

// ---- the sessions ------------------------------------------------------------------------------

void prefill_and_decode(Script& script, const Session& s) {
  for (int64_t layer = 0; layer < s.layers && s.prompt > 0; ++layer) {
    script.both(layer, script.all(s.prompt));
  }
  script.ask_lengths();
  for (int64_t step = 0; step < s.steps; ++step) {
    for (int64_t layer = 0; layer < s.layers; ++layer) script.both(layer, script.all(1));
  }
}

// The prompt in pieces of changing size, each attended to as it comes.
void in_chunks(Script& script, const Session& s) {
  const Stream random(s.seed, kScript);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    int64_t draw = 0;
    for (int64_t done = 0; done < s.prompt;) {
      const int64_t piece = std::min(1 + random.index(draw++, 7), s.prompt - done);
      script.both(layer, script.all(piece));
      done += piece;
    }
  }
  for (int64_t step = 0; step < s.steps; ++step) {
    for (int64_t layer = 0; layer < s.layers; ++layer) script.both(layer, script.all(1));
  }
}

// Different lengths in one call; with `subsets`, also changing members in changing order.
void ragged(Script& script, const Session& s, bool subsets) {
  const Stream random(s.seed, kScript);
  int64_t draw = 0;
  for (int64_t round = 0; round <= s.steps; ++round) {
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      std::vector<Part> parts;
      for (const int64_t i :
           permutation(derive_seed(s.seed, static_cast<uint64_t>(round)), s.sequences)) {
        if (subsets && random.bits(draw++) % 3 == 0) continue;
        const int64_t room = s.max_tokens - script.length(layer, i);
        const int64_t most = round == 0 ? s.prompt : 4;
        parts.push_back({i, std::min(room, random.index(draw++, most + 1))});
      }
      if (!subsets) std::ranges::sort(parts, {}, &Part::sequence);
      script.both(layer, parts);
    }
  }
  script.ask_lengths();
}

// Calls for the layers in turn, as a model makes them: all appends of a step, then all attends.
void layers_in_turn(Script& script, const Session& s, bool uneven) {
  const Stream random(s.seed, kScript);
  for (int64_t round = 0; round <= s.steps; ++round) {
    std::vector<int64_t> tokens(static_cast<size_t>(s.layers), round == 0 ? s.prompt : 1);
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      int64_t& n = tokens[static_cast<size_t>(layer)];
      if (uneven) n = random.index(round * s.layers + layer, n + 2);
      n = std::min(n, s.max_tokens - script.length(layer, 0));
      script.append(layer, script.all(n));
    }
    for (int64_t layer = s.layers - 1; layer >= 0; --layer) {
      script.attend(layer, script.all(tokens[static_cast<size_t>(layer)]));
    }
  }
  script.ask_lengths();
}

void free_and_reuse(Script& script, const Session& s) {
  const int64_t again = std::max<int64_t>(1, s.prompt / 2);
  for (int64_t layer = 0; layer < s.layers; ++layer) script.both(layer, script.all(s.prompt));
  for (int64_t step = 0; step < s.steps; ++step) {
    script.free(step % s.sequences);
    script.ask_lengths();
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      script.both(layer, {{step % s.sequences, again}});
      std::vector<Part> parts;
      for (int64_t i = 0; i < s.sequences; ++i) {
        if (script.length(layer, i) < s.max_tokens) parts.push_back({i, 1});
      }
      script.both(layer, parts);
    }
  }
}

// The last sequence is filled up, one more token is refused for all, and everything goes on.
void fill_up(Script& script, const Session& s) {
  const int64_t last = s.sequences - 1;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    script.both(layer, script.all(s.prompt));
    const int64_t room = s.max_tokens - s.prompt;
    if (room > 0) script.both(layer, {{last, room}});
    script.append(layer, script.all(1), false);
    script.append(layer, {{last, 2}}, false);
  }
  script.ask_lengths();
  for (int64_t layer = 0; layer < s.layers; ++layer) script.attend(layer, script.all(1));
  script.free(last);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    script.append(layer, {{last, s.max_tokens + 1}}, false);
    script.both(layer, {{last, s.max_tokens}});
  }
  script.ask_lengths();
}

void forks(Script& script, const Session& s) {
  for (int64_t layer = 0; layer < s.layers; ++layer) script.both(layer, {{0, s.prompt}});
  for (int64_t child = 1; child < s.sequences; ++child) script.fork(child - 1, child);
  script.ask_lengths();
  for (int64_t step = 0; step < s.steps; ++step) {
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      // The children first: a copy that still shares the parent's last page shows.
      std::vector<Part> parts = script.all(1);
      std::ranges::reverse(parts);
      script.both(layer, parts);
    }
  }
  script.free(0);
  for (int64_t layer = 0; layer < s.layers && s.sequences > 1; ++layer) {
    script.both(layer, {{s.sequences - 1, 1}});
  }
  // The parent's place is used again, then a child is overwritten by a fork.
  for (int64_t layer = 0; layer < s.layers; ++layer) script.both(layer, {{0, 1 + s.prompt / 2}});
  if (s.sequences > 1) script.fork(0, s.sequences - 1);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    script.both(layer, {{0, 1}});
    if (s.sequences > 1) script.both(layer, {{s.sequences - 1, 1}});
  }
  script.ask_lengths();
}

// Hundreds of steps in no order: parts of the sequences grow, are asked about, freed, and with
// `forks` copied, empty ones and copies of copies too.
void wander(Script& script, const Session& s, bool forks) {
  const Stream random(s.seed, kScript);
  int64_t draw = 0;
  const auto pick = [&](int64_t count) { return random.index(draw++, count); };
  const auto some = [&](int64_t layer, bool append) {
    std::vector<Part> parts;
    const int64_t wanted = 1 + pick(std::min<int64_t>(s.sequences, 6));
    for (const int64_t i :
         permutation(derive_seed(s.seed, 5000 + static_cast<uint64_t>(draw)), s.sequences)) {
      if (static_cast<int64_t>(parts.size()) == wanted) break;
      const int64_t most =
          append ? s.max_tokens - script.length(layer, i) : script.length(layer, i);
      // Single tokens mostly, a whole prompt now and then.
      const int64_t tokens = pick(4) == 0 ? pick(s.prompt + 1) : 1;
      parts.push_back({i, std::min(most, tokens)});
    }
    return parts;
  };
  for (int64_t step = 0; step < s.steps; ++step) {
    const int64_t layer = pick(s.layers);
    const int64_t what = pick(forks ? 10 : 8);
    if (what < 5) {
      script.both(layer, some(layer, true));
    } else if (what < 7) {
      script.attend(layer, some(layer, false));
    } else if (what == 7) {
      script.free(pick(s.sequences));
    } else if (s.sequences > 1) {
      const int64_t parent = pick(s.sequences);
      script.fork(parent, (parent + 1 + pick(s.sequences - 1)) % s.sequences);
    }
  }
  script.ask_lengths();
}

void two_caches(Script& first, const Session& s) {
  // A second script keeps the lengths of the second cache; its calls join those of the first.
  Script second(s);
  second.create(1);
  const auto join = [&] {
    for (Call& call : second.calls) first.calls.push_back(std::move(call));
    second.calls.clear();
  };
  join();
  for (int64_t round = 0; round <= s.steps; ++round) {
    const int64_t tokens = round == 0 ? s.prompt : 1;
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      first.append(layer, first.all(tokens));
      second.append(layer, second.all(tokens), true, 1);
      join();
      first.attend(layer, first.all(tokens));
      second.attend(layer, second.all(tokens), 1);
      join();
    }
  }
  second.destroy(1);
  join();
}

void empty_calls(Script& script, const Session& s) {
  script.both(0, {});
  script.both(0, script.all(0));
  script.both(0, script.all(s.prompt));
  script.both(0, {{0, 0}});
  script.attend(0, {});
  script.ask_lengths();
  script.both(0, script.all(1));
}

void bad_calls(Script& script, const Session& s) {
  script.both(0, script.all(s.prompt));
  script.append(s.layers, {{0, 1}}, false);
  script.append(-1, {{0, 1}}, false);
  script.append(0, {{0, 1}, {s.sequences, 1}}, false);
  script.append(0, {{0, 1}, {-1, 1}}, false);
  script.attend(0, {{0, s.prompt + 1}});
  script.attend(0, {{s.sequences, 1}});
  script.attend(s.layers, {{0, 1}});
  script.plain("kv_cache_free", {s.sequences}, 0);
  script.plain("kv_cache_length", {int64_t{0}, s.sequences}, 0);
  script.plain("kv_cache_length", {s.layers, int64_t{0}}, 0);
  script.ask_lengths();
  script.both(0, script.all(1));
}

void reported_bytes(Script& script, const Session& s) {
  for (int64_t step = 0; step <= s.steps; ++step) {
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      script.append(layer, script.all(step == 0 ? s.prompt : 1));
    }
    script.plain("kv_cache_bytes", {}, 0);
  }
}

// What is timed: the decode steps over a prompt that is already there, or the prefill itself.
void timed_session(Script& script, const Session& s, bool prefill) {
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    if (prefill) {
      script.both(layer, script.all(s.prompt));
    } else {
      script.append(layer, script.all(s.prompt));
      script.calls.back().timed = false;
    }
  }
  for (int64_t step = 0; step < s.steps && !prefill; ++step) {
    for (int64_t layer = 0; layer < s.layers; ++layer) script.both(layer, script.all(1));
  }
}

}  // namespace

CaseSpec resolve(const CaseSpec& spec) {
  if (spec.family != "mixed" && spec.family != "mixed_prefill") return spec;
  constexpr std::array<const char*, 4> kHostile = {"blocks", "rising_scores", "equal_keys",
                                                   "nominal"};
  return drawn_family(spec, kFamily, kHostile);
}

Session read_session(const CaseSpec& spec) {
  check_parameter_names(spec, kParameters);
  Session s;
  s.script = spec.family;
  s.family = resolve(spec).family;
  s.layers = parameter(spec, "layers", 1, 64);
  s.sequences = parameter(spec, "sequences", 1, 1024);
  s.kv_heads = parameter(spec, "kv_heads", 1, 256);
  s.group = parameter(spec, "group", 1, 256);
  s.head_dim = parameter(spec, "head_dim", 1, 1024);
  s.prompt = parameter(spec, "prompt", spec.family == "decode_only" ? 0 : 1, 1 << 16);
  s.steps = parameter(spec, "steps", 0, 1 << 16);
  const auto flag = [&](const char* name) {
    return spec.parameters.contains(name) && parameter(spec, name, 0, 1) == 1;
  };
  s.changed_future = flag("future");
  s.changed_neighbors = flag("neighbour");
  s.renumbered = flag("renumber");
  if (spec.parameters.contains("scale10")) {
    s.value_scale = power_of_ten(parameter(spec, "scale10", -6, 6));
  }
  // Room for everything a session of this family may append, and not one token more in `full`.
  const int64_t room = spec.parameters.contains("room") ? parameter(spec, "room", 0, 1 << 16) : 8;
  s.max_tokens = s.prompt + 4 * s.steps + room;
  if (s.family == "full") s.max_tokens = s.prompt + room;
  if (s.family.starts_with("wander")) s.max_tokens = 3 * s.prompt + room;
  if (spec.parameters.contains("scale_milli")) {
    s.given_scale = true;
    s.scale = static_cast<double>(parameter(spec, "scale_milli", -8000, 8000)) / 1000;
  }
  s.jump = static_cast<double>(optional_parameter(spec, "jump", -4000, 4000));
  s.seed = spec.seed;
  // Known signs meet by chance when there are few of them.
  if ((s.family == "exact" || s.family == "long_memory") && s.head_dim < 48) {
    throw InvalidArgument("case: exact keys: head_dim: expected at least 48");
  }
  const bool pairs = s.family == "other_nan" || s.changed_neighbors;
  if (pairs && s.sequences < 2) {
    throw InvalidArgument("case: sequences: expected at least 2");
  }
  const double work = static_cast<double>(s.layers * s.sequences * s.query_heads() * s.head_dim) *
                      static_cast<double>(s.max_tokens) * static_cast<double>(s.max_tokens);
  if (work > 1e11) throw InvalidArgument("case: more work than a judgement has time for");
  return s;
}

std::vector<Call> make_calls(const Session& s) {
  Script script(s);
  const std::string& f = s.script;
  script.create(0, f == "int8" ? 8 : f == "int4" ? 4 : 0);
  if (f == "chunks") {
    in_chunks(script, s);
  } else if (f == "ragged" || f == "subset") {
    ragged(script, s, f == "subset");
  } else if (f == "layers" || f == "uneven_layers") {
    layers_in_turn(script, s, f == "uneven_layers");
  } else if (f == "reuse") {
    free_and_reuse(script, s);
  } else if (f == "full") {
    fill_up(script, s);
  } else if (f == "fork") {
    forks(script, s);
  } else if (f == "wander" || f == "wander_forks") {
    wander(script, s, f == "wander_forks");
  } else if (f == "two_caches") {
    two_caches(script, s);
  } else if (f == "nothing") {
    empty_calls(script, s);
  } else if (f == "bad_calls") {
    bad_calls(script, s);
  } else if (f == "bytes") {
    reported_bytes(script, s);
  } else if (f == "mixed" || f == "mixed_prefill") {
    timed_session(script, s, f == "mixed_prefill");
  } else {
    prefill_and_decode(script, s);
  }
  script.destroy(0);
  return std::move(script.calls);
}

}  // namespace touchstone::judge::kv_cache
