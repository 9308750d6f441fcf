#include "io/tokenizer/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::uint32_t kCodes = 0x110000;
constexpr const char* kCategoryNames[kCategories] = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

using Facts = std::vector<std::uint16_t>;

struct FactRule {
  CodeFact fact;
  CategorySet categories;
  std::span<const CodeRange> differs;
};

std::vector<FactRule> fact_rules() {
  const CategorySet word = kLetters | kMarks | category_bit(Category::Nd) |
                           category_bit(Category::Nl) | category_bit(Category::Pc);
  const CategorySet control =
      category_bit(Category::Cc) | category_bit(Category::Cf) | category_bit(Category::Co);
  return {
      {kFactSpace, 0, space_ranges()},
      {kFactWord, word, {kWordDiffers, kWordDiffersSize}},
      {kFactNumeric, kNumbers, {kNumericDiffers, kNumericDiffersSize}},
      {kFactPunctuation, kPunctuations, {kPunctuationDiffers, kPunctuationDiffersSize}},
      {kFactNonspacing, category_bit(Category::Mn), {kNonspacingDiffers, kNonspacingDiffersSize}},
      {kFactCombining, kMarks, {kCombiningDiffers, kCombiningDiffersSize}},
      {kFactControl, control, {kControlDiffers, kControlDiffersSize}},
      {kFactFrozen, 0, {kNotNormalized, kNotNormalizedSize}}};
}

Facts make_facts() {
  const std::vector<FactRule> rules = fact_rules();
  Facts facts(kCodes);
  for (std::size_t i = 0; i < kCategoryRunsSize; ++i) {
    const std::uint32_t category = kCategoryRuns[i] & 31;
    auto value = static_cast<std::uint16_t>(category);
    for (const FactRule& rule : rules) {
      if ((rule.categories >> category & 1) != 0) value |= rule.fact;
    }
    const std::uint32_t end = i + 1 < kCategoryRunsSize ? kCategoryRuns[i + 1] >> 5 : kCodes;
    std::fill(facts.begin() + (kCategoryRuns[i] >> 5), facts.begin() + end, value);
  }
  for (const FactRule& rule : rules) {
    for (const CodeRange& range : rule.differs) {
      for (std::uint32_t code = range.first; code <= range.last; ++code) facts[code] ^= rule.fact;
    }
  }
  for (const char c : std::string_view("$+<=>^`|~")) {
    facts[static_cast<unsigned char>(c)] |= kFactPunctuation;
  }
  return facts;
}

// A part without frozen characters.
void append_normalized(std::string& out, NormalForm form, std::string_view part) {
  if (part.empty()) return;
  int options = UTF8PROC_STABLE;
  if (form == NormalForm::nfc || form == NormalForm::nfkc) options |= UTF8PROC_COMPOSE;
  if (form == NormalForm::nfd || form == NormalForm::nfkd) options |= UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()),
                                  static_cast<utf8proc_ssize_t>(part.size()), &result,
                                  static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (bytes == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (bytes < 0) throw Error(std::string("tokenizer: normalization: ") + utf8proc_errmsg(bytes));
  out.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(bytes));
}

}  // namespace

std::optional<CategorySet> category_set(std::string_view name) {
  CategorySet set = 0;
  for (int i = 0; i < kCategories; ++i) {
    if (name == kCategoryNames[i] || (name.size() == 1 && name[0] == kCategoryNames[i][0])) {
      set |= CategorySet{1} << i;
    }
  }
  return set == 0 ? std::nullopt : std::optional(set);
}

const std::uint16_t* code_facts() {
  static const Facts facts = make_facts();
  return facts.data();
}

void append_lower(std::string& out, char32_t code) {
  if (code == 0x130) {  // the one character whose lower case is two
    out += "i\xcc\x87";
    return;
  }
  const LowerRun* end = kLowerRuns + kLowerRunsSize;
  // Runs overlap where pairs alternate, so the right one is among the last few that begin before.
  const LowerRun* at =
      std::upper_bound(kLowerRuns, end, static_cast<std::uint32_t>(code),
                       [](std::uint32_t c, const LowerRun& run) { return c < run.first; });
  for (int tries = 0; at != kLowerRuns && tries < 4; ++tries) {
    --at;
    if (code <= at->last && (code - at->first) % static_cast<std::uint32_t>(at->step) == 0) {
      code = static_cast<char32_t>(static_cast<std::int64_t>(code) + at->delta);
      break;
    }
  }
  append_code(out, code);
}

std::vector<CodeRange> ranges_of(CategorySet set, bool only_new) {
  std::vector<CodeRange> ranges;
  const auto add = [&](std::uint32_t first, std::uint32_t last) {
    if (first > last) return;
    if (!ranges.empty() && ranges.back().last + 1 == first) {
      ranges.back().last = last;
    } else {
      ranges.push_back({first, last});
    }
  };
  set &= ~category_bit(Category::Cs);  // surrogates are no characters
  const CodeRange* fresh = kNewInUnicode16;
  const CodeRange* const fresh_end = kNewInUnicode16 + kNewInUnicode16Size;
  for (std::size_t i = 0; i < kCategoryRunsSize; ++i) {
    if ((set >> (kCategoryRuns[i] & 31) & 1) == 0) continue;
    const std::uint32_t first = kCategoryRuns[i] >> 5;
    const std::uint32_t last = (i + 1 < kCategoryRunsSize ? kCategoryRuns[i + 1] >> 5 : kCodes) - 1;
    if (!only_new) {
      add(first, last);
      continue;
    }
    while (fresh != fresh_end && fresh->last < first) ++fresh;
    for (const CodeRange* range = fresh; range != fresh_end && range->first <= last; ++range) {
      add(std::max(first, range->first), std::min(last, range->last));
    }
  }
  return ranges;
}

std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> rest;
  const auto add = [&](std::uint32_t first, std::uint32_t last) {
    // Surrogates are no characters, and PCRE2 refuses them in a pattern.
    if (first < 0xd800) rest.push_back({first, std::min(last, std::uint32_t{0xd7ff})});
    if (last > 0xdfff) rest.push_back({std::max(first, std::uint32_t{0xe000}), last});
  };
  std::uint32_t next = 0;
  for (const CodeRange& range : ranges) {
    if (range.first > next) add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next < kCodes) add(next, kCodes - 1);
  return rest;
}

const std::vector<CodeRange>& space_ranges() {
  static const std::vector<CodeRange> ranges = {
      {0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
      {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
  return ranges;
}

std::string normalized(NormalForm form, std::string_view text) {
  // Nothing below U+00A0 changes in any form, nothing below U+0300 by composition.
  const bool composes = form == NormalForm::nfc;
  const auto plain = [&](char c) {
    return static_cast<unsigned char>(c) < (composes ? 0xcc : 0xc2);
  };
  if (std::all_of(text.begin(), text.end(), [&](char c) { return plain(c) || is_utf8_tail(c); })) {
    return std::string(text);
  }
  // A frozen character is a starter that combines with nothing: what stands on its sides does not
  // meet.
  std::string out;
  out.reserve(text.size());
  const char* begin = text.data();
  const char* const end = text.data() + text.size();
  for (const char* p = begin; p != end;) {
    const char* const at = p;
    if (!has_fact(next_code(p), kFactFrozen)) continue;
    append_normalized(out, form, {begin, static_cast<std::size_t>(at - begin)});
    out.append(at, p);
    begin = p;
  }
  append_normalized(out, form, {begin, static_cast<std::size_t>(end - begin)});
  return out;
}

}  // namespace touchstone::inline v0::io
