// Numbers that change speed, never results. Figures: docs/notes/linear.md.
#pragma once

#include <cstdint>

namespace touchstone::linear_layer::tuning {

// CPU: products below which starting threads costs more than they save.
inline constexpr double kSerialWork = 3e4;

// CUDA, stream: bytes of a row of W that a stage holds, about, in multiples of the unit of elements.
inline constexpr std::int64_t kStreamSliceBytes = 256;
inline constexpr std::int64_t kStreamSliceUnit = 256;
// CUDA, stream: dynamic shared memory of a CTA that leaves as much to the CTA of the next kernel, wanted
// while x takes so many bytes, and of one that is alone.
inline constexpr std::int64_t kStreamSharedOfTwo = 110 * 1024;
inline constexpr std::int64_t kStreamSmallX = 32 * 1024;
inline constexpr std::int64_t kStreamSharedOfOne = 219 * 1024;

// CUDA, wgmma: what a multiprocessor takes in from L2 and multiplies in a cycle, and the cycles that a
// tile costs besides; estimates by which tiles are chosen.
inline constexpr double kReceivedBytesPerCycle = 45;
inline constexpr double kProductsPerCycle = 1700;
inline constexpr double kTileCycles = 1500;

}  // namespace touchstone::linear_layer::tuning
