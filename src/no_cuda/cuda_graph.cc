// CUDA graphs of a build without CUDA.
#include "core/cuda_graph.h"

#include "touchstone/core/error.h"

namespace touchstone::cuda {
namespace {

[[noreturn]] void refuse_graphs() { throw Unsupported("cuda: this build has no CUDA code"); }

}  // namespace

void* create_stream(int /*device*/) { refuse_graphs(); }
void release_stream(int /*device*/, void* /*stream*/) noexcept {}
void begin_capture(int /*device*/, void* /*stream*/) { refuse_graphs(); }
void* end_capture(int /*device*/, void* /*stream*/) { refuse_graphs(); }
void abandon_capture(int /*device*/, void* /*stream*/) noexcept {}
void launch_graph(int /*device*/, void* /*graph*/, void* /*stream*/) { refuse_graphs(); }
void release_graph(int /*device*/, void* /*graph*/) noexcept {}

}  // namespace touchstone::cuda
