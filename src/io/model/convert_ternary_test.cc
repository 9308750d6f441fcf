// Conversion to and between ternary formats: exact or refused by name, projected only when asked to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "io/model/model_test_support.h"
#include "touchstone/core/error.h"
#include "touchstone/core/ternary.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/ternary_file.h"

namespace touchstone::io {
namespace {

using test::TemporaryFolder;
using test::text_of;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kRows = 70;  // more than are converted at a time
constexpr std::int64_t kCols = 512;

class ConvertTernary : public ::testing::Test {
 protected:
  void write(const std::vector<float>& values, std::int64_t cols = kCols) {
    const std::vector<OutputTensor> tensors = {
        {"w",
         "f32",
         {static_cast<std::int64_t>(values.size()) / cols, cols},
         [&](std::vector<std::byte>&) { return std::as_bytes(std::span(values)); }}};
    write_safetensors(folder_ / "t.safetensors", tensors);
  }
  void convert(const std::filesystem::path& from, const std::filesystem::path& to, const char* type,
               std::optional<TernaryScaleRule> project = {}) {
    ConvertOptions options;
    options.format = type == nullptr ? nullptr : &weight_format(std::string_view(type));
    options.project = project;
    convert_model(from, to, options);
  }
  static std::vector<float> random_values() {
    std::mt19937 random(8);
    std::normal_distribution<float> normal;
    std::vector<float> values(kRows * kCols);
    for (float& value : values) value = normal(random);
    return values;
  }

