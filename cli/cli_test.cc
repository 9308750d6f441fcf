// The program as its users meet it: exit codes, what goes to which stream, JSON that can be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "json/json.h"
#include "spec/spec.h"
#include "tests/support/shell.h"
#include "touchstone/core/device.h"
#include "touchstone/version.h"

namespace touchstone::cli {
namespace {

using json = Json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

struct Result {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::string contents(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs a shell command in which $T is the program.
Result shell(const std::string& command) {
  const std::string errors = testing::TempDir() + "touchstone_cli_test.err";
  const std::string line =
      std::string("T='") + TOUCHSTONE_PROGRAM + "'; { " + command + "; } 2>'" + errors + "'";
  const test::ShellResult run = test::run_shell(line);
  return {run.exit_code, run.out, contents(errors)};
}

Result touchstone(const std::string& arguments) { return shell("\"$T\" " + arguments); }

long lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Cli, SaysItsVersion) {
  const Result result = touchstone("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, std::string("touchstone ") + version() + "\n");
}

TEST(Cli, HelpIsData) {
  for (const char* arguments : {"--help", "info --help", "bench --help", "selfcheck --help"}) {
    const Result result = touchstone(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments;
    EXPECT_THAT(result.out, HasSubstr("Usage: touchstone")) << arguments;
    EXPECT_THAT(result.err, IsEmpty()) << arguments;
  }
}

TEST(Cli, WithoutAVerbItExplainsItself) {
  const Result result = touchstone("");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("bench"));
}

struct Mistake {
  const char* arguments;
  const char* message;
};

class CliMistake : public testing::TestWithParam<Mistake> {};

TEST_P(CliMistake, IsOneLineAndExitCodeTwo) {
  const Result result = touchstone(GetParam().arguments);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_EQ(lines(result.err), 1) << result.err;
  EXPECT_THAT(result.err, StartsWith("touchstone: "));
  EXPECT_THAT(result.err, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, CliMistake,
    testing::Values(
        Mistake{"benhc", "did you mean 'bench'?"}, Mistake{"frobnicate", "touchstone --help"},
        Mistake{"bench --ronds 3", "did you mean --rounds?"},
        Mistake{"bench layernorm", "layernorm"}, Mistake{"bench layer_norm rms_norm", "rms_norm"},
        Mistake{"bench --case tiny", "--case"}, Mistake{"bench --rounds 0", "--rounds"},
        Mistake{"bench --rounds abc", "got 'abc'"}, Mistake{"bench --rounds 3.5", "got '3.5'"},
        Mistake{"bench --threads 0", "--threads"}, Mistake{"bench --threads -1", "--threads"},
        Mistake{"bench --dtype f33", "f33"}, Mistake{"bench --dtype i32", "--dtype"},
        Mistake{"bench --device tpu", "--device"}, Mistake{"bench --device cuda:x", "cuda:x"},
        Mistake{"bench --direction up", "--direction"}, Mistake{"bench --peers foo", "'foo'"},
        Mistake{"bench --simd MMX", "MMX"},
        Mistake{"bench layer_norm --impl fastest", "expected one of simd, plain, got 'fastest'"},
        Mistake{"bench sample --impl fastest", "got 'fastest'"},
        Mistake{"bench sample --dtype f64", "got f64"},
        Mistake{"bench kv_append --dtype f64", "got f64"},
        Mistake{"bench attention --impl fastest", "got 'fastest'"},
        Mistake{"bench attention --rows 5 --cols 5", "not for attention"},
        Mistake{"bench layer_norm --backward", "--direction"},
        Mistake{"bench cached_attention --dtype bf16", "formats"},
        Mistake{"bench cached_attention --impl fastest", "got 'fastest'"},
        Mistake{"bench cached_attention --rows 4294967296 --cols 4294967296", "64 bits"},
        Mistake{"bench kv_append --impl fastest", "got 'fastest'"},
        Mistake{"bench kv_append --rows 4 --cols 100", "multiple of 128"},
        Mistake{"bench kv_cache --device cuda", "expected cpu for kv_cache"},
        Mistake{"bench --k 0", "--k"}, Mistake{"bench --rows 5", "both or neither"},
        Mistake{"bench --rows 99999999999999999999 --cols 2", "'99999999999999999999'"},
        Mistake{"info --op softmax", "softmax"}, Mistake{"info --op layer_norm --dtype f33", "f33"},
        Mistake{"info --op layer_norm --dtype i8", "i8"},
        Mistake{"info --op layer_norm --rows -1", "got '-1'"},
        Mistake{"info --op layer_norm --rows 9223372036854775807", "64 bits"},
        Mistake{"info --op sample --dtype f64", "f64"},
        Mistake{"info --op softmax_topk --cols 8 --k 9", "got 9"},
        Mistake{"info --op sample --backward", "--backward"}, Mistake{"info --op", "--op"},
        Mistake{"info --rows 5", "--rows requires --op"},
        Mistake{"info --device cuda", "--device requires --op"},
        Mistake{"info --json --markdown", "--markdown: expected no --json"},
        Mistake{"info --op layer_norm --markdown", "--markdown: expected no --json or --op"},
        Mistake{"info --op layer_norm --rows 2 --rows 3", "--rows: expected once, got 2 times"},
        Mistake{"info more", "'more'"}, Mistake{"selfcheck --jsno", "did you mean --json?"}));

// Sizes that cannot be served are refused before anything is allocated.
INSTANTIATE_TEST_SUITE_P(
    Huge, CliMistake,
    testing::Values(Mistake{"bench layer_norm --rows 10000000 --cols 10000000",
                            "MiB are available"},
                    Mistake{"bench sample --rows 10000000 --cols 10000000", "MiB"},
                    Mistake{"bench kv_append --rows 1000000000 --cols 1024", "MiB"},
                    Mistake{"bench kv_append --rows 4294967296 --cols 4294967296", "64 bits"},
                    Mistake{"bench softmax_topk --rows 4294967296 --cols 4294967296", "64 bits"},
                    Mistake{"bench layer_norm --rows 1000000000 --cols 1000000000", "64 bits"},
                    Mistake{"bench rms_norm --rows 4294967296 --cols 4294967296", "64 bits"}));

TEST(Cli, ADeviceThatIsNotThereIsExitCodeThree) {
  for (const char* arguments :
       {"bench --device cuda:4095", "info --op rms_norm --device cuda:4095"}) {
    const Result result = touchstone(arguments);
    EXPECT_EQ(result.exit_code, 3) << arguments;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_EQ(lines(result.err), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("cuda:4095"));
  }
}

TEST(Cli, InfoDescribesTheMachine) {
  const Result text = touchstone("info");
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr(simd_target()));
  EXPECT_THAT(text.out, Not(HasSubstr("\x1b"))) << "colors are for terminals";
  const Result result = touchstone("info --json");
  EXPECT_EQ(result.exit_code, 0);
  const json info = json::parse(result.out);
  EXPECT_EQ(info.at("version"), version());
  EXPECT_GE(info.at("cpu").at("usable_cores").get<int>(), 1);
  EXPECT_EQ(info.at("simd").at("chosen"), info.at("simd").at("targets").at(0));
  EXPECT_EQ(info.at("cuda").at("built"), built_with_cuda());
  EXPECT_EQ(info.at("cuda").at("devices").size(), cuda_devices().size());
  EXPECT_EQ(info.at("operators").size(), spec::all().size());
}

TEST(Cli, InfoShowsWhichImplementationRuns) {
  for (const char* call : {"layer_norm", "layer_norm --backward", "rms_norm", "rms_norm_backward",
                           "softmax_topk", "sample"}) {
    // Larger than any memory: a question about shapes allocates nothing.
    const Result result = touchstone(
        std::string("info --json --rows 1000000000 --cols 65536 --dtype bf16 --op ") + call);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json info = json::parse(result.out);
    const json& list = info.at("implementations");
    ASSERT_FALSE(list.empty());
    EXPECT_EQ(list.at(0).at("chosen"), true);
    for (const json& item : list) {
      EXPECT_EQ(item.at("accepted").get<bool>(), item.at("refusal").get<std::string>().empty());
    }
  }
}

TEST(Cli, SelfcheckPasses) {
  const Result result = touchstone("selfcheck --json");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("ok"), true);
  EXPECT_GE(document.at("checks").size(), 60U);
  for (const json& check : document.at("checks")) {
    EXPECT_EQ(check.at("ok"), true) << check;
    EXPECT_LE(check.at("error_over_bound").get<double>(), 1.0) << check;
  }
}

void expect_row(const json& row) {
  for (const char* name : {"op", "impl", "device", "dtype", "regime"}) {
    EXPECT_TRUE(row.at(name).is_string()) << name;
  }
  for (const char* name : {"us", "spread", "floor_us", "fraction", "copy_gbs", "copy_same_size_us",
                           "best_us", "bytes", "error"}) {
    EXPECT_TRUE(row.at(name).is_number()) << name;
  }
  EXPECT_EQ(row.at("shape").size(), 2U);
  EXPECT_GT(row.at("us").get<double>(), 0);
  EXPECT_GT(row.at("floor_us").get<double>(), 0);
  EXPECT_NEAR(row.at("fraction").get<double>(),
              row.at("floor_us").get<double>() / row.at("us").get<double>(), 1e-9);
  EXPECT_EQ(row.at("correct"), true);
  ASSERT_FALSE(row.at("peers").empty());
  for (const json& peer : row.at("peers")) {
    EXPECT_TRUE(peer.at("name").is_string());
    EXPECT_GT(peer.at("us").get<double>(), 0);
  }
}

TEST(Cli, BenchRowsAreComplete) {
  const Result result = touchstone(
      "bench rms_norm --rows 16 --cols 100 --dtype bf16 --regime cache --rounds 2 --threads 2 "
      "--peers naive --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  const json document = json::parse(result.out);
  for (const char* name : {"version", "machine", "date", "command", "simd"}) {
    EXPECT_TRUE(document.at(name).is_string()) << name;
  }
  EXPECT_GT(document.at("copy_gbs").get<double>(), 0);
  EXPECT_EQ(document.at("threads"), 2);
  EXPECT_THAT(document.at("command").get<std::string>(), StartsWith("touchstone bench rms_norm"));
  const json& rows = document.at("rows");
  ASSERT_EQ(rows.size(), 2U);
  for (const json& row : rows) expect_row(row);
  EXPECT_EQ(rows.at(0).at("op"), "rms_norm");
  EXPECT_EQ(rows.at(1).at("op"), "rms_norm_backward");
  EXPECT_EQ(rows.at(0).at("bytes"), 2 * 16 * 100 * 2);
  EXPECT_EQ(rows.at(1).at("bytes"), 3 * 16 * 100 * 2);
}

TEST(Cli, BenchRowsOfSelections) {
  for (const std::string op : {"softmax_topk", "sample"}) {
    const Result result =
        touchstone("bench " + op +
                   " --rows 3 --cols 100 --k 8 --dtype bf16 --regime cache --rounds 1 --threads 2 "
                   "--peers naive,partial_sort --json");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, IsEmpty());
    const json document = json::parse(result.out);
    ASSERT_EQ(document.at("rows").size(), 1U);
    const json& row = document.at("rows").at(0);
    expect_row(row);
    EXPECT_EQ(row.at("op"), op);
    EXPECT_EQ(row.at("k"), 8);
    EXPECT_EQ(row.at("bytes"), 3 * 100 * 2 + 3 * 8 * (op == "sample" ? 1 : 8));
    EXPECT_EQ(row.at("peers").size(), 2U);
    EXPECT_GT(row.at("read_floor_us").get<double>(), 0);
  }
}

TEST(Cli, BenchRowsOfAttention) {
  for (const std::string direction : {"", " --backward"}) {
    const Result result =
        touchstone("bench attention --rounds 1 --threads 2 --peers none --json" + direction);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json document = json::parse(result.out);
    EXPECT_GT(document.at("fma_gflops").get<double>(), 0);
    ASSERT_EQ(document.at("rows").size(), 4U);
    for (const json& row : document.at("rows")) {
      EXPECT_EQ(row.at("op"), direction.empty() ? "attention" : "attention_backward");
      EXPECT_EQ(row.at("correct"), true);
      EXPECT_GT(row.at("tflops").get<double>(), 0);
    }
    // 4 B H S S D, and 2.5 times that.
    const double forward = 4.0 * 4 * 512 * 512 * 64;
    EXPECT_EQ(document.at("rows").at(0).at("flops"), direction.empty() ? forward : 2.5 * forward);
  }
}

TEST(Cli, BenchRowsOfCachedAttention) {
  const Result result = touchstone(
      "bench cached_attention --rows 2 --cols 100 --regime cache --rounds 1 --threads 2 "
      "--peers naive --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  const json document = json::parse(result.out);
  ASSERT_EQ(document.at("rows").size(), 2U);
  for (const json& row : document.at("rows")) {
    expect_row(row);
    EXPECT_EQ(row.at("heads"), "32/8x128");
    EXPECT_EQ(row.at("peers").size(), 2U);  // naive and contiguous
  }
  const json& bf16 = document.at("rows").at(0);
  EXPECT_EQ(bf16.at("format"), "bf16");
  // K and V, a query in bf16, an output in f32.
  EXPECT_EQ(bf16.at("bytes"), 2 * (100 * 8 * 128 * 2 * 2 + 32 * 128 * (2 + 4)));
}

TEST(Cli, BenchRowsOfKvAppend) {
  const Result result = touchstone(
      "bench kv_append --rows 20 --cols 256 --dtype bf16 --regime cache --rounds 1 --threads 2 "
      "--peers naive --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  const json document = json::parse(result.out);
  ASSERT_EQ(document.at("rows").size(), 5U);
  for (const json& row : document.at("rows")) expect_row(row);
  const json& int8 = document.at("rows").at(1);
  EXPECT_EQ(int8.at("op"), "kv_append");
  EXPECT_EQ(int8.at("format"), "int8");
  // K and V: two bytes in, one byte out, and a scale of two bytes for each 32.
  EXPECT_EQ(int8.at("bytes"), 2 * 20 * (256 * 3 + 256 / 32 * 2));
}

TEST(Cli, InfoAnswersForEveryOperator) {
  const json info = json::parse(touchstone("info --json").out);
  for (const json& op : info.at("operators")) {
    const Result result =
        touchstone("info --json --cols 128 --dtype f32 --op " + op.at("name").get<std::string>());
    EXPECT_EQ(result.exit_code, 0) << op << result.err;
  }
}

TEST(Cli, GradcheckPassesByBothMethodsAndFindsAPlantedError) {
  for (const std::string op : {"layer_norm", "rms_norm", "attention"}) {
    for (const std::string method : {"dual", "differences"}) {
      const std::string call = "gradcheck " + op + " --rows 24 --cols 16 --json --method " + method;
      const Result result = touchstone(call);
      EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
      EXPECT_EQ(json::parse(result.out).at("method"), method);
      EXPECT_EQ(touchstone(call + " --plant 17").exit_code, 1) << call;
    }
  }
  for (const std::string wrong : {"nan", "-1", "0", "inf"}) {
    EXPECT_EQ(touchstone("gradcheck rms_norm --rows 2 --cols 4 --tolerance " + wrong).exit_code, 2);
  }
}

TEST(Cli, BenchGoesOnWithoutTorch) {
  const Result result = touchstone(
      "bench layer_norm --rows 4 --cols 8 --regime cache --rounds 1 --direction forward "
      "--python /nowhere/python --peers torch");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("torch: cannot start /nowhere/python"));
  EXPECT_EQ(lines(result.err), 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("layer_norm"));
}

TEST(Cli, BenchSurvivesAPythonThatIsNone) {
  const Result result = touchstone(
      "bench layer_norm --rows 4 --cols 8 --regime cache --rounds 1 --direction forward "
      "--python /bin/true --peers torch");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines(result.err), 1) << result.err;
}

TEST(Cli, ForkJoinIsMeasured) {
  const Result result = touchstone("bench fork_join --threads 2 --rounds 1 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  ASSERT_GE(document.at("fork_join").size(), 2U);
  for (const json& row : document.at("fork_join")) EXPECT_GT(row.at("us").get<double>(), 0);
}

TEST(Cli, BenchMeasuresTheKvCache) {
  const Result result = touchstone("bench kv_cache --rounds 1 --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json rows = json::parse(result.out).at("kv_cache");
  ASSERT_EQ(rows.size(), 8U);
  for (const json& row : rows) EXPECT_GT(row.at("us").get<double>(), 0) << row;
  EXPECT_GT(rows.at(0).at("pages_per_s").get<double>(), 0);
  EXPECT_GT(rows.at(5).at("bytes_per_s").get<double>(), 0);
}

TEST(Cli, AReaderThatLeavesIsNoError) {
  // Killed by SIGPIPE as any tool is, or a quiet exit where the signal is ignored; never a message.
  const Result ended = shell("\"$T\" info | head -c 1 >/dev/null");
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.err, IsEmpty());
  const Result ignored = shell("(trap '' PIPE; sleep 0.2; \"$T\" info) | true");
  EXPECT_EQ(ignored.exit_code, 0);
  EXPECT_THAT(ignored.err, IsEmpty());
}

TEST(Cli, AFullDiskIsReported) {
  const Result result = shell("\"$T\" info >/dev/full");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("standard output"));
  EXPECT_EQ(lines(result.err), 1) << result.err;
}

TEST(Cli, SpeaksOnlyWhereItWasHeard) {
  EXPECT_EQ(shell("\"$T\" nonsense 2>/dev/full").exit_code, 2);
  EXPECT_EQ(shell("\"$T\" nonsense 2>&-").exit_code, 2);
  EXPECT_EQ(shell("\"$T\" info >&-").exit_code, 3);
}

}  // namespace
}  // namespace touchstone::cli
