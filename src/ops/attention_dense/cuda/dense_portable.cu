// Dense attention on CUDA for any head dimension, dtype and layout, without tensor cores.
//
// A block has kRows rows of one head in shared memory, as f32, and goes through tiles of kOthers
// tokens on the other side: keys for output and dq, queries for dk and dv. A warp takes one row at
// a time, each lane one token of the tile. Bits of a row depend on its own numbers only, because
// tiles begin at multiples of kOthers and tiles that are fully masked for a row are skipped.
#include <string>

#include "core/context_access.h"
#include "ops/attention_common/refusal.h"
#include "ops/attention_dense/cuda/dense_cuda.cuh"

namespace touchstone::dense_attention {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 16;
constexpr int kOthers = 32;

__device__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Tokens as f32 in shared memory. The odd stride keeps lanes that read a column apart in different
// banks.
struct TokenTile {
  float* data = nullptr;
  int stride = 0;
  __device__ float* row(int i) const { return data + i * stride; }
};

__host__ __device__ int odd(std::int64_t columns) { return static_cast<int>(columns | 1); }

// All threads of the block; rows from `rows` on are zeros.
template <class T>
__device__ void load(const TokenTile& tile, int count, int rows, const T* from,
                     std::int64_t token_stride, std::int64_t columns) {
  for (int i = static_cast<int>(threadIdx.x); i < count * columns; i += kThreads) {
    const int r = i / static_cast<int>(columns);
    const int c = i % static_cast<int>(columns);
    tile.row(r)[c] = r < rows ? cuda::widen(from[r * token_stride + c]) : 0;
  }
}

__device__ float dot(const float* a, const float* b, std::int64_t columns) {
  float sum = 0;
  for (int c = 0; c < columns; ++c) sum = fmaf(a[c], b[c], sum);
  return sum;
}

// sums[c] += weight of lane i * tile[i][c], i ascending.
__device__ void add_weighted(float* sums, float weight, const TokenTile& tile,
                             std::int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int c = lane; c - lane < columns; c += 32) {
    float sum = c < columns ? sums[c] : 0;
    for (int i = 0; i < kOthers; ++i) {
      const float w = __shfl_sync(kAllLanes, weight, i);
      // A token without weight is masked: its contents must not matter.
      if (c < columns && w != 0) sum = fmaf(w, tile.row(i)[c], sum);
    }
    if (c < columns) sums[c] = sum;
  }
}

struct ForwardWork {
  ForwardProblem p;
  std::int64_t tiles = 1;
};
struct BackwardWork {
  BackwardProblem p;
  const float* delta = nullptr;
  std::int64_t query_tiles = 1;
  std::int64_t key_tiles = 1;
};

// Which rows a block has: tile `piece` of a head, of the sequence's queries or of its keys.
struct Block {
  std::int64_t sequence = 0;
  int head = 0;
  SequenceSpan span;
  int first = 0;
};

__device__ Block block_of(const DenseProblem& p, std::int64_t heads, std::int64_t tiles,
                          const std::int64_t* starts) {
  Block block;
  std::int64_t piece = blockIdx.x % tiles;
  const std::int64_t lane = blockIdx.x / tiles;
  block.head = static_cast<int>(lane % heads);
  block.sequence = lane / heads;
  if (starts != nullptr) {
    block.sequence = sequence_of_piece(starts, p.batch, piece, kRows);
    piece -= first_piece(starts, block.sequence, kRows);
  }
  block.span = span_of(p, block.sequence);
  block.first = static_cast<int>(piece * kRows);
  return block;
}

// A block that owns queries and goes over the keys: what the output and dq are made by alike. Its
// sums have `columns` numbers per query.
template <class T>
class QueryBlock {
 public:
  __device__ QueryBlock(const DenseProblem& problem, std::int64_t tiles, std::int64_t columns,
                        float* memory)
      : block(block_of(problem, problem.query_heads, tiles, problem.query_offsets)),
        rule(problem, block.span, block.sequence, block.head),
        q{memory, odd(problem.k_dim)},
        k{q.row(kRows), odd(problem.k_dim)},
        v{k.row(kOthers), odd(problem.v_dim)},
        sums{v.row(kOthers), odd(columns)},
        rows(static_cast<int>(smaller(kRows, larger(block.span.queries - block.first, 0)))),
        p_(problem),
        columns_(columns) {}

