#include "decode/speculative/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/index.h"
#include "touchstone/decode/draft.h"

namespace touchstone::inline v0::decode {
namespace {

constexpr std::int64_t kFirstPlainSteps = 3;
constexpr std::int64_t kPlainEvery = 64;  // steps between two measurements of a plain one
constexpr std::int64_t kProbeEvery = 16;  // steps between two tries while nothing pays
constexpr std::int64_t kProbeNodes = 4;
constexpr double kLossShare = 0.01;  // of all time
// What observing may cost, of all time and of a step. Tokens that were not observed cannot be drafted
// from later: drafting pauses and is tried again, observing ends for good and only for its own cost.
constexpr double kObserveShare = 0.005;
constexpr double kObserveSteps = 0.5;
constexpr double kSmoothing = 1.0 / 16;
constexpr double kMinGain = 1.02;  // that a choice promises over plain decoding
// Before it is measured, a row beside others counts as this share of a plain step: little, so that
// wider passes are tried.
constexpr double kGuessedRow = 0.02;

}  // namespace

void SpeculationController::Times::add(double seconds) { values_[at(count_++ % kHeld)] = seconds; }

double SpeculationController::Times::median() const {
  const std::int64_t n = std::min(count_, kHeld);
  if (n == 0) return 0;
  std::vector<double> sorted(values_.begin(), values_.begin() + n);
  std::ranges::sort(sorted);
  return sorted[at((n - 1) / 2)];
}

// Exact for small passes, within an eighth for large ones.
SpeculationController::Key SpeculationController::key_of(std::int64_t sequences,
                                                         std::int64_t rows) {
  const auto rounded = [](std::int64_t n) {
    const int shift =
        std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))) - 4);
    return n >> shift << shift;
  };
  return {rounded(sequences), rounded(rows)};
}

double SpeculationController::plain_seconds(std::int64_t sequences) const {
  const auto found = times_.find(key_of(sequences, sequences));
  return found == times_.end() ? 0 : found->second.median();
}

double SpeculationController::expected_seconds(std::int64_t sequences, std::int64_t nodes) const {
  const double plain = plain_seconds(sequences);
  const Key key = key_of(sequences, sequences + nodes);
  if (const auto found = times_.find(key); found != times_.end()) return found->second.median();
  // Between, or beyond, what was measured with as many sequences.
  std::pair<std::int64_t, double> low{sequences, plain};
  std::pair<std::int64_t, double> before = low;
  for (auto it = times_.lower_bound({key.first, 0}); it != times_.end(); ++it) {
    if (it->first.first != key.first) break;
    const std::pair<std::int64_t, double> here{it->first.second, it->second.median()};
    if (here.first > key.second) {
      const double part =
          static_cast<double>(key.second - low.first) / static_cast<double>(here.first - low.first);
      return low.second + part * (here.second - low.second);
    }
    before = low;
    low = here;
  }
  double slope = kGuessedRow * plain;
  if (low.first > before.first) {
    slope = std::max(slope / 4,
                     (low.second - before.second) / static_cast<double>(low.first - before.first));
  }
  return low.second + slope * static_cast<double>(key.second - low.first);
}

std::size_t SpeculationController::rate_of(double path_log_probability) {
  const double share = std::clamp(std::exp(path_log_probability), 0.0, 1.0);
  return std::min(kRates - 1, static_cast<std::size_t>(share * static_cast<double>(kRates)));
}

double SpeculationController::expected_share(double path_log_probability) const {
  // The source's own estimate counts as four observed nodes.
  constexpr double kPrior = 4;
  const Rate& rate = rates_[rate_of(path_log_probability)];
  const double claim = std::clamp(std::exp(path_log_probability), 0.0, 1.0);
  return (rate.hits + kPrior * claim) / (rate.seen + kPrior);
}

void SpeculationController::note_node(double path_log_probability, bool accepted) {
  Rate& rate = rates_[rate_of(path_log_probability)];
  constexpr double kMemory = 64;  // nodes
  rate.hits = rate.hits * (1 - 1 / kMemory) + (accepted ? 1 : 0);
  rate.seen = rate.seen * (1 - 1 / kMemory) + 1;
}

double SpeculationController::allowed_loss(std::int64_t sequences) const {
  return kLossShare * total_seconds_ + plain_seconds(sequences);
}

// Unmeasured widths are explored by doubling, from one node per sequence: should a row cost as much
// as a plain step, the first pass still loses no more than one. A wide first pass could lose
// several, which a short text does not make up for.
std::int64_t SpeculationController::max_nodes(std::int64_t sequences) const {
  const auto found = widest_.find(key_of(sequences, sequences).first);
  return std::max(sequences, found == widest_.end() ? 0 : 2 * found->second);
}

// Whether a pass of `nodes` stays within the loss budget, should none be accepted. The cost
// of the first one is unmeasured: a row is taken as a step of its sequence.
bool SpeculationController::affordable(std::int64_t sequences, std::int64_t nodes) const {
  const double plain = plain_seconds(sequences);
  const double cost = max_nodes(sequences) == sequences
                          ? plain * static_cast<double>(nodes) / static_cast<double>(sequences)
                          : expected_seconds(sequences, nodes) - plain;
  return loss_ + cost + draft_seconds_ <= allowed_loss(sequences);
}

