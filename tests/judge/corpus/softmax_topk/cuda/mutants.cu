// Softmax and top-k on a GPU, right except for one planted bug at a time; see ../mutants.cc. Built
// where there is nvcc, run where there is a GPU.
//
// The right code gives each row to one of at most 1024 blocks of eight warps: an online softmax in
// every thread, merged through shared memory, then k rounds that look for the largest logit behind
// the one found before.
#include <cuda_fp16.h>

#include <cstdint>

#define MUTANTS(MUTANT)                                                                      \
  MUTANT(cuda_none, "nothing: the right code")                                               \
  MUTANT(cuda_last_column, "the last column is not looked at")                               \
  MUTANT(cuda_tail_dropped, "columns behind the last whole block width are not looked at")   \
  MUTANT(cuda_first_tile_only, "each thread looks at one column")                            \
  MUTANT(cuda_rows_capped, "rows beyond the number of blocks are lost")                      \
  MUTANT(cuda_first_row_of_pair, "only even rows are written")                               \
  MUTANT(cuda_warps_dropped, "the merge of sums looks at five of eight warps")               \
  MUTANT(cuda_half_block_maximum, "the search for places merges half of the threads")        \
  MUTANT(cuda_sum_of_thread_0, "rows are divided by the sum of thread 0")                    \
  MUTANT(cuda_merge_not_rescaled, "sums of threads with other maxima are added as they are") \
  MUTANT(cuda_rescale_inverted, "the running sum is multiplied by exp(new - old)")           \
  MUTANT(cuda_no_maximum, "exp without subtracting the maximum")                             \
  MUTANT(cuda_stale_sum, "the sum in shared memory is not emptied between rows")             \
  MUTANT(cuda_sum_over_k, "probabilities sum to 1 over the k kept")                          \
  MUTANT(cuda_half_sum, "every thread sums in __half")                                       \
  MUTANT(cuda_k_at_most_32, "one warp writes the places: at most 32")                        \
  MUTANT(cuda_ties_dropped, "only logits below the last one found are looked at")            \
  MUTANT(cuda_index_in_block, "the index is that of the thread")                             \
  MUTANT(cuda_index_from_one, "indices count from 1")                                        \
  MUTANT(cuda_nan_swallowed, "fmaxf and a guard lose the NaN")                               \
  MUTANT(cuda_masked_row_nan, "a row of -inf only gives 0 / 0")                              \
  MUTANT(cuda_fast_exp, "__expf of logits that were not reduced")                            \
  MUTANT(cuda_launch_fails, "2048 threads in a block, and nobody asks whether it started")   \
  MUTANT(cuda_k_not_checked, "k above vocab is cut down and called a success")               \
  MUTANT(cuda_writes_past_end, "one more place than k is written in the last row")           \
  MUTANT(cuda_input_overwritten, "the first logit is overwritten")

