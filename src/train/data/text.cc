// Documents and their division into training and validation.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "io/json_document.h"
#include "io/mapped_file.h"
#include "io/tokenizer/text/unicode.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"
#include "touchstone/train/data.h"
#include "train/data/shuffle_draws.h"

namespace touchstone::inline v0::train {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{8} << 30;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Calls body(code) for every character; bytes of what is no UTF-8 one by one.
template <class Body>
void for_each_character(std::string_view text, const Body& body) {
  const bool valid = io::is_valid_utf8(text);
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    if (valid) {
      body(io::next_code(p));
    } else {
      body(static_cast<char32_t>(static_cast<unsigned char>(*p++)));
    }
  }
}

bool is_blank(std::string_view text) {
  if (std::ranges::all_of(text, is_space)) return true;
  bool blank = true;
  for_each_character(text, [&](char32_t code) { blank &= io::has_fact(code, io::kFactSpace); });
  return blank;
}

// Words of the text in lower case, joined by one space.
std::string fold(std::string_view text) {
  std::string result;
  bool gap = false;
  for_each_character(text, [&](char32_t code) {
    if (io::has_fact(code, io::kFactSpace)) {
      gap = !result.empty();
      return;
    }
    if (gap) result += ' ';
    gap = false;
    io::append_lower(result, code);
  });
  return result;
}

// Calls body(begin, end) for every paragraph, the blank lines after it included in [begin, end).
template <class Body>
void for_each_paragraph(std::string_view text, const Body& body) {
  std::size_t begin = 0;
  std::size_t line = 0;
  bool blank_before = false;
  while (line < text.size()) {
    const std::size_t newline = std::min(text.find('\n', line), text.size());
    const bool blank = is_blank(text.substr(line, newline - line));
    if (!blank && blank_before && line > begin) {
      body(begin, line);
      begin = line;
    }
    blank_before = blank;
    line = newline + 1;
  }
  if (begin < text.size()) body(begin, text.size());
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

using Folded = std::unordered_set<std::string>;

Folded folded_paragraphs(std::span<const std::string> documents, std::int64_t& count) {
  Folded set;
  for (const std::string& document : documents) {
    for_each_paragraph(document, [&](std::size_t begin, std::size_t end) {
      std::string key = fold(std::string_view(document).substr(begin, end - begin));
      if (key.empty()) return;
      ++count;
      set.insert(std::move(key));
    });
  }
  return set;
}

// The document without the paragraphs of `unwanted`.
std::string without(const std::string& document, const Folded& unwanted, std::int64_t& dropped) {
  std::string kept;
  for_each_paragraph(document, [&](std::size_t begin, std::size_t end) {
    const std::string_view paragraph = std::string_view(document).substr(begin, end - begin);
    if (unwanted.contains(fold(paragraph))) {
      ++dropped;
    } else {
      kept += paragraph;
    }
  });
  return kept;
}

// Hashes of the runs of 13 words of the documents.
template <class Body>
void for_each_13_gram(std::span<const std::string> documents, const Body& body) {
  constexpr std::size_t kWords = 13;
  for (const std::string& document : documents) {
    const std::string text = fold(document);
    std::vector<std::size_t> starts = {0};
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == ' ') starts.push_back(i + 1);
    }
    starts.push_back(text.size() + 1);
    for (std::size_t i = 0; i + kWords < starts.size(); ++i) {
      body(hash_of(std::string_view(text).substr(starts[i], starts[i + kWords] - 1 - starts[i])));
    }
  }
}

double common_13_grams(const TextSplit& split) {
  std::unordered_set<std::uint64_t> known;
  for_each_13_gram(split.training, [&](std::uint64_t hash) { known.insert(hash); });
  std::int64_t all = 0;
  std::int64_t common = 0;
  for_each_13_gram(split.validation, [&](std::uint64_t hash) {
    ++all;
    common += known.contains(hash) ? 1 : 0;
  });
  return all == 0 ? 0 : static_cast<double>(common) / static_cast<double>(all);
}

void check_text(const std::filesystem::path& path, std::string_view text) {
  if (text.empty()) throw InvalidArgument(fmt::format("{}: no text in it", path.string()));
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    throw InvalidArgument(
        fmt::format("{}: expected text, got a NUL byte at {}: is it binary?", path.string(), nul));
  }
  if (!io::is_valid_utf8(text)) {
    throw InvalidArgument(fmt::format("{}: expected text in UTF-8", path.string()));
  }
}

// The bytes [offset, offset + bytes) of the text beside a list.
std::string part_of(const io::JsonValue& line, const std::string& text) {
  const std::int64_t offset = line.at("offset").as_int();
  const std::int64_t bytes = line.at("bytes").as_int();
  const std::int64_t size = std::ssize(text);
  if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset) {
    line.fail("offset and bytes lie outside of the text");
  }
  return text.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
}

