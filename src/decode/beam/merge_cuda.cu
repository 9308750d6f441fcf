// Merges the best tokens of the rows of a segment into its best continuations.
//
// A CTA holds up to MergePlan::lists sorted lists in shared memory and halves their number until one
// is left: of two lists of L, max(a[i], b[L - 1 - i]) is a bitonic sequence of the L best, which
// log2(L) compare-exchange steps sort. The order is total (score, then row, then slot), so the
// result does not depend on how rows are grouped.
#include <cstdint>

#include "cuda/launch.h"
#include "decode/beam/merge_plan.h"
#include "decode/beam/select.h"
#include "touchstone/ops/row_status.h"

namespace touchstone::inline v0::decode::beam {
namespace {

using Key = unsigned long long;

constexpr int kMaxThreads = 1024;
constexpr int kSlotBits = 21;
static_assert(kMaxBeams <= 1 << (32 - kSlotBits));

struct MergeArgs {
  MergeProblem p;
  MergeEntry* in = nullptr;   // lists of the launch before; null: the rows
  MergeEntry* out = nullptr;  // null: the output
  int length = 0;
  int lists = 0;   // of a CTA
  int shrink = 1;  // rows per list of `in`
  int blocks_per_segment = 1;
  int lists_stride = 0;  // of `in`, per segment
};

// Order-preserving; -0 and +0 map to one word, no score to 0. Undefined for NaN.
__device__ Key ordered_score(double score) {
  const auto bits = static_cast<Key>(__double_as_longlong(score + 0.0));
  return (bits >> 63) != 0 ? ~bits : bits | Key{1} << 63;
}

__device__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000U)); }

// What the log-probabilities of a row are computed from.
struct RowBase {
  const float* logits;
  const std::int32_t* tokens;
  float best;
  float best_log_probability;
  double score;

  __device__ RowBase(const MergeProblem& p, std::int64_t row)
      : logits(p.logits + row * p.vocabulary), tokens(p.tokens + row * p.tokens_per_row) {
    const bool own = p.normalize_allowed != nullptr && p.normalize_allowed[row] != 0;
    const std::int32_t token = own ? tokens[0] : p.best[row * p.best_stride];
    best = token < 0 ? 0 : logits[token];
    best_log_probability = own ? p.own_log_probability[row * p.tokens_per_row]
                               : p.best_log_probability[row * p.best_stride];
    score = p.scores[row];
  }
  // As log_probability_of() on the CPU. -inf for a slot without a token.
  __device__ float log_probability(std::int64_t slot) const {
    const std::int32_t token = tokens[slot];
    const float v = token < 0 ? minus_infinity() : logits[token];
    if (v == minus_infinity()) return v;
    if (best == -minus_infinity()) {
      return v == -minus_infinity() ? best_log_probability : minus_infinity();
    }
    return static_cast<float>(static_cast<double>(v) - static_cast<double>(best) +
                              static_cast<double>(best_log_probability));
  }
};

class Merge {
 public:
  __device__ Merge(const MergeArgs& merge_args, Key* key_memory, std::uint32_t* id_memory)
      : a(merge_args),
        keys(key_memory),
        ids(id_memory),
        segment(static_cast<int>(blockIdx.x) / a.blocks_per_segment),
        block(static_cast<int>(blockIdx.x) % a.blocks_per_segment),
        s(a.p.segments[segment]),
        lists_left((static_cast<int>(s.rows) + a.shrink - 1) / a.shrink) {}

  __device__ void run() {
    const int first = block * a.lists;
    if (first >= lists_left) return;
    if (a.in != nullptr) {
      load_lists(first);
    } else if (a.p.masks != nullptr) {
      load_masked_rows(first);
    } else {
      load_rows(first);
    }
    __syncthreads();
    const int held = min(a.lists, lists_left - first);
    for (int stride = 1; stride < held; stride *= 2) halve(stride);
    if (a.out != nullptr) {
      store_list();
    } else {
      store_output();
    }
  }

