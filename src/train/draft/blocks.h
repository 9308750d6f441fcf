// The blocks of a pass on the host: their anchors, targets and keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/io/block_draft.h"
#include "touchstone/train/data.h"

namespace touchstone::inline v0::train {

struct HostBlocks {
  std::vector<std::int32_t> tokens{};
  std::vector<std::int32_t> targets{};
  std::vector<double> weights{};
  std::vector<std::int64_t> positions{};  // of the context, then of the blocks
  std::vector<std::int32_t> keys{};
  std::vector<std::int64_t> query_offsets{0};
  std::vector<std::int64_t> key_offsets{0};
  double weight = 0;  // sum of the weights
};

// Tokens of a row that can begin a block: those with a next token.
std::vector<std::int64_t> possible_anchors(const HostBatch& row);
// `count` of them, ascending, one drawn in each of `count` equal parts; all where there are no
// more. A pure function of (seed, draw).
std::vector<std::int64_t> draw_anchors(std::span<const std::int64_t> possible, std::int64_t count,
                                       std::int64_t seed, std::int64_t draw);

// Blocks that begin at anchors[r] of rows[r]; all rows have the same length, and lie one after the
// other in the context. Weights are exp(-(k - 1) / decay) at position k of a block.
HostBlocks make_blocks(const io::BlockDraftDescription& draft, std::span<const HostBatch> rows,
                       std::span<const std::vector<std::int64_t>> anchors, double decay);

}  // namespace touchstone::inline v0::train
