#include "touchstone/cache/layout.h"

#include <algorithm>
#include <numeric>

#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

[[noreturn]] void refuse_layout(const char* what, const std::string& expected, std::int64_t got) {
  throw InvalidArgument(std::string("layout: ") + what + ": expected " + expected + ", got " +
                        std::to_string(got));
}

void need_at_least(std::int64_t value, std::int64_t least, const char* what) {
  if (value < least) refuse_layout(what, "at least " + std::to_string(least), value);
}

std::int64_t mul(std::int64_t a, std::int64_t b) { return checked_mul(a, b, "layout: bytes"); }
std::int64_t add(std::int64_t a, std::int64_t b) { return checked_add(a, b, "layout: bytes"); }

std::int64_t align_up(std::int64_t bytes) {
  return add(bytes, kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

void validate(const QuantFormat& format, std::int64_t dim, const char* dim_name,
              const char* group_name) {
  need_at_least(dim, 1, dim_name);
  if (format_name(format.dtype) == "unknown") {
    throw InvalidArgument(std::string("layout: format of ") + dim_name +
                          ": expected f32, bf16, f16, i8, i4 or f8_e4m3, got " +
                          std::string(name_of(format.dtype)));
  }
  if (!is_quantized(format.dtype)) {
    if (format.group_size != 0)
      refuse_layout(group_name, "0 for a format without scales", format.group_size);
    if (format.asymmetric) refuse_layout(group_name, "a symmetric format without scales", 1);
    return;
  }
  need_at_least(format.group_size, 0, group_name);
  if (format.group_size != 0 && dim % format.group_size != 0) {
    refuse_layout(group_name, "a divisor of the head dim " + std::to_string(dim),
                  format.group_size);
  }
  if (format.dtype == DType::i4) {
    if (dim % 2 != 0) refuse_layout(dim_name, "an even number for int4", dim);
    if (format.group_size % 2 != 0)
      refuse_layout(group_name, "an even number for int4", format.group_size);
  }
  if (format.dtype == DType::f8_e4m3 && format.asymmetric) {
    refuse_layout(group_name, "a symmetric format for fp8_e4m3", 1);
  }
  if (format.scale_dtype != DType::f16 && format.scale_dtype != DType::f32) {
    throw InvalidArgument("layout: scale: expected f16 or f32, got " +
                          std::string(touchstone::name_of(format.scale_dtype)));
  }
}

// The geometry without the checks of validate(), which itself needs it to find overflows.
PageGeometry geometry_of(const LayerGroup& group) {
  const std::int64_t rows = mul(group.kv_heads, group.page_tokens);
  PageGeometry at;
  std::int64_t end = align_up(mul(rows, value_bytes(group.k, group.k_dim)));
  at.k_scales = end;
  end = add(end, align_up(mul(rows, scale_bytes(group.k, group.k_dim))));
  at.v_values = end;
  if (!group.k_is_v) end = add(end, align_up(mul(rows, value_bytes(group.v, group.v_dim))));
  at.v_scales = end;
  if (!group.k_is_v) end = add(end, align_up(mul(rows, scale_bytes(group.v, group.v_dim))));
  at.layer_bytes = end;
  at.page_bytes = mul(end, group.layers);
  return at;
}

std::int64_t sink_pages(const LayerGroup& group) {
  return ceil_div(group.sinks, group.page_tokens);
}

// Pages that hold a position of [first, end), or a sink before `end`.
std::int64_t pages_covering(const LayerGroup& group, std::int64_t first, std::int64_t end) {
  if (end == 0) return 0;
  const std::int64_t last_page = (end - 1) / group.page_tokens;
  const std::int64_t first_page = first / group.page_tokens;
  const std::int64_t sinks = std::min(sink_pages(group), first_page);
  return sinks + last_page - first_page + 1;
}

void check_lengths(std::int64_t tokens, std::int64_t chunk) {
  need_at_least(tokens, 0, "tokens");
  need_at_least(chunk, 1, "chunk");
}

std::int64_t held_pages(const LayerGroup& group, std::int64_t tokens, std::int64_t chunk) {
  const std::int64_t oldest_new = tokens - std::min(chunk, tokens);
  const bool all = group.window == 0 || oldest_new < group.window;
  return pages_covering(group, all ? 0 : oldest_new + 1 - group.window, tokens);
}

// Until the window has left the sinks behind, every step holds at least as many pages as the one
// before; from there on the count depends only on where in its page the window begins.
std::int64_t peak_pages(const LayerGroup& group, std::int64_t tokens, std::int64_t chunk) {
  if (group.window == 0 || tokens <= group.window) return held_pages(group, tokens, chunk);
  const std::int64_t sinks_end = mul(sink_pages(group), group.page_tokens);
  if (chunk == 1) {  // a window that begins in the last slot of a page touches the most pages
    const std::int64_t fullest = checked_add(sinks_end, group.page_tokens - 1, "layout: sinks");
    const std::int64_t first = std::min(tokens - group.window, fullest);
    return pages_covering(group, first, first + group.window);
  }
  const std::int64_t final_chunk = tokens % chunk == 0 ? chunk : tokens % chunk;
  std::int64_t peak = held_pages(group, tokens, final_chunk);
  const std::int64_t whole_steps = tokens / chunk;
  const std::int64_t past_sinks =
      ceil_div(checked_add(sinks_end, group.window - 1, "layout: window"), chunk) + 1;
  std::int64_t step = std::min(std::max<std::int64_t>(past_sinks - 1, 1), whole_steps);
  // After this many steps the window begins at the same slot of a page again.
  const std::int64_t period = group.page_tokens / std::gcd(group.page_tokens, chunk);
  const std::int64_t steps = std::min(whole_steps - step, period + 1) + 1;
  for (std::int64_t i = 0; i < steps && step > 0; ++i, ++step) {
    peak = std::max(peak, held_pages(group, step * chunk, chunk));
  }
  return peak;
}

// Whether `sequences` of `tokens` stay within the budget; sizes beyond 64 bits do not.
bool fits(const Layout& layout, const std::vector<std::int64_t>& bytes_of_page, std::int64_t budget,
          std::int64_t sequences, std::int64_t tokens, std::int64_t chunk) {
  std::int64_t left = budget / sequences;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const std::int64_t pages = peak_pages(layout.groups[g], tokens, chunk);
    if (pages > left / bytes_of_page[g]) return false;
    left -= pages * bytes_of_page[g];
  }
  return true;
}

}  // namespace

