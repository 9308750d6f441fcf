// What the interface promises beyond the ids: errors, special tokens, streams, vocabularies of GGUF
// files, threads.
#include "touchstone/io/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "io/tokenizer/model/bpe.h"
#include "touchstone/core/error.h"

namespace touchstone::io {
namespace {

using Ids = std::vector<Token>;

const std::string& trained() {
  static const std::string json = [] {
    const std::string_view texts[] = {"low lower lowest new newer newest wide wider widest\n",
                                      "déjà vu, naïve café 😀😀 über\n"};
    return train_tokenizer(texts, {.vocabulary = 300, .special = {"<s>", "<|end|>"}});
  }();
  return json;
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

// The message of the error that reading gives.
template <class Kind>
std::string refusal(const std::string& json) {
  try {
    Tokenizer::from_json(json);
  } catch (const Kind& error) {
    return error.what();
  } catch (const Error& error) {
    return std::string("another kind of error: ") + error.what();
  }
  return "accepted";
}

TEST(Tokenizer, RefusesWhatItDoesNotKnowByItsName) {
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  };
  const std::string& good = trained();
  contains(refusal<Unsupported>(replaced(good, "\"type\": \"ByteLevel\"", "\"type\": \"Magic\"")),
           "pre_tokenizer: the type \"Magic\"");
  contains(refusal<Unsupported>(replaced(good, "\"type\": \"BPE\"", "\"type\": \"LSTM\"")), "LSTM");
  contains(refusal<Unsupported>(replaced(good, "\"dropout\": null", "\"dropout\": 0.1")),
           "dropout");
  contains(refusal<Unsupported>(replaced(good, "\"fuse_unk\"", "\"fuze_unk\"")), "fuze_unk");
  contains(refusal<Unsupported>(replaced(good, "\"1.0\"", "\"2.0\"")), "version \"2.0\"");
  contains(
      refusal<Unsupported>(replaced(
          good, "\"normalizer\": null",
          R"("normalizer": {"type": "Replace", "pattern": {"Regex": "\\p{Alpha}"}, "content": ""})")),
      "Alpha");
  contains(refusal<CorruptData>(replaced(good, "\"use_regex\": true", "\"use_regex\": 1")),
           "use_regex");
  contains(refusal<CorruptData>(replaced(good, "\"id\": 1", "\"id\": 7")), "<|end|>");
  contains(refusal<CorruptData>(replaced(good, "\"!\": 2", "\"!\": 4000000000")), "2^31");
  contains(refusal<CorruptData>(replaced(good, "\"!\": 2", "\"!\": 2000000000")), "at most");
  contains(refusal<CorruptData>(replaced(good, "\"!\": 2", "\"!\": 3")), "twice");
  contains(refusal<CorruptData>(good.substr(0, good.size() / 2)), "unexpected end");
  contains(refusal<CorruptData>(R"({"model":{"type":"BPE","vocab":{"a\nb":"x"},"merges":[]}})"),
           "model.vocab.\"a\\u000ab\"");
  contains(refusal<CorruptData>("{}"), "model");
  contains(refusal<CorruptData>("[1]"), "expected an object");
}

TEST(Tokenizer, SpecialTokensInTheTextOnRequest) {
  const Tokenizer tokenizer = Tokenizer::from_json(trained());
  EXPECT_EQ(tokenizer.encode("<|end|>"), (Ids{1}));
  const Ids plain = tokenizer.encode("<|end|>", {.parse_special = false});
  EXPECT_GT(plain.size(), 1U);
  EXPECT_EQ(tokenizer.decode(plain), "<|end|>");
  EXPECT_EQ(tokenizer.decode(Ids{0, plain[0], 1}, {.skip_special = true}), "<");
  EXPECT_EQ(tokenizer.decode(Ids{-1, 100000}), "");
  EXPECT_EQ(tokenizer.id_to_token(1), "<|end|>");
  EXPECT_EQ(tokenizer.id_to_token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.token_to_id("nothing like it"), std::nullopt);
  EXPECT_EQ(tokenizer.size(), 300U);
  EXPECT_EQ(tokenizer.id_end(), 300U);
  EXPECT_EQ(tokenizer.describe(), "byte-level BPE, 300 tokens, 42 merges, 2 added");
}

// The reference compares the decoded text with the special tokens: one that the normalizer rewrites
// is decoded as rewritten, and is not left out.
TEST(Tokenizer, SpecialTokensThatAreNormalized) {
  const Tokenizer tokenizer = Tokenizer::from_json(R"({
    "normalizer": {"type": "Lowercase"}, "decoder": {"type": "Fuse"},
    "added_tokens": [
      {"id": 1, "content": "[CLS]", "special": true, "normalized": true, "lstrip": false,
       "rstrip": false, "single_word": false},
      {"id": 2, "content": "<s>", "special": true, "normalized": true, "lstrip": false,
       "rstrip": false, "single_word": false}],
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  const Ids ids = tokenizer.encode("[cls]a<s>[CLS]");
  EXPECT_EQ(ids, (Ids{1, 0, 2, 1}));
  EXPECT_EQ(tokenizer.decode(ids), "[cls]a<s>[cls]");
  EXPECT_EQ(tokenizer.decode(ids, {.skip_special = true}), "[cls]a[cls]");
  EXPECT_EQ(tokenizer.id_to_token(1), "[CLS]");
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = Tokenizer::from_json(trained());
  try {
    tokenizer.encode("ab\xed\xa0\x80");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "tokenizer: text: expected UTF-8, got the byte 0xed at 2");
  }
}

TEST(Tokenizer, StreamsGiveWholeCharacters) {
  const Tokenizer tokenizer = Tokenizer::from_json(trained());
  const std::string text = "naïve 語 👨‍👩‍👧 über\n";
  TokenStream stream(tokenizer);
  std::string joined;
  bool waited = false;
  for (const Token id : tokenizer.encode(text)) {
    const std::string part = stream.next(id);
    waited = waited || part.empty();
    EXPECT_EQ(part.find("\xef\xbf\xbd"), std::string::npos);
    joined += part;
  }
  EXPECT_TRUE(waited);
  EXPECT_EQ(joined + stream.finish(), text);
  // Half of a character at the end is shown as none.
  const Ids bytes = tokenizer.encode("語");
  EXPECT_EQ(stream.next(bytes[0]), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const Tokenizer tokenizer = Tokenizer::from_json(trained());
  const std::string text = "The newest, widest café is lower than über-naïve 😀 1234";
  const Ids expected = tokenizer.encode(text);
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += tokenizer.encode(text) == expected ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(Tokenizer, TrainingRefusesWhatDoesNotFit) {
  const std::string_view good[] = {"text"};
  const std::string_view bad[] = {"text", "\xff"};
  EXPECT_THROW(train_tokenizer(good, {.vocabulary = 256, .special = {"<s>"}}), InvalidArgument);
  EXPECT_THROW(train_tokenizer(good, {.special = {"<s>", "<s>"}}), InvalidArgument);
  EXPECT_THROW(train_tokenizer(good, {.special = {""}}), InvalidArgument);
  EXPECT_THROW(train_tokenizer(good, {.min_frequency = -1}), InvalidArgument);
  EXPECT_THROW(train_tokenizer(bad, {}), InvalidArgument);
  EXPECT_EQ(Tokenizer::from_json(train_tokenizer(good, {})).size(), 259U);
}

TEST(Tokenizer, ReadsFilesAndFolders) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "tokenizer_files";
  std::filesystem::create_directories(folder);
  write_tokenizer(folder / "tokenizer.json", trained());
  const Ids expected = Tokenizer::from_json(trained()).encode("lowest");
  EXPECT_EQ(Tokenizer::from_file(folder).encode("lowest"), expected);
  EXPECT_EQ(Tokenizer::from_file(folder / "tokenizer.json").encode("lowest"), expected);
  EXPECT_THROW(Tokenizer::from_file(folder / "none.json"), FileError);
  std::filesystem::remove_all(folder);
}

// All byte characters, then what is given.
TokenizerVocabulary byte_vocabulary(std::vector<std::string> more) {
  TokenizerVocabulary vocabulary{.model = "gpt2", .pre = "gpt-2"};
  for (int b = 0; b < 256; ++b) {
    vocabulary.tokens.push_back(characters_of_bytes(std::string(1, static_cast<char>(b))));
  }
  for (std::string& token : more) vocabulary.tokens.push_back(std::move(token));
  return vocabulary;
}

TEST(TokenizerVocabulary, ByteLevelWithWordsByName) {
  TokenizerVocabulary vocabulary = byte_vocabulary({"ab", "Ġab", "<s>"});
  vocabulary.merges = {"a b", "Ġ ab"};
  vocabulary.types.assign(vocabulary.tokens.size(), 1);
  vocabulary.types.back() = 3;
  vocabulary.bos = 258;
  EXPECT_EQ(Tokenizer::from_vocabulary(vocabulary).encode("ab ab"), (Ids{256, 257}));
  vocabulary.add_bos = true;
  EXPECT_EQ(Tokenizer::from_vocabulary(vocabulary).encode("ab<s>"), (Ids{258, 256, 258}));
  EXPECT_EQ(Tokenizer::from_vocabulary(vocabulary).encode("ab", {.add_special = false}),
            (Ids{256}));
  vocabulary.pre = "smollm";
  EXPECT_EQ(Tokenizer::from_vocabulary(vocabulary).encode("12"), (Ids{258, '1', '2'}));
  for (const char* name : {"llama-bpe", "qwen2", "qwen35", "deepseek-llm", "deepseek-coder",
                           "deepseek-v3", "falcon", "tekken", "gpt-4o", "command-r"}) {
    vocabulary.pre = name;
    const Tokenizer tokenizer = Tokenizer::from_vocabulary(vocabulary);
    const std::string text = "ab, it's 1234 über 語\n";
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, {.add_special = false})), text) << name;
  }
}