  // Where shared memory is free.
  __device__ float* free_memory() const { return sums.row(kRows); }

  __device__ void begin() {
    load(q, kRows, rows, token_of<T>(p_.q, block.sequence, block.head, token()), p_.q.token_stride,
         p_.k_dim);
    for (int i = static_cast<int>(threadIdx.x); i < kRows * sums.stride; i += kThreads) {
      sums.data[i] = 0;
    }
  }

  // row(i, r, key, seen): for the warp's i-th row, which is the block's r-th, a tile of keys of
  // which it attends to some; each lane with its own key.
  template <class Row>
  __device__ void go_over_keys(const Row& row) {
    const SequenceSpan& span = block.span;
    const int kv_head = block.head / static_cast<int>(p_.heads_per_kv);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const VisibleRange first_sight = visible_range(p_, span, block.first);
    const VisibleRange last_sight = visible_range(p_, span, block.first + rows - 1);
    for (std::int64_t key = 0; key < last_sight.end; key += kOthers) {
      if (key + kOthers <= first_sight.begin && key >= last_sight.sinks) continue;
      const int keys = static_cast<int>(smaller(kOthers, span.keys - key));
      __syncthreads();
      load(k, kOthers, keys, token_of<T>(p_.k, block.sequence, kv_head, span.first_key + key),
           p_.k.token_stride, p_.k_dim);
      load(v, kOthers, keys, token_of<T>(p_.v, block.sequence, kv_head, span.first_key + key),
           p_.v.token_stride, p_.v_dim);
      __syncthreads();
      for_own_rows([&](int i, int r) {
        const bool seen = attends(visible_range(p_, span, block.first + r), key + lane);
        if (__ballot_sync(kAllLanes, seen) != 0) row(i, r, static_cast<int>(key) + lane, seen);
      });
    }
    // Where there was no tile the sums are still as all threads of the block have set them.
    __syncthreads();
  }

  template <class Row>
  __device__ void for_own_rows(const Row& row) const {
    for (int i = 0; i < kRows / kWarps; ++i) {
      const int r = static_cast<int>(threadIdx.x / 32) * (kRows / kWarps) + i;
      if (r < rows) row(i, r);
    }
  }

  __device__ void store(const MutableHeads& to, int r, float factor) const {
    T* const row = token_of<T>(to, block.sequence, block.head, token() + r);
    for (int c = static_cast<int>(threadIdx.x % 32); c < columns_; c += 32) {
      row[c] = cuda::narrow<T>(sums.row(r)[c] * factor);
    }
  }

  __device__ std::int64_t token() const { return block.span.first_query + block.first; }
  __device__ std::int64_t index(int r) const {
    return row_index(p_, block.span, block.sequence, block.head, block.first + r);
  }

  Block block;
  ScoreRule rule;
  TokenTile q, k, v, sums;
  int rows;

 private:
  const DenseProblem& p_;
  std::int64_t columns_;
};

