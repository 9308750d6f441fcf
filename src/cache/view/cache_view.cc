#include "touchstone/cache/cache_view.h"

#include <algorithm>
#include <bit>
#include <string>

#include "cache/view/view_state.h"
#include "core/index.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

// A narrow table would be laid out anew every few tokens.
constexpr std::int64_t kMinStride = 8;

// Appends [begin, end), joined with the range before it where they touch.
void note(std::vector<ChangedRange>& ranges, std::int64_t begin, std::int64_t end) {
  if (!ranges.empty() && ranges.back().end >= begin) {
    ranges.back().end = std::max(ranges.back().end, end);
  } else {
    ranges.push_back({begin, end});
  }
}

template <class T>
bool assign(T& place, T value) {
  if (place == value) return false;
  place = value;
  return true;
}

// kNoPage and -1 are the same 32 bits.
std::int32_t number_of(PageHandle page) { return static_cast<std::int32_t>(page.index); }

}  // namespace

void CacheViewBuilder::State::check(std::span<const SequenceId> ids) const {
  for (const SequenceId id : ids) cache_->sequence(id);
  if (shape_.rows == 0) return;
  if (std::ssize(ids) > shape_.rows) {
    throw InvalidArgument("cache_view: ids: expected at most " + std::to_string(shape_.rows) +
                          ", the rows of the view, got " + std::to_string(ids.size()));
  }
  for (const SequenceId id : ids) {
    const std::int64_t tokens = cache_->sequence(id).reserved;
    if (tokens > shape_.tokens) {
      throw InvalidArgument("cache_view: ids: sequence " + std::to_string(id.index) +
                            ": expected at most " + std::to_string(shape_.tokens) +
                            " tokens with those reserved, got " + std::to_string(tokens));
    }
  }
}

// Sizes the arrays for these sequences. Where rows move, everything counts as changed.
void CacheViewBuilder::State::resize_arrays(std::span<const SequenceId> ids) {
  const std::int64_t rows = std::max(shape_.rows, std::ssize(ids));
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    GroupArrays& arrays = groups_[g];
    std::int64_t longest = 0;
    for (const SequenceId id : ids) {
      longest = std::max(longest, std::ssize(cache_->sequence(id).groups[g].pages));
    }
    if (longest > arrays.stride) {
      const auto pages = static_cast<std::uint64_t>(std::max(longest, kMinStride));
      arrays.stride = static_cast<std::int64_t>(std::bit_ceil(pages));
      arrays.rows.assign(arrays.rows.size(), {});
      std::fill(arrays.table.begin(), arrays.table.end(), -1);
      for (Row& row : rows_) row.known = false;
    }
    arrays.table.resize(at(rows * arrays.stride), -1);
    arrays.rows.resize(at(rows));
    arrays.first_positions.resize(at(rows));
    arrays.last_page_fill.resize(at(rows));
    arrays.changed.clear();
  }
  rows_.resize(at(rows));
  lengths_.resize(at(rows));
  reserved_.resize(at(rows));
  changed_rows_.clear();
}

void CacheViewBuilder::State::update_table(GroupArrays& arrays, std::int64_t row,
                                           bool same_sequence, const PageTable& table) {
  RowTable& before = arrays.rows[at(row)];
  const std::int64_t pages = std::ssize(table.pages);
  const std::int64_t base = row * arrays.stride;
  std::int32_t* numbers = arrays.table.data() + base;
  if (same_sequence && before.version == table.version) {
    // Pages were added at the end and nothing else happened.
    for (std::int64_t i = before.pages; i < pages; ++i) numbers[i] = number_of(table.pages[at(i)]);
    if (before.pages < pages) note(arrays.changed, base + before.pages, base + pages);
  } else {
    std::int64_t begin = -1;
    std::int64_t end = -1;
    for (std::int64_t i = 0; i < std::max(pages, before.pages); ++i) {
      const std::int32_t number = i < pages ? number_of(table.pages[at(i)]) : -1;
      if (!assign(numbers[i], number)) continue;
      if (begin < 0) begin = i;
      end = i + 1;
    }
    if (begin >= 0) note(arrays.changed, base + begin, base + end);
  }
  before = {table.version, pages};
}

