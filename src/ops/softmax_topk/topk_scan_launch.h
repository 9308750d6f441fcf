// How a scan is laid out: for the host.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/launch.h"
#include "ops/softmax_topk/topk_scan.cuh"

namespace touchstone::topk {

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

// Whether all rows start on 16 bytes.
inline bool rows_on_grid(const void* logits, std::int64_t stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(logits) % 16 == 0 && stride_bytes % 16 == 0;
}

// Few rows are shared by clusters, as long as every block has enough to read for a good threshold
// and the blocks fit on the chip at once: three per multiprocessor, which leaves something over
// where clusters do not divide a group of multiprocessors.
inline int scan_cluster(const Context& context, std::int64_t rows, int segments) {
  constexpr int kMinSegments = 14;
  if (!cuda::is_hopper(context)) return 1;
  const std::int64_t places =
      std::int64_t{3} * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  int cluster = 1;
  while (2 * cluster <= kMaxScanCluster && rows * 2 * cluster <= places &&
         segments >= kMinSegments * 2 * cluster) {
    cluster *= 2;
  }
  return cluster;
}

// Whether blocks have a multiprocessor each, and its registers: twice as much is on its way then.
inline bool scans_deep(const Context& context, std::int64_t rows, const ScanShape& shape) {
  return rows * shape.cluster <= cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
}

// Blocks of a cluster are spread over multiprocessors by asking for so much shared memory that few
// fit on one.
inline std::int64_t scan_shared_bytes(const ScanShape& shape, std::int64_t needed, bool deep) {
  constexpr std::int64_t kOneFits = 116 << 10;
  constexpr std::int64_t kThreeFit = 60 << 10;
  if (shape.cluster == 1) return needed;
  return std::max(needed, deep ? kOneFits : kThreeFit);
}

// As many candidates as a guess of the threshold lets in, and five standard deviations more.
inline int guessed_candidates(int k, int segments, int warps = kScanWarps) {
  const float fraction =
      std::min(1.0F, 2.0F * static_cast<float>(warps) / static_cast<float>(segments));
  const float sampled = guessed_tokens(k, fraction);
  return static_cast<int>(sampled / fraction * (1 + 5 / std::sqrt(sampled)));
}

// For rows that want up to k places, each shared by so many blocks of so many threads.
inline ScanShape scan_shape(DType dtype, std::int64_t vocabulary, int k, bool plain, int cluster,
                            int threads) {
  ScanShape shape;
  shape.vocabulary = vocabulary;
  shape.token_bits = std::bit_width(static_cast<std::uint64_t>(vocabulary - 1));
  shape.segments = static_cast<int>(segments_of(dtype, vocabulary, plain));
  shape.cluster = cluster;
  // Every time the part of the row that was read doubles, as many candidates come in as are wanted.
  // No more than that: what is left of shared memory is where loads are on their way.
  shape.candidates = 2048;
  if (k > kCertainK) {
    shape.candidates =
        std::max(guessed_candidates(k, shape.segments, threads / 32), k + 4 * threads);
  }
  // The blocks of a cluster find their share each, which may be uneven.
  if (shape.cluster > 1) shape.candidates = 2 * shape.candidates / shape.cluster;
  return shape;
}
inline ScanShape scan_shape(const Context& context, DType dtype, std::int64_t rows,
                            std::int64_t vocabulary, int k, bool plain) {
  const auto segments = static_cast<int>(segments_of(dtype, vocabulary, plain));
  return scan_shape(dtype, vocabulary, k, plain, scan_cluster(context, rows, segments),
                    kScanThreads);
}

}  // namespace touchstone::topk
