#include "touchstone/ops/kv_append.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/checks.h"
#include "core/implementation.h"
#include "core/index.h"
#include "ops/kv_append/kv_append_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache {
namespace {

constexpr char kName[] = "kv_append";

constexpr Implementation<KvAppendProblem> kImplementations[] = {
    {"simd", DeviceKind::cpu, nullptr, append_simd},
    {"plain", DeviceKind::cpu, nullptr, append_plain},
    {"copy", DeviceKind::cuda, append_copy_refuses, append_copy},
    {"paired", DeviceKind::cuda, append_paired_refuses, append_paired},
    {"registers", DeviceKind::cuda, append_registers_refuses, append_registers},
    {"portable", DeviceKind::cuda, append_portable_refuses, append_portable},
};

void check_index(const Checks& checks, const char* name, std::int64_t index, std::int64_t count) {
  if (index >= 0 && index < count) return;
  checks.fail(name, "0 to " + std::to_string(count - 1), std::to_string(index));
}

// [tokens, heads, dim] with the numbers of a token contiguous. The stride from token to token.
std::int64_t token_stride(const char* op, const Checks& checks, const Argument& a,
                          std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
  checks.present(a);
  checks.dtype(a, {DType::f32, DType::bf16, DType::f16});
  const std::int64_t shape[] = {tokens, heads, dim};
  checks.shape(a, shape);
  const bool heads_apart = heads > 1 && a.view.stride[1] != dim;
  if (tokens > 0 && (heads_apart || (dim > 1 && a.view.stride[2] != 1))) {
    checks.fail(a.name, "the numbers of a token side by side",
                "strides " + shape_string({a.view.stride.data(), 3}));
  }
  // What is left is a matrix of one row per token.
  ConstTensorView flat = a.view;
  flat.rank = 2;
  flat.shape[1] = checked_mul(heads, dim, op);
  flat.stride[1] = 1;
  return checks.rows({a.name, flat}, false).stride;
}

KvAppendPart part_of(const Argument& a, std::int64_t stride, std::int64_t dim,
                     const QuantFormat& format, std::int64_t values_at, std::int64_t scales_at) {
  return {.from = a.view.data,
          .dtype = a.view.dtype,
          .stride = stride,
          .dim = dim,
          .format = format,
          .values_at = values_at,
          .scales_at = scales_at,
          .value_bytes = value_bytes(format, dim),
          .scale_bytes = scale_bytes(format, dim)};
}

void check_view(const Checks& checks, const Context& context, const CacheView& view) {
  if (view.device != context.device()) {
    checks.fail("cache", "a view on " + name_of(context.device()), name_of(view.device));
  }
  if (std::ssize(view.lengths) != view.rows || std::ssize(view.reserved) != view.rows) {
    checks.fail("cache", "lengths of " + std::to_string(view.rows) + " rows",
                std::to_string(std::min(view.lengths.size(), view.reserved.size())));
  }
}

void check_rows(const Checks& checks, const char* slots, const KvAppendArgs& args,
                std::int64_t tokens) {
  const Argument rows{"rows", args.rows};
  const Argument positions{slots, args.positions};
  if (!args.rows.defined() && !args.positions.defined()) {
    if (tokens == args.cache.rows) return;
    checks.fail("k", "one token for each of " + std::to_string(args.cache.rows) + " rows",
                std::to_string(tokens));
  }
  const std::int64_t shape[] = {tokens};
  for (const auto& [argument, dtype] : {std::pair{rows, DType::i32}, {positions, DType::i64}}) {
    checks.present(argument);
    checks.dtype(argument, {dtype});
    checks.shape(argument, shape);
    checks.contiguous(argument);
  }
}

// Shapes and types; the slots of tokens are checked by check_slots.
KvAppendProblem checked_shapes(const char* op, const char* slots, const Context& context,
                               const KvAppendArgs& args) {
  const Checks checks(op, context);
  check_view(checks, context, args.cache);
  check_index(checks, "layer_group", args.layer_group, std::ssize(args.cache.groups));
  const GroupView& group = args.cache.groups[at(args.layer_group)];
  const LayerGroup& layers = group.layer_group;
  check_index(checks, "layer", args.layer, layers.layers);
  if (std::ssize(group.page_table) != checked_mul(args.cache.rows, group.table_stride, op)) {
    checks.fail("cache", "a page table of rows * table_stride entries",
                std::to_string(group.page_table.size()));
  }
  const Argument k{"k", args.k};
  const Argument v{"v", args.v};
  checks.present(k);
  const std::int64_t tokens = args.k.rank > 0 ? args.k.shape[0] : 0;

  KvAppendProblem p{.tokens = tokens,
                    .view_rows = args.cache.rows,
                    .rows = static_cast<const std::int32_t*>(args.rows.data),
                    .positions = static_cast<const std::int64_t*>(args.positions.data),
                    .lengths = args.cache.lengths.data(),
                    .reserved = args.cache.reserved.data(),
                    .page_table = group.page_table.data(),
                    .table_stride = group.table_stride,
                    .pages = group.pages,
                    .memory = group.memory,
                    .page_bytes = group.geometry.page_bytes,
                    .page_tokens = layers.page_tokens,
                    .kv_heads = layers.kv_heads,
                    .part = {}};
  const std::int64_t layer_at = args.layer * group.geometry.layer_bytes;
  const std::int64_t k_stride = token_stride(op, checks, k, tokens, layers.kv_heads, layers.k_dim);
  p.part[0] = part_of(k, k_stride, layers.k_dim, layers.k, layer_at + group.geometry.k_values,
                      layer_at + group.geometry.k_scales);
  p.part[0].rotated = layers.rotate_keys;
  if (!layers.k_is_v) {
    const std::int64_t v_stride =
        token_stride(op, checks, v, tokens, layers.kv_heads, layers.v_dim);
    p.part[1] = part_of(v, v_stride, layers.v_dim, layers.v, layer_at + group.geometry.v_values,
                        layer_at + group.geometry.v_scales);
  } else if (args.v.defined()) {
    checks.fail("v", "none, since v is stored in k", "a tensor");
  }
  check_rows(checks, slots, args, tokens);
  const std::int64_t pages_shape[] = {group.pages, group.geometry.page_bytes};
  const Argument pages{"cache", make_view(static_cast<const void*>(group.memory), pages_shape,
                                          DType::u8, context.device())};
  for (const Argument& a : {k, v, Argument{"rows", args.rows}, Argument{slots, args.positions}}) {
    checks.disjoint(pages, a, false);
  }
  return p;
}

// On the CPU: every token has a slot of its own, or is skipped.
void check_slots(const Checks& checks, const char* slots, const KvAppendProblem& p) {
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  bool ascending = true;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const std::int64_t row = p.rows == nullptr ? t : p.rows[t];
    if (row == -1) continue;
    const std::string token = " of token " + std::to_string(t);
    if (row < -1 || row >= p.view_rows) {
      checks.fail("rows", "-1 to " + std::to_string(p.view_rows - 1) + token, std::to_string(row));
    }
    const std::int64_t position = p.positions == nullptr ? p.lengths[row] : p.positions[t];
    if (p.slot_of(t).page < 0) {
      checks.fail(slots,
                  "one of the reserved [" + std::to_string(p.lengths[row]) + ", " +
                      std::to_string(p.reserved[row]) + ")" + token,
                  std::to_string(position));
    }
    if (p.rows == nullptr) continue;
    const std::pair slot{row, position};
    ascending = ascending && (taken.empty() || taken.back() < slot);
    taken.push_back(slot);
  }
  if (ascending) return;
  std::ranges::sort(taken);
  const auto twice = std::ranges::adjacent_find(taken);
  if (twice == taken.end()) return;
  checks.fail(slots, "a slot for each token",
              "position " + std::to_string(twice->second) + " of row " +
                  std::to_string(twice->first) + " twice");
}

KvAppendProblem checked(const Context& context, const KvAppendArgs& args) {
  return checked_append(kName, "positions", context, args);
}

}  // namespace

KvAppendProblem checked_append(const char* op, const char* slots, const Context& context,
                               const KvAppendArgs& args) {
  const KvAppendProblem p = checked_shapes(op, slots, context, args);
  if (!context.device().is_cuda()) check_slots(Checks(op, context), slots, p);
  return p;
}

}  // namespace touchstone::inline v0::cache

namespace touchstone::inline v0 {

void kv_append(Context& context, const KvAppendArgs& args) {
  const cache::KvAppendProblem p = cache::checked(context, args);
  if (p.tokens == 0) return;
  run_first<cache::KvAppendProblem>(cache::kName, cache::kImplementations, context, p,
                                    args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const KvAppendArgs& args) {
  return report_implementations<cache::KvAppendProblem>(cache::kImplementations, context,
                                                        cache::checked(context, args));
}

}  // namespace touchstone::inline v0
