// What is wrong with the outputs of a case, gathered element by element: for tasks whose outputs are
// discrete answers beside a few numbers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "judge/task/compare.h"

namespace touchstone::judge {

class OutputErrors {
 public:
  explicit OutputErrors(const Call& call);

  // `output` is its index in the call; `at` the flat index of the element.
  void exact(size_t output, int64_t at, int64_t got, int64_t expected);
  void same_bits(size_t output, int64_t at, float got, float expected);
  void within(size_t output, int64_t at, float got, double expected, double bound);
  // To the checker, in this order: the first complaint becomes the reason.
  void add_to(Checker& checker, std::initializer_list<size_t> outputs) const;

 private:
  void different(size_t output, int64_t at, double got, double expected);
  void outside(size_t output, int64_t at, double got, double expected);

  std::vector<OutputTensor> outputs_;
  std::vector<OutputError> of_;
};

}  // namespace touchstone::judge
