// softmax_topk by streaming selection: one launch, one CTA per row, or a cluster of CTAs where rows
// are few. streaming_packed is the same main loop with 32-bit candidates for bf16 and large k.
#include "cuda/launch.h"
#include "ops/selection/launch_params.h"
#include "ops/softmax_topk/softmax_topk_packed_epilogue.cuh"

namespace touchstone::topk {
namespace {

using selection::StreamingMode;

struct StreamingArgs {
  SoftmaxTopkProblem p;
  StreamingParams params;
};

template <class T, bool kRawLogits, bool kAligned16, StreamingMode kMode>
__global__ void __launch_bounds__(kStreamingThreads, selection::kStreamingBlocksPerSm<kAligned16>)
    softmax_topk_streaming_kernel(const __grid_constant__ StreamingArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& smem = *reinterpret_cast<StreamingSmem*>(memory);
  const SoftmaxTopkProblem& p = args.p;
  const StreamingParams& params = args.params;
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(params.cluster);
  const bool first = blockIdx.x % static_cast<unsigned>(params.cluster) == 0;
  const RowValues<T> values = values_of<T>(p, row);
  using Select = selection::StreamingSelect<RowValues<T>, kRawLogits, kAligned16, kMode>;
  Select select(params, smem, values);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    if (params.cluster > 1) select.prefetch_l2();
    cuda::pdl_wait();
  }
  select.start();
  const double inverse = inverse_temperature(p, row);
  if (inverse == 0) {  // all CTAs of the cluster leave
    if (first) store_invalid_row<kStreamingThreads>(p, row, RowStatus::bad_parameter);
    return;
  }
  const auto k = static_cast<int>(p.k);
  select.run(k, exponent_scale(inverse));
  if (!selection::gather_cluster(params, smem)) return;
  if ((smem.flags & selection::kFlagNan) != 0) {
    return store_invalid_row<kStreamingThreads>(p, row, RowStatus::has_nan);
  }
  if constexpr (kMode == StreamingMode::packed_keys) {
    if (!store_packed_row(p, row, params, smem, inverse)) {
      process_packed_row_slow_path(p, row, params, smem, inverse);
    }
    return;
  }
  const int above_masked =
      selection::sort_candidates<typename Select::Held>(params, k, smem, values);
  const Weights weights = selection::row_weights(params, smem, values, inverse);
  store_row(p, row, smem, above_masked, weights);
}

template <class T, bool kRawLogits, bool kAligned16, StreamingMode kMode>
void launch(Context& context, const StreamingArgs& args) {
  auto* kernel = softmax_topk_streaming_kernel<T, kRawLogits, kAligned16, kMode>;
  const cuda::LaunchShape grid{
      .blocks = static_cast<unsigned>(args.p.rows * args.params.cluster),
      .threads = kStreamingThreads,
      .cluster = static_cast<unsigned>(args.params.cluster),
      .shared_bytes = selection::streaming_smem_bytes(context, args.p.rows, args.params,
                                                      StreamingSmem::bytes(args.params)),
      .pdl = cuda::is_hopper(context)};
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "softmax_topk streaming_kernel", kernel, grid, args);
}

StreamingArgs streaming_args(const Context& context, const SoftmaxTopkProblem& p) {
  return {p, selection::streaming_params(context, p.dtype, p.rows, p.vocabulary,
                                         static_cast<int>(p.k), p.has_raw_logits())};
}

}  // namespace

std::string softmax_topk_streaming_refuses(const Context& /*context*/,
                                           const SoftmaxTopkProblem& p) {
  return selection::streaming_refusal(p, p.k, p.has_raw_logits());
}

void softmax_topk_streaming(Context& context, const SoftmaxTopkProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const StreamingArgs args = streaming_args(context, p);
  cuda::visit_dtype(p.dtype, [&]<class T>() {
    if (!p.has_raw_logits()) {
      launch<T, false, false, StreamingMode::cluster>(context, args);
    } else if (selection::rows_aligned16(p)) {
      launch<T, true, true, StreamingMode::cluster>(context, args);
    } else {
      launch<T, true, false, StreamingMode::cluster>(context, args);
    }
  });
}

std::string softmax_topk_streaming_packed_refuses(const Context& context,
                                                  const SoftmaxTopkProblem& p) {
  if (p.dtype != DType::bf16) return "dtype " + std::string(name_of(p.dtype)) + ", not bf16";
  if (p.k < selection::kMinPackedKeysK) {
    return selection::too_small("k", p.k, selection::kMinPackedKeysK);
  }
  if (!p.has_raw_logits()) return selection::processing_refusal(p);
  const std::string refusal = softmax_topk_streaming_refuses(context, p);
  if (!refusal.empty()) return refusal;
  const StreamingParams params = streaming_args(context, p).params;
  if (params.cluster > 1) {
    return "rows " + std::to_string(p.rows) + " are shared by clusters of " +
           std::to_string(params.cluster) + " > 1";
  }
  const int candidates = selection::estimated_candidates(static_cast<int>(p.k), params.segments);
  return candidates > StreamingSmem::kMaxPackedKeys
             ? selection::too_large("candidates", candidates, StreamingSmem::kMaxPackedKeys)
             : "";
}

void softmax_topk_streaming_packed(Context& context, const SoftmaxTopkProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  StreamingArgs args = streaming_args(context, p);
  const auto k = static_cast<int>(p.k);
  const int candidates = selection::estimated_candidates(k, args.params.segments);
  // In units of 64-bit keys; the slow path sorts k of them, its threshold need not be exact.
  args.params.candidates = std::max({(candidates + 1) / 2, k + kStreamingThreads, 1024});
  if (selection::rows_aligned16(p)) {
    launch<Bf16, true, true, StreamingMode::packed_keys>(context, args);
  } else {
    launch<Bf16, true, false, StreamingMode::packed_keys>(context, args);
  }
}

}  // namespace touchstone::topk
