// Which rows go by maxima, and how they are laid out: for the host.
#pragma once

#include <bit>

#include "cuda/launch.h"
#include "ops/softmax_topk/topk_maxima.cuh"
#include "ops/softmax_topk/topk_scan_launch.h"

namespace touchstone::topk {

// What a kernel is compiled for: threads of a block, segments of a warp in registers, and blocks
// that are to fit on a multiprocessor.
template <int kBlockThreads, int kSegments, int kBlocks>
struct MaximaLayout {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kDepth = kSegments;
  static constexpr int kBlocksPerSm = kBlocks;
};

// Rows that come in one wave need many threads each. Where more are to come, many small blocks hide
// how each of them ends; rows off the grid need so many registers that a segment at a time is best.
using OneWave = MaximaLayout<256, 2, 4>;
using OneWaveOffGrid = MaximaLayout<256, 2, 3>;
using Waves = MaximaLayout<128, 2, 8>;
using WavesOffGrid = MaximaLayout<128, 1, 8>;

// For more places there would have to be more threads to take maxima of; longer rows have time to
// choose while they are read.
inline constexpr std::int64_t kMaxMaximaPlaces = 64;
inline constexpr std::int64_t kMaxMaximaBytes = 320 << 10;

inline std::int64_t multiprocessors(const Context& context) {
  return cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
}

// About as long as a row takes from its read to its outputs, where there are several waves of rows
// that take much longer to read. Of f32 it brings nothing.
inline HeadStart head_start(DType dtype, std::int64_t rows, std::int64_t vocabulary,
                            std::int64_t wave) {
  constexpr std::int64_t kLongRow = 96 << 10;
  if (rows < 3 * wave || size_of(dtype) != 2 || 2 * vocabulary < kLongRow) return {};
  return {.blocks = static_cast<unsigned>(wave / 2),
          .late_blocks = static_cast<unsigned>(wave - wave / 2),
          .nanoseconds = 10000};
}

// For rows that want up to k places, in a block of so many threads.
template <int kThreads>
MaximaShape maxima_shape(DType dtype, std::int64_t vocabulary, int k) {
  constexpr int kWarps = kThreads / 32;
  MaximaShape shape;
  shape.vocabulary = vocabulary;
  shape.token_bits = std::bit_width(static_cast<std::uint64_t>(vocabulary - 1));
  shape.segments = static_cast<int>(segments_of(dtype, vocabulary, true));
  shape.places = k;
  shape.candidates = k + 4 * kThreads;
  // Those of single vectors take twice the room, so that they are of twice as many segments.
  shape.maximum_bytes = dtype == DType::f32 ? 4 : 8;
  const int most_groups = 320 / shape.maximum_bytes;  // of segments
  shape.merged = (shape.segments + most_groups - 1) / most_groups;
  const int most = (shape.segments + kWarps - 1) / kWarps;
  shape.maxima = (most + shape.merged - 1) / shape.merged;
  return shape;
}

}  // namespace touchstone::topk
