// The memory layout of a KV cache, and every size that follows from it. The page pool and the
// planner call the same functions, so that a plan matches the allocator to the byte.
//
// A page belongs to one layer group and holds `page_tokens` tokens of all layers of that group,
// scales included, so that a page can be copied, shared or saved alone:
//
//   page    [layer 0 | layer 1 | ...]
//   layer   [K values | K scales | V values | V scales]   each begins on kSectionAlignment
//   values  [kv_heads, page_tokens, dim]                  int4: two values per byte
//   scales  [kv_heads, page_tokens, dim / group_size, 1 or 2]  scale, then minimum if asymmetric
//
// All sizes are 64-bit; a size that does not fit is InvalidArgument, as is a nonsensical layout.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/core/quant_format.h"

namespace touchstone::inline v0::cache {

// Layers that store their keys and values alike and attend to the same positions.
struct LayerGroup {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t k_dim = 0;
  std::int64_t v_dim = 0;
  // How the vector of one head of one token is stored. group_size must divide the head dim; scales
  // are f16 or f32.
  QuantFormat k{};
  QuantFormat v{};
  std::int64_t page_tokens = 16;
  // A token attends to itself and the window - 1 tokens before it. 0 = everything.
  std::int64_t window = 0;
  // The first `sinks` tokens stay visible when the window has moved on. Only with a window.
  std::int64_t sinks = 0;
  // The value of a token is the first v_dim numbers of its key (the latent of MLA): V takes no
  // memory and the format v is ignored.
  bool k_is_v = false;
  // Keys are stored rotated: a normalized Walsh-Hadamard transform of each block of the largest
  // power of two that divides k_dim, which spreads outlier channels before they are quantized.
  // kv_append() rotates keys, cached_attention() rotates queries. Not with k_is_v.
  bool rotate_keys = false;

  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

struct Layout {
  std::vector<LayerGroup> groups{};

  friend bool operator==(const Layout&, const Layout&) = default;
};

// Sections of a page begin on multiples of this many bytes: the widest load of a GPU thread.
inline constexpr std::int64_t kSectionAlignment = 16;

// Where things are. Offsets are bytes from the beginning of a layer; absent sections have size 0.
struct PageGeometry {
  std::int64_t k_values = 0;
  std::int64_t k_scales = 0;
  std::int64_t v_values = 0;
  std::int64_t v_scales = 0;
  std::int64_t layer_bytes = 0;  // layer i of a page begins at i * layer_bytes
  std::int64_t page_bytes = 0;   // page i of a pool begins at i * page_bytes
};

// InvalidArgument, naming the field, unless the description makes sense and its sizes fit.
TOUCHSTONE_API void validate(const LayerGroup& group);
TOUCHSTONE_API void validate(const Layout& layout);

// Bytes of a vector of `dim` values: without its scales, of its scales alone, and of both.
TOUCHSTONE_API std::int64_t value_bytes(const QuantFormat& format, std::int64_t dim);
TOUCHSTONE_API std::int64_t scale_bytes(const QuantFormat& format, std::int64_t dim);
TOUCHSTONE_API std::int64_t vector_bytes(const QuantFormat& format, std::int64_t dim);

// K and V, all heads, scales included. What alignment adds is in page_bytes only (for common head
// sizes and pages of 8 tokens or more it adds nothing).
TOUCHSTONE_API std::int64_t token_bytes_per_layer(const LayerGroup& group);
// The same for all layers of a group, of all groups.
TOUCHSTONE_API std::int64_t token_bytes(const LayerGroup& group);
TOUCHSTONE_API std::int64_t token_bytes(const Layout& layout);

TOUCHSTONE_API PageGeometry page_geometry(const LayerGroup& group);

// Bytes from the beginning of a page to the vectors and scales of one head of one token. Where V is
// stored in K, its offsets are those of K.
struct TokenOffsets {
  std::int64_t k_values = 0;
  std::int64_t k_scales = 0;
  std::int64_t v_values = 0;
  std::int64_t v_scales = 0;
};
TOUCHSTONE_API TokenOffsets token_offsets(const LayerGroup& group, const PageGeometry& geometry,
                                          std::int64_t layer, std::int64_t head, std::int64_t slot);
TOUCHSTONE_API std::int64_t page_bytes(const LayerGroup& group);

// Pages a sequence of `tokens` holds after its last `chunk` tokens were appended in one step: those
// with a position that one of these tokens attends to, or with a sink. Before the step the sequence
// held what its first token attends to (advance_window).
TOUCHSTONE_API std::int64_t pages_for_tokens(const LayerGroup& group, std::int64_t tokens,
                                             std::int64_t chunk = 1);

// The most pages it holds at any time while it grows from nothing to `tokens` in steps of `chunk`.
// Never decreases with `tokens`; equals pages_for_tokens without a window.
TOUCHSTONE_API std::int64_t peak_pages_for_tokens(const LayerGroup& group, std::int64_t tokens,
                                                  std::int64_t chunk = 1);

// Bytes of those pages, over all groups, for one sequence.
TOUCHSTONE_API std::int64_t bytes_for_tokens(const Layout& layout, std::int64_t tokens,
                                             std::int64_t chunk = 1);
TOUCHSTONE_API std::int64_t peak_bytes_for_tokens(const Layout& layout, std::int64_t tokens,
                                                  std::int64_t chunk = 1);

// The pages each group's pool needs for `sequences` that all grow to `tokens`, nothing shared.
TOUCHSTONE_API std::vector<std::int64_t> pool_pages_for(const Layout& layout, std::int64_t tokens,
                                                        std::int64_t sequences = 1,
                                                        std::int64_t chunk = 1);

// Returned by max_tokens() when windows bound the memory of every group and the budget suffices.
inline constexpr std::int64_t kUnlimitedTokens = std::numeric_limits<std::int64_t>::max();

// The longest length to which each of `sequences` can grow within `budget_bytes` of pages.
TOUCHSTONE_API std::int64_t max_tokens(const Layout& layout, std::int64_t budget_bytes,
                                       std::int64_t sequences = 1, std::int64_t chunk = 1);

// The most sequences that can each grow to `tokens` (at least 1) within `budget_bytes`.
TOUCHSTONE_API std::int64_t max_sequences(const Layout& layout, std::int64_t budget_bytes,
                                          std::int64_t tokens, std::int64_t chunk = 1);

}  // namespace touchstone::inline v0::cache
