// The SIMD implementation of dense attention: what its kernels and the code above them share.
//
// Everything is made of one product of matrices, C = A B or C = f C + A B, where the numbers of A
// are broadcast one by one and those of B and C are read and written in vectors. A task owns up to
// kOwn tokens and meets the others tile by tile. What it owns is packed once, transposed, as the B
// of the scores; the others are then the A, in the order in which they lie in memory:
//
//   forward, own queries   S[t][i] = K Q^T, P = exp2(S - m)       O[i] = f O[i] + P^T V
//   dq, own queries        S[t][i] = K Q^T, dP[t][i] = V dO^T     dQ[i] += dS^T K
//   dk, dv, own keys       S[i][t] = Q K^T, dP[i][t] = dO V^T     dV[t] += P^T dO, dK[t] += dS^T Q
//                          where one task has all keys of a head  dQ[i] += dS K
//
// so that scores are vectors of own tokens, and the softmax of the forward and of dq needs no sum
// across lanes. Scores are logarithms to base 2.
//
// The last line makes dq without a sweep of its own, five products instead of seven, and is taken
// where there are KV heads enough for all threads. Its bits are those of the sweep: the same
// chains, with tiles of kOwn keys.
//
// Why the bits do not depend on who is computed together: a number of C is one chain of multiply
// and add along the depth, in ascending order, whatever block it is computed in; and tiles begin at
// fixed tokens of their sequence.
//
// A product adds 0 * x for what is not seen, which is nothing unless x is not finite. Tiles where
// something is not seen are therefore looked through, and if there is a NaN or an infinity in them
// their sums are made number by number from what is seen.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/dense_attention.h"

namespace touchstone::attend {

// Tokens a task owns at most: four vectors of AVX-512.
inline constexpr std::size_t kOwn = 64;
// Others of a tile, unless the caller says otherwise, and at most.
inline constexpr std::int64_t kDenseTile = 128;
inline constexpr std::int64_t kMostTile = 1024;

inline std::size_t tile_tokens(const DenseAttention& p) {
  const std::int64_t wanted = p.tile > 0 ? p.tile : kDenseTile;
  return static_cast<std::size_t>(wanted < kMostTile ? wanted : kMostTile);
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
inline std::size_t backward_key_tile(const DenseAttention& p) {
  return p.tile > 0 ? tile_tokens(p) : kOwn;
}

// Floats of scratch memory that one thread needs.
std::size_t forward_floats(const DenseAttention& p);
std::size_t backward_floats(const DenseAttention& p);

// In the backward `delta` is [rows], as log_sum_exp. `dq`, [heads_per_kv, queries,
// fused_row_floats], is where the blocks of a KV head, one after the other, sum dq; null: left to
// the other sweep.
void run_forward_block(const AttentionForward& p, const QueryBlock& block, float* scratch);
void run_delta_block(const AttentionBackward& p, const QueryBlock& block, float* delta);
void run_query_block(const AttentionBackward& p, const QueryBlock& block, const float* delta,
                     float* scratch);
void run_key_block(const AttentionBackward& p, const KeyBlock& block, const float* delta, float* dq,
                   float* scratch);
// Stores what the key blocks of a KV head have summed.
void store_fused_queries(const AttentionBackward& p, std::int64_t sequence, std::int64_t kv_head,
                         const float* dq);
// Floats of a row of that.
std::size_t fused_row_floats(const DenseAttention& p);

}  // namespace touchstone::attend
