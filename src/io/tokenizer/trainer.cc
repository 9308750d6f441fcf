// Training of byte-level BPE: the pair of tokens that occurs most often becomes a token, and again.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/json_document.h"
#include "io/mapped_file.h"
#include "io/tokenizer/model/bpe.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;

using Pair = std::uint64_t;  // left << 32 | right: smaller ids come first
Pair pair_of(TokenId left, TokenId right) { return Pair{left} << 32 | right; }

struct Word {
  std::vector<TokenId> symbols;
  std::int64_t count;
};

struct Change {
  Pair pair;
  std::int32_t change;
  std::uint32_t word;
};

// A pair that could be merged next: as often as `count` when it was put there.
struct Candidate {
  std::int64_t count;
  Pair pair;
  std::vector<std::uint32_t> words;  // where it occurs
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(const TrainOptions& options) : options_(options) {}

  void count(std::string_view text) {
    std::vector<Span> spans;
    while (!text.empty()) {
      const std::size_t newline = text.find('\n');
      const std::string_view line =
          text.substr(0, newline == std::string_view::npos ? text.size() : newline + 1);
      text.remove_prefix(line.size());
      spans.clear();
      append_words(WordRule::gpt2, line, {0, line.size()}, spans);
      for (const Span& span : spans)
        ++counts_[std::string(line.substr(span.begin, span.end - span.begin))];
    }
  }

  std::string train() {
    make_alphabet();
    make_words();
    count_pairs();
    merge_all();
    return json();
  }

 private:
  TokenId token_of(const std::string& text) {
    const auto [at, is_new] = ids_.try_emplace(text, static_cast<TokenId>(texts_.size()));
    if (is_new) texts_.push_back(text);
    return at->second;
  }

  // Special tokens, then the characters of bytes, in the order of code points.
  void make_alphabet() {
    for (const std::string& token : options_.special) token_of(token);
    std::vector<char32_t> characters(byte_characters().begin(), byte_characters().end());
    std::sort(characters.begin(), characters.end());
    for (const char32_t character : characters) {
      std::string text;
      append_code(text, character);
      token_of(text);
    }
  }

