// The forward: a row is loaded once, straight into the registers of the threads that share it, and
// never leaves them until it is written. One row per team of threads and no loop over rows: with 32
// warps per multiprocessor the loads of some rows hide behind the arithmetic of others.
//
// Where the whole problem takes no longer than some thirty microseconds, blocks that stay are
// faster: there is no last, half empty wave of blocks, and the weights are loaded once.
#include <initializer_list>

#include "ops/norm/norm_cuda_ring.cuh"

namespace touchstone::norm {
namespace {

// A thread takes this many vectors of 16 bytes: of one row, or of several short ones. Twice as many
// where a block cannot grow any more.
constexpr int kFewVectors = 4;
constexpr int kMaxVectors = 8;
constexpr int kLargestTeam = 512;
// Blocks that stay: so many per multiprocessor, with so many rows of each team under way.
constexpr int kRingBlocks = 2;
constexpr int kRingStages = 3;

struct ForwardArgs {
  Forward p;
  std::int64_t row_vectors = 0;    // 16-byte vectors in a row
  std::int64_t slice_vectors = 0;  // in one block's part of it (the last may be shorter)
  int cluster = 1;                 // blocks that share a row
  unsigned early_blocks = 0;       // how many ask for their rows beside the previous grid
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
template <class T, bool kRms, bool kFused, class Team>
__device__ __noinline__ RowStatistics scaled_statistics(RowInput<T, kFused> input, int first,
                                                        int end, Team team, float inverse,
                                                        double eps) {
  constexpr int kN = cuda::kPerVector<T>;
  constexpr float kLargestFloat = 3.402823466e38F;
  const auto sweep = [&](auto body) {
    for (int v = first; v < end; v += Team::kThreadsPerTeam) {
      float h[kN];
      cuda::unpack_as<T>(input.packed(v), h);
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
  full,    // every thread has all its vectors, and there are weight and bias
  ragged,  // some have fewer, or weights are missing
  fused,   // as ragged, and a residual is added
};

// Where the rows come from.
enum class Feed {
  registers,  // straight into the registers of their team; no loop over rows
  ring,       // through shared memory; blocks stay for the whole problem
};

constexpr int block_threads(int team) { return team <= 256 ? 256 : team; }

// The ring keeps the weights in registers.
constexpr int least_blocks(int team, Feed feed) {
  return feed == Feed::ring ? kRingBlocks : 1024 / block_threads(team);
}

// Short rows are taken several at a time: as many bytes in flight as for long ones.
constexpr int rows_per_team(int team, int vectors) {
  return team <= 32 ? kFewVectors / vectors : 1;
}

// The rows of one team.
template <class T, bool kRms, int kTeam, int kV, Mode kMode, Feed kFeed>
class ForwardTeam {
 public:
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kThreads = block_threads(kTeam);
  static constexpr int kRows = rows_per_team(kTeam, kV);
  static constexpr bool kFused = kMode == Mode::fused;
  static constexpr bool kStays = kFeed == Feed::ring;
  static constexpr bool kClusters = cuda::kHopper && kTeam == kLargestTeam;
  using Threads = Team<kTeam, kThreads>;

  __device__ ForwardTeam(const ForwardArgs& args, float4* scratch, float4* exchange)
      : a(args),
        team(scratch, exchange, args.cluster),
        first_row(
            (blockIdx.x / static_cast<unsigned>(args.cluster) * Threads::kCount + team.index) *
            std::int64_t{kRows}),
        first(first_of_slice(args)),
        left(static_cast<int>(min(args.slice_vectors, args.row_vectors - first)) - team.rank),
        inverse(1.0F / static_cast<float>(args.p.cols)) {}

  // While the grids before this one end, the rows of the first blocks are brought into L2.
  __device__ void ask_ahead() const {
    if (!team.leads() || blockIdx.x >= a.early_blocks) return;
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
      if (first_row + r < a.p.rows) normalize(r, kRms ? 0.0F : first_guess(r));
    }
  }

  // The rows of a block that stays. The ring has been prepared.
  __device__ void run_from(Ring& ring) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Threads::kCount;
    std::int64_t asked = 0;  // rows from first_row on
    const auto ask = [&] {
      if (team.leads() && first_row + asked < a.p.rows) {
        ring.fill(at(a.p.x.data, a.p.x.stride, asked));
      }
      asked += step;
    };
    for (int i = 0; i < ring.stages; ++i) ask();
    if (sizeof(T) == 2 && a.p.weight_dtype == DType::f32) {
      keep_weights<float>();
    } else {
      keep_weights<T>();
    }
    for (; first_row < a.p.rows; first_row += step, asked -= step) {
      const uint4* stage = ring.drain();
#pragma unroll
      for (int j = 0; j < kV; ++j) {
        if (has(j)) packed[0][j] = stage[team.rank + j * kTeam];
      }
      float start = 0;
      if constexpr (!kRms) start = guess_from(kTeam <= 32 ? packed[0][0] : stage[0]);
      team.barrier();  // the row is in registers: its stage is free
      ask();
      normalize(0, start);
    }
  }

  // While the grids before this one end, a quarter of the rows is brought into L2: more of them
  // come in the way of what that grid still writes.
  __device__ void ask_ahead_of_ring() const {
    if (!team.leads()) return;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Threads::kCount;
    const std::int64_t early = max(std::int64_t{1}, (a.p.rows / step + 2) / 4);
    for (std::int64_t i = 0; i < early && first_row + i * step < a.p.rows; ++i) {
      cuda::bulk_prefetch(at(a.p.x.data, a.p.x.stride, i * step), row_bytes());
    }
  }

  __device__ std::uint32_t row_bytes() const {
    return static_cast<std::uint32_t>(a.row_vectors) * 16;
  }
  __device__ bool leads() const { return team.leads(); }
  __device__ int team_index() const { return team.index; }

 private:
  __device__ bool has(int j) const { return kMode == Mode::full || j * kTeam < left; }

  __device__ static std::int64_t first_of_slice(const ForwardArgs& args) {
    if constexpr (kClusters)
      return args.cluster > 1 ? cuda::cluster_rank() * args.slice_vectors : 0;
    return 0;
  }

  // The start of the team's r-th row in a matrix.
  __device__ const uint4* at(const void* data, std::int64_t stride, std::int64_t r) const {
    return reinterpret_cast<const uint4*>(static_cast<const T*>(data) + (first_row + r) * stride);
  }
  __device__ uint4* place(const Rows& rows, int r) const {
    return const_cast<uint4*>(at(rows.data, rows.stride, r)) + first + team.rank;
  }
  __device__ RowInput<T, kFused> input(int r) const {
    return {at(a.p.x.data, a.p.x.stride, r), at(a.p.residual.data, a.p.residual.stride, r)};
  }

  __device__ void load(int r) {
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (has(j)) packed[r][j] = input(r).packed(first + team.rank + j * kTeam);
    }
  }

