// A ternary model from every format that can hold it: the same greedy tokens for 1000 steps. Across
// devices, vectors and dtypes: the same but where the margin is below the bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/model_test_support.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/ternary_file.h"

namespace touchstone::model {
namespace {

constexpr std::int64_t kSteps = 1000;

// A llama of one layer whose rows are whole groups of 256.
void write_llama(const std::filesystem::path& path) {
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"hidden_size", 256},
                       {"intermediate_size", 256},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"max_position_embeddings", 2048},
                       {"vocab_size", 300},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0},
                       {"tie_word_embeddings", false},
                       {"hidden_act", "silu"}};
  Json tensors = Json::array();
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, double scale,
                       double shift) {
    tensors.push_back({{"name", name}, {"shape", shape}, {"scale", scale}, {"shift", shift}});
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", {300, 256}, 1, 0);
  add(layer + "input_layernorm.weight", {256}, 0, 1);
  add(layer + "self_attn.q_proj.weight", {256, 256}, 0.3, 0);
  add(layer + "self_attn.k_proj.weight", {128, 256}, 0.3, 0);
  add(layer + "self_attn.v_proj.weight", {128, 256}, 0.3, 0);
  add(layer + "self_attn.o_proj.weight", {256, 256}, 0.3, 0);
  add(layer + "post_attention_layernorm.weight", {256}, 0, 1);
  add(layer + "mlp.gate_proj.weight", {256, 256}, 0.3, 0);
  add(layer + "mlp.up_proj.weight", {256, 256}, 0.3, 0);
  add(layer + "mlp.down_proj.weight", {256, 256}, 0.3, 0);
  add("model.norm.weight", {256}, 0, 1);
  add("lm_head.weight", {300, 256}, 0.3, 0);
  test::write_model(path, config, tensors);
}

std::vector<std::int32_t> greedy(const std::filesystem::path& path) {
  Context context = test::device_context(1);
  Model model(context, io::ModelFile::open(path), {.max_length = kSteps + 8, .sequences = 1});
  const decode::ScorerSequence sequence = model.create();
  std::vector<std::int32_t> tokens = {17};
  while (std::ssize(tokens) <= kSteps) {
    const std::int32_t last[] = {tokens.back()};
    const std::vector<float> logits = test::last_logits(context, model, sequence, last, 1);
    const auto most = std::max_element(logits.begin(), logits.end());
    tokens.push_back(static_cast<std::int32_t>(most - logits.begin()));
  }
  return tokens;
}

void convert(const std::filesystem::path& from, const std::filesystem::path& to,
             std::string_view type, std::optional<TernaryScaleRule> project = {}) {
  io::ConvertOptions options;
  if (!type.empty()) options.format = &weight_format(type);
  options.project = project;
  io::convert_model(from, to, options);
}

TEST(ModelTernary, EveryFormatGivesTheSameGreedyTokens) {
  const test::ModelFolder folder("ternary");
  write_llama(folder.path());
  const auto at = [&](const std::string& name) { return folder.path() / name; };
  convert(folder.path(), at("tq2_0.gguf"), "tq2_0", TernaryScaleRule::mean);
  const std::vector<std::int32_t> expected = greedy(at("tq2_0.gguf"));
  const auto [least, most] = std::minmax_element(expected.begin() + 1, expected.end());
  EXPECT_LT(*least, *most) << "one token over and over would prove nothing";
  for (const WeightFormat& format : weight_formats()) {
    if (!format.ternary || format.name == "sherry_g128" || format.name == "tq2_0") continue;
    const std::string name = std::string(format.name) + ".gguf";
    convert(at("tq2_0.gguf"), at(name), format.name);
    EXPECT_TRUE(io::inspect_ternary(io::TensorFile::open(at(name))).passed()) << name;
    EXPECT_EQ(greedy(at(name)), expected) << name;
  }
  convert(at("tq2_0.gguf"), at("f32"), "");
  EXPECT_EQ(greedy(at("f32")), expected);
}

TEST(ModelTernary, SparseFormGivesTheTokensOfItsValues) {
  const test::ModelFolder folder("sherry");
  write_llama(folder.path());
  const std::filesystem::path packed = folder.path() / "sherry.gguf";
  convert(folder.path(), packed, "sherry_g128", TernaryScaleRule::mean);
  EXPECT_TRUE(io::inspect_ternary(io::TensorFile::open(packed)).passed());
  convert(packed, folder.path() / "f32", "");
  // Three of four weights are not zero: the other formats hold such a model too.
  convert(packed, folder.path() / "pq2_0.gguf", "pq2_0");
  const std::vector<std::int32_t> expected = greedy(packed);
  EXPECT_EQ(greedy(folder.path() / "f32"), expected);
  EXPECT_EQ(greedy(folder.path() / "pq2_0.gguf"), expected);
}

// ---- across devices -----------------------------------------------------------------------------

struct GreedyRun {
  std::vector<std::int32_t> tokens;        // before each step
  std::vector<std::vector<float>> logits;  // after it
};

