// Writes keys and values of new tokens into the pages of a KV cache: one layer, any of the rows of
// a view, one token or many of each. Rotates and quantizes on the way.
//
//   cache.reserve(ids, 1);
//   const CacheView& view = builder.build(context, ids);
//   for each layer: append(context, {.cache = view, .layer = layer, .k = k, .v = v});
//   cache.commit(ids, 1);
//
// Token t goes to position positions[t] of row rows[t] of the view: each to its own place, reserved
// and not committed. Without `rows` and `positions` there is one token for each row of the view, in
// order, and it goes to the next position of its row.
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
// Special     NaN in f32, bf16 and f16 is stored as the quiet NaN, infinity as it is; f16 turns
//             what is too large into infinity. A quantized group with a NaN or an infinity reads as NaN
//             from end to end, and no other group does. Numbers too large for the scales become the
//             largest that they reach: with f16 scales 65504 steps, else 2^126.
// Skipping    A token of row -1 is not stored: padding, where the number of tokens is fixed.
// Aliasing    k, v, rows and positions share no memory with the pages.
// Empty       T = 0: nothing is written.
// Promises    The bits depend on the numbers and the LayerGroup alone: not on the device, the SIMD
//             target, the batch or the number of threads. Nothing but the places of the tokens is
//             written. CUDA: no allocation, no synchronization; can be captured in a graph.
// Memory      On the CPU every token's place is checked. On CUDA the view is one of
//             build(context, ids), all tensors are on the device, and what rows and positions hold
//             is not known to the caller: a token whose place is not reserved is not stored.
// Cost        Bytes: k and v once, and what the formats store. About 5 flops per number, 12 with
//             rotation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/cache/cache_view.h"
#include "touchstone/core/context.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::cache {

struct AppendArgs {
  CacheView cache{};
  std::int64_t group = 0;        // of the cache
  std::int64_t layer = 0;        // of the group
  ConstTensorView k{};           // [T, kv_heads, k_dim]
  ConstTensorView v{};           // [T, kv_heads, v_dim]; absent with k_is_v
  ConstTensorView rows{};        // [T], optional together with `positions`
  ConstTensorView positions{};   // [T]
  std::string implementation{};  // "" = the first of explain() that accepts
};

void append(Context& context, const AppendArgs& args);

// Every implementation for the context's device, in order of preference, and what it says to this
// call.
std::vector<ImplementationReport> explain(Context& context, const AppendArgs& args);

}  // namespace touchstone::cache
