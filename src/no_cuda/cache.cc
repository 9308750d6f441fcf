// What the KV cache does on CUDA, in a build without CUDA. Never reached through the public
// functions: a context for a CUDA device cannot be made there.
#include "cache/token_move.h"
#include "cache/view/device_view.h"
#include "no_cuda/refusal.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {

void write_table_entries(Context& /*context*/, const TableEntry* /*entries*/,
                         std::int64_t /*count*/, std::int32_t* /*table*/) {
  throw Unsupported(no_cuda::kRefusal);
}

void move_tokens_cuda(int /*device*/, void* /*stream*/, const MoveBatch& /*batch*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::inline v0::cache
