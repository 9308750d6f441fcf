#include "io/tokenizer/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/tokenizer/model/bpe.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

std::size_t bytes_of(const std::vector<std::string>& tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

void check_growth(std::size_t bytes, std::size_t limit) {
  if (bytes <= limit) return;
  throw Unsupported(
      fmt::format("tokenizer: the decoder makes {} bytes of tokens, at most {}", bytes, limit));
}

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  if (what.empty()) {  // as the reference's language has it: before every character and at the end
    std::string out(with);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = utf8_length(text[at]);
      out.append(text, at, length);
      out += with;
      at += length;
    }
    text = std::move(out);
    return;
  }
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, from)) {
    out.append(text, from, at - from);
    out += with;
    from = at + what.size();
  }
  if (from == 0) return;
  out.append(text, from);
  text = std::move(out);
}

// English spacing around punctuation and contractions.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, with] : kRules) replace_all(text, what, with);
}

void byte_level(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const auto meant = bytes_of_characters(token);
    bytes += meant ? *meant : token;
  }
  std::string text;
  append_valid(text, bytes);
  tokens.assign(1, std::move(text));
}

// The byte that "<0x41>" stands for; -1: the token is none.
int fallback_byte(std::string_view token) {
  const auto hex = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  // The reference's reader of numbers takes a sign, too: "<0x+A>" is 10.
  const int high = token[3] == '+' ? 0 : hex(token[3]);
  const int low = hex(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void byte_fallback(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (find_invalid_utf8(bytes) == std::string_view::npos) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), std::string(kReplacementCharacter));
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  tokens = std::move(out);
}

void decode_metaspace(std::vector<std::string>& tokens, const Decoder& options) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::string out;
    for (const char* p = tokens[i].data(); p != tokens[i].data() + tokens[i].size();) {
      const char32_t code = next_code(p);
      if (code != options.character) {
        append_code(out, code);
      } else if (i != 0 || options.keep_first) {
        out += ' ';
      }
    }
    tokens[i] = std::move(out);
  }
}

void word_piece(std::vector<std::string>& tokens, const Decoder& options) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::string& token = tokens[i];
    if (i != 0) {
      if (token.starts_with(options.text)) {
        token.erase(0, options.text.size());
      } else {
        token.insert(0, 1, ' ');
      }
    }
    if (options.cleanup) clean_up(token);
  }
}

void decode_strip(std::vector<std::string>& tokens, const Decoder& options) {
  std::string mark;
  append_code(mark, options.character);
  for (std::string& token : tokens) {
    std::string_view text = token;
    for (std::size_t i = 0; i < options.start && text.starts_with(mark); ++i) {
      text.remove_prefix(mark.size());
    }
    for (std::size_t i = 0; i < options.stop && text.ends_with(mark); ++i) {
      text.remove_suffix(mark.size());
    }
    token = std::string(text);
  }
}

void ctc(std::vector<std::string>& tokens, const Decoder& options) {
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (std::string& token : tokens) {
    replace_all(token, options.text, "");
    if (!options.cleanup) continue;
    clean_up(token);
    replace_all(token, options.delimiter, " ");
  }
  std::erase_if(tokens, [](const std::string& token) { return token.empty(); });
}

void decode_replace(std::vector<std::string>& tokens, const Decoder& options, std::size_t limit) {
  std::vector<Span> matches;
  for (std::string& token : tokens) {
    matches.clear();
    options.pattern.find_all(token, matches);
    if (matches.empty()) continue;
    check_growth(token.size() + matches.size() * options.text.size(), limit);
    std::string out;
    std::size_t from = 0;
    for (const Span& match : matches) {
      out.append(token, from, match.begin - from);
      out += options.text;
      from = match.end;
    }
    out.append(token, from);
    token = std::move(out);
  }
}

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

}  // namespace

void Decoder::apply(std::vector<std::string>& tokens, std::size_t limit) const {
  switch (kind) {
    case Kind::sequence:
      for (const Decoder& part : list) {
        part.apply(tokens, limit);
        check_growth(bytes_of(tokens), limit);
      }
      return;
    case Kind::byte_level:
      return byte_level(tokens);
    case Kind::metaspace:
      return decode_metaspace(tokens, *this);
    case Kind::word_piece:
      return word_piece(tokens, *this);
    case Kind::replace:
      return decode_replace(tokens, *this, limit);
    case Kind::byte_fallback:
      return byte_fallback(tokens);
    case Kind::fuse:
      return fuse(tokens);
    case Kind::strip:
      return decode_strip(tokens, *this);
    case Kind::suffix:
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        replace_all(tokens[i], text, i + 1 == tokens.size() ? "" : " ");
      }
      return;
    case Kind::ctc:
      return ctc(tokens, *this);
  }
}

std::string Decoder::token_bytes(const std::string& token) const {
  switch (kind) {
    case Kind::sequence: {
      std::string bytes = token;
      bool fused = false;
      for (const Decoder& step : list) {
        fused = fused || step.kind == Kind::fuse;
        if (step.kind == Kind::strip && !fused) {
          throw Unsupported("tokenizer: token_bytes: tokens are stripped before they are joined");
        }
        std::string next = step.token_bytes(bytes);
        // A byte stays what it is: the steps behind it see characters.
        if (step.kind == Kind::byte_fallback && next != bytes) return next;
        bytes = std::move(next);
      }
      return bytes;
    }
    case Kind::byte_level: {
      const auto bytes = bytes_of_characters(token);
      return bytes ? *bytes : token;
    }
    case Kind::metaspace: {
      std::string mark;
      append_code(mark, character);
      std::string bytes = token;
      replace_all(bytes, mark, " ");
      return bytes;
    }
    case Kind::replace: {
      std::vector<std::string> one = {token};
      apply(one, std::string::npos);
      return one[0];
    }
    case Kind::byte_fallback: {
      const int byte = fallback_byte(token);
      return byte < 0 ? token : std::string(1, static_cast<char>(byte));
    }
    case Kind::fuse:
    case Kind::strip:  // of the whole text
      return token;
    case Kind::word_piece:
    case Kind::suffix:
    case Kind::ctc:
      break;
  }
  throw Unsupported("tokenizer: token_bytes: the text of a token depends on its neighbors");
}

}  // namespace touchstone::inline v0::io
