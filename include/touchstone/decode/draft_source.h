// Draft sources: prompt lookup, n-gram statistics, suffix matching, a draft model. draft() is
// batched over continuations. A draft changes how many passes the target needs, never a token.
//
//   auto corpus = std::make_shared<SuffixCorpus>();
//   corpus->add(tokenizer.encode(manual));
//   options.speculation.source = suffix_source({.corpus = corpus});
//
// Sources keep what they need of a continuation under its id, within the bounds of their options.
// Not thread-safe: one scheduler uses a source at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/decode/draft.h"
#include "touchstone/decode/request.h"
#include "touchstone/decode/scorer.h"

namespace touchstone::inline v0::decode {

struct DraftRequest {
  std::int64_t id = 0;                     // of the continuation, the same in every call
  std::span<const std::int32_t> tokens{};  // prompt and text so far; only ever longer than before
  const SamplingControls* controls = nullptr;
  std::int64_t seed = 0;
  DraftLimits limits{};
  Draft draft{};  // the answer; empty where the source proposes nothing
};

// Rows that the target has committed, with their hidden states.
struct ObservedRows {
  std::int64_t id = 0;        // of the continuation
  std::int64_t position = 0;  // of the first of them; less than before after a preemption
  std::span<const std::int32_t> rows{};  // indices into `hidden`, in the order of the text
  ConstTensorView hidden{};              // [hidden_layers, rows of the call, width] f32
};

class TOUCHSTONE_API DraftSource {
 public:
  virtual ~DraftSource();
  virtual std::string name() const = 0;
  // Tokens that it may propose; 0 = tokens observed so far. Another than the target's is refused.
  virtual std::int64_t vocabulary() const;
  // Target layers whose hidden states it consumes, as in ScoreArgs; none by default. With any, the
  // scheduler shares no prefixes and calls observe() with the committed tokens, in order and
  // without gaps, up to the end of the continuation or to the step where the controller drops the
  // hidden states because they cost too much. observe() is timed as a cost of the source.
  virtual std::span<const std::int32_t> hidden_layers() const;
  virtual void observe(Context& context, const ObservedRows& rows);
  // Continuation `to` begins with what was observed of `from`.
  virtual void copy(Context& context, std::int64_t from, std::int64_t to);
  virtual void draft(Context& context, std::span<DraftRequest> requests) = 0;
  // The continuation has ended.
  virtual void forget(std::int64_t id) = 0;
};

// The most recent earlier occurrence of the last `max_match` tokens, or fewer down to `min_match`;
// what followed it is the draft, a chain.
struct PromptLookupOptions {
  std::int64_t max_match = 5;
  std::int64_t min_match = 2;
};
TOUCHSTONE_API std::unique_ptr<DraftSource> prompt_lookup_source(
    const PromptLookupOptions& options = {});

// Counts of what followed the last 1 to `max_match` tokens; a tree of the likeliest paths. A
// context keeps the four most frequent successors.
struct NgramOptions {
  std::int64_t max_match = 4;
  std::int64_t min_match = 2;
  bool shared = false;                  // one table for all continuations
  std::int64_t max_contexts = 1 << 18;  // of a table; the oldest half is dropped
  double min_probability = 0.1;         // of a path
};
TOUCHSTONE_API std::unique_ptr<DraftSource> ngram_source(const NgramOptions& options = {});

// Texts that drafts are taken from, as a suffix automaton: about 100 bytes per token. At most
// max_tokens are held, the newest; one text counts as a whole.
class TOUCHSTONE_API SuffixCorpus {
 public:
  explicit SuffixCorpus(std::int64_t max_tokens = 1 << 20);
  ~SuffixCorpus();
  SuffixCorpus(SuffixCorpus&&) noexcept;
  SuffixCorpus& operator=(SuffixCorpus&&) noexcept;

  void add(std::span<const std::int32_t> text);
  std::int64_t tokens() const;
  std::int64_t bytes() const;

  struct State;
  State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// The longest suffix of the sequence that occurred before, in itself or in a corpus, of any length;
// the tree of what followed, by how often. A path of k tokens after a match of m tokens counts as
// m / (m + k) of its share of the occurrences.
struct SuffixOptions {
  std::shared_ptr<SuffixCorpus> corpus{};  // may be null
  bool learn = false;                      // continuations that ended are added to the corpus
  std::int64_t min_match = 2;
  std::int64_t max_tokens = 1 << 16;  // of a sequence that are indexed; the newest
  double min_probability = 0.1;       // of a path
};
TOUCHSTONE_API std::unique_ptr<DraftSource> suffix_source(const SuffixOptions& options = {});

// A smaller model with the same vocabulary and a cache of its own: InvalidArgument where its
// vocabulary is not `target_vocabulary`. A prompt that is too long for it gets no drafts.
struct ModelSourceOptions {
  std::int64_t width = 1;   // nodes of a level that are continued; 1 = a chain
  std::int64_t branch = 1;  // children of a node
  // Draw tokens instead of taking the likeliest, for the rule `rejection`: a node's children
  // without replacement.
  bool draw = false;
};
TOUCHSTONE_API std::unique_ptr<DraftSource> model_source(Scorer& model,
                                                         std::int64_t target_vocabulary,
                                                         const ModelSourceOptions& options = {});

// All of them; their trees are merged, duplicates folded. Nodes carry the index of their source.
TOUCHSTONE_API std::unique_ptr<DraftSource> merged_source(
    std::vector<std::unique_ptr<DraftSource>> sources);

}  // namespace touchstone::inline v0::decode
