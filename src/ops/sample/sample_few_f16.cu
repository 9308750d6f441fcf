#include "ops/sample/sample_few.cuh"

namespace touchstone::sampling {

template void sample_few<F16>(Context& context, const FewParams& params);

}  // namespace touchstone::sampling
