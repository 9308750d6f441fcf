// Between the parts of the SIMD implementation: topk_cpu.cc shares the work out among threads,
// topk_cpu_scan.cc reads the rows, topk_cpu_finish.cc picks the winners. The last two are compiled
// once per SIMD target.
//
// A row is read once, in segments. A segment leaves behind two things: the sum of
// its exponentials, and the maxima of groups of its elements. Once the row is through, the k-th
// largest group maximum is a floor under the k-th largest element (the groups with a maximum at or
// above it hold one such element each), and only groups whose maximum reaches the floor can hold a
// winner: about k of them, fetched again from the cache. So the scan has no branch that depends on
// the data, nothing overflows, and the order in which segments are scanned, or by whom, does not
// show in the result.
//
// Borders depend on the vocabulary and the SIMD target alone: never on rows, threads or alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/softmax_topk/topk.h"

namespace touchstone::topk {

// Vectors per block, blocks per coarse group, blocks per segment. A fine group is 8 elements of a
// block (GroupMaxima says which), a coarse group the fine ones of 8 blocks in a lane. A segment of
// 256 vectors is 16 KB of f32 with AVX-512, half of the smallest L1, lest it has to be read again;
// its sum is a tree of chains of 2 to 4 terms, which keeps the error below 12 roundings.
inline constexpr std::size_t kBlockVectors = 8;
inline constexpr std::size_t kCoarseBlocks = 8;
inline constexpr std::size_t kSegmentBlocks = 32;
static_assert(kSegmentBlocks % kCoarseBlocks == 0);

// sum * 2^reference is the sum over a segment of exp(v / T). Where sum is NaN, the row has to be
// done by plain_row.
struct SegmentSum {
  double reference = 0;
  double sum = 0;
  float largest = 0;
};

// A token that may win: a key, of its value, that is smaller where the value is larger, and below
// it the token. In ascending order they are in the order of the outputs.
using Candidate = std::uint64_t;

// What one row needs while it is worked on. Sizes in ScratchSizes.
struct RowScratch {
  float* fine = nullptr;           // maxima of fine groups, one vector per block
  float* coarse = nullptr;         // maxima of coarse groups, one vector per kCoarseBlocks blocks
  SegmentSum* segments = nullptr;  // one per segment
  float* maxima = nullptr;         // room to select the floor in
  std::uint32_t* coarse_list = nullptr;   // coarse vectors that reach the floor
  std::uint32_t* listed = nullptr;        // first tokens of what reaches it, groups or blocks
  std::uint32_t* found_bits = nullptr;    // of values above the floor, later their keys
  std::uint32_t* found_tokens = nullptr;  // of those
  std::uint16_t* bins = nullptr;          // of those, to sort them by
  Candidate* candidates = nullptr;        // made of keys and tokens
  Candidate* sorted = nullptr;            // room to sort them
  std::uint32_t* equals = nullptr;        // tokens at the floor, the first k
  float* top = nullptr;                   // values of the winners
  float* values = nullptr;                // one segment of logits + bias where allowed; if needed
};

struct ScratchSizes {
  std::size_t blocks = 0;
  std::size_t coarse = 0;  // coarse vectors
  std::size_t segments = 0;
  std::size_t segment_tokens = 0;
  std::size_t lanes = 0;
  std::size_t maxima = 0;  // floats
  std::size_t candidates = 0;
};

// For the current SIMD target.
ScratchSizes scratch_sizes(const Topk& p);

// Reads segments [begin, end) of a row into fine, coarse and segments. `values` may be another
// task's own.
void scan_segments(const Topk& p, std::int64_t row, std::size_t begin, std::size_t end,
                   const RowScratch& scratch);
// The outputs of a row all of whose segments are scanned.
void finish_row(const Topk& p, std::int64_t row, const ScratchSizes& sizes,
                const RowScratch& scratch);

// Group maxima that selection of the floor looks at.
enum class Level : std::uint8_t { all, fine, coarse };

// Coarse groups where there are plenty of them for k winners (then hardly two winners share one),
// fine ones as long as there are k, else no floor.
inline Level floor_level(const ScratchSizes& s, std::int64_t k) {
  const auto wanted = static_cast<std::size_t>(k);
  if (4 * wanted <= s.coarse * s.lanes) return Level::coarse;
  return wanted <= s.blocks * s.lanes ? Level::fine : Level::all;
}

// The selection may stop once between k and this many maxima are at or above the floor: to look at
// a few candidates more costs less than another round.
inline std::size_t enough_maxima(std::int64_t k) {
  return static_cast<std::size_t>(k + k / 8 + 24);
}

// The temperatures the fast path takes: f32 holds 1 / T and its products with room to spare.
inline constexpr double kLowestTemperature = 0x1p-100;
inline constexpr double kHighestTemperature = 0x1p100;

// The temperature of a row, or NaN where plain_row must do it.
inline double row_temperature(const Topk& p, std::int64_t row) {
  double temperature = p.temperature_scale;
  if (p.temperature != nullptr) temperature *= static_cast<double>(p.temperature[row]);
  // Written so that NaN fails.
  const bool usable = temperature >= kLowestTemperature && temperature <= kHighestTemperature;
  return usable ? temperature : __builtin_nan("");
}

}  // namespace touchstone::topk
