// Small models and batches for the tests of training.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/copy.h"
#include "tests/support/runners.h"
#include "touchstone/core/context.h"
#include "touchstone/core/random.h"
#include "touchstone/core/tensor.h"
#include "touchstone/gradcheck.h"
#include "touchstone/io/model_description.h"
#include "touchstone/train/decoder.h"

namespace touchstone::test {

inline io::ModelDescription small_description(bool qk_norm, bool tied, std::int64_t window = 0) {
  io::ModelDescription d;
  d.family = qk_norm ? io::ModelFamily::qwen3 : io::ModelFamily::llama;
  d.width = 16;
  d.ffn_width = 24;
  d.heads = 4;
  d.kv_heads = 2;
  d.head_size = 8;
  d.vocabulary = 29;
  d.context = 64;
  d.layers.resize(2);
  for (io::LayerDescription& layer : d.layers) layer.window = window;
  d.qk_norm = qk_norm;
  d.tied_head = tied;
  d.rope.dims = d.head_size;
  d.attention_scale = 0.35355339059327376220;  // 1 / sqrt(8)
  return d;
}

// A tensor of these values, by default on the test's device.
template <class T>
Tensor device_tensor(const std::vector<T>& values, Device device = test_device()) {
  Tensor tensor = Tensor::empty({std::ssize(values)}, dtype_of<T>);
  std::copy(values.begin(), values.end(), tensor.values<T>().begin());
  return tensor.to(device);
}

// A batch and the memory behind it.
struct OwnedBatch {
  std::vector<std::int64_t> host_tokens, host_targets, host_positions, host_documents;
  Tensor tokens, targets, positions, offsets, dloss;
  train::Batch view;
  std::int64_t counted = 0;  // tokens with a target
};

// `rows` rows of `length` tokens; with documents cut after every `document` tokens, across rows.
inline OwnedBatch make_batch(std::int64_t rows, std::int64_t length, std::int64_t vocabulary,
                             std::int64_t document = 0, DType wide = DType::f32,
                             Device device = test_device()) {
  constexpr std::int64_t seed = 5;
  OwnedBatch b;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> offsets = {0};
  const std::int64_t n = rows * length;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t in_row = i % length;
    const std::int64_t position = document > 0 ? in_row % document : in_row;
    if (position == 0 && i > 0) offsets.push_back(i);
    const auto draw = [&](std::uint32_t which) {
      return static_cast<std::int64_t>(
          random_words(seed, i, RandomPurpose::shuffle, which).word[0] %
          static_cast<std::uint64_t>(vocabulary));
    };
    b.host_tokens.push_back(draw(0));
    b.host_targets.push_back(i % 7 == 3 ? -100 : draw(1));
    b.counted += b.host_targets.back() >= 0 ? 1 : 0;
    b.host_positions.push_back(position);
    b.host_documents.push_back(std::ssize(offsets));
    tokens.push_back(static_cast<std::int32_t>(b.host_tokens.back()));
  }
  offsets.push_back(n);
  b.tokens = device_tensor(tokens, device);
  b.targets = device_tensor(b.host_targets, device);
  b.positions = device_tensor(b.host_positions, device);
  b.offsets = device_tensor(offsets, device);
  const double share = 1 / static_cast<double>(b.counted);
  b.dloss =
      wide == DType::f64
          ? device_tensor(std::vector<double>(static_cast<std::size_t>(n), share), device)
          : device_tensor(
                std::vector<float>(static_cast<std::size_t>(n), static_cast<float>(share)), device);
  b.view = {.tokens = b.tokens, .targets = b.targets, .positions = b.positions, .rows = rows};
  if (document > 0) b.view.offsets = b.offsets;
  return b;
}

// What a device tensor holds.
template <class T>
std::vector<T> host_values(Context& context, const ConstTensorView& view) {
  std::vector<T> values(static_cast<std::size_t>(view.elements()));
  const StreamLocation here{view.device, context.stream()};
  queue_copy({}, values.data(), here, view.data,
             static_cast<std::int64_t>(values.size() * sizeof(T)));
  wait_for(here);
  return values;
}

// The gradients of a loss in the parameters of a model, in f64, as a problem for gradcheck.
class LossGradients {
 public:
  LossGradients(Context& context, train::Parameters& parameters)
      : weights_(host_values<double>(context, parameters.weights())),
        gradients_(host_values<double>(context, parameters.gradients())) {
    for (const train::Parameter& parameter : parameters.list()) {
      std::size_t count = 1;
      for (const std::int64_t extent : parameter.shape) count *= static_cast<std::size_t>(extent);
      const auto at = static_cast<std::size_t>(parameter.offset);
      index_[parameter.name] = problem_.inputs.size();
      problem_.inputs.push_back({.name = parameter.name,
                                 .shape = parameter.shape,
                                 .value = std::span(weights_).subspan(at, count),
                                 .grad = std::span(gradients_).subspan(at, count)});
    }
    problem_.outputs = {{.name = "loss", .shape = {1}, .cotangent = one_}};
  }
  LossGradients(const LossGradients&) = delete;
  LossGradients& operator=(const LossGradients&) = delete;

  const gradcheck::Problem& problem() const { return problem_; }
  const std::map<std::string, std::size_t>& index() const { return index_; }
  std::span<const double> value(const std::string& name) const {
    return problem_.inputs[index_.at(name)].value;
  }
  // Against dual numbers through loss(weights by name).
  template <class Loss>
  gradcheck::Report check(const Loss& loss, double tolerance) const {
    return gradcheck::check(problem_,
                            [&](const gradcheck::DualSlice& slice) {
                              slice.out[0][0] = loss([&](const std::string& name) {
                                return slice.in[index_.at(name)];
                              });
                            },
                            {.tolerance = tolerance});
  }

 private:
  std::vector<double> weights_;
  std::vector<double> gradients_;
  std::vector<double> one_ = {1};
  gradcheck::Problem problem_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace touchstone::test
