#include "ops/linear/linear_test_support.h"

#include <algorithm>

#include "core/index.h"
#include "tests/support/random.h"

namespace touchstone::test {
namespace {

// The stored bytes as numbers of a u8 tensor.
std::vector<double> encoded(const WeightFormat& format, const std::vector<double>& values) {
  const std::vector<float> floats(values.begin(), values.end());
  std::vector<std::byte> bytes(at(weight_bytes(format, static_cast<std::int64_t>(values.size()))));
  if (format.encode != nullptr) {
    encode_weights(format, floats, bytes);
  } else {  // fp8: codes of numbers up to 1 or so
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const double code = std::min(56.0, 40 * std::abs(values[i]));
      bytes[i] = static_cast<std::byte>(static_cast<int>(code) + (values[i] < 0 ? 128 : 0));
    }
  }
  std::vector<double> numbers;
  for (const std::byte byte : bytes) numbers.push_back(static_cast<double>(byte));
  return numbers;
}

}  // namespace

TestWeight::TestWeight(const WeightFormat& format, std::int64_t out, std::int64_t in,
                       std::uint64_t seed)
    : format_(&format) {
  const std::vector<double> values = random_values({.scale = 0.3}, out * in, seed);
  if (format.dtype.has_value() && *format.dtype != DType::f8_e4m3) {
    memory_ = Guarded(test_device(), *format.dtype, {out, in}, values);
  } else {
    memory_ =
        Guarded(test_device(), DType::u8, {out, weight_bytes(format, in)}, encoded(format, values));
  }
}

ConstTensorView TestWeight::view() const {
  ConstTensorView view = memory_;
  if (format_->dtype.has_value()) view.dtype = *format_->dtype;
  return view;
}

std::string TestWeight::format() const {
  return format_->dtype.has_value() ? "" : std::string(format_->name);
}

std::vector<double> random_rows(std::int64_t first, std::int64_t rows, std::int64_t cols,
                                std::uint64_t seed) {
  const Random random(seed);
  std::vector<double> values(at(rows * cols));
  for (std::int64_t i = 0; i < rows * cols; ++i) values[at(i)] = random.normal(first * cols + i);
  return values;
}

std::vector<std::byte> row_bytes(const Guarded& matrix, std::int64_t r) {
  const std::vector<std::byte> all = matrix.bytes();
  const auto row = static_cast<std::ptrdiff_t>(all.size()) / matrix.view().shape[0];
  return {all.begin() + r * row, all.begin() + (r + 1) * row};
}

}  // namespace touchstone::test
