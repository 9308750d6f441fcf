// The file of save() and restore():
//
//   header      SnapshotHeader
//   groups      for each group: its GroupDescription, then its number of pages; checksum
//   sequences   for each sequence: its length, then for each group first_kept and the numbers of
//               its pages, 32 bits each, kNoPage where the window has passed; checksum
//   pages       of all groups, one after the other, in the order of their numbers
//   checksums   of all pages; checksum
//
// Numbers are 64-bit unless said otherwise, in the byte order that the header shows. A table is
// written whole, gaps too, so that reading a file never allocates much more than the file holds.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "touchstone/cache/layout.h"

namespace touchstone::inline v0::cache {

// As in PNG: a byte beyond ASCII and line ends, which a transfer as text would damage.
inline constexpr std::array<std::uint8_t, 8> kSnapshotMagic = {0x89, 'T',  'S',  'K',
                                                               'V',  '\r', '\n', 0x1a};
inline constexpr std::uint32_t kSnapshotVersion = 1;
inline constexpr std::uint32_t kByteOrderMark = 0x0a0b0c0d;

struct SnapshotHeader {
  std::array<std::uint8_t, 8> magic = kSnapshotMagic;
  std::uint32_t byte_order = kByteOrderMark;
  std::uint32_t version = kSnapshotVersion;
  std::int64_t file_bytes = 0;
  std::int64_t groups = 0;
  std::int64_t sequences = 0;
  std::int64_t sequence_bytes = 0;  // of that section, without its checksum
  std::uint64_t unused = 0;
  std::uint64_t checksum = 0;  // of what stands before it
};
static_assert(sizeof(SnapshotHeader) == 64);

// The values of kGroupFieldNames: everything that decides what the bytes of a page mean, and which
// pages a sequence has. Groups that differ only in what is not looked at are described alike.
inline constexpr std::array kGroupFieldNames = {
    "layers",       "kv_heads",      "k_dim",   "v_dim",        "k.dtype",      "k.group_size",
    "k.asymmetric", "k.scale_dtype", "v.dtype", "v.group_size", "v.asymmetric", "v.scale_dtype",
    "page_tokens",  "window",        "sinks",   "k_is_v",       "rotate_keys",  "page_bytes"};
using GroupDescription = std::array<std::int64_t, kGroupFieldNames.size()>;

GroupDescription describe(const LayerGroup& group);

// InvalidArgument, naming the field, unless pages of the described groups are pages of `layout`.
void check_same_layout(const char* what, const Layout& layout,
                       std::span<const GroupDescription> got);

// Bytes per group in the section of groups: a description and a number of pages.
inline constexpr std::int64_t kGroupRecordBytes = sizeof(GroupDescription) + 8;

}  // namespace touchstone::inline v0::cache
