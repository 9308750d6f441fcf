// Linear from ternary weights with int8 activations on the CPU: what its parts call each other
// with.
//
// The sum of a group, codes times integers, is an int32; groups are added in order by fused
// multiply-adds, acc = fma(scale, sum, acc), in segments of kSegment columns that start from 0, and
// the sums of segments in order. CUDA does the same (cuda/linear_ternary.cuh), so that a product
// has the same bits there.
#pragma once

#include <cstdint>

#include "ops/linear/linear_problem.h"

namespace touchstone::linear_layer {

// Rows of W that a task computes; with a gate half of them are gate rows, half the up rows with
// them.
inline constexpr std::int64_t kTernaryPanel = 32;
// Rows of x that are rounded at a time.
inline constexpr std::int64_t kTernaryChunk = 240;

// How a row of x lies in memory for a format.
enum class TernaryOrder : std::uint8_t {
  natural,  // int8 of all columns
  // Formats of four codes a byte and 32 bytes to 128 columns: of each 128 columns 32 bytes per
  // plane; then, as int32, the sum of every 128.
  planes,
};
TernaryOrder ternary_order(const WeightFormat& format);
// Bytes of a row of x: codes, and for planes the sums.
std::int64_t ternary_row_bytes(const Forward& p);
inline std::int64_t ternary_sums_offset(const Forward& p) { return (p.in + 63) / 64 * 64; }

struct TernaryJob {
  const Forward* p = nullptr;
  const std::byte* x = nullptr;  // rows of ternary_row_bytes
  std::int64_t x_stride = 0;
  const float* scales = nullptr;
  std::int64_t first = 0;  // row of x
  std::int64_t rows = 0;

  std::int64_t panel_columns() const {
    return p->gate == LinearGate::none ? kTernaryPanel : kTernaryPanel / 2;
  }
};

// Rounds row `row` of x, in the order of the format, to `to`; values: p.in floats and q: p.in bytes
// of scratch. Returns the scale.
float round_ternary_row(const Forward& p, std::int64_t row, float* values, std::int8_t* q,
                        std::byte* to);
// totals[r * kTernaryPanel + o] for the rows of the job and the rows of W of panel number `panel`:
// linear_ternary_cpu.cc.
void run_ternary_panel(const TernaryJob& job, std::int64_t panel, float* totals);

// Row o of a panel, o < kTernaryPanel; rows past the end are the last one again.
const std::byte* ternary_panel_row(const TernaryJob& job, std::int64_t panel, std::int64_t o);

}  // namespace touchstone::linear_layer
