// The SIMD implementation of dense attention: what its kernels and the code above them share.
//
// Everything is made of one product of matrices, C = A B or C = f C + A B, where the numbers of A
// are broadcast one by one and those of B and C are read and written in vectors. A task owns up to
// kOwn tokens and iterates over the others in tiles. Own tokens are packed once, transposed, as the
// B of the scores; the others are then the A, in the order in which they lie in memory:
//
//   forward, own queries   S[t][i] = K Q^T, P = exp2(S - m)       O[i] = f O[i] + P^T V
//   dq, own queries        S[t][i] = K Q^T, dP[t][i] = V dO^T     dQ[i] += dS^T K
//   dk, dv, own keys       S[i][t] = Q K^T, dP[i][t] = dO V^T     dV[t] += P^T dO, dK[t] += dS^T Q
//                          where an f32 dQ fits in memory        dQ[i] += dS K
//
// so that scores are vectors of own tokens, and the softmax of the forward and of dq needs no sum
// across lanes. Scores are logarithms to base 2.
//
// The last line makes dq without a sweep of its own, five products instead of seven. Either one
// task has all keys of a head, or the tasks of a head add to its dq in turns, in the order of their
// keys, some queries at a time. A task has done the other four products of a tile before it waits
// for its turn, so that one is behind the other by those queries and hardly ever waits. The bits
// are those of the sweep: the same chains, with tiles of kOwn keys.
//
// Determinism, whatever is computed together: an element of C is one chain of multiply
// and add along the depth, in ascending order, whatever block it is computed in; and tiles begin at
// fixed tokens of their sequence.
//
// A product adds 0 * x for masked keys, which is exact unless x is not finite. Tiles with a masked
// key are therefore scanned, and those with a NaN or an infinity are summed element by element over
// the keys that are attended to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ops/attention_dense/attention_tuning.h"
#include "ops/attention_dense/dense_key_tile.h"
#include "ops/attention_dense/dense_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::dense_attention {

inline constexpr std::size_t kOwn = tuning::kOwn;

inline std::size_t tile_tokens(const DenseProblem& p) {
  return static_cast<std::size_t>(p.tile > 0 ? p.tile : tuning::kTile);
}

// Queries of one or more heads of one KV head: vector h * queries + i is query first_query + i of
// query head first_head + h.
struct QueryBlock {
  std::int64_t sequence = 0;
  std::int64_t first_head = 0;
  std::int64_t heads = 1;
  std::int64_t first_query = 0;
  std::int64_t queries = 0;

  std::size_t vectors() const { return static_cast<std::size_t>(heads * queries); }
};

struct KeyBlock {
  std::int64_t sequence = 0;
  std::int64_t kv_head = 0;
  std::int64_t first_key = 0;
  std::int64_t keys = 0;
};

// Keys of a tile where the backward owns queries.
inline std::size_t backward_key_tile(const DenseProblem& p) {
  return p.tile > 0 ? tile_tokens(p) : kOwn;
}

// Key blocks [begin, end) of a sequence.
struct KeyBlockRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool has(std::int64_t block) const { return begin <= block && block < end; }
};

// A superset of those that queries [first, end) attend to.
inline KeyBlockRange key_blocks_of(const DenseProblem& p, const SequenceSpan& span,
                                   std::int64_t first, std::int64_t end) {
  constexpr auto kKeys = static_cast<std::int64_t>(kOwn);
  const VisibleRange low = visible_range(p, span, first);
  const VisibleRange high = visible_range(p, span, end - 1);
  return {high.sinks > 0 ? 0 : low.begin / kKeys, ceil_div(high.end, kKeys)};
}

// Where the key blocks of a KV head sum dq, one after the other.
struct FusedQueries {
  float* dq = nullptr;  // [heads_per_kv, queries, fused_row_floats]; null: left to the other sweep
  // [heads_per_kv, turns_of(queries)]: the block that is to add next to some queries of a tile, of
  // those that attend to the tile. Null: the blocks run one after the other.
  std::atomic<std::int64_t>* turns = nullptr;
};

inline constexpr std::int64_t kTurnQueries = tuning::kTurnQueries;

// Turns of the first `queries` of a head, each tile with its own.
inline std::int64_t turns_of(const DenseProblem& p, std::int64_t queries) {
  const auto tile = static_cast<std::int64_t>(tile_tokens(p));
  return queries / tile * ceil_div(tile, kTurnQueries) + ceil_div(queries % tile, kTurnQueries);
}

void wait_for_turn(const std::atomic<std::int64_t>& turn, std::int64_t block);

// Floats of scratch memory that one thread needs.
std::size_t forward_floats(const DenseProblem& p);
std::size_t backward_floats(const DenseProblem& p);

// In the backward `delta` is [rows], as log_sum_exp.
void run_forward_block(const ForwardProblem& p, const QueryBlock& block, float* scratch);
void run_delta_block(const BackwardProblem& p, const QueryBlock& block, float* delta);
void run_query_block(const BackwardProblem& p, const QueryBlock& block, const float* delta,
                     float* scratch);
void run_key_block(const BackwardProblem& p, const KeyBlock& block, const float* delta,
                   const FusedQueries& fused, float* scratch);
// Stores the block's part of what the key blocks of its KV head have summed in `dq`.
void store_fused_queries(const BackwardProblem& p, const QueryBlock& block, const float* dq);
// Floats of a row of that.
std::size_t fused_row_floats(const DenseProblem& p);

}  // namespace touchstone::dense_attention
