#include "spec/stored_weight.h"

#include <algorithm>
#include <random>

#include "core/index.h"

namespace touchstone::spec {
namespace {

// Distinct rows of encoded weights; the others repeat them.
constexpr std::int64_t kDistinctRows = 67;

}  // namespace

Operand StoredWeight::operand(double scale) const {
  if (plain()) {
    return {.name = "weight",
            .dtype = *format->dtype,
            .shape = {rows, cols},
            .scale = scale,
            .strided = true};
  }
  return {.name = "weight",
          .dtype = DType::u8,
          .shape = {rows, row_bytes()},
          .write = [p = *this, scale](std::span<std::byte> bytes) { p.write(bytes, scale); }};
}

ConstTensorView StoredWeight::argument(ConstTensorView view) const {
  if (format->dtype == DType::f8_e4m3) view.dtype = DType::f8_e4m3;
  return view;
}

std::string StoredWeight::format_name() const {
  return format->dtype.has_value() ? "" : std::string(format->name);
}

std::vector<double> StoredWeight::row(const Reader& reader, std::size_t operand,
                                      std::int64_t r) const {
  if (plain()) return reader.row(operand, r);
  const std::vector<std::byte> bytes = reader.bytes(operand, r * row_bytes(), row_bytes());
  std::vector<float> values(at(cols));
  decode_weights(*format, bytes, values);
  return {values.begin(), values.end()};
}

void StoredWeight::write(std::span<std::byte> bytes, double scale) const {
  std::mt19937 engine(11);
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  const auto row = static_cast<std::size_t>(row_bytes());
  const std::size_t distinct = std::min(bytes.size(), at(kDistinctRows) * row);
  std::vector<float> values(at(cols));
  for (std::size_t first = 0; first < distinct; first += row) {
    if (format->encode == nullptr) {  // fp8: any code but NaN
      for (std::size_t i = first; i < first + row; ++i) {
        bytes[i] = static_cast<std::byte>(engine() % 2 * 128 + engine() % 96);
      }
      continue;
    }
    for (float& value : values) value = normal(engine);
    encode_weights(*format, values, bytes.subspan(first, row));
  }
  for (std::size_t i = distinct; i < bytes.size(); ++i) bytes[i] = bytes[i - distinct];
}

}  // namespace touchstone::spec
