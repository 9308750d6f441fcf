// CUDA calls and launches that cannot fail unnoticed.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "touchstone/core/error.h"

namespace touchstone::cuda {

// Throws when `status` is an error; `what` names the call for the message.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clear a non-sticky error, so that the next call does not report it
  const std::string message =
      std::string(what) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(message);
  throw DeviceError(message);
}

// After a launch: bad configurations show at once, failures inside the kernel at synchronize().
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Makes `device` current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ != device) check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = previous_ != device;
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace touchstone::cuda
