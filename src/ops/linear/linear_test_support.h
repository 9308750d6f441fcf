// Problems of linear for tests: random operands on the test device, calls, rows as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/guarded.h"
#include "tests/support/runners.h"
#include "touchstone/ops/linear.h"

namespace touchstone::test {

// W of a format, random.
class TestWeight {
 public:
  TestWeight(const WeightFormat& format, std::int64_t out, std::int64_t in, std::uint64_t seed);

  ConstTensorView view() const;
  // What LinearArgs::weight_format says.
  std::string format() const;

 private:
  const WeightFormat* format_;
  Guarded memory_;
};

// Rows [first, first + rows) of an endless random matrix: a row is the same wherever it lies.
std::vector<double> random_rows(std::int64_t first, std::int64_t rows, std::int64_t cols,
                                std::uint64_t seed);

// The bytes of row r.
std::vector<std::byte> row_bytes(const Guarded& matrix, std::int64_t r);

// Names of the implementations that accept the call.
template <class Args>
std::vector<std::string> accepting(const Args& args) {
  Runner runner({.device = test_device(), .threads = 1});
  std::vector<std::string> names;
  for (const ImplementationReport& report : explain(runner, args)) {
    if (report.accepted) names.push_back(report.name);
  }
  return names;
}

}  // namespace touchstone::test