TEST(TokenizerVocabulary, SentencePieceByScores) {
  TokenizerVocabulary vocabulary{.model = "llama", .pre = "default"};
  vocabulary.tokens = {"<unk>", "<s>", "▁", "a", "b", "ab", "▁ab", "<0xC3>", "<0xA9>"};
  vocabulary.scores = {0, 0, -1, -1, -1, -2, -3, 0, 0};
  vocabulary.types = {2, 3, 1, 1, 1, 1, 1, 6, 6};
  vocabulary.bos = 1;
  vocabulary.unknown = 0;
  const Tokenizer tokenizer = Tokenizer::from_vocabulary(vocabulary);
  EXPECT_EQ(tokenizer.encode("ab ab"), (Ids{1, 6, 6}));
  EXPECT_EQ(tokenizer.encode("é", {.add_special = false}), (Ids{2, 7, 8}));
  EXPECT_EQ(tokenizer.decode(Ids{6, 6, 7, 8}), "ab abé");
}

// What llama.cpp does for models of these names, and the models' own tokenizer.json say.
TEST(TokenizerVocabulary, TokensTakeTheSpaceBesideThemByTheNameOfTheModel) {
  TokenizerVocabulary vocabulary = byte_vocabulary({"<|end|>", "<s>", "<mask>"});
  vocabulary.types.assign(vocabulary.tokens.size(), 1);
  for (std::size_t i = 256; i < 259; ++i) vocabulary.types[i] = 3;
  const std::string text = "a <|end|>\n b <s>\n <mask>c";
  const auto ids = [&] { return Tokenizer::from_vocabulary(vocabulary).encode(text); };
  const Ids all = {'a', ' ', 256, '\n', ' ', 'b', ' ', 257, '\n', ' ', 258, 'c'};
  EXPECT_EQ(ids(), all);
  vocabulary.name = "Phi-3 Mini 4k";
  EXPECT_EQ(ids(), (Ids{'a', ' ', 256, 'b', ' ', 257, '\n', ' ', 258, 'c'}));
  vocabulary.name = "phi-4";
  EXPECT_EQ(ids(), all);
  vocabulary.architecture = "nomic-bert-moe";
  EXPECT_EQ(ids(), (Ids{'a', ' ', 256, '\n', ' ', 'b', ' ', 257, 258, 'c'}));
}

