// What the operators on pages of a KV cache have in common: how K and V are stored, the page table,
// and a view of both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/operand.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/layout.h"

namespace touchstone::spec {

// "32/8x128"
struct HeadShape {
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t dim = 0;
};
HeadShape parse_heads(const std::string& text);

// One layer; `format` as `touchstone plan` names it, such as "int8" or "k8v4".
cache::LayerGroup layers_of(const std::string& format, std::int64_t kv_heads, std::int64_t dim,
                            std::int64_t page_tokens);

// The page of each position: page_number(row, page) of `each` pages per row, another order than
// that of the positions.
struct PageTable {
  std::int64_t rows = 0;
  std::int64_t each = 0;    // pages of a row
  std::int64_t shared = 0;  // of these the first `shared` are those of row 0

  std::int64_t pages() const { return rows * each; }
  std::int64_t page(std::int64_t row, std::int64_t index) const;
  Operand operand() const;
};

// Writes pages of encoded noise. Some pages differ and are repeated, since encoding a large pool
// would take minutes.
Operand page_operand(const cache::LayerGroup& layers, std::int64_t pages, std::uint64_t seed);

// A view of pages, table, lengths and reserved lengths. Outlives what is made from it.
struct PagedView {
  cache::GroupView group{};
  cache::CacheView view{};

  PagedView(const cache::LayerGroup& layers, const TensorView& pages, const TensorView& table,
            const TensorView& lengths, const TensorView& reserved);
  PagedView(const PagedView&) = delete;
  PagedView& operator=(const PagedView&) = delete;
};

}  // namespace touchstone::spec
