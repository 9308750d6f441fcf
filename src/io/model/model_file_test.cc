// The same model from both containers has the same description and the same bits. The files were made by
// scripts/make_golden_models.py, which maps names and rows by itself.
#include "touchstone/io/model_file.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "io/model/model_test_support.h"
#include "touchstone/core/error.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::io {
namespace {

using test::folder_of;
using test::gguf_of;
using test::kModels;
using test::TemporaryFolder;
using test::text_of;

TEST(ModelFile, TheSameDescriptionFromBothFiles) {
  for (const char* const name : kModels) {
    const ModelFile folder = ModelFile::open(folder_of(name));
    const ModelFile gguf = ModelFile::open(gguf_of(name));
    EXPECT_EQ(describe(folder.description()), describe(gguf.description())) << name;
    EXPECT_TRUE(folder.description() == gguf.description()) << name;
  }
}

TEST(ModelFile, TheSameBitsFromBothFiles) {
  for (const char* const name : kModels) {
    const ModelFile folder = ModelFile::open(folder_of(name));
    const ModelFile gguf = ModelFile::open(gguf_of(name));
    ASSERT_EQ(folder.weights().size(), gguf.weights().size()) << name;
    const auto expected = weights_of(folder.description(), weight_format(WeightFormatId::bf16));
    EXPECT_EQ(expected.size(), folder.weights().size()) << name;
    for (const WeightInfo& info : expected) {
      ASSERT_TRUE(folder.has(info.name)) << name << ": " << info.name;
      EXPECT_EQ(info.shape, folder.load(info.name).shape) << name << ": " << info.name;
    }
    for (const WeightInfo& info : folder.weights()) {
      ASSERT_TRUE(gguf.has(info.name)) << name << " " << info.name;
      const Weight a = folder.load(info.name);
      const Weight b = gguf.load(info.name);
      EXPECT_EQ(a.format, info.format);
      EXPECT_EQ(a.format, b.format) << name << " " << info.name;
      EXPECT_EQ(a.shape, b.shape) << name << " " << info.name;
      EXPECT_EQ(text_of(a.data), text_of(b.data)) << name << " " << info.name;
      EXPECT_EQ(a.view().elements(),
                a.format->block_elements * std::ssize(a.data) / a.format->block_bytes);
    }
  }
}

TEST(ModelFile, RowsOfLlamaAreInTheOrderOfHalves) {
  const ModelFile gguf = ModelFile::open(gguf_of("llama"));
  const TensorFile folder = TensorFile::open(folder_of("llama"));
  for (const char* const part : {"q", "k"}) {
    const Weight loaded = gguf.load(std::string("blk.1.attn_") + part + ".weight");
    const TensorInfo& stored =
        folder.tensor(std::string("model.layers.1.self_attn.") + part + "_proj.weight");
    EXPECT_EQ(text_of(loaded.data), text_of(stored.data));
    // The GGUF file itself has them in another order.
    const TensorInfo& raw = gguf.file().tensor(std::string("blk.1.attn_") + part + ".weight");
    EXPECT_NE(text_of(raw.data), text_of(stored.data));
  }
}

TEST(ModelFile, WeightsAreMappedNotCopied) {
  const ModelFile model = ModelFile::open(gguf_of("llama"));
  const Weight up = model.load("blk.0.ffn_up.weight");
  EXPECT_EQ(up.owner, nullptr);
  EXPECT_EQ(up.data.data(), model.file().tensor("blk.0.ffn_up.weight").data.data());
  EXPECT_NE(model.load("blk.0.attn_q.weight").owner, nullptr);
  // Of a fused tensor each part is a range of rows of the mapping.
  const ModelFile phi = ModelFile::open(folder_of("phi3"));
  const TensorInfo& fused = phi.file().tensor("model.layers.0.self_attn.qkv_proj.weight");
  const Weight k = phi.load("blk.0.attn_k.weight");
  EXPECT_EQ(k.owner, nullptr);
  EXPECT_EQ(k.data.data(), fused.data.data() + 16 * 16 * 2);
}

TEST(ModelFile, BiasesAndHeadsAreWhatTheTensorsSay) {
  EXPECT_TRUE(ModelFile::open(gguf_of("mistral")).description().qkv_bias);
  EXPECT_FALSE(ModelFile::open(gguf_of("llama")).description().qkv_bias);
  const ModelFile tied = ModelFile::open(gguf_of("qwen2"));
  EXPECT_TRUE(tied.description().tied_head);
  EXPECT_EQ(tied.load("output.weight").data.data(), tied.load("token_embd.weight").data.data());
  EXPECT_TRUE(ModelFile::open(folder_of("gpt_neox")).description().mlp_bias);
  EXPECT_THROW(tied.load("blk.7.attn_q.weight"), InvalidArgument);
}

// The llama model with one thing changed.
std::string error_of(const auto& change) {
  const TemporaryFolder folder;
  const TensorFile file = TensorFile::open(gguf_of("llama"));
  GgufMetadata metadata;
  for (const MetadataValue& value : file.metadata()) metadata.set(value);
  std::vector<OutputTensor> tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    tensors.push_back({tensor.name, tensor.type, tensor.shape,
                       [&tensor](std::vector<std::byte>&) { return tensor.data; }});
  }
  change(tensors);
  write_gguf(folder / "m.gguf", metadata, tensors);
  try {
    ModelFile::open(folder / "m.gguf");
  } catch (const CorruptData& error) {
    const std::string text = error.what();
    return text.substr(text.find("tensor"));
  }
  return "accepted";
}

