// How few long rows are shared by clusters: for the host.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/softmax_topk/topk_few.cuh"
#include "ops/softmax_topk/topk_maxima_launch.h"

namespace touchstone::topk {

// Of a block: more than half of what a multiprocessor has, so that each block has one to itself.
inline constexpr std::int64_t kFewSharedBytes = 120 << 10;
static_assert(sizeof(FewMemory) + 8 * kFewThreads * kMaxFewSegments <= kFewSharedBytes);

// Threads of the first block that go on with a row that is not usual.
inline constexpr int kRareFewThreads = 256;

// Blocks that share a row: two where there are multiprocessors for them, four on up to half of
// those, since larger clusters do not find as many neighbors. 1 where a row is too long, or too
// short for blocks that have at least so many segments each, or where there are no clusters.
inline int few_cluster(const Context& context, DType dtype, std::int64_t rows,
                       std::int64_t vocabulary, int fewest_segments = 14) {
  constexpr int kMaxOfBlock = kFewThreads / 32 * kMaxFewSegments;
  if (!cuda::is_hopper(context)) return 1;
  const std::int64_t segments = segments_of(dtype, vocabulary, true);
  const auto fits = [&](int cluster, std::int64_t places) {
    return rows * cluster <= places && segments >= fewest_segments * cluster;
  };
  const int cluster = fits(4, multiprocessors(context) / 2) ? 4
                      : fits(2, multiprocessors(context))   ? 2
                                                            : 1;
  return segments <= kMaxOfBlock * cluster ? cluster : 1;
}

// How many places are very likely had from the part of a row that a block reads, so many segments.
// Of its groups of lanes k reach the threshold; if tokens lie anywhere, these are as many tokens as
// are expected here, and there may be four standard deviations more.
inline int likely_few_places(int segments) {
  constexpr int kLanes = kFewThreads / FewMemory::kGroups;
  const auto groups = static_cast<float>(std::min(int{FewMemory::kGroups}, 32 / kLanes * segments));
  int k = kMaxFewPlaces;
  for (; k > 0; --k) {
    const float tokens = -groups * std::log1p(-std::min(static_cast<float>(k) / groups, 0.999F));
    if (tokens + 4 * std::sqrt(tokens) <= FewMemory::kMaxUsual) break;
  }
  return k;
}

// For rows that want up to k places, each shared by so many blocks.
inline FewShape few_shape(DType dtype, std::int64_t rows, std::int64_t vocabulary, int k,
                          int cluster) {
  // More would throw out of L2 what the grid before has still to read.
  constexpr std::int64_t kMaxAhead = 20 << 20;
  FewShape shape;
  shape.rare = maxima_shape<kRareFewThreads>(dtype, vocabulary, k);
  shape.bytes = static_cast<int>(vocabulary * size_of(dtype));
  shape.segments = shape.rare.segments;
  shape.cluster = cluster;
  shape.cluster_bits = std::bit_width(static_cast<unsigned>(shape.cluster)) - 1;
  shape.ahead = rows * shape.bytes <= kMaxAhead;
  return shape;
}

}  // namespace touchstone::topk
