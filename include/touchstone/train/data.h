// Text for training: documents, a validation part that shares no paragraph with the rest, tokens,
// and the batches of a step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::inline v0::train {

// Ends a document in a text file, alone in its line; and the token that vocabularies of several
// documents have for it.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// The documents of a file: NAME.jsonl has one per line, its member "text", or members "offset" and
// "bytes" of where it lies in NAME.txt (what `touchstone generate --corpus` writes); any other file
// is text, cut at lines that are kEndOfText, or one document where there are none. The line break
// before such a line belongs to it; empty documents are left out. Of a folder those of its *.jsonl,
// or else *.txt, in the order of their names. FileError where it cannot be read;
// InvalidArgument, naming file and place, where it is empty, no UTF-8 or holds NUL bytes (binary),
// or where a line is no such object.
TOUCHSTONE_API std::vector<std::string> read_documents(const std::filesystem::path& path);

// A paragraph is text between blank lines. Two are the same where they are in lower case and with
// one space for every run of white space, of all of Unicode.
struct TextSplit {
  std::vector<std::string> training{};
  std::vector<std::string> validation{};
  std::int64_t training_paragraphs = 0;
  std::int64_t validation_paragraphs = 0;
  std::int64_t dropped_paragraphs = 0;  // of training, because validation has them
  // Of the runs of 13 words in validation the share that occurs in training, words folded alike.
  double common_13_grams = 0;
};

// The last `share` of the bytes of a single document, or whole documents drawn by (seed, index)
// until that share is reached. Paragraphs of training that validation has too are dropped from
// training; that none is left is then checked. InvalidArgument for a share outside (0, 1), and
// where a part is empty.
TOUCHSTONE_API TextSplit split_documents(std::vector<std::string> documents, double share,
                                         std::int64_t seed);
// The same for two given parts.
TOUCHSTONE_API TextSplit separate_documents(std::vector<std::string> training,
                                            std::vector<std::string> validation);

// A byte-level vocabulary of the bytes that occur in the texts and `special`, without merges: for
// ASCII text one token per character. Returns the text of a tokenizer.json.
TOUCHSTONE_API std::string character_tokenizer(std::span<const std::string_view> texts,
                                               const std::vector<std::string>& special = {});

// Tokens of documents one after another.
struct TokenData {
  std::vector<std::int32_t> tokens{};
  std::vector<std::int64_t> starts{0};  // of the documents; the last is the number of tokens
  std::int64_t bytes = 0;               // of the text

  std::int64_t size() const { return std::ssize(tokens); }
};

// Encodes with the threads of a CPU context. `end_token` >= 0 opens and closes every document,
// so that a text can be sampled from that token alone. InvalidArgument
// where a text has characters that the vocabulary has no token for: decoding must give the text
// back.
TOUCHSTONE_API TokenData encode_documents(Context& context, const io::Tokenizer& tokenizer,
                                          std::span<const std::string> documents,
                                          std::int32_t end_token);

// A checksum of text, vocabulary and end token, in hexadecimal digits.
TOUCHSTONE_API std::string text_checksum(std::span<const std::string> documents,
                                         const io::Tokenizer& tokenizer, std::int32_t end_token);

// Shards of tokens on disk: tokens-00000.safetensors ... in a folder, each with whole documents and
// at most `shard_tokens` tokens unless one document has more. Every shard says how many there are
// and, in `source`, the checksum of the text; the first is written last, so that a folder
// without it is one that was not finished. Reading compares vocabulary and source.
// FileError, CorruptData; InvalidArgument for another vocabulary or source.
TOUCHSTONE_API void write_shards(const std::filesystem::path& folder, const TokenData& data,
                                 std::int64_t vocabulary, const std::string& source,
                                 std::int64_t shard_tokens = std::int64_t{1} << 24);
TOUCHSTONE_API bool has_shards(const std::filesystem::path& folder);
TOUCHSTONE_API TokenData read_shards(const std::filesystem::path& folder, std::int64_t vocabulary,
                                     const std::string& source);

// Rows of a batch on the host.
struct HostBatch {
  std::vector<std::int32_t> tokens{};
  std::vector<std::int32_t> targets{};    // -100: no loss
  std::vector<std::int64_t> positions{};  // in the document, or in the row where that is later
  std::vector<std::int64_t> offsets{};    // where documents begin; empty: one per row
  std::int64_t rows = 0;
  std::int64_t counted = 0;  // targets that are not -100
};

// Windows of `length` tokens in a random order. The window of an index is a pure function of (seed,
// index): the tokens are cut into windows from a start that changes with the epoch, which are taken
// in an order of their own in every epoch. So a run that is resumed needs no state.
class TOUCHSTONE_API BatchSource {
 public:
  // `data` must outlive it. With `fixed` windows begin at multiples of `length` in every epoch, so
  // that what is computed of a window holds for all. InvalidArgument for fewer than length + 1
  // tokens.
  BatchSource(const TokenData& data, std::int64_t length, std::int64_t seed, bool fixed = false);

  std::int64_t windows() const { return windows_; }  // of an epoch
  std::int64_t start_of(std::int64_t index) const;   // the first token of window `index`
  HostBatch rows(std::int64_t first, std::int64_t count) const;
  // Rows one after another from the beginning, for validation: every token but the first of a
  // document is a target once. The last row is filled up with targets of -100.
  HostBatch sequential(std::int64_t first, std::int64_t count) const;
  std::int64_t sequential_rows() const;

 private:
  void append(HostBatch& batch, std::int64_t start) const;

  const TokenData* data_;
  std::int64_t length_;
  std::int64_t seed_;
  bool fixed_;
  std::int64_t windows_;
};

}  // namespace touchstone::inline v0::train
