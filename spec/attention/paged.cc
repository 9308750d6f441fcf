#include "spec/attention/paged.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>
#include <random>

#include "cache/codec.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/plan/planner.h"

namespace touchstone::spec {
namespace {

constexpr std::size_t kDistinctPages = 32;
constexpr std::int64_t kSmallPage = 64;

// One page with random content, encoded.
std::vector<std::byte> random_page(const cache::LayerGroup& layers, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  const cache::PageGeometry geometry = cache::page_geometry(layers);
  std::vector<std::byte> page(static_cast<std::size_t>(geometry.page_bytes));
  std::vector<float> x(static_cast<std::size_t>(std::max(layers.k_dim, layers.v_dim)));
  for (std::int64_t head = 0; head < layers.kv_heads; ++head) {
    for (std::int64_t slot = 0; slot < layers.page_tokens; ++slot) {
      const auto at = cache::token_offsets(layers, geometry, 0, head, slot);
      std::ranges::generate(x, [&] { return normal(random); });
      cache::encode(layers.k, layers.k_dim, x.data(), page.data() + at.k_values,
                    page.data() + at.k_scales);
      if (layers.k_is_v) continue;
      std::ranges::generate(x, [&] { return normal(random); });
      cache::encode(layers.v, layers.v_dim, x.data(), page.data() + at.v_values,
                    page.data() + at.v_scales);
    }
  }
  return page;
}

// A long page, put together from the vectors of a small one.
void repeat_page(const cache::LayerGroup& layers, const cache::LayerGroup& small,
                 const std::vector<std::byte>& from, std::byte* to) {
  const cache::PageGeometry geometry = cache::page_geometry(layers);
  const cache::PageGeometry part = cache::page_geometry(small);
  for (std::int64_t slot = 0; slot < layers.page_tokens; slot += small.page_tokens) {
    const std::int64_t count = std::min(small.page_tokens, layers.page_tokens - slot);
    for (std::int64_t head = 0; head < layers.kv_heads; ++head) {
      const auto into = cache::token_offsets(layers, geometry, 0, head, slot);
      const auto out = cache::token_offsets(small, part, 0, head, 0);
      const auto copy = [&](std::int64_t t, std::int64_t f, std::int64_t bytes) {
        std::memcpy(to + t, from.data() + f, static_cast<std::size_t>(bytes * count));
      };
      copy(into.k_values, out.k_values, cache::value_bytes(layers.k, layers.k_dim));
      copy(into.k_scales, out.k_scales, cache::scale_bytes(layers.k, layers.k_dim));
      if (layers.k_is_v) continue;
      copy(into.v_values, out.v_values, cache::value_bytes(layers.v, layers.v_dim));
      copy(into.v_scales, out.v_scales, cache::scale_bytes(layers.v, layers.v_dim));
    }
  }
}

template <class T>
std::span<const T> span_of(const TensorView& view) {
  return {static_cast<const T*>(view.data), static_cast<std::size_t>(view.elements())};
}

}  // namespace

HeadShape parse_heads(const std::string& text) {
  std::int64_t numbers[3] = {};
  const char* from = text.data();
  const char* const end = from + text.size();
  bool good = true;
  for (int i = 0; i < 3 && good; ++i) {
    const auto read = std::from_chars(from, end, numbers[i]);
    good = read.ec == std::errc{} && numbers[i] > 0 &&
           (i == 2 ? read.ptr == end : read.ptr < end && *read.ptr == "/x"[i]);
    from = read.ptr + 1;
  }
  if (!good || numbers[0] % numbers[1] != 0) {
    throw InvalidArgument(
        "heads: expected query heads / KV heads x head size as in 32/8x128, got '" + text + "'");
  }
  return {numbers[0], numbers[1], numbers[2]};
}

cache::LayerGroup layers_of(const std::string& format, std::int64_t kv_heads, std::int64_t dim,
                            std::int64_t page_tokens) {
  const plan::CacheFormat formats = plan::parse_cache_format(format);
  return {.layers = 1,
          .kv_heads = kv_heads,
          .k_dim = dim,
          .v_dim = dim,
          .k = formats.k,
          .v = formats.v,
          .page_tokens = page_tokens};
}

std::int64_t PageTable::page(std::int64_t row, std::int64_t index) const {
  if (index < shared) row = 0;
  // A permutation: the step has no divisor in common with the number of pages.
  std::int64_t step = std::max<std::int64_t>(pages() * 5 / 8, 1);
  while (std::gcd(step, pages()) != 1) ++step;
  return (checked_mul(row * each + index, step, "pages") + 3) % pages();
}

Operand PageTable::operand() const {
  return control_operand("page_table", DType::i32, {rows, each}, [table = *this](std::int64_t i) {
    return table.page(i / table.each, i % table.each);
  });
}

Operand page_operand(const cache::LayerGroup& layers, std::int64_t pages, std::uint64_t seed) {
  const std::int64_t page_bytes = cache::page_geometry(layers).page_bytes;
  return {.name = "pages",
          .dtype = DType::u8,
          .shape = {pages, page_bytes},
          .write = [layers, pages, page_bytes, seed](std::span<std::byte> to) {
            std::mt19937_64 random(seed);
            cache::LayerGroup small = layers;
            small.page_tokens = std::min(layers.page_tokens, kSmallPage);
            std::vector<std::vector<std::byte>> distinct;
            for (std::int64_t page = 0; page < pages; ++page) {
              if (distinct.size() < kDistinctPages) {
                distinct.push_back(random_page(small, random));
              }
              const auto& from = distinct[static_cast<std::size_t>(page * 7) % distinct.size()];
              repeat_page(layers, small, from, to.data() + page * page_bytes);
            }
          }};
}

PagedView::PagedView(const cache::LayerGroup& layers, const TensorView& pages,
                     const TensorView& table, const TensorView& lengths,
                     const TensorView& reserved) {
  group = {.memory = static_cast<std::byte*>(pages.data),
           .pages = pages.shape[0],
           .layer_group = layers,
           .geometry = cache::page_geometry(layers),
           .page_tokens = layers.page_tokens,
           .table_stride = table.shape[1],
           .page_table = span_of<std::int32_t>(table)};
  view = {.device = pages.device,
          .rows = table.shape[0],
          .lengths = span_of<std::int64_t>(lengths),
          .reserved = span_of<std::int64_t>(reserved),
          .groups = {&group, 1}};
}

}  // namespace touchstone::spec
