// Tokens of documents: vocabulary of characters, encoding, shards.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <mutex>

#include "core/checksum.h"
#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "io/json_document.h"
#include "touchstone/core/error.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/io/write_tensors.h"
#include "touchstone/train/data.h"

namespace touchstone::inline v0::train {
namespace {

// The character that byte-level vocabularies write a byte as: itself where it is printable, else
// the next free one from U+0100 on.
std::array<std::string, 256> characters_of_bytes() {
  std::array<std::string, 256> characters;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const unsigned code = printable ? byte : next++;
    std::string& text = characters[byte];
    if (code < 0x80) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xc0U | code >> 6), static_cast<char>(0x80U | (code & 0x3fU))};
    }
  }
  return characters;
}

// Pieces that threads encode one at a time: short enough to share the work of one long document.
// They end where lines do; white space there may be cut into other tokens than in the whole text.
constexpr std::size_t kPieceBytes = std::size_t{1} << 18;

struct Piece {
  std::size_t document = 0;
  std::string_view text;
};

std::vector<Piece> pieces_of(std::span<const std::string> documents) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    std::string_view rest = documents[i];
    while (rest.size() > kPieceBytes) {
      // After the first line break behind kPieceBytes that a letter follows: words, and the
      // runs of white space before them, stay whole.
      std::size_t cut = kPieceBytes;
      while (cut < rest.size() &&
             !(rest[cut - 1] == '\n' && static_cast<unsigned char>(rest[cut]) > ' ')) {
        ++cut;
      }
      pieces.push_back({i, rest.substr(0, cut)});
      rest.remove_prefix(cut);
    }
    if (!rest.empty()) pieces.push_back({i, rest});
  }
  return pieces;
}

std::filesystem::path shard_path(const std::filesystem::path& folder, std::size_t index) {
  return folder / fmt::format("tokens-{:05}.safetensors", index);
}

template <class T>
io::OutputTensor output_tensor(const char* name, const char* type, std::span<const T> values) {
  return {.name = name,
          .type = type,
          .shape = {std::ssize(values)},
          .data = [values](std::vector<std::byte>&) { return std::as_bytes(values); }};
}

template <class T>
std::vector<T> read_numbers(const io::TensorFile& file, const char* name, const char* type) {
  const io::TensorInfo& info = file.tensor(name);
  if (info.type != type || info.shape.size() != 1) {
    throw CorruptData(fmt::format("{}: {}: expected {} [n]", file.files()[0].string(), name, type));
  }
  std::vector<T> values(info.data.size() / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), info.data.data(), values.size() * sizeof(T));
  }
  return values;
}

}  // namespace

std::string character_tokenizer(std::span<const std::string_view> texts,
                                const std::vector<std::string>& special) {
  std::array<bool, 256> occurs{};
  for (const std::string_view text : texts) {
    for (const char c : text) occurs[static_cast<unsigned char>(c)] = true;
  }
  const std::array<std::string, 256> characters = characters_of_bytes();
  std::string vocabulary;
  std::string added;
  std::size_t id = 0;
  for (const std::string& token : special) {
    added += fmt::format(
        "{}{{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": false, \"rstrip\": "
        "false, \"normalized\": false, \"special\": true}}",
        added.empty() ? "" : ", ", id, io::json_quote(token));
    vocabulary +=
        fmt::format("{}{}: {}", vocabulary.empty() ? "" : ", ", io::json_quote(token), id++);
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (!occurs[byte]) continue;
    vocabulary += fmt::format("{}{}: {}", vocabulary.empty() ? "" : ", ",
                              io::json_quote(characters[byte]), id++);
  }
  const char* const byte_level =
      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
      "\"use_regex\": true}";
  return fmt::format(
      "{{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
      "  \"added_tokens\": [{}],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {},\n"
      "  \"post_processor\": null,\n  \"decoder\": {},\n  \"model\": {{\"type\": \"BPE\", "
      "\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
      "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, "
      "\"ignore_merges\": false,\n    \"vocab\": {{{}}},\n    \"merges\": []}}\n}}\n",
      added, byte_level, byte_level, vocabulary);
}

TokenData encode_documents(Context& context, const io::Tokenizer& tokenizer,
                           std::span<const std::string> documents, std::int32_t end_token) {
  const std::vector<Piece> pieces = pieces_of(documents);
  std::vector<std::vector<std::int32_t>> encoded(pieces.size());
  detail::ContextAccess::pool(context).run(std::ssize(pieces), [&](std::int64_t i) {
    const std::string_view text = pieces[at(i)].text;
    encoded[at(i)] = tokenizer.encode(text, {.add_special = false, .parse_special = false});
    if (tokenizer.decode(encoded[at(i)]) != text) {
      throw InvalidArgument(
          fmt::format("train: document {}: the vocabulary has no tokens for all of its characters",
                      pieces[at(i)].document));
    }
  });
  TokenData data;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    data.bytes += std::ssize(pieces[i].text);
    const bool opens = i == 0 || pieces[i - 1].document != pieces[i].document;
    if (opens && end_token >= 0) data.tokens.push_back(end_token);
    data.tokens.insert(data.tokens.end(), encoded[i].begin(), encoded[i].end());
    if (i + 1 < pieces.size() && pieces[i + 1].document == pieces[i].document) continue;
    if (end_token >= 0) data.tokens.push_back(end_token);
    data.starts.push_back(std::ssize(data.tokens));
  }
  return data;
}

