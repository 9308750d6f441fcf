// Any k of any row: a row's (value, token) pairs are sorted whole, in global memory. For what no
// other kernel takes: correct, deterministic, not fast.
//
// A block sorts one row at a time by a stable radix sort, 8 bits of the value per pass from the
// lowest up. Pairs start in token order and a stable sort keeps that among equals.
#include <algorithm>
#include <string>

#include "core/context_access.h"
#include "cuda/launch.h"
#include "ops/softmax_topk/topk_cuda.cuh"

namespace touchstone::topk {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr std::int64_t kTooLong = std::int64_t{1} << 31;
struct SortArgs {
  Topk p;
  Key* scratch = nullptr;  // two rows of keys per block
};

struct SortShared {
  int start[kDigits];           // where the next key of a digit goes
  int counts[kWarps][kDigits];  // keys of a digit in each warp's part of a tile
  float parts[kWarps];
};

// Keys are sorted descending by their upper words: the digits of the complement, ascending.
__device__ int digit_of(Key key, int shift) {
  return static_cast<int>(~(key >> shift) & (kDigits - 1));
}

// Turns counts into where each digit starts. True when all keys have one digit.
__device__ bool prefix_digits(SortShared& shared, int keys) {
  const int thread = static_cast<int>(threadIdx.x);
  const int count = thread < kDigits ? shared.start[thread] : 0;
  const bool single = __syncthreads_or(static_cast<int>(count == keys)) != 0;
  int sum = count;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(kAllLanes, sum, offset);
    if (thread % 32 >= offset) sum += before;
  }
  if (thread < kDigits && thread % 32 == 31) shared.counts[0][thread / 32] = sum;
  __syncthreads();
  if (thread < kDigits) {
    int start = sum - count;
    for (int warp = 0; warp < thread / 32; ++warp) start += shared.counts[0][warp];
    shared.start[thread] = start;
  }
  __syncthreads();
  return single;
}

// How many keys have each digit, in shared.start.
__device__ void count_digits(SortShared& shared, const Key* from, int keys, int shift) {
  if (threadIdx.x < kDigits) shared.start[threadIdx.x] = 0;
  __syncthreads();
  // A warp adds equal digits once: sorted data would queue up otherwise. Integers: in any order.
  for (std::int64_t i = threadIdx.x; i < keys; i += kThreads) {
    const int digit = digit_of(from[i], shift);
    const unsigned equal = __match_any_sync(__activemask(), digit);
    if ((equal & ((1U << (threadIdx.x % 32)) - 1)) == 0) {
      atomicAdd(&shared.start[digit], __popc(equal));
    }
  }
  __syncthreads();
}

// Puts the keys of one tile, in order, where their digits go.
__device__ void scatter_tile(SortShared& shared, Key key, bool there, Key* to, int shift) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const unsigned below = (1U << (threadIdx.x % 32)) - 1;
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * kDigits; i += kThreads) {
    shared.counts[i / kDigits][i % kDigits] = 0;
  }
  __syncthreads();
  // Lanes without a key are last in their warp and have a digit of their own.
  const int digit = there ? digit_of(key, shift) : kDigits;
  const unsigned equal = __match_any_sync(kAllLanes, digit);
  if (there && (equal & below) == 0) shared.counts[warp][digit] = __popc(equal);
  __syncthreads();
  if (threadIdx.x < kDigits) {
    int next = shared.start[threadIdx.x];
    for (auto& counts : shared.counts) {
      const int count = counts[threadIdx.x];
      counts[threadIdx.x] = next;
      next += count;
    }
    shared.start[threadIdx.x] = next;
  }
  __syncthreads();
  if (there) to[shared.counts[warp][digit] + __popc(equal & below)] = key;
  __syncthreads();
}

// Sorts `keys` keys; both buffers are used, and the one that has them in the end is returned.
__device__ Key* sort_keys(SortShared& shared, Key* from, Key* to, int keys) {
  for (int shift = 32; shift < 64; shift += kDigitBits) {
    count_digits(shared, from, keys, shift);
    if (prefix_digits(shared, keys)) continue;
    for (std::int64_t first = 0; first < keys; first += kThreads) {
      const std::int64_t i = first + threadIdx.x;
      const bool there = i < keys;
      scatter_tile(shared, there ? from[i] : 0, there, to, shift);
    }
    Key* const done = to;
    to = from;
    from = done;
  }
  return from;
}

