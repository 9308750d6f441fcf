// What several records say together: the best of each, and an author over all tasks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

// The contender that takes from every criterion the better one.
struct HybridPart {
  std::string dimension;
  std::string from;  // whose; empty where all are level
  double score = 0.0;
  std::string because;  // what it does there
  bool counted = true;  // false: the best contender was not tested in it
};
struct Hybrid {
  std::vector<HybridPart> parts;
  double overall = 0.0;
  std::string best;           // the best contender there is
  double best_overall = 0.0;  // and its score
};
// Of the records of one task that pass; nothing where fewer than two do.
std::optional<Hybrid> hybrid(std::span<const Record> records);
// "A contender with the best of each would score 97; ours has 91."
std::string hybrid_text(const Hybrid& hybrid);

struct AuthorTask {
  std::string task;
  std::string contender;
  Verdict verdict = Verdict::untested;
  std::optional<double> overall;
  int rank = 0;  // 0: not ranked
  int of = 0;    // ranked ones of the task
};
struct AuthorPage {
  std::string author;
  std::vector<AuthorTask> tasks;
  int passed = 0;
  std::optional<double> average;      // of the overall scores there are
  std::vector<std::string> patterns;  // sentences
};
// One page per author that contender.json names, in the order in which they come.
std::vector<AuthorPage> author_pages(const std::vector<Record>& records);
std::string author_text(const AuthorPage& page);

}  // namespace touchstone::judge
