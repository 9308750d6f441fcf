// From the specification of a case to its calls.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/kv_cache/kv_cache.h"
#include "judge/task/tasks/kv_cache/script.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::kv_cache {
namespace {

constexpr std::array<const char*, 15> kParameters = {
    "layers", "sequences", "kv_heads", "group", "head_dim",    "prompt", "steps", "scale10",
    "future", "neighbour", "renumber", "room",  "scale_milli", "jump",   "alive"};

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

// Every attend with a number of heads and a scale of its own: the fewest heads first, then the most.
void changing_calls(Script& script, const Session& s) {
  const Stream random(s.seed, kScript);
  constexpr std::array<double, 4> kFactors = {1, 0.25, -1, 2};
  for (int64_t step = 0; step <= s.steps; ++step) {
    const int64_t tokens = step == 0 ? s.prompt : 1;
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      script.append(layer, script.all(tokens));
      const int64_t group = step == 0 ? 1 : step == 1 ? s.group : 1 + random.index(step, s.group);
      script.attend(layer, script.all(tokens), 0, s.kv_heads * group,
                    kFactors[static_cast<size_t>(step) % kFactors.size()]);
    }
  }
}

// A sequence copied far from the beginning; then both go on, the parent first, and answer side by side.
void fork_and_grow(Script& script, const Session& s) {
  for (int64_t layer = 0; layer < s.layers; ++layer) script.append(layer, {{0, s.prompt}});
  for (int64_t step = 0; step < s.steps; ++step) {
    const int64_t child = 1 + step % (s.sequences - 1);
    script.fork(0, child);
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      script.append(layer, {{0, 1}});
      script.append(layer, {{child, 1}});
      script.attend(layer, {{0, 1}, {child, 1}});
      script.attend(layer, {{child, 1}, {0, 1}});
    }
  }
}

// The same questions again and again: with other scales, then hundreds of times as tokens come.
void ask_again(Script& script, const Session& s) {
  script.both(0, script.all(s.prompt));
  for (const double factor : {0.5, -2.0, 1.0}) {
    script.attend(0, script.all(1), 0, s.query_heads(), factor);
  }
  for (int64_t step = 0; step < s.steps; ++step) {
    if (step % 16 == 0) script.append(0, script.all(1));
    script.attend(0, script.all(1), 0, s.query_heads(), step % 5 == 4 ? 0.25 : 1);
  }
}

// A sequence of NaN is given back, and what it held is used again by numbers.
void beside_nan(Script& script, const Session& s) {
  prefill_and_decode(script, s);
  script.free(1);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    script.both(layer, {{1, std::max<int64_t>(1, s.prompt / 2)}});
    script.both(layer, {{0, 1}});
  }
}

// The prompt in pieces of changing size, each attended to as it comes; of a long prompt every second one is
// long, and begins wherever the short one ended.
void in_chunks(Script& script, const Session& s) {
  const Stream random(s.seed, kScript);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    int64_t draw = 0;
    for (int64_t done = 0; done < s.prompt;) {
      const bool goes_far = s.prompt > kLongPrompt && draw % 2 == 1;
      const int64_t least = goes_far ? s.prompt / 4 : 1;
      const int64_t piece = std::min(least + random.index(draw++, 7), s.prompt - done);
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

// Appended together and asked about one by one, in other orders; lengths before any question. There is room
// for all sequences in the place of one: who mixes them up is wrong, and does not refuse.
void apart(Script& script, const Session& s) {
  // The later a sequence, the longer its prompt.
  const auto tokens = [&](int64_t sequence, int64_t round) {
    return round == 0 ? s.prompt - s.prompt * (s.sequences - 1 - sequence) / s.sequences : 1;
  };
  for (int64_t round = 0; round <= s.steps; ++round) {
    const auto in_order = [&](uint64_t part) {
      return permutation(derive_seed(s.seed, 2 * static_cast<uint64_t>(round) + part), s.sequences);
    };
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      std::vector<Part> parts = script.all(1);
      // All sequences exist before the order changes.
      if (round > 0)
        std::ranges::transform(in_order(0), parts.begin(), [](int64_t i) { return Part{i, 1}; });
      for (Part& part : parts) part.tokens = tokens(part.sequence, round);
      script.append(layer, parts);
    }
    script.ask_lengths();
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      for (const int64_t i : in_order(1)) script.attend(layer, {{i, tokens(i, round)}});
    }
  }
}

