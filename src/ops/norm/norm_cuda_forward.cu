// The forward. `registers`: a row is loaded once, straight into the registers of the threads that
// share it, and leaves them only when it is written. One row per thread group and no loop over
// rows: with 32 warps per SM the loads of some rows hide behind the arithmetic of others.
//
// `persistent`: where the whole problem takes no longer than some thirty microseconds, persistent
// CTAs with a shared-memory pipeline are faster: there is no partial last wave, and the weights are
// loaded once. Both add in the same order and give the same bits.
#include <initializer_list>

#include "ops/norm/norm_cuda_pipeline.cuh"

namespace touchstone::norm {
namespace {

using tuning::kForwardMaxGroup;
using tuning::kForwardMaxVectors;
using tuning::kForwardVectors;

struct ForwardArgs {
  Forward p;
  std::int64_t row_vectors = 0;    // 16-byte vectors in a row
  std::int64_t slice_vectors = 0;  // in one block's part of it (the last may be shorter)
  int cluster = 1;                 // CTAs that share a row
  unsigned prefetch_blocks = 0;    // how many prefetch their rows before pdl_wait()
};

struct RowStatistics {
  float mean;      // provisional: a float near the mean
  float residual;  // sum(h - mean) / D, what it lacks
  float rstd;
};

// One vector of a row in global memory: x, or x + residual rounded as it will be stored.
template <class T, bool kFused>
struct RowInput {
  const uint4* x;
  const uint4* residual;

  __device__ uint4 packed(std::int64_t v) const {
    const uint4 own = __ldcs(x + v);
    if constexpr (!kFused) return own;
    constexpr int kN = cuda::kPerVector<T>;
    float h[kN];
    float r[kN];
    cuda::unpack_as<T>(own, h);
    cuda::unpack_as<T>(__ldcs(residual + v), r);
#pragma unroll
    for (int k = 0; k < kN; ++k) h[k] += r[k];
    return cuda::pack_as<T>(h);
  }
};

// The statistics of a row whose squares overflow or vanish, from h * 2^-k with 2^k the size of its
// largest value. Rare, so it is kept out of line and reads the row again. Combines three times.
template <class T, bool kRms, bool kFused, class Group>
__device__ __noinline__ RowStatistics scaled_statistics(RowInput<T, kFused> input, int first,
                                                        int end, Group group, float inverse,
                                                        double eps) {
  constexpr int kN = cuda::kPerVector<T>;
  constexpr float kMaxFloat = 3.402823466e38F;
  const auto sweep = [&](auto body) {
    for (int v = first; v < end; v += Group::kThreadsPerGroup) {
      float h[kN];
      cuda::unpack_as<T>(input.packed(v), h);
      for (int k = 0; k < kN; ++k) body(h[k]);
    }
  };
  float largest[2] = {0, 0};  // the second is 1 when a value is not finite: fmaxf skips NaN
  sweep([&](float h) {
    largest[0] = fmaxf(largest[0], fabsf(h));
    if (!(fabsf(h) <= kMaxFloat)) largest[1] = 1;
  });
  group.combine(largest, Max{});
  const int exponent = largest[0] > 0 && largest[1] == 0 ? ilogbf(largest[0]) : 0;
  // 2^-k does not fit in a float for the smallest values: two steps.
  const float half_scale = ldexpf(1.0F, -exponent / 2);
  const float rest_scale = ldexpf(1.0F, -exponent - (-exponent / 2));
  float total[1] = {0};
  sweep([&](float h) { total[0] += h * half_scale * rest_scale; });
  group.sum(total);
  // Rounded here and now: merged into the differences below, it would be another mean than the one
  // that is given back.
  const float mean = kRms ? 0.0F : __fmul_rn(total[0], inverse);
  float sums[2] = {0, 0};
  sweep([&](float h) {
    const float d = h * half_scale * rest_scale - mean;
    sums[0] += d;
    sums[1] += d * d;
  });
  group.sum(sums);
  if (largest[1] != 0) {  // NaN or infinity: the whole row is NaN
    const float nan = __int_as_float(0x7fffffff);
    return {nan, nan, nan};
  }
  const double residual = kRms ? 0.0 : static_cast<double>(sums[0] * inverse);
  const double variance = static_cast<double>(sums[1] * inverse) - residual * residual;
  const double scale = static_cast<double>(half_scale) * static_cast<double>(rest_scale);
  const double square = (variance > 0 ? variance : 0.0) + eps * scale * scale;
  return {static_cast<float>(static_cast<double>(mean) / scale),
          static_cast<float>(residual / scale), static_cast<float>(scale / sqrt(square))};
}

// `full` and `ragged` give the same bits; norm_tuning.h says what `full` gains.
enum class Mode {
  full,    // every thread has all its vectors, and neither weight nor bias is missing
  ragged,  // some threads have fewer, or weight or bias is missing
  fused,   // as ragged, and a residual is added
};

enum class Schedule {
  registers,   // rows go straight into the registers of their group; no loop over rows
  persistent,  // CTAs loop over rows that arrive through a pipeline; weights stay in registers
};

constexpr int block_threads(int group) { return group <= 256 ? 256 : group; }

constexpr int min_blocks_per_sm(int group, Schedule schedule) {
  return schedule == Schedule::persistent ? tuning::kPersistentCtasPerSm
                                          : tuning::kForwardThreadsPerSm / block_threads(group);
}

// Short rows are taken several at a time: as many bytes in flight as for long ones.
constexpr int rows_per_group(int group, int vectors) {
  return group <= 32 ? kForwardVectors / vectors : 1;
}

// The rows of one thread group.
template <class T, bool kRms, int kGroup, int kV, Mode kMode, Schedule kSchedule>
class ForwardGroup {
 public:
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kThreads = block_threads(kGroup);
  static constexpr int kRows = rows_per_group(kGroup, kV);
  static constexpr bool kFused = kMode == Mode::fused;
  static constexpr bool kPersistent = kSchedule == Schedule::persistent;
  static constexpr bool kClusters = cuda::kHopper && kGroup == kForwardMaxGroup;
  using Threads = ThreadGroup<kGroup, kThreads>;