TEST(ModelFile, TellsWhichTensorIsWrong) {
  EXPECT_EQ(error_of([](auto& tensors) {
              std::erase_if(tensors, [](auto& t) { return t.name == "blk.1.ffn_up.weight"; });
            }),
            "tensor 'blk.1.ffn_up.weight': is missing");
  EXPECT_EQ(error_of([](auto& tensors) {
              for (auto& t : tensors) {
                if (t.name == "blk.0.attn_k.weight") std::swap(t.shape[0], t.shape[1]);
              }
            }),
            "tensor 'blk.0.attn_k.weight': expected shape [8, 16], got [16, 8]");
  EXPECT_EQ(error_of([](auto& tensors) {
              tensors.push_back(tensors[0]);
              tensors.back().name = "blk.0.attn_sinks.weight";
            }),
            "tensor 'blk.0.attn_sinks.weight': is not part of a model of family llama");
  EXPECT_EQ(error_of([](auto& tensors) {
              for (auto& t : tensors) {
                if (t.name == "output.weight") t.type = "i16";
              }
            }),
            "tensor 'output.weight': holds i16, no weights");
}

TEST(ModelFile, UploadsACopyOnTheCpu) {
  const ModelFile model = ModelFile::open(gguf_of("gemma2"));
  Context context;
  std::uint64_t last = 0;
  std::uint64_t whole = 0;
  const std::vector<UploadedWeight> uploaded =
      upload_weights(context, model, [&](std::uint64_t done, std::uint64_t total) {
        EXPECT_GT(done, last);
        last = done;
        whole = total;
      });
  EXPECT_EQ(last, whole);
  ASSERT_EQ(uploaded.size(), model.weights().size());
  for (const UploadedWeight& weight : uploaded) {
    const Weight source = model.load(weight.info.name);
    ASSERT_EQ(weight.data.bytes(), std::ssize(source.data));
    EXPECT_EQ(std::memcmp(weight.data.data(), source.data.data(), source.data.size()), 0);
  }
  EXPECT_THROW(upload_weights(context, model, {}, 0), InvalidArgument);
}

// make real-model
TEST(ModelFile, RealModel) {
  const char* const models = std::getenv("TOUCHSTONE_MODELS");
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  std::filesystem::path folder;
  if (models != nullptr) {
    folder = models;
  } else {
    folder = cache != nullptr ? std::filesystem::path(cache)
                              : std::filesystem::path(home != nullptr ? home : "/") / ".cache";
    folder = folder / "touchstone" / "models";
  }
  const std::filesystem::path path = folder / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "SKIPPED: no real model at " << path << "; `make real-model` brings it";
  }
  const ModelFile model = ModelFile::open(path);
  const ModelDescription& description = model.description();
  EXPECT_EQ(description.family, ModelFamily::llama);
  EXPECT_EQ(description.layers.size(), 30U);
  EXPECT_EQ(description.width, 576);
  EXPECT_EQ(description.heads, 9);
  EXPECT_EQ(description.kv_heads, 3);
  EXPECT_EQ(description.rope.theta, 100000);
  EXPECT_EQ(description.norm_epsilon, 1e-5);
  EXPECT_TRUE(description.tied_head);
  EXPECT_EQ(model.weights().size(), 272U);
  const Weight q = model.load("blk.29.attn_q.weight");
  EXPECT_EQ(q.format->name, "q4_1");
  // Row 1 of the order of halves is row 2 of the file.
  const TensorInfo& raw = model.file().tensor("blk.29.attn_q.weight");
  const std::size_t row = 576 / 32 * 20;
  EXPECT_EQ(text_of(q.data.subspan(row, row)), text_of(raw.data.subspan(2 * row, row)));
}

}  // namespace
}  // namespace touchstone::io
