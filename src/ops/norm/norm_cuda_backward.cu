// The fused backward on Hopper: one persistent kernel reads x and dy once, writes dx once and keeps
// the column sums of its rows in registers; a tiny second kernel adds the blocks' sums in order.
#include <initializer_list>

#include "core/context_access.h"
#include "ops/norm/norm_cuda_ring.cuh"

namespace touchstone::norm {

// The error of an f32 sum of n terms grows with n. Up to kRowsInFloat rows a thread adds in f32
// alone; with more, its sums move to float64 every kRowsPerFlush rows, which costs some traffic in
// L2 but keeps the error at the size of one rounding of the result for any number of rows.
inline constexpr int kRowsInFloat = 256;
inline constexpr int kRowsPerFlush = 64;

namespace {

// A thread takes up to this many vectors of 16 bytes of a row: 16 columns of f32, 32 of 16 bits.
// What a row costs beside its columns, the reduction above all, is paid once for all of them.
constexpr int kMaxVectors = 4;

// With the ring deep enough, one block per multiprocessor saturates memory, and the registers of so
// few threads have room for the column sums: dweight, dbias, weight and xhat take four per column.
constexpr int block_threads(std::int64_t element_bytes, int vectors) {
  return element_bytes == 2 && vectors > 2 ? 256 : 512;
}
constexpr int kLargestTeam = 512;
constexpr int largest_team_vectors(std::int64_t element_bytes) {
  return element_bytes == 2 ? 2 : 4;
}

// dy stays in registers too where there is room. Else it is unpacked twice. Rows of 16 bits leave
// registers and shared memory for a block of the kernel that finishes the column sums: it is
// launched early and waits beside this one.
template <class T, int kV>
inline constexpr bool kKeepDy = sizeof(T) == 4 || kV > 2;
// Whether all of it fits for certain, so that the compiler can be held to it.
template <class T, int kV>
inline constexpr bool kRoom = sizeof(T) == 2 && kV > 2;
constexpr int most_registers(std::int64_t element_bytes, int vectors) {
  return element_bytes == 4 ? 128 : 57344 / block_threads(element_bytes, vectors);
}

// Chooses the split: as few blocks per row as hold it, and then as many stages as fit. A stage is
// a row of each team in `matrices` matrices. The cluster may come out too large to launch.
RowSplit split_rows(std::int64_t cols, DType dtype, int team, int teams, int vectors_per_thread,
                    int matrices) {
  RowSplit split;
  split.row_vectors = cols * size_of(dtype) / 16;
  if (split.row_vectors == 0) return split;  // an empty problem, asked about but never run
  const std::int64_t capacity = std::int64_t{team} * vectors_per_thread;
  std::int64_t stages = 0;
  for (split.cluster = 1;; split.cluster *= 2) {
    split.slice_vectors = (split.row_vectors + split.cluster - 1) / split.cluster;
    stages = kRingBytes / (split.slice_vectors * 16 * matrices * teams);
    if (split.slice_vectors <= capacity && stages >= 2) break;
  }
  // Teams that run out of step with each other need less depth than one that runs alone.
  const std::int64_t most = teams > 1 ? 3 : kMaxStages;
  split.stages = static_cast<int>(stages < most ? stages : most);
  return split;
}

std::int64_t ring_bytes(const RowSplit& split, int teams, int matrices) {
  return split.slice_vectors * 16 * matrices * split.stages * teams;
}

// One persistent block per multiprocessor, as far as there are rows for every team; with clusters,
// as many as the chip can place at once.
template <class Params>
unsigned persistent_blocks(const Context& context, void (*kernel)(Params), const RowSplit& split,
                           std::int64_t rows, int teams, const cuda::LaunchShape& shape) {
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
  const std::int64_t useful = (rows + teams - 1) / teams;
  if (useful < units) units = useful;
  return static_cast<unsigned>((units < 1 ? 1 : units) * split.cluster);
}

// Asks for the line that holds an address to be brought into L2: a hint, as bulk_prefetch is.
__device__ void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

// Holds the compiler to a value in a register: it would rather work it out again.
__device__ void keep(float& value) { asm volatile("" : "+f"(value)); }

// A thread's columns of weight: its vector j is vector first + j * kTeam of the row, of which it has
// those with j * kTeam < left. Absent weights are 1, missing columns 0.
template <class T, class W, int kTeam, int kVectors>
__device__ void load_weight(const void* data, float offset, std::int64_t first, int left,
                            float (&out)[kVectors][cuda::kPerVector<T>]) {
  constexpr int kN = cuda::kPerVector<T>;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const bool mine = j * kTeam < left;
#pragma unroll
    for (int k = 0; k < kN; ++k) out[j][k] = mine ? 1.0F : 0.0F;
    if (data == nullptr || !mine) continue;
    cuda::load_floats(static_cast<const W*>(data) + (first + j * kTeam) * kN, out[j]);
#pragma unroll
    for (int k = 0; k < kN; ++k) out[j][k] += offset;
  }
}

struct BackwardArgs {
  Backward p;
  RowSplit split;
  void* partial = nullptr;  // float [units][2][cols], or double [units * teams][2][cols]
  bool wide = false;
};

// kFast: every thread has all its columns, and there is no dsum to add.
template <class T, bool kRms, int kTeam, int kV, bool kFast>
class BackwardTeam {
 public:
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kThreads = block_threads(sizeof(T), kV);
  static constexpr int kTeams = Team<kTeam, kThreads>::kCount;

