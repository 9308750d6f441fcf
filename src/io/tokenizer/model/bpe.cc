#include "io/tokenizer/model/bpe.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/json_document.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::uint32_t kEnd = 0xffffffffU;
// Up to here looking through all pairs is faster than a heap.
constexpr std::size_t kShortWord = 48;

std::string shortened(std::string_view text) { return json_quote(text.substr(0, 60)); }

}  // namespace

const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> characters = [] {
    std::array<char32_t, 256> table{};
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool shown = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      table[b] = shown ? b : next++;
    }
    return table;
  }();
  return characters;
}

std::optional<std::string> bytes_of_characters(std::string_view text) {
  static const std::array<std::int16_t, 0x144> bytes = [] {
    std::array<std::int16_t, 0x144> table{};
    table.fill(-1);
    for (int b = 0; b < 256; ++b) {
      table[byte_characters()[static_cast<std::size_t>(b)]] = static_cast<std::int16_t>(b);
    }
    return table;
  }();
  std::string out;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t code = next_code(p);
    if (code >= bytes.size() || bytes[code] < 0) return std::nullopt;
    out += static_cast<char>(bytes[code]);
  }
  return out;
}

std::string characters_of_bytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char b : bytes) append_code(out, byte_characters()[static_cast<unsigned char>(b)]);
  return out;
}

Bpe::Bpe(TokenTable vocabulary, const Merges& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), merges_(merges.size()) {
  if (options_.unknown) unknown_id_ = vocabulary_.find(*options_.unknown);
  read_merges(merges);
  if (options_.byte_fallback) {
    has_fallback_ = true;
    for (unsigned b = 0; b < 256; ++b) {
      fallback_ids_[b] = vocabulary_.find(fmt::format("<0x{:02X}>", b));
    }
  }
  prepare_bytes();
  prepare_borders();
}

void Bpe::read_merges(const Merges& merges) {
  std::string joined;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const TokenId a = vocabulary_.find(left);
    const TokenId b = vocabulary_.find(right);
    joined = left;
    if (right.size() >= options_.prefix.size()) joined += right.substr(options_.prefix.size());
    const TokenId merged = vocabulary_.find(joined);
    for (const auto& [id, text] :
         {std::pair(a, left), std::pair(b, right), std::pair(merged, std::string_view(joined))}) {
      if (id != kNoToken) continue;
      throw CorruptData(
          fmt::format("tokenizer: merge {}: {} is not a token", rank, shortened(text)));
    }
    merges_.set(a, b, {static_cast<std::uint32_t>(rank), merged});
  }
}

void Bpe::prepare_bytes() {
  takes_bytes_ = options_.prefix.empty() && options_.suffix.empty();
  for (std::size_t b = 0; b < 256; ++b) {
    std::string character;
    append_code(character, byte_characters()[b]);
    byte_ids_[b] = vocabulary_.find(character);
    takes_bytes_ = takes_bytes_ && byte_ids_[b] != kNoToken;
  }
  if (!takes_bytes_ || !options_.ignore_merges) return;
  whole_words_ = TokenTable(vocabulary_.size(), vocabulary_.id_end());
  for (std::size_t id = 0; id < vocabulary_.id_end(); ++id) {
    const auto text = vocabulary_.text(static_cast<TokenId>(id));
    // Of a token that is there twice, the id that the vocabulary gives.
    if (!text || vocabulary_.find(*text) != id) continue;
    if (const auto bytes = bytes_of_characters(*text)) {
      whole_words_.add(*bytes, static_cast<TokenId>(id));
    }
  }
}

// A merge joins the last character of its left token with the first of its right one. Where no merge
// joins two neighbors, what stands on their sides is encoded independently, so that a text without
// pre-tokenizer falls into words.
void Bpe::prepare_borders() {
  if (!options_.prefix.empty() || !options_.suffix.empty()) return;
  joinable_ = MergeTable(merges_.size());
  splits_ = true;
  const auto character = [&](std::string_view text, bool last) {
    std::size_t begin = 0;
    if (last) {
      begin = text.size() - 1;
      while (begin > 0 && is_utf8_tail(text[begin])) --begin;
    }
    return vocabulary_.find(text.substr(begin, utf8_length(text[begin])));
  };
  merges_.for_each([&](TokenId left, TokenId right) {
    const std::string_view a = *vocabulary_.text(left);
    const std::string_view b = *vocabulary_.text(right);
    // The symbol of an unknown byte is no character, nor is an empty token.
    const auto odd = [&](std::string_view text) {
      return text.empty() || (has_fallback_ && text.size() == 6 && text.starts_with("<0x"));
    };
    if (odd(a) || odd(b)) {
      splits_ = false;
      return;
    }
    const TokenId last = character(a, true);
    const TokenId first = character(b, false);
    if (last != kNoToken && first != kNoToken) joinable_.set(last, first, {0, 0});
  });
}

void Bpe::append_unknown(bool& open, std::vector<TokenId>& ids) const {
  if (!open) return;
  if (unknown_id_ == kNoToken) {
    throw CorruptData(fmt::format("tokenizer: the unknown token {} is not in the vocabulary",
                                  shortened(*options_.unknown)));
  }
  ids.push_back(unknown_id_);
  open = false;
}

