// The state of a scheduler: active entries and step phases.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode/continuation.h"
#include "decode/sampler.h"
#include "decode/speculative/speculator.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/scheduler.h"

namespace touchstone::inline v0::decode {

// A continuation that is not finished.
struct SchedulerEntry {
  Continuation text;
  std::int64_t order = 0;  // of arrival
  TokenHook* hook = nullptr;
  std::optional<ScorerSequence> sequence{};  // present: it is running
  std::optional<ScorerSequence> swapped{};   // present: preempted, and can go on
  std::int64_t length = 0;                   // of the sequence
  // Samples of the same request that wait for this one to read the prompt, in their order.
  std::vector<SchedulerEntry*> followers{};
  SchedulerEntry* leader = nullptr;  // the entry that this one waits for

  std::int64_t remaining() const { return std::ssize(text.tokens()) - length; }
};

// Rows of an entry in a step.
struct SchedulerShare {
  SchedulerEntry* entry = nullptr;
  std::int64_t rows = 0;
  std::int64_t first = 0;   // index of its first row
  std::int32_t draft = -1;  // index into the drafts of the step
  bool complete = false;    // last(), before tokens are added

  bool last() const { return rows == entry->remaining(); }
};

// Event passed to a hook, after the step is committed.
struct SchedulerEvent {
  SchedulerEntry* entry = nullptr;
  std::int32_t token = -1;
  std::string text{};
  FinishReason finish = FinishReason::none;
};

// The rows of a step that the scorer holds as pending.
struct ScoredStep {
  std::int64_t rows = 0;
  std::vector<std::int32_t> logit_rows{};
  std::int64_t plain_logits = 0;  // of logit_rows, those without a draft, which come first
  bool prompts = false;           // rows of a prompt are among them
  TensorView hidden{};            // what hidden_layers() gave
};

struct HeldRequest {
  Request request;
  TokenHook hook;
  std::int64_t open = 0;  // samples that are not finished
  std::vector<Completion> completions{};
};

// InvalidArgument for options out of range.
SchedulerOptions checked_options(SchedulerOptions options, std::int64_t vocabulary);

struct Scheduler::State {
  State(Scorer& scored, SchedulerOptions given)
      : scorer(scored),
        options(checked_options(std::move(given), scored.shape().vocabulary)),
        sampler(scored.shape().vocabulary) {
    if (options.speculation.source) {
      speculator.emplace(options.speculation, scored.shape());
    }
  }
  ~State() {
    for (auto& [order, entry] : entries) {
      leave(entry);
      if (speculator) speculator->forget(order);
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::vector<SchedulerShare> plan();
  bool admit(SchedulerEntry& entry, std::vector<SchedulerShare>& shares);
  void make_room(std::vector<SchedulerShare>& shares);
  void preempt(SchedulerEntry& entry);
  std::vector<RowCount> counts_of(std::span<const SchedulerShare> shares) const;
  bool fits(std::span<const SchedulerShare> shares) const;
  bool fits_in_steps(std::span<const SchedulerShare> shares) const;
  void start(SchedulerEntry& entry, ScorerSequence sequence, std::int64_t length);
  void leave(SchedulerEntry& entry);
  void note(SchedulerEntry& entry, std::int32_t token, std::string text);
  void end(SchedulerEntry& entry, FinishReason reason);
  void fail(SchedulerEntry& entry, const Error& error);
  void emit();
  void end_cancelled();
  void retire();
  void propose(Context& context, std::vector<SchedulerShare>& shares);
  void score(Context& context, std::vector<SchedulerShare>& shares);
  ScoredStep forward(Context& context, std::vector<SchedulerShare>& shares);
  void commit(Context& context, std::span<const SchedulerShare> shares, const ScoredStep& scored);
  std::vector<std::int32_t> add_rows(const SchedulerShare& share,
                                     std::vector<ScoreRow>& rows) const;
  void read_prompt_logits(Context& context, const SchedulerShare& share,
                          std::span<const std::int32_t> logit_rows);
  void sample(Context& context, std::span<const SchedulerShare> shares,
              std::span<const std::int32_t> logit_rows);
  void verify_drafts(Context& context, std::span<const SchedulerShare> shares,
                     const ScoredStep& scored, std::vector<std::vector<std::int32_t>>& kept);
  void take(SchedulerEntry& entry, const SampledToken& sampled);
  void follow(Context& context, const SchedulerEntry& leader,
              std::span<SchedulerEntry* const> followers);
  TensorView grown(Tensor& buffer, std::int64_t rows) const;
  // Target layers whose hidden states the draft source consumes.
  std::span<const std::int32_t> hidden_layers() const {
    return speculator ? options.speculation.source->hidden_layers()
                      : std::span<const std::int32_t>();
  }
  std::span<const std::int32_t> observed_layers(std::span<const SchedulerShare> shares) const;
  TensorView hidden_view(std::int64_t layers, std::int64_t rows);

  Scorer& scorer;
  SchedulerOptions options;
  Sampler sampler;
  std::optional<Speculator> speculator{};
  std::vector<DraftedContinuation> drafts{};  // of the step
  std::deque<SchedulerEvent> events{};
  bool stepping = false;
  std::map<std::int64_t, SchedulerEntry> entries;   // unfinished, in the order of arrival
  std::map<std::int64_t, SchedulerEntry*> running;  // of them, those with a sequence ...
  std::map<std::int64_t, SchedulerEntry*> waiting;  // ... and the waiting queue
  std::vector<SchedulerEntry*> immediate;           // that end at the next step
  std::vector<SchedulerEntry*> ended;               // finished, to be retired
  std::exception_ptr failure{};                     // the first error of the step
  std::chrono::steady_clock::time_point step_start{};
  std::uint64_t seen_cancellations = Cancellation::count();
  std::map<std::int64_t, HeldRequest> requests;
  std::int64_t next_id = 0;
  std::int64_t next_order = 0;
  SchedulerStatistics statistics{};
  Tensor logits{};     // [rows, vocabulary]
  Tensor to_sample{};  // the same, for rows that are not neighbors
  Tensor hidden{};     // [hidden layers, rows, width]
  std::vector<float> host_logits{};
};

}  // namespace touchstone::inline v0::decode
