#include <vector>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "ops/kv_append/kv_append_problem.h"
#include "touchstone/core/dtype.h"

namespace touchstone::inline v0::cache {

void append_plain(Context& /*context*/, const KvAppendProblem& p) {
  for (const KvAppendPart& part : p.part) {
    if (part.from == nullptr) continue;
    std::vector<float> vector(static_cast<std::size_t>(part.dim));
    for (std::int64_t token = 0; token < p.tokens; ++token) {
      const PageSlot slot = p.slot_of(token);
      if (slot.page < 0) continue;
      std::byte* page = p.memory + slot.page * p.page_bytes;
      for (std::int64_t head = 0; head < p.kv_heads; ++head) {
        visit_float_dtype(part.dtype, [&]<class T>() {
          const T* from = static_cast<const T*>(part.from) + token * part.stride + head * part.dim;
          for (std::int64_t i = 0; i < part.dim; ++i) {
            vector[static_cast<std::size_t>(i)] = convert<float>(from[i]);
          }
        });
        if (part.rotated) rotate(vector.data(), part.dim);
        const std::int64_t at = head * p.page_tokens + slot.slot;
        encode(part.format, part.dim, vector.data(), page + part.values_at + at * part.value_bytes,
               page + part.scales_at + at * part.scale_bytes);
      }
    }
  }
}

}  // namespace touchstone::inline v0::cache
