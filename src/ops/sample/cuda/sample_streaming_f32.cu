#include "ops/sample/cuda/sample_streaming.cuh"

namespace touchstone::sampling {

template void launch_streaming<float>(Context& context, const StreamingArgs& args);
template void launch_deferred<float>(Context& context, const StreamingArgs& args);

}  // namespace touchstone::sampling
