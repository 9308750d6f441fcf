// Sequences: their life from create to release. Prefixes are in cache_state_prefix.cc, recounts
// in cache_state_check.cc.
#include "cache/cache_state.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "cache/window.h"
#include "core/cuda_runtime.h"
#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

// A chunk that no tokens exceed.
constexpr std::int64_t kAtOnce = std::numeric_limits<std::int64_t>::max();

std::uint32_t next_cache_id() {
  static std::atomic<std::uint32_t> last{0};
  return ++last;
}

[[noreturn]] void refuse(const char* what, const std::string& expected, std::int64_t got) {
  throw InvalidArgument(std::string("kv_cache: ") + what + ": expected " + expected + ", got " +
                        std::to_string(got));
}

KvCacheOptions checked_options(Device device, KvCacheOptions options) {
  validate(options.layout);
  if (options.pool_pages.size() != options.layout.groups.size()) {
    refuse("pool_pages",
           "one number for each of " + std::to_string(options.layout.groups.size()) + " groups",
           std::ssize(options.pool_pages));
  }
  if (options.page_locked && device.is_cuda()) {
    throw InvalidArgument("kv_cache: page_locked: expected a device of cpu, got " +
                          name_of(device));
  }
  std::int64_t least = 1;
  for (const LayerGroup& group : options.layout.groups) {
    const std::int64_t step = group.page_tokens / std::gcd(least, group.page_tokens);
    least = checked_mul(least, step, "kv_cache: prefix_block_tokens");
  }
  if (options.prefix_block_tokens == 0) options.prefix_block_tokens = least;
  if (options.prefix_block_tokens < 0 || options.prefix_block_tokens % least != 0) {
    refuse("prefix_block_tokens", "a multiple of " + std::to_string(least),
           options.prefix_block_tokens);
  }
  if (options.hash_key == std::array<std::uint64_t, 2>{}) {
    std::random_device random;
    for (std::uint64_t& word : options.hash_key) {
      word = (std::uint64_t{random()} << 32) | random();
    }
  }
  return options;
}

PrefixIndexOptions index_options(const KvCacheOptions& options) {
  PrefixIndexOptions result{.block_tokens = options.prefix_block_tokens,
                            .pages_per_block = {},
                            .pool_pages = options.pool_pages,
                            .hash_key = options.hash_key};
  for (const LayerGroup& group : options.layout.groups) {
    result.pages_per_block.push_back(options.prefix_block_tokens / group.page_tokens);
  }
  return result;
}

}  // namespace

CacheState::CacheState(Device device, void* stream, KvCacheOptions options)
    : device_(device),
      stream_(stream),
      options_(checked_options(device, std::move(options))),
      index_(index_options(options_)),
      id_(next_cache_id()) {
  for (std::size_t g = 0; g < options_.layout.groups.size(); ++g) {
    const LayerGroup& group = options_.layout.groups[g];
    const PageGeometry geometry = page_geometry(group);
    const std::int64_t pages = options_.pool_pages[g];
    PagePool pool(pages);
    checked_mul(pages, geometry.page_bytes, "kv_cache: bytes");
    groups_.push_back(
        {.layer_group = group,
         .geometry = geometry,
         .pool = std::move(pool),
         .memory = options_.page_locked
                       ? Tensor::page_locked({pages, geometry.page_bytes}, DType::u8)
                       : Tensor::empty({pages, geometry.page_bytes}, DType::u8, device_),
         .sink_pages = ceil_div(group.sinks, group.page_tokens)});
  }
}

const CacheState::Slot& CacheState::checked(SequenceId id, const char* what) const {
  const bool here = id.cache == id_ && id.index < slots_.size();
  if (!here || !slots_[id.index].live || slots_[id.index].generation != id.generation) {
    throw InvalidArgument(std::string("kv_cache: ") + what + ": sequence " +
                          std::to_string(id.index) +
                          (here ? " was released" : " is not of this cache"));
  }
  return slots_[id.index];
}

CacheState::Slot& CacheState::checked(SequenceId id, const char* what) {
  return const_cast<Slot&>(static_cast<const CacheState*>(this)->checked(id, what));
}

