#include "ops/kv_append/kv_append_test_support.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/cuda_runtime.h"
#include "spec/attention/kv_append.h"
#include "tests/support/guarded_call.h"

namespace touchstone::inline v0::cache {
namespace {

using test::Guarded;

constexpr std::byte kPattern{0xa5};

KvCacheOptions options_of(const AppendProblem& p) {
  std::int64_t pages = 0;
  for (std::size_t i = 0; i < p.added.size(); ++i) {
    pages += pages_for_tokens(
        {.layers = 1, .kv_heads = 1, .k_dim = 1, .v_dim = 1, .page_tokens = p.group.page_tokens},
        p.committed[i] + p.added[i]);
  }
  return {.layout = {{p.group}}, .pool_pages = {pages + 1}};
}

// [tokens, heads, dim], laid out as a matrix of one row per token.
Guarded tokens_tensor(const AppendProblem& p, int part, std::int64_t tokens, std::int64_t dim) {
  const std::int64_t cols = p.group.kv_heads * dim;
  std::vector<double> values(static_cast<std::size_t>(tokens * cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = p.value(part, static_cast<std::int64_t>(i));
  }
  return {test::test_device(), part == 0 ? p.k_dtype : p.v_dtype, {tokens, cols}, values, p.layout};
}

ConstTensorView by_heads(ConstTensorView view, std::int64_t heads) {
  const std::int64_t dim = view.shape[1] / heads;
  view.rank = 3;
  view.shape = {view.shape[0], heads, dim};
  view.stride = {view.stride[0], dim, 1};
  return view;
}

Guarded index_tensor(const std::vector<std::int64_t>& values, DType dtype) {
  const std::vector<double> numbers(values.begin(), values.end());
  return {test::test_device(), dtype, {std::ssize(values)}, numbers};
}

std::string describe(const QuantFormat& format) {
  std::string text(format_name(format.dtype));
  if (!is_quantized(format.dtype)) return text;
  text += " g" + std::to_string(format.group_size) + (format.asymmetric ? " asymmetric " : " ");
  return text + std::string(touchstone::name_of(format.scale_dtype));
}

}  // namespace

std::string AppendProblem::describe() const {
  return "K " + cache::describe(group.k) + (group.rotate_keys ? " rotated" : "") + " from " +
         std::string(touchstone::name_of(k_dtype)) + ", V " +
         (group.k_is_v ? "in K" : cache::describe(group.v)) + ", " +
         std::to_string(group.kv_heads) + " heads of " + std::to_string(group.k_dim) + " and " +
         std::to_string(group.v_dim) + ", pages of " + std::to_string(group.page_tokens);
}

AppendRun::AppendRun(const AppendProblem& p)
    : problem(p), cache(make_cache(options_of(p), test::test_device())), builder(cache) {
  for (std::size_t i = 0; i < p.added.size(); ++i) {
    ids.push_back(cache.create());
    cache.reserve(ids[i], p.committed[i]);
    cache.commit(ids[i], p.committed[i]);
    cache.reserve(ids[i], p.added[i]);
    for (std::int64_t n = 0; n < p.added[i]; ++n) {
      rows.push_back(static_cast<std::int64_t>(i));
      positions.push_back(p.committed[i] + n);
    }
  }
  if (p.shuffled) {
    std::vector<std::size_t> order(rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const test::Random random(5);
    std::ranges::sort(order, {},
                      [&](std::size_t t) { return random.bits(static_cast<std::int64_t>(t)); });
    std::vector<std::int64_t> new_rows;
    std::vector<std::int64_t> new_positions;
    for (const std::size_t t : order) {
      new_rows.push_back(rows[t]);
      new_positions.push_back(positions[t]);
    }
    rows = new_rows;
    positions = new_positions;
  }
  const std::int64_t tokens = std::ssize(rows);
  k = tokens_tensor(p, 0, tokens, p.group.k_dim);
  if (!p.group.k_is_v) v = tokens_tensor(p, 1, tokens, p.group.v_dim);
  rows_tensor = index_tensor(rows, DType::i32);
  positions_tensor = index_tensor(positions, DType::i64);

  expected.assign(static_cast<std::size_t>(state_of(cache).memory(0).bytes()), kPattern);
  const std::vector<double> keys = k.values();
  const std::vector<double> all_values = v.values();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto token = static_cast<std::size_t>(t);
    const PageTable& table =
        state_of(cache).sequence(ids[static_cast<std::size_t>(rows[token])]).groups[0];
    const std::int64_t page_tokens = p.group.page_tokens;
    const auto index = static_cast<std::size_t>(positions[token] / page_tokens);
    std::byte* page =
        expected.data() + table.pages[index].index * state_of(cache).geometry(0).page_bytes;
    for (std::int64_t head = 0; head < p.group.kv_heads; ++head) {
      const auto vector = [&](const std::vector<double>& from, std::int64_t dim) {
        const auto first = from.begin() + (t * p.group.kv_heads + head) * dim;
        return std::vector<double>(first, first + dim);
      };
      for (const spec::StoredBytes& part : spec::stored_vectors(
               p.group, p.layer, head, positions[token] % page_tokens, vector(keys, p.group.k_dim),
               v.defined() ? vector(all_values, p.group.v_dim) : std::vector<double>())) {
        std::ranges::copy(part.bytes, page + part.offset);
      }
    }
  }
}

KvAppendArgs AppendRun::args(Context& context) {
  KvAppendArgs result{.cache = builder.build(context, ids),
                      .layer = problem.layer,
                      .k = by_heads(k, problem.group.kv_heads),
                      .rows = rows_tensor,
                      .positions = positions_tensor};
  if (v.defined()) result.v = by_heads(v, problem.group.kv_heads);
  return result;
}

std::vector<std::string> AppendRun::accepting() {
  test::Runner context({.device = test::test_device(), .threads = 1});
  return test::accepting_names("kv_append", explain(context, args(context)));
}

void AppendRun::fill_pool() {
  write_bytes(cache.device(), state_of(cache).memory_data(0),
              std::vector<std::byte>(expected.size(), kPattern));
}

std::vector<std::byte> AppendRun::pool_bytes() const {
  return read_bytes(cache.device(), state_of(cache).memory(0).data(), expected.size());
}

void AppendRun::run(test::Runner& context) {
  fill_pool();
  test::run_guarded(context, "kv_append", {&k, &v, &rows_tensor, &positions_tensor}, {},
                    [&] { kv_append(context, context.with(args(context))); });
  const std::vector<std::byte> actual = pool_bytes();
  const auto [wrong, right] = std::ranges::mismatch(actual, expected);
  EXPECT_EQ(wrong, actual.end()) << "byte " << wrong - actual.begin() << " of the pool (pages of "
                                 << state_of(cache).geometry(0).page_bytes << ", layers of "
                                 << state_of(cache).geometry(0).layer_bytes << "): expected "
                                 << static_cast<int>(*right) << ", got "
                                 << static_cast<int>(*wrong);
}

void check_append(const AppendProblem& problem) {
  SCOPED_TRACE(problem.describe());
  AppendRun run(problem);
  test::for_each_runner(run.accepting(), [&](test::Runner& context) { run.run(context); });
}

}  // namespace touchstone::inline v0::cache
