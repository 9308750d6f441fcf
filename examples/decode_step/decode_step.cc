// Decodes forty tokens of three sequences, attention only: the example in
// docs/ops/cached_attention.md, word for word.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <vector>

int main() {
  using namespace touchstone;
  using namespace touchstone::cache;
  // Two layers of 32 query heads on 8 KV heads of 128; int8 keys and values.
  constexpr QuantFormat kInt8{.dtype = DType::i8, .group_size = 32};
  const Layout layout{
      {{.layers = 2, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .k = kInt8, .v = kInt8}}};
  Context ctx;  // the CPU, all cores
  KvCache cache(ctx, {.layout = layout, .pool_pages = pool_pages_for(layout, 64, 3)});
  CacheViewBuilder builder(cache);
  std::vector<SequenceId> rows{cache.create(), cache.create(), cache.create()};

  Tensor k = Tensor::empty({3, 8, 128}, DType::bf16), v = Tensor::empty({3, 8, 128}, DType::bf16);
  Tensor q = Tensor::empty({3, 32, 128}, DType::bf16);
  Tensor output = Tensor::empty({3, 32, 128}, DType::f32);
  const std::int64_t offsets[] = {0, 1, 2, 3};  // one query token for each row
  for (int step = 0; step < 40; ++step) {
    cache.reserve(rows, 1);
    const CacheView& view = builder.build(ctx, rows);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      for (Tensor* x : {&k, &v, &q}) {  // what the layer's projections would give
        std::ranges::generate(x->values<Bf16>(),
                              [n = step]() mutable { return Bf16(n++ % 5 - 2.0); });
      }
      kv_append(ctx, {.cache = view, .layer = layer, .k = k, .v = v});
      cached_attention(ctx, {.q = q,
                             .query_offsets = make_view(offsets, {4}),
                             .cache = view,
                             .layer = layer,
                             .output = output,
                             .include_reserved = true});  // the token of this step too
    }
    cache.commit(rows, 1);
  }
  std::cout << output.values<float>().front() << '\n';
}
// [snippet]