const CacheState::Group& CacheState::group_at(std::int64_t group) const {
  if (group < 0 || group >= groups()) {
    refuse("group", "0 to " + std::to_string(groups() - 1), group);
  }
  return groups_[at(group)];
}

const Sequence& CacheState::sequence(SequenceId id) const {
  return checked(id, "sequence").sequence;
}
const PageGeometry& CacheState::geometry(std::int64_t g) const { return group_at(g).geometry; }
const PagePool& CacheState::pool(std::int64_t g) const { return group_at(g).pool; }
const Tensor& CacheState::memory(std::int64_t g) const { return group_at(g).memory; }

std::byte* CacheState::memory_data(std::int64_t g) {
  group_at(g);
  return static_cast<std::byte*>(groups_[at(g)].memory.data());
}

// From here on create() can be called so often without allocating.
void CacheState::reserve_slots(std::size_t count) {
  if (unused_slots_.size() >= count) return;
  const std::size_t needed = slots_.size() + count - unused_slots_.size();
  if (needed > slots_.capacity()) slots_.reserve(std::max(needed, slots_.size() * 2 + 16));
  // release() must be able to note every slot without allocating.
  unused_slots_.reserve(slots_.capacity());
  while (slots_.size() < needed) {
    Slot slot;
    slot.sequence.groups.resize(groups_.size());
    slots_.push_back(std::move(slot));
    unused_slots_.push_back(static_cast<std::uint32_t>(slots_.size() - 1));
  }
}

SequenceId CacheState::allocate_slot() {
  reserve_slots(1);
  return {unused_slots_.back(), slots_[unused_slots_.back()].generation, id_};
}

SequenceId CacheState::create() {
  const SequenceId id = allocate_slot();
  unused_slots_.pop_back();
  slots_[id.index].live = true;
  ++live_sequences_;
  ++generation_;
  return id;
}

// Whether the next token needs another page than the last one: it is shared, or the window has
// passed it before a truncation.
bool CacheState::must_replace_last(const Group& group, const Sequence& sequence,
                                   const PageTable& table) const {
  // What is reserved beyond the length has been made private when it was reserved.
  if (sequence.length % group.layer_group.page_tokens == 0) return false;
  if (sequence.reserved > sequence.length) return false;
  const PageHandle last = table.pages.back();
  return last.empty() || group.pool.references(last) > 1 || group.pool.kept(last);
}

std::int64_t CacheState::missing_pages(const Group& group, const Sequence& sequence,
                                       const PageTable& table, std::int64_t tokens) const {
  const std::int64_t end = checked_add(sequence.length, tokens, "kv_cache: reserve: tokens");
  const std::int64_t pages = ceil_div(end, group.layer_group.page_tokens);
  const std::int64_t added = std::max<std::int64_t>(pages - std::ssize(table.pages), 0);
  return added + (must_replace_last(group, sequence, table) ? 1 : 0);
}

// The most pages of a windowed group that are taken beyond those of now while `tokens` come in
// chunks.
std::int64_t CacheState::missing_pages_in_chunks(const Group& group, const Sequence& sequence,
                                                 const PageTable& table, std::int64_t tokens,
                                                 std::int64_t chunk) const {
  const std::int64_t at_once = missing_pages(group, sequence, table, tokens);
  if (group.layer_group.window == 0 || tokens <= chunk) return at_once;
  // Whole pages of sinks stay, and what the window passes is free again, unless others hold it too.
  const std::int64_t staying =
      std::min(group.sink_pages, sequence.length / group.layer_group.page_tokens);
  std::int64_t held = 0;
  for (std::int64_t i = 0; i < std::ssize(table.pages); ++i) {
    const PageHandle page = table.pages[at(i)];
    if (page.empty()) continue;
    if (i < staying || group.pool.references(page) == 1) ++held;
  }
  const std::int64_t later = window_pages(group.layer_group, chunk) - held;
  return std::min(at_once, std::max(later, missing_pages(group, sequence, table, chunk)));
}

