// The forward on Hopper: one persistent kernel that reads each row once through the ring.
#include <initializer_list>

#include "ops/norm/norm_cuda.cuh"

namespace touchstone::norm {
namespace {

// 16 warps: with the ring deep enough, one block per multiprocessor saturates memory.
constexpr int kThreads = 512;

// Columns a thread takes at most.
constexpr int kMostColumns = 32;

struct BulkForward {
  Forward p;
  RowSplit split;
};

struct RowStatistics {
  float mean;      // provisional: a float near the mean
  float residual;  // sum(h - mean) / D, what it lacks
  float rstd;
};

// One vector of a row: x, or x + residual rounded as it will be stored.
template <class T, bool kFused>
__device__ void fetch(const uint4* stage, int slice_vectors, float (&h)[cuda::kPerVector<T>]) {
  cuda::unpack_as<T>(stage[0], h);
  if constexpr (kFused) {
    float r[cuda::kPerVector<T>];
    cuda::unpack_as<T>(stage[slice_vectors], r);
#pragma unroll
    for (int k = 0; k < cuda::kPerVector<T>; ++k) h[k] = cuda::rounded<T>(h[k] + r[k]);
  }
}

// gamma and beta of a thread's columns. In f32 they fit in registers. In 16 bits a thread takes
// twice the columns and they stay in shared memory, as f32: four q of vector v at [q][v].
template <class T, bool kRms, int kTeam, int kV>
struct Weights {
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr bool kShared = sizeof(T) == 2;

  float4* shared;
  int vectors;  // of the slice
  int rank;
  float gamma[kShared ? 1 : kV][kN];
  float beta[kShared || kRms ? 1 : kV][kN];

  __device__ Weights(float4* memory, int slice_vectors, int thread)
      : shared(memory), vectors(slice_vectors), rank(thread) {}

  // For all threads of the block. `first_vector` is the slice's place in the row.
  __device__ void load(const Forward& p, std::int64_t first_vector) {
    const auto offset = static_cast<float>(p.weight_offset);
    if constexpr (kShared) {
      for (int v = static_cast<int>(threadIdx.x); v < vectors; v += kThreads) {
        float one[1][kN];
        load_weights<T, 1>(p.gamma, p.weight_dtype, offset, 1.0F, first_vector + v, 1, one);
        keep(v, 0, one[0]);
        if constexpr (!kRms) {
          load_weights<T, 1>(p.beta, p.weight_dtype, 0.0F, 0.0F, first_vector + v, 1, one);
          keep(v, kN / 4, one[0]);
        }
      }
      __syncthreads();
    } else {
      const int left = vectors - rank;
      const std::int64_t first = first_vector + rank;
      load_weights<T, kTeam>(p.gamma, p.weight_dtype, offset, 1.0F, first, left, gamma);
      if constexpr (!kRms) {
        load_weights<T, kTeam>(p.beta, p.weight_dtype, 0.0F, 0.0F, first, left, beta);
      }
    }
  }

  // Turns normalised values of vector j into outputs.
  __device__ void apply(int j, float (&value)[kN]) const {
#pragma unroll
    for (int q = 0; q < kN / 4; ++q) {
      float4 g{1, 1, 1, 1};
      float4 b{0, 0, 0, 0};
      if constexpr (kShared) {
        g = shared[q * vectors + rank + j * kTeam];
        if constexpr (!kRms) b = shared[(kN / 4 + q) * vectors + rank + j * kTeam];
      } else {
        g = {gamma[j][4 * q], gamma[j][4 * q + 1], gamma[j][4 * q + 2], gamma[j][4 * q + 3]};
        if constexpr (!kRms) {
          b = {beta[j][4 * q], beta[j][4 * q + 1], beta[j][4 * q + 2], beta[j][4 * q + 3]};
        }
      }
      const float gs[4] = {g.x, g.y, g.z, g.w};
      const float bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        value[4 * q + k] = kRms ? value[4 * q + k] * gs[k] : fmaf(value[4 * q + k], gs[k], bs[k]);
      }
    }
  }