  void make_words() {
    std::array<TokenId, 256> bytes{};
    for (std::size_t b = 0; b < 256; ++b) {
      std::string text;
      append_code(text, byte_characters()[b]);
      bytes[b] = ids_.at(text);
    }
    // In one order, so that nothing depends on how a library hashes.
    std::vector<const std::pair<const std::string, std::int64_t>*> sorted;
    for (const auto& entry : counts_) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->first < b->first; });
    words_.reserve(sorted.size());
    for (const auto* entry : sorted) {
      Word word{{}, entry->second};
      for (const char b : entry->first)
        word.symbols.push_back(bytes[static_cast<unsigned char>(b)]);
      words_.push_back(std::move(word));
    }
  }

  void count_pairs() {
    std::unordered_map<Pair, std::vector<std::uint32_t>> places;
    for (std::uint32_t i = 0; i < words_.size(); ++i) {
      const Word& word = words_[i];
      for (std::size_t at = 0; at + 1 < word.symbols.size(); ++at) {
        const Pair pair = pair_of(word.symbols[at], word.symbols[at + 1]);
        pair_counts_[pair] += word.count;
        std::vector<std::uint32_t>& list = places[pair];
        if (list.empty() || list.back() != i) list.push_back(i);
      }
    }
    push_all(places);
  }

  void push_all(std::unordered_map<Pair, std::vector<std::uint32_t>>& places) {
    std::vector<Pair> pairs;
    pairs.reserve(places.size());
    for (const auto& [pair, list] : places) pairs.push_back(pair);
    std::sort(pairs.begin(), pairs.end());
    for (const Pair pair : pairs) {
      const std::int64_t count = pair_counts_[pair];
      if (count > 0) queue_.push({count, pair, std::move(places[pair])});
    }
  }

  void merge_all() {
    std::vector<Change> changes;
    while (std::ssize(texts_) < options_.vocabulary && !queue_.empty()) {
      // The queue gives only const access to what is about to be removed from it.
      Candidate top = std::move(const_cast<Candidate&>(queue_.top()));
      queue_.pop();
      const std::int64_t count = pair_counts_[top.pair];
      if (top.count != count) {
        top.count = count;
        queue_.push(std::move(top));
        continue;
      }
      if (top.count < 1 || options_.min_frequency > top.count) break;
      const auto left = static_cast<TokenId>(top.pair >> 32);
      const auto right = static_cast<TokenId>(top.pair);
      const TokenId merged = token_of(texts_[left] + texts_[right]);
      merges_.emplace_back(left, right);
      changes.clear();
      for (const std::uint32_t word : top.words) merge_in(word, left, right, merged, changes);
      apply(changes);
    }
  }

  // Merges the pair everywhere in a word, and notes which neighborships come and go.
  void merge_in(std::uint32_t index, TokenId left, TokenId right, TokenId merged,
                std::vector<Change>& changes) {
    std::vector<TokenId>& symbols = words_[index].symbols;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (symbols[i] != left || symbols[i + 1] != right) continue;
      if (i > 0) {
        changes.push_back({pair_of(symbols[i - 1], left), -1, index});
        changes.push_back({pair_of(symbols[i - 1], merged), 1, index});
      }
      symbols[i] = merged;
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      if (i + 1 < symbols.size()) {
        changes.push_back({pair_of(right, symbols[i + 1]), -1, index});
        changes.push_back({pair_of(merged, symbols[i + 1]), 1, index});
      }
    }
  }

  void apply(const std::vector<Change>& changes) {
    std::unordered_map<Pair, std::vector<std::uint32_t>> places;
    for (const Change& change : changes) {
      pair_counts_[change.pair] += change.change * words_[change.word].count;
      if (change.change < 0) continue;
      std::vector<std::uint32_t>& list = places[change.pair];
      if (list.empty() || list.back() != change.word) list.push_back(change.word);
    }
    push_all(places);
  }

  std::string json() const {
    std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
    out += "  \"added_tokens\": [";
    for (std::size_t i = 0; i < options_.special.size(); ++i) {
      out += fmt::format(
          "{}\n    {{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": false, "
          "\"rstrip\": false, \"normalized\": false, \"special\": true}}",
          i == 0 ? "" : ",", ids_.at(options_.special[i]), json_quote(options_.special[i]));
    }
    const std::string byte_level =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
        "\"use_regex\": true}";
    out += fmt::format(
        "{}],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {},\n  \"post_processor\": null,\n"
        "  \"decoder\": {},\n  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
        "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
        "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
        "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {{",
        options_.special.empty() ? "" : "\n  ", byte_level, byte_level);
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      out += fmt::format("{}\n      {}: {}", i == 0 ? "" : ",", json_quote(texts_[i]), i);
    }
    out += "\n    },\n    \"merges\": [";
    for (std::size_t i = 0; i < merges_.size(); ++i) {
      out +=
          fmt::format("{}\n      [{}, {}]", i == 0 ? "" : ",", json_quote(texts_[merges_[i].first]),
                      json_quote(texts_[merges_[i].second]));
    }
    return out + "\n    ]\n  }\n}\n";
  }

  const TrainOptions& options_;
  std::unordered_map<std::string, std::int64_t> counts_;
  std::vector<Word> words_;
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<std::string> texts_;
  std::unordered_map<Pair, std::int64_t> pair_counts_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::pair<TokenId, TokenId>> merges_;
};

void check_training(std::span<const std::string_view> texts, const TrainOptions& options) {
  const std::int64_t least = 256 + std::ssize(options.special);
  if (options.vocabulary < least || options.vocabulary > kMaxVocabulary) {
    throw InvalidArgument(fmt::format(
        "train_tokenizer: vocabulary: expected {} to {} (256 bytes, {} special tokens), got {}",
        least, kMaxVocabulary, options.special.size(), options.vocabulary));
  }
  if (options.min_frequency < 0) {
    throw InvalidArgument(fmt::format("train_tokenizer: min_frequency: expected 0 or more, got {}",
                                      options.min_frequency));
  }
  for (std::size_t i = 0; i < options.special.size(); ++i) {
    const std::string& token = options.special[i];
    if (token.empty() || find_invalid_utf8(token) != std::string_view::npos ||
        std::count(options.special.begin(), options.special.end(), token) != 1) {
      throw InvalidArgument(
          fmt::format("train_tokenizer: special: expected different texts in UTF-8, got {}",
                      json_quote(token)));
    }
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::size_t invalid = find_invalid_utf8(texts[i]);
    if (invalid == std::string_view::npos) continue;
    throw InvalidArgument(
        fmt::format("train_tokenizer: text {}: expected UTF-8, got the byte {:#04x} at {}", i,
                    static_cast<unsigned char>(texts[i][invalid]), invalid));
  }
}

}  // namespace

std::string train_tokenizer(std::span<const std::string_view> texts, const TrainOptions& options) {
  check_training(texts, options);
  Trainer trainer(options);
  for (const std::string_view text : texts) trainer.count(text);
  return trainer.train();
}

void write_tokenizer(const std::filesystem::path& path, std::string_view json) {
  write_text_file(path, json);
}

}  // namespace touchstone::inline v0::io
