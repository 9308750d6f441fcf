#include "model/row_order.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/index.h"

namespace touchstone::inline v0::model {
namespace {

// Indices of the rows by sequence, sequences in the order of their first rows, rows in theirs.
std::vector<std::int32_t> by_sequence(std::span<const decode::ScoreRow> call) {
  std::vector<std::int32_t> order(call.size());
  std::iota(order.begin(), order.end(), 0);
  const auto id = [&](std::int32_t row) { return call[at(row)].sequence.id; };
  // Schedulers pass rows by sequence already.
  if (std::ranges::is_sorted(order, {}, id)) return order;
  std::unordered_map<std::int64_t, std::int32_t> first;
  for (const std::int32_t row : order) first.try_emplace(id(row), row);
  std::ranges::stable_sort(order, {}, [&](std::int32_t row) { return first[id(row)]; });
  return order;
}

}  // namespace

RowOrder::RowOrder(std::span<const decode::ScoreRow> call) : rows(by_sequence(call)) {
  place_.resize(call.size());
  sequence.reserve(call.size());
  slot.reserve(call.size());
  std::int32_t before = decode::kNoNode;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const decode::ScoreRow& row = call[at(rows[i])];
    if (sequences.empty() || sequences.back().id != row.sequence) {
      sequences.push_back({.id = row.sequence, .first = static_cast<std::int64_t>(i)});
      before = decode::kNoNode;
    }
    Sequence& own = sequences.back();
    if (row.parent != before) own.chain = false;
    before = rows[i];
    place_[at(rows[i])] = static_cast<std::int32_t>(i);
    sequence.push_back(static_cast<std::int32_t>(sequences.size()) - 1);
    slot.push_back(static_cast<std::int32_t>(own.count++));
  }
}

bool RowOrder::all_chains() const { return std::ranges::all_of(sequences, &Sequence::chain); }

std::int64_t RowOrder::tree_words() const {
  std::int64_t longest = 0;
  for (const Sequence& s : sequences) longest = std::max(longest, s.chain ? 0 : s.count);
  return (longest + 63) / 64;
}

std::vector<std::int64_t> RowOrder::tree_starts(std::span<const std::int64_t> lengths) const {
  std::vector<std::int64_t> starts(lengths.begin(), lengths.end());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (sequences[i].chain) starts[i] += sequences[i].count;
  }
  return starts;
}

std::vector<std::int64_t> RowOrder::tree_bits(std::span<const decode::ScoreRow> call,
                                              std::int64_t begin, std::int64_t end,
                                              const cache::LayerGroup& group) const {
  const std::int64_t words = tree_words();
  std::vector<std::int64_t> bits(at((end - begin) * words));
  for (std::int64_t i = begin; i < end; ++i) {
    if (sequences[at(sequence[at(i)])].chain) continue;
    const std::int64_t position = call[at(rows[at(i)])].position;
    for (std::int32_t row = rows[at(i)]; row != decode::kNoNode; row = call[at(row)].parent) {
      const std::int64_t ancestor = call[at(row)].position;
      const bool beyond = group.window > 0 && ancestor <= position - group.window;
      if (beyond && ancestor >= group.sinks) continue;
      const std::int32_t j = slot[at(place_[at(row)])];
      auto& word = bits[at((i - begin) * words + j / 64)];
      word = static_cast<std::int64_t>(static_cast<std::uint64_t>(word) | std::uint64_t{1}
                                                                              << (j % 64));
    }
  }
  return bits;
}

}  // namespace touchstone::inline v0::model
