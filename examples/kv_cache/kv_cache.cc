// Three answers to one prompt share its pages: the example of docs/kv_cache.md, word for word.
// [snippet]
#include <touchstone/touchstone.h>

#include <cstdint>
#include <iostream>
#include <vector>

int main() {
  using namespace touchstone::cache;
  using touchstone::DType, touchstone::Tensor;
  // Llama-3-8B: 32 layers, 8 KV heads of 128, bf16. Here with int8 keys and four layers only.
  const Layout layout{{{.layers = 4,
                        .kv_heads = 8,
                        .k_dim = 128,
                        .v_dim = 128,
                        .k = {.dtype = DType::i8, .group_size = 32},
                        .page_tokens = 16}}};
  KvCache cache({.layout = layout, .pool_pages = pool_pages_for(layout, 256, 4)});

  const std::vector<std::int32_t> prompt(100, 7);
  PrefixHit start = cache.open_prefix(prompt);  // finds nothing the first time
  std::vector<SequenceId> answers{start.sequence};
  cache.reserve(start.sequence, 100 - start.tokens);  // OutOfMemory here changes nothing
  // ... a kernel writes keys and values of the new tokens ...
  cache.commit(start.sequence, 100 - start.tokens);
  cache.insert_prefix(start.sequence, prompt);
  for (int i = 0; i < 2; ++i) answers.push_back(cache.fork(start.sequence));

  touchstone::Context context;
  CacheViewBuilder builder(cache);
  const Tensor k = Tensor::zeros({3, 8, 128}, DType::bf16);  // from the model, layer by layer
  const Tensor v = Tensor::zeros({3, 8, 128}, DType::bf16);
  for (int step = 0; step < 50; ++step) {
    cache.reserve(answers, 1);                                // one token for all, or for none
    const CacheView& view = builder.build(context, answers);  // what the kernels get
    for (int layer = 0; layer < 4; ++layer) {
      append(context, {.cache = view, .layer = layer, .k = k, .v = v});
    }
    cache.commit(answers, 1);
  }
  std::cout << cache.pool(0).used_pages() << " pages in use, "
            << 3 * pages_for_tokens(layout.groups[0], 150) << " without sharing\n";

  for (const SequenceId id : answers) cache.release(id);
  std::cout << cache.open_prefix(prompt).tokens << " tokens of the prompt are still there\n";
}
// [snippet]
