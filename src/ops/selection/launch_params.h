// Host side of the selection kernels: which of them suits a problem, and their parameters.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "cuda/launch.h"
#include "cuda/visit_dtype.h"
#include "ops/selection/cluster.cuh"
#include "ops/selection/streaming.cuh"
#include "ops/selection/two_phase.cuh"

namespace touchstone::selection {

inline std::int64_t multiprocessors(const Context& context) {
  return cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
}

// Tokens of a Segment, and segments of a row.
inline std::int64_t segment_tokens(DType dtype, bool raw_logits) {
  return raw_logits ? 32 * 64 / size_of(dtype) : 32 * 16;
}
inline std::int64_t segments_of(DType dtype, std::int64_t vocabulary, bool raw_logits) {
  const std::int64_t tokens = segment_tokens(dtype, raw_logits);
  return (vocabulary + tokens - 1) / tokens;
}

// Whether all rows start at multiples of 16 bytes.
inline bool rows_aligned16(const LogitRows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.logits) % 16 == 0 &&
         rows.logits_stride * size_of(rows.dtype) % 16 == 0;
}

// ---- refusals: each names the limit and what came ----------------------------------------------

inline std::string too_large(const char* what, std::int64_t value, std::int64_t max) {
  return std::string(what) + " " + std::to_string(value) + " > " + std::to_string(max);
}
inline std::string too_small(const char* what, std::int64_t value, std::int64_t min) {
  return std::string(what) + " " + std::to_string(value) + " < " + std::to_string(min);
}

// For kernels that take raw logits only.
inline std::string processing_refusal(const LogitRows& rows) {
  if (rows.bias != nullptr) return "bias is given";
  return rows.token_mask != nullptr ? "token_mask is given" : "";
}

// For kernels with a CTA or more per row: a grid has at most 2^31 - 1 CTAs.
inline std::string rows_refusal(const LogitRows& rows) {
  return rows.rows > cuda::kMaxBlocks ? too_large("rows", rows.rows, cuda::kMaxBlocks) : "";
}

// CTAs per row of the streaming kernels: more than one as long as every CTA has enough segments for
// a tight threshold and all CTAs are resident at once.
inline int streaming_cluster(const Context& context, std::int64_t rows, int segments) {
  if (!cuda::is_hopper(context)) return 1;
  const std::int64_t resident = kStreamingClusterCtasPerSm * multiprocessors(context);
  int cluster = 1;
  while (2 * cluster <= kMaxStreamingCluster && rows * 2 * cluster <= resident &&
         segments >= kMinClusterSegments * 2 * cluster) {
    cluster *= 2;
  }
  return cluster;
}

// Over-allocates dynamic shared memory to cap the CTAs per SM, so that the CTAs of a cluster land
// on different SMs.
inline std::int64_t streaming_smem_bytes(const Context& context, std::int64_t rows,
                                         const StreamingParams& params, std::int64_t needed) {
  if (params.cluster == 1) return needed;
  const bool sparse = rows * params.cluster <= multiprocessors(context);
  return std::max(needed, sparse ? kStreamingSparseSmemBytes : kStreamingClusterSmemBytes);
}

// Candidates that an estimated threshold admits, plus five standard deviations.
inline int estimated_candidates(int k, int segments, int warps = kStreamingWarps) {
  const float fraction =
      std::min(1.0F, 2.0F * static_cast<float>(warps) / static_cast<float>(segments));
  const float sampled = estimated_tokens(k, fraction);
  return static_cast<int>(sampled / fraction * (1 + 5 / std::sqrt(sampled)));
}

// For up to k tokens per row, `cluster` CTAs of `threads` threads per row.
inline StreamingParams streaming_params(DType dtype, std::int64_t vocabulary, int k,
                                        bool raw_logits, int cluster, int threads) {
  StreamingParams params;
  params.vocabulary = vocabulary;
  params.token_bits = std::bit_width(static_cast<std::uint64_t>(vocabulary - 1));
  params.segments = static_cast<int>(segments_of(dtype, vocabulary, raw_logits));
  params.cluster = cluster;
  // Each doubling of what was read admits about k candidates. No more than needed: the rest of
  // shared memory is L1, through which the loads in flight pass.
  params.candidates = 2048;
  if (k > kMaxExactThresholdK) {
    params.candidates =
        std::max(estimated_candidates(k, params.segments, threads / 32), k + 4 * threads);
  }
  // The shares of the CTAs of a cluster may be uneven.
  if (params.cluster > 1) params.candidates = 2 * params.candidates / params.cluster;
  return params;
}
inline StreamingParams streaming_params(const Context& context, DType dtype, std::int64_t rows,
                                        std::int64_t vocabulary, int k, bool raw_logits) {
  const auto segments = static_cast<int>(segments_of(dtype, vocabulary, raw_logits));
  return streaming_params(dtype, vocabulary, k, raw_logits,
                          streaming_cluster(context, rows, segments), kStreamingThreads);
}

// For up to k tokens per row, one CTA of kThreads threads per row.
template <int kThreads>
TwoPhaseParams two_phase_params(DType dtype, std::int64_t vocabulary, int k) {
  constexpr int kWarps = kThreads / 32;
  TwoPhaseParams params;
  params.vocabulary = vocabulary;
  params.token_bits = std::bit_width(static_cast<std::uint64_t>(vocabulary - 1));
  params.segments = static_cast<int>(segments_of(dtype, vocabulary, true));
  params.slots = k;
  params.candidates = k + 4 * kThreads;
  // Vector maxima of 16-bit types take twice the memory, so each covers twice as many segments.
  params.maximum_bytes = dtype == DType::f32 ? 4 : 8;
  const int max_groups = 320 / params.maximum_bytes;  // segment groups
  params.merged = (params.segments + max_groups - 1) / max_groups;
  const int most = (params.segments + kWarps - 1) / kWarps;
  params.maxima = (most + params.merged - 1) / params.merged;
  return params;
}