  __device__ ForwardGroup(const ForwardArgs& args, float4* scratch, float4* exchange)
      : a(args),
        group(scratch, exchange, args.cluster),
        first_row(
            (blockIdx.x / static_cast<unsigned>(args.cluster) * Threads::kCount + group.index) *
            std::int64_t{kRows}),
        first(first_of_slice(args)),
        left(static_cast<int>(min(args.slice_vectors, args.row_vectors - first)) - group.rank),
        inverse(1.0F / static_cast<float>(args.p.cols)) {}

  // Prefetches the rows of the first CTAs to L2 while the previous grid drains.
  __device__ void prefetch_rows() const {
    if (!group.leads() || blockIdx.x >= a.prefetch_blocks) return;
    const auto bytes = static_cast<std::uint32_t>(left) * 16;
    for (int r = 0; r < kRows && first_row + r < a.p.rows; ++r) {
      cuda::bulk_prefetch(at(a.p.x.data, a.p.x.stride, r) + first, bytes);
      if constexpr (kFused) {
        cuda::bulk_prefetch(at(a.p.residual.data, a.p.residual.stride, r) + first, bytes);
      }
    }
  }

  __device__ void run() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r < a.p.rows) load(r);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r < a.p.rows) normalize(r, kRms ? 0.0F : initial_mean(r));
    }
  }

  // The rows of a persistent CTA. The pipeline has been prepared.
  __device__ void run_persistent(Pipeline& pipeline) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Threads::kCount;
    std::int64_t issued = 0;  // rows from first_row on
    const auto issue = [&] {
      if (group.leads() && first_row + issued < a.p.rows) {
        pipeline.issue(at(a.p.x.data, a.p.x.stride, issued));
      }
      issued += step;
    };
    for (int i = 0; i < pipeline.stages; ++i) issue();
    if (sizeof(T) == 2 && a.p.weight_dtype == DType::f32) {
      keep_weights<float>();
    } else {
      keep_weights<T>();
    }
    for (; first_row < a.p.rows; first_row += step, issued -= step) {
      const uint4* stage = pipeline.wait();
#pragma unroll
      for (int j = 0; j < kV; ++j) {
        if (has(j)) packed[0][j] = stage[group.rank + j * kGroup];
      }
      float start = 0;
      if constexpr (!kRms) start = initial_mean_of(kGroup <= 32 ? packed[0][0] : stage[0]);
      group.barrier();  // the row is in registers: its stage is free
      issue();
      normalize(0, start);
    }
  }

  // Prefetches a share of the rows to L2 while the previous grid drains.
  __device__ void prefetch_share_of_rows() const {
    if (!group.leads()) return;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Threads::kCount;
    constexpr int kShare = tuning::kPersistentPrefetchShare;
    const std::int64_t early = max(std::int64_t{1}, (a.p.rows / step + kShare / 2) / kShare);
    for (std::int64_t i = 0; i < early && first_row + i * step < a.p.rows; ++i) {
      cuda::bulk_prefetch(at(a.p.x.data, a.p.x.stride, i * step), row_bytes());
    }
  }

  __device__ std::uint32_t row_bytes() const {
    return static_cast<std::uint32_t>(a.row_vectors) * 16;
  }
  __device__ bool leads() const { return group.leads(); }
  __device__ int group_index() const { return group.index; }

 private:
  __device__ bool has(int j) const { return kMode == Mode::full || j * kGroup < left; }

  __device__ static std::int64_t first_of_slice(const ForwardArgs& args) {
    if constexpr (kClusters)
      return args.cluster > 1 ? cuda::cluster_rank() * args.slice_vectors : 0;
    return 0;
  }

  // The start of the group's r-th row in a matrix.
  __device__ const uint4* at(const void* data, std::int64_t stride, std::int64_t r) const {
    return reinterpret_cast<const uint4*>(static_cast<const T*>(data) + (first_row + r) * stride);
  }
  __device__ uint4* output(const Rows& rows, int r) const {
    return const_cast<uint4*>(at(rows.data, rows.stride, r)) + first + group.rank;
  }
  __device__ RowInput<T, kFused> input(int r) const {
    return {at(a.p.x.data, a.p.x.stride, r), at(a.p.residual.data, a.p.residual.stride, r)};
  }

  __device__ void load(int r) {
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (has(j)) packed[r][j] = input(r).packed(first + group.rank + j * kGroup);
    }
  }

  __device__ void normalize(int r, float start) {
    if constexpr (kClusters) {
      if (a.cluster > 1) cuda::cluster_barrier();  // all CTAs have started
    }
    const RowStatistics s = statistics(r, start);
    // One loop or the other: the loads of all vectors can then be in flight together.
    if (!kPersistent && sizeof(T) == 2 && a.p.weight_dtype == DType::f32) {
      write<float>(r, s);
    } else {
      write<T>(r, s);
    }
    if (group.rank != 0 || first != 0) return;
    if (a.p.mean != nullptr) static_cast<float*>(a.p.mean)[first_row + r] = s.mean + s.residual;
    if (a.p.rstd != nullptr) static_cast<float*>(a.p.rstd)[first_row + r] = s.rstd;
  }

  // Any float near the mean serves as the initial shift. The average of the first two values
  // usually is, and needs no reduction.
  __device__ float initial_mean(int r) const {
    return initial_mean_of(kGroup <= 32 ? packed[r][0] : input(r).packed(0));
  }
  // In a group of one warp the first vector of the row is the one its first thread has.
  __device__ float initial_mean_of(const uint4& vector) const {
    float h[kN];
    cuda::unpack_as<T>(vector, h);
    const float guess = 0.5F * (h[0] + h[1]);
    if constexpr (kGroup <= 32) return __shfl_sync(group.mask(), guess, 0, kGroup);
    return guess;
  }

  // sums[0] = sum((h - mean)^2) and, for layer norm, sums[1] = sum(h - mean); both over D.
  __device__ void moments(int r, float mean, float (&sums)[kRms ? 1 : 2]) {
    for (float& value : sums) value = 0;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
      float h[kN];
      cuda::unpack_as<T>(packed[r][j], h);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        const float d = kRms ? h[k] : h[k] - mean;
        if constexpr (!kRms) sums[1] += d;
        sums[0] = fmaf(d, d, sums[0]);
      }
    }
    group.sum(sums);
    for (float& value : sums) value = __fmul_rn(value, inverse);
  }

  __device__ RowStatistics statistics(int r, float start) {
    RowStatistics s{start, 0, 0};
    const auto eps = static_cast<float>(a.p.eps);
    float sums[kRms ? 1 : 2];
    moments(r, start, sums);
    if constexpr (!kRms) {
      // What the start lacks of the mean is known now. Taking its square off the mean square loses
      // log2(1 + kFarFromMean) bits, three at most; from further away a second sweep starts there.
      constexpr float kFarFromMean = 8.0F;
      // Rounded, so that every kernel takes the same branch.
      const float offset = __fmul_rn(sums[1], sums[1]);
      if (!(offset <= kFarFromMean * (sums[0] - offset))) {
        s.mean += sums[1];
        moments(r, s.mean, sums);
      }
      s.residual = sums[1];
    }
    // Written so that NaN takes the slow path too.
    const float mean_square = sums[0] + eps;
    if (!(mean_square <= 0x1p120F && mean_square >= static_cast<float>(kSmallMeanSquare))) {
      const int begin = static_cast<int>(first) + group.rank;
      s = scaled_statistics<T, kRms, kFused>(input(r), begin, begin + left, group, inverse,
                                             a.p.eps);
      group.parity ^= 1;  // three combinations, on a copy
      return s;
    }
    const float square = fmaxf(fmaf(-s.residual, s.residual, sums[0]), 0.0F) + eps;
    const float estimate = rsqrtf(square);
    s.rstd = estimate * fmaf(-0.5F * square * estimate, estimate, 1.5F);
    return s;
  }

  // What vector j of the row is multiplied by, and what is added. W is the type of weight and bias.
  template <class W>
  __device__ void load_weights(int j, float (&scale)[kN], float (&offset)[kN]) const {
    const auto* weight = static_cast<const W*>(a.p.weight);
    const auto* bias = static_cast<const W*>(a.p.bias);
    const std::int64_t column = (first + group.rank + j * kGroup) * kN;
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      scale[k] = 1;
      offset[k] = 0;
    }
    if (kMode == Mode::full || weight != nullptr) {
      cuda::load_floats(weight + column, scale);
#pragma unroll
      for (int k = 0; kRms && k < kN; ++k) scale[k] += static_cast<float>(a.p.weight_offset);
    }
    if (!kRms && (kMode == Mode::full || bias != nullptr)) {
      cuda::load_floats(bias + column, offset);
    }
  }

  template <class W>
  __device__ void keep_weights() {
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (has(j)) load_weights<W>(j, kept_scale[j], kept_offset[j]);
    }
  }

  // W is the type of weight and bias.
  template <class W>
  __device__ void write(int r, const RowStatistics& s) {
    uint4* y = output(a.p.y, r);
    uint4* sum = kFused ? output(a.p.sum, r) : nullptr;
    const float shift = -s.residual * s.rstd;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
      float out[kN];
      cuda::unpack_as<T>(packed[r][j], out);
      float(&scale)[kN] = kept_scale[kPersistent ? j : 0];
      float(&offset)[kN] = kept_offset[kPersistent ? j : 0];
      if constexpr (!kPersistent) load_weights<W>(j, scale, offset);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        out[k] = kRms ? out[k] * s.rstd : fmaf(out[k] - s.mean, s.rstd, shift);
        if (kRms && a.p.round_before_weight) out[k] = cuda::rounded<T>(out[k]);
        out[k] = kRms ? out[k] * scale[k] : fmaf(out[k], scale[k], offset[k]);
      }
      if constexpr (kFused) __stcs(sum + j * kGroup, packed[r][j]);
      if constexpr (kPersistent) {
        y[j * kGroup] = cuda::pack_as<T>(out);
      } else {
        __stcs(y + j * kGroup, cuda::pack_as<T>(out));
      }
    }
  }

  const ForwardArgs& a;
  Threads group;
  std::int64_t first_row;
  std::int64_t first;  // vector of the row that this block starts with
  int left;            // vectors of its slice from this thread's first one on
  float inverse;
  uint4 packed[kRows][kV];  // this thread's part of the rows
  float kept_scale[kPersistent ? kV : 1][kN];
  float kept_offset[kPersistent ? kV : 1][kN];
};

