// GGUF models in several files: read as one, refused where a part is missing or is another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "io/model/model_test_support.h"
#include "touchstone/core/error.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/model_file.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::io {
namespace {

using test::TemporaryFolder;
using test::text_of;
using test::write_file;

std::string part_name(std::uint32_t part, std::uint32_t parts) {
  char name[64];
  std::snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", part + 1, parts);
  return name;
}

struct Keys {
  std::uint32_t number;
  std::uint32_t count;
  std::int32_t tensors;
};

// Some tensors of an open file, with the keys of a part; the first part has all other keys.
void write_part(const std::filesystem::path& path, const TensorFile& from, std::size_t first,
                std::size_t last, const Keys& keys) {
  GgufMetadata metadata;
  if (first == 0) {
    for (const MetadataValue& value : from.metadata()) metadata.set(value);
  }
  metadata.set("split.no", keys.number);
  metadata.set("split.count", keys.count);
  metadata.set("split.tensors.count", keys.tensors);
  std::vector<OutputTensor> tensors;
  for (std::size_t i = first; i < last; ++i) {
    const TensorInfo& tensor = from.tensors()[i];
    tensors.push_back(
        {tensor.name, tensor.type, tensor.shape, [data = tensor.data](auto&) { return data; }});
  }
  write_gguf(path, metadata, tensors);
}

class GgufSplit : public ::testing::Test {
 protected:
  GgufSplit() : whole_(TensorFile::open(TOUCHSTONE_IO_TESTDATA "/models/llama.gguf")) {
    const auto count = static_cast<std::int32_t>(whole_.tensors().size());
    for (std::uint32_t part = 0; part < 3; ++part) {
      write(part, {part, 3, count});
    }
  }
  void write(std::uint32_t part, const Keys& keys) {
    const std::size_t count = whole_.tensors().size();
    write_part(folder_ / part_name(part, 3), whole_, part * count / 3, (part + 1) * count / 3,
               keys);
  }
  std::string error_of(const std::filesystem::path& path) const {
    try {
      TensorFile::open(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "opened";
  }

  TemporaryFolder folder_;
  TensorFile whole_;
};

TEST_F(GgufSplit, IsReadAsOneModel) {
  for (const auto& path : {folder_ / part_name(0, 3), folder_.path()}) {
    const ModelFile model = ModelFile::open(path);
    const ModelFile expected = ModelFile::open(TOUCHSTONE_IO_TESTDATA "/models/llama.gguf");
    EXPECT_EQ(model.file().files().size(), 3U);
    EXPECT_EQ(model.description(), expected.description());
    ASSERT_EQ(model.weights().size(), expected.weights().size());
    for (const WeightInfo& weight : expected.weights()) {
      EXPECT_EQ(text_of(model.load(weight.name).data), text_of(expected.load(weight.name).data));
    }
  }
  const TensorFile file = TensorFile::open(folder_.path());
  EXPECT_EQ(file.tensors().front().file, 0);
  EXPECT_EQ(file.tensors().back().file, 2);
}

TEST_F(GgufSplit, ConvertsToOneFile) {
  const TemporaryFolder out;
  convert_model(folder_ / part_name(0, 3), out / "one.gguf");
  const TensorFile one = TensorFile::open(out / "one.gguf");
  EXPECT_EQ(one.find_metadata("split.count"), nullptr);
  EXPECT_EQ(one.tensors().size(), whole_.tensors().size());
  EXPECT_EQ(ModelFile::open(out / "one.gguf").file().files().size(), 1U);
}

TEST_F(GgufSplit, RefusesPartsThatDoNotFit) {
  const auto first = folder_ / part_name(0, 3);
  const auto count = static_cast<std::int32_t>(whole_.tensors().size());
  EXPECT_THAT(error_of(folder_ / part_name(1, 3)), ::testing::HasSubstr("open the first of them"));
  write(1, {2, 3, count});
  EXPECT_THAT(error_of(first), ::testing::HasSubstr("split.no 2, split.count 3, expected 1 and 3"));
  write(1, {1, 4, count});
  EXPECT_THAT(error_of(first), ::testing::HasSubstr("split.count 4"));
  write(1, {1, 3, count});
  write(0, {0, 3, count + 1});
  EXPECT_THAT(error_of(first), ::testing::HasSubstr("the files hold"));
  write(0, {0, 4'000'000'000U, count});
  EXPECT_THAT(error_of(first), ::testing::HasSubstr("at most 99999"));
  write(0, {0, 3, count});
  write_part(folder_ / part_name(2, 3), whole_, 0, whole_.tensors().size() / 3, {2, 3, count});
  EXPECT_THAT(error_of(first), ::testing::HasSubstr("twice"));
  write_file(folder_ / part_name(2, 3), "no GGUF");
  EXPECT_THAT(error_of(first), ::testing::HasSubstr("not a GGUF file"));
  std::filesystem::remove(folder_ / part_name(2, 3));
  EXPECT_THAT(error_of(first), ::testing::HasSubstr("part 3 of 3 of the model is missing"));
  std::filesystem::rename(first, folder_ / "renamed.gguf");
  EXPECT_THAT(error_of(folder_ / "renamed.gguf"),
              ::testing::HasSubstr("expected a name like NAME-00001-of-00003.gguf"));
}

// Bytes of one part, which cannot bring the others.
TEST_F(GgufSplit, OnePartAloneIsNoModel) {
  const std::string bytes = test::read_file(folder_ / part_name(0, 3));
  TensorFile part = TensorFile::from_bytes("part", std::as_bytes(std::span(bytes)));
  EXPECT_LT(part.tensors().size(), whole_.tensors().size());
  EXPECT_THROW(ModelFile::from_gguf(std::move(part)), Unsupported);
}

}  // namespace
}  // namespace touchstone::io
