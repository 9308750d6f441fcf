// Kernels of one stream recorded as a graph, without CUDA types. Implemented by
// src/cuda/cuda_graph.cu, or by src/no_cuda/cuda_graph.cc in a CPU-only build.
#pragma once

namespace touchstone::cuda {

// A stream of its own that does not wait for the default stream.
void* create_stream(int device);
void release_stream(int device, void* stream) noexcept;

// Work launched on the stream from here to end_capture() is recorded, not run.
void begin_capture(int device, void* stream);
// The graph, ready to launch. DeviceError where work in between cannot be recorded.
void* end_capture(int device, void* stream);
// Ends a capture and discards its work.
void abandon_capture(int device, void* stream) noexcept;
void launch_graph(int device, void* graph, void* stream);
void release_graph(int device, void* graph) noexcept;

}  // namespace touchstone::cuda
