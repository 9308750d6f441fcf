// The fuzz target with mutations of the corpus and of the golden templates: the same ones each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "io/fuzz/allocation_count.h"
#include "io/json_document.h"
#include "touchstone/io/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace touchstone::io {
namespace {

// Of the limits in the fuzz target, and messages; what parsing allocates, released or not, is twice
// what the result takes.
constexpr std::size_t kMaxBytes = kTemplateBytesPerStep * 100'000 + (2U << 20) + (64U << 10);
constexpr std::size_t kParserBytesPerByte = 2 * 256;

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::string> seeds() {
  const std::filesystem::path folder(TOUCHSTONE_CHAT_TESTDATA);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "corpus")) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<std::string> texts;
  for (const auto& file : files) texts.push_back(read(file));
  const std::string golden = read(folder / "golden.json");
  const JsonDocument document("golden.json", golden);
  for (const JsonValue entry : document.root().at("cases")) {
    texts.emplace_back(entry.at("template").as_string());
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

  void change(std::string& text) {
    static constexpr std::string_view kPieces[] = {
        "{%",          "%}",          "{{",       "}}",
        "-",           "|",           "(",        ")",
        "[",           "]",           "{",        "}",
        ".",           ",",           ":",        "'",
        "\\",          " if ",        " else ",   " in ",
        " not ",       " is ",        " and ",    "{% endfor %}",
        "{% endif %}", "loop",        "messages", "ns",
        "x",           "99999999999", "-1",       "0",
        "1.5",         "none",        "range(9)", "~",
        "**",          "%",           "\xff",     "\xc3\xa9",
        "\n",          "{#",          "#}",       "|map('upper')",
        "|list",       "|tojson",     "recursive"};
    const std::size_t at = below(text.size() + 1);
    const std::size_t count = std::min(text.size() - at, 1 + below(8));
    const std::string& other = texts_[below(texts_.size())];
    const std::size_t from = below(other.size() + 1);
    switch (below(5)) {
      case 0:
        text.erase(at, count);
        break;
      case 1:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 3:
        text.insert(at, other.substr(from, below(64)));
        break;
      default:
        text.insert(at, text.substr(below(text.size() + 1), below(32)));
    }
  }

  std::vector<std::string> texts_;
  std::mt19937_64 random_{20260704};  // NOLINT(bugprone-random-generator-seed): the same each time
};

TEST(ChatTemplateMutation, NeitherCrashesNorHangs) {
  // 1e5 of them, under sanitizers: TOUCHSTONE_MUTATIONS=100000.
  const char* wanted = std::getenv("TOUCHSTONE_MUTATIONS");
  const long count = wanted == nullptr ? 6000 : std::atol(wanted);
  Mutator mutator(seeds());
  for (long i = 0; i < count; ++i) {
    const std::string text = mutator.next();
    SCOPED_TRACE(i);
    reset_allocated_bytes();
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()), 0);
    EXPECT_LE(allocated_bytes(), kMaxBytes + kParserBytesPerByte * text.size());
  }
}

}  // namespace
}  // namespace touchstone::io
