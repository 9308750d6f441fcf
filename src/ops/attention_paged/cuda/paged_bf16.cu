// cached_attention over keys and values of bf16. wgmma_prefill: rows with many queries go to the prefill
// kernel, the others to the decode kernel, which has all rows of tensor_core and tensor_core_cta; its
// splits are merged by a third. All have the arithmetic of paged_bf16.cuh, so which one attends for a
// query changes no bits.
#include <algorithm>
#include <string>

#include "core/context_access.h"
#include "ops/attention_common/attention_checks.h"
#include "ops/attention_paged/cuda/paged_bf16_decode.cuh"
#include "ops/attention_paged/cuda/paged_bf16_prefill.h"
#include "touchstone/core/checked.h"

namespace touchstone::paged_attention {
namespace {

template <class S, bool kExact, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, tuning::kDecodeWarps / kWarps)
    bf16_decode_kernel(const __grid_constant__ SplitWork work) {
  extern __shared__ __align__(1024) std::byte memory[];
  if constexpr (cuda::kHopper) {
    // The wait comes first: the merge reads lengths before it waits for this kernel.
    cuda::pdl_wait();
    cuda::pdl_launch_dependents();
  }
  auto& shared = *reinterpret_cast<DecodeCtaShared<S, kExact, kWarps>*>(memory);
  DecodeWarp<S, kExact, kWarps>(work, shared).run();
}

// ---- merge --------------------------------------------------------------------------------------

constexpr int kMergeThreads = 128;
constexpr int kMergeWidth = 32;  // numbers of an output that a warp merges

// One warp's part of an output: the splits of one query token and head, in order.
class MergeWarp {
 public:
  __device__ MergeWarp(const SplitWork& work, std::int64_t row, std::int64_t query,
                       std::int64_t head)
      : work_(work),
        query_(query),
        head_(head),
        range_(splits_of(visible_range(work.p, row, query), work.splits, work.split)),
        count_(static_cast<int>(range_.sinks + range_.end - range_.begin)),
        output_((query - work.first_query) * work.p.query_heads + head),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void run(int part) {
    const auto dim = static_cast<int>(work_.p.layers.v_dim);
    const int d = part * kMergeWidth + lane_;
    const float2* const partials = work_.partials + output_ * work_.splits;
    const float* const values = work_.partial_values + output_ * work_.splits * dim + d;
    float sum = 0;
    float weights = 0;
    float largest = minus_infinity();
    for (int tile = 0; tile < count_; tile += 32) {
      // All loads of the tile before the first is waited for.
      float x[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        x[i] = tile + i < count_ ? values[split_of(tile + i) * dim] : 0.0F;
      }
      const bool there = tile + lane_ < count_;
      const float2 own = there ? partials[split_of(tile + lane_)] : float2{minus_infinity(), 0.0F};
      // Lane i has the factors of split i.
      float after = own.x;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const float other = __shfl_up_sync(kAllLanes, after, offset);
        if (lane_ >= offset) after = fmaxf(after, other);
      }
      after = fmaxf(after, largest);
      float before = __shfl_up_sync(kAllLanes, after, 1);
      if (lane_ == 0) before = largest;
      const MergeFactors factors(before, own.x);
      largest = __shfl_sync(kAllLanes, after, 31);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (tile + i >= count_) break;
        const float so_far = __shfl_sync(kAllLanes, factors.so_far, i);
        const float split = __shfl_sync(kAllLanes, factors.split, i);
        const float weight = __shfl_sync(kAllLanes, own.y, i);
        sum = fmaf(sum, so_far, __fmul_rn(x[i], split));
        weights = fmaf(weights, so_far, __fmul_rn(weight, split));
      }
    }
    const PagedAttentionProblem& p = work_.p;
    const SoftmaxEpilogue epilogue(p.sink_logits, head_, largest, weights);
    store_output(p, p.output.offset(query_, head_) + d, finished_value(sum, epilogue));
    if (d == 0 && p.log_sum_exp.data != nullptr) {
      p.log_sum_exp.data[p.log_sum_exp.offset(query_, head_)] = epilogue.log_sum_exp;
    }
  }

 private:
  __device__ std::int64_t split_of(int i) const {
    return i < range_.sinks ? i : i - range_.sinks + range_.begin;
  }

  const SplitWork& work_;
  std::int64_t query_, head_;
  SplitRange range_;
  int count_;
  std::int64_t output_;
  int lane_;
};

