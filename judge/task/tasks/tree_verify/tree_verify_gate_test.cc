// The gate of the task: honest implementations pass every case that can make a verdict, wrong ones do
// not, decisions keep their distance, and the data of every family has what its title says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "judge/task/generate.h"
#include "judge/task/tasks/families_test_support.h"
#include "judge/task/tasks/gate_test_support.h"
#include "judge/task/tasks/registry.h"
#include "judge/task/tasks/tree_verify/tree_verify.h"
#include "oracle/sample.h"
#include "touchstone/core/random.h"

namespace touchstone::judge {
namespace {

using tree_verify::Answer;
using tree_verify::Problem;

enum class Fault {
  none,
  own_row,
  depth_row,
  index_position,
  siblings_attend,
  subtree_kept,
  no_bonus,
  same_uniform,
  same_accept_uniform,
  sibling_history,
  last_duplicate,
  eos_ignored,
  limit_ignored,
  mask_of_node,
  residual_not_taken,
  cache_by_depth,
  half,
};

struct Style {
  bool single = false;  // 32-bit weights and sums
  Fault fault = Fault::none;
};

float stored(const Style& style, double value) {
  const auto narrow = static_cast<float>(value);
  return style.fault == Fault::half ? round_to_bits(narrow, 11) : narrow;
}

// One request, written after the statement and apart from the oracle: rows are found by the path.
class Request {
 public:
  Request(const Style& style, const Problem& problem, size_t request)
      : style_(style), p_(problem), r_(request), first_(problem.first[request]) {}

  // False: NaN.
  bool run() {
    std::vector<int32_t> seen(
        p_.history.begin() + static_cast<std::ptrdiff_t>(r_) * p_.history_tokens,
        p_.history.begin() + static_cast<std::ptrdiff_t>(r_ + 1) * p_.history_tokens);
    int32_t node = -1;
    while (finish == tree_verify::kOpen) {
      if (!step(node, seen)) return false;
      if (finish == tree_verify::kDeadEnd || child_ < 0) break;
      node = child_;
      path.push_back(node);
      if (style_.fault == Fault::sibling_history) {
        for (int32_t i = 0; i < count(); ++i) {
          if (parent(i) == parent(node)) seen.push_back(token(i));
        }
      } else {
        seen.push_back(emitted.back());
      }
    }
    if (style_.fault == Fault::no_bonus && child_ < 0 && !path.empty()) emitted.pop_back();
    return true;
  }

  std::vector<int32_t> path, emitted;
  std::vector<float> scores;
  int32_t finish = tree_verify::kOpen;

 private:
  int32_t count() const { return p_.first[r_ + 1] - first_; }
  int32_t parent(int32_t node) const { return p_.parents[static_cast<size_t>(first_ + node)]; }
  int32_t token(int32_t node) const { return p_.tokens[static_cast<size_t>(first_ + node)]; }

  int64_t row_of(int32_t node) const {
    if (style_.fault == Fault::depth_row && node >= 0) node = static_cast<int32_t>(path.size()) - 1;
    if (style_.fault == Fault::own_row) node = std::min(node + 1, count() - 1);
    return node < 0 ? static_cast<int64_t>(r_) : p_.requests + first_ + node;
  }

  oracle::SampleRow sample_row(int64_t row, const std::vector<int32_t>& seen) const {
    oracle::SampleRow s;
    const auto begin = p_.logits.begin() + row * p_.vocab;
    s.logits.assign(begin, begin + p_.vocab);
    const int64_t mask = style_.fault == Fault::mask_of_node ? static_cast<int64_t>(r_) : row;
    for (int64_t t = 0; t < p_.vocab && p_.mask_words > 0; ++t) {
      const auto word =
          static_cast<uint32_t>(p_.allowed[static_cast<size_t>(mask * p_.mask_words + t / 32)]);
      s.token_mask.push_back((word >> (t % 32) & 1U) != 0);
    }
    s.history.assign(seen.begin(), seen.end());
    s.temperature = static_cast<double>(p_.temperature);
    s.top_k = p_.top_k;
    s.frequency_penalty = static_cast<double>(p_.penalty);
    return s;
  }

  double number(RandomPurpose purpose, uint32_t draw) const {
    const bool stuck = style_.fault == Fault::same_uniform;
    return random_uniform(p_.seeds[r_], p_.lengths[r_] + (stuck ? 0 : std::ssize(path)), purpose,
                          draw);
  }

