// CUDA graphs behind core/cuda_graph.h.
#include "core/cuda_graph.h"
#include "cuda/check.h"

namespace touchstone::cuda {

void* create_stream(int device) {
  const DeviceScope scope(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void release_stream(int /*device*/, void* stream) noexcept {
  cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

void begin_capture(int device, void* stream) {
  const DeviceScope scope(device);
  // Of this thread only: other threads may allocate meanwhile.
  check(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}

void* end_capture(int device, void* stream) {
  const DeviceScope scope(device);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "cudaGraphInstantiate");
  return ready;
}

void abandon_capture(int device, void* stream) noexcept {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device);
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph) == cudaSuccess) {
    cudaGraphDestroy(graph);
  }
  cudaGetLastError();
  cudaSetDevice(previous);
}

void launch_graph(int device, void* graph, void* stream) {
  const DeviceScope scope(device);
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream)),
        "cudaGraphLaunch");
}

void release_graph(int /*device*/, void* graph) noexcept {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace touchstone::cuda
