// The SIMD implementation of dense attention above its kernels: tasks, scratch memory, threads.
#include "ops/attention_dense/dense_cpu.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "hwy/cache_control.h"

namespace touchstone::dense_attention {
namespace {

constexpr auto kOwnTokens = static_cast<std::int64_t>(kOwn);

using tuning::kMaxFusedBytes;
using tuning::kSerialWork;

int useful_threads(const Context& context, const DenseProblem& p) {
  const double pairs = static_cast<double>(row_count(p)) * static_cast<double>(p.keys);
  return pairs * static_cast<double>(p.k_dim + p.v_dim) < kSerialWork ? 1 : context.threads();
}

// Calls body(task, its thread's scratch) for every task; threads take the next free one.
template <class Body>
void for_each_task(Context& context, int threads, std::int64_t tasks, float* scratch,
                   std::size_t floats, Body&& body) {
  std::atomic<std::int64_t> next{0};
  detail::ContextAccess::pool(context).run(
      std::min<std::int64_t>(threads, tasks), [&](std::int64_t slot) {
        float* const mine = scratch + static_cast<std::size_t>(slot) * floats;
        for (std::int64_t task = next++; task < tasks; task = next++) body(task, mine);
      });
}

// Query heads of a KV head that go together where a sequence has few queries: K and V are then read
// once for all of them.
std::int64_t heads_together(const DenseProblem& p, const SequenceSpan& span) {
  if (span.queries == 0) return 1;
  return std::clamp<std::int64_t>(kOwnTokens / span.queries, 1, p.heads_per_kv);
}

// All queries. Of causal sequences the last ones come first: they have most to do.
std::vector<QueryBlock> query_blocks(const DenseProblem& p) {
  std::vector<QueryBlock> blocks;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const SequenceSpan span = span_of(p, b);
    const std::int64_t together = heads_together(p, span);
    for (std::int64_t head = 0; head < p.query_heads;) {
      const std::int64_t left = p.heads_per_kv - head % p.heads_per_kv;
      const std::int64_t heads = std::min(together, left);
      for (std::int64_t n = ceil_div(span.queries, kOwnTokens); n-- > 0;) {
        const std::int64_t first = n * kOwnTokens;
        blocks.push_back({b, head, heads, first, std::min(kOwnTokens, span.queries - first)});
      }
      head += heads;
    }
  }
  return blocks;
}

std::vector<KeyBlock> key_blocks(const DenseProblem& p) {
  std::vector<KeyBlock> blocks;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const SequenceSpan span = span_of(p, b);
    for (std::int64_t head = 0; head < p.kv_heads; ++head) {
      for (std::int64_t first = 0; first < span.keys; first += kOwnTokens) {
        blocks.push_back({b, head, first, std::min(kOwnTokens, span.keys - first)});
      }
    }
  }
  return blocks;
}

std::string refuses(const DenseProblem& p) {
  if (p.dropout.threshold > 0) return "dropout of weights";
  return p.dtype == DType::f64 ? "dtype f64, needs f32, bf16 or f16" : "";
}

// dq, and dbias where several heads add to the same: one task does all of them, in order.
void sweep_queries(Context& context, const BackwardProblem& p, int threads, const float* delta,
                   float* scratch, std::size_t floats) {
  if (p.dbias == nullptr) {
    const std::vector<QueryBlock> blocks = query_blocks(p);
    for_each_task(context, threads, std::ssize(blocks), scratch, floats,
                  [&](std::int64_t task, float* mine) {
                    run_query_block(p, blocks[static_cast<std::size_t>(task)], delta, mine);
                  });
    return;
  }
  const std::int64_t units = dbias_units(p);
  std::fill_n(static_cast<float*>(p.dbias), units * p.queries * p.keys, 0.0F);
  const std::int64_t blocks = ceil_div(p.queries, kOwnTokens);
  for_each_task(
      context, threads, units * blocks, scratch, floats, [&](std::int64_t task, float* mine) {
        const DbiasUnit unit = dbias_unit(p, task / blocks);
        const std::int64_t first = task % blocks * kOwnTokens;
        const std::int64_t queries = std::min(kOwnTokens, p.queries - first);
        for (std::int64_t b = 0; b < unit.sequences; ++b) {
          for (std::int64_t h = 0; h < unit.heads; ++h) {
            run_query_block(p, {unit.first_sequence + b, unit.first_head + h, 1, first, queries},
                            delta, mine);
          }
        }
      });
}

// Of one KV head of a sequence, dq in f32.
std::size_t fused_floats(const DenseProblem& p, std::int64_t queries) {
  return static_cast<std::size_t>(p.heads_per_kv * queries) * fused_row_floats(p);
}

