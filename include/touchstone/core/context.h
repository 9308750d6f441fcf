// The context of an operator: a device, its stream, CPU threads and scratch memory. Creation
// starts threads and allocates the workspace; reuse contexts.
//
// Thread safety. Operators change the context they are called with (its scratch memory and
// threads): at most one operator or non-const member runs with a context at a time. Const members
// may run side by side with each other. Contexts share nothing: calls with different contexts may
// run at the same time, on one device too, and may read the same inputs.
#pragma once

#include <cstdint>
#include <memory>

#include "touchstone/core/device.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0 {

class ThreadPool;

namespace detail {
struct ContextAccess;
}  // namespace detail

struct ContextOptions {
  Device device = Device::cpu();
  // CPU: threads that share the work, the caller included. 0 = every core this process may use.
  // Results are the same bits for any number.
  int threads = 0;
  // CUDA: a cudaStream_t owned by the caller; null = the default stream.
  void* stream = nullptr;
  // CUDA: scratch memory, allocated once, here. Operators never allocate device memory.
  std::int64_t workspace_bytes = std::int64_t{64} << 20;
};

class TOUCHSTONE_API Context {
 public:
  // InvalidArgument for a negative count or size; Unsupported for a CUDA device that is not there.
  explicit Context(ContextOptions options = {});
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  Device device() const;
  int threads() const;
  void* stream() const;

  // Waits until all work submitted through this context is done. Reports asynchronous failures.
  void synchronize();

  // Grows the scratch memory, for operators that need more than there is. Not during graph capture.
  void reserve_workspace(std::int64_t bytes);
  std::int64_t workspace_bytes() const;

 private:
  friend struct detail::ContextAccess;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0
