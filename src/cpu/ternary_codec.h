// Codes and scales of the ternary formats in and out of their blocks: what the list of weight formats,
// the operators and the inspection of files share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "touchstone/core/weight_format.h"

namespace touchstone::inline v0::ternary {

// Codes of one block of a ternary format, block_elements of them; a stored 3 is 2.
void unpack_codes(WeightFormatId id, const std::byte* block, std::int8_t* codes);
// Its scale.
float block_scale(WeightFormatId id, const std::byte* block);
// The inverse, of codes in {-1, 0, 1}. sherry: one zero in every four, else false and nothing written.
bool pack_block(WeightFormatId id, const std::int8_t* codes, float scale, std::byte* block);

// decode and encode of WeightFormat.
template <WeightFormatId kId>
void decode_blocks(const std::byte* from, std::int64_t n, float* to);
template <WeightFormatId kId>
void encode_blocks(const float* from, std::int64_t n, std::byte* to);

// The first fault of a stored block, "" where it is a ternary group in its one spelling: a code of
// 2, a byte that encodes no five digits, digits after the last value, a scale that is negative, NaN
// or infinite, codes other than 0 with a scale of 0.
std::string block_fault(WeightFormatId id, const std::byte* block);

}  // namespace touchstone::inline v0::ternary
