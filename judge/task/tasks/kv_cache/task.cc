#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/card_task.h"
#include "judge/task/tasks/kv_cache/kv_cache.h"
#include "judge/task/tasks/plan_builder.h"

namespace touchstone::judge {
namespace {

using kv_cache::Outcome;
using kv_cache::QueryKey;
using kv_cache::QueryPlace;
using kv_cache::Session;

// A sequence that holds NaN may answer anything; the others are looked at.
Elements finite_elements(const Expected& expected) {
  Elements elements;
  for (const double value : expected.value) elements.selected.push_back(std::isfinite(value));
  return elements;
}

class KvCache final : public CardTask {
 public:
  KvCache()
      : CardTask("kv_cache", {.resolve = kv_cache::resolve,
                              .check = [](const CaseSpec& spec) { kv_cache::read_session(spec); },
                              .sizes = {{"layers", 1},
                                        {"sequences", 1},
                                        {"steps", 0},
                                        {"prompt", 1},
                                        {"kv_heads", 1},
                                        {"group", 1},
                                        {"head_dim", 1},
                                        {"room", 0}}}) {}

  Plan plan(uint64_t seed, bool small) const override;

  CaseCheck check_with(const Case& asked, const std::vector<Reply>& replies,
                       Memo& memo) const override {
    Checker checker(asked, replies);
    const auto& outcomes = memo.get<std::vector<Outcome>>(
        [&] { return kv_cache::expected_outcomes(asked, tolerance_of(asked.spec)); });
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const Outcome& right = outcomes[i];
      if (right.refused) {
        if (!checker.refused(i)) return checker.finish();
        continue;
      }
      // What follows a lost call says nothing more.
      if (!checker.answered(i)) return checker.finish();
      if (right.has_value && right.least_value >= 0) {
        check_least(checker, i, right.least_value);
      } else if (right.has_value) {
        checker.returned(i, right.value);
      }
      if (asked.calls[i].function != "kv_cache_attend") continue;
      compare_output(checker, asked, i, 0, right.out, Special::not_finite,
                     finite_elements(right.out));
    }
    return checker.finish();
  }

  void compare_related(Checker& checker, const Related& pair) const override;
  std::vector<Reply> answer_in_bits(const Case& asked, int bits) const override;

  std::vector<CaseSpec> timed(uint64_t seed, bool small) const override;
  double bytes(const Case& c) const override;
  double flops(const Case& c) const override;
  double least_state_bytes(const Case& c) const override;

 private:
  Case make_case(const CaseSpec& spec) const override {
    return {spec, kv_cache::make_calls(kv_cache::read_session(spec))};
  }

