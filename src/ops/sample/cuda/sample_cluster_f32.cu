#include "ops/sample/cuda/sample_cluster.cuh"

namespace touchstone::sampling {

template void launch_cluster<float>(Context& context, const ClusterArgs& args);

}  // namespace touchstone::sampling
