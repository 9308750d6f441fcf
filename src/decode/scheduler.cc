#include "touchstone/decode/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/index.h"
#include "decode/scheduler_state.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {

namespace {

template <class Type, class... Others>
std::exception_ptr copy_with_prefix(const Error& error, const std::string& prefix) {
  if (dynamic_cast<const Type*>(&error) != nullptr) {
    return std::make_exception_ptr(Type(prefix + error.what()));
  }
  if constexpr (sizeof...(Others) > 0) return copy_with_prefix<Others...>(error, prefix);
  return std::make_exception_ptr(Error(prefix + error.what()));
}

std::exception_ptr with_prefix(const Error& error, const std::string& prefix) {
  return copy_with_prefix<InvalidArgument, Unsupported, OutOfMemory, CorruptData, FileError,
                          DeviceError>(error, prefix);
}

// Sets a flag while it lives.
class StepInProgress {
 public:
  explicit StepInProgress(bool& flag) : flag_(flag) { flag_ = true; }
  ~StepInProgress() { flag_ = false; }
  StepInProgress(const StepInProgress&) = delete;
  StepInProgress& operator=(const StepInProgress&) = delete;

 private:
  bool& flag_;
};

}  // namespace

SchedulerOptions checked_options(SchedulerOptions options, std::int64_t vocabulary) {
  if (options.max_rows < 1) {
    throw InvalidArgument(
        fmt::format("scheduler: max_rows: expected at least 1, got {}", options.max_rows));
  }
  if (options.max_running < 1) {
    throw InvalidArgument(
        fmt::format("scheduler: max_running: expected at least 1, got {}", options.max_running));
  }
  for (const std::int32_t token : options.eos_tokens) {
    if (token >= 0 && token < vocabulary) continue;
    throw InvalidArgument(fmt::format("scheduler: eos_tokens: expected tokens in [0, {}), got {}",
                                      vocabulary, token));
  }
  options.max_running = std::min(options.max_running, options.max_rows);
  return options;
}

Scheduler::Scheduler(Scorer& scorer, SchedulerOptions options)
    : state_(std::make_unique<State>(scorer, std::move(options))) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

RequestId Scheduler::submit(Request request, TokenHook hook) {
  State& s = *state_;
  const ScorerShape& shape = s.scorer.shape();
  check_request(request, {.vocabulary = shape.vocabulary, .max_length = shape.max_length});
  if (!request.stop.strings.empty() && s.options.tokenizer == nullptr) {
    throw InvalidArgument("request: stop string: expected none, as the scheduler has no tokenizer");
  }
  // Else the first draft would end the step of all requests.
  if (s.speculator && s.options.speculation.rule == AcceptanceRule::greedy &&
      request.sampling.temperature != 0) {
    throw InvalidArgument(
        fmt::format("request: temperature: expected 0, as drafts are accepted by the rule greedy, "
                    "got {}",
                    request.sampling.temperature));
  }
  // A constraint that was made for another vocabulary is refused here.
  if (const auto first = request.constraint ? request.constraint->start() : nullptr) {
    std::vector<std::int32_t> mask(at((shape.vocabulary + 31) / 32));
    first->allowed(mask);
  }
  const RequestId id{s.next_id++};
  HeldRequest& held = s.requests[id.id];
  held = {.request = std::move(request), .hook = std::move(hook)};
  held.open = held.request.samples;
  held.completions.resize(at(held.request.samples));
  const bool done = held.request.cancellation.cancelled() ||
                    (held.request.stop.max_tokens == 0 && !held.request.prompt_log_probabilities);
  SchedulerEntry* leader = nullptr;
  for (std::int32_t i = 0; i < held.request.samples; ++i) {
    const std::int64_t order = s.next_order++;
    SchedulerEntry& entry =
        s.entries
            .emplace(order, SchedulerEntry{.text = Continuation(id, held.request, i, s.options,
                                                                shape.max_length),
                                           .order = order,
                                           .hook = held.hook ? &held.hook : nullptr,
                                           .leader = leader})
            .first->second;
    if (done) {
      s.immediate.push_back(&entry);
    } else if (leader == nullptr) {
      s.waiting.emplace(order, &entry);
      leader = &entry;
    } else {
      leader->followers.push_back(&entry);
    }
  }
  return id;
}

bool Scheduler::finished(RequestId request) const {
  const auto found = state_->requests.find(request.id);
  if (found == state_->requests.end()) {
    throw InvalidArgument(fmt::format("scheduler: request {} is not known", request.id));
  }
  return found->second.open == 0;
}

std::vector<Completion> Scheduler::take(RequestId request) {
  if (!finished(request)) {
    throw InvalidArgument(fmt::format("scheduler: request {} is not finished", request.id));
  }
  const auto found = state_->requests.find(request.id);
  std::vector<Completion> completions = std::move(found->second.completions);
  state_->requests.erase(found);
  return completions;
}

