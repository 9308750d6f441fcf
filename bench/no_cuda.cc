// Takes the place of cuda_tools.cu in a build without CUDA.
#include "bench/cuda_tools.h"
#include "touchstone/core/error.h"

namespace touchstone::bench {
namespace {

[[noreturn]] void refuse() { throw Unsupported("bench: this build has no CUDA code"); }

}  // namespace

struct CudaGraph::State {};

CudaStream::CudaStream(int /*device*/) { refuse(); }
CudaStream::~CudaStream() = default;

CudaGraph::CudaGraph(Context& /*context*/, int /*launches*/,
                     const std::function<void(int)>& /*launch*/) {
  refuse();
}
CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept = default;
double CudaGraph::replay_us() { refuse(); }

void cuda_copy(Context& /*context*/, void* /*to*/, const void* /*from*/, std::int64_t /*bytes*/) {
  refuse();
}

machine::Ceiling measure_cuda_ceiling(Context& /*context*/, int /*rounds*/) { refuse(); }

}  // namespace touchstone::bench
