#include "ops/sample/sample_few.cuh"

namespace touchstone::sampling {

template void sample_few<float>(Context& context, const FewParams& params);

}  // namespace touchstone::sampling
