#include "touchstone/ops/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/implementation.h"
#include "ops/attention_common/attention_checks.h"
#include "ops/attention_paged/paged_problem.h"
#include "ops/attention_paged/paged_visible_range.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace {

using attention_common::AttentionChecks;
using paged_attention::PagedAttentionProblem;
using paged_attention::Tokens;
using paged_attention::VisibleRange;

constexpr char kName[] = "cached_attention";

constexpr Implementation<PagedAttentionProblem> kImplementations[] = {
    {"simd", DeviceKind::cpu, paged_attention::cached_attention_simd_refuses,
     paged_attention::cached_attention_simd},
    {"plain", DeviceKind::cpu, nullptr, paged_attention::cached_attention_plain},
    {"wgmma_prefill", DeviceKind::cuda, paged_attention::cached_attention_wgmma_prefill_refuses,
     paged_attention::cached_attention_wgmma_prefill},
    {"tensor_core_cta", DeviceKind::cuda, paged_attention::cached_attention_tensor_core_cta_refuses,
     paged_attention::cached_attention_tensor_core_cta},
    {"tensor_core", DeviceKind::cuda, paged_attention::cached_attention_tensor_core_refuses,
     paged_attention::cached_attention_tensor_core},
    {"mla", DeviceKind::cuda, paged_attention::cached_attention_mla_refuses,
     paged_attention::cached_attention_mla},
    {"simt", DeviceKind::cuda, paged_attention::cached_attention_simt_refuses,
     paged_attention::cached_attention_simt},
    {"portable", DeviceKind::cuda, paged_attention::cached_attention_portable_refuses,
     paged_attention::cached_attention_portable},
};

// The arguments with their names, for the checks.
struct Arguments {
  explicit Arguments(const CachedAttentionArgs& args)
      : q{"q", args.q},
        query_offsets{"query_offsets", args.query_offsets},
        positions{"positions", args.positions},
        tree{"tree", args.tree},
        tree_starts{"tree_starts", args.tree_starts},
        sink_logits{"sink_logits", args.sink_logits},
        output{"output", args.output},
        log_sum_exp{"log_sum_exp", args.log_sum_exp} {}

  Argument q, query_offsets, positions, tree, tree_starts, sink_logits;
  Argument output, log_sum_exp;
};

class PagedChecks : public AttentionChecks {
 public:
  explicit PagedChecks(const Context& context) : AttentionChecks(kName, context) {}

  // [N, heads, dim] with the numbers of a head side by side, at any strides. The other strides.
  Tokens<const void*> tokens(const Argument& a, std::span<const std::int64_t> expected,
                             bool writable) const {
    present(a);
    dtype(a, {DType::f32, DType::bf16, DType::f16});
    shape(a, expected);
    dense_last(a, writable);
    return {a.view.data, a.view.stride[0], a.view.stride[1]};
  }

  // An optional contiguous array of a type; its data, or null.
  template <class T>
  const T* array_of(const Argument& a, DType type, std::span<const std::int64_t> expected) const {
    return static_cast<const T*>(array(a, type, expected));
  }
};

void check_index(const Checks& checks, const char* name, std::int64_t index, std::int64_t count) {
  if (index >= 0 && index < count) return;
  checks.fail(name, "0 to " + std::to_string(count - 1), std::to_string(index));
}