 private:
  __device__ void keep(int v, int first_four, const float (&value)[kN]) {
#pragma unroll
    for (int q = 0; q < kN / 4; ++q) {
      shared[(first_four + q) * vectors + v] = {value[4 * q], value[4 * q + 1], value[4 * q + 2],
                                                value[4 * q + 3]};
    }
  }
};

// What gamma and beta take of shared memory per column.
__host__ __device__ constexpr int shared_weight_bytes(const Forward& p) {
  if (p.dtype == DType::f32) return 0;
  return p.kind == Kind::rms ? 4 : 8;
}

// The statistics of a row whose squares overflow or vanish, from h * 2^-k with 2^k the size of its
// largest value. Rare, so it is kept out of line and takes copies: its callers stay in registers.
// Combines three times.
template <class T, bool kRms, int kTeam, bool kFused>
__device__ __noinline__ RowStatistics scaled_statistics(const uint4* stage, int vectors,
                                                        Team<kTeam, kThreads> team, float inverse,
                                                        double eps) {
  constexpr int kN = cuda::kPerVector<T>;
  constexpr float kLargestFloat = 3.402823466e38F;
  const auto sweep = [&](auto body) {
    for (int v = team.rank; v < vectors; v += kTeam) {
      float h[kN];
      fetch<T, kFused>(stage + v, vectors, h);
      for (int k = 0; k < kN; ++k) body(h[k]);
    }
  };
  float largest[2] = {0, 0};  // the second is 1 when a value is not finite: fmaxf skips NaN
  sweep([&](float h) {
    largest[0] = fmaxf(largest[0], fabsf(h));
    if (!(fabsf(h) <= kLargestFloat)) largest[1] = 1;
  });
  team.combine(largest, Max{});
  const int exponent = largest[0] > 0 && largest[1] == 0 ? ilogbf(largest[0]) : 0;
  // 2^-k does not fit in a float for the smallest values: two steps.
  const float half_scale = ldexpf(1.0F, -exponent / 2);
  const float rest_scale = ldexpf(1.0F, -exponent - (-exponent / 2));
  float total[1] = {0};
  sweep([&](float h) { total[0] += h * half_scale * rest_scale; });
  team.sum(total);
  // Rounded here and now: merged into the differences below, it would be another mean than the one
  // that is given back.
  const float mean = kRms ? 0.0F : __fmul_rn(total[0], inverse);
  float sums[2] = {0, 0};
  sweep([&](float h) {
    const float d = h * half_scale * rest_scale - mean;
    sums[0] += d;
    sums[1] += d * d;
  });
  team.sum(sums);
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

enum class Mode {
  full,    // every thread has all its columns
  ragged,  // some have fewer
  fused,   // a residual is added, and threads may have fewer
};

template <class T, bool kRms, int kTeam, int kV, Mode kMode>
class ForwardTeam {
 public:
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kTeams = kThreads / kTeam;
  static constexpr bool kFused = kMode == Mode::fused;
  // A thread keeps its part of the row in registers while that is at most 32 of them beside the
  // weights; above, it reads the stage again for each sweep.
  static constexpr bool kKeep = Weights<T, kRms, kTeam, kV>::kShared || kV * kN <= 16;

  __device__ ForwardTeam(const BulkForward& args, SharedLayout& shared)
      : a(args),
        team(shared.scratch, shared.exchange, args.split.cluster),
        slice(args.split, args.p.rows, kTeams),
        count(slice.rows_of(team.index)),
        left(slice.vectors - team.rank),
        inverse(1.0F / static_cast<float>(args.p.cols)),
        eps(static_cast<float>(args.p.eps)),
        ring(shared.full + team.index * kMaxStages,
             shared.ring + args.split.slice_vectors * kN * shared_weight_bytes(args.p) +
                 static_cast<std::int64_t>(team.index) * args.split.stages * (kFused ? 2 : 1) *
                     args.split.slice_vectors * 16,
             static_cast<std::uint32_t>(slice.vectors) * 16, kFused ? 2 : 1, args.split.stages),
        x(slice.template rows_at<T>(args.p.x.data, args.p.x.stride, team.index)),
        residual(
            slice.template rows_at<T>(args.p.residual.data, args.p.residual.stride, team.index)),
        y(slice.template rows_at<T>(args.p.y.data, args.p.y.stride, team.index)),
        sum(slice.template rows_at<T>(args.p.sum.data, args.p.sum.stride, team.index)),
        weights(reinterpret_cast<float4*>(shared.ring), slice.vectors, team.rank) {}

  __device__ void run() {
    for (int i = 0; i < ring.stages; ++i) fill(i);
    weights.load(a.p, slice.first_vector);
    for (int i = 0; i < count; ++i) {
      const uint4* stage = ring.drain();
      const RowStatistics s = statistics(i, stage);
      write(i, stage, s);
    }
  }

 private:
  // Starts loading row i of the team, if it has one.
  __device__ void fill(int i) {
    if (!team.leads() || i >= count) return;
    if constexpr (kFused) {
      ring.fill(x.take(), residual.take());
    } else {
      ring.fill(x.take());
    }
  }

  __device__ bool has(int j) const { return kMode == Mode::full || j * kTeam < left; }

  // Calls body(j, values) for every vector of this thread. The first sweep over a row fetches; what
  // the body leaves in the values, the next one finds.
  template <bool kFirst, class Body>
  __device__ void sweep(const uint4* stage, Body body) {
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
      float(&h)[kN] = row[kKeep ? j : 0];
      if constexpr (kFirst || !kKeep) {
        fetch<T, kFused>(stage + team.rank + j * kTeam, slice.vectors, h);
      }
      body(j, h);
    }
  }

  // sums[0] = sum((h - mean)^2) and, for layer norm, sums[1] = sum(h - mean); both over D. Kept
  // values are left centred, so that the next sweep is given only what `mean` has changed by.
  template <bool kFirst>
  __device__ void moments(const uint4* stage, float mean, float change,
                          float (&sums)[kRms ? 1 : 2]) {
    for (float& value : sums) value = 0;
    sweep<kFirst>(stage, [&](int, float(&h)[kN]) {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        if constexpr (!kRms) {
          h[k] -= kKeep ? change : mean;
          sums[1] += h[k];
        }
        sums[0] = fmaf(h[k], h[k], sums[0]);
      }
    });
    team.sum(sums);
    for (float& value : sums) value = __fmul_rn(value, inverse);
  }