__global__ void __launch_bounds__(kMergeThreads)
    bf16_merge_kernel(const __grid_constant__ SplitWork work) {
  if constexpr (cuda::kHopper) cuda::pdl_launch_dependents();
  const auto parts = static_cast<unsigned>(work.p.layers.v_dim) / kMergeWidth;
  const auto heads = static_cast<unsigned>(work.p.query_heads);
  RowCursor cursor(work.p.rows,
                   [&](std::int64_t row) { return row_work(work, row).count * heads * parts; });
  RowItem item;
  constexpr unsigned kWarpsOfBlock = kMergeThreads / 32;
  unsigned i = blockIdx.x * kWarpsOfBlock + threadIdx.x / 32;
  bool waited = false;
  for (; cursor.find(i, item); i += gridDim.x * kWarpsOfBlock) {
    const unsigned part = item.number % parts;
    const unsigned output = item.number / parts;
    const std::int64_t query = row_work(work, item.row).first + output / heads;
    MergeWarp merge(work, item.row, query, output % heads);
    if constexpr (cuda::kHopper) {
      if (!waited) cuda::pdl_wait();
      waited = true;
    }
    merge.run(static_cast<int>(part));
  }
}

// ---- the host's side ----------------------------------------------------------------------------

template <class S, bool kExact, int kWarps>
inline constexpr std::int64_t kDecodeBytes = sizeof(DecodeCtaShared<S, kExact, kWarps>);

template <class S, bool kExact, int kWarps>
void launch_decode(Context& context, const SplitWork& work, unsigned blocks) {
  const auto kernel = bf16_decode_kernel<S, kExact, kWarps>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "cached_attention bf16_decode_kernel", kernel,
               {.blocks = blocks,
                .threads = 32 * kWarps,
                .shared_bytes = kDecodeBytes<S, kExact, kWarps>,
                .pdl = cuda::is_hopper(context)},
               work);
}

template <class S, int kWarps>
void launch_decode(Context& context, const SplitWork& work, unsigned blocks) {
  is_bf16_query(work.p) ? launch_decode<S, true, kWarps>(context, work, blocks)
                        : launch_decode<S, false, kWarps>(context, work, blocks);
}

// In waves of query tokens, so that partial results fit. `ctas`: a CTA for a split instead of a warp.
template <class S>
void decode(Context& context, SplitWork work, bool ctas) {
  const PagedAttentionProblem& p = work.p;
  work.tile = query_tile(context, p);
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const std::int64_t partials = checked_mul(p.query_heads, work.splits, "partial results");
  const std::int64_t query_bytes =
      checked_mul(partials, (p.layers.v_dim + 2) * 4, "partial results");
  constexpr std::int64_t kMaxItems = std::int64_t{1} << 30;
  std::int64_t at_once =
      std::max<std::int64_t>(1, kMaxItems / std::max(p.query_heads * 4, partials));
  const bool merges = work.splits > 1;
  // At least one query token: where it does not fit, workspace() throws with the bytes to reserve.
  if (merges) {
    at_once = std::clamp<std::int64_t>(context.workspace_bytes() / query_bytes, 1, at_once);
  }
  at_once = std::min(at_once, p.queries);
  if (merges) {
    auto* const scratch =
        static_cast<std::byte*>(detail::ContextAccess::workspace(context, at_once * query_bytes));
    work.partials = reinterpret_cast<float2*>(scratch);
    work.partial_values = reinterpret_cast<float*>(scratch + at_once * partials * 8);
  }
  for (std::int64_t first = 0; first < p.queries; first += at_once) {
    work.first_query = first;
    work.queries = std::min(at_once, p.queries - first);
    const std::int64_t items = work.queries * p.layers.kv_heads * work.splits;
    // Over-subscribe the grid (kDecodeWaves) to balance uneven splits.
    const auto blocks = static_cast<unsigned>(
        std::min(items, processors * tuning::kDecodeWarps * tuning::kDecodeWaves));
    ctas ? launch_decode<S, tuning::kCtaWarps>(context, work, blocks)
         : launch_decode<S, 1>(context, work, blocks);
    if (!merges) continue;
    const std::int64_t warps = work.queries * p.query_heads * p.layers.v_dim / kMergeWidth;
    const std::int64_t most = processors * (2048 / kMergeThreads);
    cuda::launch(
        context, "cached_attention bf16_merge_kernel", bf16_merge_kernel,
        {.blocks = static_cast<unsigned>(std::min(ceil_div(warps, kMergeThreads / 32), most)),
         .threads = kMergeThreads,
         .pdl = cuda::is_hopper(context)},
        work);
  }
}

