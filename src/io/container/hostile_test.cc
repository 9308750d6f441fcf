// Every file of testdata/hostile (scripts/make_hostile_files.py): refused with one line, or, where the
// container itself is fine, read without harm and refused as what it pretends to be.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "touchstone/core/error.h"
#include "touchstone/io/model_file.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::io {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_in(const char* folder) {
  std::vector<fs::path> paths;
  for (const auto& entry :
       fs::directory_iterator(fs::path(TOUCHSTONE_IO_TESTDATA "/hostile") / folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// One line that names the file.
void expect_refused(const fs::path& path, const auto& open) {
  try {
    open();
    FAIL() << path << " was accepted";
  } catch (const InvalidArgument& error) {
    FAIL() << path << ": a mistake of the file, not of the caller: " << error.what();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 500U) << message;
    EXPECT_FALSE(message.empty());
  }
}

TEST(Hostile, ContainersAreRefused) {
  std::size_t count = 0;
  for (const char* folder : {"gguf", "safetensors"}) {
    for (const fs::path& path : files_in(folder)) {
      expect_refused(path, [&] { TensorFile::open(path); });
      ++count;
    }
  }
  EXPECT_GE(count, 70U);
}

TEST(Hostile, ModelsAreRefusedThoughTheirContainersAreFine) {
  std::size_t count = 0;
  for (const fs::path& path : files_in("model")) {
    EXPECT_NO_THROW(TensorFile::open(path)) << path;
    expect_refused(path, [&] { ModelFile::open(path); });
    ++count;
  }
  EXPECT_GE(count, 15U);
}

TEST(Hostile, VocabulariesAreRefusedThoughTheirContainersAreFine) {
  std::size_t count = 0;
  for (const fs::path& path : files_in("tokenizer")) {
    EXPECT_NO_THROW(TensorFile::open(path)) << path;
    expect_refused(path, [&] { Tokenizer::from_file(path); });
    ++count;
  }
  EXPECT_GE(count, 15U);
  for (const fs::path& path : files_in("harmless")) {
    const Tokenizer tokenizer = Tokenizer::from_file(path);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("a")), "a") << path;
  }
}

TEST(Hostile, ArraysOfAnotherTypeAreRefused) {
  const TensorFile scores =
      TensorFile::open(TOUCHSTONE_IO_TESTDATA "/hostile/metadata/scores_as_u8.gguf");
  EXPECT_THROW(scores.find_metadata("tokenizer.ggml.scores")->floats(), CorruptData);
  EXPECT_THROW(scores.find_metadata("tokenizer.ggml.tokens")->strings(), CorruptData);
  EXPECT_EQ(scores.find_metadata("tokenizer.ggml.token_type")->integers(),
            (std::vector<std::int64_t>{1, 1, 1, 1}));
  const TensorFile tokens =
      TensorFile::open(TOUCHSTONE_IO_TESTDATA "/hostile/metadata/byte_token_minus_one.gguf");
  EXPECT_EQ(tokens.find_metadata("tokenizer.ggml.tokens")->strings()[0], "<0x-1>");
  EXPECT_THROW(tokens.find_metadata("tokenizer.ggml.tokens")->integers(), CorruptData);
}

TEST(Hostile, MessagesSayWhatIsWrong) {
  const auto message = [](const char* name) {
    try {
      TensorFile::open(std::string(TOUCHSTONE_IO_TESTDATA "/hostile/") + name);
    } catch (const Error& error) {
      const std::string text = error.what();
      return text.substr(text.rfind("hostile/") + 8);
    }
    return std::string();
  };
  EXPECT_EQ(message("gguf/offset_beyond_file.gguf"),
            "gguf/offset_beyond_file.gguf: tensor 't': 128 bytes at 1048576 of 128 bytes of data");
  EXPECT_EQ(message("gguf/type_q2_k.gguf"),
            "gguf/type_q2_k.gguf: tensor 't': type 10 (q2_k) is not supported");
  EXPECT_EQ(message("safetensors/shape_other.safetensors"),
            "safetensors/shape_other.safetensors: header: a.data_offsets: 16 bytes, but [3, 2] f32 "
            "take 24");
}

}  // namespace
}  // namespace touchstone::io