void validate(const LayerGroup& group) {
  need_at_least(group.layers, 1, "layers");
  need_at_least(group.kv_heads, 1, "kv_heads");
  need_at_least(group.page_tokens, 1, "page_tokens");
  need_at_least(group.window, 0, "window");
  need_at_least(group.sinks, 0, "sinks");
  if (group.sinks > 0 && group.window == 0)
    refuse_layout("sinks", "0 without a window", group.sinks);
  validate(group.k, group.k_dim, "k_dim", "k.group_size");
  if (group.k_is_v) {
    need_at_least(group.v_dim, 1, "v_dim");
    if (group.v_dim > group.k_dim) {
      refuse_layout("v_dim", "at most k_dim " + std::to_string(group.k_dim), group.v_dim);
    }
    if (group.rotate_keys) refuse_layout("rotate_keys", "false with k_is_v", 1);
  } else {
    validate(group.v, group.v_dim, "v_dim", "v.group_size");
  }
  geometry_of(group);
}

void validate(const Layout& layout) {
  if (layout.groups.empty()) refuse_layout("groups", "at least 1", 0);
  for (const LayerGroup& group : layout.groups) validate(group);
}

std::int64_t value_bytes(const QuantFormat& format, std::int64_t dim) {
  switch (format.dtype) {
    case DType::f32:
      return mul(dim, 4);
    case DType::bf16:
    case DType::f16:
      return mul(dim, 2);
    case DType::i8:
    case DType::f8_e4m3:
      return dim;
    case DType::i4:
      return ceil_div(dim, 2);
    default:
      throw InvalidArgument("layout: dtype: expected one of a format, got " +
                            std::string(name_of(format.dtype)));
  }
}

std::int64_t scale_bytes(const QuantFormat& format, std::int64_t dim) {
  if (!is_quantized(format.dtype)) return 0;
  const std::int64_t groups = format.group_size == 0 ? 1 : dim / format.group_size;
  return mul(groups, size_of(format.scale_dtype) * (format.asymmetric ? 2 : 1));
}

std::int64_t vector_bytes(const QuantFormat& format, std::int64_t dim) {
  return add(value_bytes(format, dim), scale_bytes(format, dim));
}

std::int64_t token_bytes_per_layer(const LayerGroup& group) {
  validate(group);
  const std::int64_t v = group.k_is_v ? 0 : vector_bytes(group.v, group.v_dim);
  return mul(group.kv_heads, add(vector_bytes(group.k, group.k_dim), v));
}

