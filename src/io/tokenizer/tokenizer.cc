#include "touchstone/io/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "io/mapped_file.h"
#include "io/tokenizer/parts.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::size_t kMaxFile = std::size_t{256} << 20;
constexpr std::size_t kMaxText = std::size_t{1} << 31;
// Tokens that a stream waits for the rest of a character: it has four bytes at most.
constexpr std::size_t kMaxWait = 8;

const TokenTable& vocabulary_of(const Model& model) {
  return std::visit(
      [](const auto& m) -> const TokenTable& {
        if constexpr (requires { m.vocabulary(); }) {
          return m.vocabulary();
        } else {
          return m.vocabulary;
        }
      },
      model);
}

// A mapping: opening it does not wait for a pipe, and pipes and devices are refused.
bool is_gguf_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  constexpr std::string_view kMagic = "GGUF";
  return file.bytes().size() >= kMagic.size() &&
         std::memcmp(file.bytes().data(), kMagic.data(), kMagic.size()) == 0;
}

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerParts given);

  void encode(std::string_view text, const EncodeOptions& options, BpeScratch& scratch,
              std::vector<TokenId>& out) const;
  // Encoders in use take one each; they come back for the next.
  std::unique_ptr<BpeScratch> take_scratch() const;
  void give_back(std::unique_ptr<BpeScratch> scratch) const;

  std::string name;
  std::optional<Normalizer> normalizer;
  std::vector<PreTokenizer> steps;
  std::optional<Model> model;
  std::vector<TemplatePart> post;
  std::optional<Decoder> decoder;
  const Bpe* bpe = nullptr;
  bool bytes = false;            // the words that reach the model are bytes
  std::optional<WordRule> rule;  // the last cut, done while encoding; with `bytes` only
  TokenFinder raw_tokens;
  TokenFinder normalized_tokens;
  struct Added {
    std::string text;   // as it is decoded
    std::string token;  // as it is called
    bool special;
    // Left out by skip_special. The reference looks the decoded text up among the special tokens, so
    // that a special token which the normalizer rewrites stays.
    bool skipped;
  };
  std::unordered_map<TokenId, Added> added;
  std::unordered_map<std::string, TokenId> added_ids;
  std::size_t end = 0;

 private:
  void add_tokens(const std::vector<AddedToken>& tokens);
  void shorten_steps();
  void encode_text(std::string_view text, const EncodeOptions& options, BpeScratch& scratch,
                   std::vector<TokenId>& out) const;
  void encode_segment(std::string_view text, bool front, const EncodeOptions& options,
                      BpeScratch& scratch, std::vector<TokenId>& out) const;
  void encode_words(std::string_view text, bool front, BpeScratch& scratch,
                    std::vector<TokenId>& out) const;
  template <WordRule kRule>
  void encode_by(const Pieces& pieces, BpeScratch& scratch, std::vector<TokenId>& out) const;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<BpeScratch>> free_;
};

Tokenizer::State::State(TokenizerParts given)
    : name(std::move(given.name)),
      normalizer(std::move(given.normalizer)),
      steps(std::move(given.pre_tokenizers)),
      model(std::move(given.model)),
      post(std::move(given.post)),
      decoder(std::move(given.decoder)) {
  bpe = std::get_if<Bpe>(&*model);
  shorten_steps();
  add_tokens(given.added);
}

// Bytes instead of byte characters where the model takes them, and the last cut together with the
// encoding of what it gives.
void Tokenizer::State::shorten_steps() {
  const auto last_is = [&](PreTokenizer::Kind kind) {
    return !steps.empty() && steps.back().kind == kind;
  };
  if (bpe == nullptr || !bpe->takes_bytes()) return;
  if (!last_is(PreTokenizer::Kind::byte_characters)) return;
  steps.pop_back();
  bytes = true;
  if (!last_is(PreTokenizer::Kind::words)) return;
  rule = steps.back().rule;
  steps.pop_back();
}

