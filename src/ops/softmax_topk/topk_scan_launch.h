// How a scan is laid out: for the host.
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "ops/softmax_topk/topk_scan.cuh"

namespace touchstone::topk {

inline constexpr std::int64_t kMostScanned = 2048;
// Calls body.operator()<T>().
template <class Body>
void visit_logits_dtype(DType dtype, Body body) {
  if (dtype == DType::f32) {
    body.template operator()<float>();
  } else if (dtype == DType::bf16) {
    body.template operator()<Bf16>();
  } else {
    body.template operator()<F16>();
  }
}

// Of a Segment.
inline std::int64_t segment_tokens(DType dtype, bool plain) {
  return plain ? 32 * 64 / size_of(dtype) : 32 * 16;
}

inline std::int64_t segments_of(DType dtype, std::int64_t vocabulary, bool plain) {
  const std::int64_t tokens = segment_tokens(dtype, plain);
  return (vocabulary + tokens - 1) / tokens;
}

// Few rows are shared by clusters, as long as every warp has something to read and the blocks fit
// on the chip at once.
inline int scan_cluster(const Context& context, std::int64_t rows, int segments, int k) {
  if (!cuda::is_hopper(context) || k > kCertainKInCluster) return 1;
  const std::int64_t places =
      std::int64_t{2} * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  int cluster = 1;
  while (2 * cluster <= kMaxScanCluster && rows * 2 * cluster <= places &&
         segments >= kScanWarps * 2 * cluster) {
    cluster *= 2;
  }
  return cluster;
}

inline ScanShape scan_shape(const Context& context, DType dtype, std::int64_t rows,
                            std::int64_t vocabulary, int k, bool plain) {
  ScanShape shape;
  shape.vocabulary = vocabulary;
  shape.k = k;
  shape.segments = static_cast<int>(segments_of(dtype, vocabulary, plain));
  shape.sorted = 128;
  while (shape.sorted < k + k / 4) shape.sorted *= 2;
  // A sample of two segments per warp leaves some ten notes per place wanted; guesses, fewer.
  shape.notes = k <= kCertainKInCluster ? 2048 + 16 * k : 4096 + 2 * k;
  shape.candidates = k + 2048;
  shape.cluster = scan_cluster(context, rows, shape.segments, k);
  return shape;
}

}  // namespace touchstone::topk
