// linear in bf16 on tiles: see linear_amx.h.
//
// Forward. A is W and B is x transposed, packed once for all tasks. Few rows of x multiply W as it is
// stored; more of them share a packed strip.
//
// Backward. dx = dy W and dweight = dy^T x have W and x on the right as they are stored, packed in pairs of
// rows by the task that computes their columns, and dy or its transpose on the left, packed once.
#include "ops/linear/linear_amx.h"

#include <algorithm>

#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "cpu/amx.h"
#include "ops/linear/linear_cpu.h"
#include "ops/linear/linear_epilogue.h"
#include "ops/linear/linear_tuning.h"

namespace touchstone::linear_layer::amx {
namespace {

// Steps of k whose tiles, four of the strip and four of the other operand, fit in the first cache.
constexpr std::int64_t kSegmentSteps = 8;
constexpr std::int64_t kBlockBytes = kBlock * kBlock * static_cast<std::int64_t>(sizeof(float));

// The processor's lack comes first: it is the same for every problem, and tests that count which
// implementations ran excuse this one by it.
std::string refuses(DType dtype, const Weight& weight) {
  if (!uses_amx_bf16()) return "no AMX tiles for bf16 on this processor";
  if (dtype != DType::bf16) return "x is " + std::string(name_of(dtype)) + ", not bf16";
  if (weight.data != nullptr && weight.format->dtype != DType::bf16) {
    return "weight is " + std::string(weight.format->name) + ", not bf16";
  }
  return "";
}

Matrix matrix(const ConstRows& from, std::int64_t rows, std::int64_t cols) {
  return {static_cast<const Bf16*>(from.data), from.stride, rows, cols};
}
Matrix matrix(const Weight& weight, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<const Bf16*>(weight.data), weight.row_bytes / 2, rows, cols};
}

// A task owns a strip of C: 32 or 64 of its rows (forward) or columns (backward), of which it packs the
// operand, and multiplies it with blocks of 32 of the other operand, which all tasks share. It does so a
// segment of k at a time, so that the strip's part of a segment stays in the first cache; sums are kept
// from one segment to the next.
struct Strip {
  static constexpr std::int64_t kBlocks = 2;

  Strip(std::int64_t depth, std::int64_t blocks)
      : steps(steps_of(depth)),
        segment(blocks == 1 ? std::max<std::int64_t>(steps, 1) : kSegmentSteps),
        others(blocks) {}

  std::int64_t steps;
  std::int64_t segment;  // steps of it
  std::int64_t others;   // blocks of the other operand

  std::int64_t tile_stride() const { return segment * kTileBytes; }
  std::int64_t packed_bytes(std::int64_t tiles) const {
    return ceil_div(steps, segment) * tiles * tile_stride();
  }
  // Number `tile` of an operand of `tiles` times 16 rows or columns.
  Packed packed(std::byte* operand, std::int64_t tiles, std::int64_t tile) const {
    return {operand + tile * tile_stride(), segment, tiles * tile_stride()};
  }
  std::int64_t own_bytes() const { return packed_bytes(2 * kBlocks); }
  std::int64_t other_bytes() const { return packed_bytes(2 * others); }
  Packed own(std::byte* memory, std::int64_t tile) const {
    return packed(memory, 2 * kBlocks, tile);
  }
  Packed other(std::byte* memory, std::int64_t tile) const {
    return packed(memory, 2 * others, tile);
  }
  // A task's memory: its operand, its sums, a block to spare.
  std::int64_t task_bytes() const { return own_bytes() + (kBlocks * others + 1) * kBlockBytes; }
  float* spare_block(std::byte* memory) const {
    return reinterpret_cast<float*>(memory + task_bytes() - kBlockBytes);
  }

  // multiply(other, own, first, count, c) adds the product of two blocks over steps [first, first + count) to
  // c, or begins it where first is 0; finish(other, own, c) takes a block of sums.
  template <class Multiply, class Finish>
  void run(std::byte* memory, std::int64_t own_blocks, const Multiply& multiply,
           const Finish& finish) const {
    auto* const sums = reinterpret_cast<float*>(memory + own_bytes());
    std::int64_t first = 0;
    do {
      const std::int64_t count = std::min(segment, steps - first);
      for (std::int64_t other = 0; other < others; ++other) {
        for (std::int64_t own = 0; own < own_blocks; ++own) {
          float* const c = sums + (other * kBlocks + own) * kBlock * kBlock;
          multiply(other, own, first, count, c);
          if (first + count == steps) finish(other, own, c);
        }
      }
      first += segment;
    } while (first < steps);
  }
};

void store_row(const float* sums, std::int64_t columns, DType dtype, void* data,
               std::int64_t first) {
  if (dtype == DType::bf16) {
    round_to_bf16(sums, columns, static_cast<Bf16*>(data) + first);
  } else {
    std::copy_n(sums, columns, static_cast<float*>(data) + first);
  }
}

// Columns of y that one task computes, for the rows of x that are packed.
class ForwardStrip {
 public:
  ForwardStrip(const Forward& p, const Strip& strip, std::int64_t first_row, std::int64_t rows,
               std::byte* x)
      : p_(p), strip_(strip), epilogue_(p), first_row_(first_row), rows_(rows), x_(x) {}

