// What kv_append and rope_append have to store, to the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/spec.h"
#include "touchstone/cache/layout.h"

namespace touchstone::spec {

struct StoredBytes {
  std::int64_t offset = 0;  // from the beginning of the page
  std::vector<std::byte> bytes{};
};

// One head of one token in slot `slot` of a page: K values, K scales, V values, V scales, as
// src/cache/codec.h defines them. `value` is not looked at where V is stored in K.
std::vector<StoredBytes> stored_vectors(const cache::LayerGroup& layers, std::int64_t layer,
                                        std::int64_t head, std::int64_t slot,
                                        const std::vector<double>& key,
                                        const std::vector<double>& value);

// What the pages hold before: bytes that are not written must still be this.
inline constexpr std::byte kUntouched{0xa5};
Operand untouched_pages(const cache::LayerGroup& layers, std::int64_t pages);

// The bytes of an operand of pages: all of them, or those of the vectors that were added.
class PagesReference {
 public:
  PagesReference(std::size_t operand, std::int64_t bytes, bool all);
  void add(std::int64_t page_at, const StoredBytes& part);
  OutputReference take();

 private:
  OutputReference pages_;
  std::vector<double> all_;
};

}  // namespace touchstone::spec