// One value from all threads of the block, by a fixed tree; the same in every thread.
template <class Combine>
__device__ float over_block(SortShared& shared, float part, Combine combine) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    part = combine(part, __shfl_xor_sync(kAllLanes, part, offset));
  }
  __syncthreads();  // the parts of the call before have been read
  if (threadIdx.x % 32 == 0) shared.parts[threadIdx.x / 32] = part;
  __syncthreads();
  part = shared.parts[threadIdx.x % 32];
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
      : p(args.p), shared(memory), row(r), keys(static_cast<int>(args.p.vocabulary)) {
    buffer = args.scratch + 2 * blockIdx.x * p.vocabulary;
  }

  __device__ void run() {
    const double inverse = inverse_temperature(p, row);
    if (inverse == 0) return put_no_row(kRowBadParameter);
    float largest = -infinity();
    if (!read(largest)) return put_no_row(kRowHasNan);
    const Weights weights = weigh(largest, inverse);
    __syncthreads();  // the keys have been read in token order
    put_row(sort_keys(shared, buffer, buffer + keys, keys), weights);
  }

 private:
  // Writes the keys of the row and finds its largest value. False when it has NaN.
  __device__ bool read(float& largest) {
    const RowValues<T> values = values_of<T>(p, row);
    bool nan = false;
    for (std::int64_t token = threadIdx.x; token < keys; token += kThreads) {
      const float v = values(token);
      nan = nan || v != v;
      largest = fmaxf(largest, v);
      buffer[token] = key_of(v, static_cast<std::uint32_t>(token));
    }
    largest = over_block(shared, largest, [](float a, float b) { return fmaxf(a, b); });
    return __syncthreads_or(static_cast<int>(nan)) == 0;
  }

  // Over the keys in token order.
  __device__ Weights weigh(float largest, double inverse) {
    const float scale = exponent_scale(inverse);
    const float product = __fmul_rn(largest, scale);
    const bool huge = !(fabsf(product) < kLargeExponent);
    Weights weights{inverse, scale, largest, {huge ? largest : product, 0}, huge};
    weights.row.sum = sum_weights(weights, buffer, keys);
    return weights;
  }

  __device__ float sum_weights(const Weights& weights, const Key* from, std::int64_t count) {
    float part = 0;
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
      part += exp2_fast(weights.exponent(value_of(from[i])));
    }
    return over_block(shared, part, [](float a, float b) { return a + b; });
  }

  __device__ void put_row(const Key* sorted, const Weights& weights) {
    const float total = p.renormalize ? sum_weights(weights, sorted, p.k) : weights.row.sum;
    for (std::int64_t j = threadIdx.x; j < p.k; j += kThreads) {
      put_place(p, row, j, sorted[j], weights, total);
    }
    if (threadIdx.x != 0) return;
    if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = weights.log_sum_exp();
    if (p.status != nullptr) {
      p.status[row] = (weights.infinite() ? kRowHasInfinity : 0) |
                      (weights.masked() ? kRowAllMasked : 0) |
                      (value_of(sorted[p.k - 1]) == -infinity() ? kRowFewerThanK : 0);
    }
  }

  __device__ void put_no_row(std::int32_t status) {
    for (std::int64_t j = threadIdx.x; j < p.k; j += kThreads) put_nothing(p, row, j);
    if (threadIdx.x != 0) return;
    if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = not_a_number();
    if (p.status != nullptr) p.status[row] = status;
  }

  const Topk& p;
  SortShared& shared;
  std::int64_t row;
  int keys;
  Key* buffer;
};

template <class T>
__global__ void __launch_bounds__(kThreads) sort_kernel(const __grid_constant__ SortArgs args) {
  __shared__ SortShared shared;
  for (std::int64_t row = blockIdx.x; row < args.p.rows; row += gridDim.x) {
    SortRow<T>(args, shared, row).run();
    __syncthreads();  // the next row's keys replace this one's
  }
}

}  // namespace

std::string softmax_topk_sort_refuses(const Context& /*context*/, const Topk& p) {
  return p.vocabulary >= kTooLong ? "rows have 2^31 tokens or more" : "";
}

void softmax_topk_sort(Context& context, const Topk& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t row_bytes = 2 * p.vocabulary * static_cast<std::int64_t>(sizeof(Key));
  const std::int64_t most = std::min<std::int64_t>(
      p.rows, 2 * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount));
  // At least one: where there is no room for it, workspace() says how much to reserve.
  const std::int64_t blocks =
      std::clamp<std::int64_t>(context.workspace_bytes() / row_bytes, 1, most);
  SortArgs args;
  args.p = p;
  args.scratch = static_cast<Key*>(detail::ContextAccess::workspace(context, blocks * row_bytes));
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(blocks), .threads = kThreads};
  visit_float_dtype(p.dtype, [&]<class T>() {
    if constexpr (sizeof(T) <= 4) {
      cuda::launch(context, "softmax_topk sort_kernel", sort_kernel<T>, shape, args);
    }
  });
}

}  // namespace touchstone::topk
