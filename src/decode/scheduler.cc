#include "touchstone/decode/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "core/copy.h"
#include "core/index.h"
#include "decode/continuation.h"
#include "decode/log_softmax.h"
#include "decode/sampler.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {
namespace {

// A continuation in the queue.
struct Entry {
  Continuation text;
  TokenHook* hook = nullptr;
  std::optional<ScorerSequence> sequence{};  // present: it is running
  std::int64_t length = 0;                   // of the sequence
  Entry* leader =
      nullptr;  // not null: waits for the first sample of its request to read the prompt

  std::int64_t remaining() const { return std::ssize(text.tokens()) - length; }
};

// Rows of an entry in a step.
struct Share {
  Entry* entry = nullptr;
  std::int64_t rows = 0;
  std::int64_t first = 0;  // index of its first row

  bool last() const { return rows == entry->remaining(); }
};

struct Held {
  Request request;
  TokenHook hook;
  std::int64_t open = 0;  // samples that are not finished
  std::vector<Completion> completions{};
};

SchedulerOptions checked(SchedulerOptions options) {
  if (options.max_rows < 1) {
    throw InvalidArgument(
        fmt::format("scheduler: max_rows: expected at least 1, got {}", options.max_rows));
  }
  if (options.max_running < 1) {
    throw InvalidArgument(
        fmt::format("scheduler: max_running: expected at least 1, got {}", options.max_running));
  }
  options.max_running = std::min(options.max_running, options.max_rows);
  return options;
}

}  // namespace