// Ids as the reference deals them out: of a token of the model its own, of any other the next one
// behind the vocabulary. A file that declares others is not followed by it, and refused here.
void Tokenizer::State::add_tokens(const std::vector<AddedToken>& tokens) {
  const TokenTable& table = vocabulary_of(*model);
  auto next = static_cast<TokenId>(table.distinct());
  end = table.id_end();
  std::unordered_set<std::string> patterns;
  std::vector<AddedToken> list;
  std::unordered_map<TokenId, std::size_t> at;
  for (const AddedToken& token : tokens) {
    if (token.text.empty()) continue;
    const auto known = added_ids.find(token.text);
    TokenId id = known != added_ids.end() ? known->second : table.find(token.text);
    if (id == kNoToken) id = next++;
    if (id != token.id) {
      throw CorruptData(fmt::format(
          "tokenizer: {}: added_tokens: {} has the id {}, and the vocabulary gives it {}", name,
          json_quote(token.text.substr(0, 60)), token.id, id));
    }
    added_ids[token.text] = id;
    const auto [place, is_new] = at.try_emplace(id, list.size());
    if (is_new) {
      list.push_back(token);
    } else {
      list[place->second] = token;
    }
    end = std::max(end, std::size_t{id} + 1);
  }
  std::unordered_set<std::string> special;
  for (const AddedToken& token : list) {
    Normalized text{.text = token.text, .limit = grown_limit(token.text.size())};
    if (token.normalized && normalizer) normalizer->apply(text);
    TokenFinder& finder = token.normalized ? normalized_tokens : raw_tokens;
    if (!patterns.insert((token.normalized ? 'n' : 'r') + text.text).second) {
      throw CorruptData(fmt::format("tokenizer: {}: added_tokens: two tokens are written {}", name,
                                    json_quote(text.text.substr(0, 60))));
    }
    finder.add(text.text, token);
    added[token.id] = {text.text, token.text, token.special, false};
    if (token.special) special.insert(token.text);
  }
  for (auto& [id, token] : added) token.skipped = special.contains(token.text);
}