  __device__ BackwardTeam(const BackwardArgs& args, SharedLayout& shared)
      : a(args),
        team(shared.scratch, shared.exchange, args.split.cluster),
        slice(args.split, args.p.rows, kTeams),
        extra(!kFast && args.p.dsum.data != nullptr),
        count(slice.rows_of(team.index)),
        left(slice.vectors - team.rank),
        ring(shared.full + team.index * kMaxStages,
             shared.ring + team.index * ring_step(args.split, extra),
             static_cast<std::uint32_t>(slice.vectors) * 16, extra ? 3 : 2, args.split.stages) {}

  // What can be done while the grids before this one end: the first rows and what is read of every
  // row are brought into L2.
  __device__ void prepare() const {
    ask_for_statistics();
    if (team.leads()) {
      for (int i = 0; i < kEarlyRows && i < count; ++i) {
        cuda::bulk_prefetch(at(a.p.x.data, a.p.x.stride, i), ring.row_bytes);
        cuda::bulk_prefetch(at(a.p.dy.data, a.p.dy.stride, i), ring.row_bytes);
        if (extra) cuda::bulk_prefetch(at(a.p.dsum.data, a.p.dsum.stride, i), ring.row_bytes);
      }
    }
    ring.prepare(team.leads());
    if (a.split.cluster > 1) cuda::cluster_barrier();  // all blocks are there
  }

  __device__ void run() {
    for (int i = 0; i < kFirstFills; ++i) fill(i);
    const auto offset = static_cast<float>(a.p.weight_offset);
    if (sizeof(T) == 2 && a.p.weight_dtype == DType::f32) {
      load_weight<T, float, kTeam>(a.p.weight, offset, slice.first_vector + team.rank, left,
                                   weight);
    } else {
      load_weight<T, T, kTeam>(a.p.weight, offset, slice.first_vector + team.rank, left, weight);
    }
    const float inverse = 1.0F / static_cast<float>(a.p.cols);
    const float* means = static_cast<const float*>(a.p.mean) + slice.row_of(team.index, 0);
    const float* rstds = static_cast<const float*>(a.p.rstd) + slice.row_of(team.index, 0);
    float mean_next = kRms || count == 0 ? 0.0F : __ldg(means);
    float rstd_next = count == 0 ? 0.0F : __ldg(rstds);
    for (int i = 0; i < count; ++i) {
      const float mean = mean_next;
      const float rstd = rstd_next;
      if (i + 1 < count) {
        if constexpr (!kRms) mean_next = __ldg(means += slice.units * kTeams);
        rstd_next = __ldg(rstds += slice.units * kTeams);
      }
      const uint4* stage = ring.drain() + team.rank;
      float sums[kRms ? 1 : 3];
      reduce(stage, mean, rstd, sums);
      if (i == 0) {
        for (int next = kFirstFills; next < ring.stages; ++next) fill(next);
      } else {
        // Every thread is past the previous row now, so its stage can be filled again.
        fill(i - 1 + ring.stages);
      }
      for (float& sum : sums) sum = __fmul_rn(sum, inverse);
      write(i, stage, sums, rstd);
      if (a.wide && (i + 1) % kRowsPerFlush == 0 && i + 1 < count) flush_wide(i < kRowsPerFlush);
    }
    // A team may have one row less than the first. It passes as many barriers all the same: the
    // race detector mistakes the block barriers that follow for others where counts differ.
    if constexpr (kTeam > 32 && kTeam < kThreads) {
      if (count < slice.rows_of(0)) team.barrier();
    }
    if (a.partial == nullptr) return;
    if (a.wide) {
      flush_wide(count <= kRowsPerFlush);
    } else {
      write_partial();
    }
  }

