// Text to token ids and back, as the model's own tokenizer does it.
//
//   const io::Tokenizer tokenizer = io::Tokenizer::from_file("model/tokenizer.json");
//   std::vector<io::Token> ids = tokenizer.encode("Hello world");
//   std::string text = tokenizer.decode(ids);
//
// Reads `tokenizer.json` (byte-level BPE, BPE with byte fallback, Unigram, WordPiece, WordLevel,
// with the normalizers, pre-tokenizers, post-processors and decoders around them) and the
// vocabularies of GGUF files. Ids equal those of the PyPI package `tokenizers`; an unknown
// step is refused by name (Unsupported), never approximated. Truncation and padding of a
// tokenizer.json are not applied: they are the job of the caller who builds batches.
//
// Files may be hostile: memory stays below kTokenizerMemoryFactor bytes per byte of the file plus
// 16 MB, and every fault is one CorruptData or Unsupported. A tokenizer can be used from any number
// of threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/export.h"

namespace touchstone::inline v0::io {

using Token = std::int32_t;

// A bound on the memory of a tokenizer: bytes per byte of its file, plus a constant.
inline constexpr std::size_t kTokenizerMemoryFactor = 256;
inline constexpr std::size_t kTokenizerConstantBytes = std::size_t{16} << 20;

struct EncodeOptions {
  // The tokens that the post-processor puts around the text: BOS, EOS, [CLS], ...
  bool add_special = true;
  // Special tokens written out in the text ("<|im_end|>") become that token. Switch it off for
  // untrusted text, which could otherwise end a turn.
  bool parse_special = true;
};

struct DecodeOptions {
  bool skip_special = false;
};

// A vocabulary as GGUF files hold it: the values of `tokenizer.ggml.*`, plain.
struct TokenizerVocabulary {
  enum class Type : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

  std::string model;  // "gpt2", "llama", "bert", "t5", "gemma4"
  std::string pre;    // name of the pre-tokenizer; "" where the file has none
  std::vector<std::string> tokens{};
  std::vector<float> scores{};        // as many as tokens, or none
  std::vector<std::int32_t> types{};  // Type by number; as many as tokens, or none
  std::vector<std::string> merges{};  // "left right"
  std::optional<Token> bos{};
  std::optional<Token> eos{};
  std::optional<Token> unknown{};
  std::optional<Token> separator{};
  std::optional<Token> padding{};
  std::optional<Token> mask{};
  std::optional<Token> cls{};
  std::optional<bool> add_bos{};
  std::optional<bool> add_eos{};
  std::optional<bool> add_space_prefix{};
  std::optional<bool> remove_extra_spaces{};
  std::string characters_map{};  // precompiled_charsmap, bytes
  // Of the model, as general.name and general.architecture: some have tokens that absorb the
  // white space beside them.
  std::string name{};
  std::string architecture{};
};

class TensorFile;
// Of a GGUF file. Unsupported when there is none in it.
TOUCHSTONE_API TokenizerVocabulary read_tokenizer_vocabulary(const TensorFile& file);

class TOUCHSTONE_API Tokenizer {
 public:
  // The text of a tokenizer.json; `name` stands at the front of messages.
  static Tokenizer from_json(std::string_view text, const std::string& name = "tokenizer.json");
  static Tokenizer from_vocabulary(const TokenizerVocabulary& vocabulary);
  // A tokenizer.json, a GGUF file, or a folder with one of them (tokenizer.json first). FileError,
  // CorruptData, Unsupported.
  static Tokenizer from_file(const std::filesystem::path& path);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // InvalidArgument for text that is not UTF-8.
  std::vector<Token> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Appends to `ids`, and returns how many.
  std::size_t encode_to(std::string_view text, std::vector<Token>& ids,
                        const EncodeOptions& options = {}) const;
  // Ids without a token are left out, as the reference does. Always UTF-8: other bytes
  // become U+FFFD.
  std::string decode(std::span<const Token> ids, const DecodeOptions& options = {}) const;

  // The vocabulary with the added tokens.
  std::size_t size() const;
  // One more than the largest id: rows of the embedding, at least.
  std::size_t id_end() const;
  std::optional<Token> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(Token id) const;
  bool is_special(Token id) const;
  // The bytes that each id adds to a text, in the order of the ids: constraints on text are
  // compiled from them. Empty for special tokens and ids without a token. At least `size` entries.
  // Unsupported where the text of a token depends on its neighbors (WordPiece, CTC, no decoder).
  std::vector<std::string> token_bytes(std::size_t size = 0) const;

  // "BPE", "Unigram", "WordPiece" or "WordLevel".
  const char* model_name() const;
  std::size_t merge_count() const;
  std::size_t added_count() const;
  // One line about the steps: "ByteLevel BPE, 50257 tokens, 50000 merges, 1 added".
  std::string describe() const;

 private:
  friend class TokenStream;
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Text of tokens that come one by one. What it returns is whole characters: bytes of a character
// that is not complete yet wait for the next token.
class TOUCHSTONE_API TokenStream {
 public:
  // The tokenizer must outlive it.
  explicit TokenStream(const Tokenizer& tokenizer, const DecodeOptions& options = {});
  std::string next(Token id);  // "" while no character is complete
  std::string finish();        // pending bytes, incomplete characters as U+FFFD; then begins anew

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::vector<Token> ids_;
  std::size_t known_ = 0;  // ids whose text is in prefix_
  std::string prefix_;
};

struct TrainOptions {
  std::int64_t vocabulary = 32000;  // 256 byte tokens, special tokens and merges together
  std::int64_t min_frequency = 0;   // of a pair that is merged
  std::vector<std::string> special{};
};

// Byte-level BPE with GPT-2's words, from texts that are read line by line. Deterministic: equal
// counts merge the pair with the smaller ids first. Returns the text of a tokenizer.json.
// InvalidArgument for a vocabulary that the bytes and special tokens do not fit, or text that is
// not UTF-8.
TOUCHSTONE_API std::string train_tokenizer(std::span<const std::string_view> texts,
                                           const TrainOptions& options);

// Writes it under a temporary name and renames it. FileError.
TOUCHSTONE_API void write_tokenizer(const std::filesystem::path& path, std::string_view json);

}  // namespace touchstone::inline v0::io