std::int64_t longest_queries(const DenseProblem& p) {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) longest = std::max(longest, span_of(p, b).queries);
  return longest;
}

// How dq is made. The bits are the same in all ways, so that it may depend on the threads.
enum class Way {
  by_heads,   // one task does a whole KV head
  in_turns,   // the blocks of keys of a KV head add to its dq one after the other
  by_sweeps,  // in a sweep of its own
};

Way way_of(const BackwardProblem& p, int threads) {
  // These are left to the sweeps: dbias, and tiles of another size.
  if (p.dbias != nullptr || backward_key_tile(p) != kOwn) return Way::by_sweeps;
  const std::size_t longest = fused_floats(p, longest_queries(p)) * sizeof(float);
  const bool many_heads = threads == 1 || p.batch * p.kv_heads >= 2 * std::int64_t{threads};
  if (many_heads && longest <= kMaxFusedBytes) return Way::by_heads;
  // With sinks all wait for the first keys, to which every query attends.
  const std::size_t all = static_cast<std::size_t>(row_count(p)) * fused_row_floats(p);
  const bool fits = all * sizeof(float) <= static_cast<std::size_t>(threads) * kMaxFusedBytes;
  return fits && threads > 1 && p.sinks == 0 ? Way::in_turns : Way::by_sweeps;
}

// All gradients of one KV head and its query heads.
void run_head(const BackwardProblem& p, std::int64_t sequence, std::int64_t kv_head,
              const float* delta, float* dq, float* scratch) {
  const SequenceSpan span = span_of(p, sequence);
  std::fill_n(dq, fused_floats(p, span.queries), 0.0F);
  for (std::int64_t first = 0; first < span.keys; first += kOwnTokens) {
    run_key_block(p, {sequence, kv_head, first, std::min(kOwnTokens, span.keys - first)}, delta,
                  {.dq = dq}, scratch);
  }
  store_fused_queries(p, {sequence, kv_head * p.heads_per_kv, p.heads_per_kv, 0, span.queries}, dq);
}

// The dq of all KV heads, [batch, kv_heads], zero-initialized, with no turn taken yet.
class AllQueries {
 public:
  AllQueries(const BackwardProblem& p, float* dq) : p_(p) {
    const auto step = static_cast<std::int64_t>(tile_tokens(p));
    std::int64_t turns = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      turns += p.query_heads * turns_of(p, span_of(p, b).queries);
    }
    turns_ = std::vector<std::atomic<std::int64_t>>(static_cast<std::size_t>(turns));
    std::atomic<std::int64_t>* turn = turns_.data();
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const SequenceSpan span = span_of(p, b);
      for (std::int64_t kv_head = 0; kv_head < p.kv_heads; ++kv_head) {
        heads_.push_back({dq, turn});
        dq += fused_floats(p, span.queries);
        for (std::int64_t h = 0; h < p.heads_per_kv; ++h) {
          for (std::int64_t at = 0; at < span.queries; at += step) {
            const std::int64_t end = std::min(at + step, span.queries);
            const KeyBlockRange blocks = key_blocks_of(p, span, at, end);
            for (std::int64_t n = turns_of(p, end - at); n-- > 0; ++turn) {
              turn->store(blocks.begin, std::memory_order_relaxed);
            }
            if (blocks.begin < blocks.end) continue;
            // Nobody's turn comes.
            const std::int64_t head = kv_head * p.heads_per_kv + h;
            store_fused_queries(p, {b, head, 1, at, end - at}, heads_.back().dq);
          }
        }
      }
    }
  }

  const FusedQueries& of(std::int64_t sequence, std::int64_t kv_head) const {
    return heads_[static_cast<std::size_t>(sequence * p_.kv_heads + kv_head)];
  }

 private:
  const BackwardProblem& p_;
  std::vector<std::atomic<std::int64_t>> turns_;
  std::vector<FusedQueries> heads_;
};

// All gradients; blocks of keys add to dq in order. Heads go beside each other, so that there are
// fewer to wait for, and the first keys come first: with a causal mask most queries attend to them.
void run_in_turns(Context& context, const BackwardProblem& p, int threads, const float* delta,
                  float* dq, float* scratch, std::size_t floats) {
  const AllQueries all(p, dq);
  std::vector<KeyBlock> keys = key_blocks(p);
  std::ranges::stable_sort(keys, {}, &KeyBlock::first_key);
  for_each_task(context, threads, std::ssize(keys), scratch, floats,
                [&](std::int64_t task, float* mine) {
                  const KeyBlock& block = keys[static_cast<std::size_t>(task)];
                  run_key_block(p, block, delta, all.of(block.sequence, block.kv_head), mine);
                });
}

