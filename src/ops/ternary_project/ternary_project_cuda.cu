// ternary_project on CUDA. warp_per_group: a group of up to 256 values is one warp's: value i belongs to
// lane i % 32, so that the sums of core/ternary.h are the sums of lanes and a reduction by halves.
// multi_pass: larger groups, rows and tensors, are summed in runs of 256, one warp each, and the runs in
// order by one warp per group.
#include <algorithm>
#include <limits>

#include "core/context_access.h"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "cuda/visit_dtype.h"
#include "ops/ternary_project/ternary_project_problem.h"
#include "ops/ternary_project/ternary_project_tuning.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::ternary_op {
namespace {

using tuning::kThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kRun = 256;
constexpr int kPerLane = kRun / 32;
constexpr unsigned kAll = 0xffffffffU;

__device__ float device_stored_scale(double scale, TernaryScaleType type) {
  if (!(scale > 0)) return static_cast<float>(scale);
  if (type == TernaryScaleType::f32) {
    return scale < 0x1p-149 ? 0x1p-149F : static_cast<float>(fmin(scale, 0x1.fffffep127));
  }
  if (type == TernaryScaleType::f16_bf16) {
    return cuda::widen(F16(cuda::widen(Bf16(fmin(fmax(scale, 0x1p-24), 65280.0)))));
  }
  return cuda::widen(F16(fmin(fmax(scale, 0x1p-24), 65504.0)));
}

// Up to 256 values from `begin` on: value i of them is x[i / 32] of lane i % 32, zeros follow.
__device__ void load_run(const float* from, std::int64_t count, float (&x)[kPerLane]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int i = lane + 32 * j;
    x[j] = i < count ? from[i] : 0.0F;
  }
}

// In lane 0.
__device__ double warp_sum(const float (&x)[kPerLane]) {
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) sum += static_cast<double>(fabsf(x[j]));
#pragma unroll
  for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(kAll, sum, half);
  return sum;
}
__device__ double warp_most(const float (&x)[kPerLane]) {
  float most = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) most = fmaxf(most, fabsf(x[j]));
#pragma unroll
  for (int half = 16; half > 0; half /= 2) most = fmaxf(most, __shfl_down_sync(kAll, most, half));
  return static_cast<double>(most);
}

// Sorts magnitudes by counting those before each, then tries every number of codes in lane 0.
__device__ double warp_least_squares(const float (&x)[kPerLane], int count, float* sorted) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int rank[kPerLane] = {};
  for (int other = 0; other < count; ++other) {
    float magnitude = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (other / 32 == j) magnitude = fabsf(x[j]);
    }
    magnitude = __shfl_sync(kAll, magnitude, other % 32);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float mine = fabsf(x[j]);
      if (magnitude > mine || (magnitude == mine && other < lane + 32 * j)) ++rank[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    if (lane + 32 * j < count) sorted[rank[j]] = fabsf(x[j]);
  }
  __syncwarp();
  double scale = 0;
  if (lane == 0) {
    double sum = 0;
    double best = 0;
    for (int k = 1; k <= count; ++k) {
      sum += static_cast<double>(sorted[k - 1]);
      const double gain = sum * sum / k;
      if (gain > best) {
        best = gain;
        scale = sum / k;
      }
    }
  }
  __syncwarp();
  return scale;
}

// What a value becomes.
struct Levels {
  float threshold;
  float scale;
};
__device__ Levels levels_of(double scale, TernaryScaleType type) {
  // Rounded down: the largest float that is not above half the scale.
  return {__double2float_rd(scale / 2), device_stored_scale(scale, type)};
}

template <class V>
__device__ void store_one(const Problem& p, std::int64_t at, float x, const Levels& levels) {
  const int code = static_cast<int>(x > levels.threshold) - static_cast<int>(x < -levels.threshold);
  if (p.codes != nullptr) p.codes[at] = static_cast<std::int8_t>(code);
  if (p.values != nullptr) {
    static_cast<V*>(p.values)[at] = cuda::narrow<V>(levels.scale * static_cast<float>(code));
  }
}

template <class V>
__global__ void __launch_bounds__(kThreads)
    ternary_groups_kernel(const __grid_constant__ Problem p) {
  __shared__ float sorted[kWarps][kRun];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t size = p.rule.geometry.size;
  const std::int64_t per_row = (p.cols + size - 1) / size;
  for (std::int64_t group = std::int64_t{blockIdx.x} * kWarps + warp; group < p.groups;
       group += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t col = group % per_row * size;
    const std::int64_t begin = group / per_row * p.cols + col;
    const std::int64_t count = min(size, p.cols - col);
    float x[kPerLane];
    load_run(static_cast<const float*>(p.weight) + begin, count, x);
    const double sum = __shfl_sync(kAll, warp_sum(x), 0);
    double scale = sum / static_cast<double>(count);
    if (!isfinite(sum)) {
      scale = std::numeric_limits<double>::quiet_NaN();
    } else if (p.rule.scale == TernaryScaleRule::absmax) {
      scale = warp_most(x);
    } else if (p.rule.scale == TernaryScaleRule::least_squares) {
      scale = warp_least_squares(x, static_cast<int>(count), sorted[warp]);
    }
    scale = __shfl_sync(kAll, scale, 0);
    const Levels levels = levels_of(scale, p.rule.scale_type);
    if (lane == 0 && p.scales != nullptr) p.scales[group] = levels.scale;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (lane + 32 * j < count) store_one<V>(p, begin + lane + 32 * j, x[j], levels);
    }
  }
}

