// Rows of weights into a ternary format: exactly, or by the requested projection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "touchstone/core/ternary.h"
#include "touchstone/core/weight_format.h"

namespace touchstone::inline v0::io {

// `values` are whole rows of `columns`, the first of them row `first` of the tensor. InvalidArgument
// names tensor, row and column of the first value that the format cannot hold where nothing projects it.
void encode_ternary_rows(const std::string& tensor, const WeightFormat& format,
                         std::int64_t columns, std::int64_t first, std::span<float> values,
                         std::optional<TernaryScaleRule> project, std::span<std::byte> to);

}  // namespace touchstone::inline v0::io
