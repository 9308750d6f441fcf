#include "io/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "io/tokenizer/model/bpe.h"
#include "io/tokenizer/text/unicode.h"
#include "io/utf8.h"

namespace touchstone::inline v0::io {
namespace {

struct Part {
  Span span;
  bool match;
};

// Replaces every piece that is no token by what `cut` appends to its list.
template <class Cut>
void cut_pieces(Pieces& pieces, Cut cut) {
  std::vector<Piece> list;
  list.reserve(pieces.list.size());
  std::vector<Span> spans;
  for (const Piece& piece : pieces.list) {
    if (piece.id != kNoToken) {
      list.push_back(piece);
      continue;
    }
    spans.clear();
    cut(pieces.of(piece), spans);
    for (const Span& span : spans) {
      if (span.begin == span.end) continue;
      list.push_back({piece.begin + span.begin, piece.begin + span.end, kNoToken,
                      piece.front && span.begin == 0});
    }
  }
  pieces.list = std::move(list);
}

// Rewrites the text: `write(piece, out)` appends the replacement of a piece.
template <class Write>
void rewrite_pieces(Pieces& pieces, Write write) {
  std::string out;
  out.reserve(pieces.text.size() + pieces.list.size());
  for (Piece& piece : pieces.list) {
    const std::string_view old = pieces.of(piece);
    const std::size_t begin = out.size();
    if (piece.id == kNoToken) {
      write(piece, old, out);
    } else {
      out += old;
    }
    piece.begin = begin;
    piece.end = out.size();
  }
  pieces.owned = std::move(out);
  pieces.text = pieces.owned;
}

// Matches and what lies between them, by what becomes of matches.
void append_split(const std::vector<Part>& parts, Split split, std::vector<Span>& spans) {
  const std::size_t begin = spans.size();
  bool previous = false;
  const auto joins = [&](const Part& part) {
    return split == Split::contiguous ? part.match == previous : part.match && !previous;
  };
  if (split == Split::removed || split == Split::isolated) {
    for (const Part& part : parts) {
      if (!part.match || split == Split::isolated) spans.push_back(part.span);
    }
  } else if (split == Split::merged_with_next) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (joins(*part) && spans.size() > begin) {
        spans.back().begin = part->span.begin;
      } else {
        spans.push_back(part->span);
      }
      previous = part->match;
    }
    std::reverse(spans.begin() + static_cast<std::ptrdiff_t>(begin), spans.end());
  } else {
    for (const Part& part : parts) {
      if (joins(part) && spans.size() > begin) {
        spans.back().end = part.span.end;
      } else {
        spans.push_back(part.span);
      }
      previous = part.match;
    }
  }
}

// Every character for which `is` holds is a match of its own.
template <class Is>
void split_at(Pieces& pieces, Split split, Is is) {
  std::vector<Part> parts;
  cut_pieces(pieces, [&](std::string_view text, std::vector<Span>& spans) {
    parts.clear();
    std::size_t from = 0;
    for (const char* p = text.data(); p != text.data() + text.size();) {
      const auto at = static_cast<std::size_t>(p - text.data());
      if (!is(next_code(p))) continue;
      const auto end = static_cast<std::size_t>(p - text.data());
      if (from < at) parts.push_back({{from, at}, false});
      parts.push_back({{at, end}, true});
      from = end;
    }
    if (from < text.size()) parts.push_back({{from, text.size()}, false});
    append_split(parts, split, spans);
  });
}

void split_pattern(Pieces& pieces, const PreTokenizer& step) {
  std::vector<Part> parts;
  std::vector<Span> matches;
  cut_pieces(pieces, [&](std::string_view text, std::vector<Span>& spans) {
    parts.clear();
    matches.clear();
    step.expression.find_all(text, matches);
    std::size_t from = 0;
    for (const Span& match : matches) {
      if (from != match.begin) parts.push_back({{from, match.begin}, step.invert});
      parts.push_back({match, !step.invert});
      from = match.end;
    }
    if (from != text.size()) parts.push_back({{from, text.size()}, step.invert});
    append_split(parts, step.split, spans);
  });
}