// Calls for the layers in turn, as a model makes them: all appends of a step, then all attends.
void layers_in_turn(Script& script, const Session& s, bool uneven) {
  const Stream random(s.seed, kScript);
  for (int64_t round = 0; round <= s.steps; ++round) {
    std::vector<int64_t> tokens(static_cast<size_t>(s.layers), round == 0 ? s.prompt : 1);
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      int64_t& n = tokens[static_cast<size_t>(layer)];
      if (uneven) n = random.index(round * s.layers + layer, n + 2);
      // Drawn lengths may end up the same after all.
      const bool last = layer > 0 && layer == s.layers - 1 && round == s.steps;
      if (uneven && last && script.length(layer, 0) + n == script.length(0, 0)) {
        n = n > 0 ? n - 1 : n + 1;
      }
      n = std::min(n, s.max_tokens - script.length(layer, 0));
      script.append(layer, script.all(n));
    }
    for (int64_t layer = s.layers - 1; layer >= 0; --layer) {
      script.attend(layer, script.all(tokens[static_cast<size_t>(layer)]));
    }
  }
  script.ask_lengths();
}

// Given back at every step, in full plans more often than 8 bits count, mostly the first sequence.
void free_often(Script& script, const Session& s) {
  for (int64_t step = 0; step < s.steps; ++step) {
    const int64_t sequence = step % 16 == 15 ? s.sequences - 1 : 0;
    script.append(0, {{sequence, 1 + step % 3}});
    if (step % 16 == 15 || step + 32 > s.steps) script.attend(0, {{sequence, 1}});
    script.free(sequence);
  }
  script.ask_lengths();
  script.both(0, script.all(s.prompt));
}

void free_and_reuse(Script& script, const Session& s) {
  if (s.steps > kManyFrees) return free_often(script, s);
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
    // One query too many, of the last sequence only.
    if (last > 0) script.attend(layer, {{0, 1}, {last, s.max_tokens + 1}});
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
  // A copy has room for as much as any other, and there is none of what does not exist.
  for (int64_t layer = 0; layer < s.layers && s.sequences > 1; ++layer) {
    const int64_t child = s.sequences - 1;
    script.append(layer, {{child, s.max_tokens - script.length(layer, child)}});
    script.append(layer, {{child, 1}}, false);
    script.attend(layer, {{child, 1}});
  }
  script.plain("kv_cache_fork", {int64_t{0}, s.sequences}, 0);
  script.plain("kv_cache_fork", {s.sequences, int64_t{0}}, 0);
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

// The shape of another cache of the session: wider in everything that is not one, and heads of
// another size that is as even.
Session other_shape(Session s, int64_t number) {
  for (int64_t* size : {&s.layers, &s.sequences, &s.kv_heads}) *size += *size > 1 ? number % 2 : 0;
  const int64_t step = s.head_dim % 8 == 0 ? 8 : 1;
  s.head_dim += s.head_dim > step * number ? -step * number : step;
  return s;
}

// Several caches of different shapes in turn. All but the first are destroyed while it goes on, and
// another one is made after them.
void several_caches(Script& first, const Session& s) {
  std::vector<Session> shapes;
  for (int64_t i = 1; i < s.alive; ++i) shapes.push_back(other_shape(s, i));
  std::vector<Script> others(shapes.begin(), shapes.end());
  const auto join = [&](Script& other) {
    for (Call& call : other.calls) first.calls.push_back(std::move(call));
    other.calls.clear();
  };
  for (size_t i = 0; i < others.size(); ++i) {
    others[i].create(static_cast<int>(i) + 1);
    join(others[i]);
  }
  for (int64_t round = 0; round <= s.steps; ++round) {
    const int64_t tokens = round == 0 ? s.prompt : 1;
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      first.append(layer, first.all(tokens));
      for (size_t i = 0; i < others.size(); ++i) {
        others[i].append(layer, others[i].all(tokens), true, static_cast<int>(i) + 1);
        join(others[i]);
      }
      first.attend(layer, first.all(tokens));
      for (size_t i = 0; i < others.size(); ++i) {
        others[i].attend(layer, others[i].all(tokens), static_cast<int>(i) + 1);
        join(others[i]);
      }
    }
  }
  for (size_t i = 0; i < others.size(); ++i) {
    others[i].destroy(static_cast<int>(i) + 1);
    join(others[i]);
    first.both(0, first.all(1));
  }
  Script last(s);
  last.create(1);
  last.both(0, last.all(1), 1);
  last.ask_lengths(1);
  last.destroy(1);
  join(last);
}

// A cache of few bits: what is freed comes again with other numbers, and its limit holds.
void quantized(Script& script, const Session& s) {
  prefill_and_decode(script, s);
  script.free(0);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    script.both(layer, {{0, s.prompt}});
    script.append(layer, {{0, s.max_tokens - s.prompt + 1}}, false);
    script.attend(layer, {{0, 1}});
  }
  script.ask_lengths();
}

