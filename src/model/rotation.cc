#include "model/rotation.h"

#include <fmt/format.h>

#include <algorithm>

#include "touchstone/core/error.h"
#include "touchstone/ops/rope.h"

namespace touchstone::inline v0::model {

std::int64_t longest_sequence(const io::ModelDescription& description) {
  std::int64_t length = description.context;
  for (const io::RopeDescription* rope :
       {&description.rope, description.local_rope ? &*description.local_rope : nullptr}) {
    if (rope == nullptr || rope->scaling != io::RopeScaling::dynamic) continue;
    if (rope->original_context > 0) length = std::min(length, rope->original_context);
  }
  return length;
}

Rotation make_rotation(const io::RopeDescription& rope, std::int64_t max_length, Device device) {
  if (rope.dims == 0) return {};
  RopeScaling scaling;
  if (rope.scaling == io::RopeScaling::linear) {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = rope.factor;
  } else if (rope.scaling == io::RopeScaling::yarn) {
    scaling = {.kind = RopeScaling::Kind::yarn,
               .factor = rope.factor,
               .original_length = static_cast<double>(rope.original_context),
               .beta_fast = rope.beta_fast,
               .beta_slow = rope.beta_slow,
               .attention_factor = rope.attention_factor};
  }
  RopeFrequencies frequencies = rope_frequencies(rope.dims, rope.theta, scaling);
  Rotation rotation;
  if (rope.scaling == io::RopeScaling::yarn || rope.scaling == io::RopeScaling::longrope) {
    rotation.scale = rope.attention_factor;
  }
  const bool far = rope.scaling == io::RopeScaling::longrope && max_length > rope.original_context;
  const std::vector<float>& factors = far ? rope.long_factors : rope.factors;
  if (!factors.empty() && factors.size() != frequencies.values.size()) {
    throw InvalidArgument(fmt::format("model: rope factors: expected {}, got {}",
                                      frequencies.values.size(), factors.size()));
  }
  for (std::size_t i = 0; i < factors.size(); ++i) {
    frequencies.values[i] /= static_cast<double>(factors[i]);
  }
  const auto count = static_cast<std::int64_t>(frequencies.values.size());
  Tensor values = Tensor::empty({count}, DType::f64);
  std::ranges::copy(frequencies.values, values.values<double>().begin());
  rotation.frequencies = device.is_cuda() ? values.to(device) : std::move(values);
  return rotation;
}

}  // namespace touchstone::inline v0::model
