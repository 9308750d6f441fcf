// Kernel launches with the attributes our kernels use.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/check.h"
#include "cuda/code_level.h"
#include "touchstone/core/context.h"

namespace touchstone::cuda {

inline constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;  // largest grid in x

struct LaunchShape {
  unsigned blocks = 1;
  unsigned threads = 1;
  unsigned cluster = 1;           // blocks per cluster; 1 = no cluster
  std::int64_t shared_bytes = 0;  // dynamic shared memory
  // Programmatic dependent launch: may start before the previous grid has ended. The kernel calls
  // pdl_wait() before it reads anything.
  bool pdl = false;
};

inline cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream());
}

inline int device_attribute(const Context& context, cudaDeviceAttr attribute) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, context.device().index),
        "cudaDeviceGetAttribute");
  return value;
}

// Clusters, bulk copies and programmatic launch: Hopper and what comes after it.
inline bool is_hopper(const Context& context) { return code_level(context) >= CodeLevel::hopper; }

// The launch configuration and the attributes it points to.
class LaunchConfig {
 public:
  LaunchConfig(const Context& context, const LaunchShape& shape) {
    config_.gridDim = dim3(shape.blocks);
    config_.blockDim = dim3(shape.threads);
    config_.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
    config_.stream = stream_of(context);
    if (shape.cluster > 1) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes_[config_.numAttrs].val.clusterDim = {shape.cluster, 1, 1};
      ++config_.numAttrs;
    }
    if (shape.pdl) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes_[config_.numAttrs].val.programmaticStreamSerializationAllowed = 1;
      ++config_.numAttrs;
    }
    config_.attrs = attributes_;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[2]{};
};

// More than 48 KB of shared memory takes an opt-in. Always the maximum: the limit that one call
// sets must not be below what another, in another thread, is about to use.
template <class Kernel>
void allow_shared(const Context& context, Kernel* kernel) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  const int most = device_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin) -
                   static_cast<int>(attributes.sharedSizeBytes);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
        "cudaFuncSetAttribute");
}

template <class Params>
void launch(const Context& context, const char* name, void (*kernel)(Params),
            const LaunchShape& shape, const Params& params) {
  const LaunchConfig config(context, shape);
  check(cudaLaunchKernelEx(config.get(), kernel, params), name);
  check_launch(name);
}

}  // namespace touchstone::cuda
