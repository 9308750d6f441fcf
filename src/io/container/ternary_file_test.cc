// inspect_ternary: what it counts in good files, and that every planted fault is found; type 42 of GGUF,
// whose blocks have two sizes.
#include "touchstone/io/ternary_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "io/model/model_test_support.h"
#include "touchstone/core/error.h"
#include "touchstone/core/half.h"
#include "touchstone/core/ternary.h"

namespace touchstone::io {
namespace {

using test::TemporaryFolder;
using test::text_of;

// Named bytes, and a way to write them as tensors.
struct Content {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

std::vector<OutputTensor> outputs(const std::vector<Content>& contents) {
  std::vector<OutputTensor> tensors;
  for (const Content& content : contents) {
    tensors.push_back({content.name, content.type, content.shape,
                       [&content](std::vector<std::byte>&) -> std::span<const std::byte> {
                         return content.bytes;
                       }});
  }
  return tensors;
}

std::vector<std::byte> encoded(const WeightFormat& format, std::int64_t rows, std::int64_t cols,
                               unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (float& value : values) value = normal(random);
  std::vector<std::byte> bytes(static_cast<std::size_t>(weight_bytes(format, rows * cols)));
  encode_weights(format, values, bytes);
  return bytes;
}

// Two matrices and a norm.
std::vector<Content> model(const char* type) {
  const WeightFormat& format = weight_format(std::string_view(type));
  return {{"blk.0.ffn_up.weight", type, {6, 512}, encoded(format, 6, 512, 1)},
          {"blk.0.norm.weight", "f32", {512}, std::vector<std::byte>(2048)},
          {"token_embd.weight", type, {9, 512}, encoded(format, 9, 512, 2)}};
}

class TernaryFile : public ::testing::Test {
 protected:
  // Writes `contents` with the statement of `stated` and inspects the file.
  TernaryInspection inspected(const std::vector<Content>& contents,
                              const std::vector<Content>& stated) {
    GgufMetadata metadata;
    state_ternary(outputs(stated), metadata);
    write_gguf(folder_ / "t.gguf", metadata, outputs(contents));
    return inspect_ternary(TensorFile::open(folder_ / "t.gguf"));
  }
  TernaryInspection inspected(const std::vector<Content>& contents) {
    return inspected(contents, contents);
  }

