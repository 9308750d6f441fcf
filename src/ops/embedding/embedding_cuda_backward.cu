// The gradient of an embedding on CUDA. `sorted` sorts the tokens, with their order kept, and gives the
// occurrences of one to the same threads, which add their rows in order. `portable` needs no scratch:
// a block per row of dweight looks through all tokens.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <string>

#include "core/context_access.h"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/embedding/embedding_problem.h"
#include "ops/embedding/embedding_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::embedding_op {
namespace {

using Key = std::uint32_t;

struct BackwardParams {
  Tokens tokens;
  std::int64_t vocabulary;
  std::int64_t dim;
  const void* dy;
  std::int64_t dy_stride;
  void* dweight;
  std::int64_t dweight_stride;
  float scale;
  bool accumulate;
  Key* keys = nullptr;   // tokens, V for those out of range; sorted after the sort
  Key* order = nullptr;  // positions
  unsigned pieces = 0;   // blocks that share the columns of a row
};

// kN sums of neighboring columns.
template <class T, class G, int kN>
struct Sums {
  float v[kN];

  __device__ Sums() {
#pragma unroll
    for (float& sum : v) sum = 0;
  }
  __device__ void add(const uint4& row) {
    float x[kN];
    cuda::unpack_as<T>(row, x);
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = __fadd_rn(v[i], x[i]);
  }
  __device__ void store(const BackwardParams& p, std::int64_t token, std::int64_t column) {
    G* const to = static_cast<G*>(p.dweight) + token * p.dweight_stride + column;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      v[i] = __fmul_rn(p.scale, v[i]);
      if (p.accumulate) v[i] = __fadd_rn(cuda::widen(to[i]), v[i]);
    }
    if constexpr (kN == 1) {
      to[0] = cuda::narrow<G>(v[0]);
    } else {
      constexpr int kPart = cuda::kPerVector<G>;
#pragma unroll
      for (int i = 0; i < kN; i += kPart) {
        float part[kPart];
#pragma unroll
        for (int k = 0; k < kPart; ++k) part[k] = v[i + k];
        *reinterpret_cast<uint4*>(to + i) = cuda::pack_as<G>(part);
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    embedding_keys_kernel(const __grid_constant__ BackwardParams p) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < p.tokens.count;
       n += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t token = p.tokens[n];
    p.keys[n] = static_cast<Key>(token >= 0 && token < p.vocabulary ? token : p.vocabulary);
    p.order[n] = static_cast<Key>(n);
  }
}

// A block for every place of the sorted list and piece of the columns: the first of its token works.
template <class T, class G, int kN>
__global__ void __launch_bounds__(kThreads)
    embedding_sorted_kernel(const __grid_constant__ BackwardParams p) {
  const std::int64_t first = blockIdx.x / p.pieces;
  const Key token = p.keys[first];
  if (token >= p.vocabulary || (first > 0 && p.keys[first - 1] == token)) return;
  const std::int64_t column = (std::int64_t{blockIdx.x % p.pieces} * kThreads + threadIdx.x) * kN;
  if (column >= p.dim) return;
  const T* const dy = static_cast<const T*>(p.dy) + column;
  Sums<T, G, kN> sums;
  constexpr int kAhead = 8;
  for (std::int64_t i = first; i < p.tokens.count && p.keys[i] == token; i += kAhead) {
    uint4 rows[kAhead];
    bool there[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      there[j] = i + j < p.tokens.count && p.keys[i + j] == token;
      if (!there[j]) continue;
      const T* const from = dy + p.order[i + j] * p.dy_stride;
      if constexpr (kN == 1) {
        rows[j].x = __float_as_uint(cuda::widen(*from));
      } else {
        rows[j] = __ldg(reinterpret_cast<const uint4*>(from));
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (!there[j]) continue;
      if constexpr (kN == 1) {
        sums.v[0] = __fadd_rn(sums.v[0], __uint_as_float(rows[j].x));
      } else {
        sums.add(rows[j]);
      }
    }
  }
  sums.store(p, token, column);
}

template <class T, class G>
__global__ void __launch_bounds__(kThreads)
    embedding_portable_backward_kernel(const __grid_constant__ BackwardParams p) {
  __shared__ bool found[kThreads];
  const std::int64_t token = blockIdx.x / p.pieces;
  const std::int64_t column = std::int64_t{blockIdx.x % p.pieces} * kThreads + threadIdx.x;
  Sums<T, G, 1> sums;
  bool occurs = false;
  for (std::int64_t base = 0; base < p.tokens.count; base += kThreads) {
    const std::int64_t mine = base + threadIdx.x;
    found[threadIdx.x] = mine < p.tokens.count && p.tokens[mine] == token;
    const bool any = __syncthreads_or(found[threadIdx.x]) != 0;
    for (int i = 0; any && i < kThreads; ++i) {
      if (!found[i] || column >= p.dim) continue;
      sums.v[0] = __fadd_rn(
          sums.v[0], cuda::widen(static_cast<const T*>(p.dy)[(base + i) * p.dy_stride + column]));
    }
    occurs = occurs || any;
    __syncthreads();
  }
  if (column < p.dim && (occurs || !p.accumulate)) sums.store(p, token, column);
}

// ---- host --------------------------------------------------------------------------------------

BackwardParams params_of(const Backward& p) {
  return {.tokens = p.tokens,
          .vocabulary = p.vocabulary,
          .dim = p.dim,
          .dy = p.dy,
          .dy_stride = p.dy_stride,
          .dweight = p.dweight,
          .dweight_stride = p.dweight_stride,
          .scale = static_cast<float>(p.scale),
          .accumulate = p.accumulate};
}

// T, G: the types of dy and dweight.
template <class F>
void visit(const Backward& p, const F& f) {
  if (p.dtype == DType::f32) return f.template operator()<float, float>();
  const bool wide = p.dweight_dtype == DType::f32;
  if (p.dtype == DType::bf16) {
    return wide ? f.template operator()<Bf16, float>() : f.template operator()<Bf16, Bf16>();
  }
  return wide ? f.template operator()<F16, float>() : f.template operator()<F16, F16>();
}

bool whole_vectors(const Backward& p) {
  const auto aligned = [](const void* data, std::int64_t stride, DType dtype) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * size_of(dtype) % 16 == 0;
  };
  return p.dim % (16 / size_of(p.dtype)) == 0 && aligned(p.dy, p.dy_stride, p.dtype) &&
         aligned(p.dweight, p.dweight_stride, p.dweight_dtype);
}

// Scratch of the sort: unsorted and sorted keys and positions, and what the sort itself needs.
struct Scratch {
  std::int64_t list = 0;  // bytes of one of four arrays, rounded up
  std::size_t sort = 0;
  int bits = 0;

