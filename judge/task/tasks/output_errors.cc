#include "judge/task/tasks/output_errors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace touchstone::judge {

OutputErrors::OutputErrors(const Call& call) : outputs_(call.outputs) {
  for (const OutputTensor& output : outputs_) of_.push_back({.output = output.name});
}

void OutputErrors::exact(size_t output, int64_t at, int64_t got, int64_t expected) {
  ++of_[output].count;
  if (got == expected) return;
  different(output, at, static_cast<double>(got), static_cast<double>(expected));
}

void OutputErrors::same_bits(size_t output, int64_t at, float got, float expected) {
  ++of_[output].count;
  if (std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(expected)) return;
  different(output, at, static_cast<double>(got), static_cast<double>(expected));
}

void OutputErrors::different(size_t output, int64_t at, double got, double expected) {
  of_[output].worst = of_[output].worst_bits = std::numeric_limits<double>::infinity();
  outside(output, at, got, expected);
}

void OutputErrors::add_to(Checker& checker, std::initializer_list<size_t> outputs) const {
  for (const size_t output : outputs) checker.add(of_[output], outputs_[output].shape);
}

void OutputErrors::within(size_t output, int64_t at, float got, double expected, double bound) {
  OutputError& e = of_[output];
  ++e.count;
  const double distance = std::abs(static_cast<double>(got) - expected);
  const double ratio = distance == 0 ? 0 : distance / bound;
  if (!(ratio <= e.worst)) e.worst = ratio;
  if (!(distance <= e.worst_absolute)) e.worst_absolute = distance;
  const double bits = std::log2(1 + distance / (kUnit * std::max(std::abs(expected), 1e-3)));
  if (!(bits <= e.worst_bits)) e.worst_bits = bits;
  if (distance <= bound) return;
  outside(output, at, static_cast<double>(got), expected);
}

void OutputErrors::outside(size_t output, int64_t at, double got, double expected) {
  OutputError& e = of_[output];
  if (e.outside++ > 0) return;
  e.first = at;
  e.got = got;
  e.expected = expected;
}

}  // namespace touchstone::judge
