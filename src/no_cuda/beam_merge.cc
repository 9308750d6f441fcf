// The merge of beam search on CUDA in a build without CUDA. Never reached: a context for a CUDA
// device cannot be created there.
#include "decode/beam/select.h"
#include "no_cuda/refusal.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode::beam {

void merge_rows_cuda(Context& /*context*/, const MergeProblem& /*problem*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::inline v0::decode::beam
