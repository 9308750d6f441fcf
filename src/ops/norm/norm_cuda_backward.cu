// The backward on Hopper. One persistent kernel reads x and dy once, writes dx once and keeps the
// column sums of its rows in registers; a small second kernel adds the sums of the CTAs in order.
#include <initializer_list>

#include "core/context_access.h"
#include "ops/norm/norm_cuda_pipeline.cuh"

namespace touchstone::norm {
namespace {

using tuning::kBackwardMaxGroup;
using tuning::kBackwardMaxVectors;
using tuning::kRowsPerFlush;

constexpr int block_threads(std::int64_t element_bytes, int vectors) {
  return tuning::backward_threads(element_bytes, vectors);
}

// dy stays in registers between reduction and write where they suffice; else it is unpacked twice.
template <class T, int kV>
inline constexpr bool kKeepDy = sizeof(T) == 4 || kV > 2;
// Whether xhat and dy fit for certain, so that the compiler can be held to it.
template <class T, int kV>
inline constexpr bool kPinRegisters = sizeof(T) == 2 && kV > 2;

// Chooses the split: as few CTAs per row as hold it, and then as many stages as fit. A stage is a
// row of each group in `matrices` matrices. The cluster may come out too large to launch.
RowSplit split_rows(std::int64_t cols, DType dtype, int group, int groups, int vectors_per_thread,
                    int matrices) {
  RowSplit split;
  split.row_vectors = cols * size_of(dtype) / 16;
  if (split.row_vectors == 0) return split;  // explain() of an empty problem
  const std::int64_t capacity = std::int64_t{group} * vectors_per_thread;
  std::int64_t stages = 0;
  for (split.cluster = 1;; split.cluster *= 2) {
    split.slice_vectors = (split.row_vectors + split.cluster - 1) / split.cluster;
    stages = tuning::kPipelineBytes / (split.slice_vectors * 16 * matrices * groups);
    if (split.slice_vectors <= capacity && stages >= 2) break;
  }
  const std::int64_t limit = groups > 1 ? tuning::kMaxStagesOfSeveral : tuning::kMaxStages;
  split.stages = static_cast<int>(stages < limit ? stages : limit);
  return split;
}

std::int64_t pipeline_bytes(const RowSplit& split, int groups, int matrices) {
  return split.slice_vectors * 16 * matrices * split.stages * groups;
}

// One persistent CTA per SM, as far as there are rows for every group; with clusters, as many as
// the GPU can hold at once.
template <class Params>
unsigned persistent_blocks(const Context& context, void (*kernel)(Params), const RowSplit& split,
                           std::int64_t rows, int groups, const cuda::LaunchShape& shape) {
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  std::int64_t units = processors;
  if (split.cluster > 1) {
    cuda::LaunchShape probe = shape;
    probe.blocks = static_cast<unsigned>(processors / split.cluster * split.cluster);
    const cuda::LaunchConfig config(context, probe);
    int clusters = 0;
    cuda::check(cudaOccupancyMaxActiveClusters(&clusters, kernel, config.get()),
                "cudaOccupancyMaxActiveClusters");
    units = clusters;
  }
  const std::int64_t useful = (rows + groups - 1) / groups;
  if (useful < units) units = useful;
  return static_cast<unsigned>((units < 1 ? 1 : units) * split.cluster);
}

// Prefetches the line that holds an address to L2: a hint, as bulk_prefetch is.
__device__ void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

// Holds the compiler to a value in a register: it would rather recompute it.
__device__ void pin_register(float& value) { asm volatile("" : "+f"(value)); }

// A thread's columns of weight: its vector j is vector first + j * kGroup of the row, of which it
// has those with j * kGroup < left. Absent weights are 1, missing columns 0.
template <class T, class W, int kGroup, int kVectors>
__device__ void load_weight(const void* data, float offset, std::int64_t first, int left,
                            float (&out)[kVectors][cuda::kPerVector<T>]) {
  constexpr int kN = cuda::kPerVector<T>;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const bool mine = j * kGroup < left;
#pragma unroll
    for (int k = 0; k < kN; ++k) out[j][k] = mine ? 1.0F : 0.0F;
    if (data == nullptr || !mine) continue;
    cuda::load_floats(static_cast<const W*>(data) + (first + j * kGroup) * kN, out[j]);
#pragma unroll
    for (int k = 0; k < kN; ++k) out[j][k] += offset;
  }
}

struct BackwardArgs {
  Backward p;
  RowSplit split;
  void* partial = nullptr;  // float [units][2][cols], or double [units * groups][2][cols]
  bool wide = false;
};

// kFast: every thread has all its columns, and there is no dsum to add.
template <class T, bool kRms, int kGroup, int kV, bool kFast>
class BackwardGroup {
 public:
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kThreads = block_threads(sizeof(T), kV);
  static constexpr int kGroups = ThreadGroup<kGroup, kThreads>::kCount;