bool CacheViewBuilder::State::update_row(std::int64_t row, const Sequence& sequence) {
  bool changed = assign(lengths_[at(row)], sequence.length);
  changed |= assign(reserved_[at(row)], sequence.reserved);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int64_t page_tokens = cache_->layout().groups[g].page_tokens;
    const std::int64_t first = sequence.groups[g].first_kept * page_tokens;
    const std::int64_t fill = sequence.length == 0 ? 0 : (sequence.length - 1) % page_tokens + 1;
    changed |= assign(groups_[g].first_positions[at(row)], first);
    changed |= assign(groups_[g].last_page_fill[at(row)], static_cast<std::int32_t>(fill));
  }
  return changed;
}

const CacheView& CacheViewBuilder::State::build(std::span<const SequenceId> ids) {
  check(ids);
  resize_arrays(ids);
  for (std::int64_t r = 0; r < std::ssize(rows_); ++r) {
    const bool given = r < std::ssize(ids);
    const SequenceId id = given ? ids[at(r)] : SequenceId{};
    const Sequence& sequence = given ? cache_->sequence(id) : empty_sequence_;
    Row& row = rows_[at(r)];
    const bool same = row.known && row.id == id;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      GroupArrays& arrays = groups_[g];
      // A row that is new or moved is not in a copy of the previous array: all of it has changed.
      if (!row.known) note(arrays.changed, r * arrays.stride, (r + 1) * arrays.stride);
      update_table(arrays, r, same, sequence.groups[g]);
    }
    if (update_row(r, sequence) || !row.known) note(changed_rows_, r, r + 1);
    row = {id, true};
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<std::int64_t>(g);
    const GroupArrays& arrays = groups_[g];
    group_views_[g] = {.memory = cache_->memory_data(group),
                       .pages = cache_->pool(group).capacity(),
                       .layer_group = cache_->layout().groups[g],
                       .geometry = cache_->geometry(group),
                       .page_tokens = cache_->layout().groups[g].page_tokens,
                       .table_stride = arrays.stride,
                       .page_table = arrays.table,
                       .first_positions = arrays.first_positions,
                       .last_page_fill = arrays.last_page_fill,
                       .changed_table = arrays.changed};
  }
  view_ = {.generation = cache_->generation(),
           .rows = std::ssize(rows_),
           .lengths = lengths_,
           .reserved = reserved_,
           .groups = group_views_,
           .changed_rows = changed_rows_};
  ++builds_;
  return view_;
}

CacheViewBuilder::CacheViewBuilder(KvCache& cache)
    : state_(std::make_unique<State>(state_of(cache), ViewShape{})) {}
CacheViewBuilder::CacheViewBuilder(KvCache& cache, ViewShape shape) {
  if (shape.rows < 1 || shape.tokens < 1) {
    throw InvalidArgument("cache_view: shape: expected at least 1 row and 1 token, got " +
                          std::to_string(shape.rows) + " and " + std::to_string(shape.tokens));
  }
  state_ = std::make_unique<State>(state_of(cache), shape);
}
CacheViewBuilder::~CacheViewBuilder() = default;
CacheViewBuilder::CacheViewBuilder(CacheViewBuilder&&) noexcept = default;
CacheViewBuilder& CacheViewBuilder::operator=(CacheViewBuilder&&) noexcept = default;

const CacheView& CacheViewBuilder::build(std::span<const SequenceId> ids) {
  return state_->build(ids);
}
const CacheView& CacheViewBuilder::build(Context& context, std::span<const SequenceId> ids) {
  return state_->build(context, ids);
}
bool CacheViewBuilder::is_current(const CacheView& view) const { return state_->is_current(view); }

}  // namespace touchstone::inline v0::cache
