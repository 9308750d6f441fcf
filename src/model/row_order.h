// The rows of a score() in the order in which they run: by sequence, each sequence's in their
// order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/cache/layout.h"
#include "touchstone/decode/scorer.h"

namespace touchstone::inline v0::model {

struct RowOrder {
  struct Sequence {
    decode::ScorerSequence id{};
    std::int64_t first = 0;  // in `rows`
    std::int64_t count = 0;
    bool chain = true;  // every row follows the one before it
  };
  std::vector<Sequence> sequences;
  std::vector<std::int32_t> rows;      // indices into the rows of the call
  std::vector<std::int32_t> sequence;  // of each: index into `sequences`
  std::vector<std::int32_t> slot;      // of each: its number among the rows of its sequence

  explicit RowOrder(std::span<const decode::ScoreRow> call);
  bool all_chains() const;
  // Words of the tree bits of a row: one bit per row of the longest tree.
  std::int64_t tree_words() const;
  // Where the tree of each sequence begins, whose committed tokens are `lengths`: behind them, and of
  // a chain behind its rows, too. Their slots are their positions, to which windows apply, whatever
  // trees are in the same call.
  std::vector<std::int64_t> tree_starts(std::span<const std::int64_t> lengths) const;
  // [end - begin, words]: bit j of row i says that in layers of this group it attends to slot j of
  // its tree: to the ancestors in the window and among the sinks.
  std::vector<std::int64_t> tree_bits(std::span<const decode::ScoreRow> call, std::int64_t begin,
                                      std::int64_t end, const cache::LayerGroup& group) const;

 private:
  std::vector<std::int32_t> place_;  // of a row of the call: index into `rows`
};

}  // namespace touchstone::inline v0::model
