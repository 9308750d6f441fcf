// A folder with a random model and a tokenizer trained for it, and the program run in it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "json/json.h"
#include "model/model_test_support.h"
#include "tests/support/shell.h"

namespace touchstone::cli {

namespace fs = std::filesystem;

class DecodingVerb : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new model::test::ModelFolder("verbs");
    golden_ = model::test::read_json(fs::path(TOUCHSTONE_MODEL_TESTDATA) / "qwen2.json");
    folder_->write(golden_["config"], golden_["tensors"]);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "word" + std::to_string(i * i) + " of line\n";
    std::ofstream(folder_->path() / "text.txt") << text;
    const auto trained =
        shell("tokenize --train text.txt --vocab 400 --special '<s>,</s>' -o tokenizer.json 2>&1");
    ASSERT_EQ(trained.exit_code, 0) << trained.out;
    std::ofstream(folder_->path() / "chat_template.jinja")
        << "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>\n{% endfor %}"
           "{% if add_generation_prompt %}<s>assistant: {% endif %}";
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static test::ShellResult shell(const std::string& arguments) {
    return test::run_shell("cd '" + folder_->path().string() + "' && '" + TOUCHSTONE_PROGRAM +
                           "' " + arguments);
  }
  static test::ShellResult run(const std::string& arguments) {
    return shell(arguments + " 2>/dev/null </dev/null");
  }
  static void expect_one_line(const std::string& arguments, int exit_code, const char* message) {
    const test::ShellResult result = shell(arguments + " 2>&1 </dev/null");
    EXPECT_EQ(result.exit_code, exit_code) << arguments << ": " << result.out;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
    EXPECT_THAT(result.out, testing::HasSubstr(message));
  }
  // A copy of the model with other tensors, in a folder beside it.
  static std::string variant(const char* name, const Json& config, const Json& tensors) {
    const fs::path path = folder_->path() / name;
    fs::create_directories(path);
    model::test::write_model(path, config, tensors);
    fs::copy_file(folder_->path() / "tokenizer.json", path / "tokenizer.json");
    return name;
  }

  static inline model::test::ModelFolder* folder_ = nullptr;
  static inline Json golden_;
};

}  // namespace touchstone::cli
