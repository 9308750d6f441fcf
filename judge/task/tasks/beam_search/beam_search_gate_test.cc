// The gate of the task: honest implementations pass every case that can make a verdict, wrong ones do
// not, decisions keep their distance, and a second oracle agrees with the first.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "judge/task/generate.h"
#include "judge/task/tasks/beam_search/beam_search.h"
#include "judge/task/tasks/gate_test_support.h"
#include "judge/task/tasks/registry.h"
#include "oracle/beam_search.h"

namespace touchstone::judge {
namespace {

using beam_search::Problem;

enum class Fault {
  none,
  eos_dropped,
  frozen_out,
  prompt_counted,
  higher_token,
  worse_parent,
  wrong_cache,
  stops_when_full,
  any_rank,
  no_penalty,
  min_ignored,
  limit_lost,
  half,
};

struct Style {
  const char* name;
  bool single = false;  // 32-bit sums
  Fault fault = Fault::none;
};

struct Text {
  std::vector<int32_t> tokens;
  int32_t state = 0;
  double sum = 0;
  double score = 0;
  bool ended = false;
};

double stored(const Style& style, double value) {
  if (style.fault == Fault::half)
    return static_cast<double>(round_to_bits(static_cast<float>(value), 11));
  return style.single ? static_cast<double>(static_cast<float>(value)) : value;
}

// All continuations, as tuples that sort.
using Option = std::tuple<double, size_t, int32_t>;

std::vector<Option> options_of(const Style& style, const Problem& p,
                               const std::vector<Text>& running, int64_t g, bool& nan) {
  std::vector<Option> all;
  for (size_t b = 0; b < running.size(); ++b) {
    const float* const row = p.logits.data() + running[b].state * p.vocab;
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t v = 0; v < p.vocab; ++v) {
      nan = nan || std::isnan(row[v]);
      top = std::max(top, row[v]);
    }
    if (nan || std::isinf(top)) continue;
    double sum = 0;
    for (int64_t v = 0; v < p.vocab; ++v)
      sum = stored(style, sum + std::exp(static_cast<double>(row[v] - top)));
    for (int64_t v = 0; v < p.vocab; ++v) {
      const auto token = static_cast<int32_t>(v);
      const bool ends = std::ranges::find(p.eos, token) != p.eos.end();
      if (std::isinf(row[v])) continue;
      if (ends && g <= p.min_tokens && style.fault != Fault::min_ignored) continue;
      double value = stored(style, static_cast<double>(row[v] - top) - std::log(sum));
      if (ends && style.fault == Fault::eos_dropped) value = 0;
      const size_t parent = style.fault == Fault::worse_parent ? running.size() - b : b;
      all.emplace_back(-stored(style, running[b].sum + value), parent,
                       style.fault == Fault::higher_token ? -token : token);
    }
  }
  std::ranges::sort(all);
  for (auto& [sum, parent, token] : all) {
    if (style.fault == Fault::worse_parent) parent = running.size() - parent;
    if (style.fault == Fault::higher_token) token = -token;
  }
  return all;
}

std::vector<Text> search(const Style& style, const Problem& p, int64_t prompt, bool& nan) {
  const auto k = static_cast<size_t>(p.beams);
  const auto alpha = static_cast<double>(style.fault == Fault::no_penalty ? 0 : p.length_penalty);
  std::vector<Text> running(1), pool;
  running[0].state = p.start[static_cast<size_t>(prompt)];
  const auto score = [&](double sum, int64_t g) {
    if (style.fault == Fault::prompt_counted) g += p.prompt_tokens[static_cast<size_t>(prompt)];
    return sum / std::pow(static_cast<double>(g), alpha);
  };
  for (int64_t g = 1; g <= p.max_tokens && !running.empty(); ++g) {
    const std::vector<Option> all = options_of(style, p, running, g, nan);
    if (nan) return {};
    std::vector<Text> on, ended;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const auto [negative, parent, token] = all[rank];
      const bool ends = std::ranges::find(p.eos, token) != p.eos.end();
      Text text = running[parent];
      const size_t cache =
          style.fault == Fault::wrong_cache ? std::min(on.size(), running.size() - 1) : parent;
      text.tokens.push_back(token);
      text.sum = -negative;
      text.ended = ends;
      text.score = score(text.sum, g);
      text.state = p.next[static_cast<size_t>(running[cache].state * p.vocab + token)];
      if (ends || g == p.max_tokens) {
        if (rank < k || (ends && style.fault == Fault::any_rank)) ended.push_back(text);
      } else if (on.size() < k) {
        on.push_back(text);
      }
    }
    if (style.fault == Fault::frozen_out && !ended.empty()) pool.clear();
    for (const Text& text : ended) {
      if (style.fault != Fault::limit_lost || text.ended) pool.push_back(text);
    }
    std::ranges::stable_sort(pool, std::ranges::greater{}, &Text::score);
    if (pool.size() > k) pool.resize(k);
    running = std::move(on);
    if (pool.size() < k || running.empty()) continue;
    if (style.fault == Fault::stops_when_full) break;
    if (score(running[0].sum, alpha > 0 ? p.max_tokens : g) <= pool.back().score) break;
  }
  return pool;
}