// A search follows a token from every position: the longer it may be, the longer that takes.
TEST(TokenizerVocabulary, RefusesVeryLongTokens) {
  const std::string token(1025, 'a');
  TokenizerVocabulary vocabulary = byte_vocabulary({token});
  vocabulary.types.assign(257, 1);
  EXPECT_NO_THROW(Tokenizer::from_vocabulary(vocabulary));  // BPE merges its way to it
  vocabulary.types[256] = 4;
  EXPECT_THROW(Tokenizer::from_vocabulary(vocabulary), Unsupported);
  for (const char* model : {"bert", "t5"}) {
    TokenizerVocabulary pieces{.model = model, .pre = "", .tokens = {"[UNK]", token}};
    pieces.scores = {0, 0};
    pieces.unknown = 0;
    pieces.add_eos = false;
    EXPECT_THROW(Tokenizer::from_vocabulary(pieces), Unsupported) << model;
    pieces.tokens[1].pop_back();
    pieces.tokens[1].resize(1000);
    const Tokenizer tokenizer = Tokenizer::from_vocabulary(pieces);
    const std::clock_t start = std::clock();
    tokenizer.encode(std::string(50'000, 'a'));
    EXPECT_LT(std::clock() - start, 4 * CLOCKS_PER_SEC) << model;
  }
}

TEST(TokenizerVocabulary, RefusesWhatDoesNotFit) {
  const auto refused = [](TokenizerVocabulary vocabulary, auto change) {
    change(vocabulary);
    try {
      Tokenizer::from_vocabulary(vocabulary);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const TokenizerVocabulary good = byte_vocabulary({});
  using V = TokenizerVocabulary;
  const std::string key = "tokenizer: tokenizer.ggml.";
  EXPECT_EQ(refused(good, [](V& v) { v.pre = "magic"; }), key + "pre: \"magic\" is not known");
  EXPECT_EQ(refused(good, [](V& v) { v.pre = ""; }),
            key + "pre: missing, and words are not guessed");
  EXPECT_EQ(refused(good, [](V& v) { v.model = "rwkv"; }), key + "model: \"rwkv\" is not known");
  EXPECT_EQ(refused(good, [](V& v) { v.bos = 256; }),
            key + "bos_token_id: 256, expected an id below 256");
  EXPECT_EQ(refused(good, [](V& v) { v.types = {1}; }), key + "token_type: 1 types for 256 tokens");
  EXPECT_EQ(refused(good, [](V& v) { v.types.assign(256, 9); }),
            key + "token_type: 9 at 0, expected 1 to 6");
  EXPECT_EQ(refused(good, [](V& v) { v.tokens[3] = "\xff"; }),
            key + "tokens: token 3 is not UTF-8");
  EXPECT_EQ(refused(good, [](V& v) { v.merges = {"ab"}; }),
            key + "merges: merge 0 is not two tokens in UTF-8");
  EXPECT_EQ(refused(good, [](V& v) { v.tokens.clear(); }), key + "tokens: 0 tokens");
  EXPECT_EQ(refused(good, [](V& v) { v.add_bos = true; }),
            key + "add_bos_token: true, and there is no bos_token_id");
}

// What encode makes of a text adds up to the text, token by token.
TEST(Tokenizer, TokenBytesAddUpToTheText) {
  const Tokenizer tokenizer = Tokenizer::from_json(trained());
  const std::vector<std::string> bytes = tokenizer.token_bytes(400);
  EXPECT_EQ(bytes.size(), 400U);
  const std::string text = "lowest café 😀 \n wide\xcc\x81";
  std::string joined;
  for (const Token id : tokenizer.encode(text)) joined += bytes[static_cast<std::size_t>(id)];
  EXPECT_EQ(joined, text);
  EXPECT_EQ(bytes[static_cast<std::size_t>(*tokenizer.token_to_id("<|end|>"))], "");

  TokenizerVocabulary pieces;
  pieces.model = "llama";
  pieces.tokens = {"<unk>",
                   "<s>",
                   "<0xC3>",
                   "<0xA9>",
                   "\xe2\x96\x81",
                   "a",
                   "\xe2\x96\x81"
                   "a"};
  pieces.types = {2, 3, 6, 6, 1, 1, 1};
  pieces.scores = {0, 0, 0, 0, -1, -2, -3};
  pieces.unknown = 0;
  pieces.bos = 1;
  EXPECT_EQ(Tokenizer::from_vocabulary(pieces).token_bytes(),
            (std::vector<std::string>{"", "", "\xc3", "\xa9", " ", "a", " a"}));
  TokenizerVocabulary words;
  words.model = "bert";
  words.tokens = {"[UNK]",
                  "\xe2\x96\x81"
                  "a",
                  "b"};
  words.unknown = 0;
  EXPECT_THROW(Tokenizer::from_vocabulary(words).token_bytes(), Unsupported);
}

}  // namespace
}  // namespace touchstone::io
