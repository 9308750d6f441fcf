#include "touchstone/model/random_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "core/copy.h"
#include "core/index.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"

namespace touchstone::inline v0::model {
namespace {

constexpr std::string_view kNames[] = {"llama3-8b", "llama-100m", "smollm2-135m"};

io::ModelDescription llama_shape(std::string_view name, std::int64_t layers, std::int64_t width,
                                 std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn_width,
                                 std::int64_t vocabulary) {
  io::ModelDescription d;
  d.name = name;
  d.width = width;
  d.ffn_width = ffn_width;
  d.heads = heads;
  d.kv_heads = kv_heads;
  d.head_size = width / heads;
  d.vocabulary = vocabulary;
  d.context = 131072;
  d.layers.resize(at(layers));
  d.rope.dims = d.head_size;
  d.rope.theta = 500000;
  d.attention_scale = 1 / std::sqrt(static_cast<double>(d.head_size));
  return d;
}

// Bytes of a few million random values of one scale, in a format: matrices are slices of it.
class Pattern {
 public:
  Pattern(Context& context, const WeightFormat& format, double scale, std::int64_t seed)
      : here_{context.device(), context.stream()}, block_bytes_(format.block_bytes) {
    // Not a multiple of a row, so that the rows of a matrix differ.
    constexpr std::int64_t kValues = (std::int64_t{1} << 22) + 256 * 37;
    std::vector<float> values(at(kValues));
    for (std::size_t i = 0; i < values.size(); i += 4) {
      const PhiloxWords words =
          random_words(seed, static_cast<std::int64_t>(i / 4), RandomPurpose::initialize);
      for (std::size_t k = 0; k < 4; ++k) {
        const double unit = static_cast<double>(words.word[k]) * 0x1p-31 - 1;
        values[i + k] = static_cast<float>(unit * scale);
      }
    }
    const std::int64_t bytes = kValues / format.block_elements * format.block_bytes;
    Tensor host = Tensor::empty({bytes}, DType::u8);
    encode_weights(format, values, {static_cast<std::byte*>(host.data()), at(bytes)});
    bytes_ = context.device().is_cuda() ? host.to(context.device()) : std::move(host);
  }

  void fill(Tensor& to, std::int64_t begin_block) const {
    const std::int64_t blocks = bytes_.elements() / block_bytes_;
    std::int64_t from = begin_block % blocks * block_bytes_;
    for (std::int64_t done = 0; done < to.bytes();) {
      const std::int64_t part = std::min(to.bytes() - done, bytes_.elements() - from);
      queue_copy(here_, static_cast<std::byte*>(to.data()) + done, here_,
                 static_cast<const std::byte*>(bytes_.data()) + from, part);
      done += part;
      from = 0;
    }
  }

 private:
  StreamLocation here_;
  std::int64_t block_bytes_;
  Tensor bytes_;
};

Tensor constant_vector(Context& context, std::int64_t count, float value) {
  Tensor host = Tensor::empty({count}, DType::f32);
  std::ranges::fill(host.values<float>(), value);
  return context.device().is_cuda() ? host.to(context.device()) : std::move(host);
}

}  // namespace

std::span<const std::string_view> shape_names() { return kNames; }

io::ModelDescription shape_by_name(std::string_view name) {
  if (name == "llama3-8b") return llama_shape(name, 32, 4096, 32, 8, 14336, 128256);
  if (name == "llama-100m") return llama_shape(name, 14, 768, 12, 4, 2048, 8192);
  if (name == "smollm2-135m") {
    io::ModelDescription d = llama_shape(name, 30, 576, 9, 3, 1536, 49152);
    d.tied_head = true;
    d.rope.theta = 100000;
    return d;
  }
  throw InvalidArgument(
      fmt::format("model: shape: expected {}, got '{}'", fmt::join(kNames, ", "), name));
}

std::vector<io::UploadedWeight> random_weights(Context& context,
                                               const io::ModelDescription& description,
                                               std::string_view format, std::int64_t seed) {
  const WeightFormat& stored = weight_format(format);
  std::vector<io::UploadedWeight> weights;
  std::map<std::int64_t, Pattern> patterns;  // by columns
  std::int64_t begin = 0;
  for (const io::WeightInfo& info : io::weights_of(description, stored)) {
    if (info.shape.size() == 1) {
      const float value = info.name.ends_with(".bias") ? 0.0F : 1.0F;
      weights.push_back({info, constant_vector(context, info.shape[0], value)});
      continue;
    }
    const std::int64_t columns = info.shape[1];
    auto pattern = patterns.find(columns);
    if (pattern == patterns.end()) {
      const double scale = std::sqrt(3.0 / static_cast<double>(columns));
      pattern = patterns.try_emplace(columns, context, stored, scale, seed).first;
    }
    const bool blocks = !stored.dtype;
    const std::int64_t width = blocks ? weight_bytes(stored, columns) : columns;
    Tensor data =
        Tensor::empty({info.shape[0], width}, blocks ? DType::u8 : *stored.dtype, context.device());
    begin += 1000003;
    pattern->second.fill(data, begin);
    weights.push_back({info, std::move(data)});
  }
  context.synchronize();
  return weights;
}

}  // namespace touchstone::inline v0::model
