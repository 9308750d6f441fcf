#include "decode/speculative/speculator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/index.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Speculator::Speculator(const SpeculationOptions& options, const ScorerShape& shape)
    : options_(options), vocabulary_(shape.vocabulary), acceptor_(shape.vocabulary) {
  const std::int64_t vocabulary = shape.vocabulary;
  const std::int64_t own = options.source->vocabulary();
  if (own != 0 && own != vocabulary) {
    throw InvalidArgument(
        fmt::format("speculation: source: expected the vocabulary of the target, {} tokens, got {}",
                    vocabulary, own));
  }
  if (!options.source->hidden_layers().empty() && shape.hidden_size == 0) {
    throw InvalidArgument("speculation: source: the target gives no hidden states");
  }
  if (options.tree_nodes < 0 || options.max_depth < 0) {
    throw InvalidArgument("speculation: tree_nodes, max_depth: expected numbers >= 0");
  }
}

void Speculator::propose(Context& context, std::span<DraftedContinuation> continuations,
                         std::int64_t rows) {
  step_ = {};
  observed_any_ = false;
  const std::int64_t sequences = std::ssize(continuations);
  if (sequences == 0 || rows < 1) return;
  if (options_.adaptive && !controller_.should_draft(sequences)) return;
  step_.drafted = true;
  const double start = seconds_now();
  std::vector<DraftRequest> requests;
  // Every draft may use what is left, and the likeliest nodes of all of them stay; but sampled
  // drafts are verified as they are.
  const bool uncut = options_.rule == AcceptanceRule::rejection;
  const std::int64_t each = std::min(options_.tree_nodes, uncut ? rows / sequences : rows);
  for (const DraftedContinuation& one : continuations) {
    // After the accepted path the target adds a token.
    const std::int64_t depth = std::min(options_.max_depth, one.text->room() - 1);
    requests.push_back({.id = one.id,
                        .tokens = one.text->tokens(),
                        .controls = &one.text->request().sampling,
                        .seed = one.text->seed(),
                        .limits = {.max_nodes = depth < 1 ? 0 : each,
                                   .max_depth = std::max<std::int64_t>(depth, 0)}});
  }
  options_.source->draft(context, requests);
  std::vector<const TokenTree*> trees;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    check_draft(requests[i].draft, vocabulary_, requests[i].limits);
    continuations[i].draft = std::move(requests[i].draft);
    if (!continuations[i].draft.tree.empty()) {
      continuations[i].text->mask(continuations[i].draft, vocabulary_);
    }
    trees.push_back(&continuations[i].draft.tree);
  }
  std::vector<std::int64_t> nodes;
  if (options_.adaptive && !uncut) {
    nodes = controller_.choose(trees, sequences);
  } else {
    for (const TokenTree* tree : trees) nodes.push_back(tree->size());
  }
  std::int64_t left = rows;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    DraftedContinuation& one = continuations[i];
    // Rows that do not suffice for all are shared evenly by those that are still to come.
    const std::int64_t share = left / static_cast<std::int64_t>(nodes.size() - i);
    const std::int64_t most = std::min(nodes[i], std::max<std::int64_t>(share, 0));
    if (most < one.draft.tree.size() && !uncut) cut_draft(one.draft, most, vocabulary_);
    left -= one.draft.tree.size();
    step_.nodes += one.draft.tree.size();
  }
  step_.source_seconds += seconds_now() - start;
}

std::vector<Acceptance> Speculator::verify(Context& context, const ConstTensorView& logits,
                                           std::span<const DraftedContinuation> continuations) {
  std::vector<DraftedSequence> sequences;
  for (const DraftedContinuation& one : continuations) {
    sequences.push_back({.request = &one.text->request(),
                         .seed = one.text->seed(),
                         .tokens = one.text->tokens(),
                         .draft = &one.draft});
  }
  std::vector<Acceptance> results = acceptor_.run(context, logits, sequences, options_.rule);
  for (std::size_t i = 0; i < results.size(); ++i) {
    count(continuations[i], results[i]);
    if (options_.trace && !continuations[i].draft.tree.empty()) {
      options_.trace({.request = continuations[i].text->id().id,
                      .sample = continuations[i].text->sample(),
                      .position = std::ssize(continuations[i].text->tokens()),
                      .tree = &continuations[i].draft.tree,
                      .acceptance = &results[i]});
    }
  }
  return results;
}

void Speculator::count(const DraftedContinuation& continuation, const Acceptance& acceptance) {
  const TokenTree& tree = continuation.draft.tree;
  if (tree.empty()) return;
  ++statistics_.drafted_passes;
  statistics_.nodes += tree.size();
  const std::size_t depth = at(tree.max_depth());
  if (statistics_.offered.size() < depth) {
    statistics_.offered.resize(depth);
    statistics_.accepted.resize(depth);
  }
  for (std::size_t d = 0; d <= acceptance.nodes.size() && d < depth; ++d) {
    const bool children = d == 0 || tree[acceptance.nodes[d - 1]].first_child != kNoNode;
    statistics_.offered[d] += children ? 1 : 0;
    statistics_.accepted[d] += d < acceptance.nodes.size() ? 1 : 0;
  }
  for (std::int32_t node = 0; node < tree.size(); ++node) {
    controller_.note_node(tree[node].path_log_probability,
                          acceptance.verdicts[at(node)].state == NodeState::accepted);
  }
}

void Speculator::note_step(std::int64_t sequences, std::int64_t tokens, double seconds) {
  statistics_.passes += sequences;
  statistics_.tokens += tokens;
  statistics_.seconds += seconds;
  statistics_.draft_seconds += step_.source_seconds;
  step_.sequences = sequences;
  step_.tokens = tokens;
  step_.seconds = seconds;
  controller_.note_step(step_);
  observing_ = observed_any_ || options_.source->hidden_layers().empty();
  double& unpriced = unpriced_[sequences];
  unpriced += static_cast<double>(tokens) / static_cast<double>(sequences);
  const double plain = controller_.plain_seconds(sequences);
  if (plain == 0) return;
  // The controller uses medians; on a busy machine the mean is above them, in plain steps as in
  // others.
  constexpr double kSmoothed = 1.0 / 16;
  if (step_.nodes == 0) mean_ += kSmoothed * ((seconds - step_.source_seconds) / plain - mean_);
  statistics_.plain_seconds += mean_ * plain * std::exchange(unpriced, 0.0);
}

bool Speculator::observes(std::int64_t id, std::int64_t position, std::int64_t sequences) const {
  if (options_.source->hidden_layers().empty()) return false;
  const auto found = observed_.find(id);
  if (position > (found == observed_.end() ? 0 : found->second)) return false;
  return !options_.adaptive || controller_.should_observe(sequences);
}

void Speculator::observe(Context& context, const ObservedRows& rows) {
  const double start = seconds_now();
  options_.source->observe(context, rows);
  step_.source_seconds += seconds_now() - start;
  observed_[rows.id] = rows.position + std::ssize(rows.rows);
  observed_any_ = true;
}

void Speculator::copy(Context& context, std::int64_t from, std::int64_t to) {
  options_.source->copy(context, from, to);
  if (const auto found = observed_.find(from); found != observed_.end()) {
    observed_[to] = found->second;
  }
}

void Speculator::forget(std::int64_t id) {
  options_.source->forget(id);
  observed_.erase(id);
}

SpeculationStatistics Speculator::statistics() const {
  SpeculationStatistics result = statistics_;
  result.controller =
      options_.adaptive ? controller_.report(observing_) : "off: every draft is verified whole";
  return result;
}

}  // namespace touchstone::inline v0::decode
