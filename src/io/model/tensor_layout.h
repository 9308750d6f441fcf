// Rows moved between the layouts of the containers and the canonical one. Works on bytes of rows,
// so that blocks of any format go through; transposing needs single elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/model/tensor_rules.h"

namespace touchstone::inline v0::io {

// A stored tensor as rows of bytes; a vector has rows of one element.
struct RowLayout {
  TensorOp op = TensorOp::none;
  std::int64_t row_bytes = 0;
  std::int64_t element_bytes = 0;  // transposed: of an element
  std::int64_t head_size = 0;      // pairs, heads
  std::int64_t heads = 0;          // heads
  std::int64_t stored_rows = 0;    // of all parts together
};

// The row of the stored tensor that holds row `row` of part `part`, which begins at row `begin` of
// the concatenation of all parts. Not for transposed.
std::int64_t stored_row(const RowLayout& layout, std::int64_t part, std::int64_t begin,
                        std::int64_t row);

// Copies `rows` rows of a part out of the stored tensor.
void load_rows(const RowLayout& layout, std::span<const std::byte> stored, std::int64_t part,
               std::int64_t begin, std::int64_t rows, std::byte* to);
// The inverse, into a stored tensor that is being built.
void store_rows(const RowLayout& layout, std::span<std::byte> stored, std::int64_t part,
                std::int64_t begin, std::int64_t rows, const std::byte* from);

}  // namespace touchstone::inline v0::io
