// Random weights for a model of any shape, without a file: to measure how fast it runs.
//
//   const io::ModelDescription shape = model::shape_by_name("llama3-8b");
//   model::Model model(context, shape, model::random_weights(context, shape, "bf16", 1), {...});
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/io/model_file.h"

namespace touchstone::inline v0::model {

// The shape of a known model: "llama3-8b" (Llama 3 8B), "llama-100m" (100 million parameters, most
// of them in the layers), "smollm2-135m". InvalidArgument lists the names.
TOUCHSTONE_API io::ModelDescription shape_by_name(std::string_view name);
TOUCHSTONE_API std::span<const std::string_view> shape_names();

// The weights of io::weights_of(description) on the device of the context: matrices uniform in
// +-sqrt(3 / columns), so that the size of activations stays that of their input; norms 1, biases
// 0. The values repeat from matrix to matrix, each beginning at another of about 4 million.
// `format`: f32, bf16, f16, or a format of weight_format.h that can be written. The same bits for
// the same description, format and seed.
TOUCHSTONE_API std::vector<io::UploadedWeight> random_weights(
    Context& context, const io::ModelDescription& description, std::string_view format,
    std::int64_t seed);

}  // namespace touchstone::inline v0::model
