// The text of continuations with a tokenizer in the style of Llama 2: SentencePiece pieces, bytes for
// what has none, and a decoder that drops the first space of a text.
#include "touchstone/decode/continuation_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "oracle/path_scorer.h"
#include "touchstone/decode/grammar.h"
#include "touchstone/decode/scheduler.h"

namespace touchstone::decode {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kBos = 1;
constexpr std::int32_t kEos = 2;
constexpr std::int32_t kByte = 3;  // and 255 more
constexpr std::int32_t kSpace = 259;
constexpr std::int32_t kLetter = 260;
constexpr std::int32_t kSpaceLetter = 261;
constexpr std::int32_t kWord = 262;   // " w300"
constexpr std::int32_t kOther = 263;  // " w301"
constexpr std::int64_t kPieces = 264;

const io::Tokenizer& llama_tokenizer() {
  static const io::Tokenizer tokenizer = [] {
    std::string vocabulary = R"("<unk>": 0, "<s>": 1, "</s>": 2)";
    for (int i = 0; i < 256; ++i) {
      const char* const digits = "0123456789ABCDEF";
      vocabulary += std::string(R"(, "<0x)") + digits[i / 16] + digits[i % 16] + R"(>": )" +
                    std::to_string(kByte + i);
    }
    vocabulary += R"(, "▁": 259, "a": 260, "▁a": 261, "▁w300": 262, "▁w301": 263)";
    const auto special = [](int id, const char* content) {
      return R"({"id": )" + std::to_string(id) + R"(, "content": ")" + content +
             R"(", "special": true, "normalized": false, "lstrip": false, "rstrip": false,
                "single_word": false})";
    };
    return io::Tokenizer::from_json(R"({"added_tokens": [)" + special(0, "<unk>") + "," +
                                    special(1, "<s>") + "," + special(2, "</s>") + R"(],
        "normalizer": {"type": "Sequence", "normalizers": [
          {"type": "Prepend", "prepend": "▁"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": [
          {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"},
          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                  "vocab": {)" + vocabulary +
                                    R"(}, "merges": ["▁ a"]}})");
  }();
  return tokenizer;
}

TEST(ContinuationText, KeepsTheSpaceOfItsFirstToken) {
  const io::Tokenizer& tokenizer = llama_tokenizer();
  ASSERT_EQ(tokenizer.decode(Tokens{kSpaceLetter, kWord}), "a w300");
  EXPECT_EQ(continuation_text(tokenizer, Tokens{kSpaceLetter}, Tokens{kWord, kOther}),
            " w300 w301");
  EXPECT_EQ(continuation_text(tokenizer, Tokens{kSpaceLetter}, Tokens{kLetter}), "a");
  EXPECT_EQ(continuation_text(tokenizer, Tokens{kSpaceLetter}, Tokens{kSpace, kWord}), "  w300");
  // Special tokens between the prompt and its continuation, more than the stream looks back.
  const Tokens turns = {kSpaceLetter, kEos, kBos, kEos, kBos, kEos};
  EXPECT_EQ(continuation_text(tokenizer, turns, Tokens{kWord}, {.skip_special = true}), " w300");
  // The beginning of a text has no space, as in decode(prompt and tokens).
  EXPECT_EQ(continuation_text(tokenizer, Tokens{kBos}, Tokens{kWord}, {.skip_special = true}),
            "w300");
}

TEST(ContinuationText, CompletesACharacterOfThePrompt) {
  const io::Tokenizer& tokenizer = llama_tokenizer();
  // U+20AC: e2 82 ac.
  const Tokens prompt = {kSpaceLetter, kByte + 0xe2, kByte + 0x82};
  EXPECT_EQ(continuation_text(tokenizer, prompt, Tokens{kByte + 0xac, kWord}), "\u20ac w300");
}

// Allows one sequence of tokens.
class Forced : public TokenConstraint {
 public:
  explicit Forced(Tokens tokens) : tokens_(std::move(tokens)) {}
  std::unique_ptr<TokenConstraint> start() const override {
    return std::make_unique<Forced>(tokens_);
  }
  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<Forced>(*this); }
  void allowed(std::span<std::int32_t> mask) const override {
    std::ranges::fill(mask, 0);
    if (next_ == tokens_.size()) return;
    const auto token = static_cast<std::size_t>(tokens_[next_]);
    mask[token / 32] = static_cast<std::int32_t>(std::uint32_t{1} << (token % 32));
  }
  void accept(std::int32_t /*token*/) override { ++next_; }
  bool complete() const override { return next_ == tokens_.size(); }

 private:
  Tokens tokens_;
  std::size_t next_ = 0;
};

Completion llama_completion(Request asked) {
  oracle::TableScorer scorer(kPieces, 64, oracle::hashed_table(3, 2));
  Scheduler scheduler(scorer, {.eos_tokens = {kEos}, .tokenizer = &llama_tokenizer()});
  Context context({.threads = 1});
  std::string streamed;
  const RequestId id =
      scheduler.submit(std::move(asked), [&](const TokenEvent& event) { streamed += event.text; });
  while (scheduler.step(context)) {
  }
  Completion answer = scheduler.take(id)[0];
  EXPECT_EQ(streamed, answer.text);
  return answer;
}

TEST(ContinuationText, StopStringsThatBeginWithASpace) {
  Request asked{.prompt = {kBos, kSpaceLetter}, .stop = {.max_tokens = 8}};
  asked.constraint = std::make_shared<Forced>(Tokens{kOther, kWord, kOther});
  Completion answer = llama_completion(asked);
  EXPECT_EQ(answer.text, " w301 w300 w301");
  EXPECT_EQ(answer.finish, FinishReason::stop);
  EXPECT_EQ(answer.stop_index, -1);
  asked.stop.strings = {" w3"};
  answer = llama_completion(asked);
  EXPECT_EQ(answer.text, "");
  EXPECT_EQ(answer.stop_index, 0);
}

TEST(ContinuationText, StaysInItsGrammar) {
  const Grammar grammar = Grammar::from_gbnf(R"(root ::= " w300" " w301")");
  const GrammarVocabulary vocabulary(llama_tokenizer().token_bytes(kPieces), Tokens{kEos});
  for (const Tokens& prompt : {Tokens{kBos, kSpaceLetter}, Tokens{kBos}}) {
    for (const bool ignore_eos : {false, true}) {
      Request asked{.prompt = prompt, .stop = {.max_tokens = 16, .ignore_eos = ignore_eos}};
      asked.constraint = std::make_shared<GrammarConstraint>(grammar, vocabulary);
      const Completion answer = llama_completion(asked);
      EXPECT_EQ(answer.text, " w300 w301");
      EXPECT_TRUE(grammar.matches(answer.text));
      EXPECT_EQ(answer.finish, ignore_eos ? FinishReason::stop : FinishReason::eos);
    }
  }
}

}  // namespace
}  // namespace touchstone::decode
