#include "cache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

// Children compared for a partial match; more would make a lookup slower than what it saves.
constexpr int kMatchCandidates = 64;

// SipHash (Aumasson and Bernstein, 2012) with 1 round per word and 3 at the end: keyed, so that
// collisions cannot be constructed without the key.
class SipHash13 {
 public:
  explicit SipHash13(const std::array<std::uint64_t, 2>& key)
      : v0_(key[0] ^ 0x736f6d6570736575ULL),
        v1_(key[1] ^ 0x646f72616e646f6dULL),
        v2_(key[0] ^ 0x6c7967656e657261ULL),
        v3_(key[1] ^ 0x7465646279746573ULL) {}

  void add(std::uint64_t word) {
    v3_ ^= word;
    round();
    v0_ ^= word;
  }
  std::uint64_t finish() {
    v2_ ^= 0xff;
    round();
    round();
    round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_;
    v2_ += v3_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v1_;
    v0_ += v3_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

bool equal(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

bool begins_with(std::span<const std::int32_t> tokens, std::span<const std::int32_t> beginning) {
  return tokens.size() >= beginning.size() && equal(tokens.first(beginning.size()), beginning);
}

}  // namespace

PrefixIndex::PrefixIndex(PrefixIndexOptions options) : options_(std::move(options)) {
  if (options_.block_tokens < 1) {
    throw InvalidArgument("prefix_index: block_tokens: expected at least 1, got " +
                          std::to_string(options_.block_tokens));
  }
  if (options_.pages_per_block.size() != options_.pool_pages.size() ||
      options_.pages_per_block.empty()) {
    throw InvalidArgument("prefix_index: pages_per_block: expected one number per pool");
  }
  for (std::size_t g = 0; g < options_.pool_pages.size(); ++g) {
    if (options_.pages_per_block[g] < 1) {
      throw InvalidArgument("prefix_index: pages_per_block: expected at least 1, got " +
                            std::to_string(options_.pages_per_block[g]));
    }
    first_slot_.push_back(slots_);
    slots_ = checked_add(slots_, options_.pages_per_block[g], "prefix_index: slots");
    holder_of_.emplace_back(at(options_.pool_pages[g]));
  }
  indexed_.resize(holder_of_.size());
  buckets_.assign(64, kNone);
}

std::uint64_t PrefixIndex::hash_of(std::uint64_t parent,
                                   std::span<const std::int32_t> tokens) const {
  SipHash13 hash(options_.hash_key);
  hash.add(parent);
  std::size_t i = 0;
  for (; i + 2 <= tokens.size(); i += 2) {
    std::uint64_t word = 0;
    std::memcpy(&word, &tokens[i], sizeof(word));
    hash.add(word);
  }
  if (i < tokens.size()) hash.add(static_cast<std::uint32_t>(tokens[i]));
  hash.add(tokens.size());
  return hash.finish();
}

std::span<const std::int32_t> PrefixIndex::tokens(Entry entry) const {
  return {tokens_.data() + at(entry * options_.block_tokens), nodes_[entry].token_count};
}

std::span<const PageHandle> PrefixIndex::pages(Entry entry) const {
  return {pages_.data() + at(entry * slots_), at(slots_)};
}

std::int64_t PrefixIndex::first_slot(std::int64_t group) const { return first_slot_.at(at(group)); }

std::int64_t PrefixIndex::indexed_pages(std::int64_t group) const { return indexed_.at(at(group)); }

bool PrefixIndex::holds(std::int64_t group, std::uint32_t page) const {
  return holder_of_.at(at(group)).at(page).entry != kNone;
}

std::int64_t PrefixIndex::group_of_slot(std::int64_t slot) const {
  const auto next = std::upper_bound(first_slot_.begin(), first_slot_.end(), slot);
  return next - first_slot_.begin() - 1;
}

PrefixIndex::Entry PrefixIndex::find(std::uint64_t parent,
                                     std::span<const std::int32_t> wanted) const {
  const std::uint64_t hash = hash_of(parent, wanted);
  Entry entry = buckets_[hash & (buckets_.size() - 1)];
  while (entry != kNone) {
    const Node& node = nodes_[entry];
    if (node.hash == hash && node.parent == parent && equal(tokens(entry), wanted)) return entry;
    entry = node.next_in_bucket;
  }
  return kNone;
}

PrefixIndex::Entry PrefixIndex::first_child_of(std::uint64_t parent) const {
  if (parent < kNone) return nodes_[parent].first_child;
  const auto root = roots_.find(parent);
  return root == roots_.end() ? kNone : root->second;
}

PrefixIndex::Entry& PrefixIndex::first_child_slot(std::uint64_t parent) {
  if (parent < kNone) return nodes_[parent].first_child;
  return roots_.try_emplace(parent, kNone).first->second;
}

std::int64_t PrefixIndex::match(std::uint64_t parent, std::span<const std::int32_t> wanted,
                                std::span<Found> found) const {
  std::int64_t longest = 0;
  Entry child = first_child_of(parent);
  for (int i = 0; i < kMatchCandidates && child != kNone; ++i) {
    const std::span<const std::int32_t> have = tokens(child);
    const std::size_t most = std::min(have.size(), wanted.size());
    const auto end = std::mismatch(have.begin(), have.begin() + static_cast<std::ptrdiff_t>(most),
                                   wanted.begin());
    const std::int64_t common = end.first - have.begin();
    longest = std::max(longest, common);
    for (std::size_t g = 0; common > 0 && g < first_slot_.size(); ++g) {
      const std::int64_t page_tokens = options_.block_tokens / options_.pages_per_block[g];
      for (std::int64_t page = 0; page * page_tokens < common; ++page) {
        const std::int64_t slot = first_slot_[g] + page;
        const std::int64_t held = std::min(common, (page + 1) * page_tokens);
        Found& best = found[at(slot)];
        const PageHandle handle = pages(child)[at(slot)];
        if (!handle.empty() && held > best.tokens) best = {handle, held};
      }
    }
    child = nodes_[child].older_sibling;
  }
  return longest;
}

PrefixIndex::Entry PrefixIndex::allocate_node() {
  if (!unused_.empty()) {
    const Entry entry = unused_.back();
    unused_.pop_back();
    return entry;
  }
  // Everything that may fail comes first; unused_ must take every node without allocating.
  nodes_.reserve(nodes_.size() + 1 > nodes_.capacity() ? nodes_.size() * 2 + 16 : 0);
  unused_.reserve(nodes_.capacity());
  tokens_.resize((nodes_.size() + 1) * at(options_.block_tokens));
  next_holder_.resize((nodes_.size() + 1) * at(slots_));
  pages_.resize((nodes_.size() + 1) * at(slots_));
  nodes_.emplace_back();
  return static_cast<Entry>(nodes_.size() - 1);
}

void PrefixIndex::grow_buckets() {
  std::vector<Entry> buckets(buckets_.size() * 2, kNone);
  for (Entry entry = 0; entry < nodes_.size(); ++entry) {
    Node& node = nodes_[entry];
    if (node.token_count == 0) continue;
    Entry& bucket = buckets[node.hash & (buckets.size() - 1)];
    node.next_in_bucket = bucket;
    bucket = entry;
  }
  buckets_.swap(buckets);
}

PrefixIndex::Entry PrefixIndex::insert(std::uint64_t parent, std::span<const std::int32_t> block,
                                       std::span<const PageHandle> pages) {
  if (block.empty() || std::ssize(block) > options_.block_tokens || std::ssize(pages) != slots_) {
    throw InvalidArgument("prefix_index: insert: expected 1 to " +
                          std::to_string(options_.block_tokens) + " tokens and " +
                          std::to_string(slots_) + " pages");
  }
  if (static_cast<std::int64_t>(buckets_.size()) <= live_) grow_buckets();
  first_child_slot(parent);  // may allocate, so before anything else changes
  const Entry entry = allocate_node();
  Node& node = nodes_[entry];
  node = {};
  node.parent = parent;
  node.hash = hash_of(parent, block);
  node.token_count = static_cast<std::uint32_t>(block.size());
  std::copy(block.begin(), block.end(), tokens_.begin() + entry * options_.block_tokens);
  std::fill_n(pages_.begin() + entry * slots_, slots_, PageHandle{});
  Entry& bucket = buckets_[node.hash & (buckets_.size() - 1)];
  node.next_in_bucket = bucket;
  bucket = entry;
  Entry& first = first_child_slot(parent);
  node.older_sibling = first;
  if (first != kNone) nodes_[first].newer_sibling = entry;
  first = entry;
  ++live_;
  for (std::int64_t slot = 0; slot < slots_; ++slot) {
    if (!pages[at(slot)].empty()) set_page(entry, slot, pages[at(slot)]);
  }
  return entry;
}

PrefixIndex::Prefix PrefixIndex::prefix_of(std::int64_t group, std::uint32_t page) const {
  const PageSlot holder = holder_of_[at(group)][page];
  if (holder.entry == kNone) return {};
  std::vector<Entry> path = {holder.entry};
  std::uint64_t parent = nodes_[holder.entry].parent;
  while (parent >> 32 == 0) {
    path.push_back(static_cast<Entry>(parent));
    parent = nodes_[path.back()].parent;
  }
  Prefix prefix{.space = static_cast<std::uint32_t>(parent)};
  for (auto entry = path.rbegin(); entry != path.rend(); ++entry) {
    const std::span<const std::int32_t> block = tokens(*entry);
    prefix.tokens.insert(prefix.tokens.end(), block.begin(), block.end());
  }
  const std::int64_t page_tokens = options_.block_tokens / options_.pages_per_block[at(group)];
  const std::int64_t begin = (std::ssize(path) - 1) * options_.block_tokens;
  prefix.first_position = begin + (holder.slot - first_slot_[at(group)]) * page_tokens;
  const std::int64_t end = std::min(std::ssize(prefix.tokens), prefix.first_position + page_tokens);
  prefix.tokens.resize(at(end));
  return prefix;
}

PrefixIndex::PageSlot& PrefixIndex::next_holder(PageSlot holder) {
  return next_holder_[at(holder.entry * slots_ + holder.slot)];
}

void PrefixIndex::set_page(Entry entry, std::int64_t slot, PageHandle page) {
  const std::int64_t group = group_of_slot(slot);
  PageSlot& first = holder_of_[at(group)].at(page.index);
  PageHandle& held = pages_[at(entry * slots_ + slot)];
  if (!held.empty() || (first.entry != kNone && first.slot != slot)) {
    throw InvalidArgument("prefix_index: set_page: slot " + std::to_string(slot) +
                          (held.empty() ? " is not that of page " : " is taken; page ") +
                          std::to_string(page.index));
  }
  if (first.entry == kNone) ++indexed_[at(group)];
  held = page;
  const PageSlot holder{entry, static_cast<std::uint32_t>(slot)};
  next_holder(holder) = first;
  first = holder;
  ++nodes_[entry].page_count;
}

bool PrefixIndex::offer_page(Entry entry, std::int64_t slot, PageHandle page) {
  if (!pages(entry)[at(slot)].empty()) return false;
  const std::span<const std::int32_t> block = tokens(entry);
  const PageSlot first = holder_of_[at(group_of_slot(slot))].at(page.index);
  for (PageSlot holder = first; holder.entry != kNone; holder = next_holder(holder)) {
    if (begins_with(tokens(holder.entry), block)) return false;
  }
  set_page(entry, slot, page);
  for (PageSlot holder = first; holder.entry != kNone;) {
    const PageSlot next = next_holder(holder);
    if (begins_with(block, tokens(holder.entry))) {
      remove_holder(holder);
      prune(holder.entry);
    }
    holder = next;
  }
  return first.entry == kNone;
}

// Takes the page out of one slot; entry and page may be left without the other.
void PrefixIndex::remove_holder(PageSlot holder) {
  PageHandle& page = pages_[at(holder.entry * slots_ + holder.slot)];
  PageSlot* link = &holder_of_[at(group_of_slot(holder.slot))][page.index];
  while (*link != holder) link = &next_holder(*link);
  *link = next_holder(holder);
  page = {};
  --nodes_[holder.entry].page_count;
}

void PrefixIndex::remove_page(std::int64_t group, std::uint32_t page) {
  const PageSlot& first = holder_of_.at(at(group)).at(page);
  if (first.entry == kNone) {
    throw InvalidArgument("prefix_index: remove_page: page " + std::to_string(page) +
                          " is not in the index");
  }
  --indexed_[at(group)];
  while (first.entry != kNone) {
    const Entry entry = first.entry;
    remove_holder(first);
    prune(entry);
  }
}

void PrefixIndex::prune(Entry entry) {
  while (nodes_[entry].page_count == 0 && nodes_[entry].first_child == kNone) {
    const std::uint64_t parent = nodes_[entry].parent;
    unlink(entry);
    if (parent >= kNone) return;
    entry = static_cast<Entry>(parent);
  }
}

void PrefixIndex::unlink(Entry entry) {
  Node& node = nodes_[entry];
  Entry* link = &buckets_[node.hash & (buckets_.size() - 1)];
  while (*link != entry) link = &nodes_[*link].next_in_bucket;
  *link = node.next_in_bucket;
  if (node.older_sibling != kNone) nodes_[node.older_sibling].newer_sibling = node.newer_sibling;
  if (node.newer_sibling != kNone) {
    nodes_[node.newer_sibling].older_sibling = node.older_sibling;
  } else {
    first_child_slot(node.parent) = node.older_sibling;
    if (node.parent >= kNone && node.older_sibling == kNone) roots_.erase(node.parent);
  }
  node = {};
  unused_.push_back(entry);
  --live_;
}

std::string PrefixIndex::find_inconsistency() const {
  std::int64_t live = 0;
  std::vector<std::int64_t> indexed(indexed_.size());
  for (Entry entry = 0; entry < nodes_.size(); ++entry) {
    const Node& node = nodes_[entry];
    if (node.token_count == 0) continue;
    ++live;
    if (find(node.parent, tokens(entry)) != entry) return "prefix_index: an entry is not found";
    if (node.parent < kNone && nodes_[node.parent].token_count != options_.block_tokens) {
      return "prefix_index: the parent of an entry is not a whole block";
    }
    std::uint32_t pages_here = 0;
    for (std::int64_t slot = 0; slot < slots_; ++slot) {
      const PageHandle page = pages(entry)[at(slot)];
      if (page.empty()) continue;
      const std::int64_t group = group_of_slot(slot);
      const PageSlot wanted{entry, static_cast<std::uint32_t>(slot)};
      PageSlot holder = holder_of_[at(group)][page.index];
      if (holder == wanted) ++indexed[at(group)];
      while (holder.entry != kNone && holder != wanted) {
        holder = next_holder_[at(holder.entry * slots_ + holder.slot)];
      }
      if (holder != wanted) return "prefix_index: a page has another holder";
      ++pages_here;
    }
    if (pages_here != node.page_count) return "prefix_index: pages of an entry differ";
    if (pages_here == 0 && node.first_child == kNone) return "prefix_index: an entry is useless";
  }
  if (live != live_ || indexed != indexed_) return "prefix_index: counters differ from a recount";
  return {};
}

}  // namespace touchstone::inline v0::cache
