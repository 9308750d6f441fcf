// Chooses tiles for the products of linear_wgmma.cuh: forward, dx and dweight.
#include <algorithm>
#include <initializer_list>

#include "core/context_access.h"
#include "ops/linear/cuda/linear_decode.cuh"
#include "ops/linear/cuda/linear_wgmma.cuh"
#include "ops/linear/linear_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::linear_layer {
namespace {

// A matrix [rows, columns] as the copy engine reads it.
cuda::HeadsShape matrix(const void* data, std::int64_t rows, std::int64_t columns,
                        std::int64_t stride) {
  return {.data = data, .tokens = rows, .columns = columns, .token_stride = stride};
}

template <class T, bool kTransA, bool kTransB, int kGroups, int kN>
void launch_product(Context& context, const cuda::HeadsShape& a, const cuda::HeadsShape& b,
                    ProductParams p) {
  using Shape = ProductShape<kGroups, kN>;
  const bool gate = p.sink.gate != LinearGate::none;
  const int width = gate ? kN / 2 : kN;
  p.a = cuda::slice_map(a, dtype_of<T>, kTransA ? kTileK : Shape::kTileM);
  p.b = cuda::slice_map(b, dtype_of<T>, kTransB ? kTileK : width);
  p.row_tiles = (p.m + Shape::kTileM - 1) / Shape::kTileM;
  p.column_tiles = (p.sink.columns + width - 1) / width;
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const auto kernel = linear_product<T, kTransA, kTransB, kGroups, kN>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "linear wgmma", kernel,
               {.blocks = static_cast<unsigned>(std::min(processors, p.row_tiles * p.column_tiles)),
                .threads = Shape::kThreads,
                .shared_bytes = Shape::kSharedBytes,
                .pdl = true},
               p);
}

struct TileSize {
  int groups;
  int columns;
};

// The tile for which the busiest multiprocessor is done first: it receives bytes and multiplies, one
// behind the other.
TileSize best_tile(const Context& context, const ProductParams& p,
                   std::initializer_list<TileSize> sizes) {
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  // Columns of B; a gate has two for each of C.
  const std::int64_t columns = p.sink.columns * (p.sink.gate == LinearGate::none ? 1 : 2);
  TileSize best{};
  double least = 0;
  for (const TileSize& size : sizes) {
    const std::int64_t height = std::int64_t{size.groups} * kGroupRows;
    const std::int64_t tiles =
        (p.m + height - 1) / height * ((columns + size.columns - 1) / size.columns);
    const auto rows = static_cast<double>(std::min(height, p.m));
    const auto depth = static_cast<double>(p.depth);
    const double received = (rows + size.columns) * 2 * depth / tuning::kReceivedBytesPerCycle;
    const double multiplied =
        static_cast<double>(height) * size.columns * depth / tuning::kProductsPerCycle;
    const double cycles = static_cast<double>((tiles + processors - 1) / processors) *
                          (std::max(received, multiplied) + tuning::kTileCycles);
    if (best.groups == 0 || cycles < least) {
      best = size;
      least = cycles;
    }
  }
  return best;
}

// Forward: few rows take narrow tiles, so that every multiprocessor has one.
template <class T>
void multiply_forward(Context& context, const cuda::HeadsShape& a, const cuda::HeadsShape& b,
                      const ProductParams& p) {
  const TileSize size = best_tile(
      context, p, {{1, 32}, {1, 48}, {1, 64}, {1, 96}, {1, 112}, {1, 128}, {2, 128}, {2, 256}});
  const auto launch = [&]<int kGroups, int kN>() {
    launch_product<T, false, false, kGroups, kN>(context, a, b, p);
  };
  if (size.groups == 2) {
    return size.columns == 128 ? launch.template operator()<2, 128>()
                               : launch.template operator()<2, 256>();
  }
  switch (size.columns) {
    case 32:
      return launch.template operator()<1, 32>();
    case 48:
      return launch.template operator()<1, 48>();
    case 64:
      return launch.template operator()<1, 64>();
    case 96:
      return launch.template operator()<1, 96>();
    case 112:
      return launch.template operator()<1, 112>();
    default:
      return launch.template operator()<1, 128>();
  }
}

template <class T, bool kTransA>
void multiply_backward(Context& context, const cuda::HeadsShape& a, const cuda::HeadsShape& b,
                       const ProductParams& p) {
  const TileSize size = best_tile(context, p, {{1, 64}, {2, 128}, {2, 256}});
  if (size.groups == 1) {
    launch_product<T, kTransA, true, 1, 64>(context, a, b, p);
  } else if (size.columns == 128) {
    launch_product<T, kTransA, true, 2, 128>(context, a, b, p);
  } else {
    launch_product<T, kTransA, true, 2, 256>(context, a, b, p);
  }
}

ProductStores stores_of(const Sink& sink, DType dtype) {
  const auto address = reinterpret_cast<std::uintptr_t>(sink.y);
  if (!is_identity_epilogue(sink)) return ProductStores::any;
  if (sink.dtype == dtype && sink.columns % 8 == 0 && sink.stride % 8 == 0 && address % 16 == 0) {
    return ProductStores::octets;
  }
  if (sink.dtype == DType::f32 && sink.columns % 2 == 0 && sink.stride % 2 == 0 &&
      address % 8 == 0) {
    return ProductStores::pairs;
  }
  return ProductStores::any;
}

// Rows of W that are decoded at a time, where W is stored in another format: what the workspace
// holds, in whole tiles. With a gate all of them: a tile takes rows from both halves.
std::int64_t decoded_rows(const Context& context, const Forward& p) {
  const std::int64_t left = context.workspace_bytes() - activation_bytes(p);
  if (p.gate != LinearGate::none) return p.out;
  constexpr std::int64_t kUnit = 256;  // a multiple of the height of most tiles
  return std::clamp<std::int64_t>(left / (p.in * 2) / kUnit * kUnit, std::min(kUnit, p.out), p.out);
}

