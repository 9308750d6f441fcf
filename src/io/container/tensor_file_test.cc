// Reading what was written: both containers, shards, folders; sizes that only sparse files have.
#include "touchstone/io/tensor_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "io/model/model_test_support.h"
#include "touchstone/core/error.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::io {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::TemporaryFolder;
using test::text_of;
using test::write_file;

OutputTensor make_tensor(const std::string& name, const std::string& type,
                         std::vector<std::int64_t> shape, std::size_t bytes) {
  return {name, type, std::move(shape),
          [=](std::vector<std::byte>& scratch) -> std::span<const std::byte> {
            scratch.resize(bytes);
            for (std::size_t i = 0; i < bytes; ++i) {
              scratch[i] = static_cast<std::byte>((i * 7 + name.size()) & 0xff);
            }
            return scratch;
          }};
}

void expect_tensors(const TensorFile& file, const std::vector<OutputTensor>& written) {
  ASSERT_EQ(file.tensors().size(), written.size());
  for (std::size_t i = 0; i < written.size(); ++i) {
    const TensorInfo& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, written[i].name);
    EXPECT_EQ(tensor.type, written[i].type);
    EXPECT_EQ(tensor.shape, written[i].shape);
    std::vector<std::byte> scratch;
    EXPECT_EQ(text_of(tensor.data), text_of(written[i].data(scratch))) << tensor.name;
    EXPECT_EQ(file.find(tensor.name), &tensor);
  }
}

TEST(TensorFile, ReadsTheSafetensorsItWrites) {
  const TemporaryFolder folder;
  const std::vector<OutputTensor> tensors = {
      make_tensor("a \"quoted\" \xc3\xa9", "f32", {3, 5}, 60),
      make_tensor("scalar", "f64", {}, 8),
      make_tensor("empty", "bf16", {0, 7}, 0),
      make_tensor("h", "f16", {7}, 14),
      make_tensor("b", "bool", {3}, 3),
      make_tensor("i", "i64", {2, 1, 1, 1, 1, 1, 1, 2}, 32),
      make_tensor("e", "fp8_e4m3", {5}, 5)};
  SafetensorsOptions options;
  options.metadata = {{"format", "pt"}, {"note", "a\nb"}};
  write_safetensors(folder / "t.safetensors", tensors, options);
  const TensorFile file = TensorFile::open(folder / "t.safetensors");
  EXPECT_EQ(file.container(), Container::safetensors);
  expect_tensors(file, tensors);
  EXPECT_EQ(file.find_metadata("note")->as_string(), "a\nb");
  EXPECT_EQ(file.tensor("h").format, &weight_format("f16"));
  EXPECT_EQ(file.tensor("b").format, nullptr);
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_THROW(file.tensor("nothing"), CorruptData);
  // Two writes, the same bytes.
  write_safetensors(folder / "u.safetensors", tensors, options);
  EXPECT_EQ(read_file(folder / "t.safetensors"), read_file(folder / "u.safetensors"));
}

