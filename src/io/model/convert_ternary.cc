#include "io/model/convert_ternary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cpu/ternary_codec.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {

namespace {

// From here on f16 rounds to infinity, and a stored scale becomes its largest number instead.
constexpr double kBeyondF16 = 65520;

void check_scales(const std::string& tensor, const WeightFormat& format, std::int64_t columns,
                  std::int64_t first, std::span<const float> values, TernaryScaleRule rule) {
  const auto size = static_cast<std::size_t>(format.block_elements);
  const auto beyond = [](float value) {
    return static_cast<double>(std::abs(value)) >= kBeyondF16;
  };
  if (std::ranges::none_of(values, beyond)) return;  // a scale is at most the largest magnitude
  for (std::size_t begin = 0; begin < values.size(); begin += size) {
    const double scale = ternary_scale(rule, values.subspan(begin, size));
    if (scale < kBeyondF16) continue;
    const auto at = static_cast<std::int64_t>(begin);
    throw InvalidArgument(
        fmt::format("convert: tensor '{}': row {}, column {}: a scale of {:g} is beyond f16, in "
                    "which {} has it",
                    tensor, first + at / columns, at % columns, scale, format.name));
  }
}

}  // namespace

void encode_ternary_rows(const std::string& tensor, const WeightFormat& format,
                         std::int64_t columns, std::int64_t first, std::span<float> values,
                         std::optional<TernaryScaleRule> project, std::span<std::byte> to) {
  const std::int64_t rows = static_cast<std::int64_t>(values.size()) / columns;
  const TernaryGeometry geometry{.size = format.block_elements};
  const auto wrong =
      std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (project && wrong != values.end()) {
    const std::int64_t at = wrong - values.begin();
    throw InvalidArgument(
        fmt::format("convert: tensor '{}': row {}, column {}: {} has no projection", tensor,
                    first + at / columns, at % columns, *wrong));
  }
  if (project && format.id == WeightFormatId::sherry_g128) {
    if (*project != TernaryScaleRule::mean) {
      throw InvalidArgument("convert: project: sherry_g128 is projected by the mean only");
    }
    return encode_weights(format, values, to);
  }
  const auto refuse = [&](std::int64_t row, std::int64_t col, const std::string& reason) {
    throw InvalidArgument(fmt::format(
        "convert: tensor '{}': row {}, column {}: {}: no {} holds it, and no projection was chosen",
        tensor, first + row, col, reason, format.name));
  };
  if (project) {
    check_scales(tensor, format, columns, first, values, *project);
    ternary_project({.geometry = geometry, .scale = *project}, rows, columns, values,
                    {.values = values});
  }
  const TernaryExact exact = ternary_exact(geometry, TernaryScaleType::f16, rows, columns, values);
  if (!exact.matrix) refuse(exact.mismatch.row, exact.mismatch.col, exact.mismatch.reason);
  for (std::size_t g = 0; g < exact.matrix->scales.size(); ++g) {
    const auto begin = static_cast<std::int64_t>(g) * format.block_elements;
    if (!ternary::pack_block(format.id, exact.matrix->codes.data() + begin, exact.matrix->scales[g],
                             to.data() + static_cast<std::int64_t>(g) * format.block_bytes)) {
      refuse(begin / columns, begin % columns, "not one zero in every four values");
    }
  }
}

}  // namespace touchstone::inline v0::io
