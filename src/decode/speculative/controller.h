// Decides how many nodes of the drafts are verified, from measured step times and acceptance rates.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "touchstone/decode/tree.h"

namespace touchstone::inline v0::decode {

// A step that was measured: no prompt rows in it.
struct MeasuredStep {
  std::int64_t sequences = 0;
  std::int64_t nodes = 0;     // verified, of all drafts
  std::int64_t tokens = 0;    // that it yielded
  double source_seconds = 0;  // in the source: drafting and observing
  double seconds = 0;         // in all, the source included
  bool drafted = false;       // the source was called for drafts
};

class SpeculationController {
 public:
  // Whether the source drafts in a step of `sequences`.
  bool should_draft(std::int64_t sequences) const;
  // Whether hidden states are computed for the source: while observing them in steps without drafts
  // costs little.
  bool should_observe(std::int64_t sequences) const;
  // How many nodes of the drafts of one step are verified, each draft's likeliest first.
  std::vector<std::int64_t> choose(std::span<const TokenTree* const> drafts,
                                   std::int64_t sequences);
  // Of every verified node: the source's estimate for its path, and whether it was accepted.
  void note_node(double path_log_probability, bool accepted);
  void note_step(const MeasuredStep& step);

  double plain_seconds(std::int64_t sequences) const;  // 0: not measured
  // `observing`: hidden states are computed for the source.
  std::string report(bool observing = true) const;

 private:
  // The last times of one kind of step.
  class Times {
   public:
    void add(double seconds);
    double median() const;
    std::int64_t count() const { return count_; }

   private:
    static constexpr std::int64_t kHeld = 8;
    std::array<double, kHeld> values_{};
    std::int64_t count_ = 0;
  };
  // How often nodes of this estimated probability were accepted, with exponential decay.
  struct Rate {
    double hits = 0;
    double seen = 0;
  };
  static constexpr std::size_t kRates = 20;
  using Key = std::pair<std::int64_t, std::int64_t>;  // sequences, rows, rounded

  static Key key_of(std::int64_t sequences, std::int64_t rows);
  static std::size_t rate_of(double path_log_probability);
  double expected_seconds(std::int64_t sequences, std::int64_t nodes) const;
  double expected_share(double path_log_probability) const;
  double allowed_loss(std::int64_t sequences) const;
  std::int64_t max_nodes(std::int64_t sequences) const;
  bool affordable(std::int64_t sequences, std::int64_t nodes) const;

  std::map<Key, Times> times_;
  std::map<std::int64_t, std::int64_t> widest_;  // by sequences, rounded: nodes of the widest pass
  std::array<Rate, kRates> rates_{};
  std::int64_t steps_ = 0;
  std::int64_t last_plain_ = -1;  // step number
  std::int64_t last_probe_ = 0;
  double total_seconds_ = 0;
  double loss_ = 0;  // of steps with drafts: time beyond that of plain steps for the same tokens
  // Of observing in the other steps, less what drafts have gained since. Apart from loss_: it must
  // not use up what the first drafts need to be measured.
  double observe_loss_ = 0;
  std::int64_t drafted_ = 0;  // steps with drafts
  double draft_seconds_ = 0;  // of such a step, smoothed
  // For the report: smoothed over steps with drafts.
  double tokens_per_pass_ = 1;
  double relative_time_ = 1;
  bool choosing_none_ = false;
  std::int64_t whole_ = 0;  // nodes of the last pass, where all of them were accepted
};

}  // namespace touchstone::inline v0::decode