TEST(TensorFile, ReadsTheGgufItWrites) {
  const TemporaryFolder folder;
  GgufMetadata metadata;
  metadata.set("flag", true);
  metadata.set("u", std::uint32_t{7});
  metadata.set("i", std::int32_t{-7});
  metadata.set("big", std::uint64_t{1} << 63);
  metadata.set("f", 0.5F);
  metadata.set("s", "text");
  const std::vector<std::string> strings = {"one", "", "three"};
  metadata.set("strings", std::span<const std::string>(strings));
  const std::vector<float> floats = {1, 2.5F};
  metadata.set("floats", std::span<const float>(floats));
  std::vector<OutputTensor> tensors;
  for (const WeightFormat& format : weight_formats()) {
    if (format.name.starts_with("int") || format.name == "fp8_e4m3") continue;
    tensors.push_back(make_tensor(std::string(format.name), std::string(format.name),
                                  {3, 2 * format.block_elements},
                                  static_cast<std::size_t>(6 * format.block_bytes)));
  }
  for (const std::uint32_t alignment : {32U, 8U, 4096U}) {
    write_gguf(folder / "t.gguf", metadata, tensors, {.alignment = alignment, .progress = {}});
    const TensorFile file = TensorFile::open(folder / "t.gguf");
    EXPECT_EQ(file.container(), Container::gguf);
    expect_tensors(file, tensors);
    EXPECT_TRUE(file.find_metadata("flag")->as_bool());
    EXPECT_EQ(file.find_metadata("u")->as_int(), 7);
    EXPECT_EQ(file.find_metadata("i")->as_int(), -7);
    EXPECT_THROW(file.find_metadata("big")->as_int(), CorruptData);
    EXPECT_EQ(file.find_metadata("f")->as_float(), 0.5);
    EXPECT_EQ(file.find_metadata("s")->as_string(), "text");
    EXPECT_EQ(file.find_metadata("strings")->strings(),
              (std::vector<std::string_view>{"one", "", "three"}));
    EXPECT_EQ(file.find_metadata("floats")->floats(), floats);
    EXPECT_THROW(file.find_metadata("floats")->strings(), CorruptData);
    EXPECT_THROW(file.find_metadata("s")->as_int(), CorruptData);
    // Metadata of one file in another.
    GgufMetadata again;
    for (const MetadataValue& value : file.metadata()) {
      if (value.key() != "general.alignment") again.set(value);
    }
    write_gguf(folder / "u.gguf", again, tensors, {.alignment = alignment, .progress = {}});
    EXPECT_EQ(read_file(folder / "t.gguf"), read_file(folder / "u.gguf"));
  }
}

TEST(TensorFile, WritersRefuseWhatTheContainerDoesNotHave) {
  const TemporaryFolder folder;
  const auto safetensors = [&](const OutputTensor& tensor) {
    write_safetensors(folder / "t.safetensors", std::span(&tensor, 1));
  };
  const auto gguf = [&](const OutputTensor& tensor) {
    write_gguf(folder / "t.gguf", {}, std::span(&tensor, 1));
  };
  EXPECT_THROW(safetensors(make_tensor("a", "q8_0", {32}, 34)), InvalidArgument);
  EXPECT_THROW(safetensors(make_tensor("a", "f32", {2}, 7)), InvalidArgument);
  EXPECT_THROW(safetensors(make_tensor("a\xff", "f32", {2}, 8)), InvalidArgument);
  EXPECT_THROW(gguf(make_tensor("a", "u8", {2}, 2)), InvalidArgument);
  EXPECT_THROW(gguf(make_tensor("a", "q8_0", {33}, 34)), InvalidArgument);
  EXPECT_THROW(gguf(make_tensor("a", "f32", {1, 1, 1, 1, 1}, 4)), InvalidArgument);
  const std::vector<OutputTensor> twice(2, make_tensor("a", "f32", {1}, 4));
  EXPECT_THROW(write_gguf(folder / "t.gguf", {}, twice), InvalidArgument);
  // What the reader would refuse, or would look for elsewhere.
  EXPECT_THROW(safetensors(make_tensor("a", "f32", std::vector<std::int64_t>(9, 1), 4)),
               InvalidArgument);
  EXPECT_THROW(gguf(make_tensor(std::string(65536, 'a'), "f32", {1}, 4)), InvalidArgument);
  GgufMetadata aligned;
  aligned.set("general.alignment", std::uint32_t{64});
  EXPECT_THROW(write_gguf(folder / "t.gguf", aligned, {}), InvalidArgument);
  EXPECT_TRUE(fs::is_empty(folder.path()));  // nothing half written is left
}