  explicit Scratch(const Backward& p)
      : list(ceil_div(p.tokens.count * static_cast<std::int64_t>(sizeof(Key)), 256) * 256),
        bits(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(p.vocabulary)))) {
    cuda::check(run(nullptr, nullptr, p.tokens.count, nullptr), "embedding sort size");
  }
  std::int64_t bytes() const { return 4 * list + static_cast<std::int64_t>(sort); }
  Key* array(std::byte* memory, int i) const { return reinterpret_cast<Key*>(memory + i * list); }
  // Arrays 0 and 1, keys and positions, into 2 and 3; without memory asks for the size.
  cudaError_t run(std::byte* memory, void* temporary, std::int64_t count, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(temporary, sort, array(memory, 0), array(memory, 2),
                                           array(memory, 1), array(memory, 3),
                                           static_cast<int>(count), 0, bits, stream);
  }
};

void clear(const Context& context, const Backward& p) {
  const auto size = static_cast<std::size_t>(size_of(p.dweight_dtype));
  cuda::check(cudaMemset2DAsync(p.dweight, static_cast<std::size_t>(p.dweight_stride) * size, 0,
                                static_cast<std::size_t>(p.dim) * size,
                                static_cast<std::size_t>(p.vocabulary), cuda::stream_of(context)),
              "embedding_backward: cudaMemset2DAsync");
}

}  // namespace

std::string backward_sorted_refuses(const Context& context, const Backward& p) {
  if (p.vocabulary >= std::int64_t{1} << 31) return "V >= 2^31";
  if (p.tokens.count * ceil_div(p.dim, kThreads) >= std::int64_t{1} << 31) return "2^31 blocks";
  const std::int64_t bytes = Scratch(p).bytes();
  if (bytes > context.workspace_bytes()) {
    return "a workspace of " + std::to_string(context.workspace_bytes()) + " bytes, needs " +
           std::to_string(bytes);
  }
  return {};
}

void backward_sorted(Context& context, const Backward& p) {
  const cuda::DeviceScope scope(context.device().index);
  if (!p.accumulate) clear(context, p);
  if (p.tokens.count == 0) return;
  Scratch scratch(p);
  auto* const memory =
      static_cast<std::byte*>(detail::ContextAccess::workspace(context, scratch.bytes()));
  BackwardParams params = params_of(p);
  params.keys = scratch.array(memory, 0);
  params.order = scratch.array(memory, 1);
  cuda::launch(context, "embedding keys_kernel", embedding_keys_kernel,
               {.blocks = static_cast<unsigned>(
                    std::min<std::int64_t>(ceil_div(p.tokens.count, kThreads), 1 << 12)),
                .threads = kThreads},
               params);
  cuda::check(
      scratch.run(memory, memory + 4 * scratch.list, p.tokens.count, cuda::stream_of(context)),
      "embedding sort");
  params.keys = scratch.array(memory, 2);
  params.order = scratch.array(memory, 3);
  const bool vectors = whole_vectors(p);
  visit(p, [&]<class T, class G>() {
    constexpr int kN = cuda::kPerVector<T>;
    params.pieces = static_cast<unsigned>(ceil_div(p.dim, kThreads * (vectors ? kN : 1)));
    const auto kernel =
        vectors ? embedding_sorted_kernel<T, G, kN> : embedding_sorted_kernel<T, G, 1>;
    cuda::launch(
        context, "embedding sorted_kernel", kernel,
        {.blocks = static_cast<unsigned>(p.tokens.count) * params.pieces, .threads = kThreads},
        params);
  });
}

void backward_portable(Context& context, const Backward& p) {
  const cuda::DeviceScope scope(context.device().index);
  BackwardParams params = params_of(p);
  params.pieces = static_cast<unsigned>(ceil_div(p.dim, kThreads));
  const std::int64_t blocks = checked_mul(p.vocabulary, params.pieces, "embedding blocks");
  if (blocks >= std::int64_t{1} << 31) throw Unsupported("embedding_backward: V * E / 256 >= 2^31");
  visit(p, [&]<class T, class G>() {
    cuda::launch(context, "embedding portable_backward_kernel",
                 embedding_portable_backward_kernel<T, G>,
                 {.blocks = static_cast<unsigned>(blocks), .threads = kThreads}, params);
  });
}

}  // namespace touchstone::embedding_op
