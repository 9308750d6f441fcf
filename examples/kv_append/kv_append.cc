// Prompts of two sequences appended as one chunk, quantized to int8: the example in
// docs/ops/kv_append.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <cstdint>
#include <iostream>
#include <vector>

int main() {
  using namespace touchstone;
  using namespace touchstone::cache;
  constexpr QuantFormat kInt8{.dtype = DType::i8, .group_size = 32};
  const Layout layout{
      {{.layers = 2, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .k = kInt8, .v = kInt8}}};
  Context ctx;  // the CPU, all cores
  KvCache cache(ctx, {.layout = layout, .pool_pages = {16}});
  CacheViewBuilder builder(cache);
  const std::vector<SequenceId> ids{cache.create(), cache.create()};
  cache.reserve(ids[0], 3);
  cache.reserve(ids[1], 2);

  // Five tokens: three of row 0, then two of row 1.
  const std::int32_t rows[] = {0, 0, 0, 1, 1};
  const std::int64_t positions[] = {0, 1, 2, 0, 1};
  const Tensor k = Tensor::zeros({5, 8, 128}, DType::bf16);
  const Tensor v = Tensor::zeros({5, 8, 128}, DType::bf16);
  const CacheView& view = builder.build(ctx, ids);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    kv_append(ctx, {.cache = view,
                    .layer = layer,
                    .k = k,
                    .v = v,
                    .rows = make_view(rows, {5}),
                    .positions = make_view(positions, {5})});
  }
  cache.commit(ids[0], 3);
  cache.commit(ids[1], 2);
  std::cout << cache.length(ids[0]) << " and " << cache.length(ids[1]) << " tokens\n";
}
// [snippet]
