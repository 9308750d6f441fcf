// softmax_topk of few long rows by one read of each: one launch, a cluster of blocks per row.
#include <string>

#include "cuda/launch.h"
#include "ops/softmax_topk/topk_few_launch.h"

namespace touchstone::topk {
namespace {

struct FewArgs {
  Topk p;
  FewShape shape;
};

template <class T>
__global__ void __launch_bounds__(kFewThreads, 1)
    topk_few_kernel(const __grid_constant__ FewArgs args) {
  if constexpr (cuda::kHopper) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<FewMemory*>(memory);
    const Topk& p = args.p;
    const auto k = static_cast<int>(p.k);
    const std::int64_t row = blockIdx.x >> args.shape.cluster_bits;
    FewRows<T> scan(args.shape, shared, static_cast<const T*>(p.logits) + row * p.logits_stride);
    cuda::pdl_launch_dependents();
    scan.prepare(k);
    cuda::pdl_wait();
    scan.start();
    const bool first = cuda::cluster_rank() == 0;
    const double inverse = inverse_temperature(p, row);
    if (inverse != 0) {
      const float scale = exponent_scale(inverse);
      scan.read(scale);
      scan.choose(k, k);
      RowSum sum;
      if (first && scan.merge(k, sum)) {
        const auto thread = static_cast<int>(threadIdx.x);
        const Weights weights{inverse, scale, value_of(shared.sorted[0]), sum, false};
        if (thread < (k + 31) / 32 * 32) {
          put_usual_row(p, row, shared.sorted, weights, thread, kFewThreads);
        }
        return;
      }
    }
    if (!first || threadIdx.x >= kRareFewThreads) return;
    answer_rare_row<T, true, kRareFewThreads>(
        p, args.shape.rare, row, *reinterpret_cast<MaximaMemory<kRareFewThreads>*>(memory));
  }
}

template <class T>
void launch(Context& context, const Topk& p) {
  const int cluster = few_cluster(context, p.dtype, p.rows, p.vocabulary);
  const FewArgs args{p, few_shape(p.dtype, p.rows, p.vocabulary, static_cast<int>(p.k), cluster)};
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(p.rows * args.shape.cluster),
                                .threads = kFewThreads,
                                .cluster = static_cast<unsigned>(args.shape.cluster),
                                .shared_bytes = kFewSharedBytes,
                                .pdl = true};
  auto* kernel = topk_few_kernel<T>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "softmax_topk topk_few_kernel", kernel, shape, args);
}

}  // namespace

std::string softmax_topk_few_refuses(const Context& context, const Topk& p) {
  if (p.k > kMaxFewPlaces) return "more than " + std::to_string(kMaxFewPlaces) + " places";
  if (p.bias != nullptr || p.allowed != nullptr) return "has a bias or a mask";
  if (!rows_on_grid(p.logits, p.logits_stride * size_of(p.dtype)) ||
      p.vocabulary * size_of(p.dtype) % 16 != 0) {
    return "rows do not start and end on 16 bytes";
  }
  if (few_cluster(context, p.dtype, p.rows, p.vocabulary) == 1) {
    return "rows are many, short or long";
  }
  return "";
}

void softmax_topk_few(Context& context, const Topk& p) {
  const cuda::DeviceScope scope(context.device().index);
  visit_logits_dtype(p.dtype, [&]<class T>() { launch<T>(context, p); });
}

}  // namespace touchstone::topk
