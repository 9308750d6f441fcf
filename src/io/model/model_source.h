// Files beside a model and the layout of its tensors, for loading and conversion.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "io/model/tensor_layout.h"
#include "io/model/tensor_rules.h"

namespace touchstone::inline v0::io {

// The folder itself, or the one that a file lies in.
std::filesystem::path model_folder(const std::filesystem::path& path);

// The template in the text of a tokenizer_config.json: one, or of a list the one named "default".
std::optional<std::string> chat_template_of_config(const std::string& name, std::string_view text);

RowLayout layout_of(const TensorRule& rule, const ModelDescription& description,
                    const WeightFormat& format, std::int64_t stored_rows, std::int64_t columns);

}  // namespace touchstone::inline v0::io
