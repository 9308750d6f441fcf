// Mutated files: no crash (the sanitizer builds run this too), and no allocation beyond the documented
// factor. For long runs TOUCHSTONE_MUTATIONS in the environment sets the number of files of each kind,
// TOUCHSTONE_MUTATION_SEED which ones.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/fuzz/allocation_count.h"
#include "io/fuzz/exercise.h"
#include "io/fuzz/mutate.h"
#include "io/json_document.h"
#include "tests/support/runners.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::io {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

// Messages, exceptions, and the layers of a description, whose number a short file can set to 4096.
constexpr std::size_t kConstantBytes = 256 << 10;

std::int64_t mutations(std::int64_t usual) {
  const char* const wanted = std::getenv("TOUCHSTONE_MUTATIONS");
  return wanted != nullptr ? std::atoll(wanted) : test::sanitized_size(usual, usual / 8);
}

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::vector<Bytes> seeds(const char* ending) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(TOUCHSTONE_IO_TESTDATA "/seeds")) {
    if (entry.path().extension() == ending) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // the order of a folder is nobody's promise
  std::vector<Bytes> files;
  for (const fs::path& path : paths) files.push_back(read(path));
  return files;
}

void run(const std::vector<Bytes>& files, std::int64_t count, std::size_t factor,
         bool (*exercise)(std::span<const std::byte>), std::size_t constant = kConstantBytes) {
  ASSERT_GE(files.size(), 3U);
  for (const Bytes& file : files) ASSERT_LE(file.size(), 4096U);
  const char* const seed = std::getenv("TOUCHSTONE_MUTATION_SEED");
  Mutator mutator(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 2026);
  std::int64_t accepted = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bytes file = files[mutator.pick(files.size())];
    mutator.mutate(file, files[mutator.pick(files.size())]);
    // In memory of just this size, so that a sanitizer sees every byte beyond it.
    const std::unique_ptr<std::byte[]> exact(new std::byte[file.size()]);
    std::copy(file.begin(), file.end(), exact.get());
    reset_allocated_bytes();
    accepted += exercise({exact.get(), file.size()}) ? 1 : 0;
    ASSERT_LE(allocated_bytes(), factor * file.size() + constant) << "mutation " << i;
  }
  // A test in which every file is refused at the first byte would see nothing.
  EXPECT_GT(accepted, count / 100);
  EXPECT_LT(accepted, count);
}

// Everything the exercise does, weights loaded and descriptions written included, so twice the factor
// of opening.
TEST(Mutations, Gguf) {
  run(seeds(".gguf"), mutations(200'000), 2 * kTensorFileMemoryFactor, exercise_tensor_file);
}

// Of docs/tokenizers.md; the caches of a tokenizer are in the constant.
TEST(Mutations, Vocabularies) {
  std::vector<Bytes> files;
  for (const Bytes& file : seeds(".gguf")) {
    if (exercise_vocabulary(file)) files.push_back(file);
  }
  ASSERT_EQ(files.size(), 5U);
  run(files, mutations(20'000), kTokenizerMemoryFactor, exercise_vocabulary,
      kTokenizerConstantBytes);
}

TEST(Mutations, Safetensors) {
  run(seeds(".safetensors"), mutations(200'000), 2 * kTensorFileMemoryFactor, exercise_tensor_file);
}

TEST(Mutations, Config) {
  run(seeds(".json"), mutations(100'000), 2 * kJsonMemoryFactor, exercise_config);
}

// Three readers take their turns with each.
TEST(Mutations, SideTexts) {
  run(seeds(".json"), mutations(20'000), 6 * kJsonMemoryFactor, exercise_side_text);
}

}  // namespace
}  // namespace touchstone::io
