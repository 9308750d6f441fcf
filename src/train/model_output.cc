// Weights from a model file, and the files of the trained model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/copy.h"
#include "core/index.h"
#include "io/mapped_file.h"
#include "io/model/tensor_rules.h"
#include "touchstone/core/error.h"
#include "touchstone/io/write_tensors.h"
#include "train/trainer_state.h"

namespace touchstone::inline v0::train {
namespace {

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

}  // namespace

std::string hugging_face_name(io::ModelFamily family, std::string_view prefix,
                              const std::string& name) {
  const io::TensorRules rules = io::tensor_rules(family, io::Container::safetensors, prefix);
  for (const io::TensorRule& rule : rules.global) {
    if (rule.parts.size() == 1 && rule.parts[0] == name) return rule.stored;
  }
  const std::size_t dot = name.find('.', 4);
  const std::string layer = name.substr(4, dot - 4);
  for (const io::TensorRule& rule : rules.layer) {
    if (rule.parts.size() == 1 && "blk." + layer + "." + rule.parts[0] == name) {
      return fmt::format(fmt::runtime(rules.layer_prefix), layer) + rule.stored;
    }
  }
  throw InvalidArgument(fmt::format("train: no name for {} in safetensors", name));
}

void Trainer::copy_weights(const io::ModelFile& file) {
  State& s = *state_;
  Parameters& p = s.trainee->parameters();
  std::set<std::string, std::less<>> unread;
  for (const io::WeightInfo& info : file.weights()) unread.insert(info.name);
  Tensor host = Tensor::zeros({p.elements()}, p.options().master);
  for (const Parameter& parameter : p.list()) {
    if (unread.erase(parameter.name) == 0) {
      throw InvalidArgument(fmt::format("train: from: the model has no {}", parameter.name));
    }
    const io::Weight weight = file.load(parameter.name);
    if (weight.shape != parameter.shape) {
      throw InvalidArgument(fmt::format("train: from: {}: expected {}, got {}", parameter.name,
                                        shape_string(parameter.shape), shape_string(weight.shape)));
    }
    std::vector<float> values(at(elements_of(parameter.shape)));
    decode_weights(*weight.format, weight.data, values);
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
      throw InvalidArgument(
          fmt::format("train: from: {} of the model holds NaN or infinity", parameter.name));
    }
    if (host.dtype() == DType::f64) {
      std::copy(values.begin(), values.end(), host.values<double>().data() + parameter.offset);
    } else {
      std::copy(values.begin(), values.end(), host.values<float>().data() + parameter.offset);
    }
  }
  if (!unread.empty()) {
    throw InvalidArgument(
        fmt::format("train: from: {} of the model has no place here", *unread.begin()));
  }
  const StreamLocation here{s.context.device(), s.context.stream()};
  queue_copy(here, p.weights().data, {}, host.data(), host.bytes());
  if (p.averaged()) queue_copy(here, p.average().data, {}, host.data(), host.bytes());
  wait_for(here);
}

void Trainer::write_model(const std::filesystem::path& folder,
                          std::string_view tokenizer_json) const {
  State& s = *state_;
  Parameters& p = s.trainee->parameters();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(fmt::format("{}: {}", folder.string(), error.message()));
  p.prepare(s.context, p.averaged());
  std::vector<io::OutputTensor> tensors;
  for (const Parameter& parameter : p.list()) {
    ConstTensorView view;
    if (parameter.matrix) {
      view = p.compute({parameter.offset, parameter.shape[0], parameter.shape[1]});
    } else {
      view = p.vector(parameter.offset, parameter.shape[0]);
    }
    tensors.push_back({.name = s.trainee->stored_name(parameter.name),
                       .type = std::string(name_of(view.dtype)),
                       .shape = parameter.shape,
                       .data = [&s, view](std::vector<std::byte>& scratch) {
                         ConstTensorView bytes = view;
                         bytes.rank = 1;
                         bytes.shape = {view.elements() * size_of(view.dtype)};
                         bytes.stride = {1};
                         scratch = download<std::byte>(s.context, bytes);
                         return std::span<const std::byte>(scratch);
                       }});
  }
  for (const char* const name : {"model.safetensors", "config.json", "tokenizer.json"}) {
    remove_unfinished(folder / name);
  }
  io::write_safetensors(folder / "model.safetensors", tensors, {.durable = true});
  const DType type = p.options().compute;
  const char* const torch_dtype = type == DType::bf16  ? "bfloat16"
                                  : type == DType::f16 ? "float16"
                                  : type == DType::f64 ? "float64"
                                                       : "float32";
  io::write_text_file(folder / "config.json", s.trainee->config_json(torch_dtype), true);
  if (!tokenizer_json.empty()) io::write_text_file(folder / "tokenizer.json", tokenizer_json, true);
}

}  // namespace touchstone::inline v0::train
