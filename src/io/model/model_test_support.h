// Folders of their own for tests, and the tiny models of testdata/models.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "touchstone/io/model_file.h"

namespace touchstone::io::test {

inline constexpr const char* kModels[] = {"llama",  "mistral", "qwen2", "qwen3",   "gemma2",
                                          "gemma3", "phi3",    "gpt2",  "gpt_neox"};

inline std::filesystem::path folder_of(std::string_view model) {
  return std::filesystem::path(TOUCHSTONE_IO_TESTDATA "/models") / model;
}
inline std::filesystem::path gguf_of(std::string_view model) {
  return folder_of(model).string() + ".gguf";
}

// Removed when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("touchstone_io_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace touchstone::io::test
