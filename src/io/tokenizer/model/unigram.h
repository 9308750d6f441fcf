// The unigram model of SentencePiece: the cut with the largest sum of scores.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "io/tokenizer/model/token_table.h"

namespace touchstone::inline v0::io {

class Unigram {
 public:
  // Token i of the vocabulary has score i. CorruptData when there is no unknown token to give.
  Unigram(TokenTable vocabulary, std::vector<double> scores, std::optional<TokenId> unknown,
          bool byte_fallback);
  const TokenTable& vocabulary() const { return vocabulary_; }
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  void append_unknown(std::string_view text, std::vector<TokenId>& out) const;

  TokenTable vocabulary_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::optional<TokenId> unknown_;
  bool byte_fallback_;
  std::array<TokenId, 256> fallback_ids_{};
  Trie trie_;
};

// The longest token at the front, then the longest at the front of the rest, ...: WordPiece.
class WordPiece {
 public:
  WordPiece(TokenTable vocabulary, TokenId unknown, std::string_view prefix,
            std::size_t max_characters);
  const TokenTable& vocabulary() const { return vocabulary_; }
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  TokenTable vocabulary_;
  TokenId unknown_;
  std::size_t max_characters_;
  Trie trie_;
  std::uint32_t inner_;  // the node behind the prefix of what is not at the front
};

}  // namespace touchstone::inline v0::io