 private:
  __device__ static std::int64_t ring_step(const RowSplit& split, bool extra) {
    return split.slice_vectors * 16 * (extra ? 3 : 2) * split.stages;
  }

  // Lines of 128 bytes of mean, rstd and weight, one for every thread of the grid.
  __device__ void ask_for_statistics() const {
    constexpr std::int64_t kLine = 128;
    const std::int64_t at =
        (blockIdx.x + static_cast<std::int64_t>(threadIdx.x) * gridDim.x) * kLine;
    const auto ask = [&](const void* data, std::int64_t bytes) {
      if (data != nullptr && at < bytes) prefetch_line(static_cast<const char*>(data) + at);
    };
    if constexpr (!kRms) ask(a.p.mean, a.p.rows * 4);
    ask(a.p.rstd, a.p.rows * 4);
    ask(a.p.weight, a.p.cols * static_cast<std::int64_t>(sizeof(T)));
  }

  // The slice of the team's i-th row. Worked out anew each time: registers are what is short here.
  __device__ unsigned char* at(const void* data, std::int64_t stride, int i) const {
    return slice.template at<T>(data, stride, slice.row_of(team.index, i));
  }

  // Starts loading row i of the team, if it has one.
  __device__ void fill(int i) {
    if (!team.leads() || i >= count) return;
    const auto* x_row = at(a.p.x.data, a.p.x.stride, i);
    const auto* dy_row = at(a.p.dy.data, a.p.dy.stride, i);
    if (extra) {
      ring.fill(x_row, dy_row, at(a.p.dsum.data, a.p.dsum.stride, i));
    } else {
      ring.fill(x_row, dy_row);
    }
  }

  __device__ bool has(int j) const { return kFast || j * kTeam < left; }

