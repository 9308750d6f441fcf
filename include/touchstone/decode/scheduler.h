// Continuous batching: every step scores one row of each running continuation and, in the same
// call, chunks of prompts; requests join and leave at every step.
//
//   decode::Scheduler scheduler(model, {.eos_tokens = {2}, .tokenizer = &tokenizer});
//   const auto id = scheduler.submit({.prompt = tokenizer.encode("Hello"),
//                                     .stop = {.max_tokens = 64}});
//   while (scheduler.step(context)) {}
//   const std::vector<Completion> answers = scheduler.take(id);      // one per sample
//
// Order       Continuations are served in the order of their requests. Memory for the rows of a
//             step is reserved as a whole; where it does not suffice, the youngest continuation is
//             preempted. A long one is swapped out (Scorer::swap_out) where the scorer can; else
//             its prompt and generated tokens are computed again later.
// Guarantees  The tokens and log-probabilities of a request depend on the request and the scorer
//             alone, at every temperature: not on other requests, when they come and go, max_rows,
//             max_running, prefix sharing or either kind of preemption. They are what Scorer and
//             sample() promise for rows: token i is drawn from the logits after it, with the number
//             of its position. (Of a scorer that keeps the promise of scorer.h.)
// Speculation A draft is verified in the rows and the memory that the step leaves free: drafts
// never preempt
//             a continuation. EOS, stop strings and limits inside an accepted path
//             end the text where plain decoding ends it; nothing after them is committed.
// Memory      A request joins when memory suffices for its whole text beside the rows of the step;
//             layers with windows count a window and max_rows tokens. Where memory does not
//             suffice for a whole chunk of a prompt, the chunk is cut.
// Errors      submit() refuses what check_request refuses, and a constraint that cannot give a mask
//             for the vocabulary of the scorer. Where the rows of one request cannot be scored (no
//             memory although nothing else runs, logits that are NaN, a constraint that throws),
//             that request ends as `failed`, the others finish the step, and step() throws the
//             error once, with the request in its message. The next call goes on. So it does after
//             an error of Scorer::keep(), which leaves step() as it is: the rows are scored again.
//             A sample for which fork() fails reads the prompt itself.
// Threads     Not thread-safe, but for Request::cancellation.
// Cost        Host time of a step grows with the continuations in it, not with those that wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/decode/request.h"
#include "touchstone/decode/scorer.h"
#include "touchstone/decode/speculation.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::inline v0::decode {

struct SchedulerOptions {
  std::int64_t max_rows = 256;    // of a step
  std::int64_t max_running = 32;  // continuations that hold memory; at most max_rows
  bool share_prefixes = true;     // reuse cached prefixes (Scorer::open)
  // Preempted continuations of at least this many tokens are swapped out, where the scorer can;
  // scoring shorter ones again costs less than two copies.
  std::int64_t swap_min_tokens = 64;
  std::vector<std::int32_t> eos_tokens{};
  const io::Tokenizer* tokenizer = nullptr;  // for text and stop strings; outlives the scheduler
  bool skip_special = true;                  // special tokens have no text
  SpeculationOptions speculation{};          // with a source: drafts are verified beside the rows
};

struct RequestId {
  std::int64_t id = -1;

  friend constexpr bool operator==(RequestId, RequestId) = default;
};

// A token, as soon as it is chosen; or the end of a continuation.
struct TokenEvent {
  RequestId request{};
  std::int32_t sample = 0;
  std::int32_t token = -1;  // -1: none, text and end only
  // Text that is final: whole characters, none that may be the beginning of a stop string.
  std::string_view text{};
  FinishReason finish = FinishReason::none;
};
using TokenHook = std::function<void(const TokenEvent&)>;

struct SchedulerStatistics {
  std::int64_t steps = 0;
  std::int64_t prompt_rows = 0;  // scored, recomputed ones included
  std::int64_t decode_rows = 0;
  std::int64_t draft_rows = 0;     // nodes of drafts
  std::int64_t prefix_tokens = 0;  // not scored, because they were cached
  std::int64_t preemptions = 0;
  std::int64_t swaps = 0;  // preemptions that swapped out instead of computing again
};

class TOUCHSTONE_API Scheduler {
 public:
  // The scorer outlives it and is used by nothing else meanwhile. InvalidArgument for options out
  // of range and EOS tokens outside the vocabulary.
  Scheduler(Scorer& scorer, SchedulerOptions options);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  // The hook is called by step(), once for every token and once at the end of each sample. It may
  // call everything here but step(). What it throws leaves step(), and the calls of hooks that were
  // still to come are made by the next one.
  RequestId submit(Request request, TokenHook hook = {});
  // One step. False when every request is finished.
  bool step(Context& context);
  bool finished(RequestId request) const;
  // The completions of a finished request, which is forgotten then.
  std::vector<Completion> take(RequestId request);

  SchedulerStatistics statistics() const;
  SpeculationStatistics speculation() const;  // all 0 without a source

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0::decode