template <class T, bool kRms, int kGroup, int kV, Mode kMode>
__global__ void __launch_bounds__(block_threads(kGroup),
                                  min_blocks_per_sm(kGroup, Schedule::registers))
    forward_registers_kernel(const __grid_constant__ ForwardArgs args) {
  using Group = ForwardGroup<T, kRms, kGroup, kV, kMode, Schedule::registers>;
  __shared__ float4 scratch[2 * Group::kThreads / 32];
  __shared__ float4 exchange[2 * kMaxCluster];
  Group rows(args, scratch, exchange);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    rows.prefetch_rows();
    cuda::pdl_wait();
  }
  rows.run();
}

template <class T, bool kRms, int kGroup, Mode kMode>
__global__ void __launch_bounds__(block_threads(kGroup),
                                  min_blocks_per_sm(kGroup, Schedule::persistent))
    forward_persistent_kernel(const __grid_constant__ ForwardArgs args) {
  if constexpr (cuda::kHopper) {
    constexpr int kStages = tuning::kPersistentStages;
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<SharedLayout*>(memory);
    ForwardGroup<T, kRms, kGroup, kForwardVectors, kMode, Schedule::persistent> rows(
        args, shared.scratch, shared.exchange);
    Pipeline pipeline(shared.full + rows.group_index() * tuning::kMaxStages,
                      shared.stages + rows.group_index() * kStages * rows.row_bytes(),
                      rows.row_bytes(), 1, kStages);
    rows.prefetch_share_of_rows();
    pipeline.prepare(rows.leads());
    cuda::pdl_wait();
    cuda::pdl_launch_dependents();
    rows.run_persistent(pipeline);
  }
}

