// The models against definitions that are slow and plain.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "io/tokenizer/model/bpe.h"
#include "io/tokenizer/model/unigram.h"
#include "touchstone/core/error.h"

namespace touchstone::io {
namespace {

using Ids = std::vector<TokenId>;

struct RandomBpe {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;

  // Merges of random neighbors over a small alphabet.
  RandomBpe(std::uint64_t seed, std::size_t count) {
    std::mt19937_64 random(seed);
    std::set<std::string> known;
    for (const char* c : {"a", "b", "c", "é", "_"}) {
      tokens.emplace_back(c);
      known.insert(c);
    }
    while (merges.size() < count) {
      const std::string a = tokens[random() % tokens.size()];
      const std::string b = tokens[random() % tokens.size()];
      if (a.size() + b.size() > 40 || !known.insert(a + b).second) continue;
      tokens.push_back(a + b);
      merges.emplace_back(a, b);
    }
  }
  TokenTable table() const {
    TokenTable table(tokens.size(), tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) table.add(tokens[i], static_cast<TokenId>(i));
    return table;
  }
  Bpe bpe() const { return Bpe(table(), {merges.begin(), merges.end()}, BpeOptions()); }
  // The lowest rank, and there the leftmost, again and again.
  Ids slow(const std::vector<std::string>& characters) const {
    std::map<std::pair<std::string, std::string>, std::size_t> ranks;
    for (std::size_t i = 0; i < merges.size(); ++i) ranks[merges[i]] = i;
    std::vector<std::string> parts = characters;
    while (true) {
      std::size_t best = merges.size();
      std::size_t at = 0;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks.find({parts[i], parts[i + 1]});
        if (found == ranks.end() || found->second >= best) continue;
        best = found->second;
        at = i;
      }
      if (best == merges.size()) break;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    Ids ids;
    const TokenTable all = table();
    for (const std::string& part : parts) ids.push_back(all.find(part));
    return ids;
  }
};

TEST(TokenizerBpe, MergesAsTheDefinitionSays) {
  std::mt19937_64 random(3);  // NOLINT(bugprone-random-generator-seed): the same words each time
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const RandomBpe made(seed, 20 + 40 * seed);
    const Bpe bpe = made.bpe();
    BpeScratch scratch;
    for (const std::size_t length : {1, 2, 7, 15, 16, 47, 48, 49, 50, 130}) {
      for (int i = 0; i < 30; ++i) {
        std::vector<std::string> characters;
        std::string word;
        for (std::size_t k = 0; k < length; ++k) {
          characters.push_back(made.tokens[random() % 5]);
          word += characters.back();
        }
        Ids ids;
        bpe.encode(word, word.data() + word.size(), scratch, ids);
        ASSERT_EQ(ids, made.slow(characters)) << word;
      }
    }
  }
}

TEST(TokenizerBpe, UnknownCharactersAndBytes) {
  TokenTable table(8, 8);
  for (TokenId i = 0; const char* token : {"<unk>", "a", "b", "ab", "<0xC3>", "<0xA9>"}) {
    table.add(token, i++);
  }
  const auto encode = [&](BpeOptions options, std::string_view word) {
    const Bpe bpe(table, {{"a", "b"}}, std::move(options));
    BpeScratch scratch;
    Ids ids;
    bpe.encode(word, word.data() + word.size(), scratch, ids);
    return ids;
  };
  EXPECT_EQ(encode({}, "axb"), (Ids{3}));  // neighbors once it is gone
  EXPECT_EQ(encode({.unknown = "<unk>"}, "axyb"), (Ids{1, 0, 0, 2}));
  EXPECT_EQ(encode({.unknown = "<unk>", .fuse_unknown = true}, "axyb"), (Ids{1, 0, 2}));
  EXPECT_EQ(encode({.unknown = "<unk>", .byte_fallback = true}, "aéxb"), (Ids{1, 4, 5, 0, 2}));
  EXPECT_EQ(encode({.unknown = "<unk>", .byte_fallback = true}, "xyéb"), (Ids{0, 4, 5, 0, 2}));
  EXPECT_THROW(encode({.unknown = "none"}, "x"), CorruptData);
}

TEST(TokenizerBpe, ALongWordTakesNoQuadraticTime) {
  const RandomBpe made(1, 200);
  const Bpe bpe = made.bpe();
  BpeScratch scratch;
  Ids ids;
  const std::string word(1 << 20, 'a');
  bpe.encode(word, word.data() + word.size(), scratch, ids);
  std::string joined;
  for (const TokenId id : ids) joined += *bpe.vocabulary().text(id);
  EXPECT_EQ(joined, word);
}

TEST(TokenizerBpe, RefusesMergesOfNoTokens) {
  TokenTable table(2, 2);
  table.add("a", 0);
  table.add("b", 1);
  EXPECT_THROW(Bpe(table, {{"a", "b"}}, {}), CorruptData);
  EXPECT_THROW(Bpe(table, {{"a", "x"}}, {}), CorruptData);
}

TEST(TokenizerUnigram, FindsTheBestSum) {
  const std::vector<std::pair<std::string, double>> tokens = {
      {"<unk>", 0}, {"a", -2}, {"b", -2.5}, {"ab", -3}, {"ba", -3.25}, {"aba", -5}, {"é", -1}};
  TokenTable table(tokens.size(), tokens.size());
  std::vector<double> scores;
  for (const auto& [text, score] : tokens) {
    table.add(text, static_cast<TokenId>(scores.size()));
    scores.push_back(score);
  }
  const Unigram unigram(table, scores, 0, false);
  const auto encode = [&](std::string_view word) {
    Ids ids;
    unigram.encode(word, ids);
    return ids;
  };
  std::mt19937_64 random(5);  // NOLINT(bugprone-random-generator-seed): the same words each time
  for (int i = 0; i < 200; ++i) {
    std::string word;
    for (std::uint64_t k = 0; k <= random() % 9; ++k) word += random() % 2 == 0 ? "a" : "b";
    // The best of every way to cut it.
    double best = -1e9;
    for (unsigned cuts = 0; cuts < 1U << (word.size() - 1); ++cuts) {
      double sum = 0;
      std::string part;
      for (std::size_t k = 0; k < word.size(); ++k) {
        part += word[k];
        if (k + 1 != word.size() && (cuts >> k & 1) == 0) continue;
        const TokenId id = table.find(part);
        sum += id == kNoToken ? -1e6 : scores[id];
        part.clear();
      }
      best = std::max(best, sum);
    }
    double got = 0;
    for (const TokenId id : encode(word)) got += scores[id];
    EXPECT_DOUBLE_EQ(got, best) << word;
  }
  EXPECT_EQ(encode("axyb"), (Ids{1, 0, 2}));
  Ids none;
  EXPECT_THROW(Unigram(table, scores, std::nullopt, false).encode("x", none), CorruptData);
}

TEST(TokenizerWordPiece, TakesTheLongestThatThereIs) {
  TokenTable table(8, 8);
  for (TokenId i = 0; const char* token : {"[UNK]", "un", "una", "##able", "##a", "##ble", "x"}) {
    table.add(token, i++);
  }
  const WordPiece pieces(table, 0, "##", 8);
  const auto encode = [&](std::string_view word) {
    Ids ids;
    pieces.encode(word, ids);
    return ids;
  };
  EXPECT_EQ(encode("unable"), (Ids{2, 5}));
  EXPECT_EQ(encode("unaable"), (Ids{2, 3}));
  EXPECT_EQ(encode("xa"), (Ids{6, 4}));
  EXPECT_EQ(encode("xz"), (Ids{0}));
  EXPECT_EQ(encode("xaaaaaaaaaa"), (Ids{0}));
}

}  // namespace
}  // namespace touchstone::io
