// The SIMD implementation above its kernels: which query vectors pass over which tokens together,
// scratch memory, and the tasks of threads. paged_cpu.h says why the bits do not depend on it.
#include "ops/attention_paged/paged_cpu.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "ops/attention_common/refusal.h"
#include "ops/attention_paged/cached_attention_tuning.h"
#include "ops/attention_paged/paged_visible_range.h"
#include "touchstone/core/checked.h"

namespace touchstone::paged_attention {
namespace {

using tuning::kMaxScratch;
using tuning::kSerialBytes;
using tuning::kTasksPerThread;
using tuning::kWaveQueries;
using tuning::kWaveSplits;

constexpr auto kUnitQueries = static_cast<std::size_t>(tuning::kUnitQueries);

// The slots of a split that a query attends to: [0, sinks), [begin, end), both cut to the split,
// and those of the tree that stand in the split on the query's path, in ascending order.
struct SplitSlots {
  std::int64_t sinks_begin = 0;
  std::int64_t sinks_end = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<std::int64_t> tree;

  friend bool operator==(const SplitSlots&, const SplitSlots&) = default;
};

SplitSlots slots_in(const VisibleRange& visible, std::int64_t split) {
  const std::int64_t first = split * kSplit;
  const std::int64_t end = first + kSplit;
  SplitSlots slots;
  if (visible.sinks > first) {
    slots.sinks_begin = first;
    slots.sinks_end = std::min(visible.sinks, end);
  }
  if (std::max(visible.begin, first) < std::min(visible.end, end)) {
    slots.begin = std::max(visible.begin, first);
    slots.end = std::min(visible.end, end);
  }
  if (visible.tree == nullptr) return slots;
  std::int64_t position = visible.tree_position;
  for (std::int64_t word = 0; word < visible.tree_words && position < end; ++word) {
    std::uint64_t bits = tree_word(visible, word);
    if (position + std::popcount(bits) <= first) {
      position += std::popcount(bits);
      continue;
    }
    for (; bits != 0 && position < end; bits &= bits - 1, ++position) {
      if (position < first) continue;
      slots.tree.push_back(visible.tree_start + 64 * word + std::countr_zero(bits));
    }
  }
  return slots;
}

// Whether the query may attend to something in the split.
bool reaches(const VisibleRange& visible, std::int64_t split) {
  const std::int64_t first = split * kSplit;
  const std::int64_t end = first + kSplit;
  if (visible.sinks > first) return true;
  if (std::max(visible.begin, first) < std::min(visible.end, end)) return true;
  return visible.tree != nullptr && end > visible.tree_position && first < end_of(visible);
}

// Where one of the two halves of a page is, for the layer: offsets of head 0 in slot 0, and the
// bytes of a vector.
struct Section {
  std::int64_t values = 0;
  std::int64_t value_bytes = 0;
  std::int64_t scales = 0;
  std::int64_t scale_bytes = 0;
};

struct Sections {
  Section keys;
  Section values;

  explicit Sections(const PagedAttentionProblem& p) {
    const cache::LayerGroup& layers = p.layers;
    const cache::TokenOffsets at = cache::token_offsets(layers, p.pages.geometry, p.layer, 0, 0);
    keys = {at.k_values, cache::value_bytes(layers.k, layers.k_dim), at.k_scales,
            cache::scale_bytes(layers.k, layers.k_dim)};
    values = {at.v_values, cache::value_bytes(layers.v, layers.v_dim), at.v_scales,
              cache::scale_bytes(layers.v, layers.v_dim)};
    if (layers.k_is_v) values = keys;
  }
};

// Tokens of one split that a query attends to, in order.
class TokenList {
 public:
  TokenList(const PagedAttentionProblem& p, std::int64_t kv_head) : p_(p), sections_(p) {
    for (const auto& [section, addresses] :
         {std::pair(&sections_.keys, &keys_), std::pair(&sections_.values, &values_)}) {
      addresses->next_values = p.pages.page_tokens * section->value_bytes;
      addresses->next_scales = p.pages.page_tokens * section->scale_bytes;
      addresses->scale_bytes = section->scale_bytes;
      section->values += kv_head * addresses->next_values;
      section->scales += kv_head * addresses->next_scales;
    }
  }

  void fill(std::int64_t row, const SplitSlots& slots) {
    count_ = 0;
    add(row, slots.sinks_begin, slots.sinks_end);
    add(row, slots.begin, slots.end);
    for (std::size_t i = 0; i < slots.tree.size();) {
      const std::int64_t first = slots.tree[i];
      std::size_t n = 1;
      while (i + n < slots.tree.size() &&
             slots.tree[i + n] == first + static_cast<std::int64_t>(n)) {
        ++n;
      }
      add(row, first, first + static_cast<std::int64_t>(n));
      i += n;
    }
  }

