// GGUF models in several files, NAME-00001-of-00003.gguf: the first holds the metadata, each its
// tensors and the keys split.no, split.count and split.tensors.count.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {

// The files after the first; none where the metadata describes no split. CorruptData where `first`
// is another part or does not have the name of one.
std::vector<std::filesystem::path> further_gguf_parts(const std::filesystem::path& first,
                                                      std::span<const MetadataValue> metadata);
// CorruptData unless the metadata says that the file is part `part` (from 0) of `parts`.
void check_gguf_part(const std::string& file, std::span<const MetadataValue> metadata,
                     std::int64_t part, std::int64_t parts);
// CorruptData unless all parts together hold as many tensors as the first says.
void check_gguf_tensors(const std::string& file, std::span<const MetadataValue> metadata,
                        std::size_t tensors);

// Whether the name is that of a part other than the first.
bool is_further_gguf_part(const std::filesystem::path& path);

}  // namespace touchstone::inline v0::io