void CacheState::evict_oldest(std::int64_t g) {
  Group& group = groups_[at(g)];
  const PageHandle page = group.pool.oldest_cached();
  if (eviction_hook_) {
    const PrefixIndex::Prefix prefix = index_.prefix_of(g, page.index);
    const std::int64_t bytes = group.geometry.page_bytes;
    eviction_hook_({.layer_group = g,
                    .bytes = {memory_data(g) + page.index * bytes, at(bytes)},
                    .first_position = prefix.first_position,
                    .tokens = prefix.tokens,
                    .space = prefix.space});
  }
  index_.remove_page(g, page.index);
  group.pool.evict(page);
  ++group.evicted;
}

// OutOfMemory unless each group has this many free or cached pages.
void CacheState::check_capacity(const std::vector<std::int64_t>& pages, const char* what,
                                std::int64_t watermark) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const PagePool& pool = groups_[g].pool;
    const std::int64_t there = pool.free_pages() + pool.cached_pages();
    if (pages[g] == 0 || (pages[g] <= there && there - pages[g] >= watermark)) continue;
    ++refused_reservations_;
    throw OutOfMemory(std::string("kv_cache: ") + what + ": expected " + std::to_string(pages[g]) +
                      (watermark > 0 ? " + " + std::to_string(watermark) + " (watermark)" : "") +
                      " free or cached pages in group " + std::to_string(g) + ", got " +
                      std::to_string(there));
  }
}

// Evicts cached pages until each group has this many free ones.
void CacheState::ensure_free(const std::vector<std::int64_t>& pages) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    while (groups_[g].pool.free_pages() < pages[g]) evict_oldest(static_cast<std::int64_t>(g));
  }
}

void CacheState::replace_last_page(Group& group, const Sequence& sequence, PageTable& table) {
  const std::int64_t last = sequence.length / group.layer_group.page_tokens;
  PageHandle& page = table.pages[at(last)];
  PageHandle fresh;
  group.pool.take({&fresh, 1});
  const std::int64_t bytes = group.geometry.page_bytes;
  auto* memory = static_cast<std::byte*>(group.memory.data());
  std::byte* to = memory + fresh.index * bytes;
  if (page.empty()) {
    // Nobody reads the positions before the length; they are zero, as in a snapshot.
    if (device().is_cuda()) {
      cuda::fill_zero(device().index, to, bytes, stream_);
    } else {
      std::memset(to, 0, at(bytes));
    }
    table.first_kept = last;
  } else {
    const std::byte* from = memory + page.index * bytes;
    if (device().is_cuda()) {
      cuda::copy(device(), to, device(), from, bytes, stream_);
    } else {
      std::memcpy(to, from, at(bytes));
    }
    group.pool.drop(page);
    ++group.copied;
  }
  page = fresh;
  ++table.version;
}

// Takes the pages that reserve() has counted and freed.
void CacheState::grow(Sequence& sequence, std::int64_t tokens) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    PageTable& table = sequence.groups[g];
    if (must_replace_last(group, sequence, table)) replace_last_page(group, sequence, table);
    const std::int64_t pages = ceil_div(sequence.length + tokens, group.layer_group.page_tokens);
    const std::size_t before = table.pages.size();
    if (at(pages) <= before) continue;
    table.pages.resize(at(pages));
    group.pool.take(std::span(table.pages).subspan(before));
  }
  sequence.reserved = std::max(sequence.reserved, sequence.length + tokens);
}

// Pages of each group that reserve() would take, `chunk` tokens of a sequence at a time.
std::vector<std::int64_t> CacheState::count_pages(std::span<const TokenCount> counts,
                                                  std::int64_t chunk, const char* what) const {
  std::vector<std::int64_t> needed(groups_.size());
  for (const TokenCount& count : counts) {
    if (count.tokens < 0) refuse("reserve: tokens", "at least 0", count.tokens);
    const Sequence& sequence = checked(count.id, what).sequence;
    for (std::size_t g = 0; count.tokens > 0 && g < groups_.size(); ++g) {
      needed[g] = checked_add(
          needed[g],
          missing_pages_in_chunks(groups_[g], sequence, sequence.groups[g], count.tokens, chunk),
          "kv_cache: reserve: tokens");
    }
  }
  return needed;
}

