#include "bench/data.h"

#include <algorithm>
#include <cstring>

#include "bench/cuda_tools.h"
#include "bench/machine.h"
#include "core/context_access.h"
#include "core/cuda_runtime.h"
#include "core/thread_pool.h"
#include "touchstone/core/checked.h"

namespace touchstone::bench {
namespace {

// Elements one task fills: some pages, so that threads touch the pages they will work on.
constexpr std::int64_t kFillGrain = 1 << 16;

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Near-normal, mean 0, deviation 1: the sum of four 16-bit uniforms.
float near_normal(std::uint64_t bits) {
  const auto sum = static_cast<float>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                      ((bits >> 32) & 0xffff) + (bits >> 48));
  return (sum / 65536.0F - 2.0F) * 1.7320508F;
}

void fill_on_cpu(ThreadPool& pool, Tensor& tensor, float center, float scale, std::uint64_t seed) {
  visit_float_dtype(tensor.dtype(), [&]<class T>() {
    const std::span<T> values = tensor.values<T>();
    const auto count = static_cast<std::int64_t>(values.size());
    pool.run(ceil_div(count, kFillGrain), [&](std::int64_t task) {
      const std::int64_t end = std::min(count, (task + 1) * kFillGrain);
      for (std::int64_t i = task * kFillGrain; i < end; ++i) {
        const float value = near_normal(mix(seed ^ static_cast<std::uint64_t>(i)));
        values[static_cast<std::size_t>(i)] = convert<T>(center + scale * value);
      }
    });
  });
}

std::int64_t cache_bytes(Device device) {
  if (!device.is_cuda()) return last_level_cache_bytes(cpu_info());
  return cuda_devices()[static_cast<std::size_t>(device.index)].l2_bytes;
}

}  // namespace

void fill_random(Context& context, Tensor& tensor, float center, float scale, std::uint64_t seed) {
  seed = mix(seed) << 32;  // streams of different tensors do not meet
  if (tensor.device().is_cuda()) {
    cuda_fill_random(tensor, center, scale, seed, context.stream());
  } else {
    fill_on_cpu(detail::ContextAccess::pool(context), tensor, center, scale, seed);
  }
}

Tensor random_tensor(Context& context, std::int64_t rows, std::int64_t cols) {
  Tensor tensor = Tensor::empty({rows, cols}, DType::f32, context.device());
  fill_random(context, tensor, 0.0F, 1.0F, 3);
  context.synchronize();
  return tensor;
}

void poison(Context& context, Tensor& tensor) {
  if (tensor.bytes() == 0) return;
  if (!tensor.device().is_cuda()) {
    std::memset(tensor.data(), 0xff, static_cast<std::size_t>(tensor.bytes()));
    return;
  }
  Tensor host = Tensor::empty(tensor.sizes(), tensor.dtype());
  std::memset(host.data(), 0xff, static_cast<std::size_t>(host.bytes()));
  cuda::copy(tensor.device(), tensor.data(), Device::cpu(), host.data(), host.bytes(),
             context.stream());
  context.synchronize();
}

int sets_beyond_cache(Device device, std::int64_t bytes) {
  const std::int64_t sets = ceil_div(4 * cache_bytes(device), std::max<std::int64_t>(bytes, 1));
  return static_cast<int>(std::clamp<std::int64_t>(sets, 1, 1 << 12));
}

std::vector<std::int64_t> spread_sample(std::int64_t count, std::int64_t wanted) {
  wanted = std::min(count, wanted);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < wanted; ++i) {
    indices.push_back(wanted == 1 ? 0 : i * (count - 1) / (wanted - 1));
  }
  return indices;
}

std::vector<double> doubles(const Tensor& tensor) {
  const Tensor host = tensor.to(Device::cpu());
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(host.elements()));
  visit_dtype(host.dtype(), [&]<class T>() {
    for (const T value : host.values<T>()) result.push_back(convert<double>(value));
  });
  return result;
}

std::vector<double> sampled_rows(const Tensor& tensor, const std::vector<std::int64_t>& rows) {
  const std::int64_t cols = tensor.sizes()[1];
  const std::int64_t row_bytes = cols * size_of(tensor.dtype());
  Tensor picked = Tensor::empty({static_cast<std::int64_t>(rows.size()), cols}, tensor.dtype());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    char* to = static_cast<char*>(picked.data()) + static_cast<std::int64_t>(i) * row_bytes;
    const char* from = static_cast<const char*>(tensor.data()) + rows[i] * row_bytes;
    if (tensor.device().is_cuda()) {
      cuda::copy(Device::cpu(), to, tensor.device(), from, row_bytes, nullptr);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(row_bytes));
    }
  }
  if (tensor.device().is_cuda()) cuda::synchronize(tensor.device().index, nullptr);
  return doubles(picked);
}

double error_bound(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-10;
    case DType::f16:
      return 4e-3;
    case DType::bf16:
      return 2e-2;
    default:
      return 1e-3;
  }
}

}  // namespace touchstone::bench
