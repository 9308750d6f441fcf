#include <atomic>

#include "cuda/check.h"
#include "cuda/code_level.h"
#include "cuda/launch.h"
#include "cuda/wgmma.cuh"

namespace touchstone::cuda {
namespace {

constexpr int kLevelBytes = 1024;

// Never launched. Its static shared memory, which can be queried even while a graph is captured,
// says for what it was compiled.
__global__ void level_probe(int* out) {
  constexpr CodeLevel kLevel = kWgmma    ? CodeLevel::sm_90a
                               : kHopper ? CodeLevel::hopper
                                         : CodeLevel::ampere;
  __shared__ volatile std::uint8_t marker[static_cast<int>(kLevel) * kLevelBytes];
  marker[threadIdx.x] = static_cast<std::uint8_t>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = marker[sizeof(marker) - 1 - threadIdx.x];
}

constexpr int kMaxDevices = 64;
std::atomic<std::uint8_t> known_levels[kMaxDevices];  // 0 = not queried yet

}  // namespace

CodeLevel code_level(const Context& context) {
  const int device = context.device().index;
  const bool remembered = device >= 0 && device < kMaxDevices;
  if (remembered) {
    const std::uint8_t known = known_levels[device].load(std::memory_order_relaxed);
    if (known != 0) return static_cast<CodeLevel>(known);
  }
  const DeviceScope scope(device);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, level_probe), "cudaFuncGetAttributes");
  const auto level = static_cast<std::uint8_t>(attributes.sharedSizeBytes / kLevelBytes);
  if (remembered) known_levels[device].store(level, std::memory_order_relaxed);
  return static_cast<CodeLevel>(level);
}

std::string sm_90a_refusal(const Context& context) {
  if (code_level(context) == CodeLevel::sm_90a) return {};
  const int major = device_attribute(context, cudaDevAttrComputeCapabilityMajor);
  const int minor = device_attribute(context, cudaDevAttrComputeCapabilityMinor);
  std::string refusal = "needs sm_90a code, device is sm_" + std::to_string(major * 10 + minor);
  if (major == 9) refusal += " and runs PTX";
  return refusal;
}

}  // namespace touchstone::cuda
