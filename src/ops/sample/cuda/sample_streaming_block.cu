// Sampling by streaming selection with one CTA per row: without the code for clusters, the main
// loop spills fewer registers.
#include "ops/sample/cuda/sample_streaming.cuh"

namespace touchstone::sampling {

void launch_streaming_block(Context& context, const StreamingArgs& args) {
  cuda::visit_dtype(args.p.dtype, [&]<class T>() {
    launch_streaming_kernel<T, true, true, StreamingMode::single_block>(context, args);
  });
}

}  // namespace touchstone::sampling