SchedulerStatistics Scheduler::statistics() const { return state_->statistics; }

SpeculationStatistics Scheduler::speculation() const {
  return state_->speculator ? state_->speculator->statistics() : SpeculationStatistics{};
}

bool Scheduler::step(Context& context) {
  State& s = *state_;
  if (context.device() != s.scorer.shape().device) {
    throw InvalidArgument(fmt::format("scheduler: context: expected one of {}, got {}",
                                      name_of(s.scorer.shape().device), name_of(context.device())));
  }
  // A hook that made a step would end entries whose events are still to come.
  if (s.stepping) throw InvalidArgument("scheduler: step: called by a hook");
  const StepInProgress in_progress(s.stepping);
  for (SchedulerEntry* const entry : std::exchange(s.immediate, {})) {
    const bool cancelled = entry->text.request().cancellation.cancelled();
    s.end(*entry, cancelled ? FinishReason::cancelled : FinishReason::length);
  }
  s.end_cancelled();
  s.emit();
  s.retire();
  std::vector<SchedulerShare> shares = s.plan();
  if (!shares.empty()) {
    ++s.statistics.steps;
    s.step_start = std::chrono::steady_clock::now();
    s.propose(context, shares);
    s.score(context, shares);
    s.emit();
    s.retire();
  }
  if (s.failure) std::rethrow_exception(std::exchange(s.failure, nullptr));
  return !s.entries.empty();
}

void Scheduler::State::end_cancelled() {
  const std::uint64_t count = Cancellation::count();
  if (count == seen_cancellations) return;
  seen_cancellations = count;
  for (auto& [order, entry] : entries) {
    if (!entry.text.finished() && entry.text.request().cancellation.cancelled()) {
      end(entry, FinishReason::cancelled);
    }
  }
}

std::vector<RowCount> Scheduler::State::counts_of(std::span<const SchedulerShare> shares) const {
  std::vector<RowCount> counts;
  counts.reserve(shares.size());
  for (const SchedulerShare& share : shares) {
    const SchedulerEntry& entry = *share.entry;
    const std::int64_t nodes = share.draft < 0 ? 0 : drafts[at(share.draft)].draft.tree.size();
    counts.push_back({entry.sequence ? *entry.sequence : *entry.swapped, share.rows + nodes});
  }
  return counts;
}

bool Scheduler::State::fits(std::span<const SchedulerShare> shares) const {
  return scorer.fits(counts_of(shares));
}

// Whether they fit over as many steps as they need.
bool Scheduler::State::fits_in_steps(std::span<const SchedulerShare> shares) const {
  return scorer.fits_in_chunks(counts_of(shares), options.max_rows);
}

// The shares of a step: continuations first, one row each, then prompts in their order, as many
// rows as are left; then waiting entries, as long as memory lasts.
std::vector<SchedulerShare> Scheduler::State::plan() {
  std::vector<SchedulerShare> shares;
  shares.reserve(running.size());
  std::int64_t rows = options.max_rows;
  for (const bool decoding : {true, false}) {
    for (const auto& [order, entry] : running) {
      if ((entry->remaining() == 1) != decoding || rows == 0) continue;
      shares.push_back({entry, std::min(rows, entry->remaining())});
      rows -= shares.back().rows;
    }
  }
  make_room(shares);
  rows = options.max_rows;
  for (const SchedulerShare& share : shares) rows -= share.rows;
  while (!waiting.empty() && rows > 0 && std::ssize(running) < options.max_running) {
    SchedulerEntry& entry = *waiting.begin()->second;
    if (!admit(entry, shares)) break;
    shares.back().rows = std::min(rows, entry.remaining());
    rows -= shares.back().rows;
  }
  // Layers with windows free the pages of a chunk as the next one is read: what does not fit as a
  // whole may fit in parts.
  while (shares.size() == 1 && shares[0].rows > 1 && !fits(shares)) shares[0].rows /= 2;
  return shares;
}

