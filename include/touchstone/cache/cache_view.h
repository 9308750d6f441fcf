// The arrays of a cache that kernels read: for a list of sequences, one row each. Built in steps,
// so that only what changed since the last step has to be copied to a device.
//
// The same structs serve the CPU and CUDA. `memory` is always where the pages are. In a view from
// build(ids) the arrays [rows] and [rows, table_stride] are in host memory, in one from
// build(context, ids) on the device of the context; the list of groups and the changed ranges are
// for the host in both. A GroupView is plain data: a kernel takes view.groups[g] by value, and
// view.lengths.data() beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/context.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0::cache {

// Elements [begin, end) of an array.
struct ChangedRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend constexpr bool operator==(ChangedRange, ChangedRange) = default;
};

struct GroupView {
  // Page i begins at memory + i * geometry.page_bytes. Written only by kv_append().
  std::byte* memory = nullptr;
  std::int64_t pages = 0;
  LayerGroup layer_group{};
  PageGeometry geometry{};
  std::int64_t page_tokens = 0;
  std::int64_t table_stride = 0;
  // [rows, table_stride]: position p of row r is in page_table[r * table_stride + p / page_tokens].
  // -1: no page. Pages that are reserved and not committed are there too.
  std::span<const std::int32_t> page_table{};
  // [rows]: the first position after the sinks that was not freed.
  std::span<const std::int64_t> first_positions{};
  // [rows]: tokens in the page of the last token; 0 for an empty sequence.
  std::span<const std::int32_t> last_page_fill{};
  // Entries that differ from the previous view, in ascending order.
  std::span<const ChangedRange> changed_table{};
};

struct CacheView {
  std::uint64_t generation = 0;  // of the cache when the view was built
  Device device{};               // where the arrays are that kernels read
  std::int64_t rows = 0;
  std::span<const std::int64_t> lengths{};   // [rows]
  std::span<const std::int64_t> reserved{};  // [rows]
  std::span<const GroupView> groups{};
  // Rows whose lengths, reserved, first_positions or last_page_fill differ from the previous one.
  std::span<const ChangedRange> changed_rows{};
};

// Sizes of a view that never change, so that CUDA graphs captured with it can be replayed.
struct ViewShape {
  std::int64_t rows = 0;    // of every view
  std::int64_t tokens = 0;  // longest sequence, reserved slots included
};

// Owns the arrays of a view. A view is valid until the next build, and while is_current() is true;
// its arrays do not change in between.
class TOUCHSTONE_API CacheViewBuilder {
 public:
  // `cache` must outlive the builder.
  explicit CacheViewBuilder(KvCache& cache);
  // Views of fixed sizes: rows, strides and, on CUDA, all addresses are those of the first build.
  // Rows after the last id are empty sequences: appends to them store nothing, their attention is
  // 0. build() refuses more ids, and longer sequences.
  CacheViewBuilder(KvCache& cache, ViewShape shape);
  ~CacheViewBuilder();
  CacheViewBuilder(CacheViewBuilder&&) noexcept;
  CacheViewBuilder& operator=(CacheViewBuilder&&) noexcept;

  // Rows in the order of `ids`; InvalidArgument for a bad one; the last view stays valid.
  const CacheView& build(std::span<const SequenceId> ids);
  // The same with arrays on the context's device, which must be the cache's. On CUDA what changed
  // is copied on the context's stream: kernels queued there later see the new view, kernels queued
  // before see theirs. Use one context for all such calls of a builder. The addresses stay the same
  // until rows or table_stride outgrow the arrays. Not during graph capture.
  const CacheView& build(Context& context, std::span<const SequenceId> ids);
  // Whether the cache is unchanged since the view was built.
  bool is_current(const CacheView& view) const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0::cache