void Bpe::append_symbols(std::string_view word, std::vector<TokenId>& ids) const {
  bool unknown = false;  // an unknown character is waiting to be written
  std::string text;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = utf8_length(word[at]);
    std::string_view character = word.substr(at, length);
    const bool first = at == 0;
    at += length;
    if ((!first && !options_.prefix.empty()) || (at == word.size() && !options_.suffix.empty())) {
      text = first ? "" : options_.prefix;
      text += character;
      if (at == word.size()) text += options_.suffix;
      character = text;
    }
    const TokenId id = vocabulary_.find(character);
    if (id != kNoToken) {
      append_unknown(unknown, ids);
      ids.push_back(id);
      continue;
    }
    const bool fallback = has_fallback_ && std::ranges::all_of(character, [&](char b) {
                            return fallback_ids_[static_cast<unsigned char>(b)] != kNoToken;
                          });
    if (fallback) {
      // The reference writes an unknown character that waits after these bytes, not before.
      for (const char b : character) ids.push_back(fallback_ids_[static_cast<unsigned char>(b)]);
    } else if (options_.unknown) {
      if (!options_.fuse_unknown) append_unknown(unknown, ids);
      unknown = true;
    }
  }
  append_unknown(unknown, ids);
}

void Bpe::encode(std::string_view word, const char* end, BpeScratch& scratch,
                 std::vector<TokenId>& out) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    const TokenId whole = vocabulary_.find(word);
    if (whole != kNoToken) {
      out.push_back(whole);
      return;
    }
  }
  if (splits_ && word.size() > WordCache::kMaxBytes) {
    encode_parts(word, end, scratch, out);
  } else {
    encode_part(word, end, scratch, out);
  }
}

// Cuts where no merge joins two known characters, and encodes the parts.
void Bpe::encode_parts(std::string_view word, const char* end, BpeScratch& scratch,
                       std::vector<TokenId>& out) const {
  std::size_t begin = 0;
  TokenId before = kNoToken;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = utf8_length(word[at]);
    const TokenId id = vocabulary_.find(word.substr(at, length));
    if (before != kNoToken && id != kNoToken &&
        joinable_.find(before, id).rank == MergeTable::kNoRank) {
      encode_part(word.substr(begin, at - begin), end, scratch, out);
      begin = at;
    }
    before = id;
    at += length;
  }
  encode_part(word.substr(begin), end, scratch, out);
}

void Bpe::encode_part(std::string_view part, const char* end, BpeScratch& scratch,
                      std::vector<TokenId>& out) const {
  const bool cached = part.size() <= WordCache::kMaxBytes;
  WordCache::Key key;
  if (cached) {
    key = WordCache::key_of(part.data(), part.size(), end);
    if (scratch.cache.find(key, out)) return;
  }
  const std::size_t before = out.size();
  scratch.ids.clear();
  append_symbols(part, scratch.ids);
  merge(scratch.ids, scratch, out);
  if (cached) scratch.cache.add(key, std::span(out).subspan(before));
}

void Bpe::merge_bytes(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (options_.ignore_merges) {
    const TokenId whole = whole_words_.find(word);
    if (whole != kNoToken) {
      out.push_back(whole);
      return;
    }
  }
  scratch.ids.clear();
  for (const char b : word) scratch.ids.push_back(byte_ids_[static_cast<unsigned char>(b)]);
  merge(scratch.ids, scratch, out);
}

void Bpe::merge(std::vector<TokenId>& ids, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (ids.size() <= kShortWord) {
    merge_short(ids, out);
  } else {
    merge_long(ids, scratch, out);
  }
}

void Bpe::merge_short(std::vector<TokenId>& ids, std::vector<TokenId>& out) const {
  std::array<MergeTable::Merge, kShortWord> pairs;
  std::size_t count = ids.size();
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    ids[best] = pairs[best].merged;
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --count;
    if (best > 0) pairs[best - 1] = merges_.find(ids[best - 1], ids[best]);
    if (best + 1 < count) pairs[best] = merges_.find(ids[best], ids[best + 1]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
}

void Bpe::merge_long(const std::vector<TokenId>& ids, BpeScratch& scratch,
                     std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto later = [](const auto& a, const auto& b) { return a.order > b.order; };
  const auto count = static_cast<std::uint32_t>(ids.size());
  symbols.resize(count);
  heap.clear();
  const auto candidate = [&](std::uint32_t at, const MergeTable::Merge& merge) {
    return BpeScratch::Candidate{std::uint64_t{merge.rank} << 32 | at, merge.merged};
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols[i] = {ids[i], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1, 1};
    if (i + 1 == count) break;
    const MergeTable::Merge merge = merges_.find(ids[i], ids[i + 1]);
    if (merge.rank != MergeTable::kNoRank) heap.push_back(candidate(i, merge));
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](std::uint32_t left, std::uint32_t right) {
    const MergeTable::Merge merge = merges_.find(symbols[left].id, symbols[right].id);
    if (merge.rank == MergeTable::kNoRank) return;
    heap.push_back(candidate(left, merge));
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    const auto at = static_cast<std::uint32_t>(top.order);
    auto& left = symbols[at];
    if (left.length == 0 || left.next == kEnd) continue;
    const std::uint32_t next = left.next;
    // What the candidate was made for may have merged with a neighbor since.
    if (merges_.find(left.id, symbols[next].id).merged != top.merged) continue;
    left.id = top.merged;
    left.next = symbols[next].next;
    symbols[next].length = 0;
    if (left.next != kEnd) symbols[left.next].previous = at;
    if (left.previous != kEnd) push(left.previous, at);
    if (left.next != kEnd) push(at, left.next);
  }
  for (std::uint32_t i = 0; i != kEnd; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace touchstone::inline v0::io
