// The rows of a score() in the order in which they run: by sequence, each sequence's in their
// order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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
  // Words of the tree bits of a row: one bit per row of the longest sequence.
  std::int64_t tree_words() const;
  // [end - begin, words]: bit j of row i says that it attends to slot j of its sequence.
  std::vector<std::int64_t> tree_bits(std::span<const decode::ScoreRow> call, std::int64_t begin,
                                      std::int64_t end) const;

 private:
  std::vector<std::int32_t> place_;  // of a row of the call: index into `rows`
};

}  // namespace touchstone::inline v0::model
