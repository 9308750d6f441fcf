#include "io/tokenizer/model/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "io/tokenizer/text/regex.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr std::uint32_t kNowhere = 0xffffffffU;

}  // namespace

Unigram::Unigram(TokenTable vocabulary, std::vector<double> scores, std::optional<TokenId> unknown,
                 bool byte_fallback)
    : vocabulary_(std::move(vocabulary)),
      scores_(std::move(scores)),
      unknown_(unknown),
      byte_fallback_(byte_fallback) {
  double least = std::numeric_limits<double>::infinity();
  for (const double score : scores_) least = std::min(least, score);
  unknown_score_ = least - kUnknownPenalty;
  for (std::size_t id = 0; id < vocabulary_.id_end(); ++id) {
    const auto text = vocabulary_.text(static_cast<TokenId>(id));
    if (text) trie_.add(*text, vocabulary_.find(*text));
  }
  for (unsigned b = 0; b < 256; ++b) {
    fallback_ids_[b] = vocabulary_.find(fmt::format("<0x{:02X}>", b));
  }
}

void Unigram::append_unknown(std::string_view text, std::vector<TokenId>& out) const {
  const TokenId whole = vocabulary_.find(text);
  if (whole != kNoToken) {
    out.push_back(whole);
    return;
  }
  const bool bytes = byte_fallback_ && std::ranges::all_of(text, [&](char b) {
                       return fallback_ids_[static_cast<unsigned char>(b)] != kNoToken;
                     });
  if (!bytes) {
    out.push_back(*unknown_);
    return;
  }
  for (const char b : text) out.push_back(fallback_ids_[static_cast<unsigned char>(b)]);
}

void Unigram::encode(std::string_view word, std::vector<TokenId>& out) const {
  struct Node {
    double score = 0;
    std::uint32_t begin = kNowhere;
    TokenId id = 0;
  };
  std::vector<Node> best(word.size() + 1);
  const auto offer = [&](std::size_t end, std::size_t begin, TokenId id, double score) {
    Node& node = best[end];
    if (node.begin != kNowhere && !(score > node.score)) return;
    node = {score, static_cast<std::uint32_t>(begin), id};
  };
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t length = utf8_length(word[begin]);
    const double before = best[begin].score;
    bool single = false;
    std::uint32_t node = Trie::kRoot;
    for (std::size_t end = begin; end < word.size();) {
      node = trie_.step(node, word[end++]);
      if (node == Trie::kNone) break;
      const TokenId id = trie_.value(node);
      if (id == Trie::kNone) continue;
      offer(end, begin, id, scores_[id] + before);
      single = single || end - begin == length;
    }
    if (!single) {
      if (!unknown_) {
        throw CorruptData("tokenizer: an unknown character, and no unknown token (unk_id)");
      }
      offer(begin + length, begin, *unknown_, unknown_score_ + before);
    }
    begin += length;
  }
  // From the back; neighbors that are unknown become one.
  std::vector<Span> parts;
  bool open = false;
  for (std::size_t end = word.size(); end > 0;) {
    const Node& node = best[end];
    const bool unknown = unknown_ && node.id == *unknown_;
    if (unknown && open) {
      parts.back().begin = node.begin;
    } else {
      parts.push_back({node.begin, end});
    }
    open = unknown;
    end = node.begin;
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    append_unknown(word.substr(part->begin, part->end - part->begin), out);
  }
}

WordPiece::WordPiece(TokenTable vocabulary, TokenId unknown, std::string_view prefix,
                     std::size_t max_characters)
    : vocabulary_(std::move(vocabulary)), unknown_(unknown), max_characters_(max_characters) {
  for (std::size_t id = 0; id < vocabulary_.id_end(); ++id) {
    const auto text = vocabulary_.text(static_cast<TokenId>(id));
    if (text) trie_.add(*text, vocabulary_.find(*text));
  }
  inner_ = Trie::kRoot;
  for (const char c : prefix) {
    if (inner_ != Trie::kNone) inner_ = trie_.step(inner_, c);
  }
}

void WordPiece::encode(std::string_view word, std::vector<TokenId>& out) const {
  const auto characters = static_cast<std::size_t>(
      std::ranges::count_if(word, [](char c) { return !is_utf8_tail(c); }));
  const std::size_t before = out.size();
  bool good = characters <= max_characters_;
  for (std::size_t begin = 0; good && begin < word.size();) {
    std::uint32_t node = begin == 0 ? Trie::kRoot : inner_;
    std::size_t best_end = begin;
    TokenId best = kNoToken;
    for (std::size_t end = begin; end < word.size() && node != Trie::kNone;) {
      node = trie_.step(node, word[end++]);
      if (node == Trie::kNone || trie_.value(node) == Trie::kNone) continue;
      best = trie_.value(node);
      best_end = end;
    }
    good = best != kNoToken;
    if (good) out.push_back(best);
    begin = best_end;
  }
  if (good) return;
  out.resize(before);
  out.push_back(unknown_);
}

}  // namespace touchstone::inline v0::io