std::vector<Reply> run(const Style& style, const Case& c) {
  Reply reply;
  reply.ending = Ending::refused;
  if (c.spec.family == "bad_arguments") return {reply};
  Problem p = beam_search::make_problem(c.spec);
  p.logits = floats_of(c.calls[0].inputs[0]);  // with the edits of the case
  const auto longest = static_cast<size_t>(p.max_tokens);
  const auto slots = static_cast<size_t>(p.prompts * p.beams);
  std::vector<int32_t> tokens(slots * longest, -1), lengths(slots), finish(slots);
  std::vector<float> sums(slots), scores(slots);
  for (int64_t i = 0; i < p.prompts; ++i) {
    bool nan = false;
    const std::vector<Text> found = search(style, p, i, nan);
    if (nan) return {reply};
    for (size_t b = 0; b < found.size(); ++b) {
      const size_t at = static_cast<size_t>(i * p.beams) + b;
      std::ranges::copy(found[b].tokens,
                        tokens.begin() + static_cast<std::ptrdiff_t>(at * longest));
      lengths[at] = static_cast<int32_t>(found[b].tokens.size());
      finish[at] = found[b].ended ? 1 : 2;
      sums[at] = static_cast<float>(found[b].sum);
      scores[at] = static_cast<float>(found[b].score);
    }
  }
  reply.ending = Ending::ok;
  reply.outputs = {bytes_of(tokens), bytes_of(lengths), bytes_of(finish), bytes_of(sums),
                   bytes_of(scores)};
  return {reply};
}

gate::Contender contender(const Style& style) {
  return [style](const Case& c) { return run(style, c); };
}

const Task& task() { return find_task("beam_search"); }

TEST(BeamSearchGate, HonestStylesPass) {
  gate::expect_passes(task(), "in double", contender({.name = ""}), 21);
  gate::expect_passes(task(), "in float", contender({.name = "", .single = true}), 22);
}

TEST(BeamSearchGate, PlantedFaultsAreFound) {
  for (int fault = 1; fault <= static_cast<int>(Fault::half); ++fault) {
    gate::expect_found(task(), "fault " + std::to_string(fault),
                       contender({.name = "", .fault = static_cast<Fault>(fault)}), 3);
  }
}

TEST(BeamSearchGate, TrivialContendersFailEverywhere) { gate::expect_trivial_fail(task()); }

TEST(BeamSearchGate, LowerPrecisionFails) { gate::expect_lower_precision_fails(task(), "nominal"); }

TEST(BeamSearchGate, RelationsHoldAndBite) {
  gate::expect_relations(task(), contender({.name = "", .single = true}));
}

// No decision of a case hangs on rounding.
TEST(BeamSearchGate, DecisionsKeepTheirDistance) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const CaseSpec& spec : task().plan(seed, true).cases) {
      if (spec.family == "bad_arguments") continue;
      const Problem p = beam_search::make_problem(spec);
      for (const beam_search::Answer& answer : beam_search::search(p, {})) {
        EXPECT_GE(answer.margin, 2e-5) << format_spec(spec);
      }
    }
  }
}

// Searches of `slow_finish` end when the statement says: any earlier and they find other texts, for
// penalties of every sign.
TEST(BeamSearchGate, WhenASearchEndsMatters) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const CaseSpec& spec : task().plan(seed, true).cases) {
      if (spec.family != "slow_finish") continue;
      EXPECT_TRUE(beam_search::tells_stops_apart(beam_search::make_problem(spec)))
          << format_spec(spec);
    }
  }
}

// The same searches by copying whole texts and sorting whole vocabularies.
TEST(BeamSearchGate, ASecondOracleAgrees) {
  for (const CaseSpec& spec : task().plan(7, true).cases) {
    const Problem p = spec.family == "bad_arguments" ? Problem{} : beam_search::make_problem(spec);
    if (p.vocab > 300 || p.beams > 64) continue;
    SCOPED_TRACE(format_spec(spec));
    const std::vector<beam_search::Answer> answers = beam_search::search(p, {});
    for (size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].nan) continue;
      oracle::BeamProblem o;
      o.vocabulary = p.vocab;
      o.beams = p.beams;
      o.length_penalty = static_cast<double>(p.length_penalty);
      o.max_tokens = p.max_tokens;
      o.eos = p.eos;
      o.logits = [&](const std::vector<std::int32_t>& text, std::span<double> logits) {
        int64_t state = p.start[i];
        for (const std::int32_t token : text)
          state = p.next[static_cast<size_t>(state * p.vocab + token)];
        std::copy_n(p.logits.begin() + state * p.vocab, p.vocab, logits.begin());
      };
      o.allowed = [&](const std::vector<std::int32_t>& text, std::int32_t token) {
        return std::ssize(text) >= p.min_tokens || std::ranges::find(p.eos, token) == p.eos.end();
      };
      const std::vector<oracle::BeamText> second = oracle::BeamReference(o).search().texts;
      ASSERT_EQ(second.size(), answers[i].texts.size());
      for (size_t b = 0; b < second.size(); ++b) {
        EXPECT_EQ(second[b].tokens, answers[i].texts[b].tokens);
        EXPECT_NEAR(second[b].score, answers[i].texts[b].score,
                    1e-9 * std::max(1.0, std::abs(second[b].score)));
      }
    }
  }
}

}  // namespace
}  // namespace touchstone::judge
