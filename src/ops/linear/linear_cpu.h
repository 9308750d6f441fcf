// The SIMD implementation of linear: what its parts call each other with.
//
// Forward. Outputs are computed in panels of kPanel rows of W (with a gate: half of them gate rows
// and half the up rows that go with them). A sum runs over a segment of `in` in the lanes of one
// vector, the lanes are added in a fixed order, and the sums of segments in theirs. Whether W is
// decoded on the way or beforehand, and how many rows of x share a pass, changes nothing in that.
//
// Backward. Both products have the form C = A B with B stored row by row, W or x: a vector holds
// neighboring columns of C, and the sum runs over the rows of B in their order, in segments.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "ops/linear/linear_problem.h"
#include "ops/linear/linear_tuning.h"

namespace touchstone::linear_layer {

inline constexpr std::int64_t kPanel = 32;
// Rows of x that are widened at a time; W is decoded once for all of them.
inline constexpr std::int64_t kRowChunk = 240;
// The same of int8 activations, which take a quarter of the room.
inline constexpr std::int64_t kInt8RowChunk = 512;
// Floats from one row of a decoded panel to the next: not a power of two, or the rows would share
// their places in the cache.
inline constexpr std::int64_t kPanelStride = kSegment + 16;

struct ForwardJob {
  const Forward* p = nullptr;
  // Rows [first, first + rows) of x in the type and the order of the sums, zeros after `in`.
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  const double* scales = nullptr;  // what each row's sums are multiplied with
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

// Elements of scratch memory (float, or double for f64) of a thread.
inline constexpr std::int64_t kForwardScratch = kPanel * kPanelStride + kInt8RowChunk * kPanel;

// Widens row `row` of x into `to`, `stride` elements long. Returns its scale: 1, or that of int8.
double prepare_row(const Forward& p, std::int64_t row, void* to, std::int64_t stride);
// Columns of panel number `panel`, for the rows of the job.
void run_panel(const ForwardJob& job, std::int64_t panel, void* scratch);

// The same of int8 activations where W is stored as codes: products of integers. x_stride of the job is
// in bytes then.
bool has_int8_kernel(const WeightFormat& format);  // on this processor
double prepare_int8_row(const Forward& p, std::int64_t row, void* to);
void run_int8_panel(const ForwardJob& job, std::int64_t panel, void* scratch);
// The forward by that kernel.
void forward_int8(Context& context, const Forward& p);
// A prepared row: integers in whole vectors of every target, then 4 bytes for at most every 16 of them.
inline std::int64_t int8_sums_offset(std::int64_t in) { return (in + 63) / 64 * 64; }
inline std::int64_t int8_row_bytes(std::int64_t in) { return int8_sums_offset(in) / 4 * 5; }

inline std::int64_t panel_columns(const Forward& p) {
  return p.gate == LinearGate::none ? kPanel : kPanel / 2;
}

// ---- threads -----------------------------------------------------------------------------------

inline std::int64_t useful_threads(const Context& context, std::int64_t rows, std::int64_t in,
                                   std::int64_t out) {
  const double work =
      static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  return work < tuning::kSerialWork ? 1 : context.threads();
}

// Calls body(task, its thread's scratch) for every task. A thread begins with neighboring tasks, so that
// prefetches past the end of one are used by itself, and then steals from others.
template <class Body>
void for_each_task(Context& context, std::int64_t threads, std::int64_t tasks, std::byte* scratch,
                   std::int64_t bytes, Body&& body) {
  const std::int64_t slots = std::min(threads, tasks);
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  std::vector<Share> shares(at(slots));
  for (std::int64_t i = 0; i < slots; ++i) {
    shares[at(i)].next = tasks * i / slots;
    shares[at(i)].end = tasks * (i + 1) / slots;
  }
  detail::ContextAccess::pool(context).run(slots, [&](std::int64_t slot) {
    std::byte* const mine = scratch + slot * bytes;
    for (std::int64_t i = 0; i < slots; ++i) {
      Share& share = shares[at((slot + i) % slots)];
      for (std::int64_t task = share.next++; task < share.end; task = share.next++) {
        body(task, mine);
      }
    }
  });
}

// ---- backward ---------------------------------------------------------------------------------

// Rows of C and columns of C in a tile, and rows of B in a segment.
inline constexpr std::int64_t kTileRows = 96;
inline constexpr std::int64_t kTileColumns = 256;
inline constexpr std::int64_t kDepth = 256;

inline constexpr std::int64_t kBackwardScratch =
    kTileRows * kDepth + kDepth * kTileColumns + kTileRows * kTileColumns;

// One tile of dx: rows from `row` on, columns from `column` on.
void run_dx_tile(const Backward& p, std::int64_t row, std::int64_t column, void* scratch);
// One tile of dweight: rows of W from `row` on.
void run_dweight_tile(const Backward& p, std::int64_t row, std::int64_t column, void* scratch);

// dbias, whatever multiplies the rest.
void sum_bias(const Backward& p);

}  // namespace touchstone::linear_layer