  std::size_t count() const { return count_; }
  const TokenAddresses& keys() const { return keys_; }
  const TokenAddresses& values() const { return values_; }

 private:
  void add(std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t page_tokens = p_.pages.page_tokens;
    while (begin < end) {
      const std::int64_t slot = begin % page_tokens;
      const std::int64_t n = std::min(end - begin, page_tokens - slot);
      const auto entry =
          static_cast<std::size_t>(row * p_.pages.table_stride + begin / page_tokens);
      const std::byte* const page =
          p_.pages.memory + std::int64_t{p_.pages.page_table[entry]} * p_.pages.geometry.page_bytes;
      append(sections_.keys, page, slot, n, keys_);
      append(sections_.values, page, slot, n, values_);
      count_ += static_cast<std::size_t>(n);
      begin += n;
    }
  }

  void append(const Section& section, const std::byte* page, std::int64_t slot, std::int64_t n,
              TokenAddresses& addresses) const {
    const std::byte* values = page + section.values + slot * section.value_bytes;
    const std::byte* scales = page + section.scales + slot * section.scale_bytes;
    const std::size_t end = count_ + static_cast<std::size_t>(n);
    for (std::size_t i = count_; i < end; ++i) {
      addresses.values[i] = values;
      addresses.scales[i] = scales;
      addresses.run[i] = static_cast<std::uint16_t>(end - i);
      values += section.value_bytes;
      scales += section.scale_bytes;
    }
  }

  const PagedAttentionProblem& p_;
  Sections sections_;
  std::size_t count_ = 0;
  TokenAddresses keys_;
  TokenAddresses values_;
};

std::int64_t scratch_bytes(const Context& context) {
  return context.threads() == 1 ? tuning::kSingleThreadScratch : kMaxScratch;
}

// Queries that read the same pages of one split.
struct Unit {
  std::int64_t row = 0;  // whose page table is read
  std::int64_t split = 0;
  std::vector<std::int64_t> queries;
};

// A range of query tokens that is computed from beginning to end, and its scratch memory.
class Wave {
 public:
  Wave(Context& context, const PagedAttentionProblem& p, std::int64_t first, std::int64_t count)
      : context_(context), p_(p), first_(first), count_(count) {
    const std::int64_t* const starts = p.query_offsets;
    row_ = std::upper_bound(starts, starts + p.rows + 1, first) - starts - 1;
    std::int64_t end = 0;
    std::int64_t seen = 0;
    for (std::int64_t row = row_; row < p.rows && starts[row] < first + count; ++row) {
      last_row_ = row + 1;
      for (std::int64_t q = std::max(first, starts[row]);
           q < std::min(first + count, starts[row + 1]); ++q) {
        ranges_.push_back(visible_range(p, row, q));
        end = std::max(end, end_of(ranges_.back()));
        seen += end_of(ranges_.back());
      }
    }
    splits_ = ceil_div(end, kSplit);
    serial_ = seen * cache::token_bytes_per_layer(p.layers) < kSerialBytes;
    make_scratch();
  }

  void run() {
    each_vector([&](std::int64_t q, std::int64_t head) {
      prepare_query(p_, first_ + q, head, query_vector(q, head));
      clear_partial(p_, total(q, head));
    });
    std::int64_t begin = 0;
    do {
      const std::int64_t end = std::min(splits_, begin + splits_at_once_);
      first_split_ = begin;
      plan(begin, end);
      const std::int64_t heads = heads_per_task();
      const std::int64_t tasks = ceil_div(p_.layers.kv_heads, heads);
      each(std::ssize(units_) * tasks, [&](std::int64_t task) {
        const std::int64_t head = task % tasks * heads;
        run_unit(units_[static_cast<std::size_t>(task / tasks)], head,
                 std::min(heads, p_.layers.kv_heads - head));
      });
      each_vector([&](std::int64_t q, std::int64_t head) {
        merge(q, head, begin, end);
        if (end == splits_) finish_query(p_, first_ + q, head, total(q, head));
      });
      begin = end;
    } while (begin < splits_);
  }

 private:
  void make_scratch() {
    query_floats_ = static_cast<std::int64_t>(query_floats(p_));
    partial_floats_ = static_cast<std::int64_t>(partial_floats(p_));
    const std::int64_t vectors = count_ * p_.query_heads;
    const std::int64_t fixed = vectors * (query_floats_ + partial_floats_) * 4;
    const std::int64_t partials = vectors * partial_floats_ * 4;  // of one split
    const std::int64_t most = std::max<std::int64_t>(1, (kMaxScratch - fixed) / partials);
    splits_at_once_ = std::min(std::max<std::int64_t>(1, splits_),
                               std::clamp((scratch_bytes(context_) - fixed) / partials,
                                          std::min(kWaveSplits, most), most));
    const std::int64_t bytes = fixed + splits_at_once_ * partials;
    queries_ = static_cast<float*>(detail::ContextAccess::workspace(context_, bytes));
    totals_ = queries_ + vectors * query_floats_;
    partials_ = totals_ + vectors * partial_floats_;
  }

