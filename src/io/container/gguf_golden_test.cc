// The values and blocks of PyPI `gguf` (scripts/make_golden_weights.py), bit for bit, on every SIMD
// target. The file itself was written by PyPI `safetensors`.
#include <gtest/gtest.h>

#include <cstring>

#include "touchstone/core/device.h"
#include "touchstone/core/testing.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::io {
namespace {

TEST(GgufGolden, DecodesEveryTypeBitForBit) {
  const TensorFile file = TensorFile::open(TOUCHSTONE_IO_TESTDATA "/weights.safetensors");
  for (const char* name : {"f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k",
                           "q6_k", "tq1_0", "tq2_0"}) {
    const WeightFormat& format = weight_format(name);
    const TensorInfo& blocks = file.tensor(std::string(name) + ".blocks");
    const TensorInfo& values = file.tensor(std::string(name) + ".values");
    ASSERT_EQ(blocks.shape[1], format.block_bytes) << name;
    ASSERT_EQ(values.shape[1], format.block_elements) << name;
    for (const std::string& target : simd_targets()) {
      touchstone::testing::set_simd_target(target);
      std::vector<float> decoded(static_cast<std::size_t>(values.elements()));
      decode_weights(format, blocks.data, decoded);
      ASSERT_EQ(std::memcmp(decoded.data(), values.data.data(), values.data.size()), 0)
          << name << " " << target;
    }
    touchstone::testing::set_simd_target("");
  }
}

TEST(GgufGolden, EncodesByteForByte) {
  const TensorFile file = TensorFile::open(TOUCHSTONE_IO_TESTDATA "/weights.safetensors");
  for (const char* name :
       {"f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "tq1_0", "tq2_0"}) {
    const TensorInfo& input = file.tensor(std::string(name) + ".input");
    const TensorInfo& expected = file.tensor(std::string(name) + ".encoded");
    std::vector<float> values(static_cast<std::size_t>(input.elements()));
    std::memcpy(values.data(), input.data.data(), input.data.size());
    std::vector<std::byte> encoded(expected.data.size());
    encode_weights(weight_format(name), values, encoded);
    EXPECT_EQ(std::memcmp(encoded.data(), expected.data.data(), encoded.size()), 0) << name;
  }
}

TEST(GgufGolden, ReadsTheMetadataOfSafetensors) {
  const TensorFile file = TensorFile::open(TOUCHSTONE_IO_TESTDATA "/weights.safetensors");
  ASSERT_NE(file.find_metadata("quote"), nullptr);
  EXPECT_EQ(file.find_metadata("quote")->as_string(), "a \"quoted\"\nline");
  EXPECT_EQ(file.find_metadata("nothing"), nullptr);
}

}  // namespace
}  // namespace touchstone::io
