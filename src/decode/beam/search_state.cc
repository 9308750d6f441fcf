#include "decode/beam/search_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace touchstone::inline v0::decode::beam {

SearchState::SearchState(const BeamRequest& request, const ScorerShape& shape)
    : request_(request),
      options_(request.options),
      rules_(rules_of(request.options)),
      vocabulary_(shape.vocabulary),
      max_tokens_(std::min(request.request.stop.max_tokens,
                           shape.max_length - std::ssize(request.request.prompt))),
      ending_(ending_tokens(request)),
      constraints_(request, shape.vocabulary, max_tokens_),
      width_(options_.beams / options_.groups) {
  const std::int64_t ends = rules_.candidates_per_eos ? std::ssize(ending_) : 1;
  candidates_ = (1 + std::max<std::int64_t>(1, ends)) * width_;
  row_segments_ =
      rules_.ending == EndingRanks::any || options_.diversity > 0 || candidates_ > kMaxDeviceKeep;
  groups_.resize(static_cast<std::size_t>(options_.groups));
  // One beam until the first token is chosen, which every group does from the prompt.
  if (max_tokens_ > 0) running_.assign(1, {});
  for (Group& group : groups_) group.end = std::ssize(running_);
}

std::vector<std::int32_t> SearchState::text_of(const RunningBeam& beam) const {
  std::vector<std::int32_t> text = prompt();
  const std::vector<std::int32_t> generated = tree_.path_tokens(beam.node);
  text.insert(text.end(), generated.begin(), generated.end());
  return text;
}

std::int64_t SearchState::tokens_per_row() const {
  // The engine looks at no more.
  if (rules_.ending == EndingRanks::any) return std::min(vocabulary_, 2 * width_);
  // The K best that do not end are among the first K + ending tokens of their rows.
  std::int64_t tokens = std::max<std::int64_t>(2 * width_, width_ + std::ssize(ending_));
  // Each beam of an earlier group pushes at most one token back.
  if (options_.diversity > 0) tokens += options_.beams - width_;
  return std::min(vocabulary_, tokens);
}

void SearchState::add_segments(std::int64_t row, std::vector<Segment>& segments) const {
  const std::int64_t rows = std::ssize(running_);
  if (row_segments()) {
    for (std::int64_t r = 0; r < rows; ++r) segments.push_back({row + r, 1, tokens_per_row()});
    return;
  }
  if (generated_ == 0) {  // all groups share the prompt's row
    segments.push_back({row, 1, std::min(candidates_, vocabulary_)});
    return;
  }
  for (const Group& group : groups_) {
    const std::int64_t beams = group.end - group.begin;
    if (beams == 0) continue;
    segments.push_back({row + group.begin, beams, std::min(candidates_, beams * tokens_per_row())});
  }
}

std::vector<Candidate> SearchState::merge(const Group& group,
                                          std::span<const std::vector<Candidate>> lists,
                                          std::span<const std::int32_t> chosen) const {
  struct Entry {
    double penalized;
    Candidate candidate;
  };
  std::unordered_map<std::int32_t, std::int64_t> counts;
  for (const std::int32_t token : chosen) ++counts[token];
  std::vector<Entry> all;
  for (std::int64_t b = group.begin; b < group.end; ++b) {
    for (const Candidate& c : lists[static_cast<std::size_t>(b)]) {
      const auto found = counts.find(c.token);
      const double count = found == counts.end() ? 0 : static_cast<double>(found->second);
      all.push_back({c.score - options_.diversity * count, c});
    }
  }
  // Stable: equal ones stay in the order of parents, then of the row.
  std::ranges::stable_sort(all, std::ranges::greater{}, &Entry::penalized);
  std::vector<Candidate> best;
  const std::size_t keep = rules_.ending == EndingRanks::any
                               ? all.size()
                               : std::min(all.size(), static_cast<std::size_t>(candidates_));
  for (std::size_t i = 0; i < keep; ++i) best.push_back(all[i].candidate);
  return best;
}

