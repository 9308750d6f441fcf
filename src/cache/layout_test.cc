// Sizes: against numbers worked out by hand, and against a count position by position.
#include "touchstone/cache/layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

LayerGroup llama3_8b() {
  return {.layers = 32, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .page_tokens = 16};
}

TEST(Layout, RefusesTypesThatAreNoFormat) {
  for (const DType dtype : kAllDTypes) {
    LayerGroup group{.layers = 1, .kv_heads = 1, .k_dim = 8, .v_dim = 8, .k = {.dtype = dtype}};
    if (format_name(dtype) == "unknown") {
      EXPECT_THROW(validate(group), InvalidArgument) << name_of(dtype);
    } else {
      validate(group);
    }
  }
}

TEST(Layout, BytesOfKnownModels) {
  EXPECT_EQ(token_bytes_per_layer(llama3_8b()), 4096);
  EXPECT_EQ(token_bytes(Layout{{llama3_8b()}}), 131072);  // 128 KiB per token
  EXPECT_EQ(page_bytes(llama3_8b()), 16 * 131072);
  // DeepSeek-V3: latent of 512 and a rotated key of 64, 61 layers.
  const LayerGroup latent{.layers = 61, .kv_heads = 1, .k_dim = 576, .v_dim = 512, .k_is_v = true};
  EXPECT_EQ(token_bytes_per_layer(latent), 1152);
  EXPECT_EQ(token_bytes(latent), 70272);
}

TEST(Layout, ScalesAreCounted) {
  LayerGroup group = llama3_8b();
  group.k = {.dtype = DType::i8, .group_size = 32};
  group.v = {.dtype = DType::i4, .group_size = 32, .asymmetric = true};
  // K: 128 + 4 scales of 2; V: 64 + 4 pairs of 4.
  EXPECT_EQ(token_bytes_per_layer(group), 8 * (136 + 80));
  group.v.scale_dtype = DType::f32;
  EXPECT_EQ(token_bytes_per_layer(group), 8 * (136 + 96));
  group.k = {.dtype = DType::f8_e4m3};
  EXPECT_EQ(token_bytes_per_layer(group), 8 * (130 + 96));
}

TEST(Layout, RotatedKeysTakeTheSameSpaceAndAreAnotherLayout) {
  LayerGroup group = llama3_8b();
  group.rotate_keys = true;
  EXPECT_EQ(page_bytes(group), page_bytes(llama3_8b()));
  EXPECT_NE(group, llama3_8b());
}

TEST(Layout, SectionsAreAlignedAndInOrder) {
  LayerGroup group{.layers = 3, .kv_heads = 1, .k_dim = 6, .v_dim = 10, .page_tokens = 1};
  group.k = {.dtype = DType::i4};
  group.v = {.dtype = DType::i8};
  const PageGeometry at = page_geometry(group);
  EXPECT_EQ(at.k_values, 0);
  EXPECT_EQ(at.k_scales, 16);
  EXPECT_EQ(at.v_values, 32);
  EXPECT_EQ(at.v_scales, 48);
  EXPECT_EQ(at.layer_bytes, 64);
  EXPECT_EQ(at.page_bytes, 192);
  // Common shapes: alignment costs nothing.
  for (const std::int64_t page : {8, 16, 64}) {
    group = llama3_8b();
    group.page_tokens = page;
    group.k = {.dtype = DType::i8, .group_size = 64};
    EXPECT_EQ(page_bytes(group), page * token_bytes(group)) << page;
  }
}

// The definition, position by position.
std::int64_t counted_pages(const LayerGroup& group, std::int64_t tokens, std::int64_t chunk) {
  std::set<std::int64_t> pages;
  const std::int64_t oldest_new = std::max<std::int64_t>(tokens - chunk, 0);
  for (std::int64_t position = 0; position < tokens; ++position) {
    const bool seen = group.window == 0 || position > oldest_new - group.window;
    // A page with a sink stays as a whole.
    if (seen || position < group.sinks) pages.insert(position / group.page_tokens);
  }
  return static_cast<std::int64_t>(pages.size());
}

TEST(Layout, PagesMatchACountOfPositions) {
  for (const std::int64_t page : {1, 3, 8, 16}) {
    for (const std::int64_t window : {0, 1, 2, 7, 8, 9, 16, 17}) {
      for (const std::int64_t sinks : {0, 1, 4, 8, 9}) {
        if (window == 0 && sinks > 0) continue;
        LayerGroup group = llama3_8b();
        group.page_tokens = page;
        group.window = window;
        group.sinks = sinks;
        for (const std::int64_t chunk : {1, 2, 5, 16}) {
          std::int64_t peak = 0;  // over whole steps; the last may be short
          for (std::int64_t tokens = 0; tokens <= 120; ++tokens) {
            EXPECT_EQ(pages_for_tokens(group, tokens, chunk), counted_pages(group, tokens, chunk));
            const std::int64_t last = tokens % chunk == 0 ? chunk : tokens % chunk;
            const std::int64_t now = counted_pages(group, tokens, last);
            EXPECT_EQ(peak_pages_for_tokens(group, tokens, chunk), std::max(peak, now))
                << "page " << page << " window " << window << " sinks " << sinks << " chunk "
                << chunk << " tokens " << tokens;
            if (tokens % chunk == 0) peak = std::max(peak, now);
          }
        }
      }
    }
  }
}

TEST(Layout, PageBorders) {
  for (const std::int64_t page : {1, 8, 16, 64}) {
    LayerGroup group = llama3_8b();
    group.page_tokens = page;
    EXPECT_EQ(pages_for_tokens(group, 0), 0);
    EXPECT_EQ(pages_for_tokens(group, 10 * page - 1), page == 1 ? 9 : 10);
    EXPECT_EQ(pages_for_tokens(group, 10 * page), 10);
    EXPECT_EQ(pages_for_tokens(group, 10 * page + 1), 11);
  }
}

