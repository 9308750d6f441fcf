// softmax_topk of many long rows by one read of each: one launch, a block per row.
#include <string>

#include "cuda/launch.h"
#include "ops/softmax_topk/topk_maxima_launch.h"

namespace touchstone::topk {
namespace {

struct MaximaArgs {
  Topk p;
  MaximaShape shape;
  HeadStart head_start;
};

template <class T, bool kOnGrid, class Layout>
__global__ void __launch_bounds__(Layout::kThreads, Layout::kBlocksPerSm)
    topk_maxima_kernel(const __grid_constant__ MaximaArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Memory = MaximaMemory<Layout::kThreads>;
  auto& shared = *reinterpret_cast<Memory*>(memory);
  const Topk& p = args.p;
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  give_head_start(args.head_start);
  answer_row<T, kOnGrid, Layout::kThreads, Layout::kDepth>(p, args.shape, blockIdx.x, shared);
}

template <class T, bool kOnGrid, class Layout>
void launch(Context& context, const Topk& p) {
  const MaximaArgs args{
      p, maxima_shape<Layout::kThreads>(p.dtype, p.vocabulary, static_cast<int>(p.k)),
      head_start(p.dtype, p.rows, p.vocabulary, Layout::kBlocksPerSm * multiprocessors(context))};
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(p.rows),
                                .threads = Layout::kThreads,
                                .shared_bytes = MaximaMemory<Layout::kThreads>::bytes(args.shape),
                                .pdl = cuda::is_hopper(context)};
  auto* kernel = topk_maxima_kernel<T, kOnGrid, Layout>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "softmax_topk topk_maxima_kernel", kernel, shape, args);
}

}  // namespace

std::string softmax_topk_maxima_refuses(const Context& context, const Topk& p) {
  if (p.k > kMaxMaximaPlaces) return "more than " + std::to_string(kMaxMaximaPlaces) + " places";
  if (p.bias != nullptr || p.allowed != nullptr) return "has a bias or a mask";
  if (p.vocabulary * size_of(p.dtype) > kMaxMaximaBytes) return "rows are long";
  // Clusters are made for so many (scan_cluster).
  if (p.rows <= 3 * multiprocessors(context)) return "rows are few";
  return "";
}

void softmax_topk_maxima(Context& context, const Topk& p) {
  const cuda::DeviceScope scope(context.device().index);
  const bool one_wave = p.rows <= OneWave::kBlocksPerSm * multiprocessors(context);
  const bool on_grid = rows_on_grid(p.logits, p.logits_stride * size_of(p.dtype));
  visit_logits_dtype(p.dtype, [&]<class T>() {
    if (one_wave) {
      on_grid ? launch<T, true, OneWave>(context, p) : launch<T, false, OneWaveOffGrid>(context, p);
    } else {
      on_grid ? launch<T, true, Waves>(context, p) : launch<T, false, WavesOffGrid>(context, p);
    }
  });
}

}  // namespace touchstone::topk