  __device__ BackwardGroup(const BackwardArgs& args, SharedLayout& shared)
      : a(args),
        group(shared.scratch, shared.exchange, args.split.cluster),
        slice(args.split, args.p.rows, kGroups),
        extra(!kFast && args.p.dsum.data != nullptr),
        count(slice.rows_of(group.index)),
        left(slice.vectors - group.rank),
        pipeline(shared.full + group.index * tuning::kMaxStages,
                 shared.stages + group.index * pipeline_step(args.split, extra),
                 static_cast<std::uint32_t>(slice.vectors) * 16, extra ? 3 : 2, args.split.stages) {
  }

  // What can be done while the previous grid drains: the first rows, and what every row needs, are
  // prefetched to L2.
  __device__ void prepare() const {
    prefetch_statistics();
    if (group.leads()) {
      for (int i = 0; i < tuning::kBackwardPrefetchRows && i < count; ++i) {
        cuda::bulk_prefetch(at(a.p.x.data, a.p.x.stride, i), pipeline.row_bytes);
        cuda::bulk_prefetch(at(a.p.dy.data, a.p.dy.stride, i), pipeline.row_bytes);
        if (extra) cuda::bulk_prefetch(at(a.p.dsum.data, a.p.dsum.stride, i), pipeline.row_bytes);
      }
    }
    pipeline.prepare(group.leads());
    if (a.split.cluster > 1) cuda::cluster_barrier();  // all CTAs have started
  }

  __device__ void run() {
    for (int i = 0; i < tuning::kPrologueStages; ++i) issue(i);
    const auto offset = static_cast<float>(a.p.weight_offset);
    if (sizeof(T) == 2 && a.p.weight_dtype == DType::f32) {
      load_weight<T, float, kGroup>(a.p.weight, offset, slice.first_vector + group.rank, left,
                                    weight);
    } else {
      load_weight<T, T, kGroup>(a.p.weight, offset, slice.first_vector + group.rank, left, weight);
    }
    const float inverse = 1.0F / static_cast<float>(a.p.cols);
    const float* means = static_cast<const float*>(a.p.mean) + slice.row_of(group.index, 0);
    const float* rstds = static_cast<const float*>(a.p.rstd) + slice.row_of(group.index, 0);
    float mean_next = kRms || count == 0 ? 0.0F : __ldg(means);
    float rstd_next = count == 0 ? 0.0F : __ldg(rstds);
    for (int i = 0; i < count; ++i) {
      const float mean = mean_next;
      const float rstd = rstd_next;
      if (i + 1 < count) {
        if constexpr (!kRms) mean_next = __ldg(means += slice.units * kGroups);
        rstd_next = __ldg(rstds += slice.units * kGroups);
      }
      const uint4* stage = pipeline.wait() + group.rank;
      float sums[kRms ? 1 : 3];
      reduce(stage, mean, rstd, sums);
      if (i == 0) {
        for (int next = tuning::kPrologueStages; next < pipeline.stages; ++next) issue(next);
      } else {
        // Every thread is past the previous row now, so its stage is free.
        issue(i - 1 + pipeline.stages);
      }
      for (float& sum : sums) sum = __fmul_rn(sum, inverse);
      write(i, stage, sums, rstd);
      if (a.wide && (i + 1) % kRowsPerFlush == 0 && i + 1 < count) flush_wide(i < kRowsPerFlush);
    }
    // A group may have one row less than the first. It passes as many barriers all the same: the
    // race detector mistakes the block barriers that follow for others where counts differ.
    if constexpr (kGroup > 32 && kGroup < kThreads) {
      if (count < slice.rows_of(0)) group.barrier();
    }
    if (a.partial == nullptr) return;
    if (a.wide) {
      flush_wide(count <= kRowsPerFlush);
    } else {
      write_partial();
    }
  }

 private:
  __device__ static std::int64_t pipeline_step(const RowSplit& split, bool extra) {
    return split.slice_vectors * 16 * (extra ? 3 : 2) * split.stages;
  }