// What dropout multiplies the weight of a key by. `query` and `key` count within the sequence.
__device__ float kept_factor(const DenseProblem& p, const Block& block, int head,
                             std::int64_t query, std::int64_t key) {
  if (p.dropout.threshold == 0) return 1;
  return p.dropout.factor(head, query_token(p, block.span, block.sequence, query), key);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const __grid_constant__ ForwardWork work) {
  const ForwardProblem& p = work.p;
  extern __shared__ float memory[];
  QueryBlock<T> queries(p, work.tiles, p.v_dim, memory);
  if (queries.rows == 0) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  queries.begin();
  float largest[kRows / kWarps], total[kRows / kWarps];
  for (int i = 0; i < kRows / kWarps; ++i) {
    largest[i] = minus_infinity();
    total[i] = 0;
  }
  queries.go_over_keys([&](int i, int r, int key, bool seen) {
    float s = minus_infinity();
    if (seen) {
      s = queries.rule.capped(dot(queries.q.row(r), queries.k.row(lane), p.k_dim)) +
          queries.rule.added(queries.block.first + r, key, true);
    }
    const float top = fmaxf(largest[i], warp_max(s));
    const float base = top == minus_infinity() ? 0 : top;
    const float shrink = expf(largest[i] - base);
    const float weight = expf(s - base);
    largest[i] = top;
    total[i] = total[i] * shrink + warp_sum(weight);
    for (int c = lane; c < p.v_dim; c += 32) queries.sums.row(r)[c] *= shrink;
    const float kept = seen ? weight * kept_factor(p, queries.block, queries.block.head,
                                                   queries.block.first + r, key)
                            : 0;
    add_weighted(queries.sums.row(r), kept, queries.v, p.v_dim);
  });
  queries.for_own_rows([&](int i, int r) {
    const SoftmaxEpilogue epilogue(static_cast<const float*>(p.sink_logits), queries.block.head,
                                   largest[i], total[i]);
    queries.store(p.output, r, epilogue.nothing ? 0 : epilogue.factor);
    if (lane == 0 && p.log_sum_exp.data != nullptr) {
      *token_of<float>(p.log_sum_exp, queries.block.sequence, queries.block.head,
                       queries.token() + r) = epilogue.log_sum_exp;
    }
  });
}

// P, as it is multiplied with the value, and dS of one query and key.
struct Gradients {
  float weight = 0;
  float score = 0;  // of the score
  float dot = 0;    // of the dot product, but for the scale
};