  static int32_t pick(const std::vector<int64_t>& order, const std::vector<float>& mass, double u) {
    float total = 0, sum = 0;
    for (const int64_t t : order) total += mass[static_cast<size_t>(t)];
    int64_t last = order[0];
    for (const int64_t t : order) {
      if (mass[static_cast<size_t>(t)] == 0) continue;
      sum += mass[static_cast<size_t>(t)];
      last = t;
      if (static_cast<double>(sum) > u * static_cast<double>(total)) break;
    }
    return static_cast<int32_t>(last);
  }

  bool step(int32_t node, const std::vector<int32_t>& seen) {
    child_ = -1;
    const int64_t row = row_of(node);
    const oracle::SampleDistribution d = oracle::sample_distribution(sample_row(row, seen));
    if (d.outcome == oracle::SampleOutcome::has_nan) return false;
    if (d.outcome == oracle::SampleOutcome::all_masked) {
      finish = tree_verify::kDeadEnd;
      return true;
    }
    std::vector<float> mass;
    for (const double p : d.probability) mass.push_back(stored(style_, p));
    std::vector<int32_t> children;
    for (int32_t i = 0; i < count(); ++i) {
      const bool stray = style_.fault == Fault::subtree_kept && node >= 0 && parent(i) >= 0 &&
                         parent(parent(i)) == parent(node);
      if (parent(i) == node || stray) children.push_back(i);
    }
    const int32_t chosen = p_.rule == tree_verify::kRejection ? by_rejection(row, children, mass)
                                                              : own_token(d, children, mass);
    emitted.push_back(chosen);
    const double score = d.log_probability[static_cast<size_t>(chosen)];
    scores.push_back(style_.single || style_.fault == Fault::half ? stored(style_, score)
                                                                  : static_cast<float>(score));
    const bool limited = std::ssize(emitted) >= p_.limits[r_];
    if (chosen == p_.eos && style_.fault != Fault::eos_ignored) {
      finish = tree_verify::kEos;
    } else if (limited && style_.fault != Fault::limit_ignored) {
      finish = tree_verify::kLimit;
    }
    return true;
  }

  int32_t own_token(const oracle::SampleDistribution& d, const std::vector<int32_t>& children,
                    const std::vector<float>& mass) {
    const int32_t chosen = pick(d.drawn, mass, number(RandomPurpose::sample, 0));
    for (const int32_t i : children) {
      if (token(i) != chosen) continue;
      if (child_ < 0 || style_.fault == Fault::last_duplicate) child_ = i;
    }
    return chosen;
  }