  // Lines of 128 bytes of mean, rstd and weight, one for every thread of the grid.
  __device__ void prefetch_statistics() const {
    constexpr std::int64_t kLine = 128;
    const std::int64_t at =
        (blockIdx.x + static_cast<std::int64_t>(threadIdx.x) * gridDim.x) * kLine;
    const auto prefetch = [&](const void* data, std::int64_t bytes) {
      if (data != nullptr && at < bytes) prefetch_line(static_cast<const char*>(data) + at);
    };
    if constexpr (!kRms) prefetch(a.p.mean, a.p.rows * 4);
    prefetch(a.p.rstd, a.p.rows * 4);
    prefetch(a.p.weight, a.p.cols * static_cast<std::int64_t>(sizeof(T)));
  }

  // The slice of the group's i-th row. Recomputed each time: registers are the limit here.
  __device__ unsigned char* at(const void* data, std::int64_t stride, int i) const {
    return slice.template at<T>(data, stride, slice.row_of(group.index, i));
  }

  // Issues the loads of row i of the group, if it has one.
  __device__ void issue(int i) {
    if (!group.leads() || i >= count) return;
    const auto* x_row = at(a.p.x.data, a.p.x.stride, i);
    const auto* dy_row = at(a.p.dy.data, a.p.dy.stride, i);
    if (extra) {
      pipeline.issue(x_row, dy_row, at(a.p.dsum.data, a.p.dsum.stride, i));
    } else {
      pipeline.issue(x_row, dy_row);
    }
  }

  __device__ bool has(int j) const { return kFast || j * kGroup < left; }

