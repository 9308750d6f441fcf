// Opening and uploading models:
//   ninja -C build/release model_load_bench
//   build/release/model_load_bench open [GB]       folder of sparse shards (16): time and memory of the open call
//   build/release/model_load_bench upload [MB]     generated model (512), both containers: bytes on the device
//                                                  compared with the file, rate of the copies
// Files go to the folder for temporary files and are removed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "machine/stopwatch.h"
#include "touchstone/core/context.h"
#include "touchstone/core/error.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/model_file.h"

namespace {

namespace fs = std::filesystem;
namespace io = touchstone::io;
using touchstone::machine::Stopwatch;

struct Shape {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::int64_t bytes() const {
    std::int64_t product = 2;
    for (const std::int64_t size : sizes) product *= size;
    return product;
  }
};

struct ModelSize {
  std::int64_t width, ffn, heads, kv_heads, vocabulary, layers;
};

// Llama blocks in bf16, as many as the bytes allow.
ModelSize size_for(std::int64_t bytes) {
  ModelSize size = bytes >= std::int64_t{4} << 30 ? ModelSize{4096, 14336, 32, 8, 128256, 0}
                                                  : ModelSize{1024, 4096, 16, 8, 16384, 0};
  const std::int64_t head_rows = 2 * size.vocabulary * size.width;
  const std::int64_t kv_rows = size.width / size.heads * size.kv_heads;
  const std::int64_t layer = size.width * (2 * size.width + 2 * kv_rows + 3 * size.ffn);
  size.layers = std::max<std::int64_t>((bytes / 2 - head_rows + layer - 1) / layer, 1);
  return size;
}

std::vector<Shape> shapes_of(const ModelSize& size) {
  const std::int64_t kv = size.width / size.heads * size.kv_heads;
  std::vector<Shape> shapes = {{"model.embed_tokens.weight", {size.vocabulary, size.width}},
                               {"model.norm.weight", {size.width}},
                               {"lm_head.weight", {size.vocabulary, size.width}}};
  for (std::int64_t i = 0; i < size.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    shapes.push_back({layer + "input_layernorm.weight", {size.width}});
    shapes.push_back({layer + "post_attention_layernorm.weight", {size.width}});
    shapes.push_back({layer + "self_attn.q_proj.weight", {size.width, size.width}});
    shapes.push_back({layer + "self_attn.k_proj.weight", {kv, size.width}});
    shapes.push_back({layer + "self_attn.v_proj.weight", {kv, size.width}});
    shapes.push_back({layer + "self_attn.o_proj.weight", {size.width, size.width}});
    shapes.push_back({layer + "mlp.gate_proj.weight", {size.ffn, size.width}});
    shapes.push_back({layer + "mlp.up_proj.weight", {size.ffn, size.width}});
    shapes.push_back({layer + "mlp.down_proj.weight", {size.width, size.ffn}});
  }
  return shapes;
}

void write_config(const fs::path& folder, const ModelSize& size) {
  std::ofstream(folder / "config.json") << fmt::format(
      R"({{"model_type": "llama", "hidden_size": {}, "intermediate_size": {}, "num_attention_heads": {},
"num_key_value_heads": {}, "num_hidden_layers": {}, "vocab_size": {}, "max_position_embeddings": 8192,
"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": false}})",
      size.width, size.ffn, size.heads, size.kv_heads, size.layers, size.vocabulary);
}

// Headers and an index; of the tensors only their space, which takes no disk.
std::int64_t write_sparse(const fs::path& folder, const ModelSize& size, int shards) {
  const std::vector<Shape> shapes = shapes_of(size);
  std::string map;
  std::int64_t total = 0;
  for (int shard = 0; shard < shards; ++shard) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    std::string header = "{";
    std::int64_t at = 0;
    for (std::size_t i = static_cast<std::size_t>(shard); i < shapes.size();
         i += static_cast<std::size_t>(shards)) {
      header += fmt::format(R"({}"{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})",
                            at == 0 ? "" : ",", shapes[i].name, fmt::join(shapes[i].sizes, ","), at,
                            at + shapes[i].bytes());
      map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", shapes[i].name, file);
      at += shapes[i].bytes();
    }
    header += '}';
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    std::ofstream out(folder / file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header;
    out.close();
    fs::resize_file(folder / file, 8 + length + static_cast<std::uint64_t>(at));
    total += at;
  }
  std::ofstream(folder / "model.safetensors.index.json") << "{\"weight_map\":{" << map << "}}";
  return total;
}

// In KB.
std::int64_t resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

