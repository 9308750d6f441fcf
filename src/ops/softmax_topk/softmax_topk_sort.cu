// softmax_topk for any k and any row: a row's (value, token) keys are sorted in the workspace. The
// fallback where no other kernel applies: deterministic, not fast.
//
// A CTA sorts one row at a time by a stable LSD radix sort over the value, 8 bits per pass; keys
// start in token order, which a stable sort keeps among equal values. Four passes, one launch for
// all rows, and a workspace of two rows of keys per CTA. CUB's segmented radix sort would need the
// same passes, one key-building and one epilogue launch per batch of rows that fits the workspace,
// and a second copy of the keys in its own layout.
#include <algorithm>
#include <string>

#include "core/context_access.h"
#include "cuda/launch.h"
#include "ops/selection/launch_params.h"
#include "ops/softmax_topk/softmax_topk_epilogue.cuh"

namespace touchstone::topk {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 31) - 1;

using selection::key_of;

struct SortArgs {
  SoftmaxTopkProblem p;
  Key* scratch = nullptr;  // two rows of keys per block
};

struct SortShared {
  int start[kDigits];           // destination of the next key of each digit
  int counts[kWarps][kDigits];  // keys per digit and warp of a tile
  float parts[kWarps];
};

// Descending order of keys is ascending order of the complement.
__device__ int digit_of(Key key, int shift) {
  return static_cast<int>(~(key >> shift) & (kDigits - 1));
}

// Exclusive prefix sum over the digit counts. True if all keys share one digit.
__device__ bool prefix_digits(SortShared& smem, int keys) {
  const int thread = static_cast<int>(threadIdx.x);
  const int count = thread < kDigits ? smem.start[thread] : 0;
  const bool single = __syncthreads_or(static_cast<int>(count == keys)) != 0;
  int sum = count;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(kAllLanes, sum, offset);
    if (thread % 32 >= offset) sum += before;
  }
  if (thread < kDigits && thread % 32 == 31) smem.counts[0][thread / 32] = sum;
  __syncthreads();
  if (thread < kDigits) {
    int start = sum - count;
    for (int warp = 0; warp < thread / 32; ++warp) start += smem.counts[0][warp];
    smem.start[thread] = start;
  }
  __syncthreads();
  return single;
}

// Histogram of digits in smem.start.
__device__ void count_digits(SortShared& smem, const Key* from, int keys, int shift) {
  if (threadIdx.x < kDigits) smem.start[threadIdx.x] = 0;
  __syncthreads();
  // Warp-aggregated atomics: sorted data would serialize otherwise.
  for (std::int64_t i = threadIdx.x; i < keys; i += kThreads) {
    const int digit = digit_of(from[i], shift);
    const unsigned equal = __match_any_sync(__activemask(), digit);
    if ((equal & ((1U << (threadIdx.x % 32)) - 1)) == 0) {
      atomicAdd(&smem.start[digit], __popc(equal));
    }
  }
  __syncthreads();
}

// Scatters the keys of one tile, in order.
__device__ void scatter_tile(SortShared& smem, Key key, bool there, Key* to, int shift) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const unsigned below = (1U << (threadIdx.x % 32)) - 1;
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * kDigits; i += kThreads) {
    smem.counts[i / kDigits][i % kDigits] = 0;
  }
  __syncthreads();
  // Lanes without a key come last in their warp and get a digit of their own.
  const int digit = there ? digit_of(key, shift) : kDigits;
  const unsigned equal = __match_any_sync(kAllLanes, digit);
  if (there && (equal & below) == 0) smem.counts[warp][digit] = __popc(equal);
  __syncthreads();
  if (threadIdx.x < kDigits) {
    int next = smem.start[threadIdx.x];
    for (auto& counts : smem.counts) {
      const int count = counts[threadIdx.x];
      counts[threadIdx.x] = next;
      next += count;
    }
    smem.start[threadIdx.x] = next;
  }
  __syncthreads();
  if (there) to[smem.counts[warp][digit] + __popc(equal & below)] = key;
  __syncthreads();
}

// Sorts `keys` keys, alternating between two buffers; returns the one that holds the result.
__device__ Key* sort_keys(SortShared& smem, Key* from, Key* to, int keys) {
  for (int shift = 32; shift < 64; shift += kDigitBits) {
    count_digits(smem, from, keys, shift);
    if (prefix_digits(smem, keys)) continue;
    for (std::int64_t first = 0; first < keys; first += kThreads) {
      const std::int64_t i = first + threadIdx.x;
      const bool there = i < keys;
      scatter_tile(smem, there ? from[i] : 0, there, to, shift);
    }
    Key* const done = to;
    to = from;
    from = done;
  }
  return from;
}

// Block reduction by a fixed tree; the result is in every thread.
template <class Combine>
__device__ float over_block(SortShared& smem, float part, Combine combine) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    part = combine(part, __shfl_xor_sync(kAllLanes, part, offset));
  }
  __syncthreads();  // the parts of the previous call have been read
  if (threadIdx.x % 32 == 0) smem.parts[threadIdx.x / 32] = part;
  __syncthreads();
  part = smem.parts[threadIdx.x % 32];
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    part = combine(part, __shfl_xor_sync(kAllLanes, part, offset));
  }
  return part;
}

