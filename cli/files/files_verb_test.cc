// touchstone inspect and convert as their users meet them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/files/shown.h"
#include "json/json.h"
#include "tests/support/shell.h"

namespace touchstone::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kData = TOUCHSTONE_IO_TESTDATA;

// Both streams of the program with these arguments.
test::ShellResult run(const std::string& arguments) {
  return test::run_shell(std::string("'") + TOUCHSTONE_PROGRAM + "' " + arguments + " 2>&1");
}

TEST(InspectVerb, ShowsAModel) {
  for (const char* path : {"/models/llama.gguf", "/models/llama"}) {
    const test::ShellResult result = run(std::string("inspect --checksums ") + kData + path);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("family                llama"));
    EXPECT_THAT(result.out, HasSubstr("4 query, 2 key/value, of 4"));
    EXPECT_THAT(result.out, HasSubstr("f16   [8, 16]"));
  }
}

// A folder with a tokenizer and a template: facts of both, and what would be refused.
TEST(InspectVerb, ShowsTokenizerAndTemplate) {
  const fs::path folder =
      fs::temp_directory_path() / ("touchstone_inspect_" + std::to_string(::getpid()));
  fs::copy(std::string(kData) + "/models/llama", folder);
  const std::string text = (folder / "text.txt").string();
  std::ofstream(text) << "low lower lowest";
  const std::string tokenizer = (folder / "tokenizer.json").string();
  ASSERT_EQ(run("tokenize --train " + text + " --vocab 260 -o " + tokenizer).exit_code, 0);
  std::ofstream(folder / "tokenizer_config.json") << R"({"chat_template": "{{ messages }}\u001b"})";
  const std::string verb = "inspect --template " + folder.string();
  test::ShellResult result = run(verb);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("byte-level BPE, 260 tokens"));
  EXPECT_THAT(result.out, HasSubstr("chat template         15 bytes"));
  EXPECT_THAT(result.out, HasSubstr("{{ messages }}\\x1b"));
  const Json value = Json::parse(run(verb + " --json").out);
  EXPECT_EQ(value["tokenizer"]["tokens"], 260);
  EXPECT_EQ(value["chat_template"], "{{ messages }}\x1b");
  std::ofstream(tokenizer) << R"({"model": {"type": "LSTM"}})";
  std::ofstream(folder / "tokenizer_config.json") << R"({"chat_template": "{{ x | shout }}"})";
  result = run(verb);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("LSTM"));
  EXPECT_THAT(result.out, HasSubstr("unknown filter 'shout'"));
  fs::remove_all(folder);
}

TEST(InspectVerb, NamesWhatIsNoModel) {
  const fs::path folder =
      fs::temp_directory_path() / ("touchstone_no_model_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  for (const char* text : {"hi", "hello, this is a text\n", "%PDF-1.7 and more of it"}) {
    std::ofstream(folder / "a.txt") << text;
    const test::ShellResult result = run("inspect " + (folder / "a.txt").string());
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.out, HasSubstr("a.txt: neither GGUF nor safetensors\n"));
  }
  fs::remove_all(folder);
}

// Weights in another layout lie beside those of the model.
TEST(InspectVerb, PrefersModelSafetensors) {
  const fs::path folder =
      fs::temp_directory_path() / ("touchstone_two_files_" + std::to_string(::getpid()));
  fs::copy(std::string(kData) + "/models/llama", folder);
  fs::copy(std::string(kData) + "/seeds/two.safetensors", folder / "consolidated.safetensors");
  const test::ShellResult result = run("inspect " + folder.string());
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("family                llama"));
  fs::remove_all(folder);
}

TEST(InspectVerb, ShowsNothingThatSteersATerminal) {
  EXPECT_EQ(
      shown("a\x1b[2J\n\u009b\u202e\u2067\u2028\u061c\x7f é語", 100),
      "a\\x1b[2J\\x0a\\xc2\\x9b\\xe2\\x80\\xae\\xe2\\x81\\xa7\\xe2\\x80\\xa8\\xd8\\x9c\\x7f é語");
  EXPECT_EQ(shown("éé", 3), "é...");
}

TEST(InspectVerb, JsonParses) {
  const test::ShellResult result =
      run(std::string("inspect --json --checksums ") + kData + "/seeds/types.gguf");
  ASSERT_EQ(result.exit_code, 0);
  const Json value = Json::parse(result.out);
  EXPECT_EQ(value["container"], "gguf");
  EXPECT_EQ(value["tensors"].size(), 12U);
  EXPECT_EQ(value["tensors"][0]["type"], "f32");
  EXPECT_EQ(value["tensors"][0]["checksum"].get<std::string>().size(), 16U);
  EXPECT_TRUE(value["model"].is_null());
  EXPECT_EQ(value["metadata"].size(), 15U);
}

// Every crafted file: status 3 and one line, or a list for the containers that are fine.
TEST(InspectVerb, IsSafeOnHostileFiles) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(std::string(kData) + "/hostile")) {
    if (!entry.is_regular_file()) continue;
    const std::string folder = entry.path().parent_path().filename();
    const bool refused = folder == "gguf" || folder == "safetensors";
    for (const char* option : {"", "--json "}) {
      const test::ShellResult result =
          run(std::string("inspect --metadata ") + option + entry.path().string());
      ASSERT_EQ(result.exit_code, refused ? 3 : 0) << entry.path() << result.out;
      if (refused) {
        EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
      }
    }
    ++count;
  }
  EXPECT_GE(count, 90U);
  EXPECT_EQ(run("inspect /nowhere").exit_code, 3);
  EXPECT_EQ(run("inspect /dev/zero").exit_code, 3);
  EXPECT_EQ(run("inspect").exit_code, 2);
}