  __device__ void normalize(int r, float start) {
    if constexpr (kClusters) {
      if (a.cluster > 1) cuda::cluster_barrier();  // all blocks are there
    }
    const RowStatistics s = statistics(r, start);
    // One loop or the other: the loads of all vectors can then be in flight together.
    if (!kStays && sizeof(T) == 2 && a.p.weight_dtype == DType::f32) {
      write<float>(r, s);
    } else {
      write<T>(r, s);
    }
    if (team.rank != 0 || first != 0) return;
    if (a.p.mean != nullptr) static_cast<float*>(a.p.mean)[first_row + r] = s.mean + s.residual;
    if (a.p.rstd != nullptr) static_cast<float*>(a.p.rstd)[first_row + r] = s.rstd;
  }

  // Any float near the mean will do for a start. The row's first two values often are, and need
  // no reduction.
  __device__ float first_guess(int r) const {
    return guess_from(kTeam <= 32 ? packed[r][0] : input(r).packed(0));
  }
  // In a team of one warp the first vector of the row is the one its first thread has.
  __device__ float guess_from(const uint4& vector) const {
    float h[kN];
    cuda::unpack_as<T>(vector, h);
    const float guess = 0.5F * (h[0] + h[1]);
    if constexpr (kTeam <= 32) return __shfl_sync(team.mask(), guess, 0, kTeam);
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
    team.sum(sums);
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
      // Rounded, so that every kernel comes to the same decision.
      const float offset = __fmul_rn(sums[1], sums[1]);
      if (!(offset <= kFarFromMean * (sums[0] - offset))) {
        s.mean += sums[1];
        moments(r, s.mean, sums);
      }
      s.residual = sums[1];
    }
    // Written so that NaN takes the careful way too.
    const float mean_square = sums[0] + eps;
    if (!(mean_square <= 0x1p120F && mean_square >= static_cast<float>(kSmallMeanSquare))) {
      const int begin = static_cast<int>(first) + team.rank;
      s = scaled_statistics<T, kRms, kFused>(input(r), begin, begin + left, team, inverse, a.p.eps);
      team.parity ^= 1;  // three combinations, on a copy
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
    const std::int64_t column = (first + team.rank + j * kTeam) * kN;
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
    uint4* y = place(a.p.y, r);
    uint4* sum = kFused ? place(a.p.sum, r) : nullptr;
    const float shift = -s.residual * s.rstd;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (!has(j)) continue;
      float out[kN];
      cuda::unpack_as<T>(packed[r][j], out);
      float(&scale)[kN] = kept_scale[kStays ? j : 0];
      float(&offset)[kN] = kept_offset[kStays ? j : 0];
      if constexpr (!kStays) load_weights<W>(j, scale, offset);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        out[k] = kRms ? out[k] * s.rstd : fmaf(out[k] - s.mean, s.rstd, shift);
        if (kRms && a.p.round_before_weight) out[k] = cuda::rounded<T>(out[k]);
        out[k] = kRms ? out[k] * scale[k] : fmaf(out[k], scale[k], offset[k]);
      }
      if constexpr (kFused) __stcs(sum + j * kTeam, packed[r][j]);
      if constexpr (kStays) {
        y[j * kTeam] = cuda::pack_as<T>(out);
      } else {
        __stcs(y + j * kTeam, cuda::pack_as<T>(out));
      }
    }
  }

