// Stores keys and values of new tokens in the pages of a KV cache: one layer, any rows of a view,
// one token or a chunk of each. Rotation and quantization are fused.
//
//   cache.reserve(ids, 1);
//   const CacheView& view = builder.build(context, ids);
//   for each layer: kv_append(context, {.cache = view, .layer = layer, .k = k, .v = v});
//   cache.commit(ids, 1);
//
// Token t is stored at position positions[t] of row rows[t] of the view: a slot of its own,
// reserved and not committed. Without `rows` and `positions` there is one token for each row of the
// view, in order, stored at the next position of its row.
//
// Shapes      k: [T, kv_heads, k_dim], v: [T, kv_heads, v_dim], heads and dims of the LayerGroup;
//             absent v with k_is_v. The numbers of one token are contiguous, tokens may lie any
//             stride apart (k and v may be parts of one wide tensor). rows, positions: [T],
//             contiguous.
// Dtypes      k and v f32, bf16, f16, each its own; rows i32, positions i64.
// Formats     Those of the LayerGroup. Values are widened to f32, rotated there if keys are
//             (rotate_keys), and stored with one rounding. In a quantized group with the largest
//             magnitude a, or the range r = largest - least, no value is off by more than half a
//             step:
//               int8   a / 254, asymmetric r / 510        int4   a / 14, asymmetric r / 30
//               fp8    1/16 of the value, or a / 448 / 1024 if that is more
//             plus what rounding of the scale up adds to a step: 2^-10 of it or 2^-24 in f16, 2^-15
//             of it or 2^-126 in f32; and of the minimum down to r: 2^-10 of it or 2^-24 in f16.
// NaN and infinity
//             NaN in f32, bf16 and f16 is stored as the quiet NaN, infinity unchanged; values
//             beyond the range of f16 become infinity. A quantized group with a NaN or an infinity
//             decodes to NaN as a whole, other groups are unaffected. Values beyond the range of
//             the scales saturate: at 65504 steps with f16 scales, else at 2^126.
// Skipping    A token of row -1 is not stored: padding, where the number of tokens is fixed.
// Aliasing    k, v, rows and positions share no memory with the pages.
// Empty       T = 0: nothing is written.
// Guarantees  The bits depend on the values and the LayerGroup alone: not on the device, the SIMD
//             target, the batch or the number of threads. Only the slots of the tokens are written.
//             CUDA: no allocation, no synchronization; can be captured in a graph.
// Checks      On the CPU every token's slot is checked before anything is written. On CUDA the view
//             is one of build(context, ids) and all tensors are on the device; rows and positions
//             are not read by the host: a token whose slot is not reserved is not stored.
// Threads     Reads the view and writes slots of pages: no change of the cache (kv_cache.h). Calls
//             with different contexts may overlap when their tokens differ.
// Cost        Bytes: k and v once, and what the formats store. About 5 flops per number, 12 with
//             rotation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/cache/cache_view.h"
#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

struct KvAppendArgs {
  cache::CacheView cache{};
  std::int64_t layer_group = 0;  // index of the layer group in the cache
  std::int64_t layer = 0;        // index of the layer in its group
  ConstTensorView k{};           // [T, kv_heads, k_dim]
  ConstTensorView v{};           // [T, kv_heads, v_dim]; absent with k_is_v
  ConstTensorView rows{};        // [T], optional together with `positions`
  ConstTensorView positions{};   // [T]
  std::string implementation{};  // "" = the first of explain() that accepts
};

TOUCHSTONE_API void kv_append(Context& context, const KvAppendArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const KvAppendArgs& args);

}  // namespace touchstone::inline v0
