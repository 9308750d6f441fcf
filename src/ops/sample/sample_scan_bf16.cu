#include "ops/sample/sample_scan.cuh"

namespace touchstone::sampling {

template void sample_by_scan<Bf16>(Context& context, const ScanParams& params);

}  // namespace touchstone::sampling