  const ForwardArgs& a;
  Threads team;
  std::int64_t first_row;
  std::int64_t first;  // vector of the row that this block starts with
  int left;            // vectors of its slice from this thread's first one on
  float inverse;
  uint4 packed[kRows][kV];  // this thread's part of the rows
  float kept_scale[kStays ? kV : 1][kN];
  float kept_offset[kStays ? kV : 1][kN];
};

template <class T, bool kRms, int kTeam, int kV, Mode kMode>
__global__ void __launch_bounds__(block_threads(kTeam), least_blocks(kTeam, Feed::registers))
    forward_vector_kernel(const __grid_constant__ ForwardArgs args) {
  using ThisTeam = ForwardTeam<T, kRms, kTeam, kV, kMode, Feed::registers>;
  __shared__ float4 scratch[2 * ThisTeam::kThreads / 32];
  __shared__ float4 exchange[2 * kMaxCluster];
  ThisTeam rows(args, scratch, exchange);
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    rows.ask_ahead();
    cuda::wait_for_previous_grids();
  }
  rows.run();
}

template <class T, bool kRms, int kTeam, int kV, Mode kMode>
__global__ void __launch_bounds__(block_threads(kTeam), least_blocks(kTeam, Feed::ring))
    forward_ring_kernel(const __grid_constant__ ForwardArgs args) {
  if constexpr (cuda::kHopper) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<SharedLayout*>(memory);
    ForwardTeam<T, kRms, kTeam, kV, kMode, Feed::ring> rows(args, shared.scratch, shared.exchange);
    Ring ring(shared.full + rows.team_index() * kMaxStages,
              shared.ring + rows.team_index() * kRingStages * rows.row_bytes(), rows.row_bytes(), 1,
              kRingStages);
    rows.ask_ahead_of_ring();
    ring.prepare(rows.leads());
    cuda::wait_for_previous_grids();
    cuda::let_next_grid_start();
    rows.run_from(ring);
  }
}

// With more bytes the start matters little, and rows out of turn cost DRAM more than they save.
unsigned early_blocks(const Context& context, const Forward& p) {
  constexpr int kPerProcessor = 2;
  const std::int64_t most = size_of(p.dtype) == 2 ? 32 << 20 : 16 << 20;
  if (p.rows * p.cols * size_of(p.dtype) > most) return 0;
  return static_cast<unsigned>(kPerProcessor *
                               cuda::device_attribute(context, cudaDevAttrMultiProcessorCount));
}

// Below, blocks that stay have too few rows each to gain by it; above, they gain nothing, since the
// start and the end of the grid matter little.
bool ring_pays(const Context& context, const ForwardArgs& args) {
  constexpr std::int64_t kMinBytes = 8 << 20;
  constexpr std::int64_t kMaxBytes = 40 << 20;
  const std::int64_t bytes = args.p.rows * args.row_vectors * 16;
  return cuda::is_hopper(context) && bytes > kMinBytes && bytes <= kMaxBytes;
}