  // Any float near the mean will do for a start. The row's first two values often are, and need
  // no reduction; where they are not, what they lack is found by the same sweep, and a second one
  // starts from there. The blocks of a cluster start from 0 and always need the second.
  __device__ RowStatistics statistics(int i, const uint4* stage) {
    RowStatistics s{0, 0, 0};
    float sums[kRms ? 1 : 2];
    const bool alone = kTeam < kThreads || team.cluster == 1;
    if (!kRms && alone) {
      float h[kN];
      fetch<T, kFused>(stage, slice.vectors, h);
      s.mean = 0.5F * (h[0] + h[1]);
    }
    moments<true>(stage, s.mean, s.mean, sums);
    // Every thread is past the previous row now, so its stage can be filled again.
    if (i > 0) fill(i - 1 + ring.stages);
    if constexpr (!kRms) {
      // Taking the square of what is lacking off the mean square loses log2(1 + kFarFromMean) bits,
      // three at most.
      constexpr float kFarFromMean = 8.0F;
      const float offset = sums[1] * sums[1];
      if (!alone || !(offset <= kFarFromMean * (sums[0] - offset))) {
        const float change = sums[1];
        s.mean += change;
        moments<false>(stage, s.mean, change, sums);
      }
      s.residual = sums[1];
    }
    // Written so that NaN takes the careful way too.
    const float mean_square = sums[0] + eps;
    if (!(mean_square <= 0x1p120F && mean_square >= static_cast<float>(kSmallMeanSquare))) {
      s = scaled_statistics<T, kRms, kTeam, kFused>(stage, slice.vectors, team, inverse, a.p.eps);
      team.parity ^= 1;  // three combinations, on a copy
      restart(stage, s.mean);
      return s;
    }
    const float square = fmaxf(fmaf(-s.residual, s.residual, sums[0]), 0.0F) + eps;
    const float estimate = rsqrtf(square);
    s.rstd = estimate * fmaf(-0.5F * square * estimate, estimate, 1.5F);
    return s;
  }

  // Centres the kept values on another mean than the sweeps have used.
  __device__ void restart(const uint4* stage, float mean) {
    if constexpr (kKeep) {
      sweep<true>(stage, [&](int, float(&h)[kN]) {
#pragma unroll
        for (int k = 0; k < kN; ++k) h[k] -= kRms ? 0.0F : mean;
      });
    }
  }

  __device__ void write(int i, const uint4* stage, const RowStatistics& s) {
    auto* y_row = reinterpret_cast<uint4*>(y.take()) + team.rank;
    auto* sum_row = reinterpret_cast<uint4*>(kFused ? sum.take() : nullptr) + team.rank;
    const float shift = -s.residual * s.rstd;
    sweep<false>(stage, [&](int j, float(&h)[kN]) {
      float out[kN];
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        const float centred = kKeep || kRms ? h[k] : h[k] - s.mean;
        out[k] = kRms ? centred * s.rstd : fmaf(centred, s.rstd, shift);
        if (kRms && a.p.round_before_weight) out[k] = cuda::rounded<T>(out[k]);
      }
      weights.apply(j, out);
      if constexpr (kFused) {
        float original[kN];
        fetch<T, kFused>(stage + team.rank + j * kTeam, slice.vectors, original);
        __stcs(&sum_row[j * kTeam], cuda::pack_as<T>(original));
      }
      __stcs(&y_row[j * kTeam], cuda::pack_as<T>(out));
    });
    if (!team.leads() || slice.first_vector != 0) return;
    const std::int64_t index = slice.row_of(team.index, i);
    if (a.p.mean != nullptr) static_cast<float*>(a.p.mean)[index] = s.mean + s.residual;
    if (a.p.rstd != nullptr) static_cast<float*>(a.p.rstd)[index] = s.rstd;
  }

  const BulkForward& a;
  Team<kTeam, kThreads> team;
  Slice slice;
  int count;  // rows of this team
  int left;   // vectors of the slice from this thread's first one on
  float inverse, eps;
  Ring ring;
  RowWalk x, residual, y, sum;
  Weights<T, kRms, kTeam, kV> weights;
  float row[kKeep ? kV : 1][kN];
};

