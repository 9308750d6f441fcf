// The pre-tokenizers that GGUF files call by name, with the normalizers and options that the
// models' own tokenizer.json has beside them (a GGUF file does not hold these).
#include "io/tokenizer/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

enum class Cuts : std::uint8_t {
  gpt2,
  llama3,
  qwen2,
  qwen35,
  digits_gpt2,
  falcon,
  deepseek_llm,
  deepseek_coder,
  deepseek_v3,
  tekken,
  gpt4o
};

struct Named {
  const char* name;
  Cuts cuts;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

constexpr Named kNames[] = {
    {"gpt-2", Cuts::gpt2},
    {"phi-2", Cuts::gpt2},
    {"roberta-bpe", Cuts::gpt2},
    {"mpt", Cuts::gpt2, true},
    {"olmo", Cuts::gpt2, true},
    {"llama-bpe", Cuts::llama3, false, true, true},
    {"llama3", Cuts::llama3, false, true, true},
    {"llama-v3", Cuts::llama3, false, true, true},
    {"falcon3", Cuts::llama3, false, true, true},
    {"lfm2", Cuts::llama3, false, true, true},
    {"dbrx", Cuts::llama3},
    {"smaug-bpe", Cuts::llama3},
    {"chatglm-bpe", Cuts::llama3},
    {"glm4", Cuts::llama3, false, true},
    {"qwen2", Cuts::qwen2, true},
    {"deepseek-r1-qwen", Cuts::qwen2, true},
    {"megrez", Cuts::qwen2, true},
    {"stablelm2", Cuts::qwen2, true},
    {"qwen35", Cuts::qwen35},
    {"starcoder", Cuts::digits_gpt2},
    {"refact", Cuts::digits_gpt2},
    {"codeshell", Cuts::digits_gpt2},
    {"smollm", Cuts::digits_gpt2},
    {"command-r", Cuts::digits_gpt2, true},
    {"falcon", Cuts::falcon},
    {"deepseek-llm", Cuts::deepseek_llm},
    {"deepseek-coder", Cuts::deepseek_coder},
    {"deepseek-v3", Cuts::deepseek_v3},
    {"tekken", Cuts::tekken, false, true, true},
    {"gpt-4o", Cuts::gpt4o},
    {"llama4", Cuts::gpt4o},
};

// Letters of alphabets with case, as DeepSeek lists them.
constexpr const char* kDeepSeekLetters =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-)"
    R"(ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ)"
    R"(-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ)"
    R"(-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
constexpr const char* kDeepSeekPunctuation = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
constexpr const char* kDeepSeekCjk = "[一-龥ࠀ-一가-퟿]+";
constexpr const char* kDeepSeekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}  // namespace

const std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\)"
    R"(r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:)"
    R"('s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{)"
    R"(Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}])"
    R"(+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

PreTokenizer step_of(PreTokenizer::Kind kind, Split split = Split::isolated) {
  PreTokenizer step;
  step.kind = kind;
  step.split = split;
  return step;
}

std::vector<PreTokenizer> steps_of(Cuts cuts) {
  using Kind = PreTokenizer::Kind;
  const PreTokenizer digits = step_of(Kind::numeric);
  switch (cuts) {
    case Cuts::gpt2:
      return {words_step(WordRule::gpt2)};
    case Cuts::llama3:
      return {words_step(WordRule::llama3)};
    case Cuts::qwen2:
      return {words_step(WordRule::qwen2)};
    case Cuts::qwen35:
      return {words_step(WordRule::qwen35)};
    case Cuts::digits_gpt2:
      return {digits, words_step(WordRule::gpt2)};
    case Cuts::falcon:
      // Digits are looked for among the characters that stand for bytes, as the original does.
      return {step_of(Kind::punctuation, Split::contiguous), words_step(WordRule::gpt2),
              step_of(Kind::byte_characters), step_of(Kind::numeric, Split::contiguous),
              split_step("[0-9][0-9][0-9]")};
    case Cuts::deepseek_llm:
      return {split_step("[\r\n]"), split_step(kDeepSeekLetters), split_step(kDeepSeekPunctuation),
              split_step("\\s+$"),  split_step(kDeepSeekCjk),     digits};
    case Cuts::deepseek_coder:
      return {split_step("[\r\n]"), split_step("\\s?\\p{L}+"), split_step("\\s?\\p{P}+"),
              split_step(kDeepSeekCjk), digits};
    case Cuts::deepseek_v3:
      return {split_step("\\p{N}{1,3}"), split_step("[一-龥぀-ゟ゠-ヿ]+"),
              split_step(kDeepSeekV3Words)};
    case Cuts::tekken:
      return {split_step(std::string(kTekkenPattern))};
    case Cuts::gpt4o:
      return {split_step(std::string(kGpt4oPattern))};
  }
  return {};
}

}  // namespace

NamedPreTokenizer named_pre_tokenizer(const std::string& name) {
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames),
                                   [&](const Named& named) { return name == named.name; });
  if (found == std::end(kNames)) {
    throw Unsupported(name.empty()
                          ? "tokenizer: tokenizer.ggml.pre: missing, and words are not guessed"
                          : fmt::format("tokenizer: tokenizer.ggml.pre: {} is not known",
                                        json_quote(name.substr(0, 60))));
  }
  NamedPreTokenizer result{steps_of(found->cuts), found->nfc, found->ignore_merges, found->add_bos};
  const bool has_bytes = std::ranges::any_of(result.steps, [](const PreTokenizer& step) {
    return step.kind == PreTokenizer::Kind::byte_characters;
  });
  if (!has_bytes) result.steps.push_back(step_of(PreTokenizer::Kind::byte_characters));
  return result;
}

}  // namespace touchstone::inline v0::io