__device__ Gradients gradients(const BackwardProblem& p, const ScoreRule& rule, const float* q,
                               const float* k, const float* v, const float* doutput, int query,
                               int key, float log_sum_exp, float delta, float kept) {
  const float capped = rule.capped(dot(q, k, p.k_dim));
  Gradients g;
  g.weight = expf(capped + rule.added(query, key, true) - log_sum_exp);
  const float dweight = kept == 0 ? 0 : kept * dot(doutput, v, p.v_dim);
  g.score = g.weight * (dweight - delta);
  g.dot = g.score * rule.cap_slope(capped);
  g.weight *= kept;
  return g;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    query_gradient_kernel(const __grid_constant__ BackwardWork work) {
  const BackwardProblem& p = work.p;
  extern __shared__ float memory[];
  QueryBlock<T> queries(p, work.query_tiles, p.k_dim, memory);
  if (queries.rows == 0) return;
  const TokenTile doutput{queries.free_memory(), odd(p.v_dim)};
  const int lane = static_cast<int>(threadIdx.x % 32);
  queries.begin();
  load(doutput, kRows, queries.rows,
       token_of<T>(p.doutput, queries.block.sequence, queries.block.head, queries.token()),
       p.doutput.token_stride, p.v_dim);
  queries.go_over_keys([&](int /*i*/, int r, int key, bool seen) {
    const std::int64_t index = queries.index(r);
    const float log_sum_exp = *token_of<float>(p.log_sum_exp, queries.block.sequence,
                                               queries.block.head, queries.token() + r);
    if (log_sum_exp == minus_infinity()) return;
    Gradients g;
    if (seen) {
      g = gradients(
          p, queries.rule, queries.q.row(r), queries.k.row(lane), queries.v.row(lane),
          doutput.row(r), queries.block.first + r, key, log_sum_exp, work.delta[index],
          kept_factor(p, queries.block, queries.block.head, queries.block.first + r, key));
    }
    add_weighted(queries.sums.row(r), g.dot, queries.k, p.k_dim);
  });
  queries.for_own_rows(
      [&](int /*i*/, int r) { queries.store(p.dq, r, static_cast<float>(p.scale)); });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    key_gradient_kernel(const __grid_constant__ BackwardWork work) {
  const BackwardProblem& p = work.p;
  const Block block = block_of(p, p.kv_heads, work.key_tiles, p.key_offsets);
  const SequenceSpan& span = block.span;
  if (block.first >= span.keys) return;
  extern __shared__ float memory[];
  const TokenTile k{memory, odd(p.k_dim)};
  const TokenTile v{k.row(kRows), odd(p.v_dim)};
  const TokenTile q{v.row(kRows), odd(p.k_dim)};
  const TokenTile doutput{q.row(kOthers), odd(p.v_dim)};
  const TokenTile dk{doutput.row(kOthers), odd(p.k_dim)};
  const TokenTile dv{dk.row(kRows), odd(p.v_dim)};
  const int rows = static_cast<int>(smaller(kRows, span.keys - block.first));
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t token = span.first_key + block.first;

  load(k, kRows, rows, token_of<T>(p.k, block.sequence, block.head, token), p.k.token_stride,
       p.k_dim);
  load(v, kRows, rows, token_of<T>(p.v, block.sequence, block.head, token), p.v.token_stride,
       p.v_dim);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * (dk.stride + dv.stride); i += kThreads) {
    dk.data[i] = 0;
  }
  for (int member = 0; member < p.heads_per_kv; ++member) {
    const int head = block.head * static_cast<int>(p.heads_per_kv) + member;
    const ScoreRule rule(p, span, block.sequence, head);
    for (std::int64_t query = 0; query < span.queries; query += kOthers) {
      const int queries = static_cast<int>(smaller(kOthers, span.queries - query));
      // The last query attends furthest to the right.
      if (visible_range(p, span, query + queries - 1).end <= block.first) continue;
      __syncthreads();
      load(q, kOthers, queries, token_of<T>(p.q, block.sequence, head, span.first_query + query),
           p.q.token_stride, p.k_dim);
      load(doutput, kOthers, queries,
           token_of<T>(p.doutput, block.sequence, head, span.first_query + query),
           p.doutput.token_stride, p.v_dim);
      __syncthreads();
      const bool there = lane < queries;
      const std::int64_t index = there ? row_index(p, span, block.sequence, head, query + lane) : 0;
      const float log_sum_exp = there ? *token_of<float>(p.log_sum_exp, block.sequence, head,
                                                         span.first_query + query + lane)
                                      : minus_infinity();
      const float delta = there ? work.delta[index] : 0;
      const VisibleRange visible = visible_range(p, span, query + lane);
      for (int i = 0; i < kRows / kWarps; ++i) {
        const int row = warp * (kRows / kWarps) + i;
        if (row >= rows) break;
        const bool seen = log_sum_exp != minus_infinity() && attends(visible, block.first + row);
        if (__ballot_sync(kAllLanes, seen) == 0) continue;
        Gradients g;
        if (seen) {
          g = gradients(p, rule, q.row(lane), k.row(row), v.row(row), doutput.row(lane),
                        static_cast<int>(query) + lane, block.first + row, log_sum_exp, delta,
                        kept_factor(p, block, head, query + lane, block.first + row));
        }
        add_weighted(dk.row(row), g.dot, q, p.k_dim);
        add_weighted(dv.row(row), g.weight, doutput, p.v_dim);
      }
    }
  }
  __syncthreads();
  for (int i = 0; i < kRows / kWarps; ++i) {
    const int row = warp * (kRows / kWarps) + i;
    if (row >= rows) break;
    T* const to_k = token_of<T>(p.dk, block.sequence, block.head, token + row);
    T* const to_v = token_of<T>(p.dv, block.sequence, block.head, token + row);
    for (int c = lane; c < p.k_dim; c += 32) {
      to_k[c] = cuda::narrow<T>(dk.row(row)[c] * static_cast<float>(p.scale));
    }
    for (int c = lane; c < p.v_dim; c += 32) to_v[c] = cuda::narrow<T>(dv.row(row)[c]);
  }
}

__device__ float sum_of_products(const float* a, const float* b, std::int64_t n) {
  return dot(a, b, n);
}
template <class T>
__device__ float sum_of_products(const T* a, const T* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum = fmaf(cuda::widen(a[c]), cuda::widen(b[c]), sum);
  return sum;
}

// A thread per number of dbias: what it is broadcast over is summed in order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_gradient_kernel(const __grid_constant__ BackwardWork work) {
  const BackwardProblem& p = work.p;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t per_head = p.queries * p.keys;
  if (index >= p.dbias_batch * p.dbias_heads * per_head) return;
  const std::int64_t query = index % per_head / p.keys;
  const std::int64_t key = index % p.keys;
  const std::int64_t own_head = index / per_head % p.dbias_heads;
  const std::int64_t own_batch = index / per_head / p.dbias_heads;
  const SequenceSpan span = span_of(p, 0);
  float sum = 0;
  if (attends(visible_range(p, span, query), key)) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      if (p.dbias_batch > 1 && b != own_batch) continue;
      for (int h = 0; h < p.query_heads; ++h) {
        if (p.dbias_heads > 1 && h != own_head) continue;
        const std::int64_t row = row_index(p, span, b, h, query);
        const float log_sum_exp = *token_of<float>(p.log_sum_exp, b, h, query);
        if (log_sum_exp == minus_infinity()) continue;
        const int kv_head = h / static_cast<int>(p.heads_per_kv);
        const ScoreRule rule(p, span, b, h);
        const float s = rule.capped(sum_of_products(token_of<T>(p.q, b, h, query),
                                                    token_of<T>(p.k, b, kv_head, key), p.k_dim)) +
                        rule.added(static_cast<int>(query), static_cast<int>(key), true);
        const float dweight = sum_of_products(token_of<T>(p.doutput, b, h, query),
                                              token_of<T>(p.v, b, kv_head, key), p.v_dim);
        sum += expf(s - log_sum_exp) * (dweight - work.delta[row]);
      }
    }
  }
  static_cast<float*>(p.dbias)[index] = sum;
}

