#include "judge/task/condition.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// Fewer failures fit too many conditions to name one.
constexpr int kMinFailures = 3;
// What a condition has to explain where others failed as well.
constexpr double kMinShare = 0.6;

std::vector<std::string> split(const std::string& text, const std::string& between) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t at; (at = text.find(between, begin)) != std::string::npos;
       begin = at + between.size()) {
    parts.push_back(text.substr(begin, at - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (std::string& word : split(text, " ")) {
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

std::optional<int64_t> number_in(const std::string& word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

bool compare(int64_t left, const std::string& comparison, int64_t right) {
  if (comparison == "=") return left == right;
  if (comparison == "!=") return left != right;
  if (comparison == "<") return left < right;
  if (comparison == ">") return left > right;
  if (comparison == "<=") return left <= right;
  return left >= right;
}

constexpr std::array<std::string_view, 6> kComparisons = {"=", "!=", "<", ">", "<=", ">="};

std::optional<int64_t> value_in(const CaseSpec& spec, const std::string& name) {
  const auto found = spec.parameters.find(name);
  if (found == spec.parameters.end()) return std::nullopt;
  return found->second;
}

}  // namespace

Condition::Clause Condition::parse_clause(const std::string& text) {
  std::vector<std::string> words = words_of(text);
  const auto wrong = [&] {
    throw InvalidArgument(fmt::format("condition: '{}': expected name = number", text));
  };
  if (words.size() < 2) wrong();
  Clause clause;
  clause.name = words[0];
  if (words.size() == 2 && words[1] == "given") {
    clause.comparison = "given";
    return clause;
  }
  if (words[1] == "%") {
    if (words.size() != 5 || number_in(words[2]).value_or(0) < 1) wrong();
    clause.modulus = *number_in(words[2]);
    words.erase(words.begin() + 1, words.begin() + 3);
  }
  clause.comparison = words[1];
  if (std::ranges::find(kComparisons, clause.comparison) == kComparisons.end()) wrong();
  if (clause.name == "family") {
    if (clause.comparison != "=") wrong();
    for (std::size_t i = 2; i < words.size(); i += 2) {
      clause.families.push_back(words[i]);
      if (i + 1 < words.size() && words[i + 1] != "|") wrong();
    }
    if (clause.families.empty()) wrong();
    return clause;
  }
  if (words.size() != 3) wrong();
  if (const std::optional<int64_t> number = number_in(words[2])) {
    clause.value = *number;
  } else {
    clause.value = words[2];
  }
  return clause;
}

Condition Condition::parse(const std::string& text) {
  Condition condition;
  condition.text_ = text;
  for (const std::string& group : split(text, " or ")) {
    std::vector<Clause>& all = condition.any_.emplace_back();
    for (const std::string& clause : split(group, " and ")) all.push_back(parse_clause(clause));
  }
  return condition;
}

bool Condition::holds(const Clause& clause, const CaseSpec& spec) {
  if (!clause.families.empty()) {
    return std::ranges::find(clause.families, spec.family) != clause.families.end();
  }
  std::optional<int64_t> left = value_in(spec, clause.name);
  if (!left.has_value()) return false;
  if (clause.comparison == "given") return true;
  if (clause.modulus > 0) left = *left % clause.modulus;
  if (const auto* name = std::get_if<std::string>(&clause.value)) {
    const std::optional<int64_t> right = value_in(spec, *name);
    return right.has_value() && compare(*left, clause.comparison, *right);
  }
  return compare(*left, clause.comparison, std::get<int64_t>(clause.value));
}

bool Condition::holds(const CaseSpec& spec) const {
  return std::ranges::any_of(any_, [&](const std::vector<Clause>& all) {
    return std::ranges::all_of(all, [&](const Clause& clause) { return holds(clause, spec); });
  });
}

bool Condition::names(const std::string& word) const {
  return std::ranges::any_of(any_, [&](const std::vector<Clause>& all) {
    return std::ranges::any_of(all, [&](const Clause& clause) {
      return clause.name == word ||
             std::ranges::find(clause.families, word) != clause.families.end();
    });
  });
}

namespace {

// A condition with the cases it holds for.
struct Fit {
  std::string text;
  std::vector<bool> holds;
  int failed = 0;
  int passed = 0;
};

class Search {
 public:
  explicit Search(std::span<const Observation> observations) : observations_(observations) {
    for (const Observation& o : observations_) failures_ += o.failed ? 1 : 0;
  }

  void propose(const Condition& condition) {
    Fit fit{condition.text(), {}, 0, 0};
    for (const Observation& o : observations_) {
      const bool holds = condition.holds(o.spec);
      fit.holds.push_back(holds);
      if (holds) ++(o.failed ? fit.failed : fit.passed);
    }
    if (fit.failed > 0 && fit.passed + fit.failed < static_cast<int>(observations_.size())) {
      fits_.push_back(std::move(fit));
    }
  }

  // Borders between the values that passed and those that failed, remainders and pairs.
  void propose_parameters() {
    std::map<std::string, std::pair<std::set<int64_t>, std::set<int64_t>>> values;
    std::set<std::string> families;
    for (const Observation& o : observations_) {
      if (o.failed) families.insert(o.spec.family);
      for (const auto& [name, value] : o.spec.parameters) {
        auto& [failed, passed] = values[name];
        (o.failed ? failed : passed).insert(value);
      }
    }
    for (const auto& [name, seen] : values) propose_borders(name, seen.first, seen.second);
    for (const auto& [name, seen] : values) {
      for (const int64_t modulus : {2, 4, 8, 16, 32, 64, 128}) {
        propose(Condition::parse(fmt::format("{} % {} != 0", name, modulus)));
      }
      for (const auto& [other, ignored] : values) {
        for (const char* comparison : {"!=", "=", ">"}) {
          if (name == other || (*comparison != '>' && name > other)) continue;
          propose(Condition::parse(fmt::format("{} {} {}", name, comparison, other)));
        }
      }
    }
    if (families.size() <= 3) {
      propose(Condition::parse(fmt::format("family = {}", fmt::join(families, " | "))));
    }
  }

  // Pairs that hold together, where none alone is exact.
  void propose_pairs() {
    const std::size_t count = fits_.size();
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = i + 1; k < count; ++k) {
        if (fits_[i].failed != failures_ || fits_[k].failed != failures_) continue;
        Fit both{fmt::format("{} and {}", fits_[i].text, fits_[k].text), {}, 0, 0};
        if (both.text.find(" or ") != std::string::npos) continue;
        for (std::size_t o = 0; o < observations_.size(); ++o) {
          both.holds.push_back(fits_[i].holds[o] && fits_[k].holds[o]);
          if (both.holds[o]) ++(observations_[o].failed ? both.failed : both.passed);
        }
        if (both.passed == 0) fits_.push_back(std::move(both));
      }
    }
  }

  std::optional<Diagnosis> exact() const {
    for (const Fit& fit : fits_) {
      if (fit.passed == 0 && fit.failed == failures_) return of(fit);
    }
    return std::nullopt;
  }

  std::optional<Diagnosis> nearest() const {
    const Fit* best = nullptr;
    for (const Fit& fit : fits_) {
      if (fit.passed != 0 || fit.failed < kMinShare * failures_) continue;
      if (best == nullptr || fit.failed > best->failed) best = &fit;
    }
    if (best == nullptr) return std::nullopt;
    return of(*best);
  }

  int failures() const { return failures_; }

 private:
  void propose_borders(const std::string& name, const std::set<int64_t>& failed,
                       const std::set<int64_t>& passed) {
    if (failed.empty() || passed.empty()) return;
    if (*failed.begin() > *passed.rbegin()) {
      propose(Condition::parse(fmt::format("{} > {}", name, *passed.rbegin())));
    } else if (*failed.rbegin() < *passed.begin()) {
      propose(Condition::parse(fmt::format("{} < {}", name, *passed.begin())));
    }
    // No border between the two, but one that all failures lie beyond.
    const auto below = passed.lower_bound(*failed.begin());
    if (below != passed.begin()) {
      propose(Condition::parse(fmt::format("{} > {}", name, *std::prev(below))));
    }
    const auto above = passed.upper_bound(*failed.rbegin());
    if (above != passed.end()) {
      propose(Condition::parse(fmt::format("{} < {}", name, *above)));
    }
    for (const int64_t least : {1, 32, 64, 128, 256, 1024}) {
      propose(Condition::parse(fmt::format("{} > {}", name, least)));
    }
    if (failed.size() == 1) {
      propose(Condition::parse(fmt::format("{} = {}", name, *failed.begin())));
    }
    if (passed.size() == 1) {
      propose(Condition::parse(fmt::format("{} != {}", name, *passed.begin())));
    }
    // Above everything that passed there are failures.
    if (*failed.rbegin() > *passed.rbegin()) {
      propose(Condition::parse(fmt::format("{} > {}", name, *passed.rbegin())));
    }
  }

  Diagnosis of(const Fit& fit) const {
    return {fit.text, fit.failed, fit.failed + fit.passed, failures_ - fit.failed};
  }

  std::span<const Observation> observations_;
  int failures_ = 0;
  std::vector<Fit> fits_;
};

}  // namespace

std::string Diagnosis::sentence(const std::string& verb) const {
  if (elsewhere == 0)
    return fmt::format("{} exactly where {}: {} of {}", verb, where, failed, cases);
  return fmt::format("{} wherever {} ({} of {}) and in {} other case{}", verb, where, failed, cases,
                     elsewhere, elsewhere == 1 ? "" : "s");
}

std::optional<Diagnosis> diagnose(std::span<const Observation> observations,
                                  std::span<const Condition> known) {
  Search search(observations);
  const auto count = static_cast<int>(observations.size());
  if (search.failures() < kMinFailures || search.failures() == count) return std::nullopt;
  for (const Condition& condition : known) {
    if (!condition.empty()) search.propose(condition);
  }
  search.propose_parameters();
  if (const auto found = search.exact()) return found;
  search.propose_pairs();
  if (const auto found = search.exact()) return found;
  return search.nearest();
}

}  // namespace touchstone::judge
