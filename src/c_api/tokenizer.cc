// Tokenizers.
#include "touchstone/io/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "c_api/border.h"
#include "c_api/tokenizer_handle.h"

struct ts_token_stream {
  touchstone::io::TokenStream stream;
  std::string text;
};

namespace touchstone::c_api {
namespace {

void check_flags(std::int32_t flags, std::int32_t known, const char* name) {
  if ((flags & ~known) != 0) {
    throw InvalidArgument(std::string(name) + ": flags: expected 0 to " + std::to_string(known) +
                          ", got " + std::to_string(flags));
  }
}

io::DecodeOptions decode_options(std::int32_t flags, const char* name) {
  check_flags(flags, TS_DECODE_SKIP_SPECIAL, name);
  return {.skip_special = (flags & TS_DECODE_SKIP_SPECIAL) != 0};
}

// `capacity` elements at `out`, and the number that there are.
template <class From, class To>
void copy_out(const From& from, To* out, std::int64_t capacity, std::int64_t* count,
              const char* name) {
  checked(count, name);
  list(out, capacity, name);
  *count = std::ssize(from);
  if (*count <= capacity) std::copy(from.begin(), from.end(), out);
}

std::string_view text_view(const char* text, std::size_t bytes, const char* name) {
  if (bytes > 0) checked(text, name);
  return {text, bytes};
}

// `next` takes a token: not before the results have their places.
template <class Next>
ts_status shown(ts_token_stream* stream, const char** text, std::int64_t* bytes,
                const Next& next) noexcept {
  return guarded([&] {
    ts_token_stream& of = checked(stream, "token_stream");
    checked(text, "token_stream: text");
    checked(bytes, "token_stream: bytes");
    of.text = next(of.stream);
    *text = of.text.data();
    *bytes = std::ssize(of.text);
  });
}

}  // namespace
}  // namespace touchstone::c_api

namespace io = touchstone::io;
using touchstone::c_api::check_flags;
using touchstone::c_api::checked;
using touchstone::c_api::copy_out;
using touchstone::c_api::current;
using touchstone::c_api::decode_options;
using touchstone::c_api::guarded;
using touchstone::c_api::list;
using touchstone::c_api::shown;
using touchstone::c_api::text_view;

ts_status ts_tokenizer_open(const char* path, ts_tokenizer** tokenizer) {
  return guarded([&] {
    checked(path, "tokenizer: path");
    ts_tokenizer*& place = checked(tokenizer, "tokenizer: tokenizer");
    place = new ts_tokenizer{io::Tokenizer::from_file(std::filesystem::path(path))};
  });
}

ts_status ts_tokenizer_from_json(const char* text, size_t bytes, ts_tokenizer** tokenizer) {
  return guarded([&] {
    const std::string_view view = text_view(text, bytes, "tokenizer: text");
    ts_tokenizer*& place = checked(tokenizer, "tokenizer: tokenizer");
    place = new ts_tokenizer{io::Tokenizer::from_json(view)};
  });
}

void ts_tokenizer_destroy(ts_tokenizer* tokenizer) { delete tokenizer; }

ts_status ts_tokenizer_size(const ts_tokenizer* tokenizer, int64_t* tokens, int64_t* id_end) {
  return guarded([&] {
    const io::Tokenizer& from = checked(tokenizer, "tokenizer").tokenizer;
    checked(tokens, "tokenizer: tokens");
    checked(id_end, "tokenizer: id_end");
    *tokens = static_cast<int64_t>(from.size());
    *id_end = static_cast<int64_t>(from.id_end());
  });
}

ts_status ts_tokenizer_describe(const ts_tokenizer* tokenizer, ts_text text, void* user) {
  return guarded([&] {
    const io::Tokenizer& from = checked(tokenizer, "tokenizer").tokenizer;
    if (text == nullptr) throw touchstone::InvalidArgument("tokenizer_describe: text: is NULL");
    const std::string line = from.describe();
    text(user, line.c_str(), std::ssize(line));
  });
}

