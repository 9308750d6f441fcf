// How a scan is laid out: for the host.
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "ops/softmax_topk/topk_scan.cuh"

namespace touchstone::topk {

inline constexpr std::int64_t kMostScanned = 2048;
inline constexpr std::int64_t kMostTokens = 0x7fffffff;

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

// Few rows are shared by clusters, as long as every warp has something to read and the blocks fit
// on the chip at once, four to a multiprocessor.
inline int scan_cluster(const Context& context, std::int64_t rows, int units, int k) {
  if (!cuda::is_hopper(context) || k > kCertainKInCluster) return 1;
  const std::int64_t places =
      std::int64_t{4} * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  int cluster = 1;
  while (2 * cluster <= kMaxScanCluster && rows * 2 * cluster <= places &&
         units >= 4 * 2 * cluster) {
    cluster *= 2;
  }
  return cluster;
}

inline ScanShape scan_shape(const Context& context, DType dtype, std::int64_t rows,
                            std::int64_t vocabulary, int k, bool plain) {
  ScanShape shape;
  shape.vocabulary = vocabulary;
  shape.k = k;
  const std::int64_t tokens = plain ? 32 * 128 / size_of(dtype) : 32 * 32;  // of a Segment
  const std::int64_t segments = (vocabulary + tokens - 1) / tokens;
  shape.segments_per_unit = static_cast<int>((segments + kMaxUnits - 1) / kMaxUnits);
  shape.units =
      static_cast<int>((segments + shape.segments_per_unit - 1) / shape.segments_per_unit);
  shape.sorted = 128;
  while (shape.sorted < k) shape.sorted *= 2;
  shape.capacity = std::max(4096, k + 4096);
  shape.cluster = scan_cluster(context, rows, shape.units, k);
  return shape;
}

}  // namespace touchstone::topk
