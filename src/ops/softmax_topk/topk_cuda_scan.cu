// softmax_topk by one scan of each row: one launch, a block per row, or a cluster of blocks where
// there are few rows.
#include "cuda/launch.h"
#include "ops/softmax_topk/topk_scan_launch.h"
#include "ops/softmax_topk/topk_short_keys.cuh"

namespace touchstone::topk {
namespace {

bool is_plain(const Topk& p) { return p.bias == nullptr && p.allowed == nullptr; }

struct ScanArgs {
  Topk p;
  ScanShape shape;
};

// Rows off the grid need some more registers, deep scans twice as many.
template <bool kOnGrid, int kDepth>
inline constexpr int kBlocksPerSm = kDepth == 4 ? 2
                                    : kOnGrid   ? 4
                                                : 3;

template <class T, bool kPlain, bool kOnGrid, int kDepth, ScanWay kWay>
__global__ void __launch_bounds__(kScanThreads, kBlocksPerSm<kOnGrid, kDepth>)
    topk_scan_kernel(const __grid_constant__ ScanArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScanShared*>(memory);
  const Topk& p = args.p;
  const ScanShape& shape = args.shape;
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(shape.cluster);
  const bool first = blockIdx.x % static_cast<unsigned>(shape.cluster) == 0;
  const RowValues<T> values = values_of<T>(p, row);
  using Scan = RowScan<RowValues<T>, kPlain, kOnGrid, kDepth, kWay>;
  Scan scan(shape, shared, values);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    if (shape.cluster > 1) scan.ask_ahead();
    cuda::pdl_wait();
  }
  scan.start();
  const double inverse = inverse_temperature(p, row);
  if (inverse == 0) {  // all blocks of the cluster leave
    if (first) put_bad_row<kScanThreads>(p, row, kRowBadParameter);
    return;
  }
  const auto k = static_cast<int>(p.k);
  scan.run(k, exponent_scale(inverse));
  if (!gather_cluster(shape, shared)) return;
  if ((shared.flags & ScanShared::kNan) != 0) return put_bad_row<kScanThreads>(p, row, kRowHasNan);
  if constexpr (kWay == ScanWay::short_keys) {
    if (!put_short_keys(p, row, shape, shared, inverse)) {
      put_rare_row(p, row, shape, shared, inverse);
    }
    return;
  }
  const int above_masked = sort_candidates<typename Scan::Held>(shape, k, shared, values);
  const Weights weights = row_weights(shape, shared, values, inverse);
  put_row(p, row, shared, above_masked, weights);
}

template <class T, bool kPlain, bool kOnGrid, int kDepth, ScanWay kWay = ScanWay::any>
void launch(Context& context, const ScanArgs& args) {
  auto* kernel = topk_scan_kernel<T, kPlain, kOnGrid, kDepth, kWay>;
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(args.p.rows * args.shape.cluster),
      .threads = kScanThreads,
      .cluster = static_cast<unsigned>(args.shape.cluster),
      .shared_bytes = scan_shared_bytes(args.shape, ScanShared::bytes(args.shape), kDepth == 4),
      .pdl = cuda::is_hopper(context)};
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "softmax_topk topk_scan_kernel", kernel, shape, args);
}

template <class T, bool kPlain, bool kOnGrid>
void launch(Context& context, const ScanArgs& args) {
  if (scans_deep(context, args.p.rows, args.shape)) {
    return launch<T, kPlain, kOnGrid, 4>(context, args);
  }
  // Where tokens come fast, and of what is common: each is a kernel more. Few places have few
  // candidates anyhow.
  if constexpr (kPlain && std::is_same_v<T, Bf16>) {
    constexpr int kFewPlaces = 64;
    const auto k = static_cast<int>(args.p.k);
    const int candidates = guessed_candidates(k, args.shape.segments);
    if (args.shape.cluster == 1 && k > kFewPlaces && candidates <= ScanShared::kMaxShortKeys) {
      ScanArgs own = args;
      // Of 64 bits, for rare rows: k of them and a step of read_in_order.
      own.shape.candidates = std::max({(candidates + 1) / 2, k + kScanThreads, 1024});
      return launch<T, kPlain, kOnGrid, 2, ScanWay::short_keys>(context, own);
    }
  }
  launch<T, kPlain, kOnGrid, 2>(context, args);
}

}  // namespace

std::string softmax_topk_scan_refuses(const Context& /*context*/, const Topk& p) {
  if (p.k > ScanShared::kMaxSorted) {
    return "more than " + std::to_string(ScanShared::kMaxSorted) + " places";
  }
  if (segments_of(p.dtype, p.vocabulary, is_plain(p)) > kMaxSegments) return "too many tokens";
  return "";
}

void softmax_topk_scan(Context& context, const Topk& p) {
  const cuda::DeviceScope scope(context.device().index);
  const bool plain = is_plain(p);
  const ScanArgs args{
      p, scan_shape(context, p.dtype, p.rows, p.vocabulary, static_cast<int>(p.k), plain)};
  visit_logits_dtype(p.dtype, [&]<class T>() {
    if (!plain) {
      launch<T, false, false>(context, args);
    } else if (rows_on_grid(p.logits, p.logits_stride * size_of(p.dtype))) {
      launch<T, true, true>(context, args);
    } else {
      launch<T, true, false>(context, args);
    }
  });
}

}  // namespace touchstone::topk
