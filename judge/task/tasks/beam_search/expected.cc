// The search in float64, by the statement of the task.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "judge/task/tasks/beam_search/beam_search.h"

namespace touchstone::judge::beam_search {
namespace {

struct Beam {
  std::vector<int32_t> tokens;
  int32_t state = 0;
  double log_probability = 0;
  double error = 0;
};

struct Candidate {
  size_t parent;
  int32_t token;
  double log_probability;
  double error;
  bool ends;
};

class Search {
 public:
  Search(const Problem& problem, const Tolerance& tolerance, Stop rule)
      : p_(problem),
        t_(tolerance),
        rule_(rule),
        rows_(static_cast<size_t>(problem.states)),
        ends_(static_cast<size_t>(problem.vocab)) {
    for (const int32_t token : p_.eos) ends_[static_cast<size_t>(token)] = true;
  }

  Answer run(int64_t prompt) {
    answer_ = {};
    visited_.clear();
    running_ = {{{}, p_.start[static_cast<size_t>(prompt)], 0, 0}};
    for (int64_t g = 1; g <= p_.max_tokens && !running_.empty(); ++g) {
      const std::vector<Candidate> candidates = expand(g);
      if (answer_.nan) break;
      choose(candidates, g);
      if (stops(g)) break;
    }
    for (size_t i = 1; i < answer_.texts.size(); ++i) {
      answer_.tied = answer_.tied || answer_.texts[i - 1].score == answer_.texts[i].score;
    }
    answer_.visited.assign(visited_.begin(), visited_.end());
    return std::move(answer_);
  }

 private:
  void decides(double a, double b) {
    if (a == b) {
      answer_.tied = true;
    } else {
      answer_.margin = std::min(answer_.margin, std::abs(a - b));
    }
  }
  // Scores in units of the sums that they are made of.
  void decides_scores(double a, int64_t length, double b, int64_t other) {
    const auto alpha = static_cast<double>(p_.length_penalty);
    const double unit = std::min(std::pow(static_cast<double>(length), alpha),
                                 std::pow(static_cast<double>(other), alpha));
    if (a == b) {
      answer_.tied = true;
    } else {
      answer_.margin = std::min(answer_.margin, std::abs(a - b) * unit);
    }
  }
  double score_of(double log_probability, int64_t length) const {
    return log_probability /
           std::pow(static_cast<double>(length), static_cast<double>(p_.length_penalty));
  }

