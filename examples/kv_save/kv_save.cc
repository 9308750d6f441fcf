// Sequences of a KV cache moved to host memory and back, and saved to a file and restored.
// [snippet]
#include <touchstone/touchstone.h>

#include <filesystem>
#include <iostream>
#include <vector>

int main() {
  using namespace touchstone::cache;
  const Layout layout{{{.layers = 2, .kv_heads = 8, .k_dim = 128, .v_dim = 128}}};
  touchstone::Context context;  // the CPU, all cores
  KvCache cache(context, {.layout = layout, .pool_pages = {64}});
  // Beside a cache on a GPU: a context on the CPU, and .page_locked = true.
  KvCache host(context, {.layout = layout, .pool_pages = {256}});

  const SequenceId chat = cache.create();
  cache.reserve(chat, 500);
  // ... a kernel writes keys and values ...
  cache.commit(chat, 500);
  std::vector<SequenceId> ids{chat, cache.fork(chat)};

  ids = move_sequences(cache, ids, host);  // all or nothing; the shared pages are shared there too
  std::cout << cache.statistics().groups[0].free << " pages free, "
            << host.statistics().groups[0].used << " in the host tier\n";
  ids = move_sequences(host, ids, cache);

  const auto file = std::filesystem::temp_directory_path() / "touchstone_example.kv";
  save(cache, ids, file);
  for (const SequenceId id : ids) cache.release(id);
  ids = restore(cache, file);  // in this process or another one
  std::cout << cache.length(ids[1]) << " tokens again, from " << std::filesystem::file_size(file)
            << " bytes\n";
  std::filesystem::remove(file);
}
// [snippet]
