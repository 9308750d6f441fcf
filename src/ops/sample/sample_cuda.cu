// Which kernels take a sampling problem on CUDA, and how they are laid out.
#include <algorithm>
#include <limits>
#include <string>

#include "ops/sample/sample_scan.cuh"
#include "ops/softmax_topk/topk_maxima_launch.h"

namespace touchstone::sampling {

extern template void sample_by_scan<float>(Context&, const ScanParams&);
extern template void sample_by_scan<Bf16>(Context&, const ScanParams&);
extern template void sample_by_scan<F16>(Context&, const ScanParams&);
extern template void sample_few<float>(Context&, const FewParams&);
extern template void sample_few<Bf16>(Context&, const FewParams&);
extern template void sample_few<F16>(Context&, const FewParams&);

std::int64_t scan_shared_bytes(const ScanParams& params) {
  return history_offset<>(params) + (params.penalizes ? HistoryTable::bytes(params.history) : 0);
}

namespace {

// Tokens that are put in order for a row that does not say how many it wants: most nuclei are
// smaller.
constexpr int kUnasked = 256;

bool on_grid(const Sampling& p) {
  return topk::rows_on_grid(p.logits, p.rows > 1 ? p.logits_stride * size_of(p.dtype) : 0);
}

// Candidates of a block of which four fit on a multiprocessor.
int most_candidates(const Context& context, ScanParams params) {
  params.shape.candidates = 0;
  const std::int64_t block =
      cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 4 -
      cuda::device_attribute(context, cudaDevAttrReservedSharedMemoryPerBlock);
  return static_cast<int>(std::max<std::int64_t>(0, block - scan_shared_bytes(params)) / 8);
}

// second: for rows that another kernel, which is quicker, does not take.
ScanParams params_of(const Context& context, const Sampling& p, bool second) {
  const bool may_cut = p.top_k != nullptr || p.top_p != nullptr || p.min_p != nullptr;
  const std::int64_t wanted = std::max<std::int64_t>(p.top_count, may_cut ? kUnasked : 1);
  const auto k = static_cast<int>(std::min(wanted, p.vocabulary));
  ScanParams params;
  params.p = p;
  params.on_grid = is_plain(p) && on_grid(p);
  params.second = second;
  params.penalizes = penalizes(p);
  params.history = HistorySizes::of(p);
  params.shape = topk::scan_shape(context, p.dtype, p.rows, p.vocabulary, k, is_plain(p));
  if (second) params.shape.cluster = 1;
  params.deep = topk::scans_deep(context, p.rows, params.shape);
  const int room = params.shape.room();
  params.places = {std::clamp(std::min(room - 4 * topk::kScanThreads, room / 2), k,
                              int{ScanShared::kMaxSorted}),
                   kUnasked};
  if (params.shape.cluster > 1) return params;
  // With a history beside them, four blocks fit on a multiprocessor.
  if (params.penalizes && k <= kUnasked) params.shape.candidates = 1536;
  const auto places =
      static_cast<int>(std::min<std::int64_t>(ScanShared::kMaxSorted, p.vocabulary));
  if (may_cut && !params.penalizes && places > k) {
    const int needed =
        topk::scan_shape(context, p.dtype, p.rows, p.vocabulary, places, is_plain(p)).candidates;
    params.shape.candidates =
        std::max(params.shape.candidates, std::min(needed, most_candidates(context, params)));
  }
  // What is put in order must leave room for a step of read_in_order.
  params.places = {std::clamp(params.shape.candidates - topk::kScanThreads, k,
                              std::max(k, int{ScanShared::kMaxSorted})),
                   second ? std::min(1024, places) : kUnasked};
  if (!second && p.rows > 3 * topk::multiprocessors(context)) params.places.unasked = kWarpTokens;
  return params;
}

// Blocks that share a row where there are few, and 1 where that is not done: a row that cuts and
// names no number of tokens is scanned for more than that puts in order.
int few_cluster(const Context& context, const Sampling& p) {
  constexpr int kMinSegments = 20;  // of a block
  if (!is_plain(p) || p.top_count > topk::likely_few_places(kMinSegments)) return 1;
  if (p.top_k == nullptr && (p.top_p != nullptr || p.min_p != nullptr)) return 1;
  if (!on_grid(p) || p.vocabulary * size_of(p.dtype) % 16 != 0) return 1;
  return topk::few_cluster(context, p.dtype, p.rows, p.vocabulary, kMinSegments);
}

// A scan of plain rows by large blocks.
ScanParams large_params(const Sampling& p, int k, int cluster) {
  constexpr int kThreads = kLargeScanThreads;
  ScanParams params;
  params.p = p;
  params.on_grid = true;
  params.second = cluster == 1;
  params.shape = topk::scan_shape(p.dtype, p.vocabulary, k, true, cluster, kThreads);
  const int room = params.shape.room();
  // A step of read_in_order fits beside them.
  params.places = {std::clamp(std::min(room - kThreads, room / 2), k, int{ScanShared::kMaxSorted}),
                   kUnasked};
  return params;
}

FewParams few_params(const Sampling& p, int cluster) {
  FewParams params;
  params.shape = topk::few_shape(p.dtype, p.rows, p.vocabulary, topk::kMaxFewPlaces, cluster);
  params.most = topk::likely_few_places(params.shape.segments / cluster);
  params.together = large_params(p, kUnasked, cluster);
  params.alone = large_params(p, topk::kMaxFewPlaces, 1);
  return params;
}

}  // namespace

std::string sample_cuda_refuses(const Context& context, const Sampling& p) {
  if (p.top_count > ScanShared::kMaxSorted) {
    return "more than " + std::to_string(ScanShared::kMaxSorted) + " top tokens";
  }
  if (topk::segments_of(p.dtype, p.vocabulary, is_plain(p)) > topk::kMaxSegments) {
    return "too many tokens";
  }
  if (p.rows > std::numeric_limits<std::int32_t>::max()) return "too many rows";
  if (scan_shared_bytes(params_of(context, p, false)) >
      cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
    return "not enough shared memory";
  }
  return "";
}

void sample_cuda(Context& context, const Sampling& p) {
  const cuda::DeviceScope scope(context.device().index);
  if (const int cluster = few_cluster(context, p); cluster > 1) {
    const FewParams params = few_params(p, cluster);
    return topk::visit_logits_dtype(p.dtype, [&]<class T>() { sample_few<T>(context, params); });
  }
  const bool is_short = suits_short(p);
  const bool by_maxima = !is_short && suits_maxima(context, p);
  const ScanParams params = params_of(context, p, is_short || by_maxima);
  if (is_short) sample_short(context, p);
  if (by_maxima && sample_by_maxima(context, params)) return;
  if (suits_alone(params)) return sample_alone(context, params);
  topk::visit_logits_dtype(p.dtype, [&]<class T>() { sample_by_scan<T>(context, params); });
}

}  // namespace touchstone::sampling
