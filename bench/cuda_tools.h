// What the benchmarks need of CUDA, without CUDA types. Implemented by cuda_tools.cu, or by no_cuda.cc in a CPU-only build, where everything is Unsupported.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "machine/memory_rate.h"
#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"

namespace touchstone::bench {

// A stream of its own: the default stream cannot be captured.
class CudaStream {
 public:
  explicit CudaStream(int device);
  ~CudaStream();  // NOLINT(performance-trivially-destructible): with CUDA it has work to do
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
};

// A number of launches captured in a graph, so that a replay measures the device and not the
// launches from the host.
class CudaGraph {
 public:
  // Calls launch(0) ... launch(launches - 1); each queues its work on the context's stream.
  CudaGraph(Context& context, int launches, const std::function<void(int)>& launch);
  ~CudaGraph();
  CudaGraph(CudaGraph&&) noexcept;
  CudaGraph& operator=(CudaGraph&&) noexcept;

  // One replay between two events: microseconds per launch.
  double replay_us();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A hand-written copy with 16-byte accesses. Queued on the context's stream.
void cuda_copy(Context& context, void* to, const void* from, std::int64_t bytes);

// As machine::measure_cpu_ceiling. The copy is the best of several kernels and cudaMemcpyAsync.
machine::Ceiling measure_cuda_ceiling(Context& context, int rounds);

}  // namespace touchstone::bench
