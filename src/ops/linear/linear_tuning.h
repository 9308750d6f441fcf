// Numbers that change speed, never results.
#pragma once

namespace touchstone::linear_layer::tuning {

// CPU: products below which starting threads costs more than they save.
inline constexpr double kSerialWork = 3e4;

}  // namespace touchstone::linear_layer::tuning
