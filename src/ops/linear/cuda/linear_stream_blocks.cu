// The kernels of linear_stream.cuh for weights in blocks.
#include "ops/linear/cuda/linear_stream.cuh"
#include "ops/linear/cuda/linear_ternary_source.cuh"

namespace touchstone::linear_layer {
namespace {

template <class T>
bool launch_blocks(Context& context, const cuda::LaunchShape& shape, const StreamParams& p) {
  using Id = WeightFormatId;
  switch (p.weight.id) {
    case Id::int8_g32:
    case Id::q8_0:
      launch_stream<T, Int8Source<T, 32>>(context, shape, p);
      return true;
    case Id::int8_g64:
      launch_stream<T, Int8Source<T, 64>>(context, shape, p);
      return true;
    case Id::int8_g128:
      launch_stream<T, Int8Source<T, 128>>(context, shape, p);
      return true;
    case Id::int4_g32:
      launch_stream<T, Int4Source<T, 32>>(context, shape, p);
      return true;
    case Id::int4_g64:
      launch_stream<T, Int4Source<T, 64>>(context, shape, p);
      return true;
    case Id::int4_g128:
      launch_stream<T, Int4Source<T, 128>>(context, shape, p);
      return true;
    case Id::q4_0:
      launch_stream<T, Q40Source<T>>(context, shape, p);
      return true;
    case Id::q4_1:
      launch_stream<T, Q41Source<T>>(context, shape, p);
      return true;
    case Id::q4_k:
      launch_stream<T, Q4KSource<T>>(context, shape, p);
      return true;
    case Id::q6_k:
      launch_stream<T, Q6KSource<T>>(context, shape, p);
      return true;
    case Id::ternary_g128:
      launch_stream<T, TernaryPlaneSource<T>>(context, shape, p);
      return true;
    case Id::pq2_0:
      launch_stream<T, TernaryPairSource<T>>(context, shape, p);
      return true;
    default:
      return false;
  }
}

}  // namespace

bool launch_stream_blocks(Context& context, DType dtype, const cuda::LaunchShape& shape,
                          const StreamParams& p) {
  return dtype == DType::bf16 ? launch_blocks<Bf16>(context, shape, p)
                              : launch_blocks<F16>(context, shape, p);
}

}  // namespace touchstone::linear_layer