  int32_t by_rejection(int64_t row, const std::vector<int32_t>& children, std::vector<float> p) {
    const float* const q = p_.draft.data() + row * p_.vocab;
    for (size_t j = 0; j < children.size(); ++j) {
      const auto x = static_cast<size_t>(token(children[j]));
      const bool stuck = style_.fault == Fault::same_accept_uniform;
      const double u = number(RandomPurpose::accept, stuck ? 0 : static_cast<uint32_t>(j));
      if (u * static_cast<double>(q[x]) < static_cast<double>(p[x])) {
        child_ = children[j];
        return token(children[j]);
      }
      if (style_.fault == Fault::residual_not_taken) continue;
      float sum = 0;
      for (size_t t = 0; t < p.size(); ++t) sum += p[t] = std::max(0.0F, p[t] - q[t]);
      for (float& v : p) v /= sum;
    }
    std::vector<int64_t> order(p.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    return pick(order, p, number(RandomPurpose::residual, 0));
  }

  const Style& style_;
  const Problem& p_;
  size_t r_;
  int32_t first_;
  int32_t child_ = -1;
};

std::vector<Reply> run(const Style& style, const Case& c) {
  Reply reply;
  reply.ending = Ending::refused;
  const Problem p = tree_verify::make_problem(c.spec);
  if (tree_verify::must_be_refused(p)) return {reply};
  const auto requests = static_cast<size_t>(p.requests);
  const auto steps = static_cast<size_t>(p.steps);
  std::vector<int32_t> path(requests * steps, -1), emitted(requests * (steps + 1), -1);
  std::vector<int32_t> accepted(requests), finish(requests);
  std::vector<float> scores(emitted.size());
  std::vector<Answer> answers(requests);
  for (size_t r = 0; r < requests; ++r) {
    Request request(style, p, r);
    if (!request.run()) return {reply};
    std::ranges::copy(request.path, path.begin() + static_cast<std::ptrdiff_t>(r * steps));
    for (size_t d = 0; d < request.emitted.size() && d <= steps; ++d) {
      emitted[r * (steps + 1) + d] = request.emitted[d];
      scores[r * (steps + 1) + d] = request.scores[d];
    }
    accepted[r] = static_cast<int32_t>(request.path.size());
    finish[r] = request.finish;
    answers[r].path = request.path;
    if (style.fault == Fault::cache_by_depth) {
      std::iota(answers[r].path.begin(), answers[r].path.end(), 0);
    }
  }
  std::vector<int32_t> positions = tree_verify::positions_of(p);
  std::vector<int32_t> ancestors = tree_verify::ancestors_of(p);
  for (size_t r = 0; r < requests; ++r) {
    for (int32_t i = p.first[r]; i < p.first[r + 1]; ++i) {
      const auto at = static_cast<size_t>(i);
      if (style.fault == Fault::index_position) positions[at] = p.lengths[r] + i - p.first[r];
      if (style.fault != Fault::siblings_attend) continue;
      for (int32_t s = p.first[r]; s < i; ++s) {
        if (p.parents[static_cast<size_t>(s)] != p.parents[at]) continue;
        const int32_t bit = s - p.first[r];
        ancestors[at * static_cast<size_t>(p.tree_words) + static_cast<size_t>(bit / 32)] |=
            static_cast<int32_t>(1U << (bit % 32));
      }
    }
  }
  reply.ending = Ending::ok;
  reply.outputs = {bytes_of(path),      bytes_of(accepted),
                   bytes_of(emitted),   bytes_of(finish),
                   bytes_of(scores),    bytes_of(positions),
                   bytes_of(ancestors), bytes_of(tree_verify::cache_after(p, answers))};
  return {reply};
}

gate::Contender contender(const Style& style) {
  return [style](const Case& c) { return run(style, c); };
}

const Task& task() { return find_task("tree_verify"); }

// The oracle of `sample` and the library's own random numbers: a second opinion on both.
TEST(TreeVerifyGate, HonestStylesPass) {
  gate::expect_passes(task(), "in double", contender({}), 21);
  gate::expect_passes(task(), "in float", contender({.single = true}), 22);
}

TEST(TreeVerifyGate, PlantedFaultsAreFound) {
  for (int fault = 1; fault <= static_cast<int>(Fault::half); ++fault) {
    gate::expect_found(task(), "fault " + std::to_string(fault),
                       contender({.fault = static_cast<Fault>(fault)}), 3);
  }
}

TEST(TreeVerifyGate, TrivialContendersFailEverywhere) { gate::expect_trivial_fail(task()); }

TEST(TreeVerifyGate, LowerPrecisionFails) { gate::expect_lower_precision_fails(task(), "nominal"); }

TEST(TreeVerifyGate, RelationsHoldAndBite) {
  gate::expect_relations(task(), contender({.single = true}));
}

// No decision of a case hangs on rounding.
TEST(TreeVerifyGate, DecisionsKeepTheirDistance) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const CaseSpec& spec : task().plan(seed, true).cases) {
      const Problem p = tree_verify::make_problem(spec);
      if (tree_verify::must_be_refused(p)) continue;
      for (const Answer& answer : tree_verify::verify(p, {})) {
        for (const tree_verify::Choice& choice : answer.choices) {
          EXPECT_GE(choice.margin, 2e-5) << format_spec(spec);
          EXPECT_TRUE(!choice.tied || spec.family == "ties") << format_spec(spec);
        }
      }
    }
  }
}

using families::at;
using families::between;
using families::Fits;

// A statement about the problem and its answers.
Fits says(const std::function<bool(const Problem&, const std::vector<Answer>&)>& fits) {
  return [=](const Case& c) {
    const Problem p = tree_verify::make_problem(c.spec);
    return !tree_verify::must_be_refused(p) && fits(p, tree_verify::verify(p, {}));
  };
}

int64_t longest(const std::vector<Answer>& answers) {
  int64_t most = 0;
  for (const Answer& a : answers) most = std::max(most, static_cast<int64_t>(a.path.size()));
  return most;
}

bool any_finish(const std::vector<Answer>& answers, int32_t finish) {
  return std::ranges::any_of(answers, [&](const Answer& a) { return a.finish == finish; });
}

