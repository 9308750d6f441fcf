// touchstone plan as its users meet it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "json/json.h"
#include "tests/support/shell.h"

namespace touchstone::cli {
namespace {

using json = Json;
using testing::HasSubstr;

// Both streams of `touchstone plan` with these arguments.
test::ShellResult plan(const std::string& arguments) {
  return test::run_shell(std::string("'") + TOUCHSTONE_PROGRAM + "' plan " + arguments + " 2>&1");
}

void expect_one_line(const std::string& arguments, int exit_code, const char* message) {
  const test::ShellResult result = plan(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << arguments;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
  EXPECT_THAT(result.out, HasSubstr(message));
}

TEST(PlanVerb, SaysWhatFits) {
  const test::ShellResult result =
      plan("--model llama-2-7b --gpu h100-sxm-80gb --kv-dtype f16 --batch 8");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("524288 bytes, 512 KiB"));
  EXPECT_THAT(result.out, HasSubstr("12.55 GiB"));
  EXPECT_THAT(result.out, HasSubstr("Most sequences of 4096 tokens: 32"));
}

TEST(PlanVerb, JsonParses) {
  const test::ShellResult result =
      plan("--model llama-3-8b --gpu a100-40gb --kv-dtype k8v4 --json");
  ASSERT_EQ(result.exit_code, 0);
  const json value = json::parse(result.out);
  EXPECT_EQ(value["cache"]["bytes_per_token"], 32 * 8 * (130 + 80));
  EXPECT_EQ(value["per_gpu"]["weight_bytes"], 16060522496);
  EXPECT_EQ(value["fits"], true);
  EXPECT_EQ(value["growth"].back()["tokens"], 8192);
  EXPECT_GT(value["decode"]["most_tokens_per_second"].get<double>(), 0);
  EXPECT_FALSE(value["model"]["source"].get<std::string>().empty());
  EXPECT_FALSE(value["alternatives"].empty());
}

TEST(PlanVerb, ListsWhatItKnows) {
  EXPECT_THAT(plan("--list").out, HasSubstr("Llama-2-70B"));
  EXPECT_GE(json::parse(plan("--list --json").out)["gpus"].size(), 36U);
}

TEST(PlanVerb, WhatDoesNotFitIsExitCodeOne) {
  const test::ShellResult result = plan("--model llama-2-70b --gpu t4");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("does not fit"));
}

TEST(PlanVerb, ListsMakeOneTable) {
  const std::string lists = "--model llama-3-8b,gpt-2 --gpu t4,h100-sxm-80gb --batch 1,8";
  const test::ShellResult text = plan(lists);
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("longest context"));
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 2 + 8) << text.out;
  const test::ShellResult markdown = plan(lists + " --markdown");
  EXPECT_THAT(markdown.out, HasSubstr("|---|"));
  EXPECT_THAT(markdown.out, HasSubstr("| Llama-3-8B | T4 | 8 | 14.96 GiB |"));
  const Json rows = Json::parse(plan(lists + " --json").out)["plans"];
  ASSERT_EQ(rows.size(), 8U);
  EXPECT_EQ(rows[2]["model"], "Llama-3-8B");
  EXPECT_EQ(rows[2]["gpu"], "H100 SXM 80GB");
  EXPECT_EQ(rows[2]["cache"][1]["tokens"], 8192);
  EXPECT_EQ(rows[2]["cache"][1]["bytes"], std::int64_t{1} << 30);
  EXPECT_EQ(rows[1]["fits"], false);
  // The same numbers as the plan of one.
  const Json one = Json::parse(
      plan("--model llama-3-8b --gpu h100-sxm-80gb --batch 8 --context 8192 --json").out);
  EXPECT_EQ(rows[3]["most_tokens_per_second"], one["decode"]["most_tokens_per_second"]);
  EXPECT_EQ(rows[3]["max_context"], one["max_context"]);
}

TEST(PlanVerb, AllMeansEveryModelAndGpu) {
  const Json known = Json::parse(plan("--list --json").out);
  const Json rows = Json::parse(plan("--model all --gpu all --batch all --json").out)["plans"];
  EXPECT_EQ(rows.size(), known["models"].size() * known["gpus"].size() * 4);
  EXPECT_EQ(plan("--model llama-3.1-405b --gpu t4,l4").exit_code, 1);  // none fits
}

TEST(PlanVerb, PrefillTokensSizeTheActivations) {
  const auto activations = [](const std::string& more) {
    return Json::parse(
               plan("--model gpt-2 --gpu t4 --json" + more).out)["per_gpu"]["activation_bytes"]
        .get<std::int64_t>();
  };
  EXPECT_EQ(activations(" --prefill-tokens 4096"), 2 * activations(""));
  EXPECT_LT(activations(" --gpus 2"), activations(""));
}

TEST(PlanVerb, WritesAPlot) {
  const std::string path = testing::TempDir() + "touchstone_plan.svg";
  EXPECT_EQ(plan("--model gpt-2 --gpu t4 --svg " + path).exit_code, 0);
  std::ifstream file(path);
  const std::string svg{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  // 4096 bytes of it: the plot that was there stays whole.
  const test::ShellResult full =
      test::run_shell(std::string("ulimit -f 8; trap '' XFSZ; '") + TOUCHSTONE_PROGRAM +
                      "' plan --model llama-2-7b --gpu t4 --svg " + path + " 2>&1");
  EXPECT_EQ(full.exit_code, 3) << full.out;
  std::ifstream again(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(again), {}), svg);
  std::remove(path.c_str());
  expect_one_line("--model gpt-2 --gpu t4 --svg /nowhere/at/all.svg", 3, "/nowhere/at/all.svg");
}

TEST(PlanVerb, MistakesAreOneLine) {
  expect_one_line("", 2, "--model is required");
  expect_one_line("--model gpt-2", 2, "--gpu is required");
  expect_one_line("--model lama-2-7b --gpu t4", 2, "Llama-2-7B");
  expect_one_line("--model gpt-2 --gpu h1000", 2, "nearest");
  expect_one_line("--model gpt-2 --gpu t4 --kv-dtype k9v4", 2, "k9v4");
  expect_one_line("--model gpt-2 --gpu t4 --weights-dtype f17", 2, "f17");
  expect_one_line("--model gpt-2 --gpu t4 --context 0", 2, "--context");
  expect_one_line("--model gpt-2 --gpu t4 --batch -3", 2, "--batch");
  expect_one_line("--model gpt-2 --gpu t4 --batch 1,x", 2, "got 'x'");
  expect_one_line("--model gpt-2,lama --gpu t4", 2, "lama");
  expect_one_line("--model gpt-2 --gpu t4,h200 --svg x.svg", 2, "--svg");
  expect_one_line("--model gpt-2 --gpu t4 --json --markdown", 2, "--markdown");
  expect_one_line("--model gpt-2 --gpu t4 --context 9223372036854775807", 2, "context");
  expect_one_line("--model gpt-2 --gpu t4 --batch 4294967296 --context 281474976710656", 2,
                  "64 bits");
}

TEST(PlanVerb, BadConfigurationsAreExitCodeThree) {
  expect_one_line("--model /nowhere/config.json --gpu t4", 3, "/nowhere/config.json");
  const std::string path = testing::TempDir() + "touchstone_plan_config.json";
  for (const char* text : {"", "{\"hidden_size\": 12", "{\"hidden_size\": \"x\"}", "[1]"}) {
    std::ofstream(path) << text;
    expect_one_line("--model " + path + " --gpu t4", 3, "touchstone_plan_config.json: ");
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace touchstone::cli