template <class T, bool kRms, int kTeam, int kV, Mode kMode>
__global__ void __launch_bounds__(kThreads, 1)
    forward_bulk_kernel(const __grid_constant__ BulkForward args) {
  if constexpr (cuda::kHopper) {
    SharedLayout& shared = begin_bulk_kernel(kThreads / kTeam, args.split.stages);
    ForwardTeam<T, kRms, kTeam, kV, kMode>(args, shared).run();
    // A block must not leave while another of its cluster may still write to it.
    if (kTeam == kThreads && args.split.cluster > 1) cuda::cluster_barrier();
  }
}

template <class T, bool kRms, int kTeam, int kV, Mode kMode>
void launch_kernel(Context& context, const BulkForward& args) {
  auto* kernel = forward_bulk_kernel<T, kRms, kTeam, kV, kMode>;
  constexpr int kTeams = kThreads / kTeam;
  const int matrices = kMode == Mode::fused ? 2 : 1;
  const std::int64_t weights =
      args.split.slice_vectors * cuda::kPerVector<T> * shared_weight_bytes(args.p);
  cuda::LaunchShape shape{
      .threads = kThreads,
      .cluster = static_cast<unsigned>(args.split.cluster),
      .shared_bytes = SharedLayout::bytes(weights + ring_bytes(args.split, kTeams, matrices)),
      .overlap_previous = true};
  cuda::allow_shared(kernel, shape.shared_bytes);
  shape.blocks = persistent_blocks(context, kernel, args.split, args.p.rows, kTeams, shape);
  cuda::launch(context, "norm forward_bulk_kernel", kernel, shape, args);
}

RowSplit split_forward(const Forward& p, int team, int teams, int columns) {
  const auto vectors = static_cast<int>(columns * size_of(p.dtype) / 16);
  return split_rows(p.cols, p.dtype, team, teams, vectors, p.residual.data != nullptr ? 2 : 1,
                    shared_weight_bytes(p));
}

// The smallest team that holds a row; rows too long for any are shared by a cluster. In 16 bits a
// thread takes 32 columns as soon as it can: what a row costs beside its columns is then paid by
// fewer threads, and arithmetic is what is short. In f32, where bytes are, it takes 16, and 32 only
// when the team cannot grow any more.
template <class T, bool kRms, int kTeam, int kColumns>
void launch_for_width(Context& context, BulkForward args) {
  constexpr int kV = kColumns / cuda::kPerVector<T>;
  args.split = split_forward(args.p, kTeam, kThreads / kTeam, kColumns);
  if (args.split.cluster > 1) {
    if constexpr (kColumns < kMostColumns && (sizeof(T) == 2 || kTeam == kThreads)) {
      return launch_for_width<T, kRms, kTeam, kMostColumns>(context, args);
    } else if constexpr (kTeam < kThreads) {
      return launch_for_width<T, kRms, 2 * kTeam, kColumns>(context, args);
    }
  }
  if (args.p.residual.data != nullptr) {
    return launch_kernel<T, kRms, kTeam, kV, Mode::fused>(context, args);
  }
  if (args.split.row_vectors == std::int64_t{kTeam} * kV * args.split.cluster) {
    return launch_kernel<T, kRms, kTeam, kV, Mode::full>(context, args);
  }
  launch_kernel<T, kRms, kTeam, kV, Mode::ragged>(context, args);
}

}  // namespace

std::string bulk_refuses_forward(const Context& context, const Forward& p) {
  const RowSplit widest = split_forward(p, kThreads, 1, kMostColumns);
  return bulk_refuses(context, p.cols, p.dtype,
                      {p.x, p.residual, {p.y.data, p.y.stride}, {p.sum.data, p.sum.stride}},
                      {p.gamma, p.beta}, widest);
}

void forward_bulk(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  BulkForward args;
  args.p = p;
  visit_dtype_and_kind(p.dtype, p.kind, [&]<class T, bool kRms>() {
    launch_for_width<T, kRms, 32, 16>(context, args);
  });
}

}  // namespace touchstone::norm