struct Scheduler::State {
  State(Scorer& scored, SchedulerOptions given)
      : scorer(scored), options(checked(std::move(given))), sampler(scored.shape().vocabulary) {}
  ~State() {
    for (Entry& entry : queue) leave(entry);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::vector<Share> plan();
  bool admit(Entry& entry, std::vector<Share>& shares);
  void make_room(std::vector<Share>& shares);
  bool fits(std::span<const Share> shares) const;
  void leave(Entry& entry);
  void emit(Entry& entry, std::int32_t token, std::string_view text);
  void end(Entry& entry, FinishReason reason);
  void retire();
  void score(Context& context, std::vector<Share>& shares);
  void read_prompt_logits(const Share& share, std::span<const std::int32_t> logit_rows);
  void sample(Context& context, std::span<const Share> shares,
              std::span<const std::int32_t> logit_rows);
  void follow(Entry& leader);
  TensorView grown(Tensor& buffer, std::int64_t rows) const;

  Scorer& scorer;
  SchedulerOptions options;
  Sampler sampler;
  std::list<Entry> queue;  // unfinished, in the order of arrival
  std::map<std::int64_t, Held> requests;
  std::int64_t next_id = 0;
  SchedulerStatistics statistics{};
  Tensor logits{};     // [rows, vocabulary]
  Tensor to_sample{};  // the same, for rows that are not neighbors
  std::vector<float> host_logits{};
};

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
  const RequestId id{s.next_id++};
  Held& held = s.requests[id.id];
  held = {.request = std::move(request), .hook = std::move(hook)};
  held.open = held.request.samples;
  held.completions.resize(at(held.request.samples));
  Entry* leader = nullptr;
  for (std::int32_t i = 0; i < held.request.samples; ++i) {
    s.queue.push_back({.text = Continuation(id, held.request, i, s.options, shape.max_length),
                       .hook = held.hook ? &held.hook : nullptr,
                       .leader = leader});
    if (leader == nullptr) leader = &s.queue.back();
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

bool Scheduler::step(Context& context) {
  State& s = *state_;
  for (Entry& entry : s.queue) {
    const Request& request = entry.text.request();
    if (request.cancellation.cancelled()) {
      s.end(entry, FinishReason::cancelled);
    } else if (!entry.text.wants_tokens() && !request.prompt_log_probabilities) {
      s.end(entry, FinishReason::length);
    }
  }
  s.retire();
  std::vector<Share> shares = s.plan();
  if (!shares.empty()) {
    ++s.statistics.steps;
    s.score(context, shares);
    s.retire();
  }
  return !s.queue.empty();
}

bool Scheduler::State::fits(std::span<const Share> shares) const {
  std::vector<RowCount> counts;
  for (const Share& share : shares) counts.push_back({*share.entry->sequence, share.rows});
  return scorer.fits(counts);
}

// Who takes part in a step: continuations first, one row each, then prompts in their order, as many
// rows as are left; then those who wait, as long as memory lasts.
std::vector<Share> Scheduler::State::plan() {
  std::vector<Share> shares;
  std::int64_t rows = options.max_rows;
  for (const bool decoding : {true, false}) {
    for (Entry& entry : queue) {
      if (!entry.sequence || (entry.remaining() == 1) != decoding || rows == 0) continue;
      shares.push_back({&entry, std::min(rows, entry.remaining())});
      rows -= shares.back().rows;
    }
  }
  make_room(shares);
  rows = options.max_rows;
  for (const Share& share : shares) rows -= share.rows;
  auto running =
      std::ranges::count_if(queue, [](const Entry& e) { return e.sequence.has_value(); });
  for (Entry& entry : queue) {
    if (entry.sequence || entry.leader != nullptr) continue;
    if (running >= options.max_running || rows == 0 || !admit(entry, shares)) break;
    ++running;
    shares.back().rows = std::min(rows, entry.remaining());
    rows -= shares.back().rows;
  }
  return shares;
}

// Lets an entry join with a sequence, if its whole text fits beside what the step takes: what joins
// with less would push others out, or itself.
bool Scheduler::State::admit(Entry& entry, std::vector<Share>& shares) {
  const std::span<const std::int32_t> tokens = entry.text.tokens();
  // The logits of the last token are needed, so it runs; those of the whole prompt, and all does.
  const bool shared = options.share_prefixes && !entry.text.request().prompt_log_probabilities;
  entry.sequence = shared ? scorer.open(tokens.first(tokens.size() - 1)) : scorer.create();
  entry.length = scorer.length(*entry.sequence);
  shares.push_back({&entry, entry.remaining()});
  const bool alone = std::ranges::none_of(
      queue, [&](const Entry& e) { return &e != &entry && e.sequence.has_value(); });
  if (!alone && !fits(shares)) {
    shares.pop_back();
    leave(entry);
    return false;
  }
  statistics.prefix_tokens += entry.length;
  return true;
}

// Takes memory from the youngest until the rest of the step has enough.
void Scheduler::State::make_room(std::vector<Share>& shares) {
  while (!fits(shares)) {
    const auto youngest = std::find_if(queue.rbegin(), queue.rend(),
                                       [](const Entry& e) { return e.sequence.has_value(); });
    const auto oldest =
        std::ranges::find_if(queue, [](const Entry& e) { return e.sequence.has_value(); });
    if (&*youngest == &*oldest) return;  // score() says what is missing
    ++statistics.preemptions;
    leave(*youngest);
    std::erase_if(shares, [&](const Share& share) { return share.entry == &*youngest; });
  }
}

void Scheduler::State::leave(Entry& entry) {
  if (entry.sequence) scorer.release(*entry.sequence);
  entry.sequence.reset();
  entry.length = 0;
}

void Scheduler::State::emit(Entry& entry, std::int32_t token, std::string_view text) {
  if (entry.hook == nullptr) return;
  (*entry.hook)({.request = entry.text.id(),
                 .sample = entry.text.sample(),
                 .token = token,
                 .text = text,
                 .finish = entry.text.completion().finish});
}

void Scheduler::State::end(Entry& entry, FinishReason reason) {
  const std::string text = entry.text.finish(reason);
  emit(entry, -1, text);
}

// Moves what is finished out of the queue. A leader that ends before it read the prompt leaves its
// place to the next sample.
void Scheduler::State::retire() {
  for (auto entry = queue.begin(); entry != queue.end();) {
    if (!entry->text.finished()) {
      ++entry;
      continue;
    }
    leave(*entry);
    Held& held = requests.at(entry->text.id().id);
    held.completions[at(entry->text.sample())] = std::move(entry->text.completion());
    --held.open;
    Entry* next = nullptr;
    for (Entry& other : queue) {
      if (other.leader != &*entry) continue;
      other.leader = next;
      if (next == nullptr) next = &other;
    }
    entry = queue.erase(entry);
  }
}

TensorView Scheduler::State::grown(Tensor& buffer, std::int64_t rows) const {
  const std::int64_t columns = scorer.shape().vocabulary;
  if (buffer.elements() < rows * columns) {
    buffer = Tensor::empty({rows, columns}, DType::f32, scorer.shape().device);
  }
  const std::int64_t shape[] = {rows, columns};
  return make_view(buffer.data(), shape, DType::f32, scorer.shape().device);
}

void Scheduler::State::score(Context& context, std::vector<Share>& shares) {
  std::vector<ScoreRow> rows;
  std::vector<std::int32_t> logit_rows;
  for (Share& share : shares) {
    Entry& entry = *share.entry;
    share.first = std::ssize(rows);
    const auto tokens = entry.text.tokens().subspan(at(entry.length), at(share.rows));
    const auto chain =
        chain_rows(*entry.sequence, entry.length, tokens, static_cast<std::int32_t>(share.first));
    rows.insert(rows.end(), chain.begin(), chain.end());
    const bool all = entry.text.request().prompt_log_probabilities && entry.text.sample() == 0 &&
                     entry.text.generated() == 0;
    for (std::int64_t i = 0; i < share.rows; ++i) {
      if (all || (share.last() && i + 1 == share.rows)) {
        logit_rows.push_back(static_cast<std::int32_t>(share.first + i));
      }
    }
    (entry.remaining() == 1 && entry.length > 0 ? statistics.decode_rows
                                                : statistics.prompt_rows) += share.rows;
  }
  scorer.score(
      context,
      {.rows = rows, .logit_rows = logit_rows, .logits = grown(logits, std::ssize(logit_rows))});
  std::vector<std::vector<std::int32_t>> indices;
  std::vector<KeptRows> kept;
  for (const Share& share : shares) {
    auto& own = indices.emplace_back();
    for (std::int64_t i = 0; i < share.rows; ++i) {
      own.push_back(static_cast<std::int32_t>(share.first + i));
    }
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    kept.push_back({*shares[i].entry->sequence, indices[i]});
  }
  scorer.keep(kept);
  sample(context, shares, logit_rows);
}

// Log-probabilities of the prompt tokens after the rows of this step.
void Scheduler::State::read_prompt_logits(const Share& share,
                                          std::span<const std::int32_t> logit_rows) {
  Continuation& text = share.entry->text;
  if (!text.request().prompt_log_probabilities || text.sample() != 0 || text.generated() > 0)
    return;
  const std::int64_t columns = scorer.shape().vocabulary;
  const StreamLocation here{scorer.shape().device, nullptr};
  host_logits.resize(at(columns));
  const std::int64_t begin = std::ranges::lower_bound(logit_rows, share.first) - logit_rows.begin();
  for (std::int64_t i = 0; i < share.rows; ++i) {
    const std::int64_t next = share.entry->length + i + 1;
    if (next >= std::ssize(text.tokens())) break;
    const auto* from = static_cast<const float*>(logits.data()) + (begin + i) * columns;
    queue_copy({}, host_logits.data(), here, from, columns * 4);
    wait_for(here);
    auto& list = text.completion().prompt_log_probabilities;
    // A prompt that is read again after a preemption is in the list already.
    if (std::ssize(list) >= next) continue;
    list.push_back(static_cast<float>(log_softmax(host_logits, text.tokens()[at(next)])));
  }
}

void Scheduler::State::sample(Context& context, std::span<const Share> shares,
                              std::span<const std::int32_t> logit_rows) {
  struct Draw {
    Entry* entry = nullptr;
    std::int64_t row = 0;  // of the logits
  };
  std::vector<Draw> draws;
  if (scorer.shape().device.is_cuda()) context.synchronize();
  for (const Share& share : shares) {
    read_prompt_logits(share, logit_rows);
    const bool last = share.last();
    share.entry->length += share.rows;
    if (!last) continue;
    if (!share.entry->text.wants_tokens()) {
      end(*share.entry, FinishReason::length);
      continue;
    }
    const auto row = static_cast<std::int32_t>(share.first + share.rows - 1);
    const std::int64_t place = std::ranges::lower_bound(logit_rows, row) - logit_rows.begin();
    draws.push_back({share.entry, place});
    for (Entry& other : queue) {
      if (other.leader == share.entry) draws.push_back({&other, place});
    }
    follow(*share.entry);
  }
  if (draws.empty()) return;
  const std::int64_t columns = scorer.shape().vocabulary;
  TensorView drawn = grown(logits, std::ssize(logit_rows));
  const bool neighbors = std::ssize(draws) == std::ssize(logit_rows);
  if (!neighbors || std::ranges::adjacent_find(draws, {}, &Draw::row) != draws.end()) {
    drawn = grown(to_sample, std::ssize(draws));
    const StreamLocation here{scorer.shape().device, context.stream()};
    for (std::size_t i = 0; i < draws.size(); ++i) {
      queue_copy(here, static_cast<float*>(drawn.data) + static_cast<std::int64_t>(i) * columns,
                 here, static_cast<const float*>(logits.data()) + draws[i].row * columns,
                 columns * 4);
    }
  }
  drawn.shape[0] = std::ssize(draws);
  std::vector<SampleRow> rows;
  for (const Draw& draw : draws) rows.push_back(draw.entry->text.sample_row());
  const std::vector<SampledToken> tokens = sampler.run(context, drawn, rows);
  bool broken = false;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    Entry& entry = *draws[i].entry;
    if (tokens[i].token < 0) {
      broken |= has_any(tokens[i].status, RowStatus::has_nan);
      end(entry, FinishReason::no_token);
      continue;
    }
    const std::string text = entry.text.take(tokens[i]);
    emit(entry, tokens[i].token, text);
  }
  if (broken) {
    retire();
    throw CorruptData("scheduler: the logits of the model are NaN");
  }
}

// The other samples of a request join where the first has read the prompt, or wait for their turn.
void Scheduler::State::follow(Entry& leader) {
  auto running =
      std::ranges::count_if(queue, [](const Entry& e) { return e.sequence.has_value(); });
  for (Entry& entry : queue) {
    if (entry.leader != &leader) continue;
    entry.leader = nullptr;
    if (running >= options.max_running) continue;
    entry.sequence = scorer.fork(*leader.sequence);
    entry.length = leader.length;
    ++running;
  }
}

}  // namespace touchstone::inline v0::decode