bool SpeculationController::should_draft(std::int64_t sequences) const {
  const auto plain = times_.find(key_of(sequences, sequences));
  const bool measured = plain != times_.end() && plain->second.count() >= kFirstPlainSteps;
  if (!measured || steps_ - last_plain_ >= kPlainEvery) return false;
  // A draft that leaves no room to verify a node is time for nothing.
  return loss_ + observe_loss_ < allowed_loss(sequences) && affordable(sequences, sequences);
}

bool SpeculationController::should_observe(std::int64_t sequences) const {
  const double plain = plain_seconds(sequences);
  return plain == 0 || observe_loss_ < kObserveShare * total_seconds_ + kObserveSteps * plain;
}

std::vector<std::int64_t> SpeculationController::choose(std::span<const TokenTree* const> drafts,
                                                        std::int64_t sequences) {
  struct Node {
    double path = 0;
    std::size_t draft = 0;
  };
  std::vector<Node> nodes;
  for (std::size_t d = 0; d < drafts.size(); ++d) {
    for (const std::int32_t node : likeliest_nodes(*drafts[d])) {
      nodes.push_back({(*drafts[d])[node].path_log_probability, d});
    }
  }
  std::ranges::stable_sort(nodes, [](const Node& a, const Node& b) { return a.path > b.path; });
  const double plain = plain_seconds(sequences);
  double best = kMinGain * static_cast<double>(sequences) / (plain + draft_seconds_);
  std::int64_t taken = 0;
  double expected = static_cast<double>(sequences);
  const std::int64_t most = std::min(std::ssize(nodes), max_nodes(sequences));
  for (std::int64_t n = 1; n <= most; ++n) {
    expected += expected_share(nodes[at(n - 1)].path);
    const double rate = expected / (expected_seconds(sequences, n) + draft_seconds_);
    if (rate > best && affordable(sequences, n)) {
      best = rate;
      taken = n;
    }
  }
  // Drafts that were accepted whole may grow: deep nodes have low estimates and would otherwise
  // never be measured.
  const std::int64_t doubled = std::min(most, 2 * whole_);
  const double hoped = static_cast<double>(sequences + doubled) /
                       (expected_seconds(sequences, doubled) + draft_seconds_);
  if (doubled > taken && hoped > best && affordable(sequences, doubled)) taken = doubled;
  // And on to an unmeasured width, whatever the measured ones predict: the time of a pass does not
  // grow evenly with its rows.
  const auto widest = widest_.find(key_of(sequences, sequences).first);
  const bool unmeasured = widest != widest_.end() && most > widest->second;
  if (whole_ > 0 && unmeasured && affordable(sequences, most)) taken = most;
  choosing_none_ = taken == 0 && !nodes.empty();
  // Probes with a few nodes now and then, or a source that recovers would never be measured.
  if (choosing_none_ && steps_ - last_probe_ >= kProbeEvery &&
      loss_ < allowed_loss(sequences) / 2) {
    last_probe_ = steps_;
    taken = std::min(kProbeNodes, most);
    while (taken > 0 && !affordable(sequences, taken)) --taken;
  }
  std::vector<std::int64_t> chosen(drafts.size());
  for (std::int64_t n = 0; n < taken; ++n) ++chosen[nodes[at(n)].draft];
  return chosen;
}

void SpeculationController::note_step(const MeasuredStep& step) {
  ++steps_;
  total_seconds_ += step.seconds;
  if (step.nodes == 0) last_plain_ = steps_;
  std::int64_t& widest = widest_[key_of(step.sequences, step.sequences).first];
  widest = std::max(widest, step.nodes);
  if (step.drafted) whole_ = step.tokens - step.sequences == step.nodes ? step.nodes : 0;
  // The target's time for this number of rows, without that of the source.
  times_[key_of(step.sequences, step.sequences + step.nodes)].add(step.seconds -
                                                                  step.source_seconds);
  if (step.drafted) {
    const double weight = drafted_++ == 0 ? 1 : kSmoothing;
    draft_seconds_ += weight * (step.source_seconds - draft_seconds_);
  }
  const double plain = plain_seconds(step.sequences);
  if (plain == 0) return;
  const double per_sequence =
      static_cast<double>(step.tokens) / static_cast<double>(step.sequences);
  if (!step.drafted) {
    observe_loss_ += step.source_seconds;
    return;
  }
  // A plain step is as slow as the machine makes it: only the source is its loss.
  const double lost = step.nodes == 0 ? step.source_seconds : step.seconds - plain * per_sequence;
  // Past gains are not credited against the loss budget.
  loss_ = std::max(loss_ + lost, -4 * plain);
  observe_loss_ = std::max(0.0, observe_loss_ + std::min(0.0, lost));
  if (step.nodes > 0) {
    tokens_per_pass_ += kSmoothing * (per_sequence - tokens_per_pass_);
    relative_time_ += kSmoothing * (step.seconds / plain - relative_time_);
  }
}

std::string SpeculationController::report(bool observing) const {
  if (steps_ == 0) return "no step was measured";
  const std::string seen =
      fmt::format("drafts give {:.2f} tokens per pass at {:.2f}x the time of a plain step",
                  tokens_per_pass_, relative_time_);
  if (!observing) return "stopped: hidden states cost too much; " + seen;
  if (loss_ + observe_loss_ > kLossShare * total_seconds_)
    return "stopped: " + seen + "; tried again now and then";
  if (choosing_none_) return "not speculating: " + seen;
  return "speculating: " + seen;
}

}  // namespace touchstone::inline v0::decode