void SearchState::advance(std::span<const std::vector<Candidate>> lists, std::int64_t row) {
  ++generated_;
  std::vector<RunningBeam> next;
  std::vector<std::int32_t> chosen;
  std::size_t list = 0;
  for (Group& group : groups_) {
    const auto first = next.size();
    if (group.begin < group.end) {
      if (row_segments()) {
        advance_group(group, merge(group, lists, chosen), row, next, chosen);
      } else {
        advance_group(group, lists[list], row, next, chosen);
        if (generated_ > 1) ++list;
      }
    }
    if (stops(group, std::span(next).subspan(first))) next.resize(first);
    group.begin = static_cast<std::int64_t>(first);
    group.end = std::ssize(next);
  }
  compact(next);
  running_ = std::move(next);
}

std::int32_t SearchState::add_node(const Candidate& candidate, std::int64_t row) {
  const RunningBeam& parent = running_[static_cast<std::size_t>(candidate.row - row)];
  return tree_.add({.parent = parent.node,
                    .token = candidate.token,
                    .log_probability = candidate.log_probability});
}

FinishedBeam SearchState::ending_of(std::int32_t token) const {
  FinishedBeam beam;
  if (std::ranges::find(ending_, token) == ending_.end()) return beam;
  const std::vector<std::int32_t>& stops = request_.request.stop.tokens;
  const auto stop = std::ranges::find(stops, token);
  const bool eos = !request_.request.stop.ignore_eos &&
                   std::ranges::find(options_.eos, token) != options_.eos.end();
  beam.reason = eos ? FinishReason::eos : FinishReason::stop;
  if (!eos) beam.stop_index = static_cast<std::int32_t>(stop - stops.begin());
  return beam;
}

void SearchState::advance_group(Group& group, std::span<const Candidate> candidates,
                                std::int64_t row, std::vector<RunningBeam>& next,
                                std::vector<std::int32_t>& chosen) {
  const bool last = generated_ == max_tokens_;
  const auto running_from = next.size();
  const auto run = [&](const Candidate& c) {
    const std::int32_t parent = c.row - static_cast<std::int32_t>(row);
    std::int32_t trie_node = TokenTrie::kRoot;
    if (options_.trie) {
      trie_node =
          options_.trie->child(running_[static_cast<std::size_t>(parent)].trie_node, c.token);
    }
    next.push_back({add_node(c, row), trie_node, parent, c.score});
    chosen.push_back(c.token);
  };
  std::size_t refill = static_cast<std::size_t>(width_);  // of rules_.refill_slots
  for (std::size_t rank = 0; rank < candidates.size(); ++rank) {
    const bool first_k = rank < static_cast<std::size_t>(width_);
    const bool full = next.size() - running_from == static_cast<std::size_t>(width_);
    if (!first_k && rules_.ending == EndingRanks::first_k && (full || rules_.refill_slots)) break;
    const Candidate& c = candidates[rank];
    FinishedBeam beam = ending_of(c.token);
    const bool ends = beam.reason != FinishReason::none;
    const bool at_limit = last && rules_.limit != LimitRule::end_running;
    if ((ends || at_limit) && (first_k || rules_.ending == EndingRanks::any)) {
      if (!ends) beam.reason = FinishReason::length;
      beam.node = add_node(c, row);
      chosen.push_back(c.token);
      if (rank == 0) group.best_finished = true;
      finish(group, beam);
      if (rules_.refill_slots && !at_limit) {
        while (refill < candidates.size() &&
               ending_of(candidates[refill].token).reason != FinishReason::none) {
          ++refill;
        }
        if (refill < candidates.size()) run(candidates[refill++]);
      }
    } else if (!ends && !at_limit && !full) {
      run(c);
    }
  }
  if (!last || rules_.limit != LimitRule::end_running) return;
  for (std::size_t i = running_from; i < next.size(); ++i) {
    finish(group, {.node = next[i].node, .reason = FinishReason::length});
  }
  next.resize(running_from);
}

double SearchState::ranking(double log_probability, std::int64_t length) const {
  return log_probability / std::pow(static_cast<double>(length), options_.length_penalty);
}

