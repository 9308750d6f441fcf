#include "cache/snapshot/sequence_set.h"

#include <algorithm>
#include <unordered_map>

#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache {
namespace {

// Numbers the pages of one group.
class Numbering {
 public:
  explicit Numbering(std::vector<PageOrigin>& origins) : origins_(origins) {}

  std::uint32_t number_of(PageHandle page, std::int64_t tokens) {
    const auto next = static_cast<std::uint32_t>(origins_.size());
    const auto [found, is_new] = numbers_.try_emplace(page.index, next);
    if (is_new) origins_.push_back({page, 0});
    std::int64_t& known = origins_[found->second].tokens;
    known = std::max(known, tokens);
    return found->second;
  }

 private:
  std::vector<PageOrigin>& origins_;
  std::unordered_map<std::uint32_t, std::uint32_t> numbers_;
};

}  // namespace

GatheredSet gather(const CacheState& cache, std::span<const SequenceId> ids) {
  const std::size_t groups = cache.layout().groups.size();
  GatheredSet result;
  result.origins.resize(groups);
  result.set.page_counts.resize(groups);
  for (const SequenceId id : ids) {
    result.set.sequences.push_back({.length = cache.length(id), .groups = {}});
    result.set.sequences.back().groups.resize(groups);
  }
  for (std::size_t g = 0; g < groups; ++g) {
    const std::int64_t page_tokens = cache.layout().groups[g].page_tokens;
    Numbering numbering(result.origins[g]);
    for (std::size_t s = 0; s < ids.size(); ++s) {
      const PageTable& table = cache.sequence(ids[s]).groups[g];
      SequenceSet::Entry& entry = result.set.sequences[s];
      entry.groups[g].first_kept = table.first_kept;
      // Pages beyond the length are reserved only.
      const std::int64_t pages = ceil_div(entry.length, page_tokens);
      entry.groups[g].pages.reserve(static_cast<std::size_t>(pages));
      for (std::int64_t i = 0; i < pages; ++i) {
        const PageHandle page = table.pages[static_cast<std::size_t>(i)];
        const std::int64_t tokens = std::min(page_tokens, entry.length - i * page_tokens);
        entry.groups[g].pages.push_back(page.empty() ? kNoPage : numbering.number_of(page, tokens));
      }
    }
    result.set.page_counts[g] = std::ssize(result.origins[g]);
  }
  return result;
}

}  // namespace touchstone::inline v0::cache
