// The operations of fuzzers and the mutation test: everything a program would do with such a file.
// Every touchstone::Error is caught; anything else is a fault.
#pragma once

#include <cstddef>
#include <span>

namespace touchstone::inline v0::io {

// Whether the bytes were accepted.
bool exercise_tensor_file(std::span<const std::byte> bytes);
// The vocabulary of a GGUF file, with which texts are encoded and decoded.
bool exercise_vocabulary(std::span<const std::byte> bytes);
bool exercise_config(std::span<const std::byte> bytes);
// The other texts of a folder: generation_config.json, an index of shards, tokenizer_config.json.
bool exercise_side_text(std::span<const std::byte> bytes);

}  // namespace touchstone::inline v0::io