  float* query_vector(std::int64_t q, std::int64_t head) const {
    return queries_ + (q * p_.query_heads + head) * query_floats_;
  }
  float* total(std::int64_t q, std::int64_t head) const {
    return totals_ + (q * p_.query_heads + head) * partial_floats_;
  }
  float* partial(std::int64_t q, std::int64_t head, std::int64_t split) const {
    const std::int64_t at = q * splits_at_once_ + split - first_split_;
    return partials_ + (at * p_.query_heads + head) * partial_floats_;
  }
  const VisibleRange& visible(std::int64_t q) const { return ranges_[static_cast<std::size_t>(q)]; }

  template <class Body>
  void each(std::int64_t tasks, Body&& body) {
    if (serial_) {
      for (std::int64_t task = 0; task < tasks; ++task) body(task);
    } else {
      detail::ContextAccess::pool(context_).run(tasks, body);
    }
  }

  // Calls body(query, head) for all query vectors.
  template <class Body>
  void each_vector(Body&& body) {
    const std::int64_t vectors = count_ * p_.query_heads;
    const std::int64_t tasks = std::min(vectors, kTasksPerThread * context_.threads());
    each(tasks, [&](std::int64_t task) {
      for (std::int64_t v = vectors * task / tasks; v < vectors * (task + 1) / tasks; ++v) {
        body(v / p_.query_heads, v % p_.query_heads);
      }
    });
  }

  // Pages of the row that hold something of the split.
  std::span<const std::int32_t> pages_of(std::int64_t row, std::int64_t split) const {
    const std::int64_t begin = split * kSplit / p_.pages.page_tokens;
    const std::int64_t end = ceil_div((split + 1) * kSplit, p_.pages.page_tokens);
    return p_.pages.page_table.subspan(
        static_cast<std::size_t>(row * p_.pages.table_stride + begin),
        static_cast<std::size_t>(end - begin));
  }

  // The units of some splits. A row joins another that has the same pages over the whole split;
  // with a tree in the split, slots from elsewhere belong to it.
  void plan(std::int64_t begin, std::int64_t end) {
    units_.clear();
    for (std::int64_t split = begin; split < end; ++split) {
      std::unordered_map<std::int32_t, std::size_t> unit_of_page;  // by the first page
      for (std::int64_t row = row_; row < last_row_; ++row) {
        units_.push_back({row, split, {}});
        std::size_t unit = units_.size() - 1;
        if (last_row_ - row_ > 1 && p_.lengths[row] >= (split + 1) * kSplit &&
            (p_.tree == nullptr || tree_start(p_, row) >= (split + 1) * kSplit)) {
          const auto pages = pages_of(row, split);
          std::size_t& known = unit_of_page.try_emplace(pages.front(), unit).first->second;
          if (std::ranges::equal(pages, pages_of(units_[known].row, split))) unit = known;
          known = add_row(row, unit);
        } else {
          add_row(row, unit);
        }
      }
    }
    std::erase_if(units_, [](const Unit& unit) { return unit.queries.empty(); });
  }

  // Adds the queries of a row to a unit, and to new ones when it is full. The last of them.
  std::size_t add_row(std::int64_t row, std::size_t unit) {
    const std::int64_t split = units_[unit].split;
    const std::int64_t begin = std::max(p_.query_offsets[row], first_) - first_;
    const std::int64_t end = std::min(p_.query_offsets[row + 1], first_ + count_) - first_;
    for (std::int64_t q = begin; q < end; ++q) {
      if (!reaches(visible(q), split)) continue;
      if (units_[unit].queries.size() == kUnitQueries) {
        unit = units_.size();
        units_.push_back({row, split, {}});
      }
      units_[unit].queries.push_back(q);
    }
    return unit;
  }

  // KV heads that one task works on: all, as they are neighbors in a page, unless that leaves
  // threads without work.
  std::int64_t heads_per_task() const {
    if (serial_ || context_.threads() == 1) return p_.layers.kv_heads;
    const std::int64_t wanted = kTasksPerThread * context_.threads();
    return std::clamp<std::int64_t>(std::ssize(units_) * p_.layers.kv_heads / wanted, 1,
                                    p_.layers.kv_heads);
  }