ts_status ts_tokenizer_token(const ts_tokenizer* tokenizer, int32_t id, char* text,
                             int64_t capacity, int64_t* bytes, int32_t* special) {
  return guarded([&] {
    const io::Tokenizer& from = checked(tokenizer, "tokenizer").tokenizer;
    const std::optional<std::string> token = from.id_to_token(id);
    if (!token) {
      throw touchstone::InvalidArgument("tokenizer_token: id: no token has " + std::to_string(id));
    }
    copy_out(*token, text, capacity, bytes, "tokenizer_token: text");
    if (special != nullptr) *special = from.is_special(id) ? 1 : 0;
  });
}

ts_status ts_tokenizer_find(const ts_tokenizer* tokenizer, const char* token, size_t bytes,
                            int32_t* id) {
  return guarded([&] {
    const io::Tokenizer& from = checked(tokenizer, "tokenizer").tokenizer;
    int32_t& place = checked(id, "tokenizer_find: id");
    place = from.token_to_id(text_view(token, bytes, "tokenizer_find: token")).value_or(-1);
  });
}

ts_status ts_tokenizer_encode(const ts_tokenizer* tokenizer, const char* text, size_t bytes,
                              int32_t flags, int32_t* ids, int64_t capacity, int64_t* count) {
  return guarded([&] {
    const io::Tokenizer& with = checked(tokenizer, "tokenizer").tokenizer;
    check_flags(flags, TS_ENCODE_ADD_SPECIAL | TS_ENCODE_PARSE_SPECIAL, "tokenizer_encode");
    const std::vector<io::Token> found =
        with.encode(text_view(text, bytes, "tokenizer_encode: text"),
                    {.add_special = (flags & TS_ENCODE_ADD_SPECIAL) != 0,
                     .parse_special = (flags & TS_ENCODE_PARSE_SPECIAL) != 0});
    copy_out(found, ids, capacity, count, "tokenizer_encode: ids");
  });
}

ts_status ts_tokenizer_decode(const ts_tokenizer* tokenizer, const int32_t* ids, int64_t count,
                              int32_t flags, char* text, int64_t capacity, int64_t* bytes) {
  return guarded([&] {
    const io::Tokenizer& with = checked(tokenizer, "tokenizer").tokenizer;
    const io::DecodeOptions options = decode_options(flags, "tokenizer_decode");
    const std::string found = with.decode(list(ids, count, "tokenizer_decode: ids"), options);
    copy_out(found, text, capacity, bytes, "tokenizer_decode: text");
  });
}

ts_status ts_token_stream_create(const ts_tokenizer* tokenizer, int32_t flags,
                                 ts_token_stream** stream) {
  return guarded([&] {
    const io::Tokenizer& with = checked(tokenizer, "tokenizer").tokenizer;
    const io::DecodeOptions options = decode_options(flags, "token_stream");
    ts_token_stream*& place = checked(stream, "token_stream: stream");
    place = new ts_token_stream{io::TokenStream(with, options), ""};
  });
}

void ts_token_stream_destroy(ts_token_stream* stream) { delete stream; }

ts_status ts_token_stream_next(ts_token_stream* stream, int32_t id, const char** text,
                               int64_t* bytes) {
  return shown(stream, text, bytes, [&](io::TokenStream& of) { return of.next(id); });
}

ts_status ts_token_stream_finish(ts_token_stream* stream, const char** text, int64_t* bytes) {
  return shown(stream, text, bytes, [](io::TokenStream& of) { return of.finish(); });
}

ts_status ts_tokenizer_train(const ts_tokenizer_train_args* args, const char* path) {
  return guarded([&] {
    const ts_tokenizer_train_args known =
        current(args, "tokenizer_train", sizeof(ts_tokenizer_train_args),
                ts_tokenizer_train_args(TS_TOKENIZER_TRAIN_ARGS));
    checked(path, "tokenizer_train: path");
    const auto texts = list(known.texts, known.text_count, "tokenizer_train: texts");
    const auto sizes = list(known.text_bytes, known.text_count, "tokenizer_train: text_bytes");
    std::vector<std::string_view> views;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      views.push_back(text_view(texts[i], sizes[i], "tokenizer_train: texts"));
    }
    io::TrainOptions options{.vocabulary = known.vocabulary, .min_frequency = known.min_frequency};
    for (const char* token : list(known.special, known.special_count, "tokenizer_train: special")) {
      options.special.emplace_back(&checked(token, "tokenizer_train: special"));
    }
    io::write_tokenizer(path, io::train_tokenizer(views, options));
  });
}