namespace {

#define NAME(name, what) name,
enum Bug { MUTANTS(NAME) };
#undef NAME

constexpr int kThreads = 256, kWarps = 8, kMostBlocks = 1024;

struct Place {
  float value;
  int32_t index;
};

__device__ bool before(Place a, Place b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

struct Softmax {
  float top;
  double sum;
  int has_nan;
};

__device__ Softmax nothing() { return {-INFINITY, 0, 0}; }

// One more column of a thread's own part.
__device__ void count(Bug bug, Softmax& s, float v) {
  s.has_nan |= isnan(v) && bug != cuda_nan_swallowed;
  if (v == -INFINITY || isnan(v)) return;
  if (v > s.top) {
    const double difference = static_cast<double>(s.top) - v;
    s.sum = s.sum == 0 ? 0 : s.sum * exp(bug == cuda_rescale_inverted ? -difference : difference);
    s.top = v;
  }
  double term = exp(static_cast<double>(v) - s.top);
  if (bug == cuda_no_maximum) term = static_cast<double>(expf(v));
  if (bug == cuda_fast_exp) term = static_cast<double>(__expf(v) / __expf(s.top));
  s.sum += term;
  if (bug == cuda_half_sum) s.sum = __half2float(__float2half(static_cast<float>(s.sum)));
}

__device__ void merge(Bug bug, Softmax& a, const Softmax& b) {
  a.has_nan |= b.has_nan;
  if (b.top == -INFINITY) return;
  const float top = fmaxf(a.top, b.top);
  const bool plain = bug == cuda_merge_not_rescaled || bug == cuda_no_maximum;
  const double own = a.top == -INFINITY ? 0 : plain ? 1 : exp(static_cast<double>(a.top) - top);
  a.sum = a.sum * own + b.sum * (plain ? 1 : exp(static_cast<double>(b.top) - top));
  a.top = top;
}

__device__ int64_t columns(Bug bug, int64_t vocab) {
  if (bug == cuda_last_column && vocab > 1) return vocab - 1;
  if (bug == cuda_tail_dropped && vocab > kThreads) return vocab / kThreads * kThreads;
  if (bug == cuda_first_tile_only && vocab > kThreads) return kThreads;
  return vocab;
}

// The first place behind `last`, for everybody.
__device__ Place next_place(Bug bug, const float* row, int64_t vocab, Place last, Place* shared) {
  Place best{-INFINITY, INT32_MAX};
  for (int64_t i = threadIdx.x; i < columns(bug, vocab); i += kThreads) {
    const Place p{isnan(row[i]) ? -INFINITY : row[i], static_cast<int32_t>(i)};
    const bool behind = bug == cuda_ties_dropped ? p.value < last.value : before(last, p);
    if (behind && before(p, best)) best = p;
  }
  shared[threadIdx.x] = best;
  __syncthreads();
  for (int width = bug == cuda_half_block_maximum ? kThreads / 4 : kThreads / 2; width > 0;
       width /= 2) {
    if (threadIdx.x < width && before(shared[threadIdx.x + width], shared[threadIdx.x])) {
      shared[threadIdx.x] = shared[threadIdx.x + width];
    }
    __syncthreads();
  }
  const Place found = shared[0];
  __syncthreads();
  return found;
}

__device__ void write_row(Bug bug, const float* row, int64_t vocab, int64_t k, const Softmax& s,
                          Place* shared, float* probabilities, int32_t* indices) {
  Place place{INFINITY, -1};
  double kept = 0;
  if (bug == cuda_sum_over_k) {
    for (int64_t j = 0; j < k; ++j) {
      place = next_place(bug, row, vocab, place, shared);
      kept += exp(static_cast<double>(place.value) - s.top);
    }
    place = {INFINITY, -1};
  }
  for (int64_t j = 0; j < k; ++j) {
    place = next_place(bug, row, vocab, place, shared);
    if (threadIdx.x != 0 || (bug == cuda_k_at_most_32 && j >= 32)) continue;
    double p = exp(static_cast<double>(place.value) - s.top);
    if (bug == cuda_no_maximum) p = static_cast<double>(expf(place.value));
    p /= bug == cuda_sum_over_k ? kept : s.sum;
    if (place.value == -INFINITY && bug != cuda_masked_row_nan) p = 0;
    if (s.has_nan) p = NAN;
    probabilities[j] = static_cast<float>(p);
    int32_t index = place.index;
    if (bug == cuda_index_in_block) index %= kThreads;
    indices[j] = index + (bug == cuda_index_from_one);
  }
}

__global__ void softmax_topk_kernel(Bug bug, int64_t rows, int64_t vocab, int64_t k,
                                    const float* logits, float* probabilities, int32_t* indices) {
  __shared__ Place places[kThreads];
  __shared__ Softmax parts[kThreads];
  __shared__ Softmax whole;
  if (threadIdx.x == 0) whole = nothing();
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    if (bug == cuda_rows_capped && r >= gridDim.x) return;
    if (bug == cuda_first_row_of_pair && r % 2 == 1) continue;
    const float* row = logits + r * vocab;
    Softmax own = nothing();
    for (int64_t i = threadIdx.x; i < columns(bug, vocab); i += kThreads) count(bug, own, row[i]);
    parts[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
      const double stale = bug == cuda_stale_sum ? whole.sum : 0;
      Softmax all = nothing();
      const int warps = bug == cuda_warps_dropped ? 5 : kWarps;
      for (int t = 0; t < warps * 32; ++t) merge(bug, all, parts[t]);
      // The maximum and the NaN of all threads, also where a bug loses their sums.
      for (int t = 0; t < kThreads; ++t) all.has_nan |= parts[t].has_nan;
      if (bug == cuda_sum_of_thread_0) all.sum = parts[0].sum;
      all.sum += stale;
      whole = all;
    }
    __syncthreads();
    write_row(bug, row, vocab, k, whole, places, probabilities + r * k, indices + r * k);
    __syncthreads();
  }
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  if (bug == cuda_writes_past_end) indices[rows * k] = -1;
  if (bug == cuda_input_overwritten) const_cast<float*>(logits)[0] = logits[0] + 1;
}

int run(Bug bug, int64_t rows, int64_t vocab, int64_t k, const float* logits, float* probabilities,
        int32_t* indices, void* stream) {
  if (k < 1 || k > vocab) return bug == cuda_k_not_checked ? 0 : 1;
  if (rows == 0) return 0;
  const auto blocks = static_cast<unsigned>(rows < kMostBlocks ? rows : kMostBlocks);
  const unsigned threads = bug == cuda_launch_fails ? 2048 : kThreads;
  softmax_topk_kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(
      bug, rows, vocab, k, logits, probabilities, indices);
  const bool launched = cudaGetLastError() == cudaSuccess;
  return launched || bug == cuda_launch_fails ? 0 : 1;
}

}  // namespace

#define EXPORT(name, what)                                                                         \
  extern "C" int softmax_topk__##name(int64_t rows, int64_t vocab, int64_t k, const float* logits, \
                                      float* probabilities, int32_t* indices, void* stream) {      \
    return run(name, rows, vocab, k, logits, probabilities, indices, stream);                      \
  }
MUTANTS(EXPORT)
