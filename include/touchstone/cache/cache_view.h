// What kernels see of a cache: plain arrays for a list of sequences, one row each. Built in steps,
// so that only what changed since the last step has to be copied to a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/cache/kv_cache.h"

namespace touchstone::cache {

// Elements [begin, end) of an array.
struct ChangedRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend constexpr bool operator==(ChangedRange, ChangedRange) = default;
};

struct GroupView {
  const std::byte* memory = nullptr;  // page i begins at memory + i * geometry.page_bytes
  PageGeometry geometry{};
  std::int64_t page_tokens = 0;
  std::int64_t table_stride = 0;
  // [rows, table_stride]: position p of row r is in page_table[r * table_stride + p / page_tokens].
  // -1: no page. Pages that are reserved and not committed are there too.
  std::span<const std::int32_t> page_table{};
  // [rows]: the first position after the sinks that is still there.
  std::span<const std::int64_t> first_positions{};
  // [rows]: tokens in the page of the last token; 0 for an empty sequence.
  std::span<const std::int32_t> last_page_fill{};
  // What differs from the view before, in ascending order.
  std::span<const ChangedRange> changed_table{};
};

struct CacheView {
  std::uint64_t generation = 0;  // of the cache when the view was built
  std::int64_t rows = 0;
  std::span<const std::int64_t> lengths{};   // [rows]
  std::span<const std::int64_t> reserved{};  // [rows]
  std::span<const GroupView> groups{};
  // Rows whose lengths, reserved, first_positions or last_page_fill differ from the view before.
  std::span<const ChangedRange> changed_rows{};
};

// Owns the arrays of a view. A view is good until the next build, and as long as is_current says
// so; its arrays do not change in between.
class CacheViewBuilder {
 public:
  // `cache` must outlive the builder.
  explicit CacheViewBuilder(const KvCache& cache);

  // Rows in the order of `ids`; InvalidArgument, and the last view stays, for a bad one.
  const CacheView& build(std::span<const SequenceId> ids);
  // Whether nothing in the cache has changed since.
  bool is_current(const CacheView& view) const { return view.generation == cache_->generation(); }

 private:
  struct Row {
    SequenceId id{};
    bool known = false;
  };
  struct RowTable {
    std::uint64_t version = 0;
    std::int64_t pages = 0;
  };
  struct GroupArrays {
    std::vector<std::int32_t> table;
    std::vector<std::int64_t> first_positions;
    std::vector<std::int32_t> last_page_fill;
    std::vector<RowTable> rows;
    std::vector<ChangedRange> changed;
    std::int64_t stride = 0;
  };

  void make_room(std::span<const SequenceId> ids);
  void update_table(GroupArrays& arrays, std::int64_t row, bool same_sequence,
                    const PageTable& table);
  bool update_row(std::int64_t row, const Sequence& sequence);

  const KvCache* cache_;
  CacheView view_;
  std::vector<Row> rows_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> reserved_;
  std::vector<GroupArrays> groups_;
  std::vector<GroupView> group_views_;
  std::vector<ChangedRange> changed_rows_;
};

}  // namespace touchstone::cache