template <class T, bool kRms, int kTeam, int kV, Mode kMode>
void launch_ring(Context& context, const ForwardArgs& args) {
  constexpr int kThreads = block_threads(kTeam);
  constexpr int kTeams = kThreads / kTeam;
  auto* kernel = forward_ring_kernel<T, kRms, kTeam, kV, kMode>;
  const std::int64_t useful = (args.p.rows + kTeams - 1) / kTeams;
  const std::int64_t most =
      kRingBlocks * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(useful < most ? useful : most),
      .threads = kThreads,
      .shared_bytes = SharedLayout::bytes(kTeams * kRingStages * args.row_vectors * 16),
      .overlap_previous = true};
  cuda::allow_shared(context, kernel);
  prefer_shared(kernel);
  cuda::launch(context, "norm forward_ring_kernel", kernel, shape, args);
}

template <class T, bool kRms, int kTeam, int kV, Mode kMode>
void launch_mode(Context& context, ForwardArgs args) {
  if constexpr (kMode != Mode::fused && kTeam >= 32 && kTeam <= 128 && kV == kFewVectors) {
    if (ring_pays(context, args)) return launch_ring<T, kRms, kTeam, kV, kMode>(context, args);
  }
  constexpr int kThreads = block_threads(kTeam);
  args.early_blocks = early_blocks(context, args.p);
  constexpr int kRows = kThreads / kTeam * rows_per_team(kTeam, kV);
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>((args.p.rows + kRows - 1) / kRows * args.cluster),
      .threads = kThreads,
      .cluster = static_cast<unsigned>(args.cluster),
      .overlap_previous = cuda::is_hopper(context)};
  cuda::launch(context, "norm forward_vector_kernel",
               forward_vector_kernel<T, kRms, kTeam, kV, kMode>, shape, args);
}

// The smallest team that holds a row; rows too long for any are shared by a cluster.
template <class T, bool kRms, int kTeam, int kV>
void launch_for_width(Context& context, ForwardArgs args) {
  if constexpr (kTeam < kLargestTeam || kV < kMaxVectors) {
    if (args.row_vectors > kTeam * kV) {
      constexpr bool kMoreThreads = kTeam < 32 || (kV == kFewVectors && kTeam < kLargestTeam);
      constexpr int kNextTeam = kMoreThreads ? 2 * kTeam : kTeam;
      constexpr int kNextV = kMoreThreads ? kV : 2 * kV;
      return launch_for_width<T, kRms, kNextTeam, kNextV>(context, args);
    }
  }
  while (args.row_vectors > std::int64_t{kTeam} * kV * args.cluster) args.cluster *= 2;
  args.slice_vectors = (args.row_vectors + args.cluster - 1) / args.cluster;
  if (args.p.residual.data != nullptr) {
    launch_mode<T, kRms, kTeam, kV, Mode::fused>(context, args);
  } else if (args.row_vectors == std::int64_t{kTeam} * kV * args.cluster &&
             args.p.weight != nullptr && (kRms || args.p.bias != nullptr)) {
    launch_mode<T, kRms, kTeam, kV, Mode::full>(context, args);
  } else {
    launch_mode<T, kRms, kTeam, kV, Mode::ragged>(context, args);
  }
}

}  // namespace

std::string vector_refuses_forward(const Context& context, const Forward& p) {
  const std::int64_t vectors = p.cols * size_of(p.dtype) / 16;
  const std::int64_t held = std::int64_t{kLargestTeam} * kMaxVectors;
  std::string refusal = vectors_refuse(
      p.cols, p.dtype, {p.x, p.residual, {p.y.data, p.y.stride}, {p.sum.data, p.sum.stride}},
      {p.weight, p.bias});
  if (refusal.empty() && vectors > held) {
    if (!cuda::is_hopper(context)) {
      refusal = "rows do not fit in the registers of a block, and clusters need a Hopper GPU";
    } else if (vectors > held * kMaxCluster) {
      refusal = "rows do not fit in the registers of a cluster";
    }
  }
  return refusal;
}

void forward_vector(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  ForwardArgs args;
  args.p = p;
  args.row_vectors = p.cols * size_of(p.dtype) / 16;
  visit_dtype_and_kind(p.dtype, p.kind, [&]<class T, bool kRms>() {
    launch_for_width<T, kRms, 16, 1>(context, args);
  });
}

}  // namespace touchstone::norm
