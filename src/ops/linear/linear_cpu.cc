// The SIMD implementation of linear above its kernels: tasks, scratch memory, threads.
#include "ops/linear/linear_cpu.h"

#include <algorithm>
#include <vector>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "touchstone/core/checked.h"

namespace touchstone::linear_layer {
namespace {

std::int64_t compute_size(DType dtype) { return dtype == DType::f64 ? 8 : 4; }

// Elements from one widened row of x to the next: whole vectors of every target, and not a power of
// two.
std::int64_t widened_stride(std::int64_t in) { return ceil_div(in, 16) * 16 + 16; }

struct Tile {
  std::int64_t row;
  std::int64_t column;
};

// The tiles of a matrix, those of the same columns together: they share what is read of B.
std::vector<Tile> tiles_of(std::int64_t rows, std::int64_t columns) {
  std::vector<Tile> tiles;
  for (std::int64_t c = 0; c < columns; c += kTileColumns) {
    for (std::int64_t r = 0; r < rows; r += kTileRows) tiles.push_back({r, c});
  }
  return tiles;
}

// `integers`: by the kernels of int8 activations.
void forward_panels(Context& context, const Forward& p, bool integers) {
  const std::int64_t size = compute_size(p.dtype);
  const std::int64_t threads = useful_threads(context, p.rows, p.in, p.out);
  const std::int64_t stride = integers ? int8_row_bytes(p.in) : widened_stride(p.in);
  const std::int64_t row_bytes = integers ? stride : checked_mul(stride, size);
  // Chunks of about the same size: W is decoded for each of them.
  const std::int64_t chunks = ceil_div(p.rows, integers ? kInt8RowChunk : kRowChunk);
  const std::int64_t chunk = ceil_div(p.rows, chunks);
  const std::int64_t x_bytes = checked_mul(chunk, row_bytes);
  std::vector<double> scales(at(chunk));
  const std::int64_t scratch_bytes = kForwardScratch * size;
  auto* const memory = static_cast<std::byte*>(
      detail::ContextAccess::workspace(context, x_bytes + threads * scratch_bytes));
  const std::int64_t panels = ceil_div(p.columns(), panel_columns(p));
  for (std::int64_t first = 0; first < p.rows; first += chunk) {
    const ForwardJob job{.p = &p,
                         .x = memory,
                         .x_stride = stride,
                         .scales = scales.data(),
                         .first = first,
                         .rows = std::min(chunk, p.rows - first)};
    detail::ContextAccess::pool(context).run(threads == 1 ? 1 : job.rows, [&](std::int64_t task) {
      const std::int64_t end = threads == 1 ? job.rows : task + 1;
      for (std::int64_t r = task; r < end; ++r) {
        std::byte* const to = memory + r * row_bytes;
        scales[at(r)] =
            integers ? prepare_int8_row(p, first + r, to) : prepare_row(p, first + r, to, stride);
      }
    });
    for_each_task(context, threads, panels, memory + x_bytes, scratch_bytes,
                  [&](std::int64_t panel, std::byte* mine) {
                    (integers ? run_int8_panel : run_panel)(job, panel, mine);
                  });
  }
}

}  // namespace

void sum_bias(const Backward& p) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    visit_float_dtype(p.dbias_dtype, [&]<class G>() {
      G* const to = static_cast<G*>(p.dbias);
      std::vector<double> sums(at(p.out));
      for (std::int64_t r = 0; r < p.rows; ++r) {
        const T* const dy = static_cast<const T*>(p.dy.data) + r * p.dy.stride;
        for (std::int64_t o = 0; o < p.out; ++o) sums[at(o)] += convert<double>(dy[o]);
      }
      for (std::int64_t o = 0; o < p.out; ++o) {
        const double before = p.accumulate ? convert<double>(to[o]) : 0;
        to[o] = convert<G>(before + sums[at(o)]);
      }
    });
  });
}

void forward_simd(Context& context, const Forward& p) {
  const WeightFormat& format = *p.weight.format;
  forward_panels(context, p,
                 p.int8_activations && p.in > 0 && p.dtype != DType::f64 && !format.ternary &&
                     has_int8_kernel(format));
}

void forward_int8(Context& context, const Forward& p) { forward_panels(context, p, true); }

void backward_simd(Context& context, const Backward& p) {
  const std::int64_t threads = useful_threads(context, p.rows, p.in, p.out);
  const std::int64_t bytes = kBackwardScratch * compute_size(p.dtype);
  auto* const scratch =
      static_cast<std::byte*>(detail::ContextAccess::workspace(context, threads * bytes));
  if (p.dx.data != nullptr) {
    const std::vector<Tile> tiles = tiles_of(p.rows, p.in);
    for_each_task(context, threads, std::ssize(tiles), scratch, bytes,
                  [&](std::int64_t task, std::byte* mine) {
                    run_dx_tile(p, tiles[at(task)].row, tiles[at(task)].column, mine);
                  });
  }
  if (p.dweight.data != nullptr) {
    const std::vector<Tile> tiles = tiles_of(p.out, p.in);
    for_each_task(context, threads, std::ssize(tiles), scratch, bytes,
                  [&](std::int64_t task, std::byte* mine) {
                    run_dweight_tile(p, tiles[at(task)].row, tiles[at(task)].column, mine);
                  });
  }
  if (p.dbias != nullptr) sum_bias(p);
}

}  // namespace touchstone::linear_layer