std::int64_t forward_bytes(const DenseProblem& p) {
  return static_cast<std::int64_t>(sizeof(float)) * (kRows + kOthers) *
         (odd(p.k_dim) + odd(p.v_dim));
}
std::int64_t backward_bytes(const DenseProblem& p) {
  return static_cast<std::int64_t>(sizeof(float)) * (2 * kRows + kOthers) *
         (odd(p.k_dim) + odd(p.v_dim));
}

std::string refuses(const Context& context, std::int64_t bytes) {
  const int most = cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return bytes <= most ? "" : attention_common::above("bytes of shared memory", bytes, most);
}

// Why the tiles of `tokens` tokens and `heads` heads exceed the largest grid, or nothing.
std::string refuses_count(const DenseProblem& p, const char* what, std::int64_t tokens,
                          std::int64_t heads) {
  if (tokens == 0) return {};
  const bool packed = p.query_offsets != nullptr;
  const std::int64_t tiles = pieces(tokens, p.batch, packed, kRows);
  const std::int64_t most = cuda::kMaxBlocks / tiles;
  const std::int64_t lanes = (packed ? 1 : p.batch) * heads;
  return lanes <= most ? "" : attention_common::above(what, lanes, most);
}

std::int64_t bias_gradient_count(const BackwardProblem& p) {
  return p.dbias_batch * p.dbias_heads * p.queries * p.keys;
}
std::string refuses_bias_gradient(const BackwardProblem& p) {
  if (p.dbias == nullptr) return {};
  constexpr std::int64_t kMost = cuda::kMaxBlocks * kThreads;
  const std::int64_t count = bias_gradient_count(p);
  return count <= kMost ? "" : attention_common::above("numbers of dbias", count, kMost);
}

