#include "decode/speculative/verification_rows.h"

#include <algorithm>

#include "core/index.h"

namespace touchstone::inline v0::decode {

std::span<const std::int32_t> node_mask(const DraftedSequence& sequence, std::int32_t node,
                                        std::int64_t vocabulary) {
  const std::vector<std::int32_t>& all = sequence.draft->token_masks;
  if (all.empty()) return {};
  const std::size_t words = at((vocabulary + 31) / 32);
  const auto mask = std::span(all).subspan(at(node + 1) * words, words);
  const bool open = sequence.request->constraint == nullptr &&
                    std::ranges::all_of(mask, [](std::int32_t word) { return word == -1; });
  return open ? std::span<const std::int32_t>() : mask;
}

void add_verification_rows(const DraftedSequence& sequence, std::int64_t vocabulary,
                           VerificationRows& result) {
  const TokenTree& tree = sequence.draft->tree;
  const auto first = static_cast<std::int32_t>(result.rows.size());
  const auto add = [&](std::int32_t node) -> SampleRow& {
    return result.rows.emplace_back(SampleRow{.request = sequence.request,
                                              .seed = sequence.seed,
                                              .tokens = sequence.tokens,
                                              .mask = node_mask(sequence, node, vocabulary)});
  };
  const bool masked = !add(kNoNode).mask.empty();
  std::vector<bool> linked(at(tree.size()));  // of the kind of the first row, as are its ancestors
  for (std::int32_t node = 0; node < tree.size(); ++node) {
    const std::int32_t parent = tree[node].parent;
    SampleRow& row = add(node);
    linked[at(node)] = row.mask.empty() != masked && (parent == kNoNode || linked[at(parent)]);
    if (linked[at(node)]) {
      row.depth = tree[node].depth;
      row.parent = first + 1 + parent;
      row.token = tree[node].token;
      continue;
    }
    std::vector<std::int32_t>& history =
        result.histories.emplace_back(sequence.tokens.begin(), sequence.tokens.end());
    for (const std::int32_t step : tree.path(node)) history.push_back(tree[step].token);
    row.tokens = history;
  }
}

}  // namespace touchstone::inline v0::decode