  // A row of logits, once per state.
  struct Row {
    bool known = false;
    bool nan = false;
    double largest = 0;
    double logarithm = 0;  // of the sum, relative to the largest
    double units = 0;      // what the sum may cost
  };
  const Row& row_of(int32_t state) {
    Row& row = rows_[static_cast<size_t>(state)];
    if (row.known) return row;
    row.known = true;
    const std::span<const float> values = logits_of(state);
    row.nan = std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); });
    row.largest = static_cast<double>(*std::max_element(values.begin(), values.end()));
    if (row.nan || std::isinf(row.largest)) return row;
    std::vector<double> terms;
    terms.reserve(values.size());
    double sum = 0;
    for (const float v : values) {
      terms.push_back(std::exp(static_cast<double>(v) - row.largest));
      sum += terms.back();
    }
    row.logarithm = std::log(sum);
    row.units = running_sum_units(t_, terms, sum);
    return row;
  }
  std::span<const float> logits_of(int32_t state) const {
    const auto vocab = static_cast<size_t>(p_.vocab);
    return std::span(p_.logits).subspan(static_cast<size_t>(state) * vocab, vocab);
  }

  // The best continuations in order, as many as can matter; equal ones by parent, then by token.
  std::vector<Candidate> expand(int64_t g) {
    std::vector<Candidate> all;
    for (size_t b = 0; b < running_.size(); ++b) {
      const Beam& beam = running_[b];
      const Row& row = row_of(beam.state);
      visited_.insert(beam.state);
      ++answer_.rows;
      answer_.nan = answer_.nan || row.nan;
      if (answer_.nan) return all;
      if (std::isinf(row.largest)) continue;
      // Sum, its logarithm, differences, the value, and adding it to what was there.
      const double common = 4 + row.units + row.logarithm + (t_.stable ? 0 : std::abs(row.largest));
      const std::span<const float> values = logits_of(beam.state);
      for (size_t v = 0; v < values.size(); ++v) {
        const auto token = static_cast<int32_t>(v);
        const bool ends = ends_[v];
        if (std::isinf(values[v]) || (ends && g <= p_.min_tokens)) continue;
        const double below = row.largest - static_cast<double>(values[v]);
        const double value = -below - row.logarithm;
        const double total = beam.log_probability + value;
        all.push_back({b, token, total,
                       beam.error + common + below + std::abs(value) + std::abs(total), ends});
      }
    }
    const auto most = std::min(all.size(), static_cast<size_t>(p_.beams) * (2 + p_.eos.size()) + 2);
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(most), all.end(),
                      [](const Candidate& a, const Candidate& b) {
                        if (a.log_probability != b.log_probability) {
                          return a.log_probability > b.log_probability;
                        }
                        return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
                      });
    all.resize(most);
    return all;
  }

  void choose(const std::vector<Candidate>& candidates, int64_t g) {
    const auto k = static_cast<size_t>(p_.beams);
    const bool last = g == p_.max_tokens;
    std::vector<Beam> next;
    const Candidate* worst = nullptr;  // that runs on
    for (size_t rank = 0; rank < candidates.size(); ++rank) {
      const Candidate& c = candidates[rank];
      if (rank >= k && (last || (next.size() == k && !c.ends))) {
        // The first that does not run on, or is not looked at.
        decides(c.log_probability,
                (worst != nullptr && !last ? *worst : candidates[k - 1]).log_probability);
        break;
      }
      if (rank == k && (c.ends || candidates[k - 1].ends)) {
        decides(c.log_probability, candidates[k - 1].log_probability);
      }
      Beam beam = running_[c.parent];
      const auto from = static_cast<size_t>(beam.state * p_.vocab + c.token);
      beam.tokens.push_back(c.token);
      beam.state = p_.next[from];
      beam.log_probability = c.log_probability;
      beam.error = c.error;
      if (c.ends || last) {
        if (rank < k) finish(beam, g, c.ends ? kEos : kLength);
      } else if (next.size() < k) {
        next.push_back(std::move(beam));
        worst = &c;
      }
    }
    running_ = std::move(next);
    if (last) running_.clear();
  }

  void finish(const Beam& beam, int64_t g, Finish how) {
    std::vector<Text>& pool = answer_.texts;
    const double score = score_of(beam.log_probability, g);
    const auto after = std::find_if(pool.begin(), pool.end(),
                                    [&](const Text& other) { return other.score < score; });
    pool.insert(after, {beam.tokens, beam.log_probability, score, beam.error, how});
    if (pool.size() <= static_cast<size_t>(p_.beams)) return;
    const Text& kept = pool[pool.size() - 2];
    decides_scores(kept.score, std::ssize(kept.tokens), pool.back().score,
                   std::ssize(pool.back().tokens));
    pool.pop_back();
  }

  bool stops(int64_t g) {
    if (running_.empty()) return true;
    if (answer_.texts.size() < static_cast<size_t>(p_.beams)) return false;
    const bool longest =
        rule_ == Stop::at_longest || (p_.length_penalty > 0 && rule_ != Stop::at_current);
    const int64_t length = longest ? p_.max_tokens : g;
    const Beam& beam = rule_ == Stop::of_worst ? running_.back() : running_.front();
    const double reach = score_of(beam.log_probability, length);
    const Text& text = rule_ == Stop::against_best ? answer_.texts.front() : answer_.texts.back();
    decides_scores(reach, length, text.score, std::ssize(text.tokens));
    return reach <= text.score;
  }

  const Problem& p_;
  const Tolerance& t_;
  Stop rule_;
  std::vector<Row> rows_;
  std::vector<bool> ends_;  // by token
  Answer answer_;
  std::vector<Beam> running_;
  std::set<int32_t> visited_;
};

}  // namespace

std::vector<Answer> search(const Problem& problem, const Tolerance& tolerance, Stop rule) {
  Search one(problem, tolerance, rule);
  std::vector<Answer> answers;
  for (size_t i = 0; i < problem.start.size(); ++i) {
    answers.push_back(one.run(static_cast<int64_t>(i)));
  }
  return answers;
}

bool tells_stops_apart(const Problem& problem) {
  const auto texts_of = [&](Stop rule) {
    std::vector<std::vector<std::vector<int32_t>>> texts;
    for (const Answer& answer : search(problem, {}, rule)) {
      texts.emplace_back();
      for (const Text& text : answer.texts) texts.back().push_back(text.tokens);
    }
    return texts;
  };
  const auto right = texts_of(Stop::right);
  // Of the two lengths one is right.
  const Stop other = problem.length_penalty > 0 ? Stop::at_current : Stop::at_longest;
  const bool matters = problem.length_penalty != 0;
  return (!matters || texts_of(other) != right) && texts_of(Stop::of_worst) != right &&
         texts_of(Stop::against_best) != right;
}

}  // namespace touchstone::judge::beam_search
