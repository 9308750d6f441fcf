// Byte pair encoding: characters, or bytes, of a word merged by rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/model/token_table.h"
#include "io/tokenizer/model/word_cache.h"

namespace touchstone::inline v0::io {

// GPT-2's 256 characters that stand for bytes.
const std::array<char32_t, 256>& byte_characters();
// The bytes for which `text` stands; none when a character of it stands for no byte.
std::optional<std::string> bytes_of_characters(std::string_view text);
// `bytes` written in those characters.
std::string characters_of_bytes(std::string_view bytes);

struct BpeOptions {
  std::optional<std::string> unknown{};
  std::string prefix{};  // of every character of a word but the first
  std::string suffix{};  // of the last character of a word
  bool fuse_unknown = false;
  bool byte_fallback = false;  // "<0x0A>" for bytes of unknown characters
  bool ignore_merges = false;  // a word that is a token is that token
};

// Scratch memory of an encoding, used by one thread at a time.
struct BpeScratch {
  WordCache cache;
  struct Symbol {
    TokenId id;
    std::uint32_t previous;
    std::uint32_t next;
    std::uint32_t length;
  };
  struct Candidate {
    std::uint64_t order;  // rank << 32 | position
    TokenId merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<TokenId> ids;
  std::vector<TokenId> word;
};

class Bpe {
 public:
  // A pair of texts, in the order of ranks. CorruptData names a merge of no tokens.
  using Merges = std::vector<std::pair<std::string_view, std::string_view>>;
  Bpe(TokenTable vocabulary, const Merges& merges, BpeOptions options);

  const TokenTable& vocabulary() const { return vocabulary_; }
  const BpeOptions& options() const { return options_; }
  std::size_t merge_count() const { return merges_.size(); }

  // Whether words can be given as bytes instead of byte characters: all 256 of these are tokens and
  // no option looks at characters.
  bool takes_bytes() const { return takes_bytes_; }

  // Appends the ids of one word: characters, UTF-8. `end`: of the readable memory behind the word.
  void encode(std::string_view word, const char* end, BpeScratch& scratch,
              std::vector<TokenId>& out) const;

  // Appends the ids of one word: bytes.
  void encode_bytes(const char* word, std::size_t bytes, const char* end, BpeScratch& scratch,
                    std::vector<TokenId>& out) const {
    if (bytes > WordCache::kMaxBytes) {
      merge_bytes({word, bytes}, scratch, out);
      return;
    }
    const WordCache::Key key = WordCache::key_of(word, bytes, end);
    if (scratch.cache.find(key, out)) return;
    const std::size_t before = out.size();
    merge_bytes({word, bytes}, scratch, out);
    scratch.cache.add(key, std::span(out).subspan(before));
  }

 private:
  void read_merges(const Merges& merges);
  void prepare_bytes();
  void prepare_borders();
  void merge_bytes(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void append_symbols(std::string_view word, std::vector<TokenId>& ids) const;
  void encode_part(std::string_view part, const char* end, BpeScratch& scratch,
                   std::vector<TokenId>& out) const;
  void encode_parts(std::string_view word, const char* end, BpeScratch& scratch,
                    std::vector<TokenId>& out) const;
  void append_unknown(bool& open, std::vector<TokenId>& ids) const;
  void merge(std::vector<TokenId>& ids, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void merge_short(std::vector<TokenId>& ids, std::vector<TokenId>& out) const;
  void merge_long(const std::vector<TokenId>& ids, BpeScratch& scratch,
                  std::vector<TokenId>& out) const;

  TokenTable vocabulary_;
  BpeOptions options_;
  MergeTable merges_;
  MergeTable joinable_;  // pairs of characters between which some merge joins
  bool splits_ = false;  // joinable_ is complete
  bool takes_bytes_ = false;
  std::array<TokenId, 256> byte_ids_{};
  std::array<TokenId, 256> fallback_ids_{};
  bool has_fallback_ = false;
  TokenId unknown_id_ = kNoToken;
  TokenTable whole_words_;  // by their bytes; for ignore_merges
};

}  // namespace touchstone::inline v0::io
