// Prefixes: making the pages of a sequence findable, and beginning a sequence with found pages.
#include <algorithm>

#include "cache/cache_state.h"
#include "cache/window.h"
#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
// The pages that hold the block of tokens at position `first`, in the order of the index's slots.
std::vector<PageHandle> CacheState::block_pages(const Sequence& sequence, std::int64_t first,
                                                std::int64_t tokens) const {
  std::vector<PageHandle> pages(at(index_.slots()));
  for (std::int64_t g = 0; g < groups(); ++g) {
    const std::int64_t page_tokens = groups_[at(g)].layer_group.page_tokens;
    const std::int64_t count = ceil_div(tokens, page_tokens);
    for (std::int64_t i = 0; i < count; ++i) {
      pages[at(index_.first_slot(g) + i)] =
          sequence.groups[at(g)].pages[at(first / page_tokens + i)];
    }
  }
  return pages;
}

// Whether the index already finds every page of this part of a block.
bool CacheState::is_indexed(std::uint64_t parent, std::span<const std::int32_t> block,
                            std::span<const PageHandle> pages) const {
  std::vector<PrefixIndex::Found> found(pages.size());
  if (index_.match(parent, block, found) < std::ssize(block)) return false;
  for (std::int64_t g = 0; g < groups(); ++g) {
    const std::int64_t page_tokens = groups_[at(g)].layer_group.page_tokens;
    for (std::int64_t i = 0; i * page_tokens < std::ssize(block); ++i) {
      const std::size_t slot = at(index_.first_slot(g) + i);
      const std::int64_t held = std::min(std::ssize(block), (i + 1) * page_tokens);
      if (!pages[slot].empty() && found[slot].tokens < held) return false;
    }
  }
  return true;
}

// Adds the block to the index, or completes the entry that is there.
PrefixIndex::Entry CacheState::index_block(std::uint64_t parent,
                                           std::span<const std::int32_t> block,
                                           std::span<const PageHandle> pages) {
  PrefixIndex::Entry entry = index_.find(parent, block);
  if (entry == PrefixIndex::kNone) {
    entry = index_.insert(parent, block, std::vector<PageHandle>(pages.size()));
  }
  for (std::int64_t g = 0; g < groups(); ++g) {
    const std::int64_t begin = index_.first_slot(g);
    const std::int64_t count = index_.block_tokens() / groups_[at(g)].layer_group.page_tokens;
    for (std::int64_t slot = begin; slot < begin + count; ++slot) {
      const PageHandle page = pages[at(slot)];
      if (page.empty()) continue;
      if (index_.offer_page(entry, slot, page)) groups_[at(g)].pool.keep(page);
    }
  }
  return entry;
}

void CacheState::insert_prefix(SequenceId id, std::span<const std::int32_t> tokens,
                               std::uint32_t space) {
  Sequence& sequence = writable(id, "insert_prefix");
  if (std::ssize(tokens) > sequence.length) {
    throw InvalidArgument("kv_cache: insert_prefix: tokens: expected at most " +
                          std::to_string(sequence.length) + ", got " +
                          std::to_string(tokens.size()));
  }
  // What is reserved in the last page may no longer be written once that page is in the index.
  cut(sequence, sequence.length);
  ++generation_;
  std::uint64_t parent = PrefixIndex::root(space);
  PrefixIndex::Entry entry = PrefixIndex::kNone;
  const std::int64_t block_tokens = index_.block_tokens();
  for (std::int64_t first = 0; first < std::ssize(tokens); first += block_tokens) {
    const auto block =
        tokens.subspan(at(first)).first(at(std::min(block_tokens, std::ssize(tokens) - first)));
    const std::vector<PageHandle> pages = block_pages(sequence, first, std::ssize(block));
    if (std::ssize(block) < block_tokens && is_indexed(parent, block, pages)) break;
    entry = index_block(parent, block, pages);
    parent = PrefixIndex::below(entry);
  }
  if (entry != PrefixIndex::kNone) index_.prune(entry);
}

CacheState::Path CacheState::walk(std::span<const std::int32_t> tokens, std::uint32_t space) const {
  Path path;
  path.pages.resize(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    path.pages[g].reserve(at(ceil_div(std::ssize(tokens), groups_[g].layer_group.page_tokens)));
  }
  std::vector<PrefixIndex::Found> found(at(index_.slots()));
  const auto add = [&](std::int64_t count) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::int64_t first = index_.first_slot(static_cast<std::int64_t>(g));
      const std::int64_t pages = ceil_div(count, groups_[g].layer_group.page_tokens);
      for (std::int64_t slot = first; slot < first + pages; ++slot) {
        const auto& [page, held] = found[at(slot)];
        path.pages[g].push_back({page, path.tokens + held});
      }
    }
    path.tokens += count;
  };
  const std::int64_t block_tokens = index_.block_tokens();
  std::uint64_t parent = PrefixIndex::root(space);
  while (path.tokens + block_tokens <= std::ssize(tokens)) {
    const auto block = tokens.subspan(at(path.tokens), at(block_tokens));
    const PrefixIndex::Entry entry = index_.find(parent, block);
    if (entry == PrefixIndex::kNone) break;
    // A gap of the entry may be filled by another one that begins alike.
    if (!fill_from_entry(entry, found)) index_.match(parent, block, found);
    add(block_tokens);
    parent = PrefixIndex::below(entry);
  }
  const std::int64_t rest = std::min(block_tokens, std::ssize(tokens) - path.tokens);
  std::ranges::fill(found, PrefixIndex::Found{});
  add(index_.match(parent, tokens.subspan(at(path.tokens), at(rest)), found));
  return path;
}

