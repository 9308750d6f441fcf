// Descriptions of models from the two kinds of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "touchstone/io/model_description.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {

inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxHeadSize = 4096;
inline constexpr std::size_t kMaxConfigBytes = 16 << 20;
inline constexpr std::int64_t kMaxContext = std::int64_t{1} << 40;

// config.json as text, generation_config.json too or empty. Biases and the head follow from the
// tensors of the file, which ModelFile adds.
ModelDescription describe_hugging_face(std::string_view config, std::string_view generation);
// GGUF metadata, and the tensors of rotation factors where the file has them.
ModelDescription describe_gguf(const TensorFile& file);

// The last checks that both need: ranges, divisors.
void check_description(const std::string& file, const ModelDescription& description);

// The shortest decimal number that rounds to the f32 nearest to x: 1e-5 for what GGUF keeps of 1e-5. Both
// readers pass what GGUF stores as f32 through it, so that their descriptions are equal.
double decimal_of_f32(double x);

// The divisors of frequencies of Llama 3: 1 for short waves, `factor` for long ones.
std::vector<float> llama3_factors(const RopeDescription& rope, double low_factor,
                                  double high_factor);

}  // namespace touchstone::inline v0::io