  static void check_least(Checker& checker, size_t call, int64_t least) {
    if (checker.reply(call).returned >= least) return;
    checker.complain(
        fmt::format("call {} (kv_cache_bytes): returned {}, but the tokens stored take {}", call,
                    checker.reply(call).returned, least));
  }
};

// ---- plan
// ----------------------------------------------------------------------------------------

PlanBuilder::Parameters shape(int64_t layers, int64_t sequences, int64_t kv_heads, int64_t group,
                              int64_t head_dim, int64_t prompt, int64_t steps) {
  return {{"layers", layers}, {"sequences", sequences}, {"kv_heads", kv_heads},
          {"group", group},   {"head_dim", head_dim},   {"prompt", prompt},
          {"steps", steps}};
}

void add_sessions(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 13> kFamilies = {
      "nominal", "chunks",     "ragged",     "subset",        "apart",  "layers", "uneven_layers",
      "reuse",   "two_caches", "equal_keys", "rising_scores", "blocks", "fork"};
  for (const char* family : kFamilies) {
    b.add(family, shape(2, 3, 2, 1, 16, 5 + b.draw(9), 4));
    b.add(family, shape(1 + b.draw(2), 2 + b.draw(3), 1 + b.draw(3), 2, 24 + b.draw(9),
                        17 + b.draw(30), 5));
    if (small) continue;
    b.add(family, shape(2, 4, 2, 2, 64, 60 + b.draw(80), 6));
  }
  b.add("decode_only", shape(1, 2, 2, 1, 16, 0, 20));
  b.add("decode_only", shape(2, 3, 2, 2, 20 + b.draw(20), 0, 35));
  for (const int64_t room : {0, 1, 6}) {
    PlanBuilder::Parameters p = shape(2, 3, 2, 2, 16, 8 + b.draw(9), 0);
    p["room"] = room;
    b.add("full", p);
  }
  b.add("nothing", shape(1, 3, 2, 1, 16, 4, 0));
  b.add("bad_calls", shape(2, 2, 2, 1, 16, 4, 0));
  b.add("bytes", shape(2, 3, 2, 1, 32, 9, 4));
  b.add("other_nan", shape(1, 3, 2, 2, 16, 9, 3));
  b.add("future_nan", shape(1, 2, 2, 1, 16, 9, 0));
  for (const char* family : {"int8", "int4"}) b.add(family, shape(1, 2, 2, 2, 64, 40, 4));
}

void add_sizes(PlanBuilder& b, bool small) {
  for (const int64_t head_dim : {1, 3, 8, 17, 31, 33, 80, 96, 128, 256}) {
    if (small && head_dim > 128) continue;
    b.add("sizes", shape(1, 2, 2, 1, head_dim, 6 + b.draw(6), 2));
  }
  // Positions that do not fit in 8 bits.
  b.add("sizes", shape(1, 2, 1, 1, 8, 257 + b.draw(20), 2));
  b.add("sizes", shape(3, 1, 1, 1, 8, 1, 1));
  b.add("sizes", shape(1, 9, 1, 1, 8, 3, 2));
  for (const int64_t page : {16, 32, 64, 128, 256}) {
    if (small && page > 64) continue;
    // The prompt ends just before, on or behind a border; decoding crosses it.
    for (const int64_t off : {-1, 0, 1}) {
      b.add("page_borders", shape(1, 2, 1, 2, 16, page + off, 2));
    }
  }
  for (int64_t group = 2; group <= 9; ++group) {
    b.add("grouped", shape(1, 1 + group % 2, 2, group, 8 + b.draw(9), 5 + b.draw(7), 2));
  }
  PlanBuilder::Parameters many = shape(1, 2, 1, 1, 48 + b.draw(9), 5, 2);
  many["alive"] = 7 + b.draw(3);
  b.add("many_caches", many);
  b.add("changing_calls", shape(2, 2, 2, 3 + b.draw(3), 16, 9 + b.draw(9), 6));
  b.add("grouped", shape(1, 1, 3, 3, 20, 10, 2));
  b.add("one_kv_head", shape(1, 2, 1, 8, 32, 20, 3));
  b.add("one_kv_head", shape(2, 3, 1, 4, 16, 9, 3));
  for (const char* family : {"exact", "long_memory"}) {
    b.add(family, shape(1, 2, 2, 2, 64, 30 + b.draw(20), 3));
    b.add(family, shape(1, 1, 1, 1, 128, small ? 100 : 300, 3));
  }
  for (const int64_t scale10 : {-3, -1, 1, 3}) {
    PlanBuilder::Parameters p = shape(1, 2, 2, 1, 32, 20 + b.draw(9), 3);
    p["scale10"] = scale10;
    b.add("scale", p);
  }
  b.add("low_scores", shape(1, 2, 2, 2, 32, 20 + b.draw(9), 3));
  b.add("low_scores", shape(1, 2, 1, 1, 80, 70, 3));
  b.add("large_scores", shape(1, 2, 2, 1, 64, 40 + b.draw(9), 3));
}

PlanBuilder::Parameters with(PlanBuilder::Parameters parameters, const char* name, int64_t value) {
  parameters[name] = value;
  return parameters;
}

// Scores that leave the range of exp within one key, and evenly over hundreds of keys; scales that
// are not 1 / sqrt(head_dim).
void add_scores(PlanBuilder& b, bool small) {
  for (const int64_t jump : {100, 1000, 3000}) {
    for (const int64_t sign : {1, -1}) {
      b.add("step_scores", with(shape(1, 2, 1, 2, 32, 40 + b.draw(90), 2), "jump", sign * jump));
      b.add("ramp_scores",
            with(shape(1, 1, 2, 1, 16, small ? 90 : 200 + b.draw(200), 2), "jump", sign * jump));
    }
  }
  for (const int64_t milli : {0, 3, -125, -1000, 7777}) {
    b.add("given_scale", with(shape(1, 2, 2, 2, 16, 12 + b.draw(9), 2), "scale_milli", milli));
  }
  for (const int64_t milli : b.regions({1, 30, 1000, 8000, 64001})) {
    for (const int64_t sign : {1, -1}) {
      b.add("given_scale",
            with(shape(1, 1, 2, 1, 4 + b.draw(8), 12 + b.draw(9), 2), "scale_milli", sign * milli));
    }
  }
}

// Many forks, forks of empty sequences, frees, dozens of sequences and layers, hundreds of steps.
void add_wandering(PlanBuilder& b, bool small) {
  for (const char* family : {"wander", "wander_forks"}) {
    b.add(family, shape(2, 5, 1, 2, 16, 9 + b.draw(9), small ? 60 : 160));
    b.add(family, shape(1, 24 + b.draw(24), 1, 1, 8, 6 + b.draw(9), small ? 80 : 240));
    if (!small) b.add(family, shape(12 + b.draw(12), 6, 2, 1, 8, 12 + b.draw(20), 300));
  }
}

// In every family one case that is plain in everything else: one layer, one sequence where that is
// enough, one head of a usual size.
void add_plain(PlanBuilder& b) {
  constexpr std::array<const char*, 12> kOne = {
      "decode_only", "chunks",        "equal_keys", "exact",        "long_memory", "scale",
      "blocks",      "rising_scores", "low_scores", "large_scores", "nothing",     "bytes"};
  for (const char* family : kOne) {
    b.add(family, shape(1, 1, 1, 1, 64, std::string(family) == "decode_only" ? 0 : 16, 3));
  }
  for (const char* family : {"step_scores", "ramp_scores"}) {
    for (const int64_t jump : {1000, -1000}) {
      b.add(family, with(shape(1, 1, 1, 1, 64, 64, 3), "jump", jump));
    }
  }
  b.add("given_scale", with(shape(1, 1, 1, 1, 64, 16, 3), "scale_milli", 250));
  b.add("asked_again", shape(1, 1, 1, 1, 64, 12, 9));
  b.add("fork_far", shape(1, 2, 1, 1, 64, 12, 3));
  for (const char* family : {"ragged", "subset", "apart", "reuse", "full", "fork", "other_nan"}) {
    b.add(family, shape(1, 2, 1, 1, 64, 12, 3));
  }
  b.add("wander", shape(1, 3, 1, 1, 64, 8, 40));
  b.add("wander_forks", shape(1, 3, 1, 1, 64, 8, 120));
  b.add("future_nan", shape(1, 1, 1, 1, 64, 9, 0));
  for (const char* family : {"int8", "int4", "two_caches", "changing_calls"})
    b.add(family, shape(1, 1, 1, 1, 64, 16, 3));
  b.add("many_caches", with(shape(1, 1, 1, 1, 64, 4, 1), "alive", 3));
  for (const char* family : {"layers", "uneven_layers"})
    b.add(family, shape(2, 1, 1, 1, 64, 12, 3));
  for (const char* family : {"grouped", "one_kv_head"}) b.add(family, shape(1, 1, 1, 4, 64, 12, 3));
  b.add("page_borders", shape(1, 1, 1, 1, 64, 64, 2));
  b.add("sizes", shape(1, 1, 1, 1, 17, 9, 2));
  b.add("bad_calls", shape(1, 1, 1, 1, 64, 4, 0));
}

// Shapes over the whole legal range and scales over theirs, crossed with sessions of all kinds.
void add_drawn(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 16> kFamilies = {
      "sizes",  "ragged",      "chunks",      "step_scores", "given_scale",   "subset",
      "layers", "ramp_scores", "reuse",       "sizes",       "uneven_layers", "given_scale",
      "wander", "low_scores",  "given_scale", "sizes"};
  const size_t count = kFamilies.size();
  const std::vector<int64_t> layers = b.spread(32, count);
  const std::vector<int64_t> sequences = b.spread(48, count);
  const std::vector<int64_t> heads = b.spread(16, count);
  const std::vector<int64_t> group = b.spread(16, count);
  const std::vector<int64_t> dim = b.spread(256, count);
  const std::vector<int64_t> prompt = b.spread(1024, count);
  const std::vector<int64_t> steps = b.spread(48, count);
  const std::vector<int64_t> milli = b.spread(8000, count);
  const int64_t most = small ? 1 << 17 : 1 << 19;
  for (size_t i = 0; i < count; ++i) {
    PlanBuilder::Parameters p =
        shape(layers[i], sequences[i], heads[i], group[i], dim[i], prompt[i], steps[i]);
    // Too much work: one of the sizes is halved, whichever comes by turns.
    constexpr std::array<const char*, 7> kSizes = {"layers",   "sequences", "kv_heads", "group",
                                                   "head_dim", "prompt",    "steps"};
    for (size_t turn = static_cast<size_t>(b.draw(7));; ++turn) {
      const int64_t tokens = p["prompt"] + p["steps"];
      const int64_t work = p["layers"] * p["sequences"] * p["kv_heads"] * p["group"] *
                           p["head_dim"] * tokens * tokens / 16;
      const int64_t calls = p["layers"] * p["steps"];
      if (work <= most && calls <= 200) break;
      int64_t& size = p[kSizes[turn % kSizes.size()]];
      size = std::max<int64_t>(1, size / 2);
    }
    const std::string family = kFamilies[i];
    if (family == "step_scores" || family == "ramp_scores") {
      p["jump"] = (b.draw(2) == 0 ? 1 : -1) * b.draw_size(50, 3500);
    }
    if (family == "given_scale") p["scale_milli"] = (b.draw(2) == 0 ? 1 : -1) * milli[i];
    b.add(family, p);
  }
  // Room for one token, and for none but the prompt.
  b.add("full", with(shape(1, 2, 1, 1, 8 + b.draw(9), 1, 0), "room", 0));
  b.add("full", with(shape(2, 3, 1, 2, 8 + b.draw(9), 5 + b.draw(30), 0), "room", 0));
  // Room for a little more than 16 bits can count, and little of it used; plain in everything else, so
  // that a refusal is no lack.
  const int64_t used = 5 + b.draw(9);
  b.add("sizes", with(shape(1, 1, 1, 1, 8, used, 2), "room", (1 << 16) - 8 - b.draw(used)));
  // Where a single size stands out: more layers than 7 bits count, more sequences and heads than 8 bits do.
  b.add("sizes", shape(129 + b.draw(12), 1, 1, 1, 4, 2, 0));
  b.add("sizes", shape(1, 257 + b.draw(16), 1, 1, 4, 3, 1));
  b.add("sizes", shape(1, 1, 257 + b.draw(16), 1, 4, 3, 1));
  b.add("sizes", shape(1, 1, 1, 513 + b.draw(32), 4, 3, 1));
  b.add("sizes", shape(1, 1, 1, 1, b.draw_size(257, 512), 3, 1));
  b.add("sizes", shape(1, 1, 1, 1, b.draw_largest(1024), 3, 1));
  // Many query heads for each of several others.
  for (const int64_t many : {17 + b.draw(48), 65 + b.draw(64)}) {
    b.add("grouped", shape(1, 1, 2 + b.draw(2), many, 4 + b.draw(5), 3, 1));
  }
  b.add("reuse", shape(1, 2, 1, 1, 8, 5 + b.draw(9), small ? kv_cache::kManyFrees + 6 : 280));
  b.add("decode_only", shape(1, 1, 1, 1, 8, 0, b.draw_largest(300)));
  // 2000 tokens and more, asked about by the last ones only. Of ordinary data: where scores rise, the
  // first tokens do not count.
  const auto is_nominal = [](const CaseSpec& spec) {
    return kv_cache::resolve(spec).family == "nominal";
  };
  b.add_where("mixed",
              shape(1, 1, 1, 1, 8 + b.draw(25), (small ? 2048 : 4096) + 1 + b.draw(128), 3),
              is_nominal);
  if (!small) b.add("mixed_prefill", shape(1, 1, 1, 1, 16, b.draw_largest(1100), 0));
  for (const int64_t shared : b.regions({1, 17, 65, 129, 400})) {
    b.add("fork_far", shape(1 + b.draw(2), 2 + b.draw(2), 1, 1, 4 + b.draw(9), shared, 5));
  }
  // At the borders of pages, and more copies of a page than 8 bits count.
  for (const int64_t shared : {16 * (1 + b.draw(3)), 64 * (1 + b.draw(2))}) {
    b.add("fork_far", shape(1, 2 + b.draw(2), 1, 1, 4 + b.draw(9), shared, 2));
  }
  b.add("chunks", shape(1, 2, 1, 1, 8, kv_cache::kLongPrompt + 100 + b.draw(99), 1));
  if (!small) {
    b.add("fork", shape(1, 259 + b.draw(20), 1, 1, 4, 3, 1));
    // Positions beyond 16 bits.
    b.add_where("mixed", shape(1, 1, 1, 1, 2, 1 << 16, 2), is_nominal);
  }
  b.add("asked_again",
        shape(1, 2, 1, 2, 4 + b.draw(9), 5 + b.draw(9), small ? 60 : 520 + b.draw(30)));
}

// Keys, values and queries that are 0, limits that whole pages fill, empty calls for several layers, and
// numbers far from 1.
void add_degenerate(PlanBuilder& b) {
  for (const auto& [call, input] : {std::pair(1, "k"), std::pair(1, "v"), std::pair(2, "q")}) {
    const int64_t dim = 4 + b.draw(20), prompt = 5 + b.draw(12);
    const int64_t token = b.draw(prompt - 1);
    const PlanBuilder::Parameters p = shape(1, 1, 1, 1, dim, prompt, 2);
    b.add_edited("scale", p, {{call, input, 0, prompt * dim - 1, 0.0F}});
    b.add_edited("scale", p, {{call, input, token * dim, (token + 1) * dim - 1, 0.0F}});
  }
  // Keys and values of the same numbers, and weights far below another that count all the same, because its
  // value is 0.
  const int64_t same = 4 + b.draw(12), width = 3 + b.draw(20);
  b.add_edited("scale", shape(1, 1, 1, 1, width, same, 2),
               {{1, "v", 0, same * width - 1, 0, "k", 0}});
  for (const int64_t distance : {5 + b.draw(3), 8 + b.draw(3)}) {
    const int64_t tokens = 3 + b.draw(6), dim = 16;
    b.add_edited("scale", with(shape(1, 1, 1, 1, dim, tokens, 0), "scale10", 15),
                 {{2, "q", 0, tokens * dim - 1, 1.0F},
                  {1, "k", 0, tokens * dim - 1, -static_cast<float>(distance)},
                  {1, "k", 0, dim - 1, static_cast<float>(distance)},
                  {1, "v", 0, dim - 1, 0.0F}});
  }
  // Scores that are all far from zero and equal: the mean of the values, whatever a maximum begins with.
  for (const float key : {-1e4F, -1e6F, -1e12F, -1e30F, 1e30F}) {
    const int64_t tokens = 2 + b.draw(6), dim = 16;
    b.add_edited("equal_keys", shape(1, 1, 1, 1, dim, tokens, 0),
                 {{2, "q", 0, tokens * dim - 1, 1.0F}, {1, "k", 0, tokens * dim - 1, key}});
  }
  for (const int64_t limit : {16, 32, 64, 128, 256}) {
    const int64_t prompt = 1 + b.draw(limit - 1);
    b.add("full", with(shape(1, 2, 1, 1, 8, prompt, 0), "room", limit - prompt));
  }
  b.add("nothing", shape(3, 2, 1, 1, 16, 5 + b.draw(9), 1));
  for (const int64_t scale10 : {16 + b.draw(2), -21 - b.draw(2)}) {
    b.add("scale", with(shape(1, 2, 2, 1, 32, 20 + b.draw(9), 3), "scale10", scale10));
  }
}

// Caches of few bits: heads that fill no word, groups, layers, hundreds of tokens, numbers far from 1, and
// tokens, heads and layers that are much smaller or larger than what is kept beside them.
void add_quantized(PlanBuilder& b) {
  for (const char* family : {"int8", "int4"}) {
    b.add(family, shape(1, 2, 2, 1, 17 + 2 * b.draw(8), 9 + b.draw(9), 2));
    b.add(family, shape(2, 2, 3, 3, 48, 70 + b.draw(60), 3));
    for (const int64_t scale10 : {-12, 8}) {
      b.add(family, with(shape(1, 1, 2, 1, 32, 9 + b.draw(9), 2), "scale10", scale10));
    }
    const int64_t heads = 2, dim = 24, width = heads * dim, prompt = 70 + b.draw(9);
    const auto row = [&](const char* name, int64_t token, float value) {
      return Edit{1, name, token * width, (token + 1) * width - 1, value};
    };
    const PlanBuilder::Parameters p = shape(1, 1, heads, 1, dim, prompt, 1);
    b.add_edited(family, p, {row("k", 3, 0.0F), row("v", 4, 0.0F)});
    // What comes last is not seen before; what is below 0 has a magnitude, too.
    b.add_edited(family, p, {row("v", prompt - 1, -1000.0F)});
    b.add_edited(family, p, {row("k", 63, 1e-3F)});
    std::vector<Edit> first_heads;
    for (int64_t t = 0; t < 6; ++t) {
      first_heads.push_back({1, "k", t * width, t * width + dim - 1, 1e-3F});
    }
    b.add_edited(family, shape(1, 1, heads, 1, dim, 6, 1), first_heads);
    b.add_edited(family, shape(2, 1, heads, 1, dim, 6, 1), {{1, "k", 0, 6 * width - 1, 1e-3F}});
  }
}

// Every head size, and every number of tokens up to 64 that a step can find in the cache; every number of
// sequences, of heads, of layers, and of heads in a group; small heads in groups.
void add_swept(PlanBuilder& b, bool small) {
  const int64_t step = small ? 16 : 1;
  const std::vector<int64_t> dim = b.sweep(256, step);
  const std::vector<int64_t> prompt = b.sweep(64, step);
  for (size_t i = 0; i < dim.size(); ++i) {
    b.add("sizes", shape(1, 1, 1, 1, dim[i], prompt[i % prompt.size()], 1));
  }
  const std::vector<int64_t> sequences = b.sweep(64, step);
  const std::vector<int64_t> heads = b.sweep(64, step);
  for (size_t i = 0; i < sequences.size(); ++i) {
    b.add("sizes", shape(1, sequences[i], heads[i], 1, 4, 2, 0));
  }
  const std::vector<int64_t> layers = b.sweep(32, step);
  const std::vector<int64_t> group = b.sweep(32, step);
  const std::vector<int64_t> small_dim = b.sweep(32, step);
  for (size_t i = 0; i < layers.size(); ++i) {
    b.add("layers", shape(layers[i], 1, 1, 1, 4, 2, 0));
    b.add("grouped", shape(1, 1, 2, group[i], 4, 3, 0));
    b.add("grouped", shape(1, 1, 1 + b.draw(2), 2 + b.draw(7), small_dim[i], 3, 1));
  }
}

void add_relations(PlanBuilder& b, bool small) {
  const CaseSpec plain = b.spec("nominal", shape(1, 2, 1, 1, 64, 12, 3));
  b.relate("neighbours", plain, {{"neighbour", 1}});
  b.relate("renumber", plain, {{"renumber", 1}});
  const CaseSpec one = b.spec("nominal", shape(1, 1, 1, 1, 64, 12, 3));
  b.relate("future_token", one, {{"future", 1}});
  b.relate("repeat", one, {});
  CaseSpec in_pieces = one;
  in_pieces.family = "chunks";
  b.relate("increments", one, {});
  b.plan.relations.back().second = in_pieces;
  for (const int64_t prompt : {12, 50}) {
    if (small && prompt == 50) continue;
    const CaseSpec first = b.spec("nominal", shape(2, 3, 2, 2, 32, prompt, 3));
    b.relate("future_token", first, {{"future", 1}});
    b.relate("neighbours", first, {{"neighbour", 1}});
    b.relate("renumber", first, {{"renumber", 1}});
    b.relate("repeat", first, {});
    CaseSpec pieces = first;
    pieces.family = "chunks";
    b.relate("increments", first, {});
    b.plan.relations.back().second = pieces;
  }
  b.relate("repeat", b.spec("subset", shape(2, 4, 2, 2, 32, 30, 6)), {});
}

Plan KvCache::plan(uint64_t seed, bool small) const {
  PlanBuilder b(card(), seed);
  b.add("nominal", shape(1, 1, 1, 1, 64, 12, 3));
  b.add("nominal", shape(1, 1, 1, 1, 8, 4, 2));
  b.add("nominal", shape(1, 4, 4, 1, 64, 16, 8));
  if (!small) b.add("nominal", shape(2, 2, 4, 2, 64, 200 + b.draw(60), 8));
  add_sessions(b, small);
  add_sizes(b, small);
  add_scores(b, small);
  add_wandering(b, small);
  add_plain(b);
  add_drawn(b, small);
  add_swept(b, small);
  add_degenerate(b);
  add_quantized(b);
  add_relations(b, small);
  const int64_t head_dim = 56 + 8 * b.draw(7);
  for (const int64_t prompt : {128, 256, 512, 1024}) {
    if (small && prompt > 512) continue;
    b.ladder("mixed_prefill", shape(1, 1, 1, 1, head_dim, b.rung(prompt, 1), 0));
  }
  return b.plan;
}

std::vector<CaseSpec> KvCache::timed(uint64_t seed, bool small) const {
  PlanBuilder b(card(), seed);
  if (small) {
    b.add("mixed", shape(1, 2, 2, 2, 32, 100, 4));
  } else {
    b.add("mixed", shape(1, 4, 4, 2, 64, 512, 4));
    b.add("mixed", shape(2, 16, 2, 4, 64, 100, 4));
    b.add("mixed_prefill", shape(1, 1, 4, 2, 64, 192, 0));
  }
  return b.plan.cases;
}

// ---- costs
// ---------------------------------------------------------------------------------------

// Tokens read, queries answered and pairs of them, over the timed calls of a case.
struct Work {
  double bytes = 0;
  double flops = 0;
};

Work work_of(const Case& c) {
  const Session s = kv_cache::read_session(c.spec);
  const auto row = static_cast<double>(s.head_dim);
  std::map<std::array<int64_t, 3>, int64_t> length;  // (state, layer, sequence)
  Work work;
  for (const Call& call : c.calls) {
    if (call.function != "kv_cache_append" && call.function != "kv_cache_attend") continue;
    const std::span<const int32_t> sequence = as_i32(call.inputs[0]);
    const std::span<const int32_t> tokens = as_i32(call.inputs[1]);
    for (size_t i = 0; i < sequence.size(); ++i) {
      int64_t& n = length[{call.state, call.whole(0), sequence[i]}];
      const auto count = static_cast<double>(tokens[i]);
      if (call.function == "kv_cache_append") {
        n += tokens[i];
        // Keys and values are read once and written once.
        if (call.timed) work.bytes += 16 * count * row * static_cast<double>(s.kv_heads);
        continue;
      }
      if (!call.timed) continue;
      const auto seen = static_cast<double>(n);
      const auto heads = static_cast<double>(s.query_heads());
      work.bytes += 8 * seen * row * static_cast<double>(s.kv_heads) + 8 * count * row * heads;
      work.flops += 4 * row * heads * (count * seen - count * (count - 1) / 2);
    }
  }
  return work;
}

double KvCache::bytes(const Case& c) const { return work_of(c).bytes; }
double KvCache::flops(const Case& c) const { return work_of(c).flops; }

double KvCache::least_state_bytes(const Case& c) const {
  return static_cast<double>(kv_cache::most_stored_bytes(c));
}

// ---- relations
// -----------------------------------------------------------------------------------

// Whether this query must be answered alike after the change.
bool untouched(const Session& s, const QueryKey& key) {
  if (s.changed_future) return key.position < s.prompt - 1;
  return !s.changed_neighbors || key.sequence == 0;
}

void KvCache::compare_related(Checker& checker, const Related& pair) const {
  const Case& second = pair.second;
  const Session session = kv_cache::read_session(second.spec);
  std::vector<Outcome> right = kv_cache::expected_outcomes(second, tolerance_of(second.spec));
  const auto earlier = kv_cache::query_places(pair.first, kv_cache::read_session(pair.first.spec));
  const auto width = static_cast<size_t>(session.query_heads() * session.head_dim);
  std::vector<Elements> compared(second.calls.size());
  for (size_t i = 0; i < second.calls.size(); ++i) {
    compared[i].selected.assign(right[i].out.value.size(), false);
  }
  for (const auto& [key, place] : kv_cache::query_places(second, session)) {
    const auto found = earlier.find(key);
    if (found == earlier.end() || !untouched(session, key)) continue;
    const QueryPlace& source = found->second;
    const std::span<const float> out = as_f32(pair.before[source.call].outputs[0]);
    for (size_t d = 0; d < width; ++d) {
      const size_t at = static_cast<size_t>(place.token) * width + d;
      Expected& expected = right[place.call].out;
      expected.value[at] = static_cast<double>(out[static_cast<size_t>(source.token) * width + d]);
      expected.bound[at] *= 2;  // two right answers are at most two bounds apart
      compared[place.call].selected[at] = true;
    }
  }
  for (size_t i = 0; i < second.calls.size(); ++i) {
    if (second.calls[i].function != "kv_cache_attend") continue;
    compare_output(checker, second, i, 0, right[i].out, Special::same, compared[i]);
  }
}

// Keys, values and queries rounded, everything after it exact.
std::vector<Reply> KvCache::answer_in_bits(const Case& asked, int bits) const {
  Case rounded = asked;
  for (Call& call : rounded.calls) {
    for (InputTensor& input : call.inputs) {
      if (input.dtype != DType::f32) continue;
      std::vector<float> values = floats_of(input);
      round_to_bits(values, bits);
      input.data = bytes_of(values);
    }
  }
  std::vector<Reply> replies;
  for (const Outcome& outcome : kv_cache::expected_outcomes(rounded, {})) {
    Reply& reply = replies.emplace_back();
    reply.ending = outcome.refused ? Ending::refused : Ending::ok;
    reply.returned = outcome.least_value >= 0 ? outcome.least_value : outcome.value;
    if (outcome.refused) continue;
    const Call& call = asked.calls[replies.size() - 1];
    if (!call.outputs.empty()) reply.outputs.push_back(bytes_of(outcome.out));
  }
  return replies;
}

}  // namespace

std::unique_ptr<Task> make_kv_cache() { return std::make_unique<KvCache>(); }

}  // namespace touchstone::judge
