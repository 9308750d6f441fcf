// The parts of the task: what a case consists of, and what the oracle says of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/task.h"

namespace touchstone::judge::ternary_linear {

struct Problem {
  int64_t rows = 0;
  int64_t outputs = 1;
  int64_t inputs = 1;
  int64_t group = 128;  // 0: a row
  bool absmax = false;
  bool int8 = false;
  bool garbage = false;       // in the unused bits of packed weights that are given
  std::vector<float> weight;  // [outputs, inputs]
  std::vector<float> x;       // [rows, inputs]
  std::vector<float> dy;      // [rows, outputs]

  int64_t group_size() const { return group <= 0 ? inputs : group; }
  int64_t groups() const { return (inputs + group_size() - 1) / group_size(); }
  int64_t words() const { return (inputs + 15) / 16; }
};

struct Projected {
  std::vector<int32_t> codes;   // [outputs, inputs]
  std::vector<int32_t> packed;  // [outputs, words], unused bits 0
  std::vector<float> scales;    // [outputs, groups], as they are stored
};

bool must_be_refused(const Problem& problem);  // by the projection
Projected project(const Problem& problem);
// The scale of a group before it is rounded, and as it is stored.
double scale_of(std::span<const float> group, bool absmax);
float stored_scale(double scale);
// Codes of packed words; what a code of 3 stands for is 2.
std::vector<int32_t> unpacked(const Problem& problem, std::span<const int32_t> packed);
// The activations that the product sees, in float64.
std::vector<double> activations(const Problem& problem);

struct Answer {
  Projected projected;
  Expected y, dx, dweight;
};
// `given` are the packed weights and scales of the calls that multiply.
Answer expected_answer(const Problem& problem, const Projected& given, const Tolerance& tolerance,
                       bool exact);

void check_spec(const CaseSpec& spec);  // InvalidArgument when it is not a case of this task
CaseSpec resolve(const CaseSpec& spec);
bool is_exact(const std::string& family);  // every product and sum is a float
Problem make_problem(const CaseSpec& spec);
// Where row i of the case after the relation comes from in the case before it; -1: a new one.
std::vector<int64_t> row_order(const CaseSpec& spec, int64_t rows);

struct Shape {
  int64_t rows = 3;
  int64_t outputs = 8;
  int64_t inputs = 200;
  int64_t group = 64;
};
// With other parameters of the case beside it.
std::map<std::string, int64_t> shape(const Shape& s, std::map<std::string, int64_t> more = {});
Plan make_plan(const TaskCard& card, uint64_t seed, bool small);

}  // namespace touchstone::judge::ternary_linear
