// Random models for tests: folders with config.json and model.safetensors, whose weights both sides of
// a comparison draw from the same generator (tests/peers/model_golden_torch_peer.py).
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "json/json.h"
#include "tests/support/runners.h"
#include "touchstone/io/write_tensors.h"
#include "touchstone/model/model.h"

namespace touchstone::model::test {

// splitmix64.
inline std::uint64_t mix(std::uint64_t x) {
  std::uint64_t z = x * 0x9E3779B97F4A7C15U + 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

inline std::vector<float> random_values(std::uint64_t tensor, std::int64_t count, double scale,
                                        double shift) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float u = (static_cast<float>(mix(i + (tensor << 32)) >> 40) - 8388608.0F) / 8388608.0F;
    values[i] = u * static_cast<float>(scale) + static_cast<float>(shift);
  }
  return values;
}

inline std::vector<std::int32_t> random_tokens(std::uint64_t length, std::uint64_t vocabulary) {
  std::vector<std::int32_t> tokens(length);
  for (std::size_t i = 0; i < length; ++i) {
    tokens[i] = static_cast<std::int32_t>(mix(i + (length << 40)) % vocabulary);
  }
  return tokens;
}

// The config and the tensors {"name", "shape", "scale", "shift"} of a golden file, in f32.
inline void write_model(const std::filesystem::path& path, const Json& config,
                        const Json& tensors) {
  std::ofstream(path / "config.json") << config.dump();
  std::vector<io::OutputTensor> list;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Json& tensor = tensors[i];
    const auto shape = tensor["shape"].get<std::vector<std::int64_t>>();
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    const auto scale = tensor["scale"].get<double>();
    const auto shift = tensor["shift"].get<double>();
    list.push_back({.name = tensor["name"].get<std::string>(),
                    .type = "f32",
                    .shape = shape,
                    .data = [=](std::vector<std::byte>& scratch) -> std::span<const std::byte> {
                      const std::vector<float> values = random_values(i, count, scale, shift);
                      const auto bytes = std::as_bytes(std::span(values));
                      scratch.assign(bytes.begin(), bytes.end());
                      return scratch;
                    }});
  }
  io::write_safetensors(path / "model.safetensors", list);
}

// A folder of its own, removed at the end.
class ModelFolder {
 public:
  explicit ModelFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("touchstone_model_" + std::to_string(::getpid()) + "_" + name)) {
    std::filesystem::create_directories(path_);
  }
  ~ModelFolder() { std::filesystem::remove_all(path_); }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

  void write(const Json& config, const Json& tensors) const { write_model(path_, config, tensors); }

 private:
  std::filesystem::path path_;
};

inline Json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return Json::parse(
      std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
}

// Where `make real-model` brings SmolLM2-135M-Instruct.
inline std::filesystem::path real_model() {
  const auto folder = []() -> std::filesystem::path {
    if (const char* models = std::getenv("TOUCHSTONE_MODELS")) return models;
    if (const char* cache = std::getenv("XDG_CACHE_HOME")) {
      return std::filesystem::path(cache) / "touchstone/models";
    }
    const char* home = std::getenv("HOME");
    return std::filesystem::path(home == nullptr ? "" : home) / ".cache/touchstone/models";
  };
  return folder() / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

// Of the device that the tests run on.
inline Context device_context(int threads = 0) {
  return Context({.device = ::touchstone::test::test_device(), .threads = threads});
}

// How far a logit may be from the exact one, as a share of the largest of its row. The dtypes round
// every activation and every weight product: a random walk through the roundings of the layers, eight
// per layer and the head, each of u of the largest, and so many standard deviations of it. f32: what
// is left between two libraries, which add in other orders.
inline double logit_tolerance(DType compute, std::size_t layers, double deviations = 2) {
  if (compute == DType::f32) return 1e-4;
  const double u = compute == DType::bf16 ? 0x1p-8 : 0x1p-11;
  return deviations * u * std::sqrt(static_cast<double>(8 * layers + 2));
}

inline std::vector<float> host_values(Context& context, const Tensor& values) {
  context.synchronize();
  const Tensor copy = values.to(Device::cpu());
  const auto floats = copy.values<float>();
  return {floats.begin(), floats.end()};
}

// Logits of the last of `tokens`, which are committed afterwards, in calls of `chunk` tokens.
inline std::vector<float> last_logits(Context& context, decode::Scorer& scorer,
                                      decode::ScorerSequence sequence,
                                      std::span<const std::int32_t> tokens, std::size_t chunk) {
  Tensor logits = Tensor::empty({1, scorer.shape().vocabulary}, DType::f32, scorer.shape().device);
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    const auto part = tokens.subspan(first, std::min(chunk, tokens.size() - first));
    const auto rows = decode::chain_rows(sequence, scorer.length(sequence), part);
    const std::int32_t last[] = {static_cast<std::int32_t>(part.size()) - 1};
    const bool wanted = first + chunk >= tokens.size();
    scorer.score(context, {.rows = rows,
                           .logit_rows = wanted ? std::span<const std::int32_t>(last)
                                                : std::span<const std::int32_t>(),
                           .logits = wanted ? logits.view() : TensorView{}});
    std::vector<std::int32_t> all(part.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    const decode::KeptRows kept[] = {{sequence, all}};
    scorer.keep(kept);
  }
  return host_values(context, logits);
}

}  // namespace touchstone::model::test