// The pages of a whole block. Whether none is missing.
bool CacheState::fill_from_entry(PrefixIndex::Entry entry,
                                 std::span<PrefixIndex::Found> found) const {
  bool complete = true;
  for (std::int64_t g = 0; g < groups(); ++g) {
    const std::int64_t page_tokens = groups_[at(g)].layer_group.page_tokens;
    const std::int64_t first = index_.first_slot(g);
    for (std::int64_t i = 0; i < index_.block_tokens() / page_tokens; ++i) {
      const PageHandle page = index_.pages(entry)[at(first + i)];
      found[at(first + i)] = {page, page.empty() ? 0 : (i + 1) * page_tokens};
      complete &= !page.empty();
    }
  }
  return complete;
}

// Whether a sequence of `tokens` would have every page that its next token attends to. runs[i]: how
// many pages in a row, up to and including page i, hold all of their tokens.
bool CacheState::usable(std::size_t g, const Path& path, std::span<const std::int64_t> runs,
                        std::int64_t tokens) const {
  if (tokens == 0) return true;
  const Group& group = groups_[g];
  const std::int64_t last = (tokens - 1) / group.layer_group.page_tokens;
  // Pages [first, last] hold the first `tokens` tokens as far as they are in them.
  const auto holds = [&](std::int64_t first) {
    if (first > last) return true;
    if (path.pages[g][at(last)].end < tokens) return false;
    return first == last || runs[at(last - 1)] >= last - first;
  };
  if (!holds(first_page_to_read(group.layer_group, tokens))) return false;
  if (group.sink_pages > last) return holds(0);
  return group.sink_pages == 0 || runs[at(group.sink_pages - 1)] == group.sink_pages;
}

// The most leading tokens that a sequence can begin with.
std::int64_t CacheState::usable_tokens(const Path& path) const {
  std::vector<std::vector<std::int64_t>> runs(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int64_t page_tokens = groups_[g].layer_group.page_tokens;
    std::int64_t run = 0;
    runs[g].reserve(path.pages[g].size());
    for (const Path::Page& page : path.pages[g]) {
      run = page.end == (std::ssize(runs[g]) + 1) * page_tokens ? run + 1 : 0;
      runs[g].push_back(run);
    }
  }
  std::int64_t tokens = path.tokens;
  while (tokens > 0) {
    bool usable_everywhere = true;
    // What makes a length unusable holds down to the beginning of the last page, or to the end of
    // what is held of it.
    std::int64_t next = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      usable_everywhere &= usable(g, path, runs[g], tokens);
      const std::int64_t page_tokens = groups_[g].layer_group.page_tokens;
      const std::int64_t last = (tokens - 1) / page_tokens;
      const std::int64_t end = path.pages[g][at(last)].end;
      next = std::max({next, last * page_tokens, end < tokens ? end : 0});
    }
    if (usable_everywhere) break;
    tokens = next;
  }
  return tokens;
}

PrefixHit CacheState::open_prefix(std::span<const std::int32_t> tokens, std::uint32_t space) {
  const Path path = walk(tokens, space);
  const std::int64_t length = usable_tokens(path);
  Sequence& sequence = slots_[allocate_slot().index].sequence;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int64_t pages = ceil_div(length, groups_[g].layer_group.page_tokens);
    sequence.groups[g].pages.reserve(at(pages) + 1);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    PageTable& table = sequence.groups[g];
    table.pages.resize(at(ceil_div(length, group.layer_group.page_tokens)));
    table.first_kept = first_needed_page(group.layer_group, length);
    // The page of the next token may be missing where that token does not read it.
    if (table.first_kept == std::ssize(table.pages) - 1 &&
        path.pages[g][at(table.first_kept)].end < length) {
      ++table.first_kept;
    }
    for (std::int64_t i = 0; i < std::ssize(table.pages); ++i) {
      if (i >= group.sink_pages && i < table.first_kept) continue;
      table.pages[at(i)] = path.pages[g][at(i)].page;
    }
    group.pool.share(table.pages);
    ++table.version;
  }
  sequence.length = length;
  sequence.reserved = length;
  ++prefix_lookups_;
  prefix_hit_tokens_ += length;
  prefix_miss_tokens_ += std::ssize(tokens) - length;
  return {create(), length};  // the slot filled above
}

std::int64_t CacheState::evict(std::int64_t pages) {
  if (pages < 0) {
    throw InvalidArgument("kv_cache: evict: pages: expected at least 0, got " +
                          std::to_string(pages));
  }
  std::int64_t evicted = 0;
  for (std::int64_t g = 0; g < groups(); ++g) {
    std::int64_t left = std::min(pages, groups_[at(g)].pool.cached_pages());
    evicted += left;
    for (; left > 0; --left) evict_oldest(g);
  }
  if (evicted > 0) ++generation_;
  return evicted;
}

}  // namespace touchstone::inline v0::cache
