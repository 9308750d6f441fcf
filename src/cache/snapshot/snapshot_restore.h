// restore() for a source whose size is known.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "touchstone/cache/snapshot.h"

namespace touchstone::inline v0::cache {

// CorruptData before anything is read but the header when the snapshot does not have that size.
std::vector<SequenceId> restore_sized(KvCache& cache, const ByteSource& source,
                                      std::optional<std::int64_t> bytes);

}  // namespace touchstone::inline v0::cache
