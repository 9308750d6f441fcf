// A kv_append call after its checks, and its implementations.
#pragma once

#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/core/context.h"
#include "touchstone/ops/kv_append.h"

namespace touchstone::inline v0::cache {

// The new keys, or the new values: everything that differs between the two.
struct KvAppendPart {
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

// The slot of a token: its page and its index there. page < 0: the token is not stored.
struct PageSlot {
  std::int64_t page = -1;
  std::int64_t slot = 0;
};

struct KvAppendProblem {
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
  KvAppendPart part[2];  // K and V

  TOUCHSTONE_HOST_DEVICE PageSlot slot_of(std::int64_t token) const {
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

// The checks of a call, in the name of the operator `op`, which calls the positions of slots
// `slots`.
KvAppendProblem checked_append(const char* op, const char* slots, const Context& context,
                               const KvAppendArgs& args);

// CPU, plain loops over codec.h, one thread: kv_append_plain.cc. The others must give the same
// bits.
void append_plain(Context& context, const KvAppendProblem& p);

// CPU, Highway, every SIMD target: kv_append_cpu.cc.
void append_simd(Context& context, const KvAppendProblem& p);

// CUDA: kv_append_cuda.cu and kv_append_portable.cu, or src/no_cuda in a CPU-only build.
// Values stored in the dtype they arrive in: one warp per token.
std::string append_copy_refuses(const Context& context, const KvAppendProblem& p);
void append_copy(Context& context, const KvAppendProblem& p);
// 16 values of K and the same 16 of V per thread, quantized in registers.
std::string append_paired_refuses(const Context& context, const KvAppendProblem& p);
void append_paired(Context& context, const KvAppendProblem& p);
// 16 values of K or of V per thread: head dims of K and V that differ.
std::string append_registers_refuses(const Context& context, const KvAppendProblem& p);
void append_registers(Context& context, const KvAppendProblem& p);
// One warp per vector, in shared memory: every head dim and group size.
std::string append_portable_refuses(const Context& context, const KvAppendProblem& p);
void append_portable(Context& context, const KvAppendProblem& p);

}  // namespace touchstone::inline v0::cache