  // Normalizes the row and reduces to sum(g * xhat0) and, for layer norm, sum(xhat0) and sum(g),
  // where xhat0 is xhat before the rounding residual of the mean is taken off.
  __device__ void reduce(const uint4* stage, float mean, float rstd, float (&sums)[kRms ? 1 : 3]) {
    for (float& sum : sums) sum = 0;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      uint4 packed_x{0, 0, 0, 0};
      uint4 packed_dy{0, 0, 0, 0};
      if (has(j)) {
        packed_x = stage[j * kTeam];
        packed_dy = stage[slice.vectors + j * kTeam];
      }
      float(&dy)[kN] = kept_dy[kKeepDy<T, kV> ? j : 0];
      cuda::unpack_as<T>(packed_x, xhat[j]);
      cuda::unpack_as<T>(packed_dy, dy);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        if constexpr (!kRms) xhat[j][k] -= mean;
        xhat[j][k] *= rstd;
        if (!has(j)) xhat[j][k] = 0;
        if constexpr (kRoom<T, kV>) keep(xhat[j][k]);
        if constexpr (kRoom<T, kV>) keep(dy[k]);
        const float g = dy[k] * weight[j][k];
        sums[0] += g * xhat[j][k];
        if constexpr (!kRms) {
          sums[1] += xhat[j][k];
          sums[2] += g;
        }
      }
    }
    team.sum(sums);
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
    auto* row = reinterpret_cast<uint4*>(at(a.p.dx.data, a.p.dx.stride, i)) + team.rank;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
      float(&dy)[kN] = kept_dy[kKeepDy<T, kV> ? j : 0];
      float out[kN];
      if constexpr (!kKeepDy<T, kV>) cuda::unpack_as<T>(stage[slice.vectors + j * kTeam], dy);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        const float g = dy[k] * weight[j][k];
        out[k] = g * rstd + (kRms ? xhat[j][k] * b : xhat[j][k] * b + c);
        sum_weight[j][k] += dy[k] * (kRms ? xhat[j][k] : xhat[j][k] - residual);
        if constexpr (!kRms) sum_bias[j][k] += dy[k];
      }
      if (extra) {
        float more[kN];
        cuda::unpack_as<T>(stage[2 * slice.vectors + j * kTeam], more);
#pragma unroll
        for (int k = 0; k < kN; ++k) out[k] += more[k];
      }
      __stcs(&row[j * kTeam], cuda::pack_as<T>(out));
    }
  }

  // Adds the sums to this team's own float64 row and starts again from zero.
  __device__ void flush_wide(bool first) {
    auto* base =
        static_cast<double*>(a.partial) + (slice.unit * kTeams + team.index) * 2 * a.p.cols;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        double* g = base + (slice.first_vector + team.rank + j * kTeam) * kN + k;
        double* b = g + a.p.cols;
        *g = (first ? 0.0 : *g) + static_cast<double>(sum_weight[j][k]);
        *b = (first ? 0.0 : *b) + static_cast<double>(sum_bias[j][k]);
        sum_weight[j][k] = 0;
        sum_bias[j][k] = 0;
      }
    }
  }

  __device__ static float4 four(const float* v) { return {v[0], v[1], v[2], v[3]}; }

  // Merges the teams in shared memory, in team order, and writes the block's one partial row. A
  // team's sums fit into its own ring, in the place of two stages.
  __device__ void write_partial() {
    team.barrier();  // this team's ring is drained: its memory is free
    const int columns = slice.vectors * kN;
    const auto step = static_cast<int>(ring_step(a.split, extra) / 4);
    auto* mine = reinterpret_cast<float*>(ring.memory);
    const float* merge = mine - team.index * step;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
      float* place = mine + (team.rank + j * kTeam) * kN;
      // Of eight columns every other four threads store the second half first: 32 bytes from thread
      // to thread would otherwise meet the same banks twice.
      const bool swap = kN == 8 && team.rank % 8 >= 4;
#pragma unroll
      for (int k = 0; k < kN; k += 4) {
        const int four_columns = swap ? kN - 4 - k : k;
        *reinterpret_cast<float4*>(place + four_columns) =
            swap ? four(&sum_weight[j][kN - 4 - k]) : four(&sum_weight[j][k]);
        *reinterpret_cast<float4*>(place + columns + four_columns) =
            swap ? four(&sum_bias[j][kN - 4 - k]) : four(&sum_bias[j][k]);
      }
    }
    __syncthreads();
    float* out = static_cast<float*>(a.partial) + slice.unit * 2 * a.p.cols;
    for (int c = 4 * static_cast<int>(threadIdx.x); c < 2 * columns; c += 4 * kThreads) {
      float4 total{0, 0, 0, 0};
#pragma unroll
      for (int t = 0; t < kTeams; ++t) {
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
  Team<kTeam, kThreads> team;
  Slice slice;
  bool extra;  // dsum comes as a third matrix
  int count;   // rows of this team
  int left;    // vectors of the slice from this thread's first one on
  Ring ring;
  float weight[kV][kN];
  float sum_weight[kV][kN] = {};
  float sum_bias[kV][kN] = {};
  float xhat[kV][kN];
  float kept_dy[kKeepDy<T, kV> ? kV : 1][kN];
};

template <class T, bool kRms, int kTeam, int kV, bool kFast>
__global__ void __maxnreg__((most_registers(sizeof(T), kV)))
    backward_vector_kernel(const __grid_constant__ BackwardArgs args) {
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    extern __shared__ __align__(128) unsigned char memory[];
    using ThisTeam = BackwardTeam<T, kRms, kTeam, kV, kFast>;
    ThisTeam team(args, *reinterpret_cast<SharedLayout*>(memory));
    team.prepare();
    cuda::wait_for_previous_grids();
    team.run();
    // A block must not leave while another of its cluster may still write to it.
    if (kTeam == ThisTeam::kThreads && args.split.cluster > 1) cuda::cluster_barrier();
  }
}

