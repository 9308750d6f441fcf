// Properties of characters as the reference implementations of tokenizers define them, the same on
// every machine. unicode_data.cc lists the version of Unicode behind each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/text/unicode_data.h"

namespace touchstone::inline v0::io {

// In the order of the numbers in kCategoryRuns.
enum class Category : std::uint8_t {
  Cn,
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Cs,
  Co
};
inline constexpr int kCategories = 30;

// Sets of categories: bit i stands for Category i.
using CategorySet = std::uint32_t;
constexpr CategorySet category_bit(Category c) { return CategorySet{1} << static_cast<int>(c); }
inline constexpr CategorySet kLetters = 0x3e;
inline constexpr CategorySet kMarks = 0x1c0;
inline constexpr CategorySet kNumbers = 0xe00;
inline constexpr CategorySet kPunctuations = 0x7f000;
inline constexpr CategorySet kOthers = 0x3c000001;

// The set called "L", "Lu", "P", ...; none for another name.
std::optional<CategorySet> category_set(std::string_view name);

// Facts about a character in one number: the category in the low five bits, then these.
enum CodeFact : std::uint16_t {
  kFactSpace = 1 << 5,        // White_Space
  kFactWord = 1 << 6,         // \w of Rust's regex crate
  kFactNumeric = 1 << 7,      // char::is_numeric
  kFactPunctuation = 1 << 8,  // ASCII punctuation, or P of Unicode 8
  kFactNonspacing = 1 << 9,   // Mn of Unicode 8
  kFactCombining = 1 << 10,   // M of Unicode 9
  kFactControl = 1 << 11,     // what BERT's clean_text removes
  kFactFrozen = 1 << 12,      // unknown to the reference's normalization
};
const std::uint16_t* code_facts();  // by code point, 0x110000 of them

inline CategorySet category_of(char32_t code) {
  return CategorySet{1} << (code_facts()[code] & 31);
}
inline bool has_fact(char32_t code, CodeFact fact) { return (code_facts()[code] & fact) != 0; }

void append_lower(std::string& out, char32_t code);

// Maximal ranges of code points for which `category_of` is in the set; of all of Unicode, or only of
// what was assigned after Unicode 14.
std::vector<CodeRange> ranges_of(CategorySet set, bool only_new);
std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges);  // without surrogates
const std::vector<CodeRange>& space_ranges();

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
std::string normalized(NormalForm form, std::string_view text);

}  // namespace touchstone::inline v0::io
