// Prefixes: making the pages of a sequence findable, and beginning a sequence with found pages.
#include <algorithm>

#include "cache/window.h"
#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::cache {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

// Adds the block at position `first` to the index, or completes the entry that is there. Pages that
// the index has already are left where they are.
PrefixIndex::Entry KvCache::index_block(const Sequence& sequence, std::int64_t first,
                                        std::uint64_t parent, std::span<const std::int32_t> block) {
  const std::int64_t end = first + std::ssize(block);
  std::vector<PageHandle> pages(at(index_.slots()));
  for (std::int64_t g = 0; g < groups(); ++g) {
    const std::int64_t page_tokens = groups_[at(g)].layer_group.page_tokens;
    const std::int64_t count = ceil_div(end - first, page_tokens);
    for (std::int64_t i = 0; i < count; ++i) {
      const PageHandle page = sequence.groups[at(g)].pages[at(first / page_tokens + i)];
      if (page.empty() || index_.holds(g, page.index)) continue;
      pages[at(index_.first_slot(g) + i)] = page;
    }
  }
  PrefixIndex::Entry entry = index_.find(parent, block);
  if (entry == PrefixIndex::kNone) {
    entry = index_.insert(parent, block, pages);
  } else {
    for (std::int64_t slot = 0; slot < index_.slots(); ++slot) {
      PageHandle& page = pages[at(slot)];
      if (!index_.pages(entry)[at(slot)].empty()) page = {};
      if (!page.empty()) index_.set_page(entry, slot, page);
    }
  }
  for (std::int64_t g = 0; g < groups(); ++g) {
    const std::int64_t begin = index_.first_slot(g);
    const std::int64_t count = index_.block_tokens() / groups_[at(g)].layer_group.page_tokens;
    for (std::int64_t slot = begin; slot < begin + count; ++slot) {
      if (!pages[at(slot)].empty()) groups_[at(g)].pool.keep(pages[at(slot)]);
    }
  }
  return entry;
}

void KvCache::insert_prefix(SequenceId id, std::span<const std::int32_t> tokens,
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
    // Part of a block adds nothing where a longer entry begins with it.
    const bool whole = std::ssize(block) == block_tokens;
    if (!whole && index_.find_partial(parent, block).tokens == std::ssize(block)) break;
    entry = index_block(sequence, first, parent, block);
    parent = PrefixIndex::below(entry);
  }
  if (entry != PrefixIndex::kNone) index_.prune(entry);
}

KvCache::Path KvCache::walk(std::span<const std::int32_t> tokens, std::uint32_t space) const {
  Path path;
  path.pages.resize(groups_.size());
  const auto add = [&](PrefixIndex::Entry entry, std::int64_t count) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::int64_t pages = ceil_div(count, groups_[g].layer_group.page_tokens);
      const auto found = index_.pages(entry).subspan(
          at(index_.first_slot(static_cast<std::int64_t>(g))), at(pages));
      path.pages[g].insert(path.pages[g].end(), found.begin(), found.end());
    }
    path.tokens += count;
  };
  const std::int64_t block_tokens = index_.block_tokens();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    path.pages[g].reserve(at(ceil_div(std::ssize(tokens), groups_[g].layer_group.page_tokens)));
  }
  std::uint64_t parent = PrefixIndex::root(space);
  while (path.tokens + block_tokens <= std::ssize(tokens)) {
    const PrefixIndex::Entry entry =
        index_.find(parent, tokens.subspan(at(path.tokens), at(block_tokens)));
    if (entry == PrefixIndex::kNone) break;
    add(entry, block_tokens);
    parent = PrefixIndex::below(entry);
  }
  path.whole_tokens = path.tokens;
  const std::int64_t rest = std::min(block_tokens, std::ssize(tokens) - path.tokens);
  const auto partial = index_.find_partial(parent, tokens.subspan(at(path.tokens), at(rest)));
  if (partial.tokens > 0) add(partial.entry, partial.tokens);
  return path;
}

// Whether a sequence of `tokens` would have every page that its next token sees. runs[i]: how many
// pages in a row, up to and including page i, are there.
bool KvCache::usable(const Group& group, std::span<const std::int64_t> runs,
                     std::int64_t tokens) const {
  if (tokens == 0) return true;
  const std::int64_t last = (tokens - 1) / group.layer_group.page_tokens;
  const std::int64_t first = first_needed_page(group.layer_group, tokens);
  if (first <= last && runs[at(last)] < last - first + 1) return false;
  const std::int64_t sinks = std::min(group.sink_pages, last + 1);
  return sinks == 0 || runs[at(sinks - 1)] == sinks;
}

std::int64_t KvCache::usable_tokens(const Path& path) const {
  std::vector<std::vector<std::int64_t>> runs(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::int64_t run = 0;
    runs[g].reserve(path.pages[g].size());
    for (const PageHandle page : path.pages[g]) {
      run = page.empty() ? 0 : run + 1;
      runs[g].push_back(run);
    }
  }
  const auto usable_everywhere = [&](std::int64_t tokens) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (!usable(groups_[g], runs[g], tokens)) return false;
    }
    return true;
  };
  if (usable_everywhere(path.tokens)) return path.tokens;
  std::int64_t tokens = path.whole_tokens;
  while (!usable_everywhere(tokens)) tokens -= index_.block_tokens();
  return tokens;
}

PrefixHit KvCache::open_prefix(std::span<const std::int32_t> tokens, std::uint32_t space) {
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
    for (std::int64_t i = 0; i < std::ssize(table.pages); ++i) {
      if (i >= group.sink_pages && i < table.first_kept) continue;
      table.pages[at(i)] = path.pages[g][at(i)];
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

std::int64_t KvCache::evict(std::int64_t pages) {
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

}  // namespace touchstone::cache