static_assert(sizeof(ClusterSmem) + 8 * kClusterThreads * kMaxWarpSegments <= kClusterSmemBytes);

// CTAs per row of the cluster kernels, or 1 if the problem does not suit them: too many rows, rows
// too long, fewer than min_segments segments per CTA, or no cluster launch on this device.
inline int cluster_blocks(const Context& context, DType dtype, std::int64_t rows,
                          std::int64_t vocabulary, int min_segments = kMinClusterSegments) {
  constexpr int kMaxCtaSegments = kClusterThreads / 32 * kMaxWarpSegments;
  if (!cuda::is_hopper(context)) return 1;
  const std::int64_t segments = segments_of(dtype, vocabulary, true);
  const auto fits = [&](int cluster, std::int64_t resident) {
    return rows * cluster <= resident && segments >= min_segments * cluster;
  };
  const int cluster = fits(4, multiprocessors(context) / 2) ? 4
                      : fits(2, multiprocessors(context))   ? 2
                                                            : 1;
  return segments <= kMaxCtaSegments * cluster ? cluster : 1;
}

// The largest k whose candidates almost certainly fit a CTA that reads this many segments: k lane
// groups reach the threshold, which for randomly placed tokens means a known number of tokens, plus
// four standard deviations.
inline int likely_cluster_k(int segments) {
  constexpr int kLanes = kClusterThreads / ClusterSmem::kGroups;
  const auto groups =
      static_cast<float>(std::min(int{ClusterSmem::kGroups}, 32 / kLanes * segments));
  int k = kMaxClusterK;
  for (; k > 0; --k) {
    const float tokens = -groups * std::log1p(-std::min(static_cast<float>(k) / groups, 0.999F));
    if (tokens + 4 * std::sqrt(tokens) <= ClusterSmem::kMaxAllPairs) break;
  }
  return k;
}

// For rows shared by `cluster` CTAs.
inline ClusterParams cluster_params(DType dtype, std::int64_t rows, std::int64_t vocabulary,
                                    int cluster) {
  ClusterParams params;
  params.bytes = static_cast<int>(vocabulary * size_of(dtype));
  params.segments = static_cast<int>(segments_of(dtype, vocabulary, true));
  params.cluster = cluster;
  params.cluster_bits = std::bit_width(static_cast<unsigned>(params.cluster)) - 1;
  params.prefetch = rows * params.bytes <= kMaxL2PrefetchBytes;
  return params;
}

// ---- refusals of the kernels -------------------------------------------------------------------

// `raw_logits`: no bias, mask or penalties.
inline std::string streaming_refusal(const LogitRows& rows, std::int64_t k, bool raw_logits) {
  if (k > kMaxStreamingK) return too_large("k", k, kMaxStreamingK);
  const std::int64_t max_tokens = kMaxSegments * segment_tokens(rows.dtype, raw_logits);
  if (rows.vocabulary > max_tokens) return too_large("V", rows.vocabulary, max_tokens);
  return rows_refusal(rows);
}

inline std::string two_phase_refusal(const Context& context, const LogitRows& rows) {
  if (!rows.has_raw_logits()) return processing_refusal(rows);
  const std::int64_t row_bytes = rows.vocabulary * size_of(rows.dtype);
  if (row_bytes > kMaxTwoPhaseRowBytes) {
    return too_large("bytes of a row", row_bytes, kMaxTwoPhaseRowBytes);
  }
  const std::int64_t min_rows = kTwoPhaseRowsPerSm * multiprocessors(context) + 1;
  return rows.rows < min_rows ? too_small("rows", rows.rows, min_rows) : rows_refusal(rows);
}
// Whether all rows are resident at once.
inline bool fits_one_wave(const Context& context, std::int64_t rows) {
  return rows <= OneWave::kBlocksPerSm * multiprocessors(context);
}

inline std::string cluster_refusal(const Context& context, const LogitRows& rows,
                                   int min_segments) {
  if (!rows.has_raw_logits()) return processing_refusal(rows);
  if (!rows_aligned16(rows)) return "rows do not start at multiples of 16 bytes";
  const std::int64_t row_bytes = rows.vocabulary * size_of(rows.dtype);
  if (row_bytes % 16 != 0) {
    return "bytes of a row " + std::to_string(row_bytes) + ", not a multiple of 16";
  }
  if (!cuda::is_hopper(context)) return "compute capability < 9.0: no thread block clusters";
  if (cluster_blocks(context, rows.dtype, rows.rows, rows.vocabulary, min_segments) > 1) return "";
  const std::int64_t max_rows = multiprocessors(context) / 2;
  if (rows.rows > max_rows) return too_large("rows", rows.rows, max_rows);
  const std::int64_t tokens = segment_tokens(rows.dtype, true);
  const std::int64_t min_tokens = (2 * min_segments - 1) * tokens + 1;
  if (rows.vocabulary < min_tokens) return too_small("V", rows.vocabulary, min_tokens);
  const std::int64_t max_segments =
      kClusterThreads / 32 * kMaxWarpSegments * (4 * rows.rows <= max_rows ? 4 : 2);
  return too_large("V", rows.vocabulary, max_segments * tokens);
}

}  // namespace touchstone::selection
