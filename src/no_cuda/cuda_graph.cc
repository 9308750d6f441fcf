// CUDA graphs of a build without CUDA.
#include "core/cuda_graph.h"

#include "no_cuda/refusal.h"

namespace touchstone::cuda {

using no_cuda::refuse_runtime;

void* create_stream(int /*device*/) { refuse_runtime(); }
void release_stream(int /*device*/, void* /*stream*/) noexcept {}
void begin_capture(int /*device*/, void* /*stream*/) { refuse_runtime(); }
void* end_capture(int /*device*/, void* /*stream*/) { refuse_runtime(); }
void abandon_capture(int /*device*/, void* /*stream*/) noexcept {}
void launch_graph(int /*device*/, void* /*graph*/, void* /*stream*/) { refuse_runtime(); }
void release_graph(int /*device*/, void* /*graph*/) noexcept {}

}  // namespace touchstone::cuda