ReserveEstimate CacheState::estimate_reserve(std::span<const TokenCount> counts,
                                             std::int64_t watermark) const {
  if (watermark < 0) refuse("reserve: watermark", "at least 0", watermark);
  return estimate(count_pages(counts, kAtOnce, "estimate_reserve"), watermark);
}

ReserveEstimate CacheState::estimate_chunks(std::span<const TokenCount> counts,
                                            std::int64_t chunk) const {
  if (chunk < 1) refuse("estimate_chunks: chunk", "at least 1", chunk);
  return estimate(count_pages(counts, chunk, "estimate_chunks"), 0);
}

ReserveEstimate CacheState::estimate(std::vector<std::int64_t> pages,
                                     std::int64_t watermark) const {
  ReserveEstimate estimate{.pages = std::move(pages), .fits = true};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const PagePool& pool = groups_[g].pool;
    const std::int64_t left = pool.free_pages() + pool.cached_pages() - estimate.pages[g];
    estimate.fits = estimate.fits && (estimate.pages[g] == 0 || left >= watermark);
  }
  return estimate;
}

void CacheState::reserve(std::span<const TokenCount> counts, std::int64_t watermark) {
  if (watermark < 0) refuse("reserve: watermark", "at least 0", watermark);
  const std::vector<std::int64_t> needed = count_pages(counts, kAtOnce, "reserve");
  if (std::ranges::all_of(counts, [](const TokenCount& count) { return count.tokens == 0; }))
    return;
  check_capacity(needed, "reserve", watermark);
  // Here, so that nothing below can run out of host memory.
  for (const TokenCount& count : counts) {
    Sequence& sequence = slots_[count.id.index].sequence;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (needed[g] == 0) continue;
      PageTable& table = sequence.groups[g];
      const std::size_t least =
          table.pages.size() + at(missing_pages(groups_[g], sequence, table, count.tokens));
      if (least > table.pages.capacity()) table.pages.reserve(std::max(least, least * 3 / 2));
    }
  }
  ensure_free(needed);
  for (const TokenCount& count : counts) {
    if (count.tokens > 0) grow(slots_[count.id.index].sequence, count.tokens);
  }
  ++generation_;
}

void CacheState::reserve(std::span<const SequenceId> ids, std::int64_t tokens) {
  if (tokens < 0) refuse("reserve: tokens", "at least 0", tokens);
  std::vector<TokenCount> counts;
  counts.reserve(ids.size());
  for (const SequenceId id : ids) counts.push_back({id, tokens});
  reserve(counts, 0);
}

void CacheState::commit(std::span<const TokenCount> counts) {
  for (const TokenCount& count : counts) {
    if (count.tokens < 0) refuse("commit: tokens", "at least 0", count.tokens);
    const Sequence& sequence = writable(count.id, "commit");
    const std::int64_t left = sequence.reserved - sequence.length;
    if (count.tokens > left) {
      refuse("commit: tokens", "at most the reserved " + std::to_string(left), count.tokens);
    }
  }
  // A sequence named twice has slots for the first time only; the second must not pass unnoticed.
  for (std::size_t i = 0; i < counts.size(); ++i) {
    Sequence& sequence = slots_[counts[i].id.index].sequence;
    if (sequence.length + counts[i].tokens > sequence.reserved) {
      while (i-- > 0) slots_[counts[i].id.index].sequence.length -= counts[i].tokens;
      throw InvalidArgument("kv_cache: commit: a sequence is named twice");
    }
    sequence.length += counts[i].tokens;
  }
  ++generation_;
}

void CacheState::commit(std::span<const SequenceId> ids, std::int64_t tokens) {
  std::vector<TokenCount> counts;
  counts.reserve(ids.size());
  for (const SequenceId id : ids) counts.push_back({id, tokens});
  commit(counts);
}

// Drops every page that holds no position below `length`, the last ones first: of pages that become
// cached, the end of a prompt is then evicted before its beginning.
void CacheState::cut(Sequence& sequence, std::int64_t length) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    PageTable& table = sequence.groups[g];
    const std::int64_t pages = ceil_div(length, group.layer_group.page_tokens);
    if (std::ssize(table.pages) > pages) {
      group.pool.drop(std::span(table.pages).subspan(at(pages)));
      table.pages.resize(at(pages));
      ++table.version;
    }
    // Back among the sinks there is no gap any more.
    if (table.first_kept > pages) table.first_kept = pages > group.sink_pages ? pages : 0;
  }
  sequence.length = length;
  sequence.reserved = length;
}

