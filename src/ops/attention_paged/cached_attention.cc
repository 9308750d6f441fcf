#include "touchstone/ops/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/checks.h"
#include "core/implementation.h"
#include "ops/attention_paged/paged_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone {
namespace {

using attend::CachedAttention;
using attend::Sight;

constexpr char kName[] = "cached_attention";

constexpr Implementation<CachedAttention> kImplementations[] = {
    {"simd", DeviceKind::cpu, attend::cached_attention_simd_refuses, attend::cached_attention_simd},
    {"plain", DeviceKind::cpu, nullptr, attend::cached_attention_plain},
    {"tensor", DeviceKind::cuda, attend::cached_attention_tensor_refuses,
     attend::cached_attention_tensor},
    {"latent", DeviceKind::cuda, attend::cached_attention_latent_refuses,
     attend::cached_attention_latent},
    {"registers", DeviceKind::cuda, attend::cached_attention_registers_refuses,
     attend::cached_attention_registers},
    {"portable", DeviceKind::cuda, attend::cached_attention_portable_refuses,
     attend::cached_attention_portable},
};

// The arguments with their names, as the checks want them.
struct Arguments {
  explicit Arguments(const CachedAttentionArgs& args)
      : query{"query", args.query},
        query_starts{"query_starts", args.query_starts},
        positions{"positions", args.positions},
        tree{"tree", args.tree},
        tree_starts{"tree_starts", args.tree_starts},
        sink_logits{"sink_logits", args.sink_logits},
        output{"output", args.output},
        log_sum_exp{"log_sum_exp", args.log_sum_exp} {}

  Argument query, query_starts, positions, tree, tree_starts, sink_logits;
  Argument output, log_sum_exp;
};

class AttentionChecks : public Checks {
 public:
  explicit AttentionChecks(const Context& context) : Checks(kName, context) {}

  // [N, heads, dim] with the numbers of a token side by side. Returns the stride between tokens.
  std::int64_t tokens(const Argument& a, std::span<const std::int64_t> expected,
                      bool writable) const {
    present(a);
    dtype(a, {DType::f32, DType::bf16, DType::f16});
    shape(a, expected);
    return rows(flattened(a), writable).stride;
  }

  // The same elements as [N, heads * dim].
  Argument flattened(const Argument& a) const {
    Argument flat = a;
    if (a.view.rank != 3) return flat;
    const std::int64_t heads = a.view.shape[1];
    const std::int64_t dim = a.view.shape[2];
    if (a.view.elements() > 0 && heads > 1 && a.view.stride[1] != dim) {
      fail(a.name, "the heads of a token side by side",
           "strides " + shape_string({a.view.stride.data(), 3}));
    }
    flat.view.rank = 2;
    flat.view.shape[1] = checked_mul(heads, dim, a.name);
    flat.view.stride[1] = a.view.stride[2];
    return flat;
  }