std::int64_t row_bytes(const Forward& p) { return p.cols * size_of(p.dtype); }

// With more bytes the start of the grid matters little, and rows out of order cost DRAM more than
// the prefetch saves.
unsigned prefetch_blocks(const Context& context, const Forward& p) {
  const std::int64_t limit = size_of(p.dtype) == 2 ? tuning::kForwardPrefetchMaxBytes16
                                                   : tuning::kForwardPrefetchMaxBytes32;
  if (p.rows * row_bytes(p) > limit) return 0;
  return static_cast<unsigned>(tuning::kForwardPrefetchCtasPerSm *
                               cuda::device_attribute(context, cudaDevAttrMultiProcessorCount));
}

// Whether Mode::full takes the rows of a problem without residual: `vectors` is what the threads
// that share a row hold.
template <bool kRms>
bool full_width(const ForwardArgs& args, std::int64_t vectors) {
  return args.row_vectors == vectors && args.p.weight != nullptr &&
         (kRms || args.p.bias != nullptr);
}

template <class T, bool kRms, int kGroup, Mode kMode>
void launch_persistent(Context& context, const ForwardArgs& args) {
  constexpr int kThreads = block_threads(kGroup);
  constexpr int kGroups = kThreads / kGroup;
  auto* kernel = forward_persistent_kernel<T, kRms, kGroup, kMode>;
  const std::int64_t useful = (args.p.rows + kGroups - 1) / kGroups;
  const std::int64_t limit = tuning::kPersistentCtasPerSm *
                             cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const std::int64_t stages = kGroups * tuning::kPersistentStages * args.row_vectors * 16;
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(useful < limit ? useful : limit),
                                .threads = kThreads,
                                .shared_bytes = SharedLayout::bytes(stages),
                                .pdl = true};
  cuda::allow_shared(context, kernel);
  prefer_shared(kernel);
  cuda::launch(context, "norm forward_persistent_kernel", kernel, shape, args);
}