// ---- rows and tensors ------------------------------------------------------------------------------

struct LargeGroups {
  Problem p;
  std::int64_t count = 0;     // values of a group
  std::int64_t runs = 0;      // of a group
  double* partial = nullptr;  // [groups * runs]: sums, with absmax largest magnitudes or NaN
  double* scales = nullptr;   // [groups]
};

__global__ void __launch_bounds__(kThreads)
    ternary_runs_kernel(const __grid_constant__ LargeGroups g) {
  for (std::int64_t run = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
       run < g.p.groups * g.runs; run += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t first = run % g.runs * kRun;
    float x[kPerLane];
    load_run(static_cast<const float*>(g.p.weight) + run / g.runs * g.count + first,
             g.count - first, x);
    const double sum = __shfl_sync(kAll, warp_sum(x), 0);
    double partial = sum;
    if (isfinite(sum) && g.p.rule.scale == TernaryScaleRule::absmax) partial = warp_most(x);
    if (threadIdx.x % 32 == 0) g.partial[run] = partial;
  }
}

__global__ void __launch_bounds__(kThreads)
    ternary_scales_kernel(const __grid_constant__ LargeGroups g) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool absmax = g.p.rule.scale == TernaryScaleRule::absmax;
  for (std::int64_t group = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
       group < g.p.groups; group += std::int64_t{gridDim.x} * kWarps) {
    double total = 0;
    for (std::int64_t first = 0; first < g.runs; first += 32) {
      const double mine = first + lane < g.runs ? g.partial[group * g.runs + first + lane] : 0.0;
      for (int l = 0; l < 32 && first + l < g.runs; ++l) {
        const double next = __shfl_sync(kAll, mine, l);
        // A sum that is not finite stays so; of two magnitudes the NaN must win.
        total = !absmax ? total + next : next > total || !isfinite(next) ? next : total;
      }
    }
    double scale = absmax ? total : total / static_cast<double>(g.count);
    if (!isfinite(scale)) scale = std::numeric_limits<double>::quiet_NaN();
    if (lane != 0) continue;
    g.scales[group] = scale;
    if (g.p.scales != nullptr) g.p.scales[group] = device_stored_scale(scale, g.p.rule.scale_type);
  }
}

template <class V>
__global__ void __launch_bounds__(kThreads)
    ternary_apply_kernel(const __grid_constant__ LargeGroups g) {
  const std::int64_t all = g.p.groups * g.count;
  for (std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; at < all;
       at += std::int64_t{gridDim.x} * kThreads) {
    const Levels levels = levels_of(g.scales[at / g.count], g.p.rule.scale_type);
    store_one<V>(g.p, at, static_cast<const float*>(g.p.weight)[at], levels);
  }
}

unsigned blocks_for(std::int64_t tasks, std::int64_t per_block) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(tasks, per_block), 1, 1 << 20));
}

}  // namespace

void run_warp_per_group(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::visit_dtype(p.values_dtype, [&]<class V>() {
    cuda::launch(context, "ternary_groups_kernel", ternary_groups_kernel<V>,
                 {.blocks = blocks_for(p.groups, kWarps), .threads = kThreads}, p);
  });
}

void run_multi_pass(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  LargeGroups g{.p = p, .count = p.rows * p.cols / p.groups};
  g.runs = ceil_div(g.count, std::int64_t{kRun});
  const std::int64_t doubles = checked_add(checked_mul(p.groups, g.runs), p.groups);
  g.partial =
      static_cast<double*>(detail::ContextAccess::workspace(context, checked_mul(doubles, 8)));
  g.scales = g.partial + p.groups * g.runs;
  cuda::launch(context, "ternary_runs_kernel", ternary_runs_kernel,
               {.blocks = blocks_for(p.groups * g.runs, kWarps), .threads = kThreads}, g);
  cuda::launch(context, "ternary_scales_kernel", ternary_scales_kernel,
               {.blocks = blocks_for(p.groups, kWarps), .threads = kThreads}, g);
  cuda::visit_dtype(p.values_dtype, [&]<class V>() {
    cuda::launch(context, "ternary_apply_kernel", ternary_apply_kernel<V>,
                 {.blocks = blocks_for(p.rows * p.cols, kThreads), .threads = kThreads}, g);
  });
}

}  // namespace touchstone::inline v0::ternary_op