  // Queries that attend to the same tokens share a pass.
  void run_unit(const Unit& unit, std::int64_t kv_head, std::int64_t heads) const {
    const std::span<const std::int64_t> queries = unit.queries;
    for (std::size_t begin = 0; begin < queries.size();) {
      const SplitSlots slots = slots_in(visible(queries[begin]), unit.split);
      std::size_t end = begin + 1;
      while (end < queries.size() && slots_in(visible(queries[end]), unit.split) == slots) ++end;
      run_queries(unit, queries.subspan(begin, end - begin), slots, kv_head, heads);
      begin = end;
    }
  }

  void run_queries(const Unit& unit, std::span<const std::int64_t> queries, const SplitSlots& slots,
                   std::int64_t kv_head, std::int64_t heads) const {
    constexpr auto kMax = static_cast<std::int64_t>(kPassVectors);
    const std::int64_t all = std::ssize(queries) * p_.heads_per_kv;  // vectors of a KV head
    const std::int64_t vectors = std::min(all, kMax);
    const std::int64_t at_once = std::min(heads, kMax / vectors);
    for (std::int64_t head = kv_head; head < kv_head + heads; head += at_once) {
      TokenList tokens(p_, head);
      tokens.fill(unit.row, slots);
      Pass pass{.problem = &p_,
                .tokens = tokens.count(),
                .keys = &tokens.keys(),
                .values = &tokens.values(),
                .heads = static_cast<std::size_t>(std::min(at_once, kv_head + heads - head))};
      for (std::int64_t first = 0; first < all; first += vectors) {
        pass.vectors = static_cast<std::size_t>(std::min(vectors, all - first));
        for (std::size_t i = 0; i < pass.heads * pass.vectors; ++i) {
          const std::int64_t v = first + static_cast<std::int64_t>(i % pass.vectors);
          const std::int64_t q = queries[static_cast<std::size_t>(v / p_.heads_per_kv)];
          const std::int64_t query_head =
              (head + static_cast<std::int64_t>(i / pass.vectors)) * p_.heads_per_kv +
              v % p_.heads_per_kv;
          pass.queries[i] = query_vector(q, query_head);
          pass.partials[i] = partial(q, query_head, unit.split);
        }
        run_pass(pass);
      }
    }
  }

  void merge(std::int64_t q, std::int64_t head, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t split = begin; split < end; ++split) {
      if (!reaches(visible(q), split)) continue;
      merge_partial(p_, total(q, head), partial(q, head, split));
    }
  }

  Context& context_;
  const PagedAttentionProblem& p_;
  std::int64_t first_;  // query, over all rows; all other numbers of queries count from here
  std::int64_t count_;
  std::int64_t row_ = 0;
  std::int64_t last_row_ = 0;  // one past it
  std::vector<VisibleRange> ranges_;
  std::int64_t splits_ = 0;
  bool serial_ = false;
  std::int64_t splits_at_once_ = 1;
  std::int64_t first_split_ = 0;
  std::vector<Unit> units_;
  std::int64_t query_floats_ = 0;
  std::int64_t partial_floats_ = 0;
  float* queries_ = nullptr;   // [count, query_heads]
  float* totals_ = nullptr;    // [count, query_heads]
  float* partials_ = nullptr;  // [count, splits_at_once_, query_heads]
};

}  // namespace

std::string cached_attention_simd_refuses(const Context& /*context*/,
                                          const PagedAttentionProblem& p) {
  if (p.layers.k_dim > kMaxDim) return attention_common::above("k_dim", p.layers.k_dim, kMaxDim);
  if (p.layers.v_dim > kMaxDim) return attention_common::above("v_dim", p.layers.v_dim, kMaxDim);
  return {};
}

void cached_attention_simd(Context& context, const PagedAttentionProblem& p) {
  const auto query = static_cast<std::int64_t>(query_floats(p));
  const auto partial = static_cast<std::int64_t>(partial_floats(p));
  // Prepared vectors, their results, and what the splits at once have of them.
  const auto bytes = [&](std::int64_t splits) {
    return p.query_heads * (query + (1 + splits) * partial) * 4;
  };
  const std::int64_t most = std::max<std::int64_t>(1, kMaxScratch / bytes(1));
  const std::int64_t wanted =
      std::clamp(scratch_bytes(context) / bytes(kWaveSplits), std::min(kWaveQueries, most), most);
  // Waves of one length: a short one at the end would leave threads without work.
  const std::int64_t waves = std::max(p.queries / wanted, ceil_div(p.queries, most));
  const std::int64_t at_once = ceil_div(p.queries, waves);
  for (std::int64_t first = 0; first < p.queries; first += at_once) {
    Wave(context, p, first, std::min(at_once, p.queries - first)).run();
  }
}

}  // namespace touchstone::paged_attention
