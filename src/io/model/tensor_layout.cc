#include "io/model/tensor_layout.h"

#include <cstring>

namespace touchstone::inline v0::io {

std::int64_t stored_row(const RowLayout& layout, std::int64_t part, std::int64_t begin,
                        std::int64_t row) {
  const std::int64_t size = layout.head_size;
  switch (layout.op) {
    case TensorOp::pairs: {
      // Value i of the first half lies at 2 i, value i of the second at 2 i + 1.
      const std::int64_t head = row / size;
      const std::int64_t within = row % size;
      const std::int64_t half = size / 2;
      return begin + head * size + (within < half ? 2 * within : 2 * (within - half) + 1);
    }
    case TensorOp::heads:
      return (row / size * 3 + part) * size + row % size;
    default:
      return begin + row;
  }
}

namespace {

// Calls move(stored bytes, part bytes, count) for every run that is contiguous on both sides.
template <class Move>
void for_each_run(const RowLayout& layout, std::int64_t part, std::int64_t begin, std::int64_t rows,
                  Move move) {
  if (layout.op == TensorOp::transposed) {
    // Stored [in, out]: element (row, column) of the part lies at column * out + begin + row.
    const std::int64_t columns = layout.row_bytes / layout.element_bytes;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        move((column * layout.stored_rows + begin + row) * layout.element_bytes,
             row * layout.row_bytes + column * layout.element_bytes, layout.element_bytes);
      }
    }
    return;
  }
  if (layout.op == TensorOp::none || layout.op == TensorOp::minus_one) {
    move(begin * layout.row_bytes, 0, rows * layout.row_bytes);
    return;
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    move(stored_row(layout, part, begin, row) * layout.row_bytes, row * layout.row_bytes,
         layout.row_bytes);
  }
}

}  // namespace

void load_rows(const RowLayout& layout, std::span<const std::byte> stored, std::int64_t part,
               std::int64_t begin, std::int64_t rows, std::byte* to) {
  for_each_run(layout, part, begin, rows,
               [&](std::int64_t from_byte, std::int64_t to_byte, std::int64_t count) {
                 std::memcpy(to + to_byte, stored.data() + from_byte,
                             static_cast<std::size_t>(count));
               });
}

void store_rows(const RowLayout& layout, std::span<std::byte> stored, std::int64_t part,
                std::int64_t begin, std::int64_t rows, const std::byte* from) {
  for_each_run(layout, part, begin, rows,
               [&](std::int64_t stored_byte, std::int64_t part_byte, std::int64_t count) {
                 std::memcpy(stored.data() + stored_byte, from + part_byte,
                             static_cast<std::size_t>(count));
               });
}

}  // namespace touchstone::inline v0::io