unsigned blocks_for(std::int64_t lanes, std::int64_t tiles) {
  return static_cast<unsigned>(lanes * tiles);
}

template <class T>
void forward(Context& context, const ForwardProblem& p) {
  if (row_count(p) == 0) return;
  const bool packed = p.query_offsets != nullptr;
  const ForwardWork work{p, pieces(p.queries, p.batch, packed, kRows)};
  cuda::allow_shared(context, forward_kernel<T>);
  cuda::launch(context, "attention forward", forward_kernel<T>,
               {.blocks = blocks_for((packed ? 1 : p.batch) * p.query_heads, work.tiles),
                .threads = kThreads,
                .shared_bytes = forward_bytes(p)},
               work);
}

template <class T>
void bias_gradient(Context& context, const BackwardWork& work) {
  const BackwardProblem& p = work.p;
  const std::int64_t count = bias_gradient_count(p);
  if (count == 0) return;
  cuda::launch(
      context, "attention bias gradient", bias_gradient_kernel<T>,
      {.blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads), .threads = kThreads},
      work);
}

template <class T>
void backward(Context& context, const BackwardProblem& p) {
  const bool packed = p.query_offsets != nullptr;
  const std::int64_t batches = packed ? 1 : p.batch;
  BackwardWork work;
  work.p = p;
  auto* const delta = static_cast<float*>(detail::ContextAccess::workspace(
      context, static_cast<std::int64_t>(sizeof(float)) * row_count(p)));
  work.delta = delta;
  work.query_tiles = pieces(p.queries, p.batch, packed, kRows);
  work.key_tiles = pieces(p.keys, p.batch, packed, kRows);
  attention_delta(context, p, delta);
  attention_sink_gradient(context, p, delta);
  const std::int64_t bytes = backward_bytes(p);
  if (row_count(p) > 0) {
    cuda::allow_shared(context, query_gradient_kernel<T>);
    cuda::launch(context, "attention query gradient", query_gradient_kernel<T>,
                 {.blocks = blocks_for(batches * p.query_heads, work.query_tiles),
                  .threads = kThreads,
                  .shared_bytes = bytes},
                 work);
  }
  if (batches * p.keys > 0) {
    cuda::allow_shared(context, key_gradient_kernel<T>);
    cuda::launch(context, "attention key gradient", key_gradient_kernel<T>,
                 {.blocks = blocks_for(batches * p.kv_heads, work.key_tiles),
                  .threads = kThreads,
                  .shared_bytes = bytes},
                 work);
  }
  if (p.dbias != nullptr) bias_gradient<T>(context, work);
}

}  // namespace

std::string attention_portable_refuses(const Context& context, const ForwardProblem& p) {
  std::string refusal = refuses(context, forward_bytes(p));
  return refusal.empty() ? refuses_count(p, "sequences * heads", p.queries, p.query_heads)
                         : refusal;
}
std::string attention_backward_portable_refuses(const Context& context, const BackwardProblem& p) {
  std::string refusal = refuses(context, backward_bytes(p));
  if (refusal.empty()) refusal = refuses_count(p, "sequences * heads", p.queries, p.query_heads);
  if (refusal.empty()) refusal = refuses_count(p, "sequences * KV heads", p.keys, p.kv_heads);
  if (refusal.empty()) refusal = attention_delta_refuses(p);
  return refusal.empty() ? refuses_bias_gradient(p) : refusal;
}

void attention_portable(Context& context, const ForwardProblem& p) {
  if (p.dtype == DType::f32) {
    forward<float>(context, p);
  } else if (p.dtype == DType::bf16) {
    forward<Bf16>(context, p);
  } else {
    forward<F16>(context, p);
  }
}

void attention_backward_portable(Context& context, const BackwardProblem& p) {
  if (p.dtype == DType::f32) {
    backward<float>(context, p);
  } else if (p.dtype == DType::bf16) {
    backward<Bf16>(context, p);
  } else {
    backward<F16>(context, p);
  }
}

}  // namespace touchstone::dense_attention
