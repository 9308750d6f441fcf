// The parts of the task: what a case consists of, and what the oracle says of it.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/task.h"

namespace touchstone::judge::beam_search {

struct Problem {
  int64_t prompts = 0;
  int64_t states = 0;
  int64_t vocab = 0;
  int64_t beams = 0;
  int64_t max_tokens = 0;
  int64_t min_tokens = 0;
  float length_penalty = 0;
  std::vector<float> logits;           // [states, vocab]
  std::vector<int32_t> next;           // [states, vocab]
  std::vector<int32_t> start;          // [prompts]
  std::vector<int32_t> prompt_tokens;  // [prompts]
  std::vector<int32_t> eos;
};

void check_spec(const CaseSpec& spec);  // InvalidArgument when it is not a case of this task
CaseSpec resolve(const CaseSpec& spec);
// Drawn again until no decision of the search hangs on less than kMargin, exact ties apart.
Problem make_problem(const CaseSpec& spec);
// Where prompt i of the case after the relation comes from in the case before it; -1: a new one.
std::vector<int64_t> prompt_order(const CaseSpec& spec, int64_t prompts);

struct Shape {
  int64_t prompts = 1;
  int64_t width = 4;  // states of a layer
  int64_t vocab = 1;
  int64_t beams = 1;
  int64_t tokens = 1;
};
// With other parameters of the case beside it.
std::map<std::string, int64_t> shape(const Shape& s, std::map<std::string, int64_t> more = {});
Plan make_plan(const TaskCard& card, uint64_t seed, bool small);
// Whether the case of this seed names one of several ending tokens twice.
inline bool lists_one_twice(uint64_t seed) { return seed % 2 == 0; }

// Far above what 32-bit arithmetic does to the sums of a case.
inline constexpr double kMargin = 1e-4;

enum Finish : int32_t { kNothing = 0, kEos = 1, kLength = 2 };

struct Text {
  std::vector<int32_t> tokens;
  double log_probability = 0;
  double score = 0;
  double error = 0;  // of the log-probability in 32-bit arithmetic, in units of roundoff
  Finish finish = kNothing;
};

struct Answer {
  std::vector<Text> texts;  // best first
  bool tied = false;        // two numbers that decide something are equal
  bool nan = false;         // a row that the search reads has a NaN
  // The smallest distance of two different numbers whose order decides who runs on or stays.
  double margin = std::numeric_limits<double>::infinity();
  int64_t rows = 0;              // of logits that were looked at, again where beams share a state
  std::vector<int32_t> visited;  // states, each once
};

// When a search ends: by the statement, or too early. Reach computed at the length so far or at the
// longest, whatever the sign of the penalty; that of the worst running beam; against the best text.
enum class Stop { right, at_current, at_longest, of_worst, against_best };

// The answer for each prompt.
std::vector<Answer> search(const Problem& problem, const Tolerance& tolerance,
                           Stop rule = Stop::right);
// Whether every rule that is not the statement's finds other texts for some prompt.
bool tells_stops_apart(const Problem& problem);

}  // namespace touchstone::judge::beam_search