// The smallest group that holds a row. Its widths and the order of its additions are those of
// `registers`.
template <class T, bool kRms, int kGroup>
void launch_persistent_for_width(Context& context, const ForwardArgs& args) {
  if constexpr (kGroup < tuning::kPersistentMaxGroup) {
    if (args.row_vectors > kGroup * kForwardVectors) {
      return launch_persistent_for_width<T, kRms, 2 * kGroup>(context, args);
    }
  }
  if (full_width<kRms>(args, kGroup * kForwardVectors)) {
    launch_persistent<T, kRms, kGroup, Mode::full>(context, args);
  } else {
    launch_persistent<T, kRms, kGroup, Mode::ragged>(context, args);
  }
}

template <class T, bool kRms, int kGroup, int kV, Mode kMode>
void launch_registers(Context& context, ForwardArgs args) {
  constexpr int kThreads = block_threads(kGroup);
  args.prefetch_blocks = prefetch_blocks(context, args.p);
  constexpr int kRows = kThreads / kGroup * rows_per_group(kGroup, kV);
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>((args.p.rows + kRows - 1) / kRows * args.cluster),
      .threads = kThreads,
      .cluster = static_cast<unsigned>(args.cluster),
      .pdl = cuda::is_hopper(context)};
  cuda::launch(context, "norm forward_registers_kernel",
               forward_registers_kernel<T, kRms, kGroup, kV, kMode>, shape, args);
}