void SearchState::finish(Group& group, FinishedBeam beam) {
  const bool own_end = beam.reason == FinishReason::eos || beam.reason == FinishReason::stop;
  beam.length = tree_[beam.node].depth;
  if (rules_.length == LengthRule::prompt_and_text) {
    beam.length += std::ssize(prompt()) - (own_end ? 1 : 0);
  }
  beam.score = ranking(tree_[beam.node].path_log_probability, beam.length);
  if (rules_.pool == PoolRule::first_k && std::ssize(group.pool) >= width_) return;
  const auto after = std::ranges::find_if(
      group.pool, [&](const FinishedBeam& other) { return other.score < beam.score; });
  group.pool.insert(after, beam);
  if (rules_.pool == PoolRule::best_k && std::ssize(group.pool) > width_) group.pool.pop_back();
}

bool SearchState::stops(const Group& group, std::span<const RunningBeam> running) const {
  if (running.empty() || generated_ == max_tokens_) return true;
  const auto finished = std::ssize(group.pool);
  switch (rules_.stop) {
    case StopRule::never:
      return false;
    case StopRule::full_pool:
      return finished >= width_;
    case StopRule::count: {
      const std::int64_t wanted = options_.results == 0 ? options_.beams : options_.results;
      if (options_.length_penalty == 0) return group.best_finished && finished >= wanted;
      return finished >= std::llround(static_cast<double>(width_) * options_.patience);
    }
    case StopRule::bound:
      break;
  }
  if (finished < width_) return false;
  const bool at_max = rules_.bound_at_max && options_.length_penalty > 0;
  double best = -std::numeric_limits<double>::infinity();
  for (const RunningBeam& beam : running) best = std::max(best, beam.score);
  return ranking(best, at_max ? max_tokens_ : generated_) <= group.pool.back().score;
}

// Drops what neither runs nor has finished, so that memory follows what is alive.
void SearchState::compact(std::vector<RunningBeam>& next) {
  if (tree_.size() < compact_at_) return;
  std::vector<std::int32_t> live;
  for (const RunningBeam& beam : next) live.push_back(beam.node);
  for (const Group& group : groups_) {
    for (const FinishedBeam& beam : group.pool) live.push_back(beam.node);
  }
  const std::vector<std::int32_t> moved = tree_.compact(live);
  const auto move = [&](std::int32_t& node) { node = moved[static_cast<std::size_t>(node)]; };
  for (RunningBeam& beam : next) move(beam.node);
  for (Group& group : groups_) {
    for (FinishedBeam& beam : group.pool) move(beam.node);
  }
  compact_at_ = std::max(1 << 12, 2 * tree_.size());
}

void SearchState::cancel() {
  for (Group& group : groups_) {
    if (generated_ == 0) continue;
    for (std::int64_t b = group.begin; b < group.end; ++b) {
      finish(group, {.node = running_[static_cast<std::size_t>(b)].node,
                     .reason = FinishReason::cancelled});
    }
    group.begin = group.end = 0;
  }
  running_.clear();
}

BeamHypothesis SearchState::hypothesis_of(const FinishedBeam& beam) const {
  BeamHypothesis h;
  h.finished = beam.reason == FinishReason::eos || beam.reason == FinishReason::stop;
  h.tokens = tree_.path_tokens(beam.node);
  if (h.finished && !request_.request.stop.include_stop) h.tokens.pop_back();
  h.log_probability = tree_[beam.node].path_log_probability;
  h.score = beam.score;
  h.length = beam.length;
  h.reason = beam.reason;
  h.stop_index = beam.stop_index;
  if (request_.request.top_log_probabilities >= 0) {
    for (const std::int32_t node : tree_.path(beam.node)) {
      h.log_probabilities.push_back(tree_[node].log_probability);
    }
  }
  return h;
}

std::vector<BeamHypothesis> SearchState::results() const {
  std::vector<const FinishedBeam*> all;
  for (const Group& group : groups_) {
    for (const FinishedBeam& beam : group.pool) all.push_back(&beam);
  }
  std::ranges::stable_sort(all, std::ranges::greater{}, &FinishedBeam::score);
  const auto wanted =
      static_cast<std::size_t>(options_.results == 0 ? options_.beams : options_.results);
  if (all.size() > wanted) all.resize(wanted);
  std::vector<BeamHypothesis> hypotheses;
  for (const FinishedBeam* beam : all) hypotheses.push_back(hypothesis_of(*beam));
  return hypotheses;
}

}  // namespace touchstone::inline v0::decode::beam