  // An optional contiguous array; its data, or null.
  template <class T>
  const T* array(const Argument& a, DType type, std::span<const std::int64_t> expected) const {
    if (!a.view.defined()) return nullptr;
    present(a);
    dtype(a, {type});
    shape(a, expected);
    contiguous(a);
    return static_cast<const T*>(a.view.data);
  }
};

void check_index(const Checks& checks, const char* name, std::int64_t index, std::int64_t count) {
  if (index >= 0 && index < count) return;
  checks.fail(name, "0 to " + std::to_string(count - 1), std::to_string(index));
}

// The cache and where in it to read.
void check_cache(const Checks& checks, const Context& context, const CachedAttentionArgs& args,
                 CachedAttention& p) {
  const cache::CacheView& view = args.cache;
  if (view.groups.empty()) checks.fail("cache", "a view with layer groups", "none");
  if (view.device != context.device()) {
    checks.fail("cache", "a view on " + name_of(context.device()), name_of(view.device));
  }
  check_index(checks, "group", args.group, std::ssize(view.groups));
  p.pages = view.groups[static_cast<std::size_t>(args.group)];
  p.layers = p.pages.layer_group;
  p.layer = args.layer;
  check_index(checks, "layer", args.layer, p.layers.layers);
  const std::span<const std::int64_t> lengths =
      args.include_reserved ? view.reserved : view.lengths;
  if (std::ssize(lengths) != view.rows ||
      std::ssize(p.pages.page_table) != view.rows * p.pages.table_stride) {
    checks.fail("cache", "lengths and page table of " + std::to_string(view.rows) + " rows",
                std::to_string(lengths.size()) + " and " +
                    std::to_string(p.pages.page_table.size()) + " elements");
  }
  if (p.pages.memory == nullptr) checks.fail("cache", "memory", "a null pointer");
  p.rows = view.rows;
  p.lengths = lengths.data();
}

void check_tensors(const AttentionChecks& checks, const Arguments& a,
                   const CachedAttentionArgs& args, CachedAttention& p) {
  checks.present(a.query);
  if (a.query.view.rank != 3) {
    checks.fail("query", "rank 3", shape_string(a.query.view.sizes()));
  }
  p.queries = a.query.view.shape[0];
  p.query_heads = a.query.view.shape[1];
  if (p.query_heads < 1 || p.query_heads % p.layers.kv_heads != 0) {
    checks.fail("query", "a multiple of " + std::to_string(p.layers.kv_heads) + " heads",
                std::to_string(p.query_heads));
  }
  p.heads_per_kv = p.query_heads / p.layers.kv_heads;
  const std::int64_t query_shape[] = {p.queries, p.query_heads, p.layers.k_dim};
  const std::int64_t output_shape[] = {p.queries, p.query_heads, p.layers.v_dim};
  p.query_stride = checks.tokens(a.query, query_shape, false);
  p.query_dtype = a.query.view.dtype;
  p.query = a.query.view.data;
  p.output_stride = checks.tokens(a.output, output_shape, true);
  p.output_dtype = a.output.view.dtype;
  p.output = args.output.data;

  const std::int64_t per_query[] = {p.queries};
  const std::int64_t per_row[] = {p.rows};
  const std::int64_t starts[] = {p.rows + 1};
  const std::int64_t per_head[] = {p.query_heads};
  checks.present(a.query_starts);
  p.query_starts = checks.array<std::int64_t>(a.query_starts, DType::i64, starts);
  p.positions = checks.array<std::int64_t>(a.positions, DType::i64, per_query);
  p.sink_logits = checks.array<float>(a.sink_logits, DType::f32, per_head);
  p.tree_starts = checks.array<std::int64_t>(a.tree_starts, DType::i64, per_row);
  if (a.tree.view.defined()) {
    p.tree_words = a.tree.view.rank == 2 ? a.tree.view.shape[1] : 1;
    const std::int64_t words[] = {p.queries, p.tree_words};
    p.tree = checks.array<std::uint64_t>(a.tree, DType::i64, words);
    if (p.tree_words < 1) checks.fail("tree", "at least one word per query", "none");
  } else if (p.tree_starts != nullptr) {
    checks.fail("tree_starts", "none without a tree", "a tensor");
  }
  p.log_sum_exp = static_cast<float*>(args.log_sum_exp.data);
  checks.array<float>(a.log_sum_exp, DType::f32, std::span(query_shape).first(2));
}

void check_numbers(const Checks& checks, const CachedAttentionArgs& args, CachedAttention& p) {
  const double natural = 1 / std::sqrt(static_cast<double>(p.layers.k_dim));
  p.scale = static_cast<float>(args.scale == 0 ? natural : args.scale);
  if (!std::isfinite(p.scale)) {
    checks.fail("scale", "a finite number of f32", std::to_string(args.scale));
  }
  checks.finite_at_least("soft_cap", args.soft_cap, 0);
  p.soft_cap = static_cast<float>(args.soft_cap);
  if (!std::isfinite(p.soft_cap) || (args.soft_cap > 0 && p.soft_cap == 0)) {
    checks.fail("soft_cap", "0 or a finite number of f32", std::to_string(args.soft_cap));
  }
}

void check_overlap(const AttentionChecks& checks, const Arguments& a) {
  const Argument outputs[] = {checks.flattened(a.output), a.log_sum_exp};
  const Argument inputs[] = {checks.flattened(a.query),
                             a.query_starts,
                             a.positions,
                             a.tree,
                             a.tree_starts,
                             a.sink_logits,
                             outputs[1]};
  for (const Argument& input : inputs) checks.disjoint(outputs[0], input, false);
  for (const Argument& input : std::span(inputs).first(6)) {
    checks.disjoint(outputs[1], input, false);
  }
}

// Every page from `begin` to `end`, positions, must be there.
void check_pages(const Checks& checks, const CachedAttention& p, std::int64_t row,
                 std::int64_t begin, std::int64_t end) {
  const std::int64_t page_tokens = p.pages.page_tokens;
  for (std::int64_t page = begin / page_tokens; page * page_tokens < end; ++page) {
    const auto at = static_cast<std::size_t>(row * p.pages.table_stride + page);
    const std::int64_t number = p.pages.page_table[at];
    if (number >= 0 && number < p.pages.pages) continue;
    checks.fail("cache",
                "a page for position " + std::to_string(std::max(begin, page * page_tokens)) +
                    " of row " + std::to_string(row),
                std::to_string(number));
  }
}

void check_row(const Checks& checks, const CachedAttention& p, std::int64_t row) {
  const std::string name = " of row " + std::to_string(row);
  const std::int64_t length = p.lengths[row];
  const std::int64_t first = p.query_starts[row];
  const std::int64_t queries = p.query_starts[row + 1] - first;
  if (queries < 0 || queries > p.queries) {
    checks.fail("query_starts", "ascending numbers up to " + std::to_string(p.queries),
                std::to_string(first) + " and then " + std::to_string(p.query_starts[row + 1]));
  }
  const std::int64_t room = p.pages.table_stride * p.pages.page_tokens;
  if (length < 0 || length > room) {
    checks.fail("cache", "a length" + name + " of 0 to " + std::to_string(room),
                std::to_string(length));
  }
  if (p.tree_starts != nullptr && (p.tree_starts[row] < 0 || p.tree_starts[row] > length)) {
    checks.fail("tree_starts", "a position" + name + " from 0 to " + std::to_string(length),
                std::to_string(p.tree_starts[row]));
  }
  // Neighboring queries see almost the same: pages in [begin, end) were found there already.
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  for (std::int64_t query = first; query < first + queries; ++query) {
    const Sight sight = attend::sight_of(p, row, query);
    sinks = std::max(sinks, sight.sinks);
    if (sight.begin < begin || sight.begin > end) begin = end = sight.begin;
    check_pages(checks, p, row, end, sight.end);
    end = std::max(end, sight.end);
    for (std::int64_t t = sight.end; t < attend::end_of(sight); ++t) {
      if (attend::sees(sight, t)) check_pages(checks, p, row, t, t + 1);
    }
  }
  check_pages(checks, p, row, 0, sinks);
}

// What the arrays hold. Only on the CPU, where looking at them costs nothing.
void check_contents(const Checks& checks, const CachedAttention& p) {
  if (p.query_starts[0] != 0) {
    checks.fail("query_starts", "0 first", std::to_string(p.query_starts[0]));
  }
  if (p.query_starts[p.rows] != p.queries) {
    checks.fail("query_starts", std::to_string(p.queries) + " last",
                std::to_string(p.query_starts[p.rows]));
  }
  for (std::int64_t row = 0; row < p.rows; ++row) check_row(checks, p, row);
}

CachedAttention checked(const Context& context, const CachedAttentionArgs& args) {
  const Arguments a(args);
  const AttentionChecks checks(context);
  CachedAttention p;
  check_cache(checks, context, args, p);
  check_tensors(checks, a, args, p);
  check_numbers(checks, args, p);
  p.causal = args.causal;
  check_overlap(checks, a);
  if (!context.device().is_cuda()) check_contents(checks, p);
  return p;
}

}  // namespace

void cached_attention(Context& context, const CachedAttentionArgs& args) {
  const CachedAttention problem = checked(context, args);
  if (problem.queries == 0) return;
  run_first<CachedAttention>(kName, kImplementations, context, problem, args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const CachedAttentionArgs& args) {
  return report_implementations<CachedAttention>(kImplementations, context, checked(context, args));
}

}  // namespace touchstone