// A safetensors file with a matrix of one row.
void write_row(const fs::path& path, const std::vector<float>& row) {
  const std::size_t bytes = row.size() * sizeof(float);
  const std::string header = R"({"w":{"dtype":"F32","shape":[1,)" + std::to_string(row.size()) +
                             R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
  const std::uint64_t size = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file << header;
  file.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(bytes));
}

TEST(InspectVerb, TakesTernaryWeightsApart) {
  const fs::path out =
      fs::temp_directory_path() / ("touchstone_ternary_" + std::to_string(::getpid()));
  fs::create_directories(out);
  const std::string model = (out / "m.gguf").string();
  const std::string from = (out / "m.safetensors").string();
  std::vector<float> row(128, 0.5F);
  row[3] = 0;
  row[7] = -0.5F;
  write_row(from, row);
  ASSERT_EQ(run("convert " + from + " " + model + " --type ptq1_0").exit_code, 0);
  const test::ShellResult good = run("inspect --ternary " + model);
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_THAT(good.out, HasSubstr("visited 1 tensors, 1 groups, 128 values, 0.0078 of them zero"));
  EXPECT_THAT(good.out, HasSubstr("ternary: yes"));
  const Json value = Json::parse(run("inspect --ternary --json " + model).out);
  EXPECT_EQ(value["zero_codes"], 1);
  // Not ternary: refused, projected on demand; and a file without ternary weights.
  row[9] = 0.25F;
  write_row(from, row);
  const test::ShellResult refused = run("convert --force " + from + " " + model + " --type ptq1_0");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.out, HasSubstr("0.25 among magnitudes of 0.5"));
  EXPECT_EQ(
      run("convert --force " + from + " " + model + " --type ptq1_0 --project mean").exit_code, 0);
  EXPECT_EQ(
      run("convert --force " + from + " " + model + " --type ptq1_0 --project median").exit_code,
      2);
  const test::ShellResult none = run("inspect --ternary " + from);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.out, HasSubstr("tensor 'w': a matrix of f32 among ternary ones"));
  EXPECT_THAT(none.out, HasSubstr("no ternary tensor was visited"));
  fs::remove_all(out);
}

TEST(ConvertVerb, GoesThereAndBack) {
  const fs::path out =
      fs::temp_directory_path() / ("touchstone_convert_" + std::to_string(::getpid()));
  fs::create_directories(out);
  const std::string from = std::string(kData) + "/models/qwen2";
  const auto convert = [&](const std::string& arguments) { return run("convert " + arguments); };
  const test::ShellResult there = convert(from + " " + (out / "m.gguf").string() + " --json");
  ASSERT_EQ(there.exit_code, 0) << there.out;
  EXPECT_EQ(convert((out / "m.gguf").string() + " " + (out / "back").string()).exit_code, 0);
  const auto sums = [&](const std::string& path) {
    const Json value = Json::parse(run("inspect --json --checksums " + path).out);
    std::vector<std::string> list;
    for (const Json& tensor : value["tensors"]) {
      list.push_back(tensor["name"].get<std::string>() + tensor["checksum"].get<std::string>());
    }
    std::sort(list.begin(), list.end());
    return list;
  };
  EXPECT_EQ(sums(from), sums((out / "back").string()));
  // A folder that is there, a format that is not, a container that does not have it.
  EXPECT_EQ(convert(from + " " + (out / "back").string()).exit_code, 2);
  EXPECT_EQ(convert(from + " " + (out / "x.gguf").string() + " --type q9").exit_code, 2);
  EXPECT_EQ(convert(from + " " + (out / "x").string() + " --type q8_0").exit_code, 2);
  EXPECT_EQ(convert(std::string(kData) + "/hostile/gguf/overlap.gguf " + (out / "x.gguf").string())
                .exit_code,
            3);
  EXPECT_EQ(convert(from + " " + (out / "x.gguf").string() + " --shard-mb 1").exit_code, 2);
  EXPECT_FALSE(fs::exists(out / "x.gguf"));
  // A file that is there is replaced on demand only; a name that looks like a file is no folder.
  const std::string again = from + " " + (out / "m.gguf").string();
  const test::ShellResult kept = convert(again);
  EXPECT_EQ(kept.exit_code, 2);
  EXPECT_THAT(kept.out, HasSubstr("is there already; --force replaces it"));
  EXPECT_EQ(convert(again + " --force").exit_code, 0);
  for (const char* name : {"y.safetensors", "y.bin", "y.GGUF"}) {
    const test::ShellResult file = convert(from + " " + (out / name).string());
    EXPECT_EQ(file.exit_code, 2);
    EXPECT_THAT(file.out, HasSubstr("expected NAME.gguf, or a folder for safetensors"));
    EXPECT_FALSE(fs::exists(out / name));
  }
  fs::remove_all(out);
}

}  // namespace
}  // namespace touchstone::cli
