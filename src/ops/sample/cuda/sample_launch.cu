// The CUDA implementations of sample: what each refuses, and how it is launched.
#include <algorithm>
#include <string>

#include "ops/sample/cuda/sample_launch.h"
#include "ops/sample/cuda/sample_streaming.cuh"

namespace touchstone::sampling {

extern template void launch_streaming<float>(Context&, const StreamingArgs&);
extern template void launch_streaming<Bf16>(Context&, const StreamingArgs&);
extern template void launch_streaming<F16>(Context&, const StreamingArgs&);
extern template void launch_deferred<float>(Context&, const StreamingArgs&);
extern template void launch_deferred<Bf16>(Context&, const StreamingArgs&);
extern template void launch_deferred<F16>(Context&, const StreamingArgs&);
extern template void launch_cluster<float>(Context&, const ClusterArgs&);
extern template void launch_cluster<Bf16>(Context&, const ClusterArgs&);
extern template void launch_cluster<F16>(Context&, const ClusterArgs&);

std::int64_t row_smem_bytes(const StreamingArgs& args) {
  return history_offset<>(args) + (args.penalizes ? HistoryTable::bytes(args.history) : 0);
}

namespace {

using selection::too_large;
using selection::too_small;

// The stride of a single row does not matter.
selection::LogitRows strided_rows(const SampleProblem& p) {
  selection::LogitRows rows = p;
  if (rows.rows == 1) rows.logits_stride = 0;
  return rows;
}

// Candidates of a CTA of which four fit an SM.
int max_candidates(const Context& context, StreamingArgs args) {
  args.params.candidates = 0;
  const std::int64_t block =
      cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 4 -
      cuda::device_attribute(context, cudaDevAttrReservedSharedMemoryPerBlock);
  return static_cast<int>(std::max<std::int64_t>(0, block - row_smem_bytes(args)) / 8);
}

// `second`: for rows that another kernel could not finish.
StreamingArgs streaming_args(const Context& context, const SampleProblem& p, bool second) {
  const bool raw_logits = p.samples_raw_logits();
  const std::int64_t wanted = std::max<std::int64_t>(p.top_count, p.has_cuts() ? kDefaultSlots : 1);
  const auto k = static_cast<int>(std::min(wanted, p.vocabulary));
  StreamingArgs args;
  args.p = p;
  args.aligned16 = raw_logits && selection::rows_aligned16(strided_rows(p));
  args.second = second;
  args.penalizes = p.has_penalties();
  args.history = HistorySizes::of(p);
  args.params = selection::streaming_params(context, p.dtype, p.rows, p.vocabulary, k, raw_logits);
  if (second) args.params.cluster = 1;
  const int capacity = args.params.capacity();
  args.slots = {std::clamp(std::min(capacity - 4 * selection::kStreamingThreads, capacity / 2), k,
                           int{StreamingSmem::kMaxSorted}),
                kDefaultSlots};
  if (args.params.cluster > 1) return args;
  if (args.penalizes && k <= kDefaultSlots) args.params.candidates = kPenalizedCandidates;
  const auto max_slots =
      static_cast<int>(std::min<std::int64_t>(StreamingSmem::kMaxSorted, p.vocabulary));
  if (p.has_cuts() && !args.penalizes && max_slots > k) {
    const int needed =
        selection::streaming_params(context, p.dtype, p.rows, p.vocabulary, max_slots, raw_logits)
            .candidates;
    args.params.candidates =
        std::max(args.params.candidates, std::min(needed, max_candidates(context, args)));
  }
  // Candidates beside the sorted tokens, so that the threshold of a rescan need not be exact.
  args.slots = {std::clamp(args.params.candidates - selection::kStreamingThreads, k,
                           std::max(k, int{StreamingSmem::kMaxSorted})),
                second ? std::min(kDeferredDefaultSlots, max_slots) : kDefaultSlots};
  if (!second && p.rows > selection::kTwoPhaseRowsPerSm * selection::multiprocessors(context)) {
    args.slots.default_slots = kWarpTokens;
  }
  return args;
}

// Rows that the CTAs of a cluster kernel stream.
StreamingArgs cluster_streaming_args(const SampleProblem& p, int k, int cluster) {
  constexpr int kThreads = kClusterStreamingThreads;
  StreamingArgs args;
  args.p = p;
  args.aligned16 = true;
  args.second = cluster == 1;
  args.params = selection::streaming_params(p.dtype, p.vocabulary, k, true, cluster, kThreads);
  const int capacity = args.params.capacity();
  // As above.
  args.slots = {
      std::clamp(std::min(capacity - kThreads, capacity / 2), k, int{StreamingSmem::kMaxSorted}),
      kDefaultSlots};
  return args;
}

ClusterArgs cluster_args(const SampleProblem& p, int cluster) {
  ClusterArgs args;
  args.params = selection::cluster_params(p.dtype, p.rows, p.vocabulary, cluster);
  args.max_slots = selection::likely_cluster_k(args.params.segments / cluster);
  args.cluster_streaming = cluster_streaming_args(p, kDefaultSlots, cluster);
  args.first_block_streaming = cluster_streaming_args(p, selection::kMaxClusterK, 1);
  return args;
}

void run_deferred(Context& context, const StreamingArgs& args) {
  cuda::visit_dtype(args.p.dtype, [&]<class T>() { launch_deferred<T>(context, args); });
}

}  // namespace

std::string sample_streaming_refuses(const Context& context, const SampleProblem& p) {
  if (p.top_count > StreamingSmem::kMaxSorted) {
    return too_large("top_tokens", p.top_count, StreamingSmem::kMaxSorted);
  }
  const std::string refusal = selection::streaming_refusal(p, 1, p.samples_raw_logits());
  if (!refusal.empty()) return refusal;
  const std::int64_t bytes = row_smem_bytes(streaming_args(context, p, false));
  const std::int64_t limit =
      cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return bytes > limit ? too_large("bytes of shared memory", bytes, limit) : "";
}

void sample_streaming(Context& context, const SampleProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const StreamingArgs args = streaming_args(context, p, false);
  cuda::visit_dtype(p.dtype, [&]<class T>() { launch_streaming<T>(context, args); });
}

std::string sample_streaming_block_refuses(const Context& context, const SampleProblem& p) {
  if (!p.has_raw_logits()) return selection::processing_refusal(p);
  if (p.has_penalties()) return "penalties are given";
  if (!selection::rows_aligned16(strided_rows(p))) {
    return "rows do not start at multiples of 16 bytes";
  }
  const std::string refusal = sample_streaming_refuses(context, p);
  if (!refusal.empty()) return refusal;
  const int cluster = streaming_args(context, p, false).params.cluster;
  return cluster > 1 ? "rows " + std::to_string(p.rows) + " are shared by clusters of " +
                           std::to_string(cluster) + " > 1"
                     : "";
}

void sample_streaming_block(Context& context, const SampleProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  launch_streaming_block(context, streaming_args(context, p, false));
}

std::string sample_two_phase_refuses(const Context& context, const SampleProblem& p) {
  if (p.top_count > selection::kMaxTwoPhaseK) {
    return too_large("top_tokens", p.top_count, selection::kMaxTwoPhaseK);
  }
  if (p.has_penalties()) return "penalties are given";
  // A short row has the bits of subwarp, in any batch.
  if (sample_subwarp_refuses(context, p).empty()) {
    return too_small("V", p.vocabulary, selection::kMaxSubwarpTokens + 1);
  }
  const std::string refusal = selection::two_phase_refusal(context, p);
  return refusal.empty() ? sample_streaming_refuses(context, p) : refusal;
}

void sample_two_phase(Context& context, const SampleProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const StreamingArgs args = streaming_args(context, p, true);
  if (!launch_two_phase(context, args)) run_deferred(context, args);
}

std::string sample_cluster_refuses(const Context& context, const SampleProblem& p) {
  const int max_top = selection::likely_cluster_k(kMinClusterSampleSegments);
  if (p.top_count > max_top) return too_large("top_tokens", p.top_count, max_top);
  if (p.has_penalties()) return "penalties are given";
  if (p.top_k == nullptr && p.has_cuts()) return "top_p or min_p is given without top_k";
  const std::string refusal =
      selection::cluster_refusal(context, strided_rows(p), kMinClusterSampleSegments);
  return refusal.empty() ? sample_streaming_refuses(context, p) : refusal;
}

void sample_cluster(Context& context, const SampleProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const int cluster =
      selection::cluster_blocks(context, p.dtype, p.rows, p.vocabulary, kMinClusterSampleSegments);
  const ClusterArgs args = cluster_args(p, cluster);
  cuda::visit_dtype(p.dtype, [&]<class T>() { launch_cluster<T>(context, args); });
}

std::string sample_subwarp_refuses(const Context& context, const SampleProblem& p) {
  if (p.vocabulary > selection::kMaxSubwarpTokens) {
    return too_large("V", p.vocabulary, selection::kMaxSubwarpTokens);
  }
  if (p.top_count > kWarpTokens) return too_large("top_tokens", p.top_count, kWarpTokens);
  if (!p.has_raw_logits()) return selection::processing_refusal(p);
  if (p.has_penalties()) return "penalties are given";
  return sample_streaming_refuses(context, p);
}

void sample_subwarp(Context& context, const SampleProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  launch_subwarp(context, p);
  run_deferred(context, streaming_args(context, p, true));
}

}  // namespace touchstone::sampling
