// Sequences of a cache in a file, and back, in the same process or another one.
//
//   save(cache, ids, "chat.kv");
//   std::vector<SequenceId> ids = restore(cache, "chat.kv");   // the same tokens in fresh pages
//
// Saved are committed tokens: keys, values and scales as they are stored, lengths, and which pages
// were freed because they lie before the sliding window. A page that several of the sequences share
// is in the file once, and shared again when restored. Slots that were never written, or were
// dropped by truncate, are zeros in the file. Token ids and the prefix index are not part of it:
// call insert_prefix to add a restored sequence to the index.
//
// The file describes the layout in full; a cache of another layout refuses it and names the field.
// Every byte is covered by a checksum. Checksums detect damage, not malice: a crafted file can hold
// any keys and values, but cannot corrupt memory. docs/kv_cache.md draws the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0::cache {

// Consumes the next bytes. An exception that it throws propagates out of save().
using ByteSink = std::function<void(std::span<const std::byte>)>;
// Fills the whole span with the next bytes, or throws; the exception propagates out of restore().
using ByteSource = std::function<void(std::span<std::byte>)>;

// The size of what save() writes.
TOUCHSTONE_API std::int64_t snapshot_bytes(const KvCache& cache, std::span<const SequenceId> ids);

// InvalidArgument for a stale id.
TOUCHSTONE_API void save(const KvCache& cache, std::span<const SequenceId> ids,
                         const ByteSink& sink);
// Written under another name in the same directory and renamed when complete: a reader opens the
// old file or the new one. Not flushed to the disk; restore() refuses a file that a crash cut
// short. FileError when it cannot be written.
TOUCHSTONE_API void save(const KvCache& cache, std::span<const SequenceId> ids,
                         const std::filesystem::path& path);

// The sequences in the order of saving. Everything is verified before the cache changes; cached
// pages are evicted where free ones do not suffice. Errors leave the cache as it was:
//   CorruptData      not a snapshot, cut short, or damaged
//   Unsupported      of another version or byte order
//   InvalidArgument  of another layout
//   OutOfMemory      more pages than are free or cached
//   FileError        the file cannot be read
// DeviceError, of a cache on a GPU, may be thrown after evictions.
TOUCHSTONE_API std::vector<SequenceId> restore(KvCache& cache, const ByteSource& source);
TOUCHSTONE_API std::vector<SequenceId> restore(KvCache& cache, const std::filesystem::path& path);

}  // namespace touchstone::inline v0::cache