void measure_open(const fs::path& folder, std::int64_t bytes) {
  const ModelSize size = size_for(bytes);
  write_config(folder, size);
  const std::int64_t total = write_sparse(folder, size, 4);
  constexpr int kRounds = 20;
  std::vector<double> times;
  std::int64_t grown = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t before = resident();
    const Stopwatch watch;
    const io::ModelFile model = io::ModelFile::open(folder);
    times.push_back(watch.seconds());
    grown = std::max(grown, resident() - before);
  }
  const double first = times[0];
  std::sort(times.begin(), times.end());
  fmt::print(
      "open: {:.1f} GB, {} tensors: first {:.2f} ms, median {:.2f}, best {:.2f} of {}; {} KB more "
      "resident\n",
      static_cast<double>(total) * 1e-9, shapes_of(size).size(), first * 1e3,
      times[kRounds / 2] * 1e3, times[0] * 1e3, kRounds, grown);
}

void write_random(const fs::path& folder, const ModelSize& size) {
  write_config(folder, size);
  std::mt19937_64 random(1);
  std::vector<io::OutputTensor> tensors;
  for (const Shape& shape : shapes_of(size)) {
    tensors.push_back(
        {shape.name, "bf16", shape.sizes, [&random, bytes = shape.bytes()](auto& scratch) {
           scratch.resize(static_cast<std::size_t>(bytes));
           // Finite values: the exponent of each is that of numbers near 1.
           for (std::size_t i = 0; i < scratch.size(); i += 2) {
             const std::uint64_t bits = random();
             scratch[i] = static_cast<std::byte>(bits);
             scratch[i + 1] = static_cast<std::byte>(0x3e | (bits >> 8 & 0x81));
           }
           return std::span<const std::byte>(scratch);
         }});
  }
  io::write_safetensors(folder / "model.safetensors", tensors);
}

// The bytes on the device, brought back, against those of the file.
std::int64_t wrong_tensors(const io::ModelFile& model,
                           const std::vector<io::UploadedWeight>& uploaded) {
  std::int64_t wrong = uploaded.size() == model.weights().size() ? 0 : 1;
  for (const io::UploadedWeight& weight : uploaded) {
    const touchstone::Tensor back = weight.data.to(touchstone::Device::cpu());
    const io::Weight source = model.load(weight.info.name);
    const bool same = static_cast<std::size_t>(back.bytes()) == source.data.size() &&
                      std::memcmp(back.data(), source.data.data(), source.data.size()) == 0;
    wrong += same ? 0 : 1;
  }
  return wrong;
}

int measure_upload(const fs::path& folder, std::int64_t bytes) {
  const bool cuda = !touchstone::cuda_devices().empty();
  const touchstone::Device device = cuda ? touchstone::Device::cuda() : touchstone::Device::cpu();
  touchstone::Context context({.device = device});
  fs::create_directory(folder / "model");
  write_random(folder / "model", size_for(bytes));
  io::convert_model(folder / "model", folder / "model.gguf",
                    {.format = &touchstone::weight_format("q8_0")});
  std::int64_t failures = 0;
  for (const char* name : {"model", "model.gguf"}) {
    const io::ModelFile model = io::ModelFile::open(folder / name);
    for (const std::int64_t chunk :
         {std::int64_t{1} << 20, std::int64_t{8} << 20, std::int64_t{32} << 20}) {
      std::uint64_t total = 0;
      const auto progress = [&](std::uint64_t done, std::uint64_t whole) {
        total = whole;
        if (::isatty(2) != 0) fmt::print(stderr, "\r{} of {} MB", done >> 20, whole >> 20);
      };
      double best = 1e9;
      std::int64_t wrong = 0;
      for (int round = 0; round < 3; ++round) {
        const Stopwatch watch;
        const std::vector<io::UploadedWeight> uploaded =
            io::upload_weights(context, model, progress, chunk);
        best = std::min(best, watch.seconds());
        if (round == 0) wrong = wrong_tensors(model, uploaded);
      }
      if (::isatty(2) != 0) fmt::print(stderr, "\n");
      fmt::print("upload to {}: {}, {} tensors, {} MB in chunks of {} MB: {} differ, {:.2f} GB/s\n",
                 touchstone::name_of(device), name, model.weights().size(), total >> 20,
                 chunk >> 20, wrong, static_cast<double>(total) * 1e-9 / best);
      failures += wrong;
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::int64_t number = argc > 2 ? std::atoll(argv[2]) : mode == "open" ? 16 : 512;
  if ((mode != "open" && mode != "upload") || number < 1 || number > 100'000) {
    fmt::print(stderr, "usage: model_load_bench open [GB] | upload [MB]\n");
    return 2;
  }
  const fs::path folder =
      fs::temp_directory_path() / fmt::format("touchstone_model_load_{}", ::getpid());
  int status = 1;
  try {
    fs::create_directory(folder);
    if (mode == "open") {
      measure_open(folder, number * 1'000'000'000);
      status = 0;
    } else {
      status = measure_upload(folder, number << 20);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_load_bench: {}\n", error.what());
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return status;
}
