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

namespace touchstone::judge::tree_verify {

enum Rule : int64_t { kOwnToken = 0, kRejection = 1 };

// The arguments of the call.
struct Problem {
  int64_t requests = 0;
  int64_t nodes = 0;
  int64_t vocab = 0;
  int64_t steps = 0;
  int64_t tree_words = 0;
  int64_t mask_words = 0;
  int64_t history_tokens = 0;
  int64_t capacity = 0;
  int64_t width = 0;
  int64_t rule = kOwnToken;
  int64_t top_k = 0;
  int64_t eos = -1;
  float temperature = 0;
  float penalty = 0;
  std::vector<float> logits;     // [requests + nodes, vocab]
  std::vector<float> draft;      // [requests + nodes, vocab], or empty
  std::vector<int32_t> allowed;  // [requests + nodes, mask_words]
  std::vector<int32_t> first;    // [requests + 1]
  std::vector<int32_t> tokens;   // [nodes]
  std::vector<int32_t> parents;  // [nodes]
  std::vector<int32_t> lengths;  // [requests]
  std::vector<int32_t> limits;   // [requests]
  std::vector<int32_t> seeds;    // [requests]
  std::vector<int32_t> history;  // [requests, history_tokens]
  std::vector<float> cache;      // [requests, capacity, width]
};

// The trees are not trees, or a scalar is out of range.
bool must_be_refused(const Problem& problem);

// Far above what 32-bit arithmetic does to the numbers that decide.
inline constexpr double kMargin = 1e-4;

// One row of logits, and what it needs to choose a token.
struct Row {
  std::span<const float> logits;
  std::span<const float> draft;      // empty: rule 0
  std::span<const int32_t> allowed;  // empty: all
  std::vector<int32_t> seen;         // tokens before it, one by one: history and path
  std::vector<int32_t> children;     // their tokens
  int64_t top_k = 0;
  double temperature = 0;
  double penalty = 0;
  uint32_t seed = 0;
  uint32_t position = 0;
};

struct Choice {
  bool nan = false;
  bool dead = false;   // all tokens are excluded
  int32_t token = -1;  // that is emitted
  int64_t child = -1;  // that is accepted, by its index among the children
  double log_probability = 0;
  double error = 0;   // of it in 32-bit arithmetic, in units of roundoff
  bool tied = false;  // two numbers that decide something are equal
  // The smallest distance of two different numbers that decide, relative to what they are.
  double margin = std::numeric_limits<double>::infinity();
};
Choice choose(const Row& row, const Tolerance& tolerance);

double uniform(uint32_t seed, uint32_t position, uint32_t purpose, uint32_t draw);

enum Finish : int32_t { kOpen = 0, kEos = 1, kLimit = 2, kDeadEnd = 3 };

// What the oracle says of one request.
struct Answer {
  std::vector<int32_t> path;  // accepted nodes
  std::vector<int32_t> emitted;
  std::vector<Choice> choices;  // one per emitted token
  std::vector<int64_t> rows;    // of logits that were read
  Finish finish = kOpen;
  bool nan = false;
};
std::vector<Answer> verify(const Problem& problem, const Tolerance& tolerance);

// What follows from the trees alone.
std::vector<int32_t> depths_of(const Problem& problem);
std::vector<int32_t> positions_of(const Problem& problem);
std::vector<int32_t> ancestors_of(const Problem& problem);
std::vector<float> cache_after(const Problem& problem, const std::vector<Answer>& answers);

void check_spec(const CaseSpec& spec);  // InvalidArgument when it is not a case of this task
CaseSpec resolve(const CaseSpec& spec);
// Rows are drawn again until no decision hangs on less than kMargin, exact ties apart.
Problem make_problem(const CaseSpec& spec);
// Where request i of the case after the relation comes from in the case before it; -1: a new one.
std::vector<int64_t> request_order(const CaseSpec& spec, int64_t requests);

struct Shape {
  int64_t requests = 2;
  int64_t nodes = 12;  // of the largest tree
  int64_t vocab = 30;
};
// With other parameters of the case beside it.
std::map<std::string, int64_t> shape(const Shape& s, std::map<std::string, int64_t> more = {});
Plan make_plan(const TaskCard& card, uint64_t seed, bool small);

}  // namespace touchstone::judge::tree_verify
