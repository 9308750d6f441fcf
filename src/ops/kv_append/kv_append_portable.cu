// kv_append on CUDA for heads, groups and alignments of any kind: one warp per vector, in shared
// memory.
#include <algorithm>
#include <string>

#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/kv_append/kv_append_cuda.cuh"
#include "ops/kv_append/kv_append_vector.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache {
namespace {

struct PortableParams {
  Slice slice;
  KvAppendPart part;
};

__global__ void __launch_bounds__(kThreads) append_portable_kernel(PortableParams params) {
  extern __shared__ float shared[];
  const KvAppendProblem& p = params.slice.p;
  const KvAppendPart& part = params.part;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const auto heads = static_cast<unsigned>(p.kv_heads);
  const unsigned vector = blockIdx.x * (blockDim.x / kWarp) + warp;
  if (vector >= params.slice.tokens * heads) return;  // a whole warp
  const std::int64_t token = params.slice.first_token + vector / heads;
  const unsigned head = vector % heads;

  float* x = shared + warp * part.dim;
  const std::int64_t from = token * part.stride + head * part.dim;
  for (std::int64_t i = lane; i < part.dim; i += kWarp) {
    x[i] = cuda::load_any(part.from, part.dtype, from + i);
  }
  __syncwarp();
  append_vector(p, part, x, p.slot_of(token), head, lane);
}

}  // namespace

std::string append_portable_refuses(const Context& /*context*/, const KvAppendProblem& p) {
  for (const KvAppendPart& part : p.part) {
    if (part.dim * std::int64_t{sizeof(float)} > tuning::kPortableSharedBytes) {
      return "head dim " + std::to_string(part.dim) + " > 12288";
    }
  }
  if (p.kv_heads > tokens_per_launch(1)) return std::to_string(p.kv_heads) + " heads > 2^30";
  return {};
}

void append_portable(Context& context, const KvAppendProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t step = tokens_per_launch(p.kv_heads);
  for (const KvAppendPart& part : p.part) {
    if (part.from == nullptr) continue;
    const std::int64_t vector_bytes = part.dim * std::int64_t{sizeof(float)};
    const std::int64_t warps =
        std::min<std::int64_t>(kThreads / kWarp, tuning::kPortableSharedBytes / vector_bytes);
    for (std::int64_t first = 0; first < p.tokens; first += step) {
      const std::int64_t tokens = std::min(step, p.tokens - first);
      cuda::launch(context, "append_portable", append_portable_kernel,
                   {.blocks = static_cast<unsigned>(ceil_div(tokens * p.kv_heads, warps)),
                    .threads = static_cast<unsigned>(warps) * kWarp,
                    .shared_bytes = warps * vector_bytes},
                   PortableParams{{p, first, static_cast<unsigned>(tokens)}, part});
    }
  }
}

}  // namespace touchstone::inline v0::cache