void CacheState::truncate(SequenceId id, std::int64_t length) {
  Sequence& sequence = writable(id, "truncate");
  if (length < 0 || length > sequence.length) {
    refuse("truncate: length", "0 to " + std::to_string(sequence.length), length);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const std::int64_t pages = ceil_div(length, group.layer_group.page_tokens);
    const std::int64_t gap_end = std::min(sequence.groups[g].first_kept, pages);
    if (std::max(first_page_to_read(group.layer_group, length), group.sink_pages) < gap_end) {
      refuse("truncate: length",
             "a length whose window is still there (group " + std::to_string(g) + ")", length);
    }
  }
  cut(sequence, length);
  ++generation_;
}

SequenceId CacheState::fork(SequenceId id) {
  checked(id, "fork");
  const SequenceId child_id = allocate_slot();  // may move the slots
  Sequence& parent = slots_[id.index].sequence;
  Sequence& child = slots_[child_id.index].sequence;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    child.groups[g].pages.reserve(parent.groups[g].pages.size() + 1);
  }
  cut(parent, parent.length);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    child.groups[g].pages = parent.groups[g].pages;
    child.groups[g].first_kept = parent.groups[g].first_kept;
    groups_[g].pool.share(child.groups[g].pages);
  }
  child.length = parent.length;
  child.reserved = parent.length;
  return create();  // the slot allocated above
}

void CacheState::advance_window(SequenceId id) {
  Sequence& sequence = writable(id, "advance_window");
  bool changed = false;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    PageTable& table = sequence.groups[g];
    const std::int64_t needed = first_needed_page(group.layer_group, sequence.length);
    if (needed <= table.first_kept) continue;
    const std::int64_t begin = std::max(table.first_kept, group.sink_pages);
    const std::int64_t end = std::min(needed, std::ssize(table.pages));
    table.first_kept = needed;
    if (begin >= end) continue;
    const std::span<PageHandle> passed = std::span(table.pages).subspan(at(begin), at(end - begin));
    group.pool.drop(passed);
    std::ranges::fill(passed, PageHandle{});
    ++table.version;
    changed = true;
  }
  if (changed) ++generation_;
}

void CacheState::release(SequenceId id) {
  Slot& slot = checked(id, "release");
  cut(slot.sequence, 0);
  slot.live = false;
  ++slot.generation;
  unused_slots_.push_back(id.index);
  --live_sequences_;
  ++generation_;
}

std::span<const std::byte> CacheState::page_at(SequenceId id, std::int64_t g,
                                               std::int64_t position) const {
  const Sequence& sequence = checked(id, "page_at").sequence;
  const Group& group = group_at(g);
  if (position < 0 || position >= sequence.length) {
    refuse("page_at: position", "0 to " + std::to_string(sequence.length - 1), position);
  }
  const PageHandle page =
      sequence.groups[at(g)].pages[at(position / group.layer_group.page_tokens)];
  if (page.empty()) refuse("page_at: position", "one that the window has not passed", position);
  const std::int64_t bytes = group.geometry.page_bytes;
  return {static_cast<const std::byte*>(group.memory.data()) + page.index * bytes, at(bytes)};
}

std::span<std::byte> CacheState::writable_page_at(SequenceId id, std::int64_t g,
                                                  std::int64_t position) {
  const Sequence& sequence = checked(id, "writable_page_at").sequence;
  const Group& group = group_at(g);
  if (position < sequence.length || position >= sequence.reserved) {
    refuse("writable_page_at: position",
           "one of the reserved [" + std::to_string(sequence.length) + ", " +
               std::to_string(sequence.reserved) + ")",
           position);
  }
  const PageHandle page =
      sequence.groups[at(g)].pages[at(position / group.layer_group.page_tokens)];
  const std::int64_t bytes = group.geometry.page_bytes;
  return {memory_data(g) + page.index * bytes, at(bytes)};
}

}  // namespace touchstone::inline v0::cache
