// One append call after its checks, and the implementations that take it.
#pragma once

#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/core/context.h"

namespace touchstone::cache {

// The new keys, or the new values: everything that differs between the two.
struct AppendPart {
  const void* from = nullptr;  // [tokens, kv_heads, dim]; null = nothing to do
  DType dtype = DType::f32;    // f32, bf16, f16
  std::int64_t stride = 0;     // elements from token to token
  std::int64_t dim = 0;
  QuantFormat format{};
  bool rotated = false;
  // Bytes from the beginning of a page to the part's values and scales, and of one vector.
  std::int64_t values_at = 0;
  std::int64_t scales_at = 0;
  std::int64_t value_bytes = 0;
  std::int64_t scale_bytes = 0;
};

struct Append {
  std::int64_t tokens = 0;
  std::int64_t view_rows = 0;
  const std::int32_t* rows = nullptr;        // [tokens], or null: token t is of row t ...
  const std::int64_t* positions = nullptr;   // [tokens], ... and goes to lengths[t]
  const std::int64_t* lengths = nullptr;     // [view_rows]
  const std::int64_t* reserved = nullptr;    // [view_rows]
  const std::int32_t* page_table = nullptr;  // [view_rows, table_stride]
  std::int64_t table_stride = 0;
  std::int64_t pages = 0;
  std::byte* memory = nullptr;
  std::int64_t page_bytes = 0;
  std::int64_t page_tokens = 0;
  std::int64_t kv_heads = 0;
  AppendPart part[2];  // K and V

  // Where a token goes. page < 0: nowhere.
  struct Place {
    std::int64_t page = -1;
    std::int64_t slot = 0;
  };
  TOUCHSTONE_HOST_DEVICE Place place_of(std::int64_t token) const {
    const std::int64_t row = rows == nullptr ? token : rows[token];
    if (row < 0 || row >= view_rows) return {};
    const std::int64_t position = positions == nullptr ? lengths[row] : positions[token];
    if (position < lengths[row] || position >= reserved[row]) return {};
    // 32-bit division where it will do: a GPU has no other.
    const bool narrow = (position | page_tokens) >> 32 == 0;
    const std::int64_t page_of_row =
        narrow ? static_cast<std::uint32_t>(position) / static_cast<std::uint32_t>(page_tokens)
               : position / page_tokens;
    if (page_of_row >= table_stride) return {};
    const std::int64_t page = page_table[row * table_stride + page_of_row];
    if (page >= pages) return {};
    return {page, position - page_of_row * page_tokens};
  }
};

// CPU, plain loops over codec.h, one thread: append_plain.cc. The others must give the same bits.
void append_plain(Context& context, const Append& p);

// CPU, Highway, every SIMD target: append_cpu.cc.
void append_simd(Context& context, const Append& p);

// CUDA: vectors in the registers of a few lanes where their groups allow it; in shared memory where
// they do not. append_cuda.cu, or src/no_cuda in a CPU-only build.
std::string append_registers_refuses(const Context& context, const Append& p);
void append_registers(Context& context, const Append& p);
std::string append_portable_refuses(const Context& context, const Append& p);
void append_portable(Context& context, const Append& p);

}  // namespace touchstone::cache
