// The interface between decoding and a model: tokens in, logits out. Generation, beam search and
// speculation are written against this interface; a runtime, a table or a float64 reference
// implements it.
//
// A scorer holds sequences: committed tokens, and after score() the rows of that call, pending. A
// row is a token at a position, after the committed tokens of its sequence and after its parent, a
// row of the same call: so one call scores prompts (chains of many rows), decode steps (one row per
// sequence), draft trees, and any mix of them.
//
//   const ScorerSequence id = scorer.create();
//   scorer.score(context, {.rows = prompt_rows(id, 0, prompt), .logit_rows = last, .logits = out});
//   scorer.keep({{id, all_rows}});        // the prompt is committed
//   ... one row with the chosen token, keep it, and so on
//
// Guarantees  The logits of a row depend on the tokens of its path (committed tokens, ancestors and
//             itself) alone, to the bit: not on other rows, siblings, sequences, chunks or the
//             order of calls. Every call that throws leaves the scorer as it was.
// Threads     Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/tensor.h"
#include "touchstone/decode/tree.h"

namespace touchstone::inline v0::decode {

// Names a sequence of one scorer. Stale after release.
struct ScorerSequence {
  std::int64_t id = -1;

  friend constexpr bool operator==(ScorerSequence, ScorerSequence) = default;
};

struct ScorerShape {
  std::int64_t vocabulary = 0;
  std::int64_t max_length = 0;   // of a sequence, pending rows included
  std::int64_t layers = 0;       // whose outputs can be requested
  std::int64_t hidden_size = 0;  // 0: there are no hidden states
  Device device{};               // where logits and hidden states are written
};

struct ScoreRow {
  ScorerSequence sequence{};
  std::int32_t token = 0;
  // Length of the sequence + depth in the tree - 1. Redundant, and checked: a wrong position is the
  // most common fault of speculative decoding, and silent in most engines.
  std::int64_t position = 0;
  std::int32_t parent = kNoNode;  // index of an earlier row of the same sequence in this call
};

struct ScoreArgs {
  std::span<const ScoreRow> rows{};
  std::span<const std::int32_t> logit_rows{};  // rows whose logits are written, ascending
  TensorView logits{};                         // [logit_rows, vocabulary] f32 or f64, contiguous
  // Layers whose outputs are written, ascending: 0 is the embedding, i the output of layer i.
  std::span<const std::int32_t> hidden_layers{};
  TensorView hidden{};  // [hidden_layers, rows, hidden_size], dtype as logits, contiguous
};

// A number of rows of a sequence.
struct RowCount {
  ScorerSequence sequence{};
  std::int64_t rows = 0;
};

// The pending rows of a sequence that are committed: a path, ascending from a root. Empty: none.
struct KeptRows {
  ScorerSequence sequence{};
  std::span<const std::int32_t> rows{};  // indices into the rows of the last score()
};

class TOUCHSTONE_API Scorer {
 public:
  virtual ~Scorer();

  virtual const ScorerShape& shape() const = 0;
  // An empty sequence.
  virtual ScorerSequence create() = 0;
  // A sequence that begins with the longest prefix of `tokens` that the scorer has cached: length()
  // returns how many tokens. A scorer without prefix sharing creates an empty one.
  virtual ScorerSequence open(std::span<const std::int32_t> tokens);
  // A second sequence with the same committed tokens.
  virtual ScorerSequence fork(ScorerSequence sequence) = 0;
  virtual void truncate(ScorerSequence sequence, std::int64_t length) = 0;
  virtual void release(ScorerSequence sequence) = 0;
  virtual std::int64_t length(ScorerSequence sequence) const = 0;

  // Moves the cached state of a sequence to memory that score() does not use. False, and nothing
  // changed, where there is none. Until swap_in() only length(), fits() and release() accept the
  // sequence. Its pending rows are dropped.
  virtual bool swap_out(ScorerSequence sequence);
  // Moves it back: later logits have the bits they would have had. False, and nothing changed,
  // while memory does not suffice.
  virtual bool swap_in(ScorerSequence sequence);

  // Whether memory suffices for score() with these rows, while none is pending; for a sequence that
  // is swapped out, after swap_in().
  virtual bool fits(std::span<const RowCount> counts) const;
  // The same for rows that come in calls of at most `chunk` rows of a sequence, each kept before
  // the next. A scorer whose layers have windows needs less memory then. By default fits().
  virtual bool fits_in_chunks(std::span<const RowCount> counts, std::int64_t chunk) const;

  // Scores rows. They are pending until keep(), the next score() or any change of their sequence
  // drops them.
  virtual void score(Context& context, const ScoreArgs& args) = 0;
  // Commits the given rows of the last score() and drops all others. A sequence appears once.
  virtual void keep(std::span<const KeptRows> kept) = 0;
};

// Rows of a chain of tokens after a sequence of this length, and of a tree. `first` is the index in
// the call of the first row.
TOUCHSTONE_API std::vector<ScoreRow> chain_rows(ScorerSequence sequence, std::int64_t length,
                                                std::span<const std::int32_t> tokens,
                                                std::int32_t first = 0);
TOUCHSTONE_API std::vector<ScoreRow> tree_rows(ScorerSequence sequence, std::int64_t length,
                                               const TokenTree& tree, std::int32_t first = 0);

// The checks that every scorer makes: InvalidArgument for rows, tensors or layers that do not fit.
// Lengths of sequences come from `scorer`, which refuses unknown ones.
TOUCHSTONE_API void check_score_args(const Scorer& scorer, const ScoreArgs& args);
// The same of keep(): each a path of the rows of its sequence.
TOUCHSTONE_API void check_kept_rows(std::span<const ScoreRow> rows, std::span<const KeptRows> kept);

}  // namespace touchstone::inline v0::decode