// The cache and where in it to read.
void check_cache(const Checks& checks, const Context& context, const CachedAttentionArgs& args,
                 PagedAttentionProblem& p) {
  const cache::CacheView& view = args.cache;
  if (view.groups.empty()) checks.fail("cache", "a view with layer groups", "none");
  if (view.device != context.device()) {
    checks.fail("cache", "a view on " + name_of(context.device()), name_of(view.device));
  }
  check_index(checks, "layer_group", args.layer_group, std::ssize(view.groups));
  p.pages = view.groups[static_cast<std::size_t>(args.layer_group)];
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

void check_tensors(const PagedChecks& checks, const Arguments& a, const CachedAttentionArgs& args,
                   PagedAttentionProblem& p) {
  checks.present(a.q);
  if (a.q.view.rank != 3) {
    checks.fail("q", "rank 3", shape_string(a.q.view.sizes()));
  }
  p.queries = a.q.view.shape[0];
  p.query_heads = a.q.view.shape[1];
  if (p.query_heads < 1 || p.query_heads % p.layers.kv_heads != 0) {
    checks.fail("q", "a multiple of " + std::to_string(p.layers.kv_heads) + " heads",
                std::to_string(p.query_heads));
  }
  p.heads_per_kv = p.query_heads / p.layers.kv_heads;
  const std::int64_t query_shape[] = {p.queries, p.query_heads, p.layers.k_dim};
  const std::int64_t output_shape[] = {p.queries, p.query_heads, p.layers.v_dim};
  p.q = checks.tokens(a.q, query_shape, false);
  p.q_dtype = a.q.view.dtype;
  const Tokens<const void*> output = checks.tokens(a.output, output_shape, true);
  p.output_dtype = a.output.view.dtype;
  p.output = {args.output.data, output.token_stride, output.head_stride};

  const std::int64_t per_query[] = {p.queries};
  const std::int64_t per_row[] = {p.rows};
  const std::int64_t offsets[] = {p.rows + 1};
  const std::int64_t per_head[] = {p.query_heads};
  checks.present(a.query_offsets);
  p.query_offsets = checks.array_of<std::int64_t>(a.query_offsets, DType::i64, offsets);
  p.positions = checks.array_of<std::int64_t>(a.positions, DType::i64, per_query);
  p.sink_logits = checks.array_of<float>(a.sink_logits, DType::f32, per_head);
  p.tree_starts = checks.array_of<std::int64_t>(a.tree_starts, DType::i64, per_row);
  if (a.tree.view.defined()) {
    p.tree_words = a.tree.view.rank == 2 ? a.tree.view.shape[1] : 1;
    const std::int64_t words[] = {p.queries, p.tree_words};
    p.tree = checks.array_of<std::uint64_t>(a.tree, DType::i64, words);
    if (p.tree_words < 1) checks.fail("tree", "at least one word per query", "none");
  } else if (p.tree_starts != nullptr) {
    checks.fail("tree_starts", "none without a tree", "a tensor");
  }
  if (a.log_sum_exp.view.defined()) {
    checks.present(a.log_sum_exp);
    checks.dtype(a.log_sum_exp, {DType::f32});
    checks.shape(a.log_sum_exp, std::span(query_shape).first(2));
    checks.strides(a.log_sum_exp, true);
    p.log_sum_exp = {static_cast<float*>(args.log_sum_exp.data), args.log_sum_exp.stride[0],
                     args.log_sum_exp.stride[1]};
  }
}

void check_numbers(const Checks& checks, const CachedAttentionArgs& args,
                   PagedAttentionProblem& p) {
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

void check_overlap(const PagedChecks& checks, const Arguments& a) {
  const Argument outputs[] = {a.output, a.log_sum_exp};
  const Argument inputs[] = {a.q,    a.query_offsets, a.positions,
                             a.tree, a.tree_starts,   a.sink_logits};
  checks.no_overlap(outputs, inputs);
}

// Every page that holds a slot of [begin, end) must be there.
void check_pages(const Checks& checks, const PagedAttentionProblem& p, std::int64_t row,
                 std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
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

void check_row(const Checks& checks, const PagedAttentionProblem& p, std::int64_t row) {
  const std::string name = " of row " + std::to_string(row);
  const std::int64_t length = p.lengths[row];
  const std::int64_t first = p.query_offsets[row];
  const std::int64_t queries = p.query_offsets[row + 1] - first;
  const std::int64_t room = p.pages.table_stride * p.pages.page_tokens;
  if (length < 0 || length > room) {
    checks.fail("cache", "a length" + name + " of 0 to " + std::to_string(room),
                std::to_string(length));
  }
  if (p.tree_starts != nullptr && (p.tree_starts[row] < 0 || p.tree_starts[row] > length)) {
    checks.fail("tree_starts", "a position" + name + " from 0 to " + std::to_string(length),
                std::to_string(p.tree_starts[row]));
  }
  // Neighboring queries attend to almost the same: pages of [begin, end) were checked already.
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  for (std::int64_t query = first; query < first + queries; ++query) {
    const VisibleRange visible = paged_attention::visible_range(p, row, query);
    sinks = std::max(sinks, visible.sinks);
    if (visible.begin < begin || visible.begin > end) begin = end = visible.begin;
    check_pages(checks, p, row, end, visible.end);
    end = std::max(end, visible.end);
    for (std::int64_t t = visible.end; t < paged_attention::end_of(visible); ++t) {
      if (paged_attention::attends(visible, t)) check_pages(checks, p, row, t, t + 1);
    }
  }
  check_pages(checks, p, row, 0, sinks);
}

// What the arrays hold. Only on the CPU, where looking at them costs nothing.
void check_contents(const PagedChecks& checks, const PagedAttentionProblem& p) {
  checks.offsets("query_offsets", p.query_offsets, p.rows, p.queries);
  for (std::int64_t row = 0; row < p.rows; ++row) check_row(checks, p, row);
}

PagedAttentionProblem checked(const Context& context, const CachedAttentionArgs& args) {
  const Arguments a(args);
  const PagedChecks checks(context);
  PagedAttentionProblem p;
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
  const PagedAttentionProblem problem = checked(context, args);
  if (problem.queries == 0) return;
  run_first<PagedAttentionProblem>(kName, kImplementations, context, problem, args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const CachedAttentionArgs& args) {
  return report_implementations<PagedAttentionProblem>(kImplementations, context,
                                                       checked(context, args));
}

}  // namespace touchstone::inline v0