  // Normalizes the row and reduces to sum(g * xhat0) and, for layer norm, sum(xhat0) and sum(g),
  // where xhat0 is xhat before the rounding residual of the mean is taken off.
  __device__ void reduce(const uint4* stage, float mean, float rstd, float (&sums)[kRms ? 1 : 3]) {
    for (float& sum : sums) sum = 0;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      uint4 packed_x{0, 0, 0, 0};
      uint4 packed_dy{0, 0, 0, 0};
      if (has(j)) {
        packed_x = stage[j * kGroup];
        packed_dy = stage[slice.vectors + j * kGroup];
      }
      float(&dy)[kN] = kept_dy[kKeepDy<T, kV> ? j : 0];
      cuda::unpack_as<T>(packed_x, xhat[j]);
      cuda::unpack_as<T>(packed_dy, dy);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        if constexpr (!kRms) xhat[j][k] -= mean;
        xhat[j][k] *= rstd;
        if (!has(j)) xhat[j][k] = 0;
        if constexpr (kPinRegisters<T, kV>) pin_register(xhat[j][k]);
        if constexpr (kPinRegisters<T, kV>) pin_register(dy[k]);
        const float g = dy[k] * weight[j][k];
        sums[0] += g * xhat[j][k];
        if constexpr (!kRms) {
          sums[1] += xhat[j][k];
          sums[2] += g;
        }
      }
    }
    group.sum(sums);
  }

  // dx = rstd * (g - c1 - xhat * c2) with xhat = xhat0 - residual, as g * rstd + xhat0 * b + c.
  __device__ void write(int i, const uint4* stage, const float (&means)[kRms ? 1 : 3], float rstd) {
    float residual = 0;
    float c1 = 0;
    float c2 = means[0];
    if constexpr (!kRms) {
      residual = means[1];
      c1 = means[2];
      c2 -= residual * c1;
    }
    const float b = -rstd * c2;
    const float c = rstd * (residual * c2 - c1);
    auto* row = reinterpret_cast<uint4*>(at(a.p.dx.data, a.p.dx.stride, i)) + group.rank;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
      float(&dy)[kN] = kept_dy[kKeepDy<T, kV> ? j : 0];
      float out[kN];
      if constexpr (!kKeepDy<T, kV>) cuda::unpack_as<T>(stage[slice.vectors + j * kGroup], dy);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        const float g = dy[k] * weight[j][k];
        out[k] = g * rstd + (kRms ? xhat[j][k] * b : xhat[j][k] * b + c);
        sum_weight[j][k] += dy[k] * (kRms ? xhat[j][k] : xhat[j][k] - residual);
        if constexpr (!kRms) sum_bias[j][k] += dy[k];
      }
      if (extra) {
        float more[kN];
        cuda::unpack_as<T>(stage[2 * slice.vectors + j * kGroup], more);
#pragma unroll
        for (int k = 0; k < kN; ++k) out[k] += more[k];
      }
      __stcs(&row[j * kGroup], cuda::pack_as<T>(out));
    }
  }

  // Adds the sums to this group's own float64 row and starts again from zero.
  __device__ void flush_wide(bool first) {
    auto* base =
        static_cast<double*>(a.partial) + (slice.unit * kGroups + group.index) * 2 * a.p.cols;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        double* g = base + (slice.first_vector + group.rank + j * kGroup) * kN + k;
        double* b = g + a.p.cols;
        *g = (first ? 0.0 : *g) + static_cast<double>(sum_weight[j][k]);
        *b = (first ? 0.0 : *b) + static_cast<double>(sum_bias[j][k]);
        sum_weight[j][k] = 0;
        sum_bias[j][k] = 0;
      }
    }
  }

  __device__ static float4 four(const float* v) { return {v[0], v[1], v[2], v[3]}; }

  // Merges the groups in shared memory, in group order, and writes the one partial row of the CTA.
  // The sums of a group fit into two of its own stages.
  __device__ void write_partial() {
    group.barrier();  // this group's stages are consumed: their memory is free
    const int columns = slice.vectors * kN;
    const auto step = static_cast<int>(pipeline_step(a.split, extra) / 4);
    auto* mine = reinterpret_cast<float*>(pipeline.memory);
    const float* merge = mine - group.index * step;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
      float* to = mine + (group.rank + j * kGroup) * kN;
      // Of eight columns every other four threads store the second half first: 32 bytes from thread
      // to thread would otherwise meet the same banks twice.
      const bool swap = kN == 8 && group.rank % 8 >= 4;
#pragma unroll
      for (int k = 0; k < kN; k += 4) {
        const int four_columns = swap ? kN - 4 - k : k;
        *reinterpret_cast<float4*>(to + four_columns) =
            swap ? four(&sum_weight[j][kN - 4 - k]) : four(&sum_weight[j][k]);
        *reinterpret_cast<float4*>(to + columns + four_columns) =
            swap ? four(&sum_bias[j][kN - 4 - k]) : four(&sum_bias[j][k]);
      }
    }
    __syncthreads();
    float* out = static_cast<float*>(a.partial) + slice.unit * 2 * a.p.cols;
    for (int c = 4 * static_cast<int>(threadIdx.x); c < 2 * columns; c += 4 * kThreads) {
      float4 total{0, 0, 0, 0};
#pragma unroll
      for (int t = 0; t < kGroups; ++t) {
        const float4 part = *reinterpret_cast<const float4*>(merge + t * step + c);
        total.x += part.x;
        total.y += part.y;
        total.z += part.z;
        total.w += part.w;
      }
      const bool bias = c >= columns;
      *reinterpret_cast<float4*>(out + (bias ? a.p.cols - columns : 0) + slice.first_vector * kN +
                                 c) = total;
    }
  }

  const BackwardArgs& a;
  ThreadGroup<kGroup, kThreads> group;
  Slice slice;
  bool extra;  // dsum comes as a third matrix
  int count;   // rows of this group
  int left;    // vectors of the slice from this thread's first one on
  Pipeline pipeline;
  float weight[kV][kN];
  float sum_weight[kV][kN] = {};
  float sum_bias[kV][kN] = {};
  float xhat[kV][kN];
  float kept_dy[kKeepDy<T, kV> ? kV : 1][kN];
};

template <class T, bool kRms, int kGroup, int kV, bool kFast>
__global__ void __maxnreg__((tuning::backward_max_registers(sizeof(T), kV)))
    backward_persistent_kernel(const __grid_constant__ BackwardArgs args) {
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    extern __shared__ __align__(128) unsigned char memory[];
    using Group = BackwardGroup<T, kRms, kGroup, kV, kFast>;
    Group group(args, *reinterpret_cast<SharedLayout*>(memory));
    group.prepare();
    cuda::pdl_wait();
    group.run();
    // A CTA must not exit while another of its cluster may still write to it.
    if (kGroup == Group::kThreads && args.split.cluster > 1) cuda::cluster_barrier();
  }
}