template <class T>
void forward(Context& context, const Forward& p) {
  const bool decodes = p.weight.format->dtype != p.dtype;
  const std::int64_t rows = decodes ? decoded_rows(context, p) : p.out;
  const std::int64_t weight_bytes = decodes ? checked_mul(checked_mul(rows, p.in), 2) : 0;
  auto* const workspace = static_cast<std::byte*>(
      detail::ContextAccess::workspace(context, activation_bytes(p) + weight_bytes));
  const Activations x = prepare_activations(context, p, workspace);
  const cuda::DeviceScope scope(context.device().index);
  const cuda::HeadsShape a = matrix(x.x.data, p.rows, p.in, x.x.stride);
  for (std::int64_t first = 0; first < p.out; first += rows) {
    const std::int64_t count = std::min(rows, p.out - first);
    ProductParams product;
    product.m = p.rows;
    product.depth = p.in;
    product.sink = forward_sink(p, x.scales);
    product.ahead = p.constant_weight && !decodes;
    cuda::HeadsShape b = matrix(p.weight.data, p.out, p.in, p.weight.row_bytes / 2);
    if (decodes) {
      std::byte* const decoded = workspace + activation_bytes(p);
      decode_rows(context, p.weight, first, count, p.in, p.dtype, decoded);
      b = matrix(decoded, count, p.in, p.in);
      if (p.gate == LinearGate::none) product.sink = part_of(product.sink, first, count);
    }
    product.stores = stores_of(product.sink, p.dtype);
    multiply_forward<T>(context, a, b, product);
  }
}

template <class T>
void backward(Context& context, const Backward& p) {
  const cuda::DeviceScope scope(context.device().index);
  const cuda::HeadsShape dy = matrix(p.dy.data, p.rows, p.out, p.dy.stride);
  ProductParams product;
  if (p.dx.data != nullptr) {
    product.m = p.rows;
    product.depth = p.out;
    product.sink = {.y = p.dx.data, .stride = p.dx.stride, .dtype = p.dtype, .columns = p.in};
    product.stores = stores_of(product.sink, p.dtype);
    multiply_backward<T, false>(
        context, dy, matrix(p.weight.data, p.out, p.in, p.weight.row_bytes / 2), product);
  }
  if (p.dweight.data != nullptr) {
    product.m = p.out;
    product.depth = p.rows;
    product.sink = {.y = p.dweight.data,
                    .stride = p.dweight.stride,
                    .dtype = p.dweight_dtype,
                    .accumulate = p.accumulate,
                    .columns = p.in};
    product.stores = stores_of(product.sink, p.dtype);
    multiply_backward<T, true>(context, dy, matrix(p.x.data, p.rows, p.in, p.x.stride), product);
  }
  bias_gradient(context, p);
}

std::string refuses_matrix(const char* name, const cuda::HeadsShape& shape) {
  return cuda::can_map(shape)
             ? ""
             : std::string(name) + ": data or strides are no multiples of 16 bytes";
}

}  // namespace

std::string wgmma_refuses_forward(const Context& context, const Forward& p) {
  if (std::string refusal = cuda::sm_90a_refusal(context); !refusal.empty()) return refusal;
  if (p.dtype == DType::f32) return "x of f32, needs bf16 or f16";
  if (p.in == 0) return "in = 0";
  if (!p.int8_activations) {
    std::string refusal = refuses_matrix("x", matrix(p.x.data, p.rows, p.in, p.x.stride));
    if (!refusal.empty()) return refusal;
  }
  if (p.weight.format->dtype != p.dtype || p.int8_activations) {
    if (p.in % 8 != 0) return "in is no multiple of 8";
    const std::int64_t rows = decoded_rows(context, p);
    if (p.weight.format->dtype != p.dtype &&
        checked_mul(rows, p.in) * 2 + activation_bytes(p) > context.workspace_bytes()) {
      return "a workspace too small for the decoded weights";
    }
  }
  if (p.weight.format->dtype != p.dtype) return {};
  return refuses_matrix("weight", matrix(p.weight.data, p.out, p.in, p.weight.row_bytes / 2));
}

std::string wgmma_refuses_backward(const Context& context, const Backward& p) {
  if (std::string refusal = cuda::sm_90a_refusal(context); !refusal.empty()) return refusal;
  if (p.dtype == DType::f32) return "x of f32, needs bf16 or f16";
  if (p.rows == 0 || p.in == 0 || p.out == 0) return "a size of 0";
  std::string refusal = refuses_matrix("dy", matrix(p.dy.data, p.rows, p.out, p.dy.stride));
  if (refusal.empty() && p.dweight.data != nullptr) {
    refusal = refuses_matrix("x", matrix(p.x.data, p.rows, p.in, p.x.stride));
  }
  if (!refusal.empty() || p.dx.data == nullptr) return refusal;
  if (p.weight.format->dtype != p.dtype) return "weight is not of the dtype of x";
  return refuses_matrix("weight", matrix(p.weight.data, p.out, p.in, p.weight.row_bytes / 2));
}

void forward_wgmma(Context& context, const Forward& p) {
  p.dtype == DType::bf16 ? forward<Bf16>(context, p) : forward<F16>(context, p);
}

void backward_wgmma(Context& context, const Backward& p) {
  p.dtype == DType::bf16 ? backward<Bf16>(context, p) : backward<F16>(context, p);
}

}  // namespace touchstone::linear_layer
