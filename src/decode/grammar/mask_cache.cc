#include "decode/grammar/mask_cache.h"

#include <algorithm>

namespace touchstone::inline v0::decode::grammar {

MaskCache::MaskCache(std::shared_ptr<const Automaton> automaton,
                     std::shared_ptr<const TokenTrie> trie)
    : automaton_(std::move(automaton)), trie_(std::move(trie)) {
  machine_.emplace(automaton_);
  path_.resize(static_cast<std::size_t>(trie_->max_depth()) + 1);
}

void MaskCache::refresh(CachedState& cached, std::string_view text) {
  if (bytes() > automaton_->limits().max_cache_bytes || machine_->crowded()) {
    leaves_.clear();
    masks_.clear();
    mask_bytes_ = 0;
    machine_.emplace(automaton_);
    ++generation_;
  }
  if (cached.generation == generation_) return;
  cached.state = machine_->run(machine_->start(), text);
  cached.generation = generation_;
}

template <class Visit>
void MaskCache::walk(std::int32_t node, std::int32_t state, Visit visit) {
  const std::span<const TokenTrie::Node> nodes = trie_->nodes();
  const std::int32_t depth = node < 0 ? 0 : nodes[static_cast<std::size_t>(node)].depth;
  const std::int32_t end = node < 0 ? static_cast<std::int32_t>(nodes.size())
                                    : nodes[static_cast<std::size_t>(node)].end;
  path_[static_cast<std::size_t>(depth)] = state;
  for (std::int32_t i = node + 1; i < end;) {
    const TokenTrie::Node& here = nodes[static_cast<std::size_t>(i)];
    const std::int32_t to =
        machine_->step(path_[static_cast<std::size_t>(here.depth) - 1], here.byte);
    if (to == kDead) {
      i = here.end;
      continue;
    }
    path_[static_cast<std::size_t>(here.depth)] = to;
    visit(i, here, to);
    ++i;
  }
}

const MaskCache::LeafMask& MaskCache::leaf_mask(std::int32_t leaf) {
  const auto known = leaves_.find(leaf);
  if (known != leaves_.end()) return known->second;
  LeafMask made;
  made.mask.assign(trie_->words(), 0);
  walk(-1, machine_->at_leaf(leaf),
       [&](std::int32_t i, const TokenTrie::Node& node, std::int32_t state) {
         trie_->set_bits(node, made.mask);
         if (node.end > i + 1 && machine_->finished(state)) made.exits.push_back(i);
         made.depth = std::max(made.depth, machine_->depth(state));
       });
  mask_bytes_ += 4 * (made.mask.size() + made.exits.capacity()) + 128;
  return leaves_.emplace(leaf, std::move(made)).first->second;
}

// The depth limit of calls depends on the stack, not on the leaf alone.
bool MaskCache::too_deep(std::int32_t state) {
  const std::int32_t limit = automaton_->limits().max_depth;
  for (const Reading& reading : std::vector(machine_->readings(state))) {
    const std::int32_t depth = machine_->frame_depth(reading.frame);
    if (depth + leaf_mask(reading.leaf).depth >= limit) return true;
  }
  return false;
}

MaskCache::Mask MaskCache::compute(std::int32_t state) {
  Mask mask(trie_->words(), 0);
  const auto set = [&](std::int32_t, const TokenTrie::Node& node, std::int32_t) {
    trie_->set_bits(node, mask);
  };
  if (too_deep(state)) {
    walk(-1, state, set);
    return mask;
  }
  const std::vector<Reading> readings = machine_->readings(state);  // the walks add states
  std::int32_t frame = kBottom;
  std::int32_t outside = kDead;
  for (const Reading& reading : readings) {
    const LeafMask& leaf = leaf_mask(reading.leaf);
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] |= leaf.mask[i];
    if (reading.frame == kBottom) continue;
    if (reading.frame != frame) {
      frame = reading.frame;
      outside = machine_->after(frame);
    }
    if (outside == kDead) continue;
    for (const std::int32_t exit : leaf.exits) walk(exit, outside, set);
  }
  return mask;
}

std::span<const std::int32_t> MaskCache::mask_of(std::int32_t state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  Mask mask = compute(state);
  mask_bytes_ += 4 * mask.size() + 64;
  return masks_.emplace(state, std::move(mask)).first->second;
}

}  // namespace touchstone::inline v0::decode::grammar