template <class S>
void prefill(Context& context, const PagedAttentionProblem& p) {
  SplitWork work = split_work(p, S::kSplit);
  // First, because it may find too little workspace, and then nothing has been written.
  if (p.rows > 1) {
    work.prefill_queries = tuning::kPrefillQueries;
    decode<S>(context, work, cached_attention_tensor_core_cta_refuses(context, p).empty());
  }
  prefill_bf16(context, work);
}

template <class S>
std::int64_t cta_bytes(const PagedAttentionProblem& p) {
  return is_bf16_query(p) ? kDecodeBytes<S, true, tuning::kCtaWarps>
                          : kDecodeBytes<S, false, tuning::kCtaWarps>;
}

// What all kernels for bf16 refuse.
std::string bf16_refusal(const Context& context, const PagedAttentionProblem& p) {
  if (std::string refusal = cached_attention_tensor_core_refuses(context, p); !refusal.empty()) {
    return refusal;
  }
  if (p.layers.k.dtype == DType::bf16 && p.layers.v.dtype == DType::bf16) return {};
  return attention_common::needs("keys and values", "bf16", name_of(p.layers.k.dtype));
}

}  // namespace

void cached_attention_bf16(Context& context, const PagedAttentionProblem& p, bool ctas) {
  const cuda::DeviceScope scope(context.device().index);
  p.layers.k_dim == 64
      ? decode<Bf16Scheme<64>>(context, split_work(p, Bf16Scheme<64>::kSplit), ctas)
      : decode<Bf16Scheme<128>>(context, split_work(p, Bf16Scheme<128>::kSplit), ctas);
}

std::string cached_attention_wgmma_prefill_refuses(const Context& context,
                                                   const PagedAttentionProblem& p) {
  if (std::string refusal = bf16_refusal(context, p); !refusal.empty()) return refusal;
  // Queries of a row, if all rows but one have one. With a single row that is what there is.
  const std::int64_t queries = p.queries - p.rows + 1;
  if (queries < tuning::kPrefillQueries) {
    return attention_common::below("queries of a row", queries, tuning::kPrefillQueries);
  }
  return prefill_bf16_refusal(context, p);
}

void cached_attention_wgmma_prefill(Context& context, const PagedAttentionProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  p.layers.k_dim == 64 ? prefill<Bf16Scheme<64>>(context, p) : prefill<Bf16Scheme<128>>(context, p);
}

std::string cached_attention_tensor_core_cta_refuses(const Context& context,
                                                     const PagedAttentionProblem& p) {
  if (std::string refusal = bf16_refusal(context, p); !refusal.empty()) return refusal;
  const std::int64_t bytes =
      p.layers.k_dim == 64 ? cta_bytes<Bf16Scheme<64>>(p) : cta_bytes<Bf16Scheme<128>>(p);
  const std::int64_t shared =
      cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (bytes > shared) return attention_common::above("bytes of shared memory", bytes, shared);
  const std::int64_t split =
      p.layers.k_dim == 64 ? Bf16Scheme<64>::kSplit : Bf16Scheme<128>::kSplit;
  const std::int64_t of_row =
      ceil_div(checked_mul(p.pages.table_stride, p.pages.page_tokens), split);
  const std::int64_t splits = checked_mul(checked_mul(p.queries, p.layers.kv_heads), of_row);
  const std::int64_t most =
      tuning::kCtaItems * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  return splits > most ? attention_common::above("queries * kv_heads * splits", splits, most) : "";
}

void cached_attention_tensor_core_cta(Context& context, const PagedAttentionProblem& p) {
  cached_attention_bf16(context, p, true);
}

}  // namespace touchstone::paged_attention
