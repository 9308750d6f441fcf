// How few long rows are shared by clusters: for the host.
#pragma once

#include <bit>

#include "ops/softmax_topk/topk_few.cuh"
#include "ops/softmax_topk/topk_maxima_launch.h"

namespace touchstone::topk {

// Of a block: more than half of what a multiprocessor has, so that each block has one to itself.
inline constexpr std::int64_t kFewSharedBytes = 120 << 10;
static_assert(sizeof(FewMemory) + 8 * kFewThreads * kMostFewSegments <= kFewSharedBytes);

// Threads of the first block that go on with a row that is not usual.
inline constexpr int kRareFewThreads = 256;

// Blocks that share a row: two where there are multiprocessors for them, four on up to half of
// those, since larger clusters do not find as many neighbours. 1 where a row is too short to be
// shared, or too long, or where there are no clusters.
inline int few_cluster(const Context& context, DType dtype, std::int64_t rows,
                       std::int64_t vocabulary) {
  constexpr int kFewestSegments = 14;  // of a block
  constexpr int kMostOfBlock = kFewThreads / 32 * kMostFewSegments;
  if (!cuda::is_hopper(context)) return 1;
  const std::int64_t segments = segments_of(dtype, vocabulary, true);
  const auto fits = [&](int cluster, std::int64_t places) {
    return rows * cluster <= places && segments >= kFewestSegments * cluster;
  };
  const int cluster = fits(4, multiprocessors(context) / 2) ? 4
                      : fits(2, multiprocessors(context))   ? 2
                                                            : 1;
  return segments <= kMostOfBlock * cluster ? cluster : 1;
}

// For rows that want up to k places.
inline FewShape few_shape(const Context& context, DType dtype, std::int64_t rows,
                          std::int64_t vocabulary, int k) {
  // More would throw out of L2 what the grid before has still to read.
  constexpr std::int64_t kMostAhead = 20 << 20;
  FewShape shape;
  shape.rare = maxima_shape<kRareFewThreads>(dtype, vocabulary, k);
  shape.bytes = static_cast<int>(vocabulary * size_of(dtype));
  shape.segments = shape.rare.segments;
  shape.cluster = few_cluster(context, dtype, rows, vocabulary);
  shape.cluster_bits = std::bit_width(static_cast<unsigned>(shape.cluster)) - 1;
  shape.ahead = rows * shape.bytes <= kMostAhead;
  return shape;
}

}  // namespace touchstone::topk
