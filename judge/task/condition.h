// Statements about the parameters of cases: what a card says about the features a contender may
// lack, and what a report says about where a contender fails.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "judge/task/case.h"

namespace touchstone::judge {

// "group > 1", "causal = 1 and queries != keys", "vocab % 4 != 0", "batch = 0 or keys = 0",
// "family = masked | few_left", "scale2 given". A comparison with a parameter that the case does not
// have is false.
class Condition {
 public:
  static Condition parse(const std::string& text);  // InvalidArgument says what is wrong
  bool holds(const CaseSpec& spec) const;
  const std::string& text() const { return text_; }
  bool empty() const { return text_.empty(); }
  bool names(const std::string& word) const;  // a parameter or a family of it

 private:
  struct Clause {
    std::string name;
    int64_t modulus = 0;  // 0: none
    std::string comparison;
    std::variant<int64_t, std::string> value;
    std::vector<std::string> families;
  };
  static Clause parse_clause(const std::string& text);
  static bool holds(const Clause& clause, const CaseSpec& spec);

  std::string text_;
  std::vector<std::vector<Clause>> any_;  // one group of all must hold
};

// One case, and whether it failed.
struct Observation {
  CaseSpec spec;
  bool failed = false;
};

struct Diagnosis {
  std::string where;  // the condition
  int failed = 0;     // of the cases where it holds,
  int cases = 0;      // which are this many
  int elsewhere = 0;  // failures where it does not hold

  // "fails exactly where group > 1: 76 of 76"
  std::string sentence(const std::string& verb = "fails") const;
};

// The simplest condition that holds for all cases that failed and for no other; else the one that
// holds for most of them and for no other. `known` are tried first: they have names. Nothing where
// fewer than three cases failed, or all did, or no condition tells them apart.
std::optional<Diagnosis> diagnose(std::span<const Observation> observations,
                                  std::span<const Condition> known);

}  // namespace touchstone::judge