// The smallest group that holds a row; rows too long for any are shared by a cluster.
template <class T, bool kRms, int kGroup, int kV>
void launch_registers_for_width(Context& context, ForwardArgs args) {
  if constexpr (kGroup < kForwardMaxGroup || kV < kForwardMaxVectors) {
    if (args.row_vectors > kGroup * kV) {
      constexpr bool kMoreThreads =
          kGroup < 32 || (kV == kForwardVectors && kGroup < kForwardMaxGroup);
      constexpr int kNextGroup = kMoreThreads ? 2 * kGroup : kGroup;
      constexpr int kNextV = kMoreThreads ? kV : 2 * kV;
      return launch_registers_for_width<T, kRms, kNextGroup, kNextV>(context, args);
    }
  }
  while (args.row_vectors > std::int64_t{kGroup} * kV * args.cluster) args.cluster *= 2;
  args.slice_vectors = (args.row_vectors + args.cluster - 1) / args.cluster;
  if (args.p.residual.data != nullptr) {
    launch_registers<T, kRms, kGroup, kV, Mode::fused>(context, args);
  } else if (full_width<kRms>(args, std::int64_t{kGroup} * kV * args.cluster)) {
    launch_registers<T, kRms, kGroup, kV, Mode::full>(context, args);
  } else {
    launch_registers<T, kRms, kGroup, kV, Mode::ragged>(context, args);
  }
}

std::string alignment_refuses(const Forward& p) {
  return vectors_refuse(p.cols, p.dtype,
                        {p.x, p.residual, {p.y.data, p.y.stride}, {p.sum.data, p.sum.stride}},
                        {p.weight, p.bias});
}

ForwardArgs forward_args(const Forward& p) {
  ForwardArgs args;
  args.p = p;
  args.row_vectors = row_bytes(p) / 16;
  args.slice_vectors = args.row_vectors;
  return args;
}

}  // namespace

std::string persistent_refuses_forward(const Context& context, const Forward& p) {
  constexpr std::int64_t kVectorBytes = std::int64_t{kForwardVectors} * 16;
  constexpr std::int64_t kMaxRow = tuning::kPersistentMaxGroup * kVectorBytes;
  // A group of the smallest kind holds half of its columns at least.
  constexpr std::int64_t kMinRow = tuning::kPersistentMinGroup * kVectorBytes / 2;
  if (!cuda::is_hopper(context)) return "needs a Hopper GPU (compute capability 9.0)";
  if (p.residual.data != nullptr) return "residual: expected none";
  if (row_bytes(p) <= kMinRow || row_bytes(p) > kMaxRow) {
    return "rows of " + std::to_string(row_bytes(p)) + " bytes: expected more than " +
           std::to_string(kMinRow) + ", at most " + std::to_string(kMaxRow);
  }
  const std::int64_t bytes = p.rows * row_bytes(p);
  if (bytes <= tuning::kPersistentMinBytes || bytes > tuning::kPersistentMaxBytes) {
    return "x of " + std::to_string(bytes) + " bytes: expected more than " +
           std::to_string(tuning::kPersistentMinBytes) + ", at most " +
           std::to_string(tuning::kPersistentMaxBytes);
  }
  return alignment_refuses(p);
}

std::string registers_refuses_forward(const Context& context, const Forward& p) {
  constexpr std::int64_t kGroupBytes = std::int64_t{kForwardMaxGroup} * kForwardMaxVectors * 16;
  const bool clusters = cuda::is_hopper(context);
  const std::int64_t limit = clusters ? kGroupBytes * kMaxCluster : kGroupBytes;
  if (row_bytes(p) > limit) {
    return "rows of " + std::to_string(row_bytes(p)) + " bytes: expected at most " +
           std::to_string(limit) + (clusters ? "" : " without clusters (compute capability 9.0)");
  }
  return alignment_refuses(p);
}

void forward_persistent(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  visit_dtype_and_kind(p.dtype, p.kind, [&]<class T, bool kRms>() {
    launch_persistent_for_width<T, kRms, tuning::kPersistentMinGroup>(context, forward_args(p));
  });
}

void forward_registers(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  visit_dtype_and_kind(p.dtype, p.kind, [&]<class T, bool kRms>() {
    launch_registers_for_width<T, kRms, 16, 1>(context, forward_args(p));
  });
}

}  // namespace touchstone::norm
