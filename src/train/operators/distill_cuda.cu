// Distillation on CUDA: a block per token reads its two rows of logits three times, from the L2 after
// the first.
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "cuda/visit_dtype.h"
#include "train/operators/distill_problem.h"

namespace touchstone::inline v0::train {
namespace {

constexpr unsigned kDistillThreads = 256;

__device__ std::int64_t target_of(const void* targets, bool wide, std::int64_t row) {
  return wide ? static_cast<const std::int64_t*>(targets)[row]
              : static_cast<const std::int32_t*>(targets)[row];
}

struct Largest {
  __device__ double operator()(double a, double b) const { return a > b ? a : b; }
};
struct Sum {
  __device__ double operator()(double a, double b) const { return a + b; }
};

// Over one value per thread, by a tree; the same in every thread.
template <class Join>
__device__ double over_block(double value, Join join) {
  __shared__ double values[kDistillThreads];
  __syncthreads();
  values[threadIdx.x] = value;
  __syncthreads();
#pragma unroll
  for (unsigned half = kDistillThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      values[threadIdx.x] = join(values[threadIdx.x], values[threadIdx.x + half]);
    }
    __syncthreads();
  }
  return values[0];
}

template <class T>
__global__ void __launch_bounds__(kDistillThreads)
    distill_kernel(const __grid_constant__ DistillProblem p) {
  const std::int64_t row = blockIdx.x;
  const float* const logits = static_cast<const float*>(p.logits) + row * p.vocabulary;
  const float* const teacher = p.teacher + row * p.vocabulary;
  T* const dlogits = static_cast<T*>(p.dlogits) + row * p.vocabulary;
  const std::int64_t target = target_of(p.targets, p.wide_targets, row);
  if (target == p.ignore) {
    for (std::int64_t i = threadIdx.x; i < p.vocabulary; i += kDistillThreads) {
      dlogits[i] = cuda::narrow<T>(0.0F);
    }
    if (threadIdx.x == 0) static_cast<float*>(p.losses)[row] = 0;
    return;
  }
  const auto cold = static_cast<float>(1 / p.temperature);
  float student_most = -INFINITY;
  float teacher_most = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < p.vocabulary; i += kDistillThreads) {
    student_most = fmaxf(student_most, logits[i]);
    teacher_most = fmaxf(teacher_most, teacher[i]);
  }
  const auto most = static_cast<float>(over_block(student_most, Largest{}));
  const auto expert_most = static_cast<float>(over_block(teacher_most, Largest{}));
  double plain_sum = 0;
  double student_sum = 0;
  double expert_sum = 0;
  for (std::int64_t i = threadIdx.x; i < p.vocabulary; i += kDistillThreads) {
    plain_sum += expf(logits[i] - most);
    student_sum += expf((logits[i] - most) * cold);
    expert_sum += expf((teacher[i] - expert_most) * cold);
  }
  const auto log_plain = static_cast<float>(log(over_block(plain_sum, Sum{})));
  const auto log_student = static_cast<float>(log(over_block(student_sum, Sum{})));
  const auto log_expert = static_cast<float>(log(over_block(expert_sum, Sum{})));
  const float g = static_cast<const float*>(p.dloss)[row];
  const auto soft = static_cast<float>(p.weight);
  const float warm = 1 / cold;
  double divergence = 0;
  for (std::int64_t i = threadIdx.x; i < p.vocabulary; i += kDistillThreads) {
    const float log_q = (teacher[i] - expert_most) * cold - log_expert;
    const float log_p = (logits[i] - most) * cold - log_student;
    const float q = expf(log_q);
    if (q > 0) divergence += q * (log_q - log_p);
    const float hard = expf(logits[i] - most - log_plain) - (i == target ? 1.0F : 0.0F);
    dlogits[i] = cuda::narrow<T>(g * ((1 - soft) * hard + soft * warm * (expf(log_p) - q)));
  }
  divergence = over_block(divergence, Sum{});
  if (threadIdx.x == 0) {
    const bool known = target >= 0 && target < p.vocabulary;
    const float own = known ? logits[target] : NAN;
    static_cast<float*>(p.losses)[row] =
        (1 - soft) * (most + log_plain - own) + soft * warm * warm * static_cast<float>(divergence);
  }
}

__global__ void __launch_bounds__(kDistillThreads)
    mean_loss_kernel(const __grid_constant__ MeanProblem p) {
  double sum = 0;
  double counted = 0;
  for (std::int64_t i = threadIdx.x; i < p.count; i += kDistillThreads) {
    if (target_of(p.targets, p.wide_targets, i) == p.ignore) continue;
    sum += static_cast<const float*>(p.losses)[i];
    counted += 1;
  }
  sum = over_block(sum, Sum{});
  counted = over_block(counted, Sum{});
  if (threadIdx.x == 0) {
    *static_cast<float*>(p.mean) = static_cast<float>(counted == 0 ? 0 : sum / counted);
  }
}

}  // namespace

void distill_rows_cuda(Context& context, const DistillProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::visit_dtype(p.compute, [&]<class T>() {
    cuda::launch(context, "distill kernel", distill_kernel<T>,
                 {.blocks = static_cast<unsigned>(p.rows), .threads = kDistillThreads}, p);
  });
}

void mean_loss_cuda(Context& context, const MeanProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::launch(context, "distill mean_loss_kernel", mean_loss_kernel,
               {.blocks = 1, .threads = kDistillThreads}, p);
}

}  // namespace touchstone::inline v0::train