// Cut at the lines that are kEndOfText.
std::vector<std::string> cut_documents(std::string_view text) {
  std::vector<std::string> documents;
  const auto add = [&](std::string_view document) {
    if (!document.empty()) documents.emplace_back(document);
  };
  std::size_t begin = 0;
  std::size_t line = 0;
  while (line < text.size()) {
    const std::size_t newline = std::min(text.find('\n', line), text.size());
    std::string_view content = text.substr(line, newline - line);
    if (content.ends_with('\r')) content.remove_suffix(1);
    if (content == kEndOfText) {
      std::string_view document = text.substr(begin, line - begin);
      for (const char end : {'\n', '\r'}) {
        if (document.ends_with(end)) document.remove_suffix(1);
      }
      add(document);
      begin = std::min(newline + 1, text.size());
    }
    line = newline + 1;
  }
  add(text.substr(begin));
  return documents;
}

std::vector<std::string> read_folder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> lists;
  std::vector<std::filesystem::path> texts;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jsonl") lists.push_back(entry.path());
    if (entry.path().extension() == ".txt") texts.push_back(entry.path());
  }
  std::vector<std::filesystem::path>& files = lists.empty() ? texts : lists;
  std::sort(files.begin(), files.end());
  std::vector<std::string> documents;
  for (const std::filesystem::path& file : files) {
    for (std::string& document : read_documents(file)) documents.push_back(std::move(document));
  }
  if (documents.empty()) {
    throw InvalidArgument(fmt::format("{}: no *.jsonl or *.txt in it", folder.string()));
  }
  return documents;
}

}  // namespace

std::vector<std::string> read_documents(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return read_folder(path);
  std::string text = io::read_text_file(path, kMaxTextBytes);
  check_text(path, text);
  std::vector<std::string> documents;
  if (path.extension() != ".jsonl") {
    documents = cut_documents(text);
    if (documents.empty()) throw InvalidArgument(fmt::format("{}: no text in it", path.string()));
    return documents;
  }
  std::string beside;  // the text that offsets refer to, read when the first line has one
  std::int64_t number = 0;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    ++number;
    if (std::ranges::all_of(line, is_space)) continue;
    const std::string where = fmt::format("{}: line {}", path.string(), number);
    try {
      const io::JsonDocument json(where, line);
      if (json.root().is_object() && json.root().find("offset") && !json.root().find("text")) {
        if (beside.empty()) {
          const std::filesystem::path named = std::filesystem::path(path).replace_extension(".txt");
          beside = io::read_text_file(named, kMaxTextBytes);
          check_text(named, beside);
        }
        documents.push_back(part_of(json.root(), beside));
      } else {
        documents.emplace_back(json.root().at("text").as_string());
      }
    } catch (const CorruptData& error) {
      throw InvalidArgument(error.what());
    }
    if (documents.back().empty()) documents.pop_back();
  }
  if (documents.empty()) throw InvalidArgument(fmt::format("{}: no text in it", path.string()));
  return documents;
}

TextSplit separate_documents(std::vector<std::string> training,
                             std::vector<std::string> validation) {
  TextSplit split;
  split.validation = std::move(validation);
  const Folded held_out = folded_paragraphs(split.validation, split.validation_paragraphs);
  for (const std::string& document : training) {
    std::string kept = without(document, held_out, split.dropped_paragraphs);
    if (!kept.empty()) split.training.push_back(std::move(kept));
  }
  const Folded seen = folded_paragraphs(split.training, split.training_paragraphs);
  if (split.validation_paragraphs == 0) {
    throw InvalidArgument("train: the validation text has no paragraph");
  }
  if (split.training_paragraphs == 0) {
    throw InvalidArgument(
        "train: every paragraph of the training text is in the validation text, too");
  }
  for (const std::string& paragraph : held_out) {
    if (seen.contains(paragraph)) {
      throw Error("train: a paragraph of the validation text is in the training text: '" +
                  paragraph.substr(0, 60) + "'");
    }
  }
  split.common_13_grams = common_13_grams(split);
  return split;
}

TextSplit split_documents(std::vector<std::string> documents, double share, std::int64_t seed) {
  if (!(share > 0 && share < 1)) {
    throw InvalidArgument(
        fmt::format("train: validation share: expected above 0 and below 1, got {}", share));
  }
  std::vector<std::string> validation;
  if (documents.size() == 1) {
    std::string& text = documents[0];
    auto cut = static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - share));
    while (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xc0U) == 0x80U) ++cut;
    validation.push_back(text.substr(cut));
    text.resize(cut);
    return separate_documents(std::move(documents), std::move(validation));
  }
  std::size_t bytes = 0;
  for (const std::string& document : documents) bytes += document.size();
  const auto wanted = static_cast<std::size_t>(static_cast<double>(bytes) * share);
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    order.emplace_back(
        random_uniform(seed, static_cast<std::int64_t>(i), RandomPurpose::shuffle, kShuffleSplit),
        i);
  }
  std::sort(order.begin(), order.end());
  std::vector<char> held(documents.size(), 0);
  std::size_t taken = 0;
  for (const auto& [number, index] : order) {
    if (taken >= wanted && taken > 0) break;
    held[index] = 1;
    taken += documents[index].size();
  }
  std::vector<std::string> training;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    (held[i] != 0 ? validation : training).push_back(std::move(documents[i]));
  }
  return separate_documents(std::move(training), std::move(validation));
}

}  // namespace touchstone::inline v0::train