std::unique_ptr<BpeScratch> Tokenizer::State::take_scratch() const {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<BpeScratch>();
  auto scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

void Tokenizer::State::give_back(std::unique_ptr<BpeScratch> scratch) const {
  // What a huge word needed is not kept.
  constexpr std::size_t kMaxKept = std::size_t{1} << 20;
  if (scratch->symbols.capacity() > kMaxKept) scratch->symbols = {};
  if (scratch->heap.capacity() > kMaxKept) scratch->heap = {};
  if (scratch->ids.capacity() > kMaxKept) scratch->ids = {};
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

void Tokenizer::State::encode(std::string_view text, const EncodeOptions& options,
                              BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (post.empty()) {
    encode_text(text, options, scratch, out);
    return;
  }
  for (const TemplatePart& part : post) {
    if (part.text) {
      encode_text(text, options, scratch, out);
    } else if (options.add_special) {
      out.insert(out.end(), part.ids.begin(), part.ids.end());
    }
  }
}

void Tokenizer::State::encode_text(std::string_view text, const EncodeOptions& options,
                                   BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (raw_tokens.empty()) {
    encode_segment(text, true, options, scratch, out);
    return;
  }
  std::vector<TokenFinder::Found> found;
  raw_tokens.cut(text, options.parse_special, found);
  for (const TokenFinder::Found& part : found) {
    if (part.id != kNoToken) {
      out.push_back(part.id);
    } else {
      encode_segment(text.substr(part.span.begin, part.span.end - part.span.begin),
                     part.span.begin == 0, options, scratch, out);
    }
  }
}

void Tokenizer::State::encode_segment(std::string_view text, bool front,
                                      const EncodeOptions& options, BpeScratch& scratch,
                                      std::vector<TokenId>& out) const {
  Normalized changed;
  if (normalizer) {
    changed.text = text;
    changed.limit = grown_limit(text.size());
    normalizer->apply(changed);
    text = changed.text;
    front = front && !changed.front_removed;
  }
  if (normalized_tokens.empty()) {
    encode_words(text, front, scratch, out);
    return;
  }
  std::vector<TokenFinder::Found> found;
  normalized_tokens.cut(text, options.parse_special, found);
  for (const TokenFinder::Found& part : found) {
    if (part.id != kNoToken) {
      out.push_back(part.id);
    } else {
      encode_words(text.substr(part.span.begin, part.span.end - part.span.begin),
                   front && part.span.begin == 0, scratch, out);
    }
  }
}

template <WordRule kRule>
void Tokenizer::State::encode_by(const Pieces& pieces, BpeScratch& scratch,
                                 std::vector<TokenId>& out) const {
  const char* const memory_end = pieces.text.data() + pieces.text.size();
  for (const Piece& piece : pieces.list) {
    const char* const piece_end = pieces.text.data() + piece.end;
    for (const char* p = pieces.text.data() + piece.begin; p != piece_end;) {
      const char* const next = word_end<kRule>(p, piece_end);
      bpe->encode_bytes(p, static_cast<std::size_t>(next - p), memory_end, scratch, out);
      p = next;
    }
  }
}

void Tokenizer::State::encode_words(std::string_view text, bool front, BpeScratch& scratch,
                                    std::vector<TokenId>& out) const {
  if (text.empty()) return;
  Pieces pieces;
  pieces.text = text;
  pieces.list.push_back({0, text.size(), kNoToken, front});
  for (const PreTokenizer& step : steps) step.apply(pieces);
  if (rule) {
    switch (*rule) {
      case WordRule::gpt2:
        return encode_by<WordRule::gpt2>(pieces, scratch, out);
      case WordRule::llama3:
        return encode_by<WordRule::llama3>(pieces, scratch, out);
      case WordRule::qwen2:
        return encode_by<WordRule::qwen2>(pieces, scratch, out);
      case WordRule::qwen35:
        return encode_by<WordRule::qwen35>(pieces, scratch, out);
    }
  }
  const char* const memory_end = pieces.text.data() + pieces.text.size();
  for (const Piece& piece : pieces.list) {
    const std::string_view word = pieces.of(piece);
    if (bytes) {
      bpe->encode_bytes(word.data(), word.size(), memory_end, scratch, out);
    } else if (bpe != nullptr) {
      bpe->encode(word, memory_end, scratch, out);
    } else if (const auto* unigram = std::get_if<Unigram>(&*model)) {
      unigram->encode(word, out);
    } else if (const auto* pieces_of_words = std::get_if<WordPiece>(&*model)) {
      pieces_of_words->encode(word, out);
    } else {
      const auto& level = std::get<WordLevel>(*model);
      const TokenId id = level.vocabulary.find(word);
      out.push_back(id == kNoToken ? level.unknown : id);
    }
  }
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& name) {
  return Tokenizer(std::make_unique<State>(read_tokenizer_json(name, text)));
}

Tokenizer Tokenizer::from_vocabulary(const TokenizerVocabulary& vocabulary) {
  return Tokenizer(std::make_unique<State>(read_vocabulary(vocabulary)));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path, ignored)) {
    for (const char* name : {"tokenizer.json", "tokenizer.gguf"}) {
      if (!std::filesystem::exists(path / name, ignored)) continue;
      file = path / name;
      break;
    }
  }
  if (std::filesystem::is_directory(file, ignored) || is_gguf_file(file)) {
    const TensorFile tensors = TensorFile::open(file);
    if (const MetadataValue* json = tensors.find_metadata("tokenizer.huggingface.json")) {
      return from_json(json->as_string(), file.string());
    }
    return from_vocabulary(read_tokenizer_vocabulary(tensors));
  }
  return from_json(read_text_file(file, kMaxFile), file.string());
}

std::vector<Token> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<Token> ids;
  encode_to(text, ids, options);
  return ids;
}

std::size_t Tokenizer::encode_to(std::string_view text, std::vector<Token>& ids,
                                 const EncodeOptions& options) const {
  if (text.size() > kMaxText) {
    throw InvalidArgument(
        fmt::format("tokenizer: text: expected at most {} bytes, got {}", kMaxText, text.size()));
  }
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    throw InvalidArgument(fmt::format("tokenizer: text: expected UTF-8, got the byte {:#04x} at {}",
                                      static_cast<unsigned char>(text[invalid]), invalid));
  }
  auto scratch = state_->take_scratch();
  std::vector<TokenId>& found = scratch->word;
  found.clear();
  state_->encode(text, options, *scratch, found);
  ids.insert(ids.end(), found.begin(), found.end());
  const std::size_t count = found.size();
  state_->give_back(std::move(scratch));
  return count;
}

std::string Tokenizer::decode(std::span<const Token> ids, const DecodeOptions& options) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  std::size_t bytes = 0;
  for (const Token id : ids) {
    if (id < 0) continue;
    const auto added = state_->added.find(static_cast<TokenId>(id));
    const bool is_added = added != state_->added.end();
    if (is_added && options.skip_special && added->second.skipped) continue;
    const auto text = is_added ? std::optional<std::string_view>(added->second.text)
                               : vocabulary_of(*state_->model).text(static_cast<TokenId>(id));
    if (!text) continue;
    bytes += text->size();
    tokens.emplace_back(*text);
  }
  if (state_->decoder) state_->decoder->apply(tokens, grown_limit(bytes));
  std::string out;
  for (const std::string& token : tokens) {
    // Without a decoder, tokens are words.
    if (!state_->decoder && !out.empty()) out += ' ';
    out += token;
  }
  return out;
}

