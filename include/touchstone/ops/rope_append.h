// The step between the projections of a layer and its attention, in one pass: q and k are
// normalized head by head (if the model does so) and rotated by their positions, k and v stored in
// the cache.
//
//   rope_append(context, {.cache = view, .layer = layer, .q = q, .k = k, .v = v, .y = q,
//                         .positions = positions, .frequencies = frequencies,
//                         .rows = rows, .slots = slots});
//   cached_attention(context, {.q = q, ...});
//
// The same as rms_norm of q and of k with q_weight and k_weight, rope of both, and kv_append of k
// and v at `slots` of `rows`: five calls, of which each reads and writes everything.
//
// Shapes      q, y: [T, query_heads, D]; k: [T, kv_heads, D]; v: [T, kv_heads, v_dim], heads and
//             dims of the LayerGroup (D its k_dim). The numbers of a token are contiguous in each,
//             tokens may lie any stride apart: q, k and v may be parts of one wide tensor.
//             q_weight, k_weight: [D], both or neither. positions, rows, slots: [T]. frequencies:
//             [R / 2], R <= D; absent = nothing is rotated.
// Dtypes      q f32, bf16, f16; k, v and y like q. Weights f32; positions and slots i64, rows i32,
//             frequencies f64.
// Rounding    After the norm and after the rotation, each to the dtype of q, as the calls one by
//             one would; then once to the format of the cache. `rounding` as in rms_norm.h.
// Accuracy    Of the norm as in rms_norm.h, of the rotation as in rope.h, of formats as in
//             kv_append.h.
// Aliasing    y may be q itself. Any other overlap of y with an input is refused; nothing shares
//             memory with the pages.
// NaN and infinity, skipping, checks
//             As in rope.h and kv_append.h. A token of row -1 is not stored, and its y is written.
// Empty       T = 0: nothing is written.
// Guarantees  A token's bits depend on its numbers, its position and the parameters alone. Without
//             norms they are those of rope and kv_append on the same device. CUDA: no allocation,
//             no synchronization; can be captured in a graph.
// Cost        Reads q, k and v once; writes y once and what the formats store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/cache/cache_view.h"
#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"
#include "touchstone/ops/rms_norm.h"
#include "touchstone/ops/rope.h"

namespace touchstone::inline v0 {

struct RopeAppendArgs {
  cache::CacheView cache{};
  std::int64_t layer_group = 0;  // index of the layer group in the cache; not one with k_is_v
  std::int64_t layer = 0;        // index of the layer in its group
  ConstTensorView q{};           // [T, query_heads, D]
  ConstTensorView k{};           // [T, kv_heads, D]
  ConstTensorView v{};           // [T, kv_heads, v_dim]
  TensorView y{};                // [T, query_heads, D]
  ConstTensorView q_weight{};    // [D], optional together with k_weight
  ConstTensorView k_weight{};
  double eps = 1e-6;  // of the norms
  RmsNormRounding rounding = RmsNormRounding::once;
  ConstTensorView positions{};    // [T], needed with frequencies
  ConstTensorView frequencies{};  // [R / 2], optional
  RopePairs pairs = RopePairs::halves;
  double scale = 1;              // of the rotation
  ConstTensorView rows{};        // [T], of the view
  ConstTensorView slots{};       // [T], positions of rows where k and v are stored
  std::string implementation{};  // "" = the first of explain() that accepts
};

TOUCHSTONE_API void rope_append(Context& context, const RopeAppendArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const RopeAppendArgs& args);

}  // namespace touchstone::inline v0