void empty_calls(Script& script, const Session& s) {
  script.both(0, {});
  script.both(0, script.all(0));
  script.both(0, script.all(s.prompt));
  script.both(0, {{0, 0}});
  script.attend(0, {});
  for (int64_t layer = 1; layer < s.layers; ++layer) {
    script.both(layer, script.all(s.prompt));
    script.append(layer, {});
    script.append(layer, script.all(0));
    script.attend(layer, script.all(1));
  }
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
  // Beyond the last and before the first; calls and rows without tokens name what must exist, too.
  for (const int64_t none : {s.sequences, int64_t{-1}}) {
    script.attend(0, {{none, 1}});
    script.append(0, {{none, 0}}, false);
    script.attend(0, {{none, 0}});
    script.plain("kv_cache_free", {none}, 0);
    script.plain("kv_cache_length", {int64_t{0}, none}, 0);
  }
  for (const int64_t none : {s.layers, int64_t{-1}}) {
    script.attend(none, {{0, 1}});
    script.append(none, {}, false);
    script.attend(none, {});
    script.plain("kv_cache_length", {none, int64_t{0}}, 0);
  }
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
  s.layers = parameter(spec, "layers", 1, 256);
  s.sequences = parameter(spec, "sequences", 1, 1024);
  s.kv_heads = parameter(spec, "kv_heads", 1, 512);
  s.group = parameter(spec, "group", 1, 1024);
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
    s.value_scale = power_of_ten(parameter(spec, "scale10", -22, 18));
  }
  // Room for everything a session of this family may append, and not one token more in `full`.
  const int64_t room = spec.parameters.contains("room") ? parameter(spec, "room", 0, 1 << 16) : 8;
  s.max_tokens = s.prompt + 4 * s.steps + room;
  if (s.family == "full") s.max_tokens = s.prompt + room;
  if (s.family == "apart") s.max_tokens = s.sequences * (s.prompt + s.steps) + room;
  if (s.family.starts_with("wander")) s.max_tokens = 3 * s.prompt + room;
  if (spec.parameters.contains("scale_milli")) {
    s.given_scale = true;
    s.scale = static_cast<double>(parameter(spec, "scale_milli", -64000, 64000)) / 1000;
  }
  const bool many = spec.family == "many_caches";
  if (many) s.alive = parameter(spec, "alive", 2, 16);
  if (!many && spec.parameters.contains("alive")) {
    throw InvalidArgument("case: alive: only in many_caches");
  }
  s.jump = static_cast<double>(optional_parameter(spec, "jump", -4000, 4000));
  s.seed = spec.seed;
  // Known signs meet by chance when there are few of them.
  if ((s.family == "exact" || s.family == "long_memory") && s.head_dim < 48) {
    throw InvalidArgument("case: exact keys: head_dim: expected at least 48");
  }
  const bool pairs = s.family == "other_nan" || s.family == "fork_far" || s.changed_neighbors;
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
  } else if (f == "apart") {
    apart(script, s);
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
  } else if (f == "two_caches" || f == "many_caches") {
    several_caches(script, s);
  } else if (f == "fork_far") {
    fork_and_grow(script, s);
  } else if (f == "asked_again") {
    ask_again(script, s);
  } else if (f == "changing_calls") {
    changing_calls(script, s);
  } else if (f == "other_nan") {
    beside_nan(script, s);
  } else if (f == "int8" || f == "int4") {
    quantized(script, s);
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

std::map<QueryKey, QueryPlace> query_places(const Case& asked, const Session& session) {
  std::map<QueryKey, QueryPlace> places;
  std::map<std::array<int64_t, 3>, int64_t> length;
  for (size_t c = 0; c < asked.calls.size(); ++c) {
    const Call& call = asked.calls[c];
    if (call.function != "kv_cache_append" && call.function != "kv_cache_attend") continue;
    const int64_t layer = call.whole(0);
    const std::span<const int32_t> sequence = as_i32(call.inputs[0]);
    const std::span<const int32_t> tokens = as_i32(call.inputs[1]);
    int64_t row = 0;
    for (size_t i = 0; i < sequence.size(); ++i) {
      int64_t& n = length[{call.state, layer, sequence[i]}];
      if (call.function == "kv_cache_append") {
        n += tokens[i];
        continue;
      }
      const int64_t source = session.renumbered ? session.sequences - 1 - sequence[i] : sequence[i];
      for (int32_t t = 0; t < tokens[i]; ++t) {
        places[{call.state, layer, source, n - tokens[i] + t}] = {c, row++};
      }
    }
  }
  return places;
}

}  // namespace touchstone::judge::kv_cache
