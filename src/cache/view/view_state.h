// The state of a CacheViewBuilder: the arrays of a view on the host and, for CUDA, on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/cache_state.h"
#include "touchstone/cache/cache_view.h"

namespace touchstone::inline v0::cache {

class CacheViewBuilder::State {
 public:
  State(CacheState& cache, ViewShape shape);
  ~State();

  // As in CacheViewBuilder.
  const CacheView& build(std::span<const SequenceId> ids);
  const CacheView& build(Context& context, std::span<const SequenceId> ids);
  bool is_current(const CacheView& view) const { return view.generation == cache_->generation(); }

 private:
  struct DeviceArrays;
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

  void resize_arrays(std::span<const SequenceId> ids);
  void update_table(GroupArrays& arrays, std::int64_t row, bool same_sequence,
                    const PageTable& table);
  bool update_row(std::int64_t row, const Sequence& sequence);

  // Throws before anything is overwritten.
  void check(std::span<const SequenceId> ids) const;

  CacheState* cache_;
  ViewShape shape_;          // rows 0: as many as there are ids
  Sequence empty_sequence_;  // of rows without one
  CacheView view_;
  std::vector<Row> rows_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> reserved_;
  std::vector<GroupArrays> groups_;
  std::vector<GroupView> group_views_;
  std::vector<ChangedRange> changed_rows_;
  std::uint64_t builds_ = 0;
  std::unique_ptr<DeviceArrays> on_device_;
};

}  // namespace touchstone::inline v0::cache
