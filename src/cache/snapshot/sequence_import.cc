#include "cache/snapshot/sequence_import.h"

#include <algorithm>

#include "core/index.h"

namespace touchstone::inline v0::cache {
SequenceImport::SequenceImport(CacheState& cache, const SequenceSet& set, const char* what)
    : cache_(cache), set_(set) {
  cache_.check_capacity(set_.page_counts, what);
  // All host memory is allocated here, so that allocate_all and publish cannot fail.
  cache_.reserve_slots(set_.sequences.size());
  ids_.reserve(set_.sequences.size());
  sequences_.reserve(set_.sequences.size());
  for (const SequenceSet::Entry& entry : set_.sequences) {
    Sequence sequence{.length = entry.length, .reserved = entry.length, .groups = {}};
    sequence.groups.resize(entry.groups.size());
    for (std::size_t g = 0; g < entry.groups.size(); ++g) {
      sequence.groups[g].pages.resize(entry.groups[g].pages.size());
      sequence.groups[g].first_kept = entry.groups[g].first_kept;
    }
    sequences_.push_back(std::move(sequence));
  }
  pages_.resize(set_.page_counts.size());
  for (std::size_t g = 0; g < pages_.size(); ++g) pages_[g].reserve(at(set_.page_counts[g]));
  for (std::size_t g = 0; g < pages_.size(); ++g) {
    PagePool& pool = cache_.groups_[g].pool;
    pages_[g].resize(at(std::min(set_.page_counts[g], pool.free_pages())));
    pool.take(pages_[g]);
  }
}

SequenceImport::~SequenceImport() {
  for (std::size_t g = 0; g < pages_.size(); ++g) cache_.groups_[g].pool.drop(pages_[g]);
}

bool SequenceImport::has_page(std::int64_t group, std::int64_t number) const {
  return number < std::ssize(pages_[at(group)]);
}

std::byte* SequenceImport::page_data(std::int64_t group, std::int64_t number) const {
  const std::int64_t page = pages_[at(group)][at(number)].index;
  return cache_.memory_data(group) + page * cache_.geometry(group).page_bytes;
}

void SequenceImport::allocate_all() {
  std::vector<std::int64_t> missing(pages_.size());
  for (std::size_t g = 0; g < pages_.size(); ++g) {
    missing[g] = set_.page_counts[g] - std::ssize(pages_[g]);
  }
  cache_.ensure_free(missing);
  for (std::size_t g = 0; g < pages_.size(); ++g) {
    const std::size_t before = pages_[g].size();
    pages_[g].resize(at(set_.page_counts[g]));
    cache_.groups_[g].pool.take(std::span(pages_[g]).subspan(before));
  }
}

std::vector<SequenceId> SequenceImport::publish() {
  for (std::size_t g = 0; g < pages_.size(); ++g) {
    std::uint32_t next = 0;  // the first use of a page has the reference of take()
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      const std::vector<std::uint32_t>& numbers = set_.sequences[s].groups[g].pages;
      std::vector<PageHandle>& pages = sequences_[s].groups[g].pages;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (numbers[i] == kNoPage) continue;
        pages[i] = pages_[g][numbers[i]];
        if (numbers[i] == next) {
          ++next;
        } else {
          cache_.groups_[g].pool.share(pages[i]);
        }
      }
    }
  }
  pages_.clear();
  for (Sequence& sequence : sequences_) {
    ids_.push_back(cache_.create());
    cache_.slots_[ids_.back().index].sequence = std::move(sequence);
  }
  return std::move(ids_);
}

}  // namespace touchstone::inline v0::cache
