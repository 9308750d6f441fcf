// Three answers to one prompt share its pages: the example of docs/kv_cache.md, word for word.
// [snippet]
#include <touchstone/touchstone.h>

#include <cstdint>
#include <iostream>
#include <span>
#include <vector>

int main() {
  using namespace touchstone;
  using namespace touchstone::cache;
  // Llama-3-8B: 32 layers, 8 KV heads of 128, bf16. Here with int8 keys and four layers only.
  const Layout layout{{{.layers = 4,
                        .kv_heads = 8,
                        .k_dim = 128,
                        .v_dim = 128,
                        .k = {.dtype = DType::i8, .group_size = 32},
                        .page_tokens = 16}}};
  Context context;  // the CPU, all cores
  KvCache cache(context, {.layout = layout, .pool_pages = pool_pages_for(layout, 256, 4)});

  const std::vector<std::int32_t> prompt(100, 7);
  // All but the last token, which has to run for its logits. Finds nothing the first time.
  const PrefixHit start = cache.open_prefix(std::span(prompt).first(99));
  std::vector<SequenceId> answers{start.sequence};
  cache.reserve(start.sequence, 100 - start.tokens);  // OutOfMemory here changes nothing
  // ... a kernel writes keys and values of the new tokens ...
  cache.commit(start.sequence, 100 - start.tokens);
  cache.insert_prefix(start.sequence, prompt);
  for (int i = 0; i < 2; ++i) answers.push_back(cache.fork(start.sequence));

  CacheViewBuilder builder(cache);
  const Tensor k = Tensor::zeros({3, 8, 128}, DType::bf16);  // from the model, layer by layer
  const Tensor v = Tensor::zeros({3, 8, 128}, DType::bf16);
  for (int step = 0; step < 50; ++step) {
    cache.reserve(answers, 1);                                // one token for all, or for none
    const CacheView& view = builder.build(context, answers);  // what the kernels get
    for (int layer = 0; layer < 4; ++layer) {
      kv_append(context, {.cache = view, .layer = layer, .k = k, .v = v});
    }
    cache.commit(answers, 1);
  }
  std::cout << cache.statistics().groups[0].used << " pages in use, "
            << 3 * pages_for_tokens(layout.groups[0], 150) << " without sharing\n";

  for (const SequenceId id : answers) cache.release(id);
  std::cout << cache.open_prefix(prompt).tokens << " tokens of the prompt are still there\n";
}
// [snippet]
