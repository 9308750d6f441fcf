// Selection on the CPU: the k largest tokens of a row in order, and its sum of exponentials.
//
// A row is read once, in segments (cpu_scan.cc). A segment leaves the sum of its exponentials and
// the maxima of groups of its elements. The k-th largest group maximum is then a lower bound of the
// k-th largest element (each group that reaches it holds one such element), and only groups that
// reach the bound can hold one of the k largest: about k of them, re-read from the cache
// (cpu_rank.cc). The scan has no data-dependent branch, nothing overflows, and results do not
// depend on which thread scans a segment.
//
// Segment borders depend on the vocabulary and the SIMD target alone: never on rows, threads or
// alignment. Both files are compiled once per SIMD target.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/selection/logit_rows.h"

namespace touchstone::selection {

// Vectors per block, blocks per coarse group, blocks per segment. A fine group is 8 elements of a
// block (GroupMaxima defines which), a coarse group the fine ones of 8 blocks in a lane. A segment
// of 256 vectors is 16 KB of f32 with AVX-512, half of the smallest L1, in case it is read again;
// its sum is a tree of chains of 2 to 4 terms, which keeps the error below 12 roundings.
inline constexpr std::size_t kBlockVectors = 8;
inline constexpr std::size_t kCoarseBlocks = 8;
inline constexpr std::size_t kSegmentBlocks = 32;
static_assert(kSegmentBlocks % kCoarseBlocks == 0);

// sum * 2^reference is the sum over a segment of exp(v / T). NaN: the row has NaN or +inf.
struct SegmentSum {
  double reference = 0;
  double sum = 0;
  float largest = 0;
};

// The same for a row.
using RowSum = SegmentSum;

// A token that may be selected: a key that is smaller for larger values, above the token. Ascending
// order is the output order.
using Candidate = std::uint64_t;
inline std::uint32_t token_of(Candidate candidate) {
  return static_cast<std::uint32_t>(candidate & 0xffffffffU);
}

// Scratch of one row. Sizes in ScratchSizes; partition_row() lays it out.
struct RowScratch {
  float* fine = nullptr;           // maxima of fine groups, one vector per block
  float* coarse = nullptr;         // maxima of coarse groups, one vector per kCoarseBlocks blocks
  SegmentSum* segments = nullptr;  // one per segment
  float* maxima = nullptr;         // to select the bound in
  std::uint32_t* coarse_list = nullptr;   // coarse vectors that reach the bound
  std::uint32_t* listed = nullptr;        // first tokens of the groups or blocks that reach it
  std::uint32_t* found_bits = nullptr;    // of values above the bound, later their keys
  std::uint32_t* found_tokens = nullptr;  // of those values
  std::uint16_t* bins = nullptr;          // of those values
  Candidate* candidates = nullptr;        // keys with tokens
  Candidate* sorted = nullptr;            // to sort them
  std::uint32_t* equals = nullptr;        // tokens at the bound, the first k
  float* top = nullptr;                   // the k largest values in order
  float* values = nullptr;                // one segment of processed logits, if there are any
};

struct ScratchSizes {
  std::size_t blocks = 0;
  std::size_t coarse = 0;  // coarse vectors
  std::size_t segments = 0;
  std::size_t segment_tokens = 0;
  std::size_t lanes = 0;
  std::size_t maxima = 0;  // floats
  std::size_t candidates = 0;
  std::size_t slots = 0;  // largest k
};

// For the current SIMD target.
ScratchSizes scratch_sizes(const LogitRows& rows, std::int64_t k);
// Enough for every k up to max_k.
ScratchSizes scratch_sizes_up_to(const LogitRows& rows, std::int64_t max_k);

// The temperatures that scan_segments() takes: f32 holds 1 / T and its products with a margin.
inline constexpr double kMinTemperature = 0x1p-100;
inline constexpr double kMaxTemperature = 0x1p100;
// Written so that NaN fails.
inline bool is_fast_temperature(double temperature) {
  return temperature >= kMinTemperature && temperature <= kMaxTemperature;
}

// Reads segments [begin, end) of a row into fine, coarse and segments.
void scan_segments(const LogitRows& rows, std::int64_t row, double temperature, std::size_t begin,
                   std::size_t end, const RowScratch& scratch);

// 2^x, exact for integers. Without floor(), which is a library call on the oldest x86 target.
inline double power_of_two(double x) {
  if (x < -1000) return 0;
  if (x < 1000) {
    const auto whole = static_cast<std::int64_t>(x);
    if (static_cast<double>(whole) == x) {
      return std::bit_cast<double>(static_cast<std::uint64_t>(whole + 1023) << 52);
    }
  }
  return std::exp2(x);
}

// Merges the segments in order, relative to the largest reference. The sum is not above 0 where the
// row has NaN, +inf, or no token above -inf: such rows are not for this engine.
inline RowSum merge_segments(const SegmentSum* segments, std::size_t count) {
  RowSum row{-std::numeric_limits<double>::infinity(), 0, -std::numeric_limits<float>::infinity()};
  for (std::size_t g = 0; g < count; ++g) {
    row.largest = segments[g].largest > row.largest ? segments[g].largest : row.largest;
    if (segments[g].sum != 0 && segments[g].reference > row.reference) {
      row.reference = segments[g].reference;
    }
  }
  for (std::size_t g = 0; g < count; ++g) {
    const SegmentSum& s = segments[g];
    if (s.sum != 0) row.sum += s.sum * power_of_two(s.reference - row.reference);
  }
  return row;
}

// The k largest tokens in order, after all segments are scanned: the first `above` are
// tokens_above, the others `equals`. scratch.top has the values. Valid until the scratch is used
// again.
struct SelectedTokens {
  const Candidate* tokens_above = nullptr;
  std::size_t above = 0;  // at most k
  const std::uint32_t* equals = nullptr;

  std::uint32_t operator[](std::size_t rank) const {
    return rank < above ? token_of(tokens_above[rank]) : equals[rank - above];
  }
};
SelectedTokens select_tokens(const LogitRows& rows, std::int64_t row, std::int64_t k,
                             const ScratchSizes& sizes, float largest, const RowScratch& scratch);

// Group maxima that the bound is selected from.
enum class Level : std::uint8_t { all, fine, coarse };

// Coarse groups where there are plenty of them for k tokens (then two rarely share one), fine ones
// as long as there are k, else no bound.
inline Level bound_level(const ScratchSizes& s, std::int64_t k) {
  const auto wanted = static_cast<std::size_t>(k);
  if (4 * wanted <= s.coarse * s.lanes) return Level::coarse;
  return wanted <= s.blocks * s.lanes ? Level::fine : Level::all;
}

// The selection of the bound may stop once between k and this many maxima reach it: a few
// candidates more cost less than another round.
inline std::size_t enough_maxima(std::int64_t k) {
  return static_cast<std::size_t>(k + k / 8 + 24);
}

}  // namespace touchstone::selection
