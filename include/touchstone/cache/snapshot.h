// Sequences of a cache in a file, and back, in the same process or another one.
//
//   save(cache, ids, "chat.kv");
//   std::vector<SequenceId> ids = restore(cache, "chat.kv");   // the same tokens in fresh pages
//
// Saved are committed tokens: keys, values and scales as they are stored, lengths, and which pages
// windows have given up. A page that several of the sequences share is in the file once, and shared
// again when restored. What was never written, or was taken back by truncate, is zeros in the file.
// Token ids and the prefix index are not part of it; insert_prefix makes a restored sequence
// findable.
//
// The file describes the layout in full; a cache of another layout refuses it and names the field.
// Every byte is covered by a checksum. They find damage, not malice: a file made on purpose can
// hold any keys and values, and nothing worse. docs/kv_cache.md draws the format.
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

// Takes the next bytes. What it throws ends save() and comes out of it.
using ByteSink = std::function<void(std::span<const std::byte>)>;
// Fills the whole span with the next bytes, or throws; that ends restore() and comes out of it.
using ByteSource = std::function<void(std::span<std::byte>)>;

// What save() will write, to the byte.
TOUCHSTONE_API std::int64_t snapshot_bytes(const KvCache& cache, std::span<const SequenceId> ids);

// InvalidArgument for a stale id.
TOUCHSTONE_API void save(const KvCache& cache, std::span<const SequenceId> ids,
                         const ByteSink& sink);
// Written under another name in the same directory and renamed when whole: a reader sees the old
// file or the new one. It is not forced to the disk; a file that a crash cut short is refused.
// FileError when the system refuses.
TOUCHSTONE_API void save(const KvCache& cache, std::span<const SequenceId> ids,
                         const std::filesystem::path& path);

// The sequences in the order of saving. Everything is verified before the cache changes; cached
// pages are evicted where free ones do not suffice. Throws, and the cache is as it was:
//   CorruptData      not a snapshot, cut short, or damaged
//   Unsupported      of another version or byte order
//   InvalidArgument  of another layout
//   OutOfMemory      more pages than are free or cached
//   FileError        the system refuses
// DeviceError, of a cache on a GPU, may come after evictions.
TOUCHSTONE_API std::vector<SequenceId> restore(KvCache& cache, const ByteSource& source);
TOUCHSTONE_API std::vector<SequenceId> restore(KvCache& cache, const std::filesystem::path& path);

}  // namespace touchstone::inline v0::cache