  TemporaryFolder folder_;
};

TEST_F(TernaryFile, CountsEveryGroupOfEveryFormat) {
  for (const WeightFormat& format : weight_formats()) {
    if (!format.ternary) continue;
    std::vector<Content> contents = model(std::string(format.name).c_str());
    // The first block becomes a group of zeros.
    std::vector<float> zeros(static_cast<std::size_t>(format.block_elements));
    encode_weights(
        format, zeros,
        std::span(contents[0].bytes).first(static_cast<std::size_t>(format.block_bytes)));
    const TernaryInspection result = inspected(contents);
    EXPECT_TRUE(result.passed()) << format.name << ": "
                                 << (result.faults.empty() ? "" : result.faults[0]);
    EXPECT_TRUE(result.stated);
    EXPECT_EQ(result.tensors.size(), 2U);
    EXPECT_EQ(result.vectors, 1);
    EXPECT_EQ(result.values(), 15 * 512);
    EXPECT_EQ(result.groups(), 15 * 512 / format.block_elements) << format.name;
    std::int64_t expected_zeros = 0;
    for (const Content& content : contents) {
      if (content.shape.size() < 2) continue;
      std::vector<float> values(static_cast<std::size_t>(content.shape[0] * 512));
      decode_weights(format, content.bytes, values);
      expected_zeros += std::count(values.begin(), values.end(), 0.0F);
    }
    EXPECT_EQ(result.zero_codes(), expected_zeros) << format.name;
    EXPECT_EQ(result.tensors[0].zero_groups, 1) << format.name;
    EXPECT_GT(result.tensors[1].smallest_scale, 0) << format.name;
  }
}

TEST_F(TernaryFile, FilesWithoutAStatementPassAndSaySo) {
  const std::vector<Content> contents = model("tq2_0");
  write_gguf(folder_ / "t.gguf", {}, outputs(contents));
  const TernaryInspection result = inspect_ternary(TensorFile::open(folder_ / "t.gguf"));
  EXPECT_TRUE(result.passed());
  EXPECT_FALSE(result.stated);
}

TEST_F(TernaryFile, PlantedFaultsAreFound) {
  const std::vector<Content> good = model("ternary_g128");
  const auto fault_of = [&](const auto& change, const char* name) {
    std::vector<Content> contents = good;
    change(contents);
    const TernaryInspection result = inspected(contents, good);
    EXPECT_FALSE(result.passed()) << name;
    std::string all;
    for (const std::string& fault : result.faults) all += fault + "\n";
    return all;
  };
  // A code of 2: bits 11 in byte 3 of the second block of row 1.
  const std::string code =
      fault_of([](std::vector<Content>& c) { c[0].bytes[5 * 34 + 3] |= std::byte{0x0c}; }, "code");
  EXPECT_NE(code.find("tensor 'blk.0.ffn_up.weight': row 1, group 1: a code of 2 at value 35"),
            std::string::npos)
      << code;
  const std::string nan =
      fault_of([](std::vector<Content>& c) { c[2].bytes[34 * 36 - 1] = std::byte{0x7e}; }, "NaN");
  EXPECT_NE(nan.find("tensor 'token_embd.weight': row 8, group 3: a scale of NaN"),
            std::string::npos)
      << nan;
  // The last bit of one scale, and one code that stays a code.
  const std::string scale =
      fault_of([](std::vector<Content>& c) { c[0].bytes[32] ^= std::byte{0x01}; }, "scale");
  EXPECT_NE(scale.find("stated groups=24"), std::string::npos) << scale;
  const std::string flipped = fault_of(
      [](std::vector<Content>& c) {
        const auto two = static_cast<unsigned>(c[0].bytes[0]) & 3U;
        c[0].bytes[0] ^= static_cast<std::byte>(two == 0 ? 2U : two == 2 ? 2U : 1U);
      },
      "flipped");
  EXPECT_NE(flipped.find("stated"), std::string::npos) << flipped;
  // A float matrix among the linears.
  const std::string floats = fault_of(
      [](std::vector<Content>& c) {
        c[0] = {c[0].name, "f32", {6, 512}, std::vector<std::byte>(6 * 512 * 4)};
      },
      "float");
  EXPECT_NE(floats.find("a matrix of f32 among ternary ones"), std::string::npos) << floats;
  EXPECT_NE(floats.find("stated, but not visited"), std::string::npos) << floats;
  // A norm that is no f32, and a tensor that nobody stated.
  EXPECT_NE(fault_of(
                [](std::vector<Content>& c) {
                  c[1] = {c[1].name, "f16", {512}, std::vector<std::byte>(1024)};
                },
                "norm")
                .find("a vector of f16, expected f32"),
            std::string::npos);
  const std::string infinite = fault_of(
      [](std::vector<Content>& c) { c[1].bytes[11] = c[1].bytes[10] = std::byte{0xff}; }, "value");
  EXPECT_NE(infinite.find("tensor 'blk.0.norm.weight': element 2 is"), std::string::npos)
      << infinite;
  EXPECT_NE(fault_of([](std::vector<Content>& c) { c[0].name = "other"; }, "name")
                .find("not among the tensors that the file states"),
            std::string::npos);
}

TEST_F(TernaryFile, FailsWhenNothingWasVisited) {
  const std::vector<Content> contents = {{"norm", "f32", {4}, std::vector<std::byte>(16)}};
  const TernaryInspection result = inspected(contents);
  EXPECT_FALSE(result.passed());
  EXPECT_EQ(result.faults, std::vector<std::string>{"no ternary tensor was visited"});
}

TEST_F(TernaryFile, ManyFaultsAreCountedAndFewAreListed) {
  std::vector<Content> contents = model("ternary_g128");
  for (std::byte& byte : contents[0].bytes) byte = std::byte{0xff};
  const TernaryInspection result = inspected(contents);
  EXPECT_EQ(result.fault_count, 24);
  EXPECT_EQ(std::ssize(result.faults), kMaxTernaryFaults);
}

TEST_F(TernaryFile, DamagedStatementsAreFaults) {
  const std::vector<Content> contents = model("q2_0");
  GgufMetadata metadata;
  metadata.set("ternary.tensors", std::string_view("not a list"));
  write_gguf(folder_ / "t.gguf", metadata, outputs(contents));
  EXPECT_FALSE(inspect_ternary(TensorFile::open(folder_ / "t.gguf")).passed());
}

// ---- type 42 ---------------------------------------------------------------------------------------

// A file as other tools write it: type 42, without our key. pq2_0 has number 142, which is replaced.
std::string with_type_42(const TemporaryFolder& folder, const std::vector<Content>& contents) {
  write_gguf(folder / "w.gguf", {}, outputs(contents));
  std::string file = test::read_file(folder / "w.gguf");
  for (const Content& content : contents) {
    const std::size_t name = file.find(content.name);
    // Name, rank, two extents, type.
    const std::size_t type = name + content.name.size() + 4 + 16;
    std::uint32_t number = 0;
    std::memcpy(&number, file.data() + type, 4);
    if (number == 142) number = 42;
    std::memcpy(file.data() + type, &number, 4);
  }
  return file;
}

TEST_F(TernaryFile, Type42OfBlocksOf128IsKnownByItsSize) {
  const WeightFormat& wide = weight_format("pq2_0");
  const std::vector<Content> contents = {{"a", "pq2_0", {6, 512}, encoded(wide, 6, 512, 3)},
                                         {"b", "pq2_0", {5, 128}, encoded(wide, 5, 128, 4)}};
  test::write_file(folder_ / "x.gguf", with_type_42(folder_, contents));
  const TensorFile file = TensorFile::open(folder_ / "x.gguf");
  for (const Content& content : contents) {
    EXPECT_EQ(file.tensor(content.name).type, "pq2_0");
    EXPECT_EQ(text_of(file.tensor(content.name).data), text_of(content.bytes));
  }
}

TEST_F(TernaryFile, Type42OfBlocksOf64IsKnownByItsSizeOrOurKey) {
  const WeightFormat& narrow = weight_format("q2_0");
  const std::vector<Content> contents = {{"a", "q2_0", {6, 512}, encoded(narrow, 6, 512, 3)},
                                         {"b", "q2_0", {1, 128}, encoded(narrow, 1, 128, 4)}};
  write_gguf(folder_ / "x.gguf", {}, outputs(contents));
  std::string text = test::read_file(folder_ / "x.gguf");
  EXPECT_EQ(TensorFile::open(folder_ / "x.gguf").tensor("b").type, "q2_0");
  // Another key of the same length in the place of ours: the size of a tells, also for b.
  const std::size_t key = text.find("quantize.q2_0.block_size");
  ASSERT_NE(key, std::string::npos);
  text[key] = 'Q';
  test::write_file(folder_ / "y.gguf", text);
  EXPECT_EQ(TensorFile::open(folder_ / "y.gguf").tensor("b").type, "q2_0");
}

TEST_F(TernaryFile, Type42ThatNothingTellsIsRefused) {
  const WeightFormat& wide = weight_format("pq2_0");
  // 34 bytes and 36 bytes are both padded to 64, but the last tensor is not padded by every writer.
  const std::vector<Content> contents = {{"a", "pq2_0", {1, 128}, encoded(wide, 1, 128, 3)},
                                         {"z", "f32", {1, 8}, std::vector<std::byte>(32)}};
  test::write_file(folder_ / "x.gguf", with_type_42(folder_, contents));
  try {
    TensorFile::open(folder_ / "x.gguf");
    FAIL() << "was read";
  } catch (const CorruptData& error) {
    EXPECT_NE(std::string(error.what()).find("tensor 'a': type 42 may have blocks of 64 or of 128"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace touchstone::io
