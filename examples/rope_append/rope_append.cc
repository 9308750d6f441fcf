// The step between the projections of a layer and its attention: the example in
// docs/ops/rope_append.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <cstdint>
#include <iostream>

int main() {
  using namespace touchstone;
  constexpr int kTokens = 3, kHeads = 8, kKvHeads = 2, kDim = 64;
  const cache::Layout layout{{{.layers = 1, .kv_heads = kKvHeads, .k_dim = kDim, .v_dim = kDim}}};
  Context ctx;  // the CPU, all cores
  cache::KvCache cache(ctx, {.layout = layout, .pool_pages = {4}});
  cache::CacheViewBuilder builder(cache);
  const cache::SequenceId id = cache.create();
  cache.reserve(id, kTokens);

  // One tensor holds q, k and v of each token: the output of one product.
  constexpr std::int64_t kQ = kHeads * kDim, kKv = kKvHeads * kDim, kAll = kQ + 2 * kKv;
  Tensor qkv = Tensor::empty({kTokens, kAll}, DType::f32);
  std::ranges::fill(qkv.values<float>(), 1.0F);
  float* const first = qkv.values<float>().data();
  const auto part = [&](std::int64_t offset, std::int64_t heads) {
    TensorView view = make_view(first + offset, {kTokens, heads, kDim});
    view.stride[0] = kAll;
    return view;
  };
  Tensor frequencies = Tensor::empty({kDim / 2}, DType::f64);
  std::ranges::copy(rope_frequencies(kDim, 10000).values, frequencies.values<double>().begin());
  const std::int32_t rows[] = {0, 0, 0};
  const std::int64_t positions[] = {0, 1, 2};
  rope_append(ctx, {.cache = builder.build(ctx, {&id, 1}),
                    .q = part(0, kHeads),
                    .k = part(kQ, kKvHeads),
                    .v = part(kQ + kKv, kKvHeads),
                    .y = part(0, kHeads),  // in place
                    .positions = make_view(positions, {kTokens}),
                    .frequencies = frequencies,
                    .rows = make_view(rows, {kTokens}),
                    .slots = make_view(positions, {kTokens})});
  cache.commit(id, kTokens);
  std::cout << cache.length(id) << " tokens, q[2][0][0] = " << first[2 * kAll] << '\n';
}
// [snippet]
