#include "train/draft/blocks.h"

#include <cmath>

#include "core/index.h"
#include "touchstone/core/random.h"
#include "train/data/no_target.h"
#include "train/data/shuffle_draws.h"

namespace touchstone::inline v0::train {

std::vector<std::int64_t> possible_anchors(const HostBatch& row) {
  std::vector<std::int64_t> possible;
  for (std::int64_t i = 0; i < std::ssize(row.targets); ++i) {
    if (row.targets[at(i)] != kNoTarget) possible.push_back(i);
  }
  return possible;
}

std::vector<std::int64_t> draw_anchors(std::span<const std::int64_t> possible, std::int64_t count,
                                       std::int64_t seed, std::int64_t draw) {
  const std::int64_t all = std::ssize(possible);
  if (all <= count) return {possible.begin(), possible.end()};
  std::vector<std::int64_t> drawn;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = i * all / count;
    const std::int64_t end = (i + 1) * all / count;
    const std::uint32_t word =
        random_words(seed, draw * count + i, RandomPurpose::shuffle, kShuffleAnchors).word[0];
    drawn.push_back(possible[at(
        first + static_cast<std::int64_t>(word % static_cast<std::uint64_t>(end - first)))]);
  }
  return drawn;
}

HostBlocks make_blocks(const io::BlockDraftDescription& draft, std::span<const HostBatch> rows,
                       std::span<const std::vector<std::int64_t>> anchors, double decay) {
  HostBlocks b;
  for (const HostBatch& row : rows) {
    b.positions.insert(b.positions.end(), row.positions.begin(), row.positions.end());
  }
  const std::int64_t context = std::ssize(b.positions);
  std::int64_t first = 0;  // of the row, in the context
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const HostBatch& row = rows[r];
    const std::int64_t length = std::ssize(row.tokens);
    for (const std::int64_t anchor : anchors[r]) {
      const std::int64_t place =
          row.positions[at(anchor)];  // in its document, which the row has whole
      for (std::int64_t t = anchor - place; t < anchor; ++t) {
        b.keys.push_back(static_cast<std::int32_t>(first + t));
      }
      bool followed = true;
      for (std::int64_t j = 0; j < draft.block; ++j) {
        b.keys.push_back(static_cast<std::int32_t>(context + std::ssize(b.tokens)));
        b.tokens.push_back(j == 0 ? row.tokens[at(anchor)] : draft.mask_token);
        b.positions.push_back(place + j);
        const std::int64_t before = anchor + j - 1;
        followed = followed && before < length && (j == 0 || row.targets[at(before)] != kNoTarget);
        const bool counts = j > 0 && followed;
        b.targets.push_back(counts ? row.targets[at(before)] : kNoTarget);
        b.weights.push_back(counts ? std::exp(-static_cast<double>(j - 1) / decay) : 0);
        b.weight += b.weights.back();
      }
      b.query_offsets.push_back(std::ssize(b.tokens));
      b.key_offsets.push_back(std::ssize(b.keys));
    }
    first += length;
  }
  return b;
}

}  // namespace touchstone::inline v0::train