  void run(std::int64_t task, std::byte* memory) const {
    const std::int64_t width = panel_columns(p_);
    const std::int64_t first = task * Strip::kBlocks * width;
    const std::int64_t blocks = std::min(Strip::kBlocks, ceil_div(p_.columns() - first, width));
    const bool direct = rows_ <= tuning::kAmxDirectRows && p_.in % kTileDepth == 0 &&
                        first + blocks * width <= p_.columns();
    if (!direct) pack(first, blocks, memory);
    const TileSession session;
    strip_.run(
        memory, blocks,
        [&](std::int64_t other, std::int64_t own, std::int64_t step, std::int64_t count, float* c) {
          const auto tiles = [&](std::int64_t half) {
            return direct ? rows_as_stored(row_of(first + own * width, half), step)
                          : RowTiles{strip_.own(memory, 2 * own + half).tile(step)};
          };
          const std::int64_t columns = other * kBlock + kTileRows < rows_ ? 2 : 1;
          session.multiply({tiles(0), tiles(1)}, strip_.other(x_, 2 * other).tile(step),
                           strip_.tile_stride(), columns, count, step > 0, c);
        },
        [&](std::int64_t other, std::int64_t own, const float* c) {
          store(other * kBlock, first + own * width, c, strip_.spare_block(memory));
        });
  }

 private:
  bool gated() const { return p_.gate != LinearGate::none; }

  // The row of W that half a block begins with.
  std::int64_t row_of(std::int64_t column, std::int64_t half) const {
    return column + half * (gated() ? p_.columns() : kTileRows);
  }
  RowTiles rows_as_stored(std::int64_t row, std::int64_t step) const {
    return {p_.weight.row(row) + step * kTileRowBytes, p_.weight.row_bytes, kTileRowBytes};
  }
  void pack(std::int64_t first, std::int64_t blocks, std::byte* memory) const {
    const Matrix weight = matrix(p_.weight, p_.out, p_.in);
    for (std::int64_t i = 0; i < 2 * blocks; ++i) {
      pack_rows(weight, row_of(first + i / 2 * panel_columns(p_), i % 2), strip_.own(memory, i));
    }
  }

  // Sums are [columns of y, rows]; those past the end of either are not stored.
  void store(std::int64_t row, std::int64_t first, const float* c, float* transposed) const {
    const std::int64_t columns = std::min(panel_columns(p_), p_.columns() - first);
    const std::int64_t end = std::min(row + kBlock, rows_);
    if (end - row > tuning::kAmxGatheredRows) {
      transpose_block(c, transposed);
    } else {
      for (std::int64_t i = 0; i < kBlock; ++i) {
        for (std::int64_t r = 0; r < end - row; ++r) transposed[r * kBlock + i] = c[i * kBlock + r];
      }
    }
    for (std::int64_t r = row; r < end; ++r, transposed += kBlock) {
      epilogue_.apply(first_row_ + r, first, columns, transposed,
                      gated() ? transposed + kTileRows : nullptr);
      store_row(transposed, columns, p_.y_dtype, p_.y.data, (first_row_ + r) * p_.y.stride + first);
    }
  }