TEST(TensorFile, ShardsWithAnIndex) {
  const TemporaryFolder folder;
  const std::vector<OutputTensor> tensors = {
      make_tensor("a", "f32", {4}, 16), make_tensor("b", "f32", {4}, 16),
      make_tensor("c", "f32", {40}, 160), make_tensor("d", "f32", {1}, 4)};
  SafetensorsOptions options;
  options.max_shard_bytes = 32;
  write_safetensors(folder / "m.safetensors.index.json", tensors, options);
  for (const fs::path& path : {folder.path(), folder / "m.safetensors.index.json"}) {
    const TensorFile file = TensorFile::open(path);
    EXPECT_EQ(file.files().size(), 3U);
    expect_tensors(file, tensors);
    EXPECT_EQ(file.tensor("d").file, 2);
  }
  const std::string index = read_file(folder / "m.safetensors.index.json");
  const auto error_with = [&](const std::string& from, const std::string& to) -> std::string {
    std::string text = index;
    write_file(folder / "m.safetensors.index.json", text.replace(text.find(from), from.size(), to));
    try {
      TensorFile::open(folder.path());
    } catch (const Error& error) {
      const std::string message = error.what();
      return message.substr(message.find(folder.path().string()) + folder.path().string().size() +
                            1);
    }
    return "accepted";
  };
  EXPECT_EQ(error_with("\"d\"", "\"e\""),
            "m-00003-of-00003.safetensors: tensor 'e' of the index is not there");
  EXPECT_EQ(error_with(",\n    \"b\": \"m-00001-of-00003.safetensors\"", ""),
            "m-00001-of-00003.safetensors: tensor 'b' is not in the index");
  EXPECT_EQ(error_with("m-00002-of-00003.safetensors", "../m.safetensors"),
            "m.safetensors.index.json: weight_map.c: '../m.safetensors' is no file name");
  EXPECT_NE(error_with("m-00002-of-00003.safetensors", "gone.safetensors").find("No such file"),
            std::string::npos);
}

TEST(TensorFile, ChoosesInFolders) {
  const TemporaryFolder folder;
  EXPECT_THROW(TensorFile::open(folder.path()), CorruptData);
  write_gguf(folder / "a.gguf", {}, {});
  EXPECT_EQ(TensorFile::open(folder.path()).container(), Container::gguf);
  write_safetensors(folder / "b.safetensors", {});
  EXPECT_EQ(TensorFile::open(folder.path()).container(), Container::safetensors);
  write_safetensors(folder / "c.safetensors", {});
  EXPECT_THROW(TensorFile::open(folder.path()), CorruptData);
  EXPECT_THROW(TensorFile::open(folder / "nothing"), FileError);
  EXPECT_THROW(TensorFile::open("/dev/zero"), FileError);
}

// 16 GB in four shards that take no disk: the headers are read, the data is not.
TEST(TensorFile, OpensSixteenGigabytesWithoutReadingThem) {
  const TemporaryFolder folder;
  std::string map;
  for (int shard = 0; shard < 4; ++shard) {
    const std::string name = "m-" + std::to_string(shard) + ".safetensors";
    std::string header = "{";
    for (std::int64_t i = 0; i < 64; ++i) {
      const std::string tensor = "layers." + std::to_string(shard * 64 + i) + ".weight";
      header += (i == 0 ? "\"" : ",\"") + tensor +
                R"(":{"dtype":"BF16","shape":[4096,8192],"data_offsets":[)" +
                std::to_string(i << 26) + "," + std::to_string((i + 1) << 26) + "]}";
      map += (map.empty() ? "\"" : ",\"") + tensor + "\":\"" + name + "\"";
    }
    header += "}";
    const std::uint64_t length = header.size();
    write_file(folder / name, std::string(reinterpret_cast<const char*>(&length), 8) + header);
    fs::resize_file(folder / name, 8 + length + (std::uint64_t{64} << 26));
  }
  write_file(folder / "m.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  const TensorFile file = TensorFile::open(folder.path());
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(file.tensors().size(), 256U);
  EXPECT_GT(file.bytes(), std::uint64_t{16} << 30);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 10 << 10);  // KiB
}

}  // namespace
}  // namespace touchstone::io