// Runs of word characters and runs of anything else but white space.
void split_word_runs(Pieces& pieces) {
  cut_pieces(pieces, [](std::string_view text, std::vector<Span>& spans) {
    const auto kind_of = [](char32_t code) {
      return has_fact(code, kFactWord) ? 1 : has_fact(code, kFactSpace) ? 0 : 2;
    };
    int open = 0;
    for (const char* p = text.data(); p != text.data() + text.size();) {
      const auto at = static_cast<std::size_t>(p - text.data());
      const int kind = kind_of(next_code(p));
      const auto end = static_cast<std::size_t>(p - text.data());
      if (kind != 0 && kind == open) {
        spans.back().end = end;
      } else if (kind != 0) {
        spans.push_back({at, end});
      }
      open = kind;
    }
  });
}

void split_length(Pieces& pieces, std::size_t length) {
  cut_pieces(pieces, [&](std::string_view text, std::vector<Span>& spans) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = at + utf8_length(text[at]);
      if (count % length == 0) {
        spans.push_back({at, end});
      } else {
        spans.back().end = end;
      }
      ++count;
      at = end;
    }
  });
}

void mark_spaces(Pieces& pieces, const PreTokenizer& step) {
  std::string mark;
  append_code(mark, step.character);
  rewrite_pieces(pieces, [&](const Piece& piece, std::string_view text, std::string& out) {
    const bool marked = text.starts_with(' ') || text.starts_with(mark);
    const bool wanted = step.prepend == PreTokenizer::Prepend::always ||
                        (step.prepend == PreTokenizer::Prepend::first && piece.front);
    if (!text.empty() && !marked && wanted) out += mark;
    for (const char c : text) {
      if (c == ' ') {
        out += mark;
      } else {
        out += c;
      }
    }
  });
  if (!step.cut) return;
  split_at(pieces, Split::merged_with_next, [&](char32_t c) { return c == step.character; });
}

template <WordRule kRule>
void append_words_by(std::string_view text, Span part, std::vector<Span>& words) {
  const char* const base = text.data();
  const char* const end = base + part.end;
  for (const char* p = base + part.begin; p != end;) {
    const char* const next = word_end<kRule>(p, end);
    words.push_back({static_cast<std::size_t>(p - base), static_cast<std::size_t>(next - base)});
    p = next;
  }
}

}  // namespace

void append_words(WordRule rule, std::string_view text, Span part, std::vector<Span>& words) {
  switch (rule) {
    case WordRule::gpt2:
      return append_words_by<WordRule::gpt2>(text, part, words);
    case WordRule::llama3:
      return append_words_by<WordRule::llama3>(text, part, words);
    case WordRule::qwen2:
      return append_words_by<WordRule::qwen2>(text, part, words);
    case WordRule::qwen35:
      return append_words_by<WordRule::qwen35>(text, part, words);
  }
}

void PreTokenizer::apply(Pieces& pieces) const {
  switch (kind) {
    case Kind::prefix_space:
      return rewrite_pieces(pieces, [](const Piece&, std::string_view text, std::string& out) {
        if (!text.empty() && !text.starts_with(' ')) out += ' ';
        out += text;
      });
    case Kind::words:
      return cut_pieces(pieces, [&](std::string_view text, std::vector<Span>& spans) {
        append_words(rule, text, {0, text.size()}, spans);
      });
    case Kind::byte_characters:
      return rewrite_pieces(pieces, [](const Piece&, std::string_view text, std::string& out) {
        out += characters_of_bytes(text);
      });
    case Kind::pattern:
      return split_pattern(pieces, *this);
    case Kind::numeric:
      return split_at(pieces, split, [](char32_t c) { return has_fact(c, kFactNumeric); });
    case Kind::punctuation:
      return split_at(pieces, split, [](char32_t c) { return has_fact(c, kFactPunctuation); });
    case Kind::space:
      return split_at(pieces, Split::removed, [](char32_t c) { return has_fact(c, kFactSpace); });
    case Kind::word_runs:
      return split_word_runs(pieces);
    case Kind::delimiter:
      return split_at(pieces, Split::removed, [&](char32_t c) { return c == character; });
    case Kind::fixed_length:
      return split_length(pieces, length);
    case Kind::metaspace:
      return mark_spaces(pieces, *this);
  }
}

}  // namespace touchstone::inline v0::io