void run_in_sweeps(Context& context, const BackwardProblem& p, int threads, const float* delta,
                   float* scratch, std::size_t floats) {
  sweep_queries(context, p, threads, delta, scratch, floats);
  const std::vector<KeyBlock> blocks = key_blocks(p);
  for_each_task(context, threads, std::ssize(blocks), scratch, floats,
                [&](std::int64_t task, float* mine) {
                  run_key_block(p, blocks[static_cast<std::size_t>(task)], delta, {}, mine);
                });
}

void sum_sinks(const BackwardProblem& p, const float* delta) {
  for (std::int64_t head = 0; head < p.query_heads; ++head) {
    const auto sink = static_cast<double>(static_cast<const float*>(p.sink_logits)[head]);
    double sum = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const SequenceSpan span = span_of(p, b);
      for (std::int64_t i = 0; i < span.queries; ++i) {
        const std::int64_t row = row_index(p, span, b, head, i);
        const float log_sum_exp = *token_of<float>(p.log_sum_exp, b, head, span.first_query + i);
        if (log_sum_exp == -std::numeric_limits<float>::infinity()) continue;
        sum -= std::exp(sink - static_cast<double>(log_sum_exp)) * static_cast<double>(delta[row]);
      }
    }
    static_cast<float*>(p.dsink_logits)[head] = static_cast<float>(sum);
  }
}

}  // namespace

void wait_for_turn(const std::atomic<std::int64_t>& turn, std::int64_t block) {
  // Whoever's turn it is may have lost its core to another program.
  constexpr int kSpins = 2000;
  for (int spin = 0; turn.load(std::memory_order_acquire) != block; ++spin) {
    spin < kSpins ? hwy::Pause() : std::this_thread::yield();
  }
}

std::string attention_simd_refuses(const Context& /*context*/, const ForwardProblem& p) {
  return refuses(p);
}

void attention_simd(Context& context, const ForwardProblem& p) {
  const std::vector<QueryBlock> blocks = query_blocks(p);
  const int threads = useful_threads(context, p);
  const std::size_t floats = forward_floats(p);
  auto* const scratch = static_cast<float*>(
      detail::ContextAccess::workspace(context, threads * static_cast<std::int64_t>(floats) * 4));
  for_each_task(context, threads, std::ssize(blocks), scratch, floats,
                [&](std::int64_t task, float* mine) {
                  run_forward_block(p, blocks[static_cast<std::size_t>(task)], mine);
                });
}

std::string attention_backward_simd_refuses(const Context& /*context*/, const BackwardProblem& p) {
  return refuses(p);
}

void attention_backward_simd(Context& context, const BackwardProblem& p) {
  const int threads = useful_threads(context, p);
  const Way way = way_of(p, threads);
  // Delta, dq of all heads, and what is a thread's own.
  const std::int64_t rows = ceil_div(row_count(p), 64) * 64;
  const std::size_t shared =
      way == Way::in_turns ? static_cast<std::size_t>(row_count(p)) * fused_row_floats(p) : 0;
  const std::size_t own = backward_floats(p);
  const std::size_t floats = own + (way == Way::by_heads ? fused_floats(p, longest_queries(p)) : 0);
  const std::int64_t bytes =
      (rows + static_cast<std::int64_t>(shared) + threads * static_cast<std::int64_t>(floats)) * 4;
  auto* const delta = static_cast<float*>(detail::ContextAccess::workspace(context, bytes));
  float* const dq = delta + rows;
  float* const scratch = dq + shared;
  {
    const std::vector<QueryBlock> blocks = query_blocks(p);
    for_each_task(context, threads, std::ssize(blocks), scratch, floats,
                  [&](std::int64_t task, float* /*mine*/) {
                    const auto n = static_cast<std::size_t>(task);
                    run_delta_block(p, blocks[n], delta);
                    // And a share of dq, so that threads are called up once less.
                    std::fill(dq + shared * n / blocks.size(),
                              dq + shared * (n + 1) / blocks.size(), 0.0F);
                  });
  }
  switch (way) {
    case Way::by_heads:
      for_each_task(context, threads, p.batch * p.kv_heads, scratch, floats,
                    [&](std::int64_t task, float* mine) {
                      run_head(p, task / p.kv_heads, task % p.kv_heads, delta, mine + own, mine);
                    });
      break;
    case Way::in_turns:
      run_in_turns(context, p, threads, delta, dq, scratch, floats);
      break;
    case Way::by_sweeps:
      run_in_sweeps(context, p, threads, delta, scratch, floats);
      break;
  }
  if (p.dsink_logits != nullptr) sum_sinks(p, delta);
}

}  // namespace touchstone::dense_attention
