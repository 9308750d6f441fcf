// Takes the place of cuda_tools.cu, naive_attention_cuda.cu, naive_cuda.cu and naive_topk_cuda.cu
// in a build without CUDA.
#include "bench/cuda_tools.h"
#include "bench/dense_attention_data.h"
#include "bench/topk_data.h"
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

void cuda_fill_random(Tensor& /*tensor*/, float /*center*/, float /*scale*/, std::uint64_t /*seed*/,
                      void* /*stream*/) {
  refuse();
}

void cuda_copy(Context& /*context*/, void* /*to*/, const void* /*from*/, std::int64_t /*bytes*/) {
  refuse();
}

Ceiling measure_cuda_ceiling(Context& /*context*/, int /*rounds*/) { refuse(); }

NormCall naive_cuda_call(Context& /*context*/, const NormProblem& /*problem*/,
                         const NormData& /*data*/) {
  refuse();
}

TopkCall naive_topk_cuda_call(Context& /*context*/, const TopkProblem& /*problem*/,
                              const TopkData& /*data*/) {
  refuse();
}

std::function<void()> naive_attention_cuda_call(Context& /*context*/,
                                                const DenseAttentionProblem& /*problem*/,
                                                DenseAttentionData& /*data*/) {
  refuse();
}

}  // namespace touchstone::bench
