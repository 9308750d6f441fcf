// What kv_append has to store, to the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace touchstone::spec
