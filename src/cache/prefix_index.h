// Finds pages that already hold the keys and values of a prompt. A tree of token blocks: an entry
// is a block of tokens after its parent entry, and the pages that hold it.
//
// An entry is found by a keyed hash (SipHash-1-3) of its parent and its tokens, and taken only
// after parent and tokens themselves compared equal: a collision costs time, never a wrong answer.
//
// The index owns no references. It stores handles and is notified when one of its pages is evicted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/page_pool.h"

namespace touchstone::inline v0::cache {

struct PrefixIndexOptions {
  // Tokens of a whole block.
  std::int64_t block_tokens = 16;
  // Pages of a whole block, of each layer group.
  std::vector<std::int64_t> pages_per_block{1};
  // Pages in the pool of each group.
  std::vector<std::int64_t> pool_pages{};
  std::array<std::uint64_t, 2> hash_key{};
};

class PrefixIndex {
 public:
  using Entry = std::uint32_t;
  static constexpr Entry kNone = 0xffffffffU;

  explicit PrefixIndex(PrefixIndexOptions options);

  // The parent of the first block of a name space. Prefixes of different spaces (adapters, tenants)
  // never match.
  static constexpr std::uint64_t root(std::uint32_t space) {
    return (std::uint64_t{1} << 32) | space;
  }
  static constexpr std::uint64_t below(Entry entry) { return entry; }

  // The entry of exactly these tokens (1 to block_tokens) after `parent`, or kNone.
  Entry find(std::uint64_t parent, std::span<const std::int32_t> tokens) const;

  // The best page for a slot of a block among the children of one parent.
  struct Found {
    PageHandle page{};
    std::int64_t tokens = 0;  // leading tokens of the block up to which the page holds them
  };
  // Matches `tokens` against the 64 newest children of `parent` and improves found[slot] (in the
  // order of pages_per_block) wherever a child has a page of more of these tokens. Returns the
  // longest common beginning.
  std::int64_t match(std::uint64_t parent, std::span<const std::int32_t> tokens,
                     std::span<Found> found) const;

  // Adds what find() does not find. `pages` in the order of pages_per_block; empty handles are
  // pages that are not there (yet). Only whole blocks can become parents.
  Entry insert(std::uint64_t parent, std::span<const std::int32_t> tokens,
               std::span<const PageHandle> pages);
  // Adds a page to an empty slot. Several entries may hold one page: blocks that diverge after it.
  void set_page(Entry entry, std::int64_t slot, PageHandle page);
  // The same for a page whose tokens end at the end of `entry`: entries whose tokens `entry` begins
  // with give the page up, and are pruned where it was their last. Nothing happens where an entry
  // that begins with all tokens of `entry` holds the page, or the slot is filled. Whether the index
  // holds the page for the first time.
  bool offer_page(Entry entry, std::int64_t slot, PageHandle page);
  // The page was evicted. Entries without pages and children disappear.
  void remove_page(std::int64_t group, std::uint32_t page);

  // Removes the entry if it has neither pages nor children, then its parent likewise, and so on.
  void prune(Entry entry);

  // The pages of one entry, in the order of pages_per_block.
  std::span<const PageHandle> pages(Entry entry) const;
  std::span<const std::int32_t> tokens(Entry entry) const;
  bool holds(std::int64_t group, std::uint32_t page) const;

  // A page of the index: one of the prefixes it is found by, up to its last token there.
  struct Prefix {
    std::vector<std::int32_t> tokens{};
    std::int64_t first_position = 0;  // of the page
    std::uint32_t space = 0;
  };
  Prefix prefix_of(std::int64_t group, std::uint32_t page) const;

  std::int64_t block_tokens() const { return options_.block_tokens; }
  std::int64_t slots() const { return slots_; }
  // Where the pages of a group begin among the slots of an entry.
  std::int64_t first_slot(std::int64_t group) const;
  std::int64_t entries() const { return live_; }
  std::int64_t indexed_pages(std::int64_t group) const;

  // Recounts everything. Empty when consistent, otherwise what is wrong.
  std::string find_inconsistency() const;

 private:
  struct Node {
    std::uint64_t parent = 0;
    std::uint64_t hash = 0;
    Entry next_in_bucket = kNone;
    Entry first_child = kNone;  // newest first
    Entry newer_sibling = kNone;
    Entry older_sibling = kNone;
    std::uint32_t token_count = 0;  // 0 = not in use
    std::uint32_t page_count = 0;
  };
  // A slot of an entry that holds some page; the holders of one page form a list.
  struct PageSlot {
    Entry entry = kNone;
    std::uint32_t slot = 0;

    friend constexpr bool operator==(PageSlot, PageSlot) = default;
  };

  std::uint64_t hash_of(std::uint64_t parent, std::span<const std::int32_t> tokens) const;
  Entry first_child_of(std::uint64_t parent) const;
  Entry& first_child_slot(std::uint64_t parent);
  Entry allocate_node();
  void grow_buckets();
  void unlink(Entry entry);
  std::int64_t group_of_slot(std::int64_t slot) const;
  PageSlot& next_holder(PageSlot holder);
  void remove_holder(PageSlot holder);

  PrefixIndexOptions options_;
  std::int64_t slots_ = 0;
  std::vector<std::int64_t> first_slot_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;  // block_tokens for each node
  std::vector<PageHandle> pages_;     // slots for each node
  std::vector<Entry> unused_;
  std::vector<Entry> buckets_;
  std::unordered_map<std::uint64_t, Entry> roots_;  // first child of each name space in use
  std::vector<std::vector<PageSlot>> holder_of_;    // [group][page]: the first holder
  std::vector<PageSlot> next_holder_;               // parallel to pages_
  std::vector<std::int64_t> indexed_;               // [group]
  std::int64_t live_ = 0;
};

}  // namespace touchstone::inline v0::cache