  TemporaryFolder folder_;
};

TEST_F(ConvertTernary, TernaryWeightsGoThroughEveryFormatAndBack) {
  // One scale per 256 values, which every 2-bit and base-3 format can hold; for sherry one zero in
  // every four.
  std::vector<float> values = random_values();
  ternary_project({.geometry = {.size = 256}}, kRows, kCols, values, {.values = values});
  std::vector<float> sparse = values;
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    const float scale = i % 256 < 128 ? 0.5F : 0.25F;
    sparse[i] = i % 4 == (i / 4) % 4 ? 0.0F : i % 7 < 3 ? -scale : scale;
  }
  for (const WeightFormat& format : weight_formats()) {
    if (!format.ternary) continue;
    const std::vector<float>& expected = format.name == "sherry_g128" ? sparse : values;
    write(expected);
    const std::string name(format.name);
    convert(folder_ / "t.safetensors", folder_ / (name + ".gguf"), name.c_str());
    EXPECT_TRUE(inspect_ternary(TensorFile::open(folder_ / (name + ".gguf"))).passed()) << name;
    convert(folder_ / (name + ".gguf"), folder_ / "back.safetensors", nullptr);
    const TensorFile back = TensorFile::open(folder_ / "back.safetensors");
    EXPECT_EQ(back.tensor("w").type, "f32");
    EXPECT_EQ(text_of(back.tensor("w").data), text_of(std::as_bytes(std::span(expected)))) << name;
  }
  // From one packing to the others, and back to the same bytes.
  for (const char* const other : {"tq1_0", "q2_0", "ptq1_0", "ternary_g64", "base3_g128"}) {
    convert(folder_ / "tq2_0.gguf", folder_ / "other.gguf", other);
    convert(folder_ / "other.gguf", folder_ / "again.gguf", "tq2_0");
    EXPECT_EQ(test::read_file(folder_ / "again.gguf"), test::read_file(folder_ / "tq2_0.gguf"))
        << other;
  }
}

// As in the conversion to f16: not silently another number.
TEST_F(ConvertTernary, ScalesBeyondF16AreRefused) {
  std::vector<float> values = random_values();
  values[68 * kCols + 300] = 1e5F;  // among small ones: their mean is a scale that f16 holds
  write(values);
  convert(folder_ / "t.safetensors", folder_ / "t.gguf", "tq2_0", TernaryScaleRule::mean);
  EXPECT_THAT(
      [&] {
        convert(folder_ / "t.safetensors", folder_ / "u.gguf", "tq2_0", TernaryScaleRule::absmax);
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("tensor 'w': row 68, column 256: a scale of 100000 is beyond f16")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "u.gguf"));
}

TEST_F(ConvertTernary, WhatIsNotTernaryIsRefusedByName) {
  std::vector<float> values = random_values();
  write(values);
  EXPECT_THAT([&] { convert(folder_ / "t.safetensors", folder_ / "t.gguf", "tq2_0"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("tensor 'w': row 0, column 0")));
  // Groups of 128 do not fit groups of 256.
  ternary_project({}, kRows, kCols, values, {.values = values});
  write(values);
  EXPECT_THAT([&] { convert(folder_ / "t.safetensors", folder_ / "t.gguf", "tq1_0"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("among magnitudes of")));
  // Two zeros in a row of four.
  EXPECT_THAT([&] { convert(folder_ / "t.safetensors", folder_ / "t.gguf", "sherry_g128"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("one zero in every four")));
  // One value in a late row.
  convert(folder_ / "t.safetensors", folder_ / "t.gguf", "pq2_0");
  values[68 * kCols + 130] = 0.3F;
  write(values);
  EXPECT_THAT([&] { convert(folder_ / "t.safetensors", folder_ / "u.gguf", "pq2_0"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("row 68")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "u.gguf"));
  // A projection of what is no number.
  values[68 * kCols + 131] = std::nanf("");
  write(values);
  for (const char* const format : {"pq2_0", "sherry_g128"}) {
    EXPECT_THAT(
        [&] {
          convert(folder_ / "t.safetensors", folder_ / "u.gguf", format, TernaryScaleRule::mean);
        },
        ThrowsMessage<InvalidArgument>(
            HasSubstr("tensor 'w': row 68, column 131: nan has no projection")));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "u.gguf"));
  }
  // Rows that are no whole groups.
  write(std::vector<float>(2 * 130, 1.0F), 130);
  EXPECT_THAT([&] { convert(folder_ / "t.safetensors", folder_ / "u.gguf", "ternary_g128"); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("tensor 'w': rows of 130 are no whole groups of 128")));
  // Safetensors has no blocks, and a projection needs a ternary format.
  EXPECT_THROW(convert(folder_ / "t.safetensors", folder_ / "u.safetensors", "tq2_0"),
               InvalidArgument);
  EXPECT_THROW(
      convert(folder_ / "t.safetensors", folder_ / "u.gguf", "q8_0", TernaryScaleRule::mean),
      InvalidArgument);
}

TEST_F(ConvertTernary, ProjectsByTheRuleThatIsAskedFor) {
  const std::vector<float> values = random_values();
  write(values);
  for (const auto rule :
       {TernaryScaleRule::mean, TernaryScaleRule::absmax, TernaryScaleRule::least_squares}) {
    convert(folder_ / "t.safetensors", folder_ / "t.gguf", "ptq1_0", rule);
    const TensorFile file = TensorFile::open(folder_ / "t.gguf");
    std::vector<float> found(values.size());
    decode_weights(weight_format("ptq1_0"), file.tensor("w").data, found);
    std::vector<float> expected(values.size());
    ternary_project({.scale = rule}, kRows, kCols, values, {.values = expected});
    EXPECT_EQ(found, expected) << ternary_scale_rule_name(rule);
  }
  convert(folder_ / "t.safetensors", folder_ / "t.gguf", "sherry_g128", TernaryScaleRule::mean);
  EXPECT_TRUE(inspect_ternary(TensorFile::open(folder_ / "t.gguf")).passed());
  EXPECT_THROW(convert(folder_ / "t.safetensors", folder_ / "t.gguf", "sherry_g128",
                       TernaryScaleRule::absmax),
               InvalidArgument);
}

}  // namespace
}  // namespace touchstone::io
