#include "ops/sample/sample_scan.cuh"

namespace touchstone::sampling {

template void sample_by_scan<float>(Context& context, const ScanParams& params);

}  // namespace touchstone::sampling
