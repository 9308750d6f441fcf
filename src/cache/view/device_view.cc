// The part of a view builder that keeps a copy of its arrays in CUDA memory.
#include "cache/view/device_view.h"

#include <algorithm>
#include <cstring>

#include "cache/view/view_state.h"
#include "core/context_access.h"
#include "core/cuda_runtime.h"
#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

// Room for at least `elements`, contents undefined where it had to grow. Whether it did.
bool grow_to(Tensor& tensor, std::int64_t elements, DType dtype, Device device) {
  if (tensor.elements() >= elements) return false;
  // Work in flight may still read the old memory; releasing CUDA memory waits for it.
  tensor = Tensor::empty({std::max(elements, 2 * tensor.elements())}, dtype, device);
  return true;
}

}  // namespace

// The arrays [rows] of all groups lie in one block, which is small and goes over whole. Of the page
// tables only the changed entries do.
struct CacheViewBuilder::State::DeviceArrays {
  CacheView view;
  std::vector<GroupView> groups;
  Tensor row_block;            // u8
  std::vector<Tensor> tables;  // i32
  std::vector<std::byte> host_block;
  std::vector<TableEntry> entries;
  std::uint64_t copied_build = 0;  // the build whose arrays are there

  template <class T>
  std::span<const T> add_rows(std::int64_t offset, std::span<const T> values) {
    std::memcpy(host_block.data() + offset, values.data(), values.size_bytes());
    const auto* base = static_cast<const std::byte*>(row_block.data());
    return {reinterpret_cast<const T*>(base + offset), values.size()};
  }

  void copy_rows(Context& context, const CacheView& from) {
    // 8-byte arrays first, so that each begins on its own alignment.
    const auto group_count = static_cast<std::int64_t>(from.groups.size());
    const std::int64_t bytes = from.rows * (8 * (2 + group_count) + 4 * group_count);
    grow_to(row_block, bytes, DType::u8, context.device());
    host_block.resize(at(bytes));
    std::int64_t offset = 0;
    const auto add = [&]<class T>(std::span<const T> values) {
      const std::span<const T> there = add_rows(offset, values);
      offset += static_cast<std::int64_t>(values.size_bytes());
      return there;
    };
    view.lengths = add(from.lengths);
    view.reserved = add(from.reserved);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      groups[g].first_positions = add(from.groups[g].first_positions);
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      groups[g].last_page_fill = add(from.groups[g].last_page_fill);
    }
    if (bytes == 0) return;
    cuda::copy(context.device(), row_block.data(), Device::cpu(), host_block.data(), bytes,
               context.stream());
  }

  void copy_table(Context& context, std::size_t g, const GroupView& from, bool all) {
    const std::int64_t count = std::ssize(from.page_table);
    all |= grow_to(tables[g], count, DType::i32, context.device());
    auto* table = static_cast<std::int32_t*>(tables[g].data());
    groups[g].page_table = {table, at(count)};
    entries.clear();
    for (const ChangedRange range : from.changed_table) {
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        entries.push_back({i, from.page_table[at(i)]});
      }
    }
    const auto bytes = static_cast<std::int64_t>(entries.size() * sizeof(TableEntry));
    const auto table_bytes = static_cast<std::int64_t>(from.page_table.size_bytes());
    if (all || bytes >= table_bytes || bytes > context.workspace_bytes()) {
      if (count == 0) return;
      cuda::copy(context.device(), table, Device::cpu(), from.page_table.data(), table_bytes,
                 context.stream());
    } else if (!entries.empty()) {
      auto* staged = static_cast<TableEntry*>(detail::ContextAccess::workspace(context, bytes));
      cuda::copy(context.device(), staged, Device::cpu(), entries.data(), bytes, context.stream());
      write_table_entries(context, staged, std::ssize(entries), table);
    }
  }
};

CacheViewBuilder::State::State(CacheState& cache, ViewShape shape)
    : cache_(&cache), shape_(shape), groups_(at(cache.groups())), group_views_(at(cache.groups())) {
  empty_sequence_.groups.resize(groups_.size());
  for (std::size_t g = 0; shape.rows > 0 && g < groups_.size(); ++g) {
    groups_[g].stride = ceil_div(shape.tokens, cache.layout().groups[g].page_tokens);
  }
}
CacheViewBuilder::State::~State() = default;

const CacheView& CacheViewBuilder::State::build(Context& context, std::span<const SequenceId> ids) {
  if (context.device() != cache_->device()) {
    throw InvalidArgument("cache_view: context: expected one on " + name_of(cache_->device()) +
                          ", got " + name_of(context.device()));
  }
  build(ids);
  if (!context.device().is_cuda()) return view_;
  if (on_device_ == nullptr) {
    on_device_ = std::make_unique<DeviceArrays>();
    on_device_->tables.resize(groups_.size());
  }
  DeviceArrays& there = *on_device_;
  // The changed ranges are relative to the previous build; after any other, all is copied.
  const bool all = there.copied_build + 1 != builds_;
  there.copied_build = 0;  // until all copies are queued
  there.view = view_;
  there.view.device = context.device();
  there.groups = group_views_;
  there.copy_rows(context, view_);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    there.copy_table(context, g, group_views_[g], all);
  }
  there.view.groups = there.groups;
  there.copied_build = builds_;
  return there.view;
}

}  // namespace touchstone::inline v0::cache
