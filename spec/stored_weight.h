// A weight matrix as an operand: of a plain dtype random, of a format encoded, and its rows as
// float64.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "spec/operand.h"
#include "touchstone/core/weight_format.h"

namespace touchstone::spec {

struct StoredWeight {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const WeightFormat* format = nullptr;

  bool plain() const { return format->dtype.has_value() && *format->dtype != DType::f8_e4m3; }
  std::int64_t row_bytes() const { return weight_bytes(*format, cols); }

  // Values of scale * N(0, 1).
  Operand operand(double scale) const;
  // The arguments `weight` and `weight_format` of a call.
  ConstTensorView argument(ConstTensorView view) const;
  std::string format_name() const;

  std::vector<double> row(const Reader& reader, std::size_t operand, std::int64_t r) const;

 private:
  void write(std::span<std::byte> bytes, double scale) const;
};

}  // namespace touchstone::spec