std::size_t Tokenizer::size() const {
  std::size_t count = vocabulary_of(*state_->model).size();
  for (const auto& [id, token] : state_->added) {
    if (!vocabulary_of(*state_->model).text(id)) ++count;
  }
  return count;
}

std::size_t Tokenizer::id_end() const { return state_->end; }

std::optional<Token> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = state_->added_ids.find(std::string(token));
  if (found != state_->added_ids.end()) return static_cast<Token>(found->second);
  const TokenId id = vocabulary_of(*state_->model).find(token);
  return id == kNoToken ? std::nullopt : std::optional(static_cast<Token>(id));
}

std::optional<std::string> Tokenizer::id_to_token(Token id) const {
  if (id < 0) return std::nullopt;
  const auto found = state_->added.find(static_cast<TokenId>(id));
  if (found != state_->added.end()) return found->second.token;
  const auto text = vocabulary_of(*state_->model).text(static_cast<TokenId>(id));
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

bool Tokenizer::is_special(Token id) const {
  const auto found = state_->added.find(static_cast<TokenId>(id));
  return found != state_->added.end() && found->second.special;
}

std::vector<std::string> Tokenizer::token_bytes(std::size_t size) const {
  std::vector<std::string> out(std::max(size, id_end()));
  const TokenTable& table = vocabulary_of(*state_->model);
  for (TokenId id = 0; id < state_->end; ++id) {
    const auto added = state_->added.find(id);
    if (added != state_->added.end()) {
      if (!added->second.special) out[id] = added->second.text;
      continue;
    }
    const auto text = table.text(id);
    if (!text) continue;
    if (!state_->decoder) throw Unsupported("tokenizer: token_bytes: there is no decoder");
    out[id] = state_->decoder->token_bytes(std::string(*text));
  }
  return out;
}

const char* Tokenizer::model_name() const {
  constexpr const char* kNames[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
  return kNames[state_->model->index()];
}

std::size_t Tokenizer::merge_count() const {
  return state_->bpe == nullptr ? 0 : state_->bpe->merge_count();
}

std::size_t Tokenizer::added_count() const { return state_->added.size(); }

std::string Tokenizer::describe() const {
  std::string text =
      fmt::format("{}{}, {} tokens", state_->bytes ? "byte-level " : "", model_name(), size());
  if (merge_count() != 0) text += fmt::format(", {} merges", merge_count());
  return text + fmt::format(", {} added", added_count());
}

TokenStream::TokenStream(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(&tokenizer), options_(options) {}

std::string TokenStream::next(Token id) {
  // Text depends on the tokens before it (a first space, a character in parts), so the tokens of the
  // last text are decoded with the new one, and the difference is what is new.
  if (prefix_.empty() && !ids_.empty()) {
    std::string text = tokenizer_->decode(ids_, options_);
    if (!text.ends_with(kReplacementCharacter)) {
      prefix_ = std::move(text);
      known_ = ids_.size();
    }
  }
  ids_.push_back(id);
  const std::string text = tokenizer_->decode(ids_, options_);
  const bool waits = text.ends_with(kReplacementCharacter) && ids_.size() - known_ < kMaxWait;
  if (waits || text.size() <= prefix_.size()) return "";
  const auto [mine, theirs] = std::mismatch(prefix_.begin(), prefix_.end(), text.begin());
  auto same = static_cast<std::size_t>(mine - prefix_.begin());
  while (same > 0 && is_utf8_tail(text[same])) --same;
  std::string out = text.substr(same);
  const std::size_t fresh = ids_.size() - known_;
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(known_));
  prefix_ = tokenizer_->decode(ids_, options_);
  known_ = fresh;
  return out;
}

std::string TokenStream::finish() {
  const std::string text = tokenizer_->decode(ids_, options_);
  std::string out = text.size() > prefix_.size() ? text.substr(prefix_.size()) : "";
  ids_.clear();
  prefix_.clear();
  known_ = 0;
  return out;
}

}  // namespace touchstone::inline v0::io
