// The tables behind io/tokenizer/text/unicode.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace touchstone::inline v0::io {

struct CodeRange {
  std::uint32_t first;
  std::uint32_t last;
};

// Every `step`-th code point of [first, last] has its lower case `delta` away.
struct LowerRun {
  std::uint32_t first;
  std::uint32_t last;
  std::int32_t step;
  std::int32_t delta;
};

// Where the general category changes: code point << 5 | Category, ascending from 0.
extern const std::uint32_t kCategoryRuns[];
extern const std::size_t kCategoryRunsSize;

// Code points on which a set of a reference differs from one made of categories:
extern const CodeRange kWordDiffers[];         // \w: L, M, Nd, Nl, Pc
extern const CodeRange kNumericDiffers[];      // N
extern const CodeRange kPunctuationDiffers[];  // P
extern const CodeRange kNonspacingDiffers[];   // Mn
extern const CodeRange kCombiningDiffers[];    // M
extern const CodeRange kControlDiffers[];      // Cc, Cf, Co
extern const std::size_t kWordDiffersSize;
extern const std::size_t kNumericDiffersSize;
extern const std::size_t kPunctuationDiffersSize;
extern const std::size_t kNonspacingDiffersSize;
extern const std::size_t kCombiningDiffersSize;
extern const std::size_t kControlDiffersSize;

// Assigned after Unicode 14, which is what PCRE2 10.42 knows.
extern const CodeRange kNewInUnicode16[];
extern const std::size_t kNewInUnicode16Size;

// Left alone by the reference's normalization, which knows Unicode 9.
extern const CodeRange kNotNormalized[];
extern const std::size_t kNotNormalizedSize;

extern const LowerRun kLowerRuns[];
extern const std::size_t kLowerRunsSize;

}  // namespace touchstone::inline v0::io
