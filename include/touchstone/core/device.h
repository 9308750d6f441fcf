// Where data lives and where an operator runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/core/language.h"  // IWYU pragma: keep: before everything that needs C++20

namespace touchstone::inline v0 {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  static constexpr Device cpu() { return {DeviceKind::cpu, 0}; }
  static constexpr Device cuda(int index = 0) { return {DeviceKind::cuda, index}; }
  constexpr bool is_cuda() const { return kind == DeviceKind::cuda; }
  friend constexpr bool operator==(Device, Device) = default;
};

// "cpu", "cuda:0"
TOUCHSTONE_API std::string name_of(Device device);

struct CudaDeviceInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
};

// Whether this build holds CUDA code at all.
TOUCHSTONE_API bool built_with_cuda();

// The GPUs this process can use; empty without a driver, without a GPU, or in a CPU-only build.
TOUCHSTONE_API std::vector<CudaDeviceInfo> cuda_devices();

// SIMD instruction sets the CPU operators were compiled for and this machine has, best first.
TOUCHSTONE_API std::vector<std::string> simd_targets();

// The one in use.
TOUCHSTONE_API std::string simd_target();

}  // namespace touchstone::inline v0