// Two nodes of one parent with the same token.
bool has_duplicates(const Problem& p, const std::vector<Answer>&) {
  for (size_t r = 0; r < p.lengths.size(); ++r) {
    for (auto i = static_cast<size_t>(p.first[r]); i < static_cast<size_t>(p.first[r + 1]); ++i) {
      for (size_t j = i + 1; j < static_cast<size_t>(p.first[r + 1]); ++j) {
        if (p.parents[i] == p.parents[j] && p.tokens[i] == p.tokens[j]) return true;
      }
    }
  }
  return p.tokens.size() < 12;
}

bool branches(const Problem& p) {
  const std::vector<int32_t> depth = tree_verify::depths_of(p);
  return p.tokens.size() < 6 || *std::ranges::max_element(depth) < std::ssize(depth);
}

TEST(Families, OfTreeVerify) {
  const Fits any = says([](const Problem&, const auto&) { return true; });
  const Fits branching = says([](const Problem& p, const auto&) { return branches(p); });
  const Fits masked = says([](const Problem& p, const auto&) {
    const auto out = std::ranges::count(p.logits, -std::numeric_limits<float>::infinity());
    return p.logits.size() < 60 || out > 0;
  });
  families::expect_fits(
      "tree_verify",
      {{"nominal", branching},
       {"sizes", any},
       {"no_requests", between("requests", 0, 0)},
       {"empty_tree", between("nodes", 0, 0)},
       {"full_chain", says([](const Problem& p, const auto& a) {
          return p.rule == tree_verify::kRejection || longest(a) == p.steps;
        })},
       {"late_sibling", branching},
       {"duplicates", says(has_duplicates)},
       {"cousins", branching},
       {"wrong_root", says([](const Problem& p, const auto& a) {
          return p.rule == tree_verify::kRejection || p.vocab < 2 || longest(a) == 0;
        })},
       {"alike", says([](const Problem& p, const auto&) {
          const auto row = p.logits.begin();
          return p.requests < 2 || std::equal(row, row + p.vocab, row + p.vocab);
        })},
       {"no_match", says([](const Problem& p, const auto& a) {
          return p.rule == tree_verify::kRejection || longest(a) == 0;
        })},
       {"wide", says([](const Problem& p, const auto&) {
          return std::ranges::count(p.parents, -1) > p.nodes / 2;
        })},
       {"deep", between("nodes", 40, 4096)},
       {"many_nodes", between("nodes", 100, 4096)},
       {"many_requests", between("requests", 40, 4096)},
       {"long_prefix", says([](const Problem& p, const auto&) {
          return *std::ranges::min_element(p.lengths) > 120;
        })},
       {"large", between("vocab", 50000, 1 << 24)},
       {"eos_inside", says([](const Problem& p, const auto& a) {
          return p.rule == tree_verify::kRejection || any_finish(a, tree_verify::kEos);
        })},
       {"limit", says([](const Problem& p, const auto& a) {
          return p.rule == tree_verify::kRejection || any_finish(a, tree_verify::kLimit);
        })},
       {"masked", masked},
       {"dead_end",
        says([](const Problem&, const auto& a) { return any_finish(a, tree_verify::kDeadEnd); })},
       {"penalty", [](const Case& c) { return at(c, "penalty4") != 0; }},
       {"temperature", [](const Case& c) { return at(c, "temp100") > 0; }},
       {"top_k", [](const Case& c) { return at(c, "topk") > 0; }},
       {"rejection", says([](const Problem& p, const auto&) {
          return p.rule == tree_verify::kRejection && std::ranges::count(p.draft, 0.0F) > 0;
        })},
       {"peaked", families::magnitude("logits", 5, 13)},
       {"ties", says([](const Problem& p, const auto&) {
          return std::ranges::all_of(p.logits, [](float v) { return v == std::round(v); });
        })},
       {"large_logits", families::magnitude("logits", 90, 1.1e6)},
       {"common_shift", families::magnitude("logits", 9000, 11000)},
       {"nan", families::has("logits", families::is_nan)},
       {"nan_elsewhere", says([](const Problem& p, const auto& a) {
          const bool none = std::ranges::none_of(a, &Answer::nan);
          return none && (p.nodes < 4 || std::ranges::any_of(p.logits, families::is_nan));
        })},
       {"bad_tree", [](const Case& c) {
          return tree_verify::must_be_refused(tree_verify::make_problem(c.spec));
        }}});
}

}  // namespace
}  // namespace touchstone::judge
