#include "cache/view/device_view.h"
#include "cuda/launch.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache {
namespace {

constexpr int kThreads = 256;

struct Entries {
  const TableEntry* entries;
  std::int64_t count;
  std::int32_t* table;
};

__global__ void __launch_bounds__(kThreads) write_entries(Entries p) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < p.count) p.table[p.entries[i].index] = p.entries[i].page;
}

}  // namespace

void write_table_entries(Context& context, const TableEntry* entries, std::int64_t count,
                         std::int32_t* table) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::launch(context, "write_table_entries", write_entries,
               {.blocks = static_cast<unsigned>(ceil_div(count, kThreads)), .threads = kThreads},
               Entries{entries, count, table});
}

}  // namespace touchstone::inline v0::cache