// Lets an entry join with a sequence, if its whole text fits beside what the step takes: what joins
// with less would push others out, or itself. Of layers with windows that is a window and a chunk.
bool Scheduler::State::admit(SchedulerEntry& entry, std::vector<SchedulerShare>& shares) {
  const bool alone = running.empty();
  if (entry.swapped) {
    shares.push_back({&entry, entry.remaining()});
    if ((alone || fits_in_steps(shares)) && scorer.swap_in(*entry.swapped)) {
      start(entry, *entry.swapped, entry.length);
      entry.swapped.reset();
      return true;
    }
    shares.pop_back();
    if (!alone) return false;
    leave(entry);  // recomputed later
  }
  const std::span<const std::int32_t> tokens = entry.text.tokens();
  // The logits of the last token are needed, so it runs; those of the whole prompt, and all does.
  // A draft source that observes hidden states needs every row, too.
  const bool shared = options.share_prefixes && hidden_layers().empty() &&
                      !entry.text.request().prompt_log_probabilities;
  const ScorerSequence sequence =
      shared ? scorer.open(tokens.first(tokens.size() - 1)) : scorer.create();
  start(entry, sequence, scorer.length(sequence));
  shares.push_back({&entry, entry.remaining()});
  if (!alone && !fits_in_steps(shares)) {
    shares.pop_back();
    leave(entry);
    waiting.emplace(entry.order, &entry);
    return false;
  }
  if (alone && entry.length > 0 && !fits_in_steps(shares)) {
    // A page that is shared in part is copied before it is written: for a moment the sequence needs
    // more than its tokens do, and there is no other entry to preempt. It waits while create() may
    // throw.
    leave(entry);
    waiting.emplace(entry.order, &entry);
    start(entry, scorer.create(), 0);
    shares.back().rows = entry.remaining();
  }
  statistics.prefix_tokens += entry.length;
  return true;
}

// Preempts the most recent requests until the rest of the step fits.
void Scheduler::State::make_room(std::vector<SchedulerShare>& shares) {
  while (!fits(shares)) {
    if (running.size() < 2) return;  // score() says what is missing
    SchedulerEntry& youngest = *running.rbegin()->second;
    std::erase_if(shares, [&](const SchedulerShare& share) { return share.entry == &youngest; });
    preempt(youngest);
  }
}

void Scheduler::State::preempt(SchedulerEntry& entry) {
  ++statistics.preemptions;
  const ScorerSequence sequence = *entry.sequence;
  if (entry.length >= options.swap_min_tokens && scorer.swap_out(sequence)) {
    ++statistics.swaps;
    entry.swapped = sequence;
    entry.sequence.reset();
    running.erase(entry.order);
  } else {
    leave(entry);
  }
  waiting.emplace(entry.order, &entry);
}

void Scheduler::State::start(SchedulerEntry& entry, ScorerSequence sequence, std::int64_t length) {
  entry.sequence = sequence;
  entry.length = length;
  waiting.erase(entry.order);
  running.emplace(entry.order, &entry);
}

void Scheduler::State::leave(SchedulerEntry& entry) {
  for (auto* const held : {&entry.sequence, &entry.swapped}) {
    if (*held) scorer.release(**held);
    held->reset();
  }
  entry.length = 0;
  running.erase(entry.order);
}

void Scheduler::State::note(SchedulerEntry& entry, std::int32_t token, std::string text) {
  if (entry.text.finished()) ended.push_back(&entry);
  if (entry.hook == nullptr) return;
  events.push_back({&entry, token, std::move(text), entry.text.completion().finish});
}

void Scheduler::State::end(SchedulerEntry& entry, FinishReason reason) {
  note(entry, -1, entry.text.finish(reason));
}

// Ends an entry, and the samples that wait for it, by an error that the step throws when it is
// done.
void Scheduler::State::fail(SchedulerEntry& entry, const Error& error) {
  if (!failure) {
    failure = with_prefix(error, fmt::format("scheduler: request {}: ", entry.text.id().id));
  }
  end(entry, FinishReason::failed);
  for (SchedulerEntry* const other : entry.followers) end(*other, FinishReason::failed);
}

// Hooks run last, so one that throws finds the step committed. The events behind it are kept, and so
// are their entries: retire() follows.
void Scheduler::State::emit() {
  while (!events.empty()) {
    const SchedulerEvent event = std::move(events.front());
    events.pop_front();
    (*event.entry->hook)({.request = event.entry->text.id(),
                          .sample = event.entry->text.sample(),
                          .token = event.token,
                          .text = event.text,
                          .finish = event.finish});
  }
}

// Retires finished entries. If a leader ends before prefill completes, the next sample becomes
// leader.
void Scheduler::State::retire() {
  // In arrival order, so that a leader is retired before its followers.
  std::ranges::sort(ended, {}, &SchedulerEntry::order);
  for (SchedulerEntry* const entry : std::exchange(ended, {})) {
    leave(*entry);
    if (speculator) speculator->forget(entry->order);
    waiting.erase(entry->order);
    if (entry->leader != nullptr) std::erase(entry->leader->followers, entry);
    if (!entry->followers.empty()) {
      SchedulerEntry& next = *entry->followers.front();
      next.leader = nullptr;
      next.followers.assign(entry->followers.begin() + 1, entry->followers.end());
      for (SchedulerEntry* const other : next.followers) other->leader = &next;
      waiting.emplace(next.order, &next);
    }
    HeldRequest& held = requests.at(entry->text.id().id);
    held.completions[at(entry->text.sample())] = std::move(entry->text.completion());
    --held.open;
    entries.erase(entry->order);
  }
}

}  // namespace touchstone::inline v0::decode
