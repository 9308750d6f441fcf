// What is wrong with the outputs of a case, gathered element by element: for tasks whose outputs are
// discrete answers beside a few numbers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "judge/task/compare.h"

namespace touchstone::judge {

class OutputErrors {
 public:
  explicit OutputErrors(std::initializer_list<const char*> names);

  // `output` is the index of its name; `at` the flat index of the element.
  void exact(size_t output, int64_t at, int64_t got, int64_t expected);
  void same_bits(size_t output, int64_t at, float got, float expected);
  void within(size_t output, int64_t at, float got, double expected, double bound);
  const OutputError& of(size_t output) const { return of_[output]; }

 private:
  void outside(size_t output, int64_t at, double got, double expected);

  std::vector<OutputError> of_;
};

}  // namespace touchstone::judge
