// Tokens in test caches: content that follows from a number, written and recognized byte by byte.
#pragma once

#include <cstdint>
#include <cstring>

#include "cache/cache_test_device.h"

namespace touchstone::inline v0::cache::test {

inline std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct TwoGroups {
  std::int64_t full_page = 0;  // tokens of a page of the group that sees everything
  std::int64_t window_page = 0;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
};

// A full group and a windowed latent one, small and with gaps between the sections of a page.
inline Layout layout_of(const TwoGroups& sizes) {
  const QuantFormat int8{.dtype = DType::i8};
  const LayerGroup full{.layers = 1,
                        .kv_heads = 2,
                        .k_dim = 2,
                        .v_dim = 3,
                        .k = int8,
                        .page_tokens = sizes.full_page};
  const LayerGroup latent{.layers = 2,
                          .kv_heads = 1,
                          .k_dim = 4,
                          .v_dim = 2,
                          .k = int8,
                          .page_tokens = sizes.window_page,
                          .window = sizes.window,
                          .sinks = sizes.sinks,
                          .k_is_v = true};
  return {{full, latent}};
}

// Calls visit(offset, bytes, word) for each vector and its scales of one token in a page: so many
// bytes of `word`, at most 8, are there.
template <class Visit>
void each_piece(const KvCache& cache, std::int64_t g, std::int64_t position, std::uint64_t token,
                Visit visit) {
  const LayerGroup& group = cache.layout().groups[static_cast<std::size_t>(g)];
  for (std::int64_t layer = 0; layer < group.layers; ++layer) {
    for (std::int64_t head = 0; head < group.kv_heads; ++head) {
      const TokenOffsets offsets = token_offsets(group, state_of(cache).geometry(g), layer, head,
                                                 position % group.page_tokens);
      const std::uint64_t word = mix(token + static_cast<std::uint64_t>(g * 64 + layer * 8 + head));
      visit(offsets.k_values, value_bytes(group.k, group.k_dim), word);
      visit(offsets.k_scales, scale_bytes(group.k, group.k_dim), word >> 32);
      if (group.k_is_v) continue;
      visit(offsets.v_values, value_bytes(group.v, group.v_dim), ~word);
    }
  }
}

// Into a position that is reserved, in all groups.
inline void write_token(KvCache& cache, SequenceId id, std::int64_t position, std::uint64_t token) {
  for (std::int64_t g = 0; g < state_of(cache).groups(); ++g) {
    const std::span<std::byte> page = state_of(cache).writable_page_at(id, g, position);
    each_piece(cache, g, position, token,
               [&](std::int64_t offset, std::int64_t bytes, std::uint64_t word) {
                 const auto size = static_cast<std::size_t>(bytes);
                 std::memcpy(page.subspan(static_cast<std::size_t>(offset), size).data(), &word,
                             size);
               });
  }
}

inline bool holds_token(const KvCache& cache, SequenceId id, std::int64_t g, std::int64_t position,
                        std::uint64_t token) {
  const std::span<const std::byte> page = state_of(cache).page_at(id, g, position);
  bool same = true;
  each_piece(cache, g, position, token,
             [&](std::int64_t offset, std::int64_t bytes, std::uint64_t word) {
               const auto size = static_cast<std::size_t>(bytes);
               same &= std::memcmp(page.subspan(static_cast<std::size_t>(offset), size).data(),
                                   &word, size) == 0;
             });
  return same;
}

}  // namespace touchstone::inline v0::cache::test