  const Forward& p_;
  const Strip& strip_;
  Epilogue<float> epilogue_;
  std::int64_t first_row_;
  std::int64_t rows_;
  std::byte* x_;
};

void forward(Context& context, const Forward& p) {
  const std::int64_t chunks = ceil_div(p.rows, tuning::kAmxRowChunk);
  const std::int64_t chunk = ceil_div(ceil_div(p.rows, chunks), kBlock) * kBlock;
  const Strip largest(p.in, chunk / kBlock);
  const std::int64_t threads = useful_threads(context, p.rows, p.in, p.out);
  auto* const x = static_cast<std::byte*>(detail::ContextAccess::workspace(
      context, largest.other_bytes() + threads * largest.task_bytes()));
  for (std::int64_t first = 0; first < p.rows; first += chunk) {
    const std::int64_t rows = std::min(chunk, p.rows - first);
    const Strip strip(p.in, ceil_div(rows, kBlock));
    detail::ContextAccess::pool(context).run(ceil_div(rows, kTileRows), [&](std::int64_t tile) {
      pack_rows_as_columns(matrix(p.x, p.rows, p.in), first + tile * kTileRows,
                           strip.other(x, tile));
    });
    const ForwardStrip strips(p, strip, first, rows, x);
    for_each_task(context, threads, ceil_div(p.columns(), Strip::kBlocks * panel_columns(p)),
                  x + largest.other_bytes(), largest.task_bytes(),
                  [&](std::int64_t task, std::byte* mine) { strips.run(task, mine); });
  }
}

// C [rows, columns] = A B over `depth`: store(row, column, sums) takes a block of it. pack_a and pack_b pack
// 16 rows of A and 16 columns of B.
template <class PackA, class PackB, class Store>
void multiply(Context& context, std::int64_t rows, std::int64_t columns, std::int64_t depth,
              const PackA& pack_a, const PackB& pack_b, const Store& store) {
  constexpr std::int64_t kWidth = Strip::kBlocks * kBlock;
  const Strip strip(depth, ceil_div(rows, kBlock));
  const std::int64_t threads = useful_threads(context, rows, columns, depth);
  auto* const a = static_cast<std::byte*>(detail::ContextAccess::workspace(
      context, strip.other_bytes() + threads * strip.task_bytes()));
  detail::ContextAccess::pool(context).run(
      2 * strip.others, [&](std::int64_t tile) { pack_a(tile * kTileRows, strip.other(a, tile)); });
  const auto run = [&](std::int64_t task, std::byte* memory) {
    const std::int64_t first = task * kWidth;
    const std::int64_t tiles = ceil_div(std::min(kWidth, columns - first), kTileRows);
    for (std::int64_t i = 0; i < tiles; ++i) pack_b(first + i * kTileRows, strip.own(memory, i));
    const TileSession session;
    strip.run(
        memory, ceil_div(tiles, 2),
        [&](std::int64_t other, std::int64_t own, std::int64_t step, std::int64_t count, float* c) {
          session.multiply(
              {{strip.other(a, 2 * other).tile(step)}, {strip.other(a, 2 * other + 1).tile(step)}},
              strip.own(memory, 2 * own).tile(step), strip.tile_stride(),
              std::min<std::int64_t>(2, tiles - 2 * own), count, step > 0, c);
        },
        [&](std::int64_t other, std::int64_t own, const float* c) {
          store(other * kBlock, first + own * kBlock, c);
        });
  };
  for_each_task(context, threads, ceil_div(columns, kWidth), a + strip.other_bytes(),
                strip.task_bytes(), run);
}

void backward_dx(Context& context, const Backward& p) {
  const Matrix dy = matrix(p.dy, p.rows, p.out);
  const Matrix weight = matrix(p.weight, p.out, p.in);
  multiply(
      context, p.rows, p.in, p.out,
      [&](std::int64_t row, const Packed& to) { pack_rows(dy, row, to); },
      [&](std::int64_t column, const Packed& to) { pack_pairs(weight, column, to); },
      [&](std::int64_t row, std::int64_t column, const float* sums) {
        const std::int64_t columns = std::min(kBlock, p.in - column);
        const std::int64_t end = std::min(row + kBlock, p.rows);
        for (std::int64_t r = row; r < end; ++r, sums += kBlock) {
          store_row(sums, columns, p.dx_dtype, p.dx.data, r * p.dx.stride + column);
        }
      });
}

void backward_dweight(Context& context, const Backward& p) {
  const Matrix dy = matrix(p.dy, p.rows, p.out);
  const Matrix x = matrix(p.x, p.rows, p.in);
  multiply(
      context, p.out, p.in, p.rows,
      [&](std::int64_t row, const Packed& to) { pack_columns(dy, row, to); },
      [&](std::int64_t column, const Packed& to) { pack_pairs(x, column, to); },
      [&](std::int64_t row, std::int64_t column, const float* sums) {
        const std::int64_t columns = std::min(kBlock, p.in - column);
        const std::int64_t end = std::min(row + kBlock, p.out);
        for (std::int64_t r = row; r < end; ++r, sums += kBlock) {
          const std::int64_t first = r * p.dweight.stride + column;
          if (!p.accumulate) {
            store_row(sums, columns, p.dweight_dtype, p.dweight.data, first);
            continue;
          }
          float* const to = static_cast<float*>(p.dweight.data) + first;
          for (std::int64_t c = 0; c < columns; ++c) to[c] += sums[c];
        }
      });
}

void backward(Context& context, const Backward& p) {
  if (p.dx.data != nullptr) backward_dx(context, p);
  if (p.dweight.data != nullptr) backward_dweight(context, p);
  if (p.dbias != nullptr) sum_bias(p);
}

}  // namespace
}  // namespace touchstone::linear_layer::amx

namespace touchstone::linear_layer {

std::string amx_refuses_forward(const Context& /*context*/, const Forward& p) {
  std::string reason = amx::refuses(p.dtype, p.weight);
  if (reason.empty() && p.int8_activations) reason = "x is rounded to int8";
  return reason;
}

std::string amx_refuses_backward(const Context& /*context*/, const Backward& p) {
  return amx::refuses(p.dtype, p.weight);
}

void forward_amx(Context& context, const Forward& p) { amx::forward(context, p); }
void backward_amx(Context& context, const Backward& p) { amx::backward(context, p); }

}  // namespace touchstone::linear_layer
