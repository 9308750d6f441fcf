// The status word of a row, which softmax_topk and sample write as i32.
#pragma once

#include <cstdint>

namespace touchstone::inline v0 {

// Flags: a row has every bit that holds. 0 is a row without anything unusual.
enum class RowStatus : std::int32_t {
  ok = 0,
  has_nan = 1,         // no result: tokens are -1
  has_infinity = 2,    // +inf
  all_masked = 4,      // no token is above -inf
  fewer_than_k = 8,    // fewer than k tokens are above -inf
  bad_parameter = 16,  // the row's temperature or another per-row parameter: tokens are -1
  two_pass = 32,       // the row was read twice; says how, not what, and may differ by device
};

constexpr std::int32_t to_int(RowStatus status) { return static_cast<std::int32_t>(status); }
constexpr RowStatus operator|(RowStatus a, RowStatus b) {
  return static_cast<RowStatus>(to_int(a) | to_int(b));
}
constexpr RowStatus operator&(RowStatus a, RowStatus b) {
  return static_cast<RowStatus>(to_int(a) & to_int(b));
}
constexpr RowStatus& operator|=(RowStatus& a, RowStatus b) { return a = a | b; }

// Whether `status` has at least one of `flags`.
constexpr bool has_any(RowStatus status, RowStatus flags) {
  return (status & flags) != RowStatus::ok;
}

}  // namespace touchstone::inline v0
