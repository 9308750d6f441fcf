// Tokens that move within the pages of a cache, as keep() moves accepted ones to the front.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "touchstone/cache/layout.h"
#include "touchstone/core/device.h"

namespace touchstone::inline v0::cache {

// The stored vectors of one kind: K or V, values or scales.
struct StoredPart {
  std::int64_t offset = 0;  // from the beginning of a layer
  std::int64_t bytes = 0;   // of one head of one token; 0 = none
};

// Where the bytes of a token are in a page of one layer group.
struct TokenBytes {
  std::byte* memory = nullptr;
  std::int64_t page_bytes = 0;
  std::int64_t layer_bytes = 0;
  std::int64_t page_tokens = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::array<StoredPart, 4> parts{};
};
TokenBytes token_bytes_of(const LayerGroup& group, const PageGeometry& geometry, std::byte* memory);

struct TokenMove {
  std::int32_t from_page = 0;
  std::int32_t from_slot = 0;
  std::int32_t to_page = 0;
  std::int32_t to_slot = 0;
};

// Moves of one sequence in one group, in order: a token is never moved onto one that a later move
// still reads.
struct MoveRun {
  std::int32_t group = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// One launch: what fits the parameters of a kernel.
struct MoveBatch {
  static constexpr int kMaxGroups = 16;
  static constexpr int kMaxRuns = 256;
  static constexpr int kMaxMoves = 1536;

  std::array<TokenBytes, kMaxGroups> groups{};
  std::array<MoveRun, kMaxRuns> runs{};
  std::array<TokenMove, kMaxMoves> moves{};
  std::int32_t group_count = 0;
  std::int32_t run_count = 0;
  std::int32_t move_count = 0;
};
static_assert(sizeof(MoveBatch) <= 32764, "the parameters of a kernel");

void move_tokens_cpu(const MoveBatch& batch);
// token_move_cuda.cu, or src/no_cuda in a CPU-only build. Queued on the stream; can be captured.
void move_tokens_cuda(int device, void* stream, const MoveBatch& batch);

}  // namespace touchstone::inline v0::cache
