// The fuzz target with mutations of its corpus: the same ones each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "io/fuzz/allocation_count.h"
#include "touchstone/io/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace touchstone::io {
namespace {

std::vector<std::string> seeds() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(TOUCHSTONE_TOKENIZER_TESTDATA "/corpus")) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<std::string> texts;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  std::string next() {
    std::string text = texts_[below(texts_.size())];
    const std::size_t times = 1 + below(4);
    for (std::size_t i = 0; i < times; ++i) change(text);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  // Changes that keep the text near JSON: of values, of names, of parts.
  void change(std::string& text) {
    static constexpr std::string_view kPieces[] = {"\"\"",
                                                   "null",
                                                   "true",
                                                   "false",
                                                   "0",
                                                   "-1",
                                                   "4294967295",
                                                   "99999999999999999999",
                                                   "1e308",
                                                   "[]",
                                                   "{}",
                                                   "\"a\"",
                                                   "\"<0x41>\"",
                                                   "\"\\u0000\"",
                                                   "\"\\ud800\"",
                                                   "\"(a+)+b\"",
                                                   "\"[\"",
                                                   "\"\\\\p{L}\"",
                                                   "\"\xc3\xa9\"",
                                                   "\xff",
                                                   ",",
                                                   ":",
                                                   "\"",
                                                   "}",
                                                   "]",
                                                   "\"type\":\"BPE\",",
                                                   "\"\xe2\x96\x81\"",
                                                   "{\"Regex\":\"(a|b)*c\"}",
                                                   "{\"String\":\" \"}",
                                                   "\"Sequence\""};
    const std::size_t at = below(text.size() + 1);
    const std::size_t value = text.find(':', at);
    const std::string& other = texts_[below(texts_.size())];
    switch (below(6)) {
      case 0:
        text.erase(at, 1 + below(8));
        break;
      case 1:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 3: {
        const std::size_t from = below(other.size());
        text.insert(at, other.substr(from, below(80)));
        break;
      }
      case 4:  // a value instead of another
        if (value != std::string::npos) {
          const std::size_t end = text.find_first_of(",}]", value);
          if (end != std::string::npos) {
            text.replace(value + 1, end - value - 1, kPieces[below(std::size(kPieces))]);
          }
        }
        break;
      default:
        text.insert(at, text.substr(below(text.size()), below(60)));
    }
  }

  std::vector<std::string> texts_;
  std::mt19937_64 random_{20261116};  // NOLINT(bugprone-random-generator-seed): the same each time
};

TEST(TokenizerMutation, SeedsAreGood) {
  const std::vector<std::string> texts = seeds();
  EXPECT_GE(texts.size(), 20U);
  for (const std::string& text : texts) {
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()), 0);
  }
}

TEST(TokenizerMutation, NeitherCrashesNorHangs) {
  // 1e5 of them, under sanitizers: TOUCHSTONE_MUTATIONS=100000.
  const char* wanted = std::getenv("TOUCHSTONE_MUTATIONS");
  const long count = wanted == nullptr ? 3000 : std::atol(wanted);
  Mutator mutator(seeds());
  double slowest = 0;  // seconds of the processor
  for (long i = 0; i < count; ++i) {
    const std::string text = mutator.next();
    SCOPED_TRACE(i);
    reset_allocated_bytes();
    const std::clock_t start = std::clock();
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()), 0);
    slowest = std::max(slowest, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    ASSERT_LE(allocated_bytes(), kTokenizerMemoryFactor * text.size() + kTokenizerConstantBytes);
  }
  // Under a second; a sanitizer's code takes several times as long.
  EXPECT_LT(slowest, 5);
  RecordProperty("slowest_ms", static_cast<int>(slowest * 1000));
  if (wanted != nullptr) std::printf("%ld mutations, the slowest took %.3f s\n", count, slowest);
}

}  // namespace
}  // namespace touchstone::io