TEST(Layout, MaxTokensIsTheLastThatFits) {
  std::mt19937_64 random(4);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int trial = 0; trial < 300; ++trial) {
    Layout layout{{llama3_8b(), llama3_8b()}};
    layout.groups[0].page_tokens = pick(1, 20);
    layout.groups[1].page_tokens = pick(1, 20);
    layout.groups[1].window = pick(1, 100);
    layout.groups[1].sinks = pick(0, 20);
    const std::int64_t sequences = pick(1, 5);
    const std::int64_t chunk = pick(1, 40);
    const std::int64_t budget = pick(0, std::int64_t{1} << 33);
    const std::int64_t tokens = max_tokens(layout, budget, sequences, chunk);
    EXPECT_LE(sequences * peak_bytes_for_tokens(layout, tokens, chunk), budget);
    EXPECT_GT(sequences * peak_bytes_for_tokens(layout, tokens + 1, chunk), budget);
    EXPECT_GE(max_sequences(layout, budget, std::max<std::int64_t>(tokens, 1), chunk),
              tokens == 0 ? 0 : sequences);
  }
  EXPECT_EQ(max_tokens(Layout{{llama3_8b()}}, page_bytes(llama3_8b()) * 3 - 1), 32);
  EXPECT_EQ(max_tokens(Layout{{llama3_8b()}}, page_bytes(llama3_8b()) * 3), 48);
}

TEST(Layout, WindowsAloneBoundMemory) {
  LayerGroup group = llama3_8b();
  group.window = 128;
  group.sinks = 4;
  EXPECT_EQ(peak_pages_for_tokens(group, 1'000'000), 10);
  EXPECT_EQ(max_tokens(Layout{{group}}, 10 * page_bytes(group)), kUnlimitedTokens);
  // At 145 tokens the window begins at position 17: pages 1 to 9, and the sinks in page 0.
  EXPECT_EQ(max_tokens(Layout{{group}}, 10 * page_bytes(group) - 1), 144);
}

TEST(Layout, LargeSizesDoNotWrap) {
  const Layout layout{{llama3_8b()}};
  EXPECT_EQ(bytes_for_tokens(layout, 100'000'000), 100'000'000LL * 131072);
  EXPECT_THROW(bytes_for_tokens(layout, kHuge), InvalidArgument);
  EXPECT_EQ(max_tokens(layout, kHuge), kHuge / 131072 / 16 * 16);
  LayerGroup group = llama3_8b();
  group.layers = kHuge / 2;
  EXPECT_THROW(page_bytes(group), InvalidArgument);
  group = llama3_8b();
  group.k_dim = kHuge;
  EXPECT_THROW(page_bytes(group), InvalidArgument);
  group.k = {.dtype = DType::i8};
  group.k_dim = kHuge - 7;
  EXPECT_THROW(page_bytes(group), InvalidArgument);
}

template <class Change>
void expect_refused(Change change) {
  LayerGroup group = llama3_8b();
  change(group);
  EXPECT_THROW(validate(group), InvalidArgument);
  EXPECT_THROW(page_geometry(group), InvalidArgument);
  EXPECT_THROW(pages_for_tokens(group, 1), InvalidArgument);
  EXPECT_THROW(token_bytes(group), InvalidArgument);
}

TEST(Layout, RefusesNonsense) {
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, -kHuge}) {
    expect_refused([&](LayerGroup& g) { g.layers = bad; });
    expect_refused([&](LayerGroup& g) { g.kv_heads = bad; });
    expect_refused([&](LayerGroup& g) { g.k_dim = bad; });
    expect_refused([&](LayerGroup& g) { g.v_dim = bad; });
    expect_refused([&](LayerGroup& g) { g.page_tokens = bad; });
  }
  expect_refused([](LayerGroup& g) { g.window = -1; });
  expect_refused([](LayerGroup& g) { g.sinks = -1; });
  expect_refused([](LayerGroup& g) { g.sinks = 4; });  // nothing to be saved from
  expect_refused([](LayerGroup& g) { g.k.group_size = 32; });
  expect_refused([](LayerGroup& g) { g.v.asymmetric = true; });
  expect_refused([](LayerGroup& g) { g.k = {.dtype = DType::i8, .group_size = 48}; });
  expect_refused([](LayerGroup& g) { g.k = {.dtype = DType::i8, .group_size = -32}; });
  expect_refused([](LayerGroup& g) { g.v = {.dtype = DType::i4, .group_size = 1}; });
  expect_refused([](LayerGroup& g) {
    g.k_dim = 127;
    g.k = {.dtype = DType::i4};
  });
  expect_refused([](LayerGroup& g) { g.k = {.dtype = DType::i8, .scale_dtype = DType::i8}; });
  expect_refused([](LayerGroup& g) { g.k = {.dtype = DType::f8_e4m3, .asymmetric = true}; });
  expect_refused([](LayerGroup& g) {
    g.k_is_v = true;
    g.v_dim = 129;
  });
  expect_refused([](LayerGroup& g) { g.k_is_v = g.rotate_keys = true; });
  EXPECT_THROW(validate(Layout{}), InvalidArgument);
  EXPECT_THROW(pages_for_tokens(llama3_8b(), -1), InvalidArgument);
  EXPECT_THROW(pages_for_tokens(llama3_8b(), 1, 0), InvalidArgument);
  EXPECT_THROW(max_tokens(Layout{{llama3_8b()}}, -1), InvalidArgument);
  EXPECT_THROW(max_tokens(Layout{{llama3_8b()}}, 1, 0), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::inline v0::cache
