// Sampling by a scan of each row in a block of its own: without what clusters need, a scan spills
// fewer registers.
#include "ops/sample/sample_scan.cuh"

namespace touchstone::sampling {

bool suits_alone(const ScanParams& params) {
  return params.on_grid && params.shape.cluster == 1 && !params.deep && !params.second;
}

void sample_alone(Context& context, const ScanParams& params) {
  topk::visit_logits_dtype(
      params.p.dtype, [&]<class T>() { launch_scan<T, true, true, 2, true>(context, params); });
}

}  // namespace touchstone::sampling
