// Which tokens may follow a beam: minimum length, banned and forced tokens, repeated n-grams, trie.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/beam/dialect.h"
#include "touchstone/decode/beam_search.h"

namespace touchstone::inline v0::decode::beam {

class Constraints {
 public:
  Constraints(const BeamRequest& request, std::int64_t vocabulary, std::int64_t max_tokens);

  // Whether any token can be masked at this index of the generated text.
  bool active(std::int64_t index) const;
  // Writes the mask of a beam, bit t % 32 of word t / 32 for token t, 1 = allowed, and returns how
  // many tokens it excludes. `text` is the prompt and what was generated.
  std::int64_t fill(std::span<std::int32_t> words, std::span<const std::int32_t> text,
                    std::int64_t index, std::int32_t trie_node) const;
  // Whether fill() reads `text`.
  bool needs_text() const { return options_.no_repeat_ngram > 0; }

 private:
  const BeamOptions& options_;
  std::int64_t vocabulary_;
  std::int64_t min_tokens_;
  std::int64_t forced_eos_index_ = -1;  // where only an ending token is allowed
  std::vector<std::int32_t> ending_;
  std::vector<std::int32_t> base_;  // mask of the banned tokens
  std::int64_t base_excluded_ = 0;
};

// Tokens that end a text, eos before stop tokens; without repetitions.
std::vector<std::int32_t> ending_tokens(const BeamRequest& request);

}  // namespace touchstone::inline v0::decode::beam