template <class T, bool kRms, int kTeam, int kV, bool kFast>
void launch_kernel(Context& context, BackwardArgs args, int streams) {
  constexpr int kThreads = block_threads(sizeof(T), kV);
  auto* kernel = backward_vector_kernel<T, kRms, kTeam, kV, kFast>;
  const Backward& p = args.p;
  const std::int64_t ring = ring_bytes(args.split, kThreads / kTeam, streams);
  cuda::LaunchShape shape{.threads = kThreads,
                          .cluster = static_cast<unsigned>(args.split.cluster),
                          .shared_bytes = SharedLayout::bytes(ring),
                          .overlap_previous = true};
  cuda::allow_shared(context, kernel);
  prefer_shared(kernel);
  shape.blocks = persistent_blocks(context, kernel, args.split, p.rows, kThreads / kTeam, shape);
  Finish finish{
      .cols = p.cols, .dweight = p.dweight, .dbias = p.dbias, .dtype = p.weight_grad_dtype};
  const bool sums = p.dweight != nullptr || p.dbias != nullptr;
  if (sums) {
    const std::int64_t units = shape.blocks / static_cast<unsigned>(args.split.cluster);
    const std::int64_t teams = kThreads / kTeam;
    args.wide = (p.rows + units * teams - 1) / (units * teams) > kRowsInFloat;
    finish.wide = args.wide;
    finish.count = args.wide ? units * teams : units;
    args.partial =
        detail::ContextAccess::workspace(context, finish.count * 2 * p.cols * (args.wide ? 8 : 4));
    finish.partial = args.partial;
  }
  cuda::launch(context, "norm backward_vector_kernel", kernel, shape, args);
  if (sums) launch_finish(context, finish, true);
}

// The smallest team that holds a row; rows too long for any are shared by a cluster.
template <class T, bool kRms, int kTeam, int kV>
void launch_for_width(Context& context, BackwardArgs args) {
  constexpr int kThreads = block_threads(sizeof(T), kV);
  const int streams = args.p.dsum.data != nullptr ? 3 : 2;
  args.split = split_rows(args.p.cols, args.p.dtype, kTeam, kThreads / kTeam, kV, streams);
  if constexpr (kTeam < kLargestTeam) {
    if (args.split.cluster > 1) {
      constexpr bool kMoreVectors = kV < kMaxVectors;
      // A block of one team has nothing to do while it reduces; more warps shorten that.
      constexpr bool kWhole = !kMoreVectors && 2 * kTeam == kThreads && kThreads < kLargestTeam;
      constexpr int kNextTeam = kMoreVectors ? kTeam : kWhole ? kLargestTeam : 2 * kTeam;
      constexpr int kNextV = kMoreVectors ? kV + 1 : kWhole ? largest_team_vectors(sizeof(T)) : kV;
      return launch_for_width<T, kRms, kNextTeam, kNextV>(context, args);
    }
  }
  const bool full = args.split.row_vectors == std::int64_t{kTeam} * kV * args.split.cluster;
  if (full && streams == 2) {
    launch_kernel<T, kRms, kTeam, kV, true>(context, args, streams);
  } else {
    launch_kernel<T, kRms, kTeam, kV, false>(context, args, streams);
  }
}

}  // namespace

std::string vector_refuses_backward(const Context& context, const Backward& p) {
  if (!cuda::is_hopper(context)) return "needs a Hopper GPU (compute capability 9.0)";
  std::string refusal =
      vectors_refuse(p.cols, p.dtype, {p.x, p.dy, p.dsum, {p.dx.data, p.dx.stride}}, {p.weight});
  if (!refusal.empty()) return refusal;
  const int streams = p.dsum.data != nullptr ? 3 : 2;
  const int vectors = largest_team_vectors(size_of(p.dtype));
  if (split_rows(p.cols, p.dtype, kLargestTeam, 1, vectors, streams).cluster > kMaxCluster) {
    return "rows do not fit in the shared memory of a cluster";
  }
  return "";
}

void backward_vector(Context& context, const Backward& p) {
  const cuda::DeviceScope scope(context.device().index);
  BackwardArgs args;
  args.p = p;
  visit_dtype_and_kind(p.dtype, p.kind, [&]<class T, bool kRms>() {
    launch_for_width<T, kRms, 32, 1>(context, args);
  });
}

}  // namespace touchstone::norm