 private:
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ void set(int at, Key key, std::uint32_t id) {
    keys[at] = key;
    ids[at] = id;
  }

  __device__ void load_lists(int first) {
    const MergeEntry* const from =
        a.in + (static_cast<std::int64_t>(segment) * a.lists_stride + first) * a.length;
    const int held = min(a.lists, lists_left - first);
    for (int i = thread(); i < a.lists * a.length; i += threads()) {
      const MergeEntry entry = i < held * a.length ? from[i] : MergeEntry{};
      set(i, entry.key, entry.id);
    }
  }

  __device__ void load_rows(int first) {
    const int slots = static_cast<int>(
        min(static_cast<long long>(a.p.tokens_per_row), static_cast<long long>(a.length)));
    for (int i = thread(); i < a.lists * a.length; i += threads()) {
      const int row = first + i / a.length;
      const int slot = i % a.length;
      Key key = 0;
      if (row < lists_left && slot < slots) {
        const RowBase base(a.p, s.row + row);
        const float value = base.log_probability(slot);
        if (value > minus_infinity()) key = ordered_score(base.score + static_cast<double>(value));
      }
      set(i, key, static_cast<std::uint32_t>(row) << kSlotBits | static_cast<unsigned>(slot));
    }
  }

  // One warp per row: masked tokens leave gaps, which are closed.
  __device__ void load_masked_rows(int first) {
    const int lane = thread() % 32;
    for (int list = thread() / 32; list < a.lists; list += threads() / 32) {
      const int row = first + list;
      int filled = 0;
      if (row < lists_left) {
        const RowBase base(a.p, s.row + row);
        const std::int32_t* const mask = a.p.masks + (s.row + row) * a.p.mask_words;
        for (int begin = 0; begin < a.p.tokens_per_row && filled < a.length; begin += 32) {
          const int slot = begin + lane;
          const std::int32_t token = slot < a.p.tokens_per_row ? base.tokens[slot] : -1;
          const bool taken =
              token >= 0 &&
              (static_cast<std::uint32_t>(mask[token / 32]) >> (token % 32) & 1U) != 0;
          const unsigned votes = __ballot_sync(~0U, taken);
          const int at = filled + __popc(votes & ((1U << lane) - 1U));
          if (taken && at < a.length) {
            const float value = base.log_probability(slot);
            const Key key = value > minus_infinity()
                                ? ordered_score(base.score + static_cast<double>(value))
                                : 0;
            set(list * a.length + at, key,
                static_cast<std::uint32_t>(row) << kSlotBits | static_cast<unsigned>(slot));
          }
          filled += __popc(votes);
        }
      }
      for (int i = filled + lane; i < a.length; i += 32) set(list * a.length + i, 0, 0);
    }
  }

  __device__ bool before(int i, int j) const {
    return keys[i] != keys[j] ? keys[i] > keys[j] : ids[i] < ids[j];
  }

  // Merges list 2 i * stride with list (2 i + 1) * stride into the former, for all i.
  __device__ void halve(int stride) {
    const int half = a.length / 2;
    const int bits = __ffs(a.length) - 1;
    const int pairs = a.lists / (2 * stride);
    for (int i = thread(); i < pairs * a.length; i += threads()) {
      const int at = i & (a.length - 1);
      const int left = (i >> bits) * 2 * stride * a.length + at;
      const int right = ((i >> bits) * 2 + 1) * stride * a.length + (a.length - 1 - at);
      if (before(right, left)) set(left, keys[right], ids[right]);
    }
    for (int step = half; step > 0; step /= 2) {
      __syncthreads();
      for (int i = thread(); i < pairs * half; i += threads()) {
        const int at = i & (half - 1);
        const int low = (at / step) * 2 * step + at % step;
        const int left = (i >> (bits - 1)) * 2 * stride * a.length + low;
        if (!before(left + step, left)) continue;
        const Key key = keys[left];
        const std::uint32_t id = ids[left];
        set(left, keys[left + step], ids[left + step]);
        set(left + step, key, id);
      }
    }
    __syncthreads();
  }