std::string text_checksum(std::span<const std::string> documents, const io::Tokenizer& tokenizer,
                          std::int32_t end_token) {
  std::vector<std::uint64_t> parts = {static_cast<std::uint64_t>(end_token)};
  const auto add = [&](std::string_view text) {
    parts.push_back(checksum(std::as_bytes(std::span(text))));
  };
  for (std::size_t id = 0; id < tokenizer.id_end(); ++id) {
    add(tokenizer.id_to_token(static_cast<io::Token>(id)).value_or(""));
  }
  for (const std::string& document : documents) add(document);
  return fmt::format("{:016x}", checksum(std::as_bytes(std::span(parts))));
}

void write_shards(const std::filesystem::path& folder, const TokenData& data,
                  std::int64_t vocabulary, const std::string& source, std::int64_t shard_tokens) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(fmt::format("{}: {}", folder.string(), error.message()));
  std::vector<std::size_t> borders = {0};  // documents
  const std::size_t documents = data.starts.size() - 1;
  while (borders.back() < documents) {
    std::size_t end = borders.back() + 1;
    while (end < documents && data.starts[end + 1] - data.starts[borders.back()] <= shard_tokens) {
      ++end;
    }
    borders.push_back(end);
  }
  for (std::size_t shard = borders.size() - 1; shard-- > 0;) {
    const auto first = data.starts.begin() + static_cast<std::ptrdiff_t>(borders[shard]);
    std::vector<std::int64_t> starts(
        first, data.starts.begin() + static_cast<std::ptrdiff_t>(borders[shard + 1]) + 1);
    const std::int64_t offset = starts[0];
    for (std::int64_t& start : starts) start -= offset;
    const auto tokens = std::span(data.tokens).subspan(at(offset), at(starts.back()));
    const io::OutputTensor tensors[] = {output_tensor<std::int32_t>("tokens", "i32", tokens),
                                        output_tensor<std::int64_t>("starts", "i64", starts)};
    io::write_safetensors(shard_path(folder, shard), tensors,
                          {.metadata = {{"vocabulary", std::to_string(vocabulary)},
                                        {"source", source},
                                        {"shards", std::to_string(borders.size() - 1)},
                                        {"bytes", std::to_string(shard == 0 ? data.bytes : 0)}},
                           .durable = true});
  }
}

bool has_shards(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(shard_path(folder, 0), error);
}

namespace {

// The values of a shard's metadata.
class ShardFile {
 public:
  explicit ShardFile(const std::filesystem::path& path)
      : name_(path.string()), file_(io::TensorFile::open(path)) {}
  const io::TensorFile& file() const { return file_; }
  const std::string& name() const { return name_; }
  std::string text(const char* key) const {
    const io::MetadataValue* const value = file_.find_metadata(key);
    if (value == nullptr) throw CorruptData(fmt::format("{}: no {} in it", name_, key));
    return std::string(value->as_string());
  }
  std::int64_t number(const char* key) const {
    const std::string digits = text(key);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0) {
      throw CorruptData(fmt::format("{}: {}: expected a number", name_, key));
    }
    return value;
  }

 private:
  std::string name_;
  io::TensorFile file_;
};

void append_shard(const ShardFile& shard, std::int64_t vocabulary, TokenData& data) {
  const auto tokens = read_numbers<std::int32_t>(shard.file(), "tokens", "i32");
  const auto starts = read_numbers<std::int64_t>(shard.file(), "starts", "i64");
  const std::int64_t offset = data.size();
  const bool ordered = !starts.empty() && starts.front() == 0 &&
                       starts.back() == std::ssize(tokens) &&
                       std::is_sorted(starts.begin(), starts.end());
  const bool known = std::all_of(tokens.begin(), tokens.end(), [&](std::int32_t token) {
    return token >= 0 && token < vocabulary;
  });
  if (!ordered || !known) {
    throw CorruptData(fmt::format("{}: starts or tokens out of range", shard.name()));
  }
  data.bytes += shard.number("bytes");
  data.tokens.insert(data.tokens.end(), tokens.begin(), tokens.end());
  for (std::size_t i = 1; i < starts.size(); ++i) data.starts.push_back(offset + starts[i]);
}

}  // namespace

TokenData read_shards(const std::filesystem::path& folder, std::int64_t vocabulary,
                      const std::string& source) {
  if (!has_shards(folder)) {
    throw FileError(fmt::format("{}: no shards tokens-*.safetensors", folder.string()));
  }
  TokenData data;
  std::int64_t shards = 1;
  for (std::int64_t i = 0; i < shards; ++i) {
    const ShardFile shard(shard_path(folder, at(i)));
    if (shard.number("vocabulary") != vocabulary) {
      throw InvalidArgument(fmt::format("{}: tokens of a vocabulary of {}, not of {}", shard.name(),
                                        shard.number("vocabulary"), vocabulary));
    }
    if (shard.text("source") != source) {
      throw InvalidArgument(fmt::format("{}: tokens of another text or vocabulary", shard.name()));
    }
    if (i == 0) shards = shard.number("shards");
    if (shard.number("shards") != shards) {
      throw CorruptData(fmt::format("{}: one of {} shards, the first is one of {}", shard.name(),
                                    shard.number("shards"), shards));
    }
    append_shard(shard, vocabulary, data);
  }
  return data;
}

}  // namespace touchstone::inline v0::train