template <class T, bool kRms, int kGroup, int kV, bool kFast>
void launch_kernel(Context& context, BackwardArgs args, int streams) {
  constexpr int kThreads = block_threads(sizeof(T), kV);
  auto* kernel = backward_persistent_kernel<T, kRms, kGroup, kV, kFast>;
  const Backward& p = args.p;
  const std::int64_t stage_bytes = pipeline_bytes(args.split, kThreads / kGroup, streams);
  cuda::LaunchShape shape{.threads = kThreads,
                          .cluster = static_cast<unsigned>(args.split.cluster),
                          .shared_bytes = SharedLayout::bytes(stage_bytes),
                          .pdl = true};
  cuda::allow_shared(context, kernel);
  prefer_shared(kernel);
  shape.blocks = persistent_blocks(context, kernel, args.split, p.rows, kThreads / kGroup, shape);
  ReducePartials reduce{
      .cols = p.cols, .dweight = p.dweight, .dbias = p.dbias, .dtype = p.weight_grad_dtype};
  const bool sums = p.dweight != nullptr || p.dbias != nullptr;
  if (sums) {
    const std::int64_t units = shape.blocks / static_cast<unsigned>(args.split.cluster);
    const std::int64_t groups = kThreads / kGroup;
    args.wide = (p.rows + units * groups - 1) / (units * groups) > tuning::kRowsInFloat;
    reduce.wide = args.wide;
    reduce.count = args.wide ? units * groups : units;
    args.partial =
        detail::ContextAccess::workspace(context, reduce.count * 2 * p.cols * (args.wide ? 8 : 4));
    reduce.partial = args.partial;
  }
  cuda::launch(context, "norm backward_persistent_kernel", kernel, shape, args);
  if (sums) launch_reduce_partials(context, reduce, true);
}

// The smallest group that holds a row; rows too long for any are shared by a cluster.
template <class T, bool kRms, int kGroup, int kV>
void launch_for_width(Context& context, BackwardArgs args) {
  constexpr int kThreads = block_threads(sizeof(T), kV);
  const int streams = args.p.dsum.data != nullptr ? 3 : 2;
  args.split = split_rows(args.p.cols, args.p.dtype, kGroup, kThreads / kGroup, kV, streams);
  if constexpr (kGroup < kBackwardMaxGroup) {
    if (args.split.cluster > 1) {
      constexpr bool kMoreVectors = kV < kBackwardMaxVectors;
      // A CTA of one group is idle while it reduces; more warps shorten that.
      constexpr bool kWhole =
          !kMoreVectors && 2 * kGroup == kThreads && kThreads < kBackwardMaxGroup;
      constexpr int kNextGroup = kMoreVectors ? kGroup : kWhole ? kBackwardMaxGroup : 2 * kGroup;
      constexpr int kNextV = kMoreVectors ? kV + 1
                             : kWhole     ? tuning::backward_max_group_vectors(sizeof(T))
                                          : kV;
      return launch_for_width<T, kRms, kNextGroup, kNextV>(context, args);
    }
  }
  const bool full = args.split.row_vectors == std::int64_t{kGroup} * kV * args.split.cluster;
  if (full && streams == 2) {
    launch_kernel<T, kRms, kGroup, kV, true>(context, args, streams);
  } else {
    launch_kernel<T, kRms, kGroup, kV, false>(context, args, streams);
  }
}

}  // namespace

std::string persistent_refuses_backward(const Context& context, const Backward& p) {
  if (!cuda::is_hopper(context)) return "needs a Hopper GPU (compute capability 9.0)";
  std::string refusal =
      vectors_refuse(p.cols, p.dtype, {p.x, p.dy, p.dsum, {p.dx.data, p.dx.stride}}, {p.weight});
  if (!refusal.empty()) return refusal;
  const int streams = p.dsum.data != nullptr ? 3 : 2;
  const int vectors = tuning::backward_max_group_vectors(size_of(p.dtype));
  const int cluster = split_rows(p.cols, p.dtype, kBackwardMaxGroup, 1, vectors, streams).cluster;
  if (cluster > kMaxCluster) {
    return "rows of " + std::to_string(p.cols * size_of(p.dtype)) + " bytes take a cluster of " +
           std::to_string(cluster) + " CTAs: expected at most " + std::to_string(kMaxCluster);
  }
  return "";
}

void backward_persistent(Context& context, const Backward& p) {
  const cuda::DeviceScope scope(context.device().index);
  BackwardArgs args;
  args.p = p;
  visit_dtype_and_kind(p.dtype, p.kind, [&]<class T, bool kRms>() {
    launch_for_width<T, kRms, 32, 1>(context, args);
  });
}

}  // namespace touchstone::norm