template <class T>
class SortRow {
 public:
  __device__ SortRow(const SortArgs& args, SortShared& memory, std::int64_t r)
      : p(args.p), smem(memory), row(r), keys(static_cast<int>(args.p.vocabulary)) {
    buffer = args.scratch + 2 * blockIdx.x * p.vocabulary;
  }

  __device__ void run() {
    const double inverse = inverse_temperature(p, row);
    if (inverse == 0) return store_invalid(RowStatus::bad_parameter);
    float largest = -infinity();
    if (!read(largest)) return store_invalid(RowStatus::has_nan);
    const Weights weights = weigh(largest, inverse);
    __syncthreads();  // the keys have been read in token order
    store_row(sort_keys(smem, buffer, buffer + keys, keys), weights);
  }

 private:
  // Writes the keys of the row and finds its largest value. Returns false if the row has NaN.
  __device__ bool read(float& largest) {
    const RowValues<T> values = values_of<T>(p, row);
    bool nan = false;
    for (std::int64_t token = threadIdx.x; token < keys; token += kThreads) {
      const float v = values(token);
      nan = nan || v != v;
      largest = fmaxf(largest, v);
      buffer[token] = key_of(v, static_cast<std::uint32_t>(token));
    }
    largest = over_block(smem, largest, [](float a, float b) { return fmaxf(a, b); });
    return __syncthreads_or(static_cast<int>(nan)) == 0;
  }

  // The row sum, over the keys in token order.
  __device__ Weights weigh(float largest, double inverse) {
    const float scale = exponent_scale(inverse);
    const float product = __fmul_rn(largest, scale);
    const bool huge = !(fabsf(product) < selection::kLargeExponent);
    Weights weights{inverse, scale, largest, {huge ? largest : product, 0}, huge};
    weights.row.sum = sum_weights(weights, buffer, keys);
    return weights;
  }

  __device__ float sum_weights(const Weights& weights, const Key* from, std::int64_t count) {
    float part = 0;
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
      part += exp2_fast(weights.exponent(value_of(from[i])));
    }
    return over_block(smem, part, [](float a, float b) { return a + b; });
  }

  __device__ void store_row(const Key* sorted, const Weights& weights) {
    const float total = p.renormalize ? sum_weights(weights, sorted, p.k) : weights.row.sum;
    for (std::int64_t j = threadIdx.x; j < p.k; j += kThreads) {
      store_slot(p, row, j, sorted[j], weights, total);
    }
    if (threadIdx.x != 0) return;
    if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = weights.log_sum_exp();
    if (p.status != nullptr) {
      RowStatus status = weights.infinite() ? RowStatus::has_infinity : RowStatus::ok;
      if (weights.masked()) status |= RowStatus::all_masked;
      if (value_of(sorted[p.k - 1]) == -infinity()) status |= RowStatus::fewer_than_k;
      p.status[row] = to_int(status);
    }
  }

  __device__ void store_invalid(RowStatus status) {
    for (std::int64_t j = threadIdx.x; j < p.k; j += kThreads) store_invalid_slot(p, row, j);
    if (threadIdx.x != 0) return;
    if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = not_a_number();
    if (p.status != nullptr) p.status[row] = to_int(status);
  }

  const SoftmaxTopkProblem& p;
  SortShared& smem;
  std::int64_t row;
  int keys;
  Key* buffer;
};

template <class T>
__global__ void __launch_bounds__(kThreads) sort_kernel(const __grid_constant__ SortArgs args) {
  __shared__ SortShared smem;
  for (std::int64_t row = blockIdx.x; row < args.p.rows; row += gridDim.x) {
    SortRow<T>(args, smem, row).run();
    __syncthreads();  // the next row reuses the buffers
  }
}

}  // namespace

std::string softmax_topk_sort_refuses(const Context& /*context*/, const SoftmaxTopkProblem& p) {
  return p.vocabulary > kMaxTokens ? selection::too_large("V", p.vocabulary, kMaxTokens) : "";
}

void softmax_topk_sort(Context& context, const SoftmaxTopkProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t row_bytes = 2 * p.vocabulary * static_cast<std::int64_t>(sizeof(Key));
  const std::int64_t most = std::min<std::int64_t>(
      p.rows, 2 * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount));
  // At least one CTA: workspace() reports how much to reserve if even that does not fit.
  const std::int64_t blocks =
      std::clamp<std::int64_t>(context.workspace_bytes() / row_bytes, 1, most);
  SortArgs args;
  args.p = p;
  args.scratch = static_cast<Key*>(detail::ContextAccess::workspace(context, blocks * row_bytes));
  const cuda::LaunchShape grid{.blocks = static_cast<unsigned>(blocks), .threads = kThreads};
  cuda::visit_dtype(p.dtype, [&]<class T>() {
    cuda::launch(context, "softmax_topk sort_kernel", sort_kernel<T>, grid, args);
  });
}

}  // namespace touchstone::topk
