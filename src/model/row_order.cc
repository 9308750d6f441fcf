#include "model/row_order.h"

#include <algorithm>
#include <unordered_map>

#include "core/index.h"

namespace touchstone::inline v0::model {
RowOrder::RowOrder(std::span<const decode::ScoreRow> call) {
  std::unordered_map<std::int64_t, std::int32_t> known;
  std::vector<std::vector<std::int32_t>> members;
  for (std::size_t i = 0; i < call.size(); ++i) {
    const auto [found, added] =
        known.try_emplace(call[i].sequence.id, static_cast<std::int32_t>(sequences.size()));
    if (added) {
      sequences.push_back({.id = call[i].sequence});
      members.emplace_back();
    }
    members[at(found->second)].push_back(static_cast<std::int32_t>(i));
  }
  place_.resize(call.size());
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    sequences[s].first = std::ssize(rows);
    sequences[s].count = std::ssize(members[s]);
    std::int32_t before = decode::kNoNode;
    for (std::size_t j = 0; j < members[s].size(); ++j) {
      const std::int32_t row = members[s][j];
      if (call[at(row)].parent != before) sequences[s].chain = false;
      before = row;
      place_[at(row)] = static_cast<std::int32_t>(rows.size());
      rows.push_back(row);
      sequence.push_back(static_cast<std::int32_t>(s));
      slot.push_back(static_cast<std::int32_t>(j));
    }
  }
}

bool RowOrder::all_chains() const { return std::ranges::all_of(sequences, &Sequence::chain); }

std::int64_t RowOrder::tree_words() const {
  std::int64_t longest = 0;
  for (const Sequence& s : sequences) longest = std::max(longest, s.count);
  return (longest + 63) / 64;
}

std::vector<std::int64_t> RowOrder::tree_bits(std::span<const decode::ScoreRow> call,
                                              std::int64_t begin, std::int64_t end) const {
  const std::int64_t words = tree_words();
  std::vector<std::int64_t> bits(at((end - begin) * words));
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int32_t row = rows[at(i)]; row != decode::kNoNode; row = call[at(row)].parent) {
      const std::int32_t j = slot[at(place_[at(row)])];
      auto& word = bits[at((i - begin) * words + j / 64)];
      word = static_cast<std::int64_t>(static_cast<std::uint64_t>(word) | std::uint64_t{1}
                                                                              << (j % 64));
    }
  }
  return bits;
}

}  // namespace touchstone::inline v0::model
