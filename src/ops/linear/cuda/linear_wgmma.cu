// Chooses tiles and clusters for the products of linear_wgmma.cuh: forward, dx and dweight.
#include <algorithm>

#include "core/context_access.h"
#include "ops/linear/cuda/linear_decode.cuh"
#include "ops/linear/cuda/linear_wgmma.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::linear_layer {
namespace {

// A matrix [rows, columns] as the copy engine reads it.
cuda::HeadsShape matrix(const void* data, std::int64_t rows, std::int64_t columns,
                        std::int64_t stride) {
  return {.data = data, .tokens = rows, .columns = columns, .token_stride = stride};
}

template <class T, bool kTransA, bool kTransB, int kGroups, bool kCluster>
void launch_product(Context& context, ProductParams& p) {
  using Shape = ProductShape<kGroups>;
  const std::int64_t width = p.sink.gate == LinearGate::none ? kTileN : kTileN / 2;
  p.row_tiles = (p.m + Shape::kTileM - 1) / Shape::kTileM;
  p.column_tiles = (p.sink.columns + width - 1) / width;
  p.segments = kCluster ? segment_count(p.depth) : 1;
  const auto kernel = linear_product<T, kTransA, kTransB, kGroups, kCluster>;
  cuda::allow_shared(context, kernel);
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(p.row_tiles * p.column_tiles * p.segments),
      .threads = Shape::kThreads,
      .cluster = static_cast<unsigned>(p.segments),
      .shared_bytes = Shape::kSharedBytes,
      .pdl = true};
  const cuda::LaunchConfig config(context, shape);
  cuda::check(cudaLaunchKernelEx(config.get(), kernel, static_cast<const ProductParams&>(p)),
              "linear wgmma");
  cuda::check_launch("linear wgmma");
}

template <class T, bool kTransA, bool kTransB>
void multiply(Context& context, const cuda::HeadsShape& a, const cuda::HeadsShape& b,
              ProductParams p) {
  const cuda::DeviceScope scope(context.device().index);
  p.a = cuda::slice_map(a, dtype_of<T>, kTileK);
  p.b = cuda::slice_map(b, dtype_of<T>, kTileK);
  p.segment = segment_length(p.depth);
  p.wide_stores = p.sink.dtype == dtype_of<T> && p.sink.stride % 8 == 0 &&
                  reinterpret_cast<std::uintptr_t>(p.sink.y) % 16 == 0;
  const std::int64_t width = p.sink.gate == LinearGate::none ? kTileN : kTileN / 2;
  const std::int64_t tiles = (p.m + 127) / 128 * ((p.sink.columns + width - 1) / width);
  const int processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  // Too few tiles for the chip: the segments of a sum run side by side.
  const bool cluster = tiles * 2 <= processors && segment_count(p.depth) > 1;
  p.plain = is_plain(p.sink);
  if (p.m <= kGroupRows) {
    cluster ? launch_product<T, kTransA, kTransB, 1, true>(context, p)
            : launch_product<T, kTransA, kTransB, 1, false>(context, p);
  } else {
    cluster ? launch_product<T, kTransA, kTransB, 2, true>(context, p)
            : launch_product<T, kTransA, kTransB, 2, false>(context, p);
  }
}

// Rows of W that are decoded at a time, where W is stored in another format: what the workspace
// holds, in whole tiles. With a gate all of them: a tile takes rows from both halves.
std::int64_t decoded_rows(const Context& context, const Forward& p) {
  const std::int64_t left = context.workspace_bytes() - activation_bytes(p);
  if (p.gate != LinearGate::none) return p.out;
  return std::clamp<std::int64_t>(left / (p.in * 2) / kTileN * kTileN, kTileN, p.out);
}

template <class T>
void forward(Context& context, const Forward& p) {
  const bool decodes = p.weight.format->dtype != p.dtype;
  const std::int64_t rows = decodes ? decoded_rows(context, p) : p.out;
  const std::int64_t weight_bytes = decodes ? checked_mul(checked_mul(rows, p.in), 2) : 0;
  auto* const workspace = static_cast<std::byte*>(
      detail::ContextAccess::workspace(context, activation_bytes(p) + weight_bytes));
  const Activations x = prepare_activations(context, p, workspace);
  const cuda::HeadsShape a = matrix(x.x.data, p.rows, p.in, x.x.stride);
  for (std::int64_t first = 0; first < p.out; first += rows) {
    const std::int64_t count = std::min(rows, p.out - first);
    ProductParams product;
    product.m = p.rows;
    product.depth = p.in;
    product.sink = forward_sink(p, x.scales);
    cuda::HeadsShape b = matrix(p.weight.data, p.out, p.in, p.weight.row_bytes / 2);
    if (decodes) {
      std::byte* const decoded = workspace + activation_bytes(p);
      decode_rows(context, p.weight, first, count, p.in, p.dtype, decoded);
      b = matrix(decoded, count, p.in, p.in);
      if (p.gate == LinearGate::none) product.sink = part_of(product.sink, first, count);
    }
    multiply<T, false, false>(context, a, b, product);
  }
}

template <class T>
void backward(Context& context, const Backward& p) {
  const cuda::HeadsShape dy = matrix(p.dy.data, p.rows, p.out, p.dy.stride);
  ProductParams product;
  if (p.dx.data != nullptr) {
    product.m = p.rows;
    product.depth = p.out;
    product.sink = {.y = p.dx.data, .stride = p.dx.stride, .dtype = p.dtype, .columns = p.in};
    multiply<T, false, true>(context, dy,
                             matrix(p.weight.data, p.out, p.in, p.weight.row_bytes / 2), product);
  }
  if (p.dweight.data != nullptr) {
    product.m = p.out;
    product.depth = p.rows;
    product.sink = {.y = p.dweight.data,
                    .stride = p.dweight.stride,
                    .dtype = p.dweight_dtype,
                    .accumulate = p.accumulate,
                    .columns = p.in};
    multiply<T, true, true>(context, dy, matrix(p.x.data, p.rows, p.in, p.x.stride), product);
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