  __device__ void store_list() {
    MergeEntry* const to =
        a.out + (static_cast<std::int64_t>(segment) * a.blocks_per_segment + block) * a.length;
    for (int i = thread(); i < a.length; i += threads()) to[i] = {keys[i], ids[i], 0};
  }

  __device__ void store_output() {
    Candidate* const to = a.p.output + a.p.offsets[segment];
    for (int i = thread(); i < s.keep; i += threads()) {
      Candidate candidate;
      if (keys[i] != 0) {
        const std::int64_t row = s.row + (ids[i] >> kSlotBits);
        const std::uint32_t slot = ids[i] & ((1U << kSlotBits) - 1);
        const RowBase base(a.p, row);
        candidate.log_probability = base.log_probability(slot);
        candidate.score = base.score + static_cast<double>(candidate.log_probability);
        candidate.row = static_cast<std::int32_t>(row);
        candidate.token = base.tokens[slot];
      }
      to[i] = candidate;
    }
    int nan_row = INT32_MAX;
    for (int r = thread(); r < s.rows; r += threads()) {
      if ((a.p.status[s.row + r] & static_cast<std::int32_t>(RowStatus::has_nan)) != 0) {
        nan_row = min(nan_row, r);
      }
    }
    nan_row = __reduce_min_sync(~0U, nan_row);
    if (!__syncthreads_or(static_cast<int>(nan_row != INT32_MAX))) return;
    if (thread() == 0) ids[0] = INT32_MAX;
    __syncthreads();
    if (thread() % 32 == 0) atomicMin(&ids[0], static_cast<std::uint32_t>(nan_row));
    __syncthreads();
    if (thread() == 0) {
      to[0].row = -2 - static_cast<std::int32_t>(s.row + static_cast<std::int64_t>(ids[0]));
    }
  }

  const MergeArgs& a;
  Key* keys;
  std::uint32_t* ids;
  int segment, block;
  Segment s;
  int lists_left;
};

__global__ void __launch_bounds__(kMaxThreads)
    merge_kernel(const __grid_constant__ MergeArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* const keys = reinterpret_cast<Key*>(memory);
  Merge(args, keys, reinterpret_cast<std::uint32_t*>(keys + args.lists * args.length)).run();
}

}  // namespace

void merge_rows_cuda(Context& context, const MergeProblem& problem) {
  const cuda::DeviceScope scope(context.device().index);
  const auto segments = static_cast<std::int64_t>(problem.host_segments.size());
  const MergePlan plan(problem.host_segments);
  const std::int64_t entries = plan.lists * plan.length;
  const auto threads =
      static_cast<unsigned>(std::clamp<std::int64_t>(entries / 4, 64, kMaxThreads));
  const std::int64_t shared = entries * 12;
  if (shared > (48 << 10)) cuda::allow_shared(context, merge_kernel);
  MergeArgs args;
  args.p = problem;
  args.length = static_cast<int>(plan.length);
  args.lists = static_cast<int>(plan.lists);
  std::int64_t left = plan.max_rows;
  MergeEntry* buffers[2] = {problem.scratch,
                            problem.scratch + segments * plan.length * plan.blocks(left)};
  for (int stage = 0;; ++stage) {
    const std::int64_t blocks = plan.blocks(left);
    args.blocks_per_segment = static_cast<int>(blocks);
    args.out = blocks == 1 ? nullptr : buffers[stage % 2];
    cuda::launch(context, "beam merge_kernel", merge_kernel,
                 {.blocks = static_cast<unsigned>(segments * blocks),
                  .threads = threads,
                  .shared_bytes = shared},
                 args);
    if (blocks == 1) return;
    args.in = args.out;
    args.lists_stride = static_cast<int>(blocks);
    args.shrink *= args.lists;
    left = blocks;
  }
}

}  // namespace touchstone::inline v0::decode::beam