std::int64_t token_bytes(const LayerGroup& group) {
  return mul(group.layers, token_bytes_per_layer(group));
}

std::int64_t token_bytes(const Layout& layout) {
  validate(layout);
  std::int64_t bytes = 0;
  for (const LayerGroup& group : layout.groups) bytes = add(bytes, token_bytes(group));
  return bytes;
}

PageGeometry page_geometry(const LayerGroup& group) {
  validate(group);
  return geometry_of(group);
}

TokenOffsets token_offsets(const LayerGroup& group, const PageGeometry& geometry,
                           std::int64_t layer, std::int64_t head, std::int64_t slot) {
  // Within a page that page_geometry accepted, nothing here can overflow.
  const std::int64_t base = layer * geometry.layer_bytes;
  const std::int64_t row = head * group.page_tokens + slot;
  TokenOffsets at;
  at.k_values = base + geometry.k_values + row * value_bytes(group.k, group.k_dim);
  at.k_scales = base + geometry.k_scales + row * scale_bytes(group.k, group.k_dim);
  if (group.k_is_v) {
    at.v_values = at.k_values;
    at.v_scales = at.k_scales;
  } else {
    at.v_values = base + geometry.v_values + row * value_bytes(group.v, group.v_dim);
    at.v_scales = base + geometry.v_scales + row * scale_bytes(group.v, group.v_dim);
  }
  return at;
}

std::int64_t page_bytes(const LayerGroup& group) { return page_geometry(group).page_bytes; }

std::int64_t pages_for_tokens(const LayerGroup& group, std::int64_t tokens, std::int64_t chunk) {
  validate(group);
  check_lengths(tokens, chunk);
  return held_pages(group, tokens, chunk);
}

std::int64_t peak_pages_for_tokens(const LayerGroup& group, std::int64_t tokens,
                                   std::int64_t chunk) {
  validate(group);
  check_lengths(tokens, chunk);
  return peak_pages(group, tokens, chunk);
}

std::int64_t bytes_for_tokens(const Layout& layout, std::int64_t tokens, std::int64_t chunk) {
  validate(layout);
  std::int64_t bytes = 0;
  for (const LayerGroup& group : layout.groups) {
    bytes = add(bytes, mul(pages_for_tokens(group, tokens, chunk), page_bytes(group)));
  }
  return bytes;
}

std::int64_t peak_bytes_for_tokens(const Layout& layout, std::int64_t tokens, std::int64_t chunk) {
  validate(layout);
  std::int64_t bytes = 0;
  for (const LayerGroup& group : layout.groups) {
    bytes = add(bytes, mul(peak_pages_for_tokens(group, tokens, chunk), page_bytes(group)));
  }
  return bytes;
}

std::vector<std::int64_t> pool_pages_for(const Layout& layout, std::int64_t tokens,
                                         std::int64_t sequences, std::int64_t chunk) {
  validate(layout);
  need_at_least(sequences, 1, "sequences");
  std::vector<std::int64_t> pages;
  for (const LayerGroup& group : layout.groups) {
    pages.push_back(
        checked_mul(peak_pages_for_tokens(group, tokens, chunk), sequences, "layout: pages"));
  }
  return pages;
}

std::int64_t max_tokens(const Layout& layout, std::int64_t budget_bytes, std::int64_t sequences,
                        std::int64_t chunk) {
  validate(layout);
  need_at_least(budget_bytes, 0, "budget_bytes");
  need_at_least(sequences, 1, "sequences");
  check_lengths(0, chunk);
  std::vector<std::int64_t> bytes_of_page;
  for (const LayerGroup& group : layout.groups) bytes_of_page.push_back(page_bytes(group));
  const auto enough = [&](std::int64_t tokens) {
    return fits(layout, bytes_of_page, budget_bytes, sequences, tokens, chunk);
  };
  std::int64_t most = 0;
  std::int64_t too_many = kUnlimitedTokens;
  if (enough(too_many)) return kUnlimitedTokens;
  while (too_many - most > 1) {
    const std::int64_t middle = most + (too_many - most) / 2;
    (enough(middle) ? most : too_many) = middle;
  }
  return most;
}

std::int64_t max_sequences(const Layout& layout, std::int64_t budget_bytes, std::int64_t tokens,
                           std::int64_t chunk) {
  need_at_least(budget_bytes, 0, "budget_bytes");
  need_at_least(tokens, 1, "tokens");
  return budget_bytes / peak_bytes_for_tokens(layout, tokens, chunk);
}

}  // namespace touchstone::inline v0::cache