std::int32_t greedy_token(const std::vector<float>& logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

// kSteps of them: greedy, or along the tokens of another run.
GreedyRun decoded(const std::filesystem::path& path, Device device, DType compute,
                  const std::vector<std::int32_t>* forced = nullptr) {
  Context context({.device = device, .threads = 1});
  Model model(context, io::ModelFile::open(path),
              {.compute = compute, .max_length = kSteps + 8, .sequences = 1});
  const decode::ScorerSequence sequence = model.create();
  GreedyRun run{.tokens = {17}, .logits = {}};
  while (std::ssize(run.logits) < kSteps) {
    const std::size_t step = run.logits.size();
    if (forced != nullptr) run.tokens.resize(step);
    if (forced != nullptr) run.tokens.push_back((*forced)[step]);
    const std::int32_t last[] = {run.tokens.back()};
    run.logits.push_back(test::last_logits(context, model, sequence, last, 1));
    if (forced == nullptr) run.tokens.push_back(greedy_token(run.logits.back()));
  }
  return run;
}

struct Comparison {
  std::int64_t differing = 0;           // greedy tokens
  double error = 0;                     // of a logit, as a share of the bound
  double margin = 0;                    // where tokens differ, likewise
  std::vector<std::string> problems{};  // beyond the bounds
};

// Each logit of both is within `tolerance` of the exact one: so two differ by twice that at most, and
// greedy tokens differ only where the two largest are at most four times that apart.
Comparison compare(const GreedyRun& a, const GreedyRun& b, double tolerance) {
  Comparison result;
  for (std::size_t step = 0; step < a.logits.size(); ++step) {
    const std::vector<float>& x = a.logits[step];
    const std::vector<float>& y = b.logits[step];
    const auto [least, most] = std::ranges::minmax(x);
    const double bound = tolerance * std::max<double>(std::abs(least), std::abs(most));
    double error = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double difference = std::abs(x[i] - y[i]);
      error = std::isnan(difference) ? HUGE_VAL : std::max(error, difference);
    }
    result.error = std::max(result.error, error / (2 * bound));
    if (!(error <= 2 * bound)) {
      result.problems.push_back("step " + std::to_string(step) + ": logits differ by " +
                                std::to_string(error) + ", bound " + std::to_string(2 * bound));
    }
    const std::int32_t other = greedy_token(y);
    if (greedy_token(x) == other) continue;
    ++result.differing;
    const double margin = static_cast<double>(most - x[static_cast<std::size_t>(other)]);
    result.margin = std::max(result.margin, margin / (4 * bound));
    if (!(margin <= 4 * bound)) {
      result.problems.push_back("step " + std::to_string(step) + ": token " +
                                std::to_string(other) + " with a margin of " +
                                std::to_string(margin) + ", bound " + std::to_string(4 * bound));
    }
  }
  return result;
}

class ModelTernaryRuns : public testing::Test {
 protected:
  ModelTernaryRuns() : folder_("ternary_runs"), path_(folder_.path() / "tq2_0.gguf") {
    write_llama(folder_.path());
    convert(folder_.path(), path_, "tq2_0", TernaryScaleRule::mean);
  }
  void expect_close(const std::string& what, const GreedyRun& a, const GreedyRun& b,
                    DType coarser) {
    // The furthest of so many walks is so far out.
    const auto logits = static_cast<double>(a.logits.size() * a.logits[0].size());
    const double deviations = std::sqrt(2 * std::log(logits));
    const Comparison result = compare(a, b, test::logit_tolerance(coarser, 1, deviations));
    EXPECT_EQ(result.problems, std::vector<std::string>()) << what;
    RecordProperty(what + " tokens that differ", static_cast<int>(result.differing));
    RecordProperty(what + " error of the bound", std::to_string(result.error));
    RecordProperty(what + " margin of the bound", std::to_string(result.margin));
  }

  test::ModelFolder folder_;
  std::filesystem::path path_;
};

TEST_F(ModelTernaryRuns, OnAGpuTokensDifferOnlyWhereTheMarginIsBelowTheBound) {
  if (!::touchstone::test::on_gpu()) GTEST_SKIP() << "no GPU: devices are not compared";
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const GreedyRun cpu = decoded(path_, Device::cpu(), compute);
    const GreedyRun gpu = decoded(path_, ::touchstone::test::test_device(), compute, &cpu.tokens);
    expect_close(std::string(name_of(compute)), cpu, gpu, compute);
  }
}

// The same between vectors of other widths and between dtypes.
TEST_F(ModelTernaryRuns, OnTheCpuTokensDifferOnlyWhereTheMarginIsBelowTheBound) {
  if (::touchstone::test::on_gpu()) GTEST_SKIP() << "vectors are the CPU's";
  const GreedyRun best = decoded(path_, Device::cpu(), DType::f32);
  for (const DType compute : {DType::bf16, DType::f16}) {
    const GreedyRun narrow = decoded(path_, Device::cpu(), compute, &best.tokens);
    expect_close(std::string(name_of(compute)), best, narrow, compute);
  }
  const std::string default_target = simd_target();
  ::touchstone::test::for_each_runner({"simd"}, [&](::touchstone::test::Runner&) {
    const std::string target = simd_target();
    if (target == default_target) return;
    expect_close(target, best, decoded(path_, Device::cpu(), DType::f32, &best.tokens), DType::f32);
  });
}

TEST(ModelTernary, TheComparisonFindsWhatIsPlanted) {
  const GreedyRun a{.tokens = {1, 2}, .logits = {{1, 2, 4}, {4, 3.999F, -8}}};
  EXPECT_TRUE(compare(a, a, 1e-4).problems.empty());
  // Closer than four times 1e-4 of 8: another token may win.
  GreedyRun other = a;
  other.logits[1] = {3.9995F, 3.9996F, -8};
  Comparison result = compare(a, other, 1e-4);
  EXPECT_EQ(result.differing, 1);
  EXPECT_TRUE(result.problems.empty());
  EXPECT_EQ(compare(a, other, 1e-5).problems.size(), 2U);  // the logits, and the margin
  // Further apart: never.
  other = a;
  other.logits[0] = {1, 4, 2};
  result = compare(a, other, 1e-4);
  EXPECT_EQ(result.differing, 1);
  EXPECT_EQ(result.problems.size(), 2U);
  other.logits[0][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(compare(a, other, 1e-4).problems.empty());
}

}  // namespace
}  // namespace touchstone::model
